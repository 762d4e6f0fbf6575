/* SPDX-License-Identifier: Apache-2.0
 * What the test double of NCCL is. Ranks are processes or threads, each with a device of the double
 * of the CUDA driver, and meet in a file of shared memory that is named by their unique id. A
 * collective is two kernels on its stream: one gives this rank's bytes, and one waits for those of
 * the others. So use before an end is found as with any kernel.
 *
 * Sums are taken in rank order, 0 first, in f32 (f64 for double), and rounded once: as host groups
 * take them, and not as NCCL does, which has an order of its own.
 *
 * What NCCL leaves undefined is an error here: ranks that call for different collectives, or in
 * memory that some of them have registered and others not, a call while the last one is still being
 * launched, a handle that was given back, registered memory of several handles. A rank that is gone
 * is waited for, until the communicator is aborted.
 *
 * STW_NCCL_DOUBLE holds options, "key=value" with commas between:
 *   version=22304  what ncclGetVersion says
 *   init=2         so often ncclCommGetAsyncError says "in progress" when all ranks have joined
 *   launch=1       so often it says so of every second collective, before that is on its stream
 *   notices=0      1: a process that is gone is found, and the others get ncclRemoteError
 *   fail=ncclAllGather:3:2
 *                  the third call from now on returns 2; call 0: every call. What
 *                  ncclCommGetAsyncError fails with is the communicator's error
 */
#ifndef STW_NCCL_DOUBLE_CONTROL_H
#define STW_NCCL_DOUBLE_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STW_NCCL_DOUBLE_API __attribute__((visibility("default")))

/* Calls of a function by its name in this process. */
STW_NCCL_DOUBLE_API uint64_t stw_nccl_double_calls(const char *function);
/* Collectives whose bytes all lay in memory that was registered with their communicator. */
STW_NCCL_DOUBLE_API uint64_t stw_nccl_double_in_registered(void);
/* Communicators that nobody has destroyed or aborted, and registrations that were not taken back
 * before their communicator went. */
STW_NCCL_DOUBLE_API uint64_t stw_nccl_double_leaks(void);

#ifdef __cplusplus
}
#endif

#endif
