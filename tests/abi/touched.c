/* SPDX-License-Identifier: Apache-2.0 */
#include "touched.h"

machine machine_touched(void)
{
    machine wanted = machine_small();
    wanted.host_blocks = 0;
    wanted.flags = STW_RUNTIME_FAULT_IN;
    return wanted;
}

float *touched_address(stw_tensor *tensor)
{
    void *pointer = NULL;
    uint64_t bytes = 0;
    ok(stw_tensor_address(tensor, 0, &pointer, &bytes));
    return pointer;
}

__attribute__((no_sanitize("thread"))) float touched_read(const volatile float *address)
{
    return *address;
}

void touched_counts(stw_runtime *runtime, const char *name, unsigned counts_out[2])
{
    char words[128];
    const char *at = strstr(report_text(runtime), "\"touches\"");
    assert_non_null(at);
    counts_out[0] = counts_out[1] = 0;
    snprintf(words, sizeof words, "\"tensor\": \"%s\"", name);
    at = strstr(at, words);
    if (at != NULL && (at = strstr(at, "\"reads\": ")) != NULL)
        sscanf(at, "\"reads\": %u, \"writes\": %u", &counts_out[0], &counts_out[1]);
}
