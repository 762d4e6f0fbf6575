// SPDX-License-Identifier: Apache-2.0
// Sizes that a tier can have: checked before anything is asked of the kernel or of a device.
#pragma once

#include <stepwell/driver.h>

namespace stepwell::drivers {

// For a driver with several devices, which checks their number itself.
stw_status check_memory_size(const char *driver, const stw_memory_options *options,
                             stw_driver_error *error_out);
// Of one that has device 0 alone. Its text may hold populate=0|1 where *populates is given, which
// says what it is without; null: no text.
stw_status check_memory_options(const char *driver, const stw_memory_options *options,
                                bool *populates, stw_driver_error *error_out);

}  // namespace stepwell::drivers
