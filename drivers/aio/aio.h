// SPDX-License-Identifier: Apache-2.0
// The storage driver over libaio and O_DIRECT.
#pragma once

#include <stepwell/driver.h>

namespace stepwell::drivers {

extern const stw_storage_ops kAioStorage;

}  // namespace stepwell::drivers
