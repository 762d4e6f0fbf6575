/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/operation.h: asynchronous calls: poll, wait, cancel, free.
 */
#ifndef STEPWELL_OPERATION_H
#define STEPWELL_OPERATION_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * One asynchronous call. Every *_async function makes one; each is freed once, by its owner. There
 * is no callback: poll it, or wait for it.
 */

/* OK, PENDING or the error. Any thread. Blocks: never. */
STW_API stw_status stw_operation_poll(stw_operation *operation);
/* As poll, after waiting at most timeout_ns. PENDING is no failure: wait again (so that an
 * interpreter can look at its signals). Errors: the operation's, INTERRUPTED. */
STW_API stw_status stw_operation_wait(stw_operation *operation, uint64_t timeout_ns);
/* Ask it to end early; it then finishes with CANCELLED, or with OK when too late. Blocks: never. */
STW_API stw_status stw_operation_cancel(stw_operation *operation);
/* Free. A fetch whose views were not collected is cancelled and its pins go. Others run on. */
STW_API stw_status stw_operation_free(stw_operation *operation);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_OPERATION_H */
