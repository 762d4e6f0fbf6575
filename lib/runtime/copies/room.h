// SPDX-License-Identifier: Apache-2.0
// copies: between tensors and the caller's memory.
#pragma once

#include "lib/runtime/copies/chunks.h"
#include "lib/runtime/copies/snapshots.h"

namespace stepwell {

struct CopiesRoom {
    ChunkCopies chunks;
    Snapshots snapshots;
};

}  // namespace stepwell
