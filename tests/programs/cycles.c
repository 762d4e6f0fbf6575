/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four thousand runtimes, one after the other, and a million fetches in one: the number of
 * descriptors and threads is constant, and resident memory does not grow. Every fiftieth runtime
 * does a step of training through aio, which takes 50 ms to open and close; the others fetch and
 * release through posix.
 */
#include "program.h"

#include <dirent.h>
#include <sched.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1, LIVES = 300 }; /* a runtime takes ten times as long, and memory rests */
#else
enum { SANITIZED = 0, LIVES = 4000 };
#endif
enum { WARM_UP = 200, TRAINS_EVERY = 50, PAIRS = 1000000, TENSORS = 6 };

static int entries_in(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;
    CHECK(directory);
    while (readdir(directory)) ++count;
    closedir(directory);
    return count;
}

/* Threads and two; of more than expected, once they are gone: a thread that was joined may be
 * listed for a moment. */
static int threads_left(int expected)
{
    const time_t end = time(NULL) + 10;
    int threads;
    while ((threads = entries_in("/proc/self/task")) > expected && time(NULL) < end) sched_yield();
    return threads;
}

static long resident_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;
    CHECK(file && fscanf(file, "%ld %ld", &total, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void train(void)
{
    static float values[5 * BLOCK / 4];
    stw_runtime *runtime = open_small(".", NULL);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_optimizer *optimizer = NULL;
    stw_phase *phase = NULL;
    CHECK(stw_phase_create(runtime, "p", &phase) == STW_OK);
    CHECK(stw_step_begin(phase) == STW_OK);
    for (int i = 0; i < 8; ++i) {
        stw_tensor *tensor = make_tensor(runtime, NULL, 5 * BLOCK / 4);
        CHECK(stw_tensor_write(tensor, values, NULL) == STW_OK);
        CHECK(stw_tensor_read(tensor, values, NULL) == STW_OK);
    }
    options.algorithm = STW_OPTIMIZER_ADAM;
    CHECK(stw_optimizer_create(runtime, &options, &optimizer) == STW_OK);
    CHECK(stw_optimizer_set_hyper(optimizer, 0, &(stw_hyper)STW_HYPER_INIT) == STW_OK);
    entry.parameter = make_tensor(runtime, "w", 2 * BLOCK / 4);
    entry.gradient = make_tensor(runtime, "g", 2 * BLOCK / 4);
    CHECK(stw_tensor_fill(entry.parameter, 1, NULL) == STW_OK);
    CHECK(stw_tensor_fill(entry.gradient, 1, NULL) == STW_OK);
    CHECK(stw_optimizer_add(optimizer, &entry, 1) == STW_OK);
    CHECK(stw_optimizer_step(optimizer, NULL, NULL) == STW_OK);
    CHECK(stw_step_end(phase, NULL) == STW_OK);
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
}

static void fetch_and_release(stw_runtime *runtime, stw_tensor *tensor, uint32_t access)
{
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    stw_view view;
    request.tensor = tensor, request.access = access;
    CHECK(stw_fetch(runtime, NULL, &request, 1, &view) == STW_OK);
    if (access == STW_WRITE) memset(view.pointer, 1, view.bytes);
    CHECK(stw_release(&view, 1, STW_STREAM_HOST, 0) == STW_OK);
}

static void live(int number)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    if (number % TRAINS_EVERY == 0) {
        train();
        return;
    }
    nvme.path = ".", nvme.budget_bytes = 32 * BLOCK;
    nvme.driver = "posix", nvme.driver_options = "allow_tmpfs=1";
    options.nvme = &nvme, options.nvme_count = 1;
    options.host_bytes = 16 * BLOCK, options.block_bytes = STW_BLOCK_64K;
    options.thread_count = 1;
    CHECK(stw_runtime_open(&options, &runtime) == STW_OK);
    stw_tensor *tensor = make_tensor(runtime, "t", 2 * BLOCK / 4);
    fetch_and_release(runtime, tensor, STW_WRITE);
    fetch_and_release(runtime, tensor, STW_READ);
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
}

/* Three tensors fit on the device: one in a hundred fetches brings another one there. */
static void fetch_a_million_times(void)
{
    stw_runtime *runtime = open_small(".", NULL);
    stw_tensor *tensors[TENSORS];
    int descriptors, threads;
    for (int i = 0; i < TENSORS; ++i) {
        tensors[i] = make_tensor(runtime, NULL, 2 * BLOCK / 4);
        fetch_and_release(runtime, tensors[i], STW_WRITE);
    }
    for (int i = 0; i < PAIRS / 100; ++i) fetch_and_release(runtime, tensors[i / 100 % TENSORS], 0);
    descriptors = entries_in("/proc/self/fd"), threads = entries_in("/proc/self/task");
    long resident = resident_kib();
    for (int i = 0; i < PAIRS; ++i) {
        fetch_and_release(runtime, tensors[i / 100 % TENSORS], i % 1000 ? STW_READ : STW_WRITE);
    }
    printf("%d fetches: descriptors %d, threads %d, resident %ld KiB, then %ld\n", PAIRS,
           descriptors, threads, resident, resident_kib());
    CHECK(entries_in("/proc/self/fd") == descriptors);
    CHECK(threads_left(threads) == threads);
    CHECK(SANITIZED || resident_kib() - resident < 1024);
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
}

int main(void)
{
    int descriptors, threads;
    /* Pools that live as long as the process fill in the first rounds. */
    for (int i = 0; i < WARM_UP; ++i) live(i);
    descriptors = entries_in("/proc/self/fd");
    threads = threads_left(3); /* this one, "." and ".." */
    long resident = resident_kib();
    CHECK(threads == 3);
    for (int i = 0; i < LIVES; ++i) {
        live(i);
        if (i % 1000 != 999) continue;
        CHECK(entries_in("/proc/self/fd") == descriptors);
        CHECK(threads_left(threads) == threads);
    }
    printf("%d lives: descriptors %d, then %d; threads %d, then %d; resident %ld KiB, then %ld\n",
           LIVES, descriptors, entries_in("/proc/self/fd"), threads, entries_in("/proc/self/task"),
           resident, resident_kib());
    CHECK(entries_in("/proc/self/fd") == descriptors);
    CHECK(threads_left(threads) == threads);
    CHECK(SANITIZED || resident_kib() - resident < 400); /* 100 bytes of each life would show */
    fetch_a_million_times();
    return 0;
}
