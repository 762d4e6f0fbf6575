// SPDX-License-Identifier: Apache-2.0
// ranks: collectives and what they work on.
#pragma once

#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/memory.h"
#include "lib/runtime/ranks/shards.h"
#include "lib/runtime/ranks/sums.h"
#include "lib/runtime/ranks/wholes.h"

namespace stepwell {

struct RanksRoom {
    GroupMemory memory;
    Shards shards;
    Collectives collectives;
    Wholes wholes;
    Sums sums;
};

}  // namespace stepwell
