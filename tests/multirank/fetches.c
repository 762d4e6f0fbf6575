/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches over ranks beside plain gathers. */
#include "tests/multirank/tensors.h"

#include <stdlib.h>
#include <string.h>

/* Not on the device, so block by block. A bf16 has the upper half of the f32's bits. */
CLAIM(shards_are_copied_and_converted)
{
    enum { N = 50000 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *tensor = make(runtime, "w", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor_info info = {.struct_size = sizeof info};
    SUCCEEDS(stw_tensor_info_get(tensor, &info));
    float *copy = malloc((info.shard_elements + 1) * sizeof *copy);
    HOLDS(copy != NULL);
    write_shard(runtime, tensor, 1);
    SUCCEEDS(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    stw_fetch_request requests[2] = {
        {.struct_size = sizeof *requests, .tensor = tensor, .scope = STW_SHARD, .into = copy},
        {.struct_size = sizeof *requests, .tensor = tensor, .scope = STW_SHARD, .dtype = STW_BF16},
    };
    stw_view views[2];
    SUCCEEDS(stw_fetch(runtime, NULL, requests, 2, views));
    const uint16_t *converted = views[1].pointer;
    for (uint64_t k = 0; k < info.shard_elements; ++k) {
        const float value = value_of(info.shard_begin + k, 1);
        uint32_t bits = (uint32_t)converted[k] << 16;
        float rounded = 0;
        memcpy(&rounded, &bits, sizeof rounded);
        HOLDS(copy[k] == value);
        HOLDS(rounded - value <= value / 256 && value - rounded <= value / 256);
    }
    SUCCEEDS(stw_release(views, 2, STW_STREAM_HOST, 0));
    free(copy);
    end(runtime, group, member);
}
