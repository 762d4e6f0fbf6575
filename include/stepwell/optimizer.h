/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/optimizer.h: optimizer steps streamed through the tiers.
 */
#ifndef STEPWELL_OPTIMIZER_H
#define STEPWELL_OPTIMIZER_H

#include <stepwell/copy.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { /* algorithm */
    STW_OPTIMIZER_ADAMW = 1,   /* decay decoupled (Loshchilov, Hutter 2019) */
    STW_OPTIMIZER_ADAM = 2,    /* decay added to the gradient (Kingma, Ba 2015) */
    STW_OPTIMIZER_SGD = 3,     /* with momentum, if that is not 0 */
    STW_OPTIMIZER_ADAGRAD = 4, /* decay added to the gradient (Duchi, Hazan, Singer 2011) */
    STW_OPTIMIZER_LION = 5,    /* decay decoupled (Chen and others 2023) */
    STW_OPTIMIZER_CUSTOM = 6
};

/* Hyper-parameters of one parameter group, used exactly as given; doubles, as Python has them. */
typedef struct stw_hyper {
    uint32_t struct_size;
    uint32_t flags;      /* STW_HYPER_* */
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    double momentum;     /* SGD */
    double dampening;
    double lr_decay;     /* Adagrad: lr / (1 + (step - 1) x lr_decay) */
} stw_hyper;
enum { STW_HYPER_NESTEROV = 1, STW_HYPER_MAXIMIZE = 2 };
#define STW_HYPER_INIT { sizeof(stw_hyper), 0, 1e-3, 0.9, 0.999, 1e-8, 0.0, 0.0, 0.0, 0.0 }

/* One chunk of the streamed update; pointers are host memory, equal element ranges. */
typedef struct stw_update_chunk {
    uint32_t struct_size;
    uint32_t state_count;
    stw_tensor *parameter;
    void *values;            /* the parameter in its dtype; afterwards the library rounds the master
                                into it, if they are separate */
    float *master;           /* fp32; the parameter itself when it is fp32 */
    const void *gradient;    /* in the gradient's dtype; multiply by gradient_scale */
    float *const *states;    /* state_count arrays of fp32 */
    uint64_t element_begin;  /* of the flattened tensor */
    uint64_t element_count;
    uint64_t step;           /* of this parameter, counted from 1 */
    double gradient_scale;
    const stw_hyper *hyper;
} stw_update_chunk;

/* An element-wise algorithm of the caller; any thread of the update pool, several at once.
 * Algorithms that need whole matrices (Muon, Shampoo) fetch their states themselves. */
typedef struct stw_custom_update {
    uint32_t struct_size;
    uint32_t state_count;
    const char *const *state_names;
    stw_status (*update)(void *user, const stw_update_chunk *chunk);
    void *user;
} stw_custom_update;

/*
 * Moments of BF16 take half the room and half the traffic. An update computes in fp32; each moment
 * is then rounded to one of its two neighbours, the nearer one with the higher probability, or
 * slowly changing ones would not change at all (Zamirai and others 2020). The random number is a
 * function of element, step and state, so results are as reproducible as with F32.
 */
enum { /* stw_optimizer_options.flags */
    STW_OPTIMIZER_DURABLE = 1, /* states and step counts are part of generations. Parameters need
                                  names then, and are usually durable */
    STW_OPTIMIZER_TORCH_ORDER = 2 /* updates have the bits of torch.optim on a CPU, see below */
};
/*
 * STW_OPTIMIZER_TORCH_ORDER: an update of AdamW, Adam, SGD or Adagrad leaves the same bits in an
 * fp32 parameter and its states as torch.optim's single-tensor path on a CPU (foreach=False,
 * fused=False, no amsgrad; as of PyTorch 2.14) with the same gradient. It does the operations of
 * that path (mul_, lerp_, mul_ and addcmul_, sqrt, div, add_, addcdiv_; add with alpha), with their
 * roundings: like ATen's kernels it rounds a product and its sum once if the processor has AVX2 and
 * FMA, twice otherwise. NaNs may differ in their payload. A torch that does not use the processor's
 * vector instructions (ATEN_CPU_CAPABILITY=default) is not reproduced.
 *
 * square_root: torch built with MKL takes roots from vmsSqrt() of that library, which on some
 * processors are not the nearest fp32 (1 in 5 is the next one). Pass that function and the mode
 * that torch uses, 0x140102. Update threads call it, several at once, with at most 1024 values, and
 * with separate arrays for values and roots. NULL: the nearest fp32, as in a torch without MKL. It
 * must stay callable until the optimizer is destroyed. vmsSqrt() starts threads of its own from 128
 * values on, in each thread that calls it, and these spin beside the program's: pass
 * square_root_threads, that library's MKL_Set_Num_Threads_Local(), as well.
 *
 * gradient_scale and the clip come first: gradient x scale, rounded to fp32, is the gradient that
 * torch would get; a scale of 1 changes nothing. For parameters of F16 and BF16 this order applies
 * to their fp32 master, which is then rounded; torch has no counterpart. The update is on the CPU,
 * wherever the states have their home: a GPU has other kernels. INVALID with Lion, with a custom
 * update and with states of BF16. Without the flag updates are the same on every processor and
 * device.
 */
typedef struct stw_optimizer_options {
    uint32_t struct_size;
    uint32_t algorithm;              /* STW_OPTIMIZER_* */
    const char *name;                /* prefix of the state tensors' names; NULL: "optimizer" */
    uint32_t state_dtype;            /* of the moments: F32, or BF16 (not with custom); 0: F32 */
    uint32_t flags;                  /* STW_OPTIMIZER_* */
    const stw_custom_update *custom; /* copied */
    const stw_policy *state_policy;  /* copied; NULL: by preset. They are updated at their home */
    double ema_decay;                /* 0: none; else below 1: a state "ema" is averaged from the
                                        master */
    /* with STW_OPTIMIZER_TORCH_ORDER; of MKL, vmsSqrt(). NULL: the nearest fp32 of each */
    void (*square_root)(int32_t n, const float *values, float *roots, int64_t mode);
    int64_t square_root_mode;
    /* sets in how many threads square_root runs where this thread calls it, and returns what was
     * set: called with 1 before roots are taken, and with what it returned after. NULL: not */
    int32_t (*square_root_threads)(int32_t count);
} stw_optimizer_options;
#define STW_OPTIMIZER_OPTIONS_INIT { sizeof(stw_optimizer_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct stw_optimizer_entry {
    uint32_t struct_size;
    uint32_t parameter_group;
    stw_tensor *parameter;
    stw_tensor *gradient;    /* as many elements */
    uint64_t element_begin;  /* a part of a packed parameter; 0, 0: all. Parts do not overlap */
    uint64_t element_count;
} stw_optimizer_entry;
#define STW_OPTIMIZER_ENTRY_INIT { sizeof(stw_optimizer_entry), 0, 0, 0, 0, 0 }

/* Ownership: *optimizer_out is the caller's. Threads: any. Blocks: never. Errors: INVALID,
 * UNSUPPORTED, LIMIT. */
STW_API stw_status stw_optimizer_create(stw_runtime *runtime, const stw_optimizer_options *options,
                                        stw_optimizer **optimizer_out);
STW_API stw_status stw_optimizer_destroy(stw_optimizer *optimizer);
/**
 * Add parameters. Makes a state tensor per moment, "master" if the parameter is not fp32 (from the
 * parameter's contents at the first update), and "ema" if ema_decay is not 0. A parameter is in one
 * optimizer only; frozen ones in none.
 *
 * "ema" is the exponential moving average of the fp32 parameters (after Polyak, Juditsky 1992): a
 * copy of them before the first update, and after each update decay x ema + (1 - decay) x the new
 * parameter, in fp32. EMPTY until the first; the average continues from values written into it.
 *
 * A parameter that was written since its last update (write, fill, a write view, a discard and
 * later writes, also after a resume) is updated from the written values: its master is made anew
 * from them, unless the master was written since as well; then the master counts. Moments, the
 * average and the count are kept: write or discard those states, or set the count, to restart.
 * After an update that failed half way all of the parameter and its moments is written again, or
 * discarded; master and average are made anew, unless they were written as well.
 *
 * The master of a BF16 parameter is kept as what its parameter lacks, 17 bits instead of 32, until
 * the program asks for it (stw_optimizer_state, or stw_tensor_find by its name): two tensors
 * "master_low" and "master_open", which are the library's alone. Bits are the same. Reads and
 * writes by stw_optimizer_read_master and stw_optimizer_write_master leave it so. A master is
 * whole from the beginning with STW_OPTIMIZER_DURABLE, with a custom update, of a part of a
 * parameter, where the states have their home on a device that updates, and where align_bytes of
 * the parameter or its gradient is below 32.
 *
 * Ownership: parameters and gradients must outlive the optimizer.
 * Threads:   one at a time.  Blocks: never.
 * Errors:    INVALID, EXISTS, MISMATCH, BUDGET, NO_SPACE, LIMIT; all or none.
 */
STW_API stw_status stw_optimizer_add(stw_optimizer *optimizer, const stw_optimizer_entry *entries,
                                     uint32_t n);
/* For the next step on: call it every step for a learning-rate schedule. A step of a parameter
 * whose group has none is INVALID; they are not part of generations. INVALID too, by name and
 * value: values that are not finite, lr, eps or decay below 0, betas outside [0, 1), values that
 * the algorithm does not have. One at a time. Never blocks. */
STW_API stw_status stw_optimizer_set_hyper(stw_optimizer *optimizer, uint32_t parameter_group,
                                           const stw_hyper *hyper);
/* A state as a tensor: "master"; "ema"; Adam "exp_avg", "exp_avg_sq"; Lion "exp_avg"; SGD
 * "momentum"; Adagrad "sum"; or a custom name. Owned by the optimizer; fetch, read and write it
 * like any other. NOT_FOUND, INVALID.
 *
 * The first call for a "master" that is kept in parts makes it whole, and it is kept so from then
 * on. It has the bits of the last update; of a parameter that was written since, those that the
 * next update starts from; and is EMPTY before the first update, or if the parameter is EMPTY. That
 * call is one at a time with steps, and blocks until the steps of the optimizer and views of the
 * parameter have ended; BUDGET, NO_SPACE, TIMEOUT, INTERRUPTED, and BUSY between a step with
 * STW_UPDATE_SPECULATE and its verdict. */
STW_API stw_status stw_optimizer_state(stw_optimizer *optimizer, stw_tensor *parameter,
                                       const char *state, stw_tensor **tensor_out);
/**
 * Copy between the fp32 master of a parameter and memory of the caller, in the form in which it is
 * kept: a master in parts stays so, and takes no more room. A read has the values that the next
 * update starts from: before the first update, and where the parameter was written since the last,
 * those of the parameter. A write sets the master, and the parameter to the nearest values of its
 * dtype, as an update does; moments and the count are kept.
 *
 * `options` NULL: all of it. dtype is F32 or 0, and tier that of the host, without a stream. Of a
 * sharded parameter scope is STW_SHARD, this rank's part. A part of a master that is kept in parts
 * is written from a multiple of 8 elements to another one, or to the end.
 *
 * Ownership: the caller's memory is the library's until return.
 * Threads:   one at a time with steps.
 * Blocks:    until the update of that parameter and the copy are done, or the timeout passes; it
 *            waits for no other parameter.
 * Errors:    as stw_tensor_read and stw_tensor_write; NOT_FOUND (an fp32 parameter has no master),
 *            UNSUPPORTED (STW_WHOLE of a sharded one), EMPTY (the parameter was never written),
 *            BUSY between a step with STW_UPDATE_SPECULATE and its verdict.
 */
STW_API stw_status stw_optimizer_read_master(stw_optimizer *optimizer, stw_tensor *parameter,
                                             void *destination, const stw_copy_options *options);
STW_API stw_status stw_optimizer_write_master(stw_optimizer *optimizer, stw_tensor *parameter,
                                              const void *source, const stw_copy_options *options);
/* Number of updates of this parameter (used by bias correction), including a running one: a step
 * counts from its verdict on, or from its end if it has no verdict. Set: at most 2^53; BUSY while a
 * step is pending. Always 0 if this rank has nothing to update: the parameter is empty, or other
 * ranks have all of its elements. NOT_FOUND: no parameter of this optimizer. */
STW_API stw_status stw_optimizer_get_count(stw_optimizer *optimizer, stw_tensor *parameter,
                                           uint64_t *count_out);
STW_API stw_status stw_optimizer_set_count(stw_optimizer *optimizer, stw_tensor *parameter,
                                           uint64_t count);

enum { /* stw_update_options.flags */
    STW_UPDATE_SKIP_NONFINITE = 1, /* a NaN or Inf in a gradient: no update */
    STW_UPDATE_KEEP_GRADIENTS = 2, /* do not empty the gradients afterwards */
    STW_UPDATE_WAIT = 4,           /* return when the last byte is updated */
    STW_UPDATE_MEASURE = 8,        /* only the norm and the finiteness; no update */
    STW_UPDATE_SPECULATE = 16,     /* before the verdict, which the next step without it is */
    STW_UPDATE_REJECT = 32         /* the verdict of speculative steps is that none is updated */
};
typedef struct stw_update_options {
    uint32_t struct_size;
    uint32_t flags;                  /* STW_UPDATE_* */
    stw_tensor *const *parameters;   /* NULL: all of the optimizer with a gradient */
    uint32_t parameter_count;
    uint32_t reserved;
    double gradient_scale;           /* 1 / (loss scale x micro-batches); 0: 1.0 */
    double clip_norm;                /* of the scaled gradients together; 0: no clip */
    double norm_type;                /* 0: 2; infinity allowed */
    uint64_t timeout_ns;
    const void *const *gradients;    /* NULL, or for each of `parameters` its gradient, in host
                                        memory, in place of the gradient tensor's; NULL: that */
} stw_update_options;
#define STW_UPDATE_OPTIONS_INIT { sizeof(stw_update_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct stw_update_result {
    uint32_t struct_size;
    uint32_t skipped;
    double norm;             /* of all scaled gradients together, before the clip */
    double clip_coefficient;
    uint64_t nonfinite;      /* elements */
    uint64_t updated;        /* parameters */
    uint64_t without_gradient; /* not updated: no decay, no count */
    uint64_t early;          /* of `updated`: before the verdict (STW_UPDATE_SPECULATE) */
    uint64_t undone;         /* parameters updated before it and set back: it was another one */
} stw_update_result;
#define STW_UPDATE_RESULT_INIT { sizeof(stw_update_result), 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Update parameters from their gradients, streamed through the tiers. The update goes on after the
 * call; each fetch of a parameter waits for its own. A parameter whose gradient is EMPTY is not
 * updated. The norm has the same bits for any tiers, chunks and threads; the clip coefficient is
 * min(1, clip_norm / (norm + 1e-6)). Several optimizers under one clip: MEASURE each, then pass the
 * scale times the coefficient.
 *
 * A step without a verdict (result_out NULL, no clip, no skip, no MEASURE) is queued. If none of
 * its parameters is in an earlier step that is still running it returns at once, so it can be
 * called for each parameter as gradients become complete, in the middle of backward. It uses the
 * hyper-parameters as of its call. A parameter is in one queued step at a time: updates of it come
 * in the order of the calls, and an optimizer has at most as many steps queued as parameters.
 *
 * Gradients in `gradients` are the caller's: the elements and the dtype of the gradient tensor,
 * which is neither read nor emptied. They are not copied, and stay as they are until the updates
 * have ended (STW_UPDATE_WAIT, stw_runtime_drain). Such a step has no verdict, and runs on the CPU;
 * UNSUPPORTED over ranks.
 *
 * With STW_UPDATE_SPECULATE a step of some parameters, in the middle of backward, updates before
 * the verdict is known, as if no clip were needed and all gradients were finite. The next step
 * without the flag is the verdict of all such parameters, which it names (or all): it has the
 * norm, and where it comes to the same update, that stands; else the parameter, its master and
 * states are set back to what they were and updated again, or left so. Bits are those of that one
 * step alone, with its options and hyper-parameters. Older contents take room: of tensors at nvme
 * their old slots there, without a transfer; of others a copy, where that is small or free. A
 * parameter without that room, with a custom update, on a device that updates, smaller than a
 * block, or with a master that has no contents yet, is updated after the verdict; so are all while
 * more than 6 of the last 64 verdicts were others, or steps with such updates were longer than
 * without: six steps after the first 32, and six of every 500, are for that comparison. Until the
 * verdict fetches, reads and writes of these parameters, their gradients and states wait, but are
 * BUSY at once on the thread that gives the verdicts (that took the last step without the flag, or,
 * before the first, a speculative one); commits are BUSY, drains do not wait, and gradients are
 * kept. A fetch with STW_FETCH_SPECULATED does not
 * wait for the verdict: it reads the parameter once it is updated, and one that is updated after
 * the verdict as any fetch does. What is set back waits for the end of such views; the caller then
 * redoes what it made from them, as result_out->undone says. result_out, STW_UPDATE_WAIT and
 * STW_UPDATE_MEASURE, a parameter twice before its verdict, and a next step that leaves one out or
 * only measures, are INVALID. Over ranks all call it alike, or the verdict is MISMATCH; gathers of
 * these tensors, which would come before the verdict, are BUSY.
 *
 * A step with STW_UPDATE_REJECT is the verdict that nothing is updated, for a batch that is given
 * up: what speculative steps have updated is set back, their gradients are emptied unless
 * STW_UPDATE_KEEP_GRADIENTS, and nothing else is read or changed; SKIPPED, also where there is
 * nothing to set back. It names no parameters and has no clip, and over ranks all call it.
 *
 * An update that fails after the call fails only its parameter and states, as each may be half
 * updated: fetches return the cause until all of it is written again. One that could not begin (its
 * gradient cannot be read) changes nothing: the parameter is VALID, but fetches, commits and later
 * steps return the cause until it is written or stw_runtime_clear_error accepts its contents.
 *
 * Ownership: `gradients` is lent until the updates have ended.  Threads: one at a time.
 * Blocks:    until earlier steps of the optimizer that have one of its parameters, or a verdict,
 *            are complete; one with a verdict, until all of them are. Then with result_out until
 *            the verdict (norm and skip known), and with STW_UPDATE_WAIT until its last byte, on a
 *            device that updates until that is enqueued; or timeout_ns. With STW_RUNTIME_FAULT_IN
 *            also, without being interrupted, until transfers and copies that use addresses of
 *            what it changes are over and tensors that share a block are updated, so that no
 *            access reads old bytes there; TIMEOUT if that lasts.
 * Errors:    OK, SKIPPED; INVALID, NOT_FOUND, BUDGET, IO, CHECKSUM, TIMEOUT, INTERRUPTED, BUSY (it
 *            would wait for a view that its thread holds: of a gradient for the verdict, of any of
 *            the tensors with STW_UPDATE_WAIT). Over ranks, as they share the verdict: MISMATCH
 *            (other options or hyper-parameters on one), ORDER, PEER.
 */
STW_API stw_status stw_optimizer_step(stw_optimizer *optimizer, const stw_update_options *options,
                                      stw_update_result *result_out);
/* The verdict of the last step, later: OK, SKIPPED, or PENDING while it is not known. Never
 * blocks. */
STW_API stw_status stw_optimizer_result(stw_optimizer *optimizer, stw_update_result *result_out);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_OPTIMIZER_H */
