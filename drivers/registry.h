// SPDX-License-Identifier: Apache-2.0
// Drivers by name, first those that are linked in, then modules; and the check of every table
// before its use.
#pragma once

#include <stepwell/driver.h>

#include <span>

namespace stepwell::drivers {

// "aio", "posix", "fault". nullptr: no such driver.
const stw_storage_ops *storage_driver(const char *name);
// "cpu", "cpu-discrete", "host".
const stw_memory_ops *memory_driver(const char *name);

// The same, or the driver of a module: of libstepwell-<name>.so in `directory` (nullptr: where this
// build has its modules), or of the file whose absolute path `name` is. No module replaces a driver
// that is linked in. A refused module is unloaded again; an accepted one stays loaded for the life
// of the process. Any thread. UNSUPPORTED: no such driver here. NOT_FOUND, PERMISSION, INVALID: a
// module that cannot be used.
stw_status find_driver(const char *name, const stw_storage_ops **ops_out,
                       stw_driver_error *error_out, const char *directory = nullptr);
stw_status find_driver(const char *name, const stw_memory_ops **ops_out,
                       stw_driver_error *error_out, const char *directory = nullptr);
// No collective driver is linked in: MPI and NCCL belong to modules.
stw_status find_driver(const char *name, const stw_collective_ops **ops_out,
                       stw_driver_error *error_out, const char *directory = nullptr);

std::span<const stw_storage_ops *const> storage_drivers();
std::span<const stw_memory_ops *const> memory_drivers();

// OK, or INVALID with a sentence that names the inconsistency of the table. The table may be of an
// older or a newer release with the same ABI; tables of find_driver have the size of this build.
stw_status check(const stw_storage_ops *table, stw_driver_error *error_out);
stw_status check(const stw_memory_ops *table, stw_driver_error *error_out);
stw_status check(const stw_collective_ops *table, stw_driver_error *error_out);

}  // namespace stepwell::drivers
