/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs share: a small runtime, and a check that ends the program with the place and
 * the library's sentence. 77 is "skipped", as Meson has it.
 */
#ifndef TESTS_PROGRAMS_PROGRAM_H
#define TESTS_PROGRAMS_PROGRAM_H

#include <stepwell/stepwell.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SKIPPED = 77, BLOCK = 65536 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (condition) break;                                                                      \
        fprintf(stderr, "%s:%d: not so: %s\n  last error: %s\n", __FILE__, __LINE__, #condition,   \
                stw_last_error());                                                                 \
        _exit(1);                                                                                  \
    } while (0)

/* Blocks of 64 KiB: 8 on the device, 16 in the host tier, 240 on nvme. Not every program's. */
__attribute__((unused)) static stw_runtime *open_small(const char *path, stw_log_fn log)
{
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    device.budget_bytes = 8 * BLOCK;
    nvme.path = path, nvme.budget_bytes = 256 * BLOCK, nvme.driver_options = "allow_tmpfs=1";
    options.devices = &device, options.device_count = 1;
    options.nvme = &nvme, options.nvme_count = 1;
    options.host_bytes = 16 * BLOCK, options.block_bytes = STW_BLOCK_64K;
    options.thread_count = 2, options.log = log, options.timeout_ns = UINT64_C(60000000000);
    CHECK(stw_runtime_open(&options, &runtime) == STW_OK);
    return runtime;
}

__attribute__((unused)) static stw_tensor *make_tensor(stw_runtime *runtime, const char *name,
                                                       uint64_t elements)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_tensor *tensor = NULL;
    spec.name = name, spec.dtype = STW_F32, spec.role = STW_ROLE_PARAM;
    spec.dimensions = 1, spec.shape[0] = elements;
    CHECK(stw_tensor_create(runtime, &spec, 1, &tensor) == STW_OK);
    return tensor;
}

#endif
