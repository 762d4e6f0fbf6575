/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/copy.h: write, read, fill and reduce from memory of the caller.
 */
#ifndef STEPWELL_COPY_H
#define STEPWELL_COPY_H

#include <stepwell/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stw_copy_options {
    uint32_t struct_size;
    uint32_t scope;         /* STW_WHOLE, STW_SHARD: the same on one rank. A read of WHOLE of a
                               sharded tensor is COLLECTIVE; a write takes this rank's part of the
                               bytes, and all ranks write */
    uint32_t dtype;         /* of the caller's memory; 0: the tensor's. f32, f16 and bf16 are
                               converted to nearest, others must be equal */
    uint32_t tier;          /* where the caller's memory is: 0 or STW_TIER_HOST (pinned or not), or
                               STW_TIER_DEVICE: that of `device`, for writes and reads */
    uint32_t device;        /* as in stw_fetch_options; else 0 */
    uint32_t reserved;
    uint64_t element_begin; /* 0, 0: all of the scope */
    uint64_t element_count;
    void *stream;           /* STW_STREAM_HOST, STW_STREAM_SYNCED: the memory is ready. Of a device
                               with streams one that uses the memory, or STW_STREAM_SYNCED */
    uint64_t timeout_ns;
} stw_copy_options;
#define STW_COPY_OPTIONS_INIT { sizeof(stw_copy_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Copy between a tensor and memory of the caller, block by block wherever the blocks are; memory
 * use does not depend on the size. A write is exclusive: no reader sees it half done. Source and
 * destination are C-contiguous. `options` NULL: all of the tensor, in its dtype, from or to host
 * memory.
 *
 * Memory of a device may be any of it that the program has. It is copied by way of the host, where
 * tensors have room without the device's budget; a tensor that is at the device is better fetched
 * there, and copied by the program. The call waits for the work on `stream` before it, and has
 * copied when it returns: work enqueued afterwards finds it so. No timeout and no
 * stw_runtime_interrupt ends its waits for the device.
 *
 * Ownership: the caller's memory is the library's until return.
 * Threads:   any thread.
 * Blocks:    until the copy is done, or the timeout passes; it waits for views of other threads.
 * Errors:    as stw_fetch; INVALID (no such device, not its memory, no stream of it), UNSUPPORTED
 *            (a device whose driver does not copy a program's memory; a stream with the host's; a
 *            read of WHOLE of a sharded tensor to a device, or where collectives work at one). On
 *            TIMEOUT the caller's memory is no longer touched. After a write, fill or reduce that
 *            failed half way, reads return its error, or IO after a TIMEOUT, INTERRUPTED or
 *            CANCELLED, until all of it is written again or discarded.
 */
STW_API stw_status stw_tensor_write(stw_tensor *tensor, const void *source,
                                    const stw_copy_options *options);
STW_API stw_status stw_tensor_read(stw_tensor *tensor, void *destination,
                                   const stw_copy_options *options);

/**
 * Fill a range with one value, converted to the tensor's dtype to nearest.
 *
 * Ownership: none.  Threads: any thread.
 * Blocks:    until every block is filled, or options->timeout_ns.
 * Errors:    as stw_tensor_write; INVALID when the dtype cannot hold the value, or options->dtype
 *            is another one.
 */
STW_API stw_status stw_tensor_fill(stw_tensor *tensor, double value,
                                   const stw_copy_options *options);

enum { STW_REDUCE_MORE = 1 }; /* as STW_RELEASE_MORE */
typedef struct stw_reduce_options {
    uint32_t struct_size;
    uint32_t flags;      /* STW_REDUCE_MORE */
    uint32_t dtype;      /* of `local`; 0: the tensor's */
    uint32_t wire_dtype; /* of bytes sent to other ranks: 0, the gradient's; the only value in this
                            release */
    uint32_t tier;       /* where `local` is; as in stw_copy_options, and the next two */
    uint32_t device;
    void *stream;
    double scale;        /* of this contribution; 0: 1.0 */
    uint64_t timeout_ns;
} stw_reduce_options;
#define STW_REDUCE_OPTIONS_INIT { sizeof(stw_reduce_options), 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Add a gradient from memory of the caller to the tensor, product and sum in fp32, rounded to the
 * tensor's dtype. Contributions are added in the order of the calls, so every bit is the same in
 * every run; the first one to an EMPTY tensor is taken as it is. The zero-copy alternative is a
 * fetch with STW_REDUCE. local NULL: this rank has no gradient, and only takes part in the
 * collective (with MORE: does nothing). If no rank has one, an EMPTY tensor stays EMPTY, and its
 * update is one without gradient: no decay, no count. A view of zeros is a gradient. In a tensor of
 * bf16 or f16 small contributions are lost beside a large sum (256 + 0.5 is 256): sum many in F32.
 *
 * Ownership: `local` may be overwritten after the return.
 * Threads:   any thread.
 * Blocks:    until it is added, or the timeout passes.
 * Errors:    INVALID (a dtype other than f32, f16, bf16; a scale that is not finite; memory, device
 *            and stream as for stw_tensor_write), UNSUPPORTED (likewise; another wire_dtype; over
 *            ranks memory of a device, or collectives at one: stw_reduce_adopt takes both), BUSY
 *            (this thread has a view open), BUDGET, IO, CHECKSUM, TIMEOUT, DEVICE.
 */
STW_API stw_status stw_reduce(stw_tensor *gradient, const void *local,
                              const stw_reduce_options *options);

typedef void (*stw_deleter_fn)(void *user);
/**
 * As stw_reduce, and `local` becomes the library's: it is added after the return, in the order of
 * the calls, and nothing is copied in the call. Later calls for that tensor wait for it. It is
 * freed by deleter(user), once, also if the sum fails, a step is aborted or the runtime is closed:
 * on a thread of the library that holds no lock, or in the call if the tensor has no elements. The
 * deleter may be slow but must not call the library. If the call fails the memory stays the
 * caller's, and its deleter is not called.
 *
 * Memory of a device is copied to the host and added there, after the work that was enqueued on
 * `stream` before the call: an update thread waits for that, and the deleter comes after it.
 *
 * The library holds at most half the budget of the host tier, or of the device if there is none
 * (adopted_bytes of stw_tier_stats), and of memory of a device half of that device's; or a single
 * contribution of any size. A call waits for more
 * room, even if that depends on views of its own thread: release those first. A sum that fails
 * later fails the tensor, as an update does.
 *
 * Ownership: `local` is the library's, unchanged, until deleter(user); NULL: nothing is called.
 * Threads:   any thread.
 * Blocks:    never within the limit above; else until there is room, or the timeout passes. With
 *            STW_RUNTIME_FAULT_IN as stw_release of a REDUCE view; a timeout then fails the tensor.
 * Errors:    as stw_reduce; INVALID (local is NULL), LIMIT, PEER.
 */
STW_API stw_status stw_reduce_adopt(stw_tensor *gradient, const void *local,
                                    const stw_reduce_options *options, stw_deleter_fn deleter,
                                    void *user);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_COPY_H */
