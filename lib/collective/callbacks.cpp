// SPDX-License-Identifier: Apache-2.0
#include "lib/collective/callbacks.h"

#include <cstdio>
#include <new>

namespace stepwell::collective {
namespace {

struct Callbacks {
    stw_group_ops ops;
    void *user;
    uint32_t rank;
    uint32_t size;
};

Callbacks &of(stw_collective *collective)
{
    return *reinterpret_cast<Callbacks *>(collective);
}

void info(stw_collective *collective, stw_collective_info *info_out)
{
    info_out->rank = of(collective).rank;
    info_out->size = of(collective).size;
    info_out->caller_thread = 0;
    info_out->remark[0] = '\0';
}

stw_status exchange(stw_collective *collective, const void *record, void *records, uint32_t bytes,
                    uint64_t *work_out)
{
    const Callbacks &group = of(collective);
    return group.ops.all_gather(group.user, record, records, bytes, STW_TIER_HOST, 0, nullptr,
                                work_out);
}

stw_status all_gather(stw_collective *collective, const void *shard, void *whole,
                      uint64_t shard_bytes, void *stream, uint64_t *work_out)
{
    const Callbacks &group = of(collective);
    return group.ops.all_gather(group.user, shard, whole, shard_bytes, STW_TIER_HOST, 0, stream,
                                work_out);
}

stw_status reduce_scatter(stw_collective *collective, const void *whole, void *shard,
                          uint64_t shard_elements, uint32_t dtype, void *stream, uint64_t *work_out)
{
    const Callbacks &group = of(collective);
    return group.ops.reduce_scatter(group.user, whole, shard, shard_elements, dtype, STW_TIER_HOST,
                                    0, stream, work_out);
}

stw_status all_reduce(stw_collective *collective, void *data, uint64_t elements, uint32_t dtype,
                      void *stream, uint64_t *work_out)
{
    const Callbacks &group = of(collective);
    return group.ops.all_reduce(group.user, data, elements, dtype, STW_TIER_HOST, 0, stream,
                                work_out);
}

stw_status poll(stw_collective *collective, uint64_t work, stw_driver_error *error_out)
{
    const Callbacks &group = of(collective);
    const stw_status code = group.ops.poll(group.user, work);
    if (code != STW_OK && code != STW_PENDING && error_out) {
        std::snprintf(error_out->sentence, sizeof error_out->sentence,
                      "the program's poll callback returned %d (%s)", code,
                      stw_status_string(code));
    }
    return code;
}

stw_status abort(stw_collective *collective)
{
    const Callbacks &group = of(collective);
    return group.ops.abort ? group.ops.abort(group.user) : stw_status{STW_ERROR_UNSUPPORTED};
}

stw_status close(stw_collective *collective, uint64_t)
{
    delete &of(collective);
    return STW_OK;
}

}  // namespace

const stw_collective_ops kCallbacks = {
    .struct_size = sizeof(stw_collective_ops),
    .abi = STW_DRIVER_ABI,
    .name = "callbacks",
    .capabilities = STW_COLLECTIVE_HOST | STW_COLLECTIVE_CAN_ABORT,
    .open = nullptr,  // made by open_callbacks() alone
    .info = info,
    .exchange = exchange,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .poll = poll,
    .close = close,
    .split = nullptr,
    .missing = nullptr,
    .abort = abort,
    .register_memory = nullptr,
    .unregister_memory = nullptr,
};

stw_status open_callbacks(const stw_group_ops &callbacks, void *user, uint32_t rank, uint32_t size,
                          stw_collective **collective_out, stw_driver_error *error_out)
{
    if (!callbacks.all_gather || !callbacks.reduce_scatter || !callbacks.all_reduce ||
        !callbacks.poll) {
        std::snprintf(error_out->sentence, sizeof error_out->sentence,
                      "options.ops lacks a callback: all_gather, reduce_scatter, all_reduce and "
                      "poll have to be there");
        return STW_ERROR_INVALID;
    }
    auto *made = new (std::nothrow) Callbacks{callbacks, user, rank, size};
    if (!made) return STW_ERROR_MEMORY;
    *collective_out = reinterpret_cast<stw_collective *>(made);
    return STW_OK;
}

}  // namespace stepwell::collective
