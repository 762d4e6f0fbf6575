// SPDX-License-Identifier: Apache-2.0
// The memory driver of the host tier.
#pragma once

#include <stepwell/driver.h>

namespace stepwell::drivers {

extern const stw_memory_ops kHostMemory;

}  // namespace stepwell::drivers
