/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell.h: the C API of Stepwell, a memory-tiering runtime for data larger than the memory it is
 * computed in. Includes one small header per concept. 64-bit Linux only.
 *
 * TERMS. tier, tensor, shard, replica, view, fetch, release, prefetch, update, policy, generation,
 * step, phase, link: docs/concepts. A tensor has one dtype, is flattened in C order, padded and cut
 * into equal shards over its group. WHOLE is all of it, SHARD is this rank's slice.
 *
 * THREADS. "any thread": no restriction. "one at a time": one thread at a time per object.
 * Callbacks run on a library thread with no lock held, unless their comment says otherwise; they
 * may call only functions that say "Blocks: never".
 *
 * ZERO MEANS DEFAULT, except for quantities for which 0 is a valid value: a budget of 0 means no
 * such tier, and stw_hyper is used exactly as given (start from STW_HYPER_INIT).
 *
 * SIZES. Structs that start with struct_size grow at the end. An array of them has the stride
 * elements[0].struct_size, and all its elements say the same size. stw_view never grows. In structs
 * filled by the library, the caller sets struct_size first and gets back the number of bytes
 * filled. Reserved fields and bytes unknown to this build must be 0.
 *
 * STREAMS belong to the consumer and are always explicit. If a device has streams, NULL is refused,
 * because frameworks use 0 for the default stream: pass STW_STREAM_LEGACY, STW_STREAM_PER_THREAD, a
 * CUstream, or STW_STREAM_SYNCED. Host tier and cpu device: STW_STREAM_HOST (NULL).
 *
 * TIME. timeout_ns is a duration from the call; 0 is the runtime's default. A timeout ends the
 * call. Accepted work goes on, unless the comment says it is undone.
 *
 * ERRORS. A call reports its own failure; outputs are written only on success. Work that fails
 * after its call has returned (write-back, reduce, update) marks the affected tensors. The first
 * cause is returned by the next call that names such a tensor, by stw_step_end() and by
 * stw_runtime_drain(), until stw_runtime_clear_error(). Status values below 0 are errors; above 0,
 * success with a remark.
 *
 * LIFETIME. An object must outlive the objects made from it: group > runtime > tensor, phase,
 * optimizer > operation, view. Destroying too early is STW_ERROR_BUSY and changes nothing. View
 * cookies carry a serial number, so a stale or double release is always detected.
 *
 * RANKS. Without a group there is one, and WHOLE and SHARD are the same bytes. Calls marked
 * COLLECTIVE are made by all ranks of the runtime's group, in the same order: whether and when they
 * exchange bytes depends on that order alone, never on timing, on local room or on local residency.
 * Ranks that differ get ERROR_ORDER, with both calls named.
 *
 * If a comment does not say otherwise: any thread, never blocks, ERROR_INVALID, _CLOSED and _FORKED
 * only.
 */
#ifndef STEPWELL_H
#define STEPWELL_H

#include <stepwell/copy.h>
#include <stepwell/fetch.h>
#include <stepwell/group.h>
#include <stepwell/interop.h>
#include <stepwell/memory.h>
#include <stepwell/observe.h>
#include <stepwell/operation.h>
#include <stepwell/optimizer.h>
#include <stepwell/phase.h>
#include <stepwell/runtime.h>
#include <stepwell/status.h>
#include <stepwell/store.h>
#include <stepwell/tensor.h>
#include <stepwell/types.h>
#include <stepwell/victim.h>

#endif /* STEPWELL_H */
