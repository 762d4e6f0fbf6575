// SPDX-License-Identifier: Apache-2.0
// The storage driver that injects faults into another one, by a seeded script. See fault/script.h
// for the options it takes.
#pragma once

#include <stepwell/driver.h>

#include "drivers/fault/script.h"

namespace stepwell::drivers {

extern const stw_storage_ops kFaultStorage;

// Passes every hung request on to the inner driver, as a device that recovers. Any thread.
void fault_release(stw_storage *storage);
// Counts of injected faults. Any thread.
FaultCounts fault_counts(stw_storage *storage);

}  // namespace stepwell::drivers
