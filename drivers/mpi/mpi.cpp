// SPDX-License-Identifier: Apache-2.0
// The collective driver over MPI, as a module: the table of functions, none of which throws into C.
#include "drivers/mpi/group.h"

namespace stepwell::drivers {

namespace {

Group *of(stw_collective *collective)
{
    return reinterpret_cast<Group *>(collective);
}

stw_status mpi_open(const stw_services *services, const stw_collective_options *options,
                    stw_collective **collective_out, stw_driver_error *error_out)
{
    if (!options_are_known(options))
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The options of a group have a size or bytes that the driver 'mpi' does not "
                    "know; build both with the same headers.");
    return open_handle<Group>(collective_out, error_out, [&](std::unique_ptr<Group> *group_out) {
        return Group::open(services, *options, group_out, error_out);
    });
}

void mpi_info(stw_collective *collective, stw_collective_info *info_out)
{
    of(collective)->info(info_out);
}

stw_status mpi_exchange(stw_collective *collective, const void *record, void *records,
                        uint32_t bytes, uint64_t *work_out)
{
    return guard_open(nullptr,
                      [&] { return of(collective)->exchange(record, records, bytes, work_out); });
}

stw_status mpi_all_gather(stw_collective *collective, const void *shard, void *whole,
                          uint64_t shard_bytes, void *, uint64_t *work_out)
{
    return guard_open(
        nullptr, [&] { return of(collective)->all_gather(shard, whole, shard_bytes, work_out); });
}

stw_status mpi_reduce_scatter(stw_collective *collective, const void *whole, void *shard,
                              uint64_t shard_elements, uint32_t dtype, void *, uint64_t *work_out)
{
    return guard_open(nullptr, [&] {
        return of(collective)->reduce_scatter(whole, shard, shard_elements, dtype, work_out);
    });
}

stw_status mpi_all_reduce(stw_collective *collective, void *data, uint64_t elements, uint32_t dtype,
                          void *, uint64_t *work_out)
{
    return guard_open(nullptr,
                      [&] { return of(collective)->all_reduce(data, elements, dtype, work_out); });
}

stw_status mpi_poll(stw_collective *collective, uint64_t work, stw_driver_error *error_out)
{
    return guard_open(error_out, [&] { return of(collective)->poll(work, error_out); });
}

stw_status mpi_close(stw_collective *collective, uint64_t wait_ns)
{
    Group *group = of(collective);
    const stw_status status = guard_open(nullptr, [&] { return group->close(wait_ns); });
    // MPI may write to the scratch memory of a failed operation for the life of the process.
    if (status == STW_OK || status == STW_ERROR_CLOSED) delete group;
    return status;
}

stw_status mpi_split(stw_collective *collective, int32_t colour, uint32_t key, uint64_t timeout_ns,
                     stw_collective **collective_out, stw_driver_error *error_out)
{
    return open_handle<Group>(collective_out, error_out, [&](std::unique_ptr<Group> *group_out) {
        return of(collective)->split(colour, key, timeout_ns, group_out, error_out);
    });
}

uint32_t mpi_missing(stw_collective *collective, uint64_t work, uint32_t *ranks_out,
                     uint32_t capacity)
{
    return of(collective)->missing(work, ranks_out, capacity);
}

constexpr stw_collective_ops kOps = {
    sizeof(stw_collective_ops),
    STW_DRIVER_ABI,
    "mpi",
    STW_COLLECTIVE_HOST | STW_COLLECTIVE_CAN_SPLIT | STW_COLLECTIVE_NAMES_MISSING,
    mpi_open,
    mpi_info,
    mpi_exchange,
    mpi_all_gather,
    mpi_reduce_scatter,
    mpi_all_reduce,
    mpi_poll,
    mpi_close,
    mpi_split,
    mpi_missing,
    nullptr,
    nullptr,
    nullptr,
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
