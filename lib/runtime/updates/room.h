// SPDX-License-Identifier: Apache-2.0
// updates: the update pipeline's access to tiers and devices.
#pragma once

#include "lib/runtime/updates/devices.h"
#include "lib/runtime/updates/tiers.h"

namespace stepwell {

struct UpdatesRoom {
    DeviceUpdates devices;
    TierAccess pieces;
};

}  // namespace stepwell
