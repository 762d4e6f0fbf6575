/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library prints nothing, whatever fails: descriptors 1 and 2 lead to a file that stays empty.
 */
#include "program.h"

#include <fcntl.h>
#include <sys/stat.h>

static void fail_in_many_ways(void)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    stw_runtime *runtime = NULL;
    static float values[40 * BLOCK / 4];
    stw_view view;
    memset(&view, 0, sizeof view);
    (void)stw_runtime_open(NULL, NULL);
    (void)stw_runtime_open(&options, &runtime);
    nvme.path = "/nowhere", nvme.budget_bytes = 256 * BLOCK;
    options.nvme = &nvme, options.nvme_count = 1, options.host_bytes = 12 * BLOCK;
    options.block_bytes = STW_BLOCK_64K;
    (void)stw_runtime_open(&options, &runtime);
    nvme.path = ".", nvme.driver = "fault";
    nvme.driver_options = "inner=posix;inner.allow_tmpfs=1;at=write:3:eio;at=write:4:eio;"
                          "at=write:5:eio;at=write:6:eio;at=write:7:torn;at=write:9:lost;"
                          "at=read:3:eio;at=read:4:eio;at=read:5:eio;at=read:7:flip;at=read:8:flip";
    if (stw_runtime_open(&options, &runtime) != STW_OK) _exit(2);
    stw_tensor *tensor = make_tensor(runtime, "t", 40 * BLOCK / 4);
    for (int i = 0; i < 3; ++i) {
        (void)stw_tensor_write(tensor, values, NULL);
        (void)stw_tensor_read(tensor, values, NULL);
        request.tensor = tensor;
        (void)stw_fetch(runtime, NULL, &request, 1, &view);
        (void)stw_release(&view, 1, STW_STREAM_HOST, 0);
        (void)stw_runtime_drain(runtime, 0);
        (void)stw_runtime_clear_error(runtime);
    }
    (void)stw_runtime_close(runtime, 0, 0);
    (void)stw_runtime_close(runtime, 0, 0);
}

int main(void)
{
    const int file = open("silence-output", O_RDWR | O_CREAT | O_TRUNC, 0600);
    const int output = dup(1), error = dup(2);
    struct stat about;
    CHECK(file >= 0 && output >= 0 && error >= 0);
    fflush(NULL);
    CHECK(dup2(file, 1) == 1 && dup2(file, 2) == 2);
    fail_in_many_ways();
    fflush(NULL);
    CHECK(dup2(output, 1) == 1 && dup2(error, 2) == 2);
    CHECK(fstat(file, &about) == 0);
    CHECK(about.st_size == 0);
    CHECK(unlink("silence-output") == 0);
    return 0;
}
