// SPDX-License-Identifier: Apache-2.0
// The storage driver that breaks another one, by a seeded script. See fault/script.h for the
// options it takes.
#pragma once

#include <stepwell/driver.h>

#include "drivers/fault/script.h"

namespace stepwell::drivers {

extern const stw_storage_ops kFaultStorage;

// Let every hung request go on to the inner driver, as a device does that comes back. Any thread.
void fault_release(stw_storage *storage);
// What was injected so far. Any thread.
FaultCounts fault_counts(stw_storage *storage);

}  // namespace stepwell::drivers
