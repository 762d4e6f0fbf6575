// SPDX-License-Identifier: Apache-2.0
// updates: what the update pipeline asks of tiers and devices.
#pragma once

#include "lib/runtime/updates/devices.h"
#include "lib/runtime/updates/tiers.h"

namespace stepwell {

struct UpdatesRoom {
    DeviceUpdates devices;
    TierAccess pieces;
};

}  // namespace stepwell
