// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/group/groups.h"

#include "lib/collective/callbacks.h"
#include "lib/runtime/dispatch/waiter.h"

#include "drivers/registry.h"

#include <algorithm>
#include <cstring>
#include <ctime>

namespace stepwell {
namespace {

uint64_t now_ns(void *)
{
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

// A group can be made before a runtime, whose log could be used.
void log_nothing(void *, uint32_t, const char *, const char *) {}

constexpr stw_services kServices = {sizeof(stw_services), STW_DRIVER_ABI, nullptr, now_ns,
                                    log_nothing};

Status refused(stw_status code, const stw_driver_error &error, const char *engine)
{
    Status status = Status::error(code, "no group over '%s' can be made: %s", engine,
                                  error.sentence[0] ? error.sentence : stw_status_string(code));
    status.mutable_detail().os_errno = error.os_errno;
    return status;
}

}  // namespace

Result<std::unique_ptr<collective::Group>> open_group(const stw_group_options &options)
{
    if (options.driver == STW_GROUP_SELF) {
        return Result<std::unique_ptr<collective::Group>>(nullptr);
    }
    const uint64_t timeout_ns = options.timeout_ns ? options.timeout_ns : kTimeoutDefaultNs;
    const stw_collective_ops *ops = nullptr;
    stw_collective *collective = nullptr;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    stw_status code = STW_OK;
    const char *engine = options.driver == STW_GROUP_MPI ? "mpi" : "nccl";
    if (options.driver == STW_GROUP_CALLBACKS) {
        engine = "callbacks";
        ops = &collective::kCallbacks;
        stw_group_ops callbacks{};
        std::memcpy(&callbacks, options.ops,
                    std::min<size_t>(options.ops->struct_size, sizeof callbacks));
        code = collective::open_callbacks(callbacks, options.ops_user, options.rank, options.size,
                                          &collective, &error);
    } else {
        code = drivers::find_driver(options.module ? options.module : engine, &ops, &error);
        if (code != STW_OK) {
            Status status = refused(code, error, engine);
            status.mutable_detail().sentence += format_text(
                ". Install the module '%s', or name its file in options.module", engine);
            return status;
        }
        stw_collective_options open{};
        open.struct_size = sizeof open;
        open.rank = options.rank;
        open.size = options.size;
        open.mpi_comm = options.mpi_comm;
        open.communicator = options.nccl_comm;
        open.unique_id = options.unique_id;
        open.unique_id_bytes = options.unique_id_bytes;
        open.device_ordinal = options.device_ordinal;
        open.timeout_ns = timeout_ns;
        code = ops->open(&kServices, &open, &collective, &error);
    }
    if (code != STW_OK) return refused(code, error, engine);
    return collective::Group::open(ops, collective, timeout_ns,
                                   (options.flags & STW_GROUP_CALLER_THREAD) != 0);
}

}  // namespace stepwell
