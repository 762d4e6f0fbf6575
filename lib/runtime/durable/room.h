// SPDX-License-Identifier: Apache-2.0
// durable: durable stores and their generations.
#pragma once

#include "lib/runtime/durable/commits.h"
#include "lib/runtime/durable/opening.h"

namespace stepwell {

struct DurableRoom {
    DurableOpen opening;
    Commits commits;
};

}  // namespace stepwell
