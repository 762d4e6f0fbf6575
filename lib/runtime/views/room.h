// SPDX-License-Identifier: Apache-2.0
// views: how views of tensors begin without the lock, how they end, and waiting for them.
#pragma once

#include "lib/runtime/views/ends.h"
#include "lib/runtime/views/hits.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/runtime/views/streams.h"

namespace stepwell {

struct ViewRoom {
    StreamOrder streams;
    Sleepers sleepers;
    ViewEnds ends;
    HitPath hits;
};

}  // namespace stepwell
