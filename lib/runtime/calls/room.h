// SPDX-License-Identifier: Apache-2.0
// calls: fetches, operations, gradients and steps, as the C API offers them.
#pragma once

#include "lib/runtime/calls/faults.h"
#include "lib/runtime/calls/fetches.h"
#include "lib/runtime/calls/operations.h"
#include "lib/runtime/calls/reductions.h"
#include "lib/runtime/calls/steps.h"

namespace stepwell {

struct CallsRoom {
    Fetches fetches;
    Operations operations;
    Reductions reductions;
    Steps steps;
    Faults faults;
};

}  // namespace stepwell
