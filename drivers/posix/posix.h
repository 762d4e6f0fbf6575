// SPDX-License-Identifier: Apache-2.0
// The storage driver over a pool of threads that call pread and pwrite.
#pragma once

#include <stepwell/driver.h>

namespace stepwell::drivers {

extern const stw_storage_ops kPosixStorage;

}  // namespace stepwell::drivers
