// SPDX-License-Identifier: Apache-2.0
// tensors: tensors of the program, where they rest, and buffers of the library.
#pragma once

#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/tensors/registry.h"
#include "lib/runtime/tensors/zeros.h"

namespace stepwell {

struct TensorsRoom {
    Placement placement;
    PrivateBuffers buffers;
    OwedZeros zeros;
    TensorRegistry registry;
};

}  // namespace stepwell
