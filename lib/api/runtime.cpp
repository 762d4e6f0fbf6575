// SPDX-License-Identifier: Apache-2.0
// runtime.h and operation.h at the boundary.
#include "lib/api/check.h"
#include "lib/store/generations.h"

#include <cctype>
#include <memory>
#include <thread>

using namespace stepwell;
using namespace stepwell::api;

namespace {

// The caller's options with its arrays copied, since their elements may be of another version.
struct Opening {
    stw_runtime_options options{};
    std::vector<stw_device_options> devices;
    std::vector<stw_nvme_options> nvme;
};

Status check_block(uint32_t block_bytes)
{
    if (block_bytes == 0 || block_bytes == STW_BLOCK_2M || block_bytes == STW_BLOCK_512K ||
        block_bytes == STW_BLOCK_64K) {
        return {};
    }
    return Status::error(STW_ERROR_INVALID,
                         "options.block_bytes is %u; it is STW_BLOCK_2M, _512K, _64K or 0",
                         block_bytes);
}

Status check_paths(const Opening &opening)
{
    for (size_t i = 0; i < opening.nvme.size(); ++i) {
        const stw_nvme_options &nvme = opening.nvme[i];
        if (!nvme.path || !*nvme.path) {
            return Status::error(STW_ERROR_INVALID, "options.nvme[%zu].path is empty", i);
        }
        STW_TRY(check_flags(nvme.flags, 0, "options.nvme[].flags"));
        if (nvme.queue_depth > 4096) {
            return Status::error(STW_ERROR_INVALID,
                                 "options.nvme[%zu].queue_depth is %u, at most 4096", i,
                                 nvme.queue_depth);
        }
        if (nvme.request_bytes % 4096 != 0) {
            return Status::error(STW_ERROR_INVALID,
                                 "options.nvme[%zu].request_bytes is %u, not a multiple of 4096", i,
                                 nvme.request_bytes);
        }
    }
    return {};
}

// The name becomes a part of names of files.
Status check_store_name(const char *name)
{
    constexpr size_t kBytesMax = 100;
    const size_t bytes = strnlen(name, kBytesMax + 1);
    bool known = bytes > 0 && bytes <= kBytesMax && name[0] != '.';
    for (size_t i = 0; i < bytes; ++i) {
        const bool plain = std::isalnum(static_cast<unsigned char>(name[i])) != 0;
        known &= plain || name[i] == '-' || name[i] == '_' || name[i] == '.';
    }
    if (known) return {};
    return Status::error(STW_ERROR_INVALID,
                         "options.store_name is '%.110s'; it takes 1 to %zu letters, digits, '-', "
                         "'_' and '.', with no '.' in front",
                         name, kBytesMax);
}

Status check_store(const stw_runtime_options &options)
{
    const uint32_t ways = options.flags & (STW_RUNTIME_RESUME | STW_RUNTIME_OVERWRITE);
    if (options.reserved2) return Status::error(STW_ERROR_INVALID, "options.reserved2 is not 0");
    if (options.generations_kept > store::kGenerationsMax) {
        return Status::error(STW_ERROR_LIMIT, "options.generations_kept is %u, at most %u",
                             options.generations_kept, store::kGenerationsMax);
    }
    if (options.resume_generation && !(ways & STW_RUNTIME_RESUME)) {
        return Status::error(STW_ERROR_INVALID,
                             "options.resume_generation is given without STW_RUNTIME_RESUME");
    }
    if (options.store_name) {
        STW_TRY(check_store_name(options.store_name));
        if (options.nvme_count > 0) return {};
        return Status::error(STW_ERROR_INVALID,
                             "options.store_name is '%s', and there is no nvme tier to keep it in",
                             options.store_name);
    }
    if (ways == 0 && options.generations_kept == 0) return {};
    return Status::error(STW_ERROR_INVALID,
                         "options.flags 0x%x or generations_kept %u is about a store that stays, "
                         "and store_name is null",
                         ways, options.generations_kept);
}

Status check_groups(const stw_runtime_options &options)
{
    if (options.group) STW_TRY(enter(options.group));
    if (!options.replica_group) return {};
    STW_TRY(enter(options.replica_group));
    const bool several = options.replica_group->body && options.replica_group->body->size() > 1;
    const bool shards = options.group && options.group->body && options.group->body->size() > 1;
    if (!several || (shards && options.group != options.replica_group)) return {};
    return Status::error(STW_ERROR_INVALID,
                         "options.replica_group has %u ranks, and options.group %s; replicas are "
                         "those of ranks that hold shards between them, so give these as group, or "
                         "all ranks as group alone",
                         options.replica_group->body->size(),
                         shards ? "is the same" : "is this process alone");
}

Status gather(const stw_runtime_options *from, Opening *opening)
{
    stw_runtime_options &options = opening->options;
    STW_TRY(take(&options, from, "options"));
    STW_TRY(check_flags(options.flags,
                        STW_RUNTIME_RESUME | STW_RUNTIME_OVERWRITE | STW_RUNTIME_NO_PROBE |
                            STW_RUNTIME_NO_PLAN | STW_RUNTIME_FAULT_IN | STW_RUNTIME_ROOM_FARTHEST,
                        "options.flags"));
    STW_TRY(check_block(options.block_bytes));
    if (options.reserved) {
        return Status::error(STW_ERROR_INVALID, "options.reserved is not 0");
    }
    STW_TRY(check_groups(options));
    STW_TRY(check_store(options));
    if (options.preset > STW_PRESET_ZERO_OFFLOAD || options.log_level > STW_LOG_DEBUG) {
        return Status::error(STW_ERROR_INVALID, "options.preset %u or log_level %u is not known",
                             options.preset, options.log_level);
    }
    if (options.device_count > residency::kDevicesMax || options.nvme_count > 8) {
        return Status::error(STW_ERROR_LIMIT,
                             "%u devices and %u directories; at most %u and 8 are supported",
                             options.device_count, options.nvme_count, residency::kDevicesMax);
    }
    if ((options.device_count && !options.devices) || (options.nvme_count && !options.nvme)) {
        return Status::error(STW_ERROR_INVALID, "a count is not 0 but its array is null");
    }
    if (options.tensors_max > (1u << 24) || options.views_max > (1u << 24)) {
        return Status::error(STW_ERROR_LIMIT, "tensors_max %u or views_max %u is above %u",
                             options.tensors_max, options.views_max, 1u << 24);
    }
    for (uint32_t i = 0; i < options.device_count; ++i) {
        stw_device_options device{};
        STW_TRY(take(&device, &element(options.devices, i), "options.devices[]"));
        if (device.staging_bytes != 0) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "options.devices[%u] has staging_bytes %llu, but this release "
                                 "derives it: leave it 0",
                                 i, static_cast<unsigned long long>(device.staging_bytes));
        }
        opening->devices.push_back(device);
    }
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        stw_nvme_options nvme{};
        STW_TRY(take(&nvme, &element(options.nvme, i), "options.nvme[]"));
        opening->nvme.push_back(nvme);
    }
    options.devices = opening->devices.data();
    options.nvme = opening->nvme.data();
    return check_paths(*opening);
}

}  // namespace

stw_status stw_runtime_open(const stw_runtime_options *options, stw_runtime **runtime_out)
{
    return guard([&]() -> Status {
        if (!runtime_out) return Status::error(STW_ERROR_INVALID, "runtime_out is null");
        Opening opening;
        STW_TRY(gather(options, &opening));
        const auto give = [](stw_runtime *unused) { runtime_pool.give(unused); };
        std::unique_ptr<stw_runtime, decltype(give)> handle(runtime_pool.take(), give);
        if (!handle) return Status::error(STW_ERROR_LIMIT, "too many runtimes are open");
        handle->assertions->clear();
        set_assertion_log(handle->assertions.get());  // of its threads, which are started now
        Result<Runtime *> opened = Runtime::open(opening.options, handle.get());
        if (!opened.ok()) return std::move(opened.status());
        handle->body = opened.value();
        handle->fork_epoch.store(fork_epoch.load());
        handle->life.store(Life::kOpen, std::memory_order_release);
        *runtime_out = handle.release();
        return {};
    });
}

namespace {

// An interrupt may come from a signal handler of another thread while this one closes.
void finish_close(stw_runtime *runtime)
{
    runtime->life.store(Life::kClosed);
    while (runtime->interrupts.load() > 0) std::this_thread::yield();
    delete runtime->body;
    runtime->body = nullptr;
    runtime_pool.give(runtime);
}

}  // namespace

bool stepwell::api::enter_deferred(stw_runtime *runtime) noexcept
{
    if (!runtime_pool.is_live(runtime) || runtime->fork_epoch.load() != fork_epoch.load()) {
        return false;
    }
    MutexLock lock(runtime->deferred_mutex);
    if (runtime->life.load() != Life::kDeferred) return false;
    ++runtime->deferred_releases;
    return true;
}

void stepwell::api::leave_deferred(stw_runtime *runtime) noexcept
{
    {
        MutexLock lock(runtime->deferred_mutex);
        if (--runtime->deferred_releases > 0) return;
        if (runtime->body->view_table.open_views() + runtime->body->machine.scratch_pieces() > 0)
            return;
        runtime->life.store(Life::kClosed, std::memory_order_release);
    }
    (void)guard([&]() -> Status {
        STW_TRY(runtime->body->close(0, false));
        finish_close(runtime);
        return {};
    });
}

stw_status stw_runtime_close(stw_runtime *runtime, uint32_t flags, uint64_t timeout_ns)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        STW_TRY(check_flags(flags, STW_CLOSE_DEFERRED, "flags"));
        Status status = runtime->body->close(timeout_ns, (flags & STW_CLOSE_DEFERRED) != 0);
        if (status.code() == STW_PENDING) {
            runtime->life.store(Life::kDeferred, std::memory_order_release);
            return {};
        }
        if (status.code() == STW_ERROR_BUSY || status.code() == STW_ERROR_TIMEOUT ||
            status.code() == STW_ERROR_INTERRUPTED) {
            return status;
        }
        finish_close(runtime);
        return status;
    });
}

stw_status stw_runtime_interrupt(stw_runtime *runtime)
{
    if (!runtime_pool.is_live(runtime)) return STW_ERROR_CLOSED;
    // The descriptor is shared with the parent: a child's interrupt would end the parent's waits.
    if (runtime->life.load() == Life::kOpen && runtime->fork_epoch.load() != fork_epoch.load()) {
        return STW_ERROR_FORKED;
    }
    // Either this sees that the runtime is closed, or finish_close() waits for it.
    runtime->interrupts.fetch_add(1);
    const bool open = runtime->life.load() == Life::kOpen;
    if (open) runtime->body->dispatch.interrupt();
    runtime->interrupts.fetch_sub(1);
    return open ? STW_OK : STW_ERROR_CLOSED;
}

stw_status stw_runtime_drain(stw_runtime *runtime, uint64_t timeout_ns)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        return runtime->body->drain(timeout_ns);
    });
}

stw_status stw_runtime_error(stw_runtime *runtime, stw_error_info *info_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        Status status = runtime->body->errors.first();
        if (info_out) {
            STW_TRY(check_output(info_out, 8, "info_out"));
            const ErrorDetail none;
            fill_error_info(status.code(), status.sentence(),
                            status.detail() ? *status.detail() : none, info_out);
        }
        return status;
    });
}

stw_status stw_runtime_clear_error(stw_runtime *runtime)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        runtime->body->errors.clear();
        return {};
    });
}

stw_status stw_device_info_get(stw_runtime *runtime, uint32_t device, stw_device_info *info_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        STW_TRY(check_output(info_out, 16, "info_out"));
        return runtime->body->report.reporter.device_info(device, info_out);
    });
}

stw_status stw_tier_set_budget(stw_runtime *runtime, uint32_t tier, uint32_t device, uint64_t bytes,
                               uint64_t timeout_ns)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        const residency::PlaceId place = runtime->body->machine.tiers.place_of(tier, device);
        if (place == residency::kNoPlace) {
            return Status::error(STW_ERROR_INVALID,
                                 "the runtime was opened without tier %u, device %u, so it has no "
                                 "budget to change",
                                 tier, device);
        }
        return runtime->body->budgets.set_budget(place, bytes, timeout_ns);
    });
}

stw_status stw_driver_info_get(const char *driver, stw_driver_info *info_out)
{
    return guard([&]() -> Status {
        if (!driver) return Status::error(STW_ERROR_INVALID, "driver is null");
        STW_TRY(check_output(info_out, 16, "info_out"));
        return Reporter::driver_info(driver, info_out);
    });
}

stw_status stw_operation_poll(stw_operation *operation)
{
    return guard([&]() -> Status {
        STW_TRY(enter(operation));
        return operation->runtime->body->calls.operations.poll(operation);
    });
}

stw_status stw_operation_wait(stw_operation *operation, uint64_t timeout_ns)
{
    return guard([&]() -> Status {
        STW_TRY(enter(operation));
        return operation->runtime->body->calls.operations.wait(operation, timeout_ns);
    });
}

stw_status stw_operation_on_done(stw_operation *operation, stw_done_fn done, void *user)
{
    return guard([&]() -> Status {
        STW_TRY(enter(operation));
        if (!done) return Status::error(STW_ERROR_INVALID, "done is null");
        return operation->runtime->body->calls.operations.on_done(operation, done, user);
    });
}

stw_status stw_operation_notify_fd(stw_operation *operation, int32_t fd)
{
    return guard([&]() -> Status {
        STW_TRY(enter(operation));
        return operation->runtime->body->calls.operations.notify_fd(operation, fd);
    });
}

stw_status stw_operation_cancel(stw_operation *operation)
{
    return guard([&]() -> Status {
        STW_TRY(enter(operation));
        return operation->runtime->body->calls.operations.cancel(operation);
    });
}

stw_status stw_operation_free(stw_operation *operation)
{
    return guard([&]() -> Status {
        STW_TRY(enter(operation));
        return operation->runtime->body->calls.operations.free_operation(operation);
    });
}
