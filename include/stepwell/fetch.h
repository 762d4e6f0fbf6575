/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/fetch.h: views: fetch, release, prefetch, advise, evict.
 */
#ifndef STEPWELL_FETCH_H
#define STEPWELL_FETCH_H

#include <stepwell/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { /* access */
    STW_READ = 0,       /* many at once */
    STW_WRITE = 1,      /* exclusive; contents undefined at fetch, nothing is read */
    STW_READ_WRITE = 2, /* exclusive */
    STW_REDUCE = 3      /* zeros to add into; at release the view is summed into the tensor (an
                           EMPTY one counts as nothing, and is zeros around a range), over all ranks
                           if there are several. Many at once: micro-batches, tied weights, two uses
                           in one graph */
};
/* For a sharded tensor WHOLE is gathered from all ranks: a fetch of it is COLLECTIVE, and so is the
 * release of a REDUCE without MORE. WHOLE with WRITE or READ_WRITE: every rank keeps its slice of
 * the written bytes and nothing is sent, so all ranks must write the same bytes. SHARD sends
 * nothing either, but one with WRITE or READ_WRITE invalidates the gathered tensor, so all ranks
 * fetch theirs. */
enum { STW_WHOLE = 0, STW_SHARD = 1 };
typedef struct stw_fetch_request {
    uint32_t struct_size;
    uint32_t access;         /* STW_READ .. STW_REDUCE */
    stw_tensor *tensor;
    uint32_t scope;          /* STW_WHOLE, STW_SHARD */
    uint32_t tier;           /* STW_TIER_DEVICE, STW_TIER_HOST */
    uint32_t device;
    uint32_t dtype;          /* of the view; 0: the tensor's. f32, f16 and bf16 convert. READ: the
                                bytes rounded to nearest, a copy as of the fetch. REDUCE: the
                                contribution; the sum is rounded to the tensor's. Others: INVALID. A
                                gathered tensor is not converted: UNSUPPORTED */
    uint64_t element_begin;  /* a part of the scope, in elements of the flattened tensor (rows, */
    uint64_t element_count;  /* one expert of a stack); 0, 0: all of it */
    void *into;              /* NULL: a pin of the library's memory. Else host memory of the caller
                                for all elements of the view, to which the bytes are copied; READ
                                only, tier 0 or STW_TIER_HOST */
} stw_fetch_request;
#define STW_FETCH_REQUEST_INIT { sizeof(stw_fetch_request), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

enum { /* stw_fetch_options.flags */
    STW_FETCH_TRY = 1,       /* BUSY instead of any wait: only resident and free bytes */
    STW_FETCH_WAIT_ROOM = 2, /* wait for views of other threads to end; without it BUDGET at once */
    STW_FETCH_HAND_OVER = 4, /* another thread will release this view; deadlock detection does not
                                charge it to the fetching thread */
    STW_FETCH_ABSENT = 8,    /* READ without the bytes, for an expert that is not needed here: the
                                collective runs and this rank sends its shard, and its views have no
                                elements and a NULL pointer. Release them like any */
    STW_FETCH_SPECULATED = 16 /* READ: of a parameter that was updated speculatively its new
                                contents, before the verdict; see STW_UPDATE_SPECULATE */
};

typedef struct stw_fetch_options {
    uint32_t struct_size;
    uint32_t flags;      /* STW_FETCH_* */
    void *stream;        /* the consumer's, for all device requests of the call */
    stw_phase *phase;    /* NULL: the step begun last in this runtime */
    uint64_t timeout_ns;
    int32_t priority;    /* of demand requests: larger ones overtake */
    uint32_t reserved;
} stw_fetch_options;
#define STW_FETCH_OPTIONS_INIT { sizeof(stw_fetch_options), 0, 0, 0, 0, 0, 0 }

/* A pin. Plain data, 64 bytes in every version: copy it, but release it once. A fetch into the
 * caller's memory returns a view that pins nothing: it refers to that memory and needs no
 * release. */
typedef struct stw_view {
    void *pointer;          /* aligned as created; NULL when element_count is 0 */
    uint64_t bytes;         /* element_count x size of the view's dtype; never includes padding */
    uint64_t element_begin; /* of the flattened tensor */
    uint64_t element_count;
    stw_tensor *tensor;
    uint64_t cookie;        /* opaque: slot and serial number */
    uint32_t access;
    uint32_t scope;
    uint32_t tier;
    uint32_t device;
} stw_view;

/**
 * Pin the bytes of n tensors at a tier, moving them there first if need be. All or nothing: room
 * for all is reserved before anything moves.
 * Many readers or one writer: a conflicting fetch waits for releases and for an update under way;
 * within one call, or against a view of the same step, it is BUSY at once (it would wait for
 * itself). Deadlocks of threads that wait for each other's views are detected: the youngest of
 * their fetches is BUSY, or BUDGET if it waits for room. A view counts as held by the fetching
 * thread, unless it was fetched with STW_FETCH_HAND_OVER or other threads have released views of
 * that thread before. A tensor fetched twice has two views and one pointer. On a device with
 * streams the bytes are there for work enqueued on options->stream from now on: the host waits for
 * NVMe, not for the last copy. A stream under capture is INVALID: fetch before the graph, release
 * after its launch. Requests with `into`, or READ with another dtype, are copies: the newest bytes,
 * block by block wherever the blocks are, all of one call as of one moment; writers are not blocked
 * afterwards. `into` takes no room, however large the tensor; a converted view takes the room of
 * its bytes at its tier, until its release. When a call fails the memory at `into` may have been
 * written, and is not touched any more. A gathered tensor that some ranks fetched with
 * STW_FETCH_ABSENT is not kept: it is dropped with its last view, so that the next fetch is a
 * collective again. For tensors that are not gathered nothing moves. `options` NULL: all defaults.
 *
 * Ownership: views_out[0..n) are the caller's; release each once, with stw_release(). Memory at
 *            `into` is the library's until return.
 * Threads:   any thread; release may come from another one.
 * Blocks:    until the last copy is enqueued (host tier: done), or options->timeout_ns, which
 *            undoes it.
 * Errors:    INVALID, BUDGET (what pins the room is in the error info), BUSY, EMPTY, IO, CHECKSUM,
 *            TIMEOUT, ORDER, PEER, DEVICE, LIMIT, INTERRUPTED, CLOSED, FORKED; UNSUPPORTED (another
 *            dtype, or `into`, of a gathered tensor).
 */
STW_API stw_status stw_fetch(stw_runtime *runtime, const stw_fetch_options *options,
                             const stw_fetch_request *requests, uint32_t n, stw_view *views_out);
/* The same, not blocking; the order of calls is still the order of collectives. *operation_out is
 * the caller's. Then wait or poll, then collect; an operation freed without that, after its fetch
 * was granted, is undone, and a tensor fetched for WRITE is EMPTY. Memory at `into` is the
 * library's until the operation is over, also a cancelled one, or freed: the free waits for the
 * block that is just being copied. Blocks: never. */
STW_API stw_status stw_fetch_async(stw_runtime *runtime, const stw_fetch_options *options,
                                   const stw_fetch_request *requests, uint32_t n,
                                   stw_operation **operation_out);
/* Take the views of a finished fetch, ordered on `stream`. PENDING when it is not over. Once
 * only. */
STW_API stw_status stw_fetch_collect(stw_operation *operation, void *stream, stw_view *views_out,
                                     uint32_t n);
/* Could these be fetched together if nothing else were pinned? OK, or BUDGET with the numbers. For
 * start-up: call once per layer. Any thread. Blocks: never. */
STW_API stw_status stw_fetch_fits(stw_runtime *runtime, const stw_fetch_request *requests,
                                  uint32_t n);

enum { /* flags of stw_release */
    STW_RELEASE_FAR = 1,     /* not needed again for long: evict first (reshard after forward) */
    STW_RELEASE_NEAR = 2,    /* needed again soon: evict last */
    STW_RELEASE_DISCARD = 4, /* the contents are dead: EMPTY, no write-back (a used activation) */
    STW_RELEASE_MORE = 16,   /* REDUCE: this rank adds more later; kept here until the release
                                without it, which sums over ranks. No effect on one rank */
    STW_RELEASE_ABANDON = 8  /* the write failed half way: the contents of all of the tensor become
                                EMPTY (or zeros), not the old ones; REDUCE: nothing is added */
};
/**
 * Release views. Write access makes the replica dirty; REDUCE starts the sum. The bytes are reused
 * only after `stream` has passed the work enqueued so far; consumers on several streams join them
 * first. Cookies are cleared. Every valid view is released even if another one of the array is
 * invalid. The gradient of an optimizer whose last step waited for a norm is measured here, if all
 * of it was written at a tier the CPU can read: about 0.1 ms per MiB, which the next step saves.
 * FAR and NEAR order the replica that was viewed. The buffer of a converted view or of a sum leaves
 * with its view, so they have no effect there; of a gathered tensor only plans use them.
 *
 * Ownership: the views end.  Threads: any thread.
 * Blocks:    never, except REDUCE with STW_RUNTIME_FAULT_IN: until transfers and copies that use
 *            the tensor's address are over, so that no access reads the old sum.
 * A WRITE view that is released unwritten leaves the old contents of its memory: use ABANDON.
 * Errors:    INVALID (double, stale, torn), and the first background error of these tensors. As
 *            stw_tensor_discard if DISCARD is refused: the view has ended, and the contents stay.
 */
STW_API stw_status stw_release(stw_view *views, uint32_t n, void *stream, uint32_t flags);
/**
 * The program is about to destroy a stream on which views were fetched or released. To be called
 * before that, since its work may go on afterwards, and its handle may be reused: without this
 * call, work ordered after it waits for all of the device, or, if the next stream is used before
 * anything was moved, is not ordered after it at all. A stream that the program has synchronised
 * with needs no call. No effect for STW_STREAM_HOST and _SYNCED, and for a stream that was never
 * used.
 *
 * Ownership: the stream stays the program's; no call may name it until it is created again.
 * Threads:   any thread, with no other call that names this stream. STW_STREAM_PER_THREAD: the
 *            thread that ends.
 * Blocks:    never.
 * Errors:    BUSY: it records a graph; end the capture first. DEVICE: the device is lost.
 */
STW_API stw_status stw_stream_forget(stw_runtime *runtime, void *stream);
/* One more pin on the same bytes, for a second consumer: it belongs to the calling thread. READ
 * views only, and not copies (`into`, another dtype). Blocks: never. */
STW_API stw_status stw_view_share(const stw_view *view, stw_view *view_out);

/* A hint that these fetches are coming: their bytes move to the tier ahead of them. It makes room
 * only by evicting blocks that are not pinned and not prefetched for others; an EMPTY tensor has
 * nothing to move, and WRITE is treated as READ. For a request that will be a copy they move to
 * where the CPU reads them. Moves local shards; a collective starts on a fetch, or ahead of the
 * next by the order of earlier fetches of all ranks, not on a hint. Never fails for lack of
 * room. Errors: INVALID, CLOSED. Any thread. Never blocks. */
STW_API stw_status stw_prefetch(stw_runtime *runtime, const stw_fetch_request *requests,
                                uint32_t n);

enum { /* advice */
    STW_ADVICE_NORMAL = 0,
    STW_ADVICE_COLD = 1, /* not used in the coming steps: a reference model, another expert group */
    STW_ADVICE_HOT = 2   /* used continually from now on: evicted last, not written back early */
};
STW_API stw_status stw_advise(stw_tensor *const *tensors, uint32_t n, uint32_t advice);
/* Evict these (n = 0: all) from `tier` now, after writing dirty blocks back. What other threads
 * bring back meanwhile stays. BUSY names the open views. Blocks: until done or timeout_ns. */
STW_API stw_status stw_evict(stw_runtime *runtime, stw_tensor *const *tensors, uint32_t n,
                             uint32_t tier, uint32_t device, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_FETCH_H */
