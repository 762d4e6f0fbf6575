/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/tensor.h: tensors, their policy, contents and addresses.
 */
#ifndef STEPWELL_TENSOR_H
#define STEPWELL_TENSOR_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STW_DIMENSIONS_MAX = 8 };

enum { /* retention: treatment of the near replica after a release */
    STW_RETAIN_DEFAULT = 0, /* the plan decides */
    STW_RETAIN_KEEP = 1,    /* evict last: embeddings, norms, adapters, router */
    STW_RETAIN_STREAM = 2,  /* evict first */
    STW_RETAIN_PIN = 3      /* never evicted from `home`; counted at create, refused if it cannot
                               fit */
};

enum { /* partition of the tensor over the ranks of the runtime's group */
    STW_PARTITION_DEFAULT = 0,    /* sharded; ACTIVATION and CACHE: local; up to 16,384 elements:
                                     replicated. Without a group all are local */
    STW_PARTITION_SHARDED = 1,    /* each rank holds an equal slice, padded */
    STW_PARTITION_REPLICATED = 2, /* every rank holds all of it, and writes the same; a reduce is an
                                     all-reduce */
    STW_PARTITION_LOCAL = 3       /* private to this rank; no collectives */
};

enum { /* bits of stw_policy.allowed_tiers */
    STW_ALLOW_DEVICE = 1, STW_ALLOW_HOST = 2, STW_ALLOW_NVME = 4
};

typedef struct stw_policy {
    uint32_t struct_size;
    uint32_t home;          /* STW_TIER_*: where it rests by default; DEFAULT: by preset and role */
    uint32_t allowed_tiers; /* STW_ALLOW_*; 0: all */
    uint32_t retention;     /* STW_RETAIN_* */
    int32_t priority;       /* among equals, lower is evicted first */
    uint32_t home_device;
} stw_policy;
#define STW_POLICY_INIT { sizeof(stw_policy), 0, 0, 0, 0, 0 }

enum { /* stw_tensor_spec.flags */
    STW_TENSOR_DURABLE = 1,  /* part of generations (stw_commit), found again by name: it needs a
                                name and nvme as an allowed tier, and the runtime a store_name */
    STW_TENSOR_ZERO = 2,     /* reads as zeros until written (else EMPTY); costs no bytes */
    STW_TENSOR_READ_ONLY = 4, /* frozen, see stw_tensor_freeze: written only by stw_tensor_write */
    STW_TENSOR_FIXED_ADDRESS = 8, /* one address at each device for life, see stw_tensor_address;
                                     on `cpu` every tensor has one. INVALID for a tensor sharded
                                     over ranks if a device's memory does not move; UNSUPPORTED if a
                                     device has no fixed addresses. On `cuda` with arena=permanent
                                     it is fetched only as a whole if it has several blocks, and
                                     INVALID if the device's memory is registered with ranks */
    STW_TENSOR_NO_ADDRESS = 16, /* stw_tensor_address is UNSUPPORTED: with STW_RUNTIME_FAULT_IN its
                                   memory is not protected between views, which saves a system
                                   call for each block of a write */
    STW_TENSOR_OWN_BLOCKS = 32  /* it shares its blocks with no other tensor, however small it is */
};

typedef struct stw_tensor_spec {
    uint32_t struct_size;
    uint32_t flags;               /* STW_TENSOR_* */
    const char *name;             /* unique per runtime, at most 255 bytes; NULL: none */
    uint32_t role;                /* STW_ROLE_* */
    uint32_t dtype;
    uint32_t partition;           /* STW_PARTITION_* */
    uint32_t dimensions;          /* 0: a scalar */
    uint64_t shape[8];            /* [0, dimensions); products are checked */
    uint64_t align_bytes;         /* of the first element, a power of two up to 4096; 0: 256 */
    uint64_t neighbour;           /* small tensors share blocks, and so move as one I/O, only with
                                     those of the same number (the tensors of one layer) */
    stw_group *group;             /* ranks it is sharded over; NULL: the runtime's, the only value
                                     in this release: open a runtime on each part of a split
                                     group */
    const stw_policy *policy;     /* copied; NULL: by preset and role */
    uint64_t partition_multiple;  /* shards hold a multiple of this many elements (a row, a block of
                                     a quantised format); 0: any */
} stw_tensor_spec;
#define STW_TENSOR_SPEC_INIT                                                                       \
    { sizeof(stw_tensor_spec), 0, 0, 0, 0, 0, 0, { 0, 0, 0, 0, 0, 0, 0, 0 }, 0, 0, 0, 0, 0 }

enum { STW_STATE_EMPTY = 0, STW_STATE_VALID = 1, STW_STATE_FAILED = 2 };

typedef struct stw_tensor_info {
    uint32_t struct_size;
    uint32_t state;               /* STW_STATE_* */
    uint32_t restored;            /* 1: the contents came from a generation, do not initialise */
    uint32_t dtype;
    uint32_t role;
    uint32_t partition;           /* STW_PARTITION_*, never DEFAULT */
    uint32_t dimensions;
    uint32_t residence;           /* STW_ALLOW_* bits of tiers with a valid replica of the shard */
    uint64_t shape[8];
    uint64_t elements;
    uint64_t shard_begin;         /* this rank's slice, in elements of the flattened tensor */
    uint64_t shard_elements;      /* without padding; may be 0 */
    uint64_t shard_bytes;         /* with padding, as charged to a budget */
    uint64_t whole_bytes;
    uint64_t version;             /* +1 per completed write or update */
    uint64_t open_views;
    const char *name;             /* valid while the tensor lives */
    uint64_t frozen;              /* 1: as STW_TENSOR_READ_ONLY */
} stw_tensor_info;

/**
 * Create n tensors, all or none. Tensors smaller than a block share blocks with those created
 * beside them in the same role, policy and neighbour number. Over several ranks it is a local call,
 * made by all of them with the same specs; names, shapes and dtypes are compared at the first
 * collective that a tensor takes part in (MISMATCH names it, and both). In a runtime that resumed a
 * generation a durable tensor of the generation has its contents (stw_tensor_info.restored);
 * nothing is read before it is used. After the first commit no more are restored: tensors not
 * created before it are dropped.
 *
 * Ownership: tensors_out[0..n) are the caller's; stw_tensor_destroy().
 * Threads:   any thread.
 * Blocks:    never. Takes no memory but metadata reserved at open.
 * Errors:    INVALID, EXISTS, LIMIT, UNSUPPORTED, BUDGET (no tier it may live in has room for it:
 *            needed, reserved and budget are in the error info), MISMATCH (with the generation:
 *            another dtype, shape or partition; or, for one that shares a block with others there,
 *            another role, neighbour or policy than theirs).
 */
STW_API stw_status stw_tensor_create(stw_runtime *runtime, const stw_tensor_spec *specs, uint32_t n,
                                     stw_tensor **tensors_out);
/**
 * Destroy. The bytes are returned to their budgets once streams and I/O have passed.
 *
 * Ownership: the handles are invalid after OK.  Threads: any thread.
 * Blocks:    never; over several ranks, until a running gather of one of them is over.
 * Errors:    INVALID, BUSY (views, or an optimizer that holds it), CLOSED; all or none.
 */
STW_API stw_status stw_tensor_destroy(stw_tensor *const *tensors, uint32_t n);
/* By name; and the next in creation order, NULL for the first, NULL after the last. Never block. */
STW_API stw_status stw_tensor_find(stw_runtime *runtime, const char *name, stw_tensor **tensor_out);
STW_API stw_status stw_tensor_next(stw_runtime *runtime, stw_tensor *previous,
                                   stw_tensor **next_out);
STW_API stw_status stw_tensor_info_get(stw_tensor *tensor, stw_tensor_info *info_out);
/* Replace the policy; takes effect at the next decision. Any thread. Blocks: never. UNSUPPORTED for
 * a tensor that shares its block with others, as all tensors of a block have one policy: give it
 * its own neighbour number. BUDGET: its new home has no room left. */
STW_API stw_status stw_tensor_set_policy(stw_tensor *tensor, const stw_policy *policy);
/**
 * Freeze (1) a tensor, as STW_TENSOR_READ_ONLY does at its creation, or let it be written again
 * (0). A frozen tensor is written only by stw_tensor_write, and steps of its optimizer do not
 * change it; earlier updates and views go on. A durable frozen tensor can be written before a
 * generation has it and not after: no write, no discard. If it does not share its block, room for
 * one copy of it is reserved at nvme then, not for 1 + generations_kept; copies in older
 * generations keep their room until these are dropped. Over ranks it is a local call, made by all
 * of them.
 *
 * Ownership: none.  Threads: any thread.  Blocks: never.
 * Errors:    INVALID (a state of an optimizer), BUDGET (0: no room for the copies that writes need;
 *            it stays frozen).
 */
STW_API stw_status stw_tensor_freeze(stw_tensor *tensor, uint32_t frozen);
/* Same element count or fewer than at create; the contents become EMPTY. For varying sequence
 * lengths: the handle stays the same, also in traces. BUSY with views open, or held by an
 * optimizer. Blocks: never. */
STW_API stw_status stw_tensor_reshape(stw_tensor *tensor, const uint64_t *shape,
                                      uint32_t dimensions);
/* The contents are dead: no write-back, EMPTY (or zeros) from now on. BUSY with views open;
 * INVALID or BUSY: frozen and durable, and in a generation or in a commit under way. */
STW_API stw_status stw_tensor_discard(stw_tensor *const *tensors, uint32_t n);
/**
 * The device address of WHOLE, the same for life, whether bytes are resident or not. Accessing it
 * without a view is undefined: a fault (SIGSEGV, a lost CUDA context), or stale bytes. For a
 * sharded tensor it is the address that it is gathered to: the first call is made by all ranks, in
 * the same order as their fetches.
 *
 * With STW_RUNTIME_FAULT_IN an access by the CPU without a view is a fetch: the thread sleeps in a
 * handler of SIGSEGV while another one fetches the tensor, READ, or READ_WRITE for a write, and
 * keeps the view until a step begins or ends, or another call needs the room or the tensor. Before
 * the verdict of a speculative update it reads what is there, updated or not. Valid
 * resident bytes may be read without a fault. Faults are counted by tensor in the report. A failed
 * fetch is a background error, and the signal is passed to the previous handler; so it is where
 * one instruction needs more tensors than the budget holds at once. System calls are
 * not served (EFAULT), nor are forked children. A tensor that is smaller than a block and not
 * STW_TENSOR_OWN_BLOCKS shares its block, and can be read and written without a fault while another
 * one of the block can, also in the middle of an update.
 *
 * Ownership: none.  Threads: any thread.  Blocks: never.
 * Errors:    INVALID, UNSUPPORTED (a device without virtual memory management, or one that gives
 *            addresses only to tensors of STW_TENSOR_FIXED_ADDRESS).
 */
STW_API stw_status stw_tensor_address(stw_tensor *tensor, uint32_t device, void **pointer_out,
                                      uint64_t *bytes_out);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_TENSOR_H */
