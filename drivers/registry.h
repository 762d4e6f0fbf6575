// SPDX-License-Identifier: Apache-2.0
// The drivers that are linked in, by name, and the check that every table passes before use.
#pragma once

#include <stepwell/driver.h>

#include <span>

namespace stepwell::drivers {

// "aio", "posix", "fault". nullptr: no such driver.
const stw_storage_ops *storage_driver(const char *name);
// "cpu", "cpu-discrete", "host".
const stw_memory_ops *memory_driver(const char *name);

std::span<const stw_storage_ops *const> storage_drivers();
std::span<const stw_memory_ops *const> memory_drivers();

// OK, or INVALID with the sentence that says in what the table lies.
stw_status check(const stw_storage_ops *ops, stw_driver_error *error_out);
stw_status check(const stw_memory_ops *ops, stw_driver_error *error_out);

}  // namespace stepwell::drivers
