// SPDX-License-Identifier: Apache-2.0
// The memory driver over the CUDA driver API, as a module: the table of functions, none of which
// throws into C.
#include "drivers/common/edge.h"
#include "drivers/common/memory_options.h"
#include "drivers/cuda/memory.h"

namespace stepwell::drivers::cuda {

namespace {

DeviceMemory *of(stw_memory *memory)
{
    return reinterpret_cast<DeviceMemory *>(memory);
}

stw_status cuda_open(const stw_services *, const stw_memory_options *options,
                     stw_memory **memory_out, stw_driver_error *error_out)
{
    if (const stw_status status = check_memory_size(kDriver, options, error_out)) return status;
    return open_handle<DeviceMemory>(memory_out, error_out,
                                     [&](std::unique_ptr<DeviceMemory> *made) {
                                         return DeviceMemory::open(*options, made, error_out);
                                     });
}

void cuda_info(stw_memory *memory, stw_memory_info *info_out)
{
    of(memory)->info(info_out);
}

stw_status cuda_copy(stw_memory *memory, void *destination, const void *source, uint64_t bytes)
{
    return guard_open(nullptr, [&] { return of(memory)->copy(destination, source, bytes); });
}

stw_status cuda_zero(stw_memory *memory, void *destination, uint64_t bytes)
{
    return guard_open(nullptr, [&] { return of(memory)->zero(destination, bytes); });
}

stw_status cuda_close(stw_memory *memory)
{
    delete of(memory);
    return STW_OK;
}

stw_status cuda_check_stream(stw_memory *memory, void *stream, stw_driver_error *error_out)
{
    return guard_open(error_out, [&] { return of(memory)->check_stream(stream, error_out); });
}

stw_status cuda_mark(stw_memory *memory, void *stream, uint64_t *mark_out)
{
    return guard_open(nullptr, [&] { return of(memory)->mark(stream, mark_out); });
}

stw_status cuda_copies_after(stw_memory *memory, uint64_t mark, uint32_t copies)
{
    return guard_open(nullptr, [&] { return of(memory)->copies_after(mark, copies); });
}

stw_status cuda_stream_after(stw_memory *memory, void *stream, uint64_t mark)
{
    return guard_open(nullptr, [&] { return of(memory)->stream_after(stream, mark); });
}

stw_status cuda_pin_host(stw_memory *memory, void *base, uint64_t bytes,
                         stw_driver_error *error_out)
{
    return guard_open(error_out, [&] { return of(memory)->pin_host(base, bytes, error_out); });
}

void cuda_unpin_host(stw_memory *memory, void *base, uint64_t)
{
    of(memory)->unpin_host(base);
}

stw_status cuda_copy_start(stw_memory *memory, void *destination, const void *source,
                           uint64_t bytes, uint64_t *mark_out)
{
    return guard_open(nullptr,
                      [&] { return of(memory)->copy_start(destination, source, bytes, mark_out); });
}

stw_status cuda_copies_start(stw_memory *memory, const stw_memory_copy *copies, uint32_t n,
                             uint64_t *mark_out)
{
    return guard_open(nullptr, [&] { return of(memory)->copies_start(copies, n, mark_out); });
}

stw_status cuda_wait(stw_memory *memory, uint64_t mark)
{
    return guard_open(nullptr, [&] { return of(memory)->wait(mark); });
}

stw_status cuda_update_stream(stw_memory *memory, void **stream_out, stw_driver_error *error_out)
{
    return guard_open(error_out, [&] { return of(memory)->update_stream(stream_out, error_out); });
}

stw_status cuda_update_start(stw_memory *memory, const stw_update_work *work)
{
    return of(memory)->compute([&](Updates &updates) { return updates.update(*work); });
}

stw_status cuda_scan_start(stw_memory *memory, const stw_scan_work *work, uint64_t *scan_out)
{
    return of(memory)->compute([&](Updates &updates) {
        return guard_open(nullptr, [&] { return updates.scan(*work, scan_out); });
    });
}

stw_status cuda_scan_end(stw_memory *memory, uint64_t scan, double *sums_out,
                         stw_scan_result *result_out)
{
    return of(memory)->compute(
        [&](Updates &updates) { return updates.scan_end(scan, sums_out, result_out); });
}

stw_status cuda_accumulate_start(stw_memory *memory, const stw_accumulate_work *work)
{
    return of(memory)->compute([&](Updates &updates) { return updates.accumulate(*work); });
}

stw_status cuda_zero_start(stw_memory *memory, void *destination, uint64_t bytes)
{
    return of(memory)->compute([&](Updates &updates) {
        return updates.zero(reinterpret_cast<Address>(destination), bytes);
    });
}

stw_status cuda_give_back(stw_memory *memory, uint32_t first_block, uint32_t count)
{
    return guard_open(nullptr, [&] { return of(memory)->give_back(first_block, count); });
}

stw_status cuda_take_back(stw_memory *memory, uint32_t first_block, uint32_t count,
                          stw_driver_error *error_out)
{
    return guard_open(error_out,
                      [&] { return of(memory)->take_back(first_block, count, error_out); });
}

stw_status cuda_reserve_alias(stw_memory *memory, uint64_t bytes, void **address_out)
{
    return guard_open(nullptr, [&] { return of(memory)->reserve_alias(bytes, address_out); });
}

stw_status cuda_map_alias(stw_memory *memory, uint32_t first_block, uint32_t count, void *address,
                          const uint64_t *marks, uint32_t n)
{
    return guard_open(nullptr,
                      [&] { return of(memory)->map_alias(first_block, count, address, marks, n); });
}

stw_status cuda_release_alias(stw_memory *memory, void *address, uint64_t bytes,
                              const uint64_t *marks, uint32_t n)
{
    return guard_open(nullptr, [&] { return of(memory)->release_alias(address, bytes, marks, n); });
}

stw_status cuda_shares_host(const stw_memory_options *options, uint32_t *shares_out)
{
    if (const stw_status status = check_memory_size(kDriver, options, nullptr)) return status;
    return guard_open(nullptr, [&] { return DeviceMemory::shares_host(*options, shares_out); });
}

stw_status cuda_forget_stream(stw_memory *memory, void *stream)
{
    return guard_open(nullptr, [&] { return of(memory)->forget_stream(stream); });
}

void cuda_why(stw_memory *memory, stw_driver_error *error_out)
{
    guard_open(error_out, [&] {
        return fail(error_out, STW_OK, {}, "%s", of(memory)->library().why().c_str());
    });
}

uint32_t cuda_next_failure(stw_memory *memory, stw_driver_error *error_out)
{
    const stw_status status = guard_open(error_out, [&]() -> stw_status {
        std::string sentence;
        if (!of(memory)->library().failures->next(&sentence)) return STW_PENDING;
        return fail(error_out, STW_OK, {}, "%s", sentence.c_str());
    });
    return status == STW_OK;
}

stw_status cuda_check_memory(stw_memory *memory, const void *pointer, uint64_t bytes,
                             stw_driver_error *error_out)
{
    return guard_open(error_out,
                      [&] { return of(memory)->check_memory(pointer, bytes, error_out); });
}

constexpr stw_memory_ops kOps = {
    sizeof(stw_memory_ops),
    STW_DRIVER_ABI,
    kDriver,
    STW_MEMORY_STREAMS | STW_MEMORY_CAN_SHRINK | STW_MEMORY_UPDATES | STW_MEMORY_CAN_BATCH |
        STW_MEMORY_CAN_ALIAS | STW_MEMORY_MAY_SHARE | STW_MEMORY_CAN_FORGET | STW_MEMORY_SAYS_WHY |
        STW_MEMORY_COPIES_OTHERS,
    cuda_open,
    cuda_info,
    cuda_copy,
    cuda_zero,
    cuda_close,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    cuda_give_back,
    cuda_take_back,
    cuda_check_stream,
    cuda_mark,
    cuda_copies_after,
    cuda_stream_after,
    cuda_pin_host,
    cuda_unpin_host,
    cuda_copy_start,
    cuda_wait,
    cuda_update_stream,
    cuda_update_start,
    cuda_scan_start,
    cuda_scan_end,
    cuda_accumulate_start,
    cuda_zero_start,
    cuda_copies_start,
    cuda_reserve_alias,
    cuda_map_alias,
    cuda_release_alias,
    cuda_shares_host,
    cuda_forget_stream,
    cuda_why,
    cuda_next_failure,
    nullptr,
    cuda_check_memory,
};

constexpr stw_driver_module kModule = {
    sizeof(stw_driver_module), STW_DRIVER_ABI, nullptr, &kOps, nullptr,
};

}  // namespace

}  // namespace stepwell::drivers::cuda

const stw_driver_module *stw_driver_module_get(void)
{
    return &stepwell::drivers::cuda::kModule;
}
