/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/operation.h: asynchronous calls: poll, wait, notification, cancel, free.
 */
#ifndef STEPWELL_OPERATION_H
#define STEPWELL_OPERATION_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * One asynchronous call. Every *_async function makes one; each is freed once, by its owner. Poll
 * it, wait for it, or be notified: by a callback, or by an eventfd, which event loops can wait for.
 */

/* status: the operation's, as stw_operation_poll() has it, with the sentence; CANCELLED if the
 * operation was freed before the callback: then its handle is not valid any more. */
typedef void (*stw_done_fn)(void *user, stw_operation *operation, stw_status status);

/* OK, PENDING or the error. Any thread. Blocks: never. */
STW_API stw_status stw_operation_poll(stw_operation *operation);
/* As poll, after waiting at most timeout_ns. PENDING is not a failure: wait again (so that an
 * interpreter can check its signals). Errors: the operation's, INTERRUPTED. */
STW_API stw_status stw_operation_wait(stw_operation *operation, uint64_t timeout_ns);
/**
 * Call `done` when the operation is over: exactly once for each OK, also if the operation is freed,
 * or at once on the calling thread if it is over already. Else on a thread of the library, one
 * callback of a runtime at a time, in the order of the ends, with no lock held. It may call
 * functions that say "Blocks: never", including stw_fetch_collect() and stw_operation_free() of
 * this operation, and must not throw. A slow callback delays only other callbacks.
 *
 * Ownership: `user` must live until `done` has returned. An operation may be freed before: `done`
 *            is called nevertheless. stw_runtime_close() waits for it.
 * Threads:   any thread.
 * Blocks:    never, except for `done` itself if the operation is over.
 * Errors:    INVALID, EXISTS (an operation has one callback), LIMIT (no thread can be started); on
 *            error `done` is not called.
 */
STW_API stw_status stw_operation_on_done(stw_operation *operation, stw_done_fn done, void *user);
/**
 * Add 1 to an eventfd of the caller when the operation is over: now, if it is already. One eventfd
 * serves any number of operations, of any runtime. An operation has one at a time: another replaces
 * it, -1 removes it.
 *
 * Ownership: the descriptor stays the caller's, and must stay open until it was written or removed,
 *            or the operation was freed.
 * Threads:   any thread.
 * Blocks:    never.
 * Errors:    INVALID (not an eventfd, or a blocking one: create it with EFD_NONBLOCK).
 */
STW_API stw_status stw_operation_notify_fd(stw_operation *operation, int32_t fd);
/* Request it to end early; it then finishes with CANCELLED, or with OK if too late. Blocks:
 * never. */
STW_API stw_status stw_operation_cancel(stw_operation *operation);
/* Free. A fetch whose views were not collected is cancelled and its pins are released. Other
 * operations run on. Any thread, also in a callback of this operation. Blocks: never, except for
 * the block that a fetch with `into` or a dtype is just copying. */
STW_API stw_status stw_operation_free(stw_operation *operation);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_OPERATION_H */
