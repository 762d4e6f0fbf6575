/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads: four of them take twelve tensors of 2 MiB from a list, on a device that holds
 * two at a time, and count what they did in a tensor that all of them write. Shows: waiting for the
 * room that other threads' views take, many readers or one writer, errors of each thread's own.
 * usage: threads [DIRECTORY]
 */
#include <stepwell/stepwell.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, TENSORS = 12, ELEMENTS = 1 << 19 }; /* of 2^19 floats: 2 MiB each */

typedef struct work {
    stw_runtime *runtime;
    stw_tensor *tensors[TENSORS];
    stw_tensor *counter;
    pthread_mutex_t mutex; /* of what is the program's own; the library needs none */
    int next;
    double sum;
} work;

/* The last error is each thread's own. */
static void check(stw_status status)
{
    if (status >= STW_OK) return;
    fprintf(stderr, "threads: %s\n", stw_last_error());
    exit(1);
}

static stw_tensor *make_tensor(stw_runtime *runtime, uint32_t dtype, uint64_t elements)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_tensor *tensor;
    spec.dtype = dtype;
    spec.dimensions = 1;
    spec.shape[0] = elements;
    check(stw_tensor_create(runtime, &spec, 1, &tensor));
    return tensor;
}

static stw_view fetch(work *shared, stw_tensor *tensor, uint32_t access)
{
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    stw_view view;
    /* Without it, a fetch whose room the others' views take is refused at once. */
    options.flags = STW_FETCH_WAIT_ROOM;
    request.tensor = tensor;
    request.access = access;
    check(stw_fetch(shared->runtime, &options, &request, 1, &view));
    return view;
}

static void *run(void *argument)
{
    work *shared = argument;
    for (;;) {
        double sum = 0;
        int mine;
        stw_view view;
        pthread_mutex_lock(&shared->mutex);
        mine = shared->next < TENSORS ? shared->next++ : -1;
        pthread_mutex_unlock(&shared->mutex);
        if (mine < 0) return NULL;

        view = fetch(shared, shared->tensors[mine], STW_READ);
        for (uint64_t i = 0; i < view.element_count; ++i) sum += ((const float *)view.pointer)[i];
        /* Given back before the next fetch: who holds nothing while waiting is in nobody's way. */
        check(stw_release(&view, 1, STW_STREAM_HOST, 0));

        /* A writer is alone: the fetches of the other threads wait for this release. */
        view = fetch(shared, shared->counter, STW_READ_WRITE);
        ++*(int64_t *)view.pointer;
        check(stw_release(&view, 1, STW_STREAM_HOST, 0));
        pthread_mutex_lock(&shared->mutex);
        shared->sum += sum;
        pthread_mutex_unlock(&shared->mutex);
    }
}

int main(int count, char **words)
{
    static work shared = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    pthread_t threads[THREADS];
    int64_t counted = 0;
    const double expected = (double)ELEMENTS * TENSORS * (TENSORS - 1) / 2;

    device.budget_bytes = 5u << 20; /* two of them, and the counter */
    nvme.path = count > 1 ? words[1] : ".";
    nvme.budget_bytes = 64u << 20;
    options.devices = &device, options.device_count = 1;
    options.nvme = &nvme, options.nvme_count = 1;
    options.host_bytes = 4u << 20;
    options.block_bytes = STW_BLOCK_512K;
    check(stw_runtime_open(&options, &shared.runtime));
    for (int i = 0; i < TENSORS; ++i) {
        shared.tensors[i] = make_tensor(shared.runtime, STW_F32, ELEMENTS);
        check(stw_tensor_fill(shared.tensors[i], i, NULL));
    }
    shared.counter = make_tensor(shared.runtime, STW_I64, 1);
    check(stw_tensor_write(shared.counter, &counted, NULL));

    for (int i = 0; i < THREADS; ++i) {
        if (pthread_create(&threads[i], NULL, run, &shared)) return 1;
    }
    for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
    check(stw_tensor_read(shared.counter, &counted, NULL));
    printf("%d tensors counted by %d threads; sum %.0f, expected %.0f\n", (int)counted, THREADS,
           shared.sum, expected);
    check(stw_runtime_close(shared.runtime, 0, 0)); /* when no other thread is in it */
    return counted == TENSORS && shared.sum == expected ? 0 : 1;
}
