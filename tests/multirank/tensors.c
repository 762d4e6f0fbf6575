/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/multirank/tensors.h"

#include <stddef.h>

struct claim claims[32];
uint32_t claims_count;

stw_runtime *open_on(stw_group *group, const struct member *member, uint64_t whole_blocks)
{
    return open_faulty(group, member, whole_blocks, NULL);
}

stw_runtime *open_faulty(stw_group *group, const struct member *member, uint64_t whole_blocks,
                         const char *faults)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    stw_device_options device = {.struct_size = sizeof device,
                                 .budget_bytes = (whole_blocks + 24) * BLOCK};
    stw_nvme_options nvme = {
        .struct_size = sizeof nvme, .path = member->directory, .budget_bytes = 512 * BLOCK};
    nvme.driver = faults ? "fault" : NULL;
    nvme.driver_options = faults;
    options.flags = STW_RUNTIME_NO_PROBE;
    options.name = "ranks";
    options.group = group;
    options.devices = &device;
    options.device_count = 1;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 16 * BLOCK;
    options.block_bytes = STW_BLOCK_64K;
    options.whole_bytes = whole_blocks * BLOCK;
    options.thread_count = 1;
    options.timeout_ns = 60ull * 1000000000;
    SUCCEEDS(stw_runtime_open(&options, &runtime));
    return runtime;
}

void end(stw_runtime *runtime, stw_group *group, struct member *member)
{
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
    meet(member);
    SUCCEEDS(stw_group_destroy(group));
}

stw_tensor_spec spec_of(const char *name, uint64_t elements, uint32_t role, uint32_t partition)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = name;
    spec.role = role;
    spec.dtype = STW_F32;
    spec.partition = partition;
    spec.dimensions = 1;
    spec.shape[0] = elements;
    return spec;
}

stw_tensor *make_as(stw_runtime *runtime, const stw_tensor_spec *spec)
{
    stw_tensor *tensor = NULL;
    SUCCEEDS(stw_tensor_create(runtime, spec, 1, &tensor));
    return tensor;
}

stw_tensor *make(stw_runtime *runtime, const char *name, uint64_t elements, uint32_t role,
                 uint32_t partition)
{
    const stw_tensor_spec spec = spec_of(name, elements, role, partition);
    return make_as(runtime, &spec);
}

uint64_t collectives(stw_runtime *runtime)
{
    stw_link_stats link = STW_LINK_STATS_INIT;
    SUCCEEDS(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &link));
    return link.transfers;
}

stw_optimizer *optimizer_make(stw_runtime *runtime, uint32_t algorithm)
{
    const stw_optimizer_options options = {.struct_size = sizeof options, .algorithm = algorithm};
    stw_optimizer *optimizer = NULL;
    SUCCEEDS(stw_optimizer_create(runtime, &options, &optimizer));
    SUCCEEDS(stw_optimizer_set_hyper(optimizer, 0, &(stw_hyper)STW_HYPER_INIT));
    return optimizer;
}

void optimizer_add(stw_optimizer *optimizer, stw_tensor *parameter, stw_tensor *gradient)
{
    const stw_optimizer_entry entry = {
        .struct_size = sizeof entry, .parameter = parameter, .gradient = gradient};
    SUCCEEDS(stw_optimizer_add(optimizer, &entry, 1));
}

stw_view fetch(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, uint32_t scope)
{
    stw_view view;
    stw_fetch_request request = {
        .struct_size = sizeof request, .tensor = tensor, .access = access, .scope = scope};
    SUCCEEDS(stw_fetch(runtime, NULL, &request, 1, &view));
    return view;
}

void let_go(stw_view *view, uint32_t flags)
{
    SUCCEEDS(stw_release(view, 1, STW_STREAM_HOST, flags));
}

float value_of(uint64_t element, uint32_t salt)
{
    return (float)((element * 7 + salt * 1000003) % 65521);
}

/* In parts, as the device has room for. */
void write_shard(stw_runtime *runtime, stw_tensor *tensor, uint32_t salt)
{
    enum { PART = 4 * BLOCK / sizeof(float) };
    stw_tensor_info info = {0};
    info.struct_size = sizeof info;
    SUCCEEDS(stw_tensor_info_get(tensor, &info));
    for (uint64_t at = 0; at < info.shard_elements; at += PART) {
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        stw_view view;
        request.tensor = tensor;
        request.access = STW_WRITE;
        request.scope = STW_SHARD;
        request.element_begin = info.shard_begin + at;
        request.element_count = info.shard_elements - at < PART ? info.shard_elements - at : PART;
        SUCCEEDS(stw_fetch(runtime, NULL, &request, 1, &view));
        float *values = view.pointer;
        for (uint64_t i = 0; i < view.element_count; ++i) {
            values[i] = value_of(view.element_begin + i, salt);
        }
        let_go(&view, 0);
    }
}

void expect_values(const stw_view *view, uint64_t elements, uint32_t salt)
{
    const float *values = view->pointer;
    HOLDS(view->element_begin == 0 && view->element_count == elements);
    for (uint64_t i = 0; i < elements; ++i) HOLDS(values[i] == value_of(i, salt));
}

void expect_whole(stw_runtime *runtime, stw_tensor *tensor, uint64_t elements, uint32_t salt)
{
    stw_view view = fetch(runtime, tensor, STW_READ, STW_WHOLE);
    expect_values(&view, elements, salt);
    let_go(&view, 0);
}
