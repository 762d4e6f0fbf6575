// SPDX-License-Identifier: Apache-2.0
// views: how views begin without the lock, how views end, and how threads wait for them.
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
