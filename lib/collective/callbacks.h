// SPDX-License-Identifier: Apache-2.0
// The program's own collectives as a driver: its table of callbacks behind the table that a group
// works with. Exchanges go through its all-gather.
#pragma once

#include <stepwell/driver.h>
#include <stepwell/group.h>

namespace stepwell::collective {

// Null without a callback that must be there, with the reason. The table is copied.
stw_status open_callbacks(const stw_group_ops &callbacks, void *user, uint32_t rank, uint32_t size,
                          stw_collective **collective_out, stw_driver_error *error_out);
extern const stw_collective_ops kCallbacks;

}  // namespace stepwell::collective
