/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer: weights of 4 MiB learn the number 3 by AdamW. Weights, gradient and the two moments
 * are 16 MiB together, in a host tier of 12 MiB. Shows: gradients that are summed, updates that run
 * behind the call, the norm of a step, a learning rate of its own each step.
 * usage: update [DIRECTORY]
 */
#include <stepwell/stepwell.h>

#include <stdio.h>
#include <stdlib.h>

enum { ELEMENTS = 1 << 20, STEPS = 60 };

static void check(stw_status status)
{
    if (status >= STW_OK) return; /* PENDING and SKIPPED are no errors */
    fprintf(stderr, "update: %s\n", stw_last_error());
    exit(1);
}

static stw_tensor *make_tensor(stw_runtime *runtime, const char *name, uint32_t role)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_tensor *tensor;
    spec.name = name;
    spec.role = role;
    spec.dtype = STW_F32;
    spec.dimensions = 1;
    spec.shape[0] = ELEMENTS;
    check(stw_tensor_create(runtime, &spec, 1, &tensor));
    return tensor;
}

/* Mean squared distance to 3; its gradient is added to the second view. */
static double forward_backward(const stw_view *views)
{
    const float *weights = views[0].pointer;
    float *gradient = views[1].pointer;
    double loss = 0;
    for (uint64_t i = 0; i < views[0].element_count; ++i) {
        const float distance = weights[i] - 3;
        loss += (double)distance * distance;
        gradient[i] += 2 * distance;
    }
    return loss / ELEMENTS;
}

int main(int count, char **words)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_optimizer_options adam = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_fetch_request wants[2] = {STW_FETCH_REQUEST_INIT, STW_FETCH_REQUEST_INIT};
    stw_hyper hyper = STW_HYPER_INIT;
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    double loss = 0;

    nvme.path = count > 1 ? words[1] : ".";
    nvme.budget_bytes = 64u << 20;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 12u << 20;
    options.block_bytes = STW_BLOCK_512K;
    check(stw_runtime_open(&options, &runtime));

    /* The optimizer makes a tensor of its own for each moment. */
    entry.parameter = make_tensor(runtime, "w", STW_ROLE_PARAM);
    entry.gradient = make_tensor(runtime, "w.grad", STW_ROLE_GRAD);
    check(stw_tensor_fill(entry.parameter, 0, NULL));
    adam.algorithm = STW_OPTIMIZER_ADAMW;
    check(stw_optimizer_create(runtime, &adam, &optimizer));
    check(stw_optimizer_add(optimizer, &entry, 1));

    wants[0].tensor = entry.parameter;
    wants[0].access = STW_READ;
    wants[1].tensor = entry.gradient;
    wants[1].access = STW_REDUCE; /* zeros to add to; added to the gradient at the release */
    for (int step = 0; step < STEPS; ++step) {
        stw_update_options clip = STW_UPDATE_OPTIONS_INIT;
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        stw_view views[2];
        /* Waits for the pending update of the weights, and for nothing else. */
        check(stw_fetch(runtime, NULL, wants, 2, views));
        loss = forward_backward(views);
        check(stw_release(views, 2, STW_STREAM_HOST, 0));
        /* Warm up. Hyper-parameters are used exactly as given. */
        hyper.lr = step < 10 ? 0.01 * (step + 1) : 0.1;
        check(stw_optimizer_set_hyper(optimizer, 0, &hyper));
        /* Returns when the norm is known; the update goes on during the next step. */
        clip.clip_norm = 1e6;
        check(stw_optimizer_step(optimizer, &clip, &result));
        if (step % 10 == 0 || step == STEPS - 1) {
            printf("step %2d  loss %.5f  norm of the gradient %.1f\n", step, loss, result.norm);
        }
    }
    printf("%s\n", loss < 0.1 ? "learned" : "did not learn");

    check(stw_runtime_drain(runtime, 0)); /* the last update still runs */
    check(stw_optimizer_destroy(optimizer));
    check(stw_runtime_close(runtime, 0, 0)); /* tensors go with it */
    return loss < 0.1 ? 0 : 1;
}
