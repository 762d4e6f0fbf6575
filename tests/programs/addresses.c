/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of the process: a small runtime takes few of them, the library gives all back when it
 * is unloaded, and a refusal of them says how many there are and may be. The library is the
 * argument; nothing of it is linked.
 */
#include <stepwell/stepwell.h>

#include <ctype.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 65536, ROUNDS = 6, STEP_MIB = 3, STEPS = 32, MOST_MIB = 256 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (condition) break;                                                                      \
        fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                    \
        _exit(1);                                                                                  \
    } while (0)

typedef struct library {
    void *handle;
    __typeof__(&stw_runtime_open) open;
    __typeof__(&stw_runtime_close) close;
    __typeof__(&stw_tensor_create) create;
    __typeof__(&stw_tensor_fill) fill;
    __typeof__(&stw_last_error) last_error;
} library;

/* ISO C casts no object to a function. */
static void find(void *handle, const char *name, void *function_out)
{
    void *found = dlsym(handle, name);
    CHECK(found != NULL);
    memcpy(function_out, &found, sizeof found);
}

static library load(const char *path)
{
    library made;
    made.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(made.handle != NULL);
    find(made.handle, "stw_runtime_open", &made.open);
    find(made.handle, "stw_runtime_close", &made.close);
    find(made.handle, "stw_tensor_create", &made.create);
    find(made.handle, "stw_tensor_fill", &made.fill);
    find(made.handle, "stw_last_error", &made.last_error);
    return made;
}

/* A host tier of 48 blocks, 3 MiB, and a tensor that was written. */
static stw_status use(const library *with, stw_runtime **runtime_out)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_tensor *tensor = NULL;
    options.host_bytes = 48 * BLOCK, options.block_bytes = STW_BLOCK_64K;
    options.thread_count = 2, options.flags = STW_RUNTIME_NO_PROBE;
    spec.dtype = STW_F32, spec.dimensions = 1, spec.shape[0] = 100;
    stw_status status = with->open(&options, runtime_out);
    if (status == STW_OK) status = with->create(*runtime_out, &spec, 1, &tensor);
    if (status == STW_OK) status = with->fill(tensor, 1.0, NULL);
    return status;
}

static long addresses_mib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return pages / (1024 * 1024 / sysconf(_SC_PAGESIZE));
}

static void little_is_taken_and_all_given_back(const char *path)
{
    long settled = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        const long before = addresses_mib();
        stw_runtime *runtime = NULL;
        library loaded = load(path);
        CHECK(use(&loaded, &runtime) == STW_OK);
        const long taken = addresses_mib() - before;
        if (taken > MOST_MIB) fprintf(stderr, "%ld MiB taken\n", taken);
        CHECK(taken <= MOST_MIB);
        CHECK(loaded.close(runtime, 0, 0) == STW_OK);
        CHECK(dlclose(loaded.handle) == 0);
        CHECK(dlopen(path, RTLD_NOW | RTLD_NOLOAD) == NULL);
        /* malloc and the stacks of ended threads keep what the first rounds took. */
        if (round == 1) settled = addresses_mib();
        if (round > 1) CHECK(addresses_mib() <= settled + 1);
    }
}

/* Whether the sentence has a number of MiB where addresses are refused. */
static int has_number(const char *sentence)
{
    const char *at = strstr(sentence, " MiB");
    return at != NULL && at > sentence && isdigit((unsigned char)at[-1]);
}

static void with_few_more(const char *path, int mib)
{
    library loaded = load(path);
    stw_runtime *runtime = NULL;
    struct rlimit limit = {0, 0};
    limit.rlim_cur = limit.rlim_max = (rlim_t)(addresses_mib() + mib) << 20;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    const stw_status status = use(&loaded, &runtime);
    if (status != STW_OK && !has_number(loaded.last_error()))
        fprintf(stderr, "%d MiB: %d, %s\n", mib, status, loaded.last_error());
    CHECK(status == STW_OK || has_number(loaded.last_error()));
    CHECK(status == STW_OK || mib < (STEPS - 1) * STEP_MIB);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    mallopt(M_ARENA_MAX, 1); /* else malloc takes 64 MiB for each thread */
    for (int step = 0; step < STEPS; ++step) {
        const pid_t child = fork();
        int status = 0;
        CHECK(child >= 0);
        if (child == 0) {
            with_few_more(argv[1], step * STEP_MIB);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    little_is_taken_and_all_given_back(argv[1]);
    return 0;
}
