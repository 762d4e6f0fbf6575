/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program outside of the tree, C99: a tensor larger than its host tier is filled and read back.
 * Linked to the library; or, compiled with BY_DLOPEN, it loads the library that its argument names,
 * calls it through pointers and unloads it. With WITH_JEMALLOC it also shows whose malloc serves
 * the library.
 * usage: round_trip [LIBRARY]
 */
#include <stepwell/stepwell.h>

#include <stdio.h>
#include <stdlib.h>

#if defined(BY_DLOPEN)
#include <dlfcn.h>
#define FUNCTIONS(X)                                                                               \
    X(stw_abi_version)                                                                             \
    X(stw_last_error)                                                                              \
    X(stw_runtime_close)                                                                           \
    X(stw_runtime_open)                                                                            \
    X(stw_tensor_create)                                                                           \
    X(stw_tensor_destroy)                                                                          \
    X(stw_tensor_fill)                                                                             \
    X(stw_tensor_read)                                                                             \
    X(stw_version_string)
#define DECLARE(name) static __typeof__(&name) loaded_##name;
FUNCTIONS(DECLARE)
#define CALL(name) loaded_##name
#else
#define CALL(name) name
#endif

#if defined(WITH_JEMALLOC)
#include <jemalloc/jemalloc.h>
#endif

enum { ELEMENTS = 1 << 20, HOST_BYTES = 1 << 20 };

static void check(stw_status status)
{
    if (status >= STW_OK) return;
    fprintf(stderr, "round_trip: %s\n", CALL(stw_last_error)());
    exit(1);
}

static stw_runtime *open_runtime(void)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    nvme.path = ".", nvme.budget_bytes = 16u << 20, nvme.driver_options = "allow_tmpfs=1";
    options.nvme = &nvme, options.nvme_count = 1;
    options.host_bytes = HOST_BYTES, options.block_bytes = STW_BLOCK_64K;
    check(CALL(stw_runtime_open)(&options, &runtime));
    return runtime;
}

static int round_trip(void)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_tensor *tensor = NULL;
    stw_runtime *runtime = open_runtime();
    float *values = malloc(ELEMENTS * sizeof *values);
    int wrong = 0;
    if (!values) return 1;
    spec.dtype = STW_F32, spec.dimensions = 1, spec.shape[0] = ELEMENTS;
    check(CALL(stw_tensor_create)(runtime, &spec, 1, &tensor));
    check(CALL(stw_tensor_fill)(tensor, 3.0, NULL));
    check(CALL(stw_tensor_read)(tensor, values, NULL));
    for (int i = 0; i < ELEMENTS; ++i) wrong += values[i] != 3.0f;
    free(values);
    check(CALL(stw_tensor_destroy)(&tensor, 1));
    check(CALL(stw_runtime_close)(runtime, 0, 0));
    return wrong;
}

/* With jemalloc in the program, opening a runtime counts as what this thread took from it. */
static int malloc_is_the_programs(void)
{
#if defined(WITH_JEMALLOC)
    uint64_t before = 0;
    uint64_t after = 0;
    size_t size = sizeof before;
    if (mallctl("thread.allocated", &before, &size, NULL, 0)) return 0;
    check(CALL(stw_runtime_close)(open_runtime(), 0, 0));
    if (mallctl("thread.allocated", &after, &size, NULL, 0)) return 0;
    return after > before;
#else
    return 1;
#endif
}

int main(int count, char **words)
{
#if defined(BY_DLOPEN)
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "round_trip: %s\n", count > 1 ? dlerror() : "which library?");
        return 1;
    }
#define LOAD(name) *(void **)&loaded_##name = dlsym(library, #name);
    FUNCTIONS(LOAD)
#define MISSING(name) || !loaded_##name
    if (0 FUNCTIONS(MISSING)) return 1;
#else
    (void)count, (void)words;
#endif
    if (CALL(stw_abi_version)() != 0 || !CALL(stw_version_string)()[0]) return 1;
    if (!malloc_is_the_programs()) {
        fprintf(stderr, "round_trip: the library allocates elsewhere\n");
        return 1;
    }
    if (round_trip()) return 1;
#if defined(BY_DLOPEN)
    if (dlclose(library)) return 1;
#endif
    return 0;
}
