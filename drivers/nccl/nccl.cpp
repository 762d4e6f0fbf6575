// SPDX-License-Identifier: Apache-2.0
// The collective driver over NCCL, as a module: the table of functions, none of which throws into
// C.
#include "drivers/nccl/group.h"

namespace stepwell::drivers {

namespace {

NcclGroup *of(stw_collective *collective)
{
    return reinterpret_cast<NcclGroup *>(collective);
}

stw_status nccl_open(const stw_services *, const stw_collective_options *options,
                     stw_collective **collective_out, stw_driver_error *error_out)
{
    if (!options_are_known(options))
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The options of a group have a size or bytes that the driver 'nccl' does not "
                    "know; build both with the same headers.");
    return open_handle<NcclGroup>(collective_out, error_out,
                                  [&](std::unique_ptr<NcclGroup> *group_out) {
                                      return NcclGroup::open(*options, group_out, error_out);
                                  });
}

void nccl_info(stw_collective *collective, stw_collective_info *info_out)
{
    of(collective)->info(info_out);
}

stw_status nccl_exchange(stw_collective *collective, const void *record, void *records,
                         uint32_t bytes, uint64_t *work_out)
{
    return guard_open(nullptr,
                      [&] { return of(collective)->exchange(record, records, bytes, work_out); });
}

stw_status nccl_all_gather(stw_collective *collective, const void *shard, void *whole,
                           uint64_t shard_bytes, void *stream, uint64_t *work_out)
{
    return guard_open(nullptr, [&] {
        return of(collective)->all_gather(shard, whole, shard_bytes, stream, work_out);
    });
}

stw_status nccl_reduce_scatter(stw_collective *collective, const void *whole, void *shard,
                               uint64_t shard_elements, uint32_t dtype, void *stream,
                               uint64_t *work_out)
{
    return guard_open(nullptr, [&] {
        return of(collective)
            ->reduce_scatter(whole, shard, shard_elements, dtype, stream, work_out);
    });
}

stw_status nccl_all_reduce(stw_collective *collective, void *data, uint64_t elements,
                           uint32_t dtype, void *stream, uint64_t *work_out)
{
    return guard_open(nullptr, [&] {
        return of(collective)->all_reduce(data, elements, dtype, stream, work_out);
    });
}

stw_status nccl_poll(stw_collective *collective, uint64_t work, stw_driver_error *error_out)
{
    return guard_open(error_out, [&] { return of(collective)->poll(work, error_out); });
}

stw_status nccl_close(stw_collective *collective, uint64_t wait_ns)
{
    NcclGroup *group = of(collective);
    const stw_status status = guard_open(nullptr, [&] { return group->close(wait_ns); });
    if (status != STW_ERROR_TIMEOUT) delete group;
    return status;
}

stw_status nccl_abort(stw_collective *collective)
{
    return guard_open(nullptr, [&] { return of(collective)->abort(); });
}

stw_status nccl_register(stw_collective *collective, void *base, uint64_t bytes,
                         stw_driver_error *error_out)
{
    return guard_open(error_out,
                      [&] { return of(collective)->register_memory(base, bytes, error_out); });
}

void nccl_unregister(stw_collective *collective, void *base)
{
    of(collective)->unregister_memory(base);
}

constexpr stw_collective_ops kOps = {
    sizeof(stw_collective_ops),
    STW_DRIVER_ABI,
    "nccl",
    STW_COLLECTIVE_DEVICE | STW_COLLECTIVE_CAN_ABORT | STW_COLLECTIVE_CAN_REGISTER,
    nccl_open,
    nccl_info,
    nccl_exchange,
    nccl_all_gather,
    nccl_reduce_scatter,
    nccl_all_reduce,
    nccl_poll,
    nccl_close,
    nullptr,
    nullptr,
    nccl_abort,
    nccl_register,
    nccl_unregister,
};

constexpr stw_driver_module kModule = {
    sizeof(stw_driver_module), STW_DRIVER_ABI, nullptr, nullptr, &kOps,
};

}  // namespace

}  // namespace stepwell::drivers

const stw_driver_module *stw_driver_module_get(void)
{
    return &stepwell::drivers::kModule;
}
