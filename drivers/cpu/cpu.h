// SPDX-License-Identifier: Apache-2.0
// The memory drivers of a device tier on a machine without a device. "cpu" moves blocks to a
// tensor's own address; "cpu-discrete" is a plain arena that the core treats as a device behind a
// bus.
#pragma once

#include <stepwell/driver.h>

namespace stepwell::drivers {

extern const stw_memory_ops kCpuMemory;
extern const stw_memory_ops kCpuDiscreteMemory;

}  // namespace stepwell::drivers
