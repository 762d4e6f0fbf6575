/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine with STW_RUNTIME_FAULT_IN, and accesses to addresses of its tensors without a view.
 */
#ifndef TESTS_ABI_TOUCHED_H
#define TESTS_ABI_TOUCHED_H

#include "support.h"

/* Eight blocks on a cpu device, no host tier. */
machine machine_touched(void);
float *touched_address(stw_tensor *tensor);
/* To the thread sanitizer a mapping that changes is a write of all that lies there, so that a read
 * without a view races with the eviction whose fault it waits for. */
float touched_read(const volatile float *address);
/* The report's faults of the tensor: of reads, of writes. */
void touched_counts(stw_runtime *runtime, const char *name, unsigned counts_out[2]);

#endif
