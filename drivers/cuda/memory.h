// SPDX-License-Identifier: Apache-2.0
// Memory of one GPU: an arena of blocks, its copies, and their order with the work of streams.
#pragma once

#include <stepwell/driver.h>

#include "drivers/cuda/alias_ranges.h"
#include "drivers/cuda/copies.h"
#include "drivers/cuda/updates.h"

#include <memory>

namespace stepwell::drivers::cuda {

class DeviceMemory {
public:
    static stw_status open(const stw_memory_options &options,
                           std::unique_ptr<DeviceMemory> *memory_out, stw_driver_error *error_out);
    // For the arena that open would make with these options.
    static stw_status shares_host(const stw_memory_options &options, uint32_t *shares_out);
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory &) = delete;
    DeviceMemory &operator=(const DeviceMemory &) = delete;

    void info(stw_memory_info *info_out) const;
    stw_status copy(void *destination, const void *source, uint64_t bytes);
    stw_status copy_start(void *destination, const void *source, uint64_t bytes,
                          uint64_t *mark_out);
    stw_status copies_start(const stw_memory_copy *copies, uint32_t n, uint64_t *mark_out);
    stw_status wait(uint64_t mark);
    stw_status zero(void *destination, uint64_t bytes);
    stw_status check_stream(void *stream, stw_driver_error *error_out);
    stw_status mark(void *stream, uint64_t *mark_out);
    stw_status forget_stream(void *stream);
    const Library &library() const { return library_; }
    stw_status copies_after(uint64_t mark, uint32_t copies);
    stw_status stream_after(void *stream, uint64_t mark);
    stw_status pin_host(void *base, uint64_t bytes, stw_driver_error *error_out);
    void unpin_host(void *base);
    stw_status give_back(uint32_t first, uint32_t count);
    stw_status take_back(uint32_t first, uint32_t count, stw_driver_error *error_out);
    stw_status update_stream(void **stream_out, stw_driver_error *error_out);
    // `work` is of Updates, which is open.
    template <class Work> stw_status compute(Work &&work)
    {
        const Context::Scope scope(*context_);
        if (const int error = scope.error()) return library_.failed(error);
        return work(*updates_);
    }
    stw_status reserve_alias(uint64_t bytes, void **address_out);
    stw_status map_alias(uint32_t first, uint32_t count, void *address, const uint64_t *marks,
                         uint32_t n);
    stw_status release_alias(void *address, uint64_t bytes, const uint64_t *marks, uint32_t n);
    stw_status check_memory(const void *pointer, uint64_t bytes, stw_driver_error *error_out);

private:
    DeviceMemory() = default;
    // Whether it is memory of this device, in the arena or outside: calls the driver API.
    bool is_on_device(const void *pointer) const;
    bool is_here(const void *pointer) const
    {
        return arena_->contains(pointer) || aliases_->contains(pointer);
    }
    stw_status take(const stw_memory_options &options, stw_driver_error *error_out);
    stw_status take_arena(const stw_memory_options &options, stw_driver_error *error_out);

    Library library_;
    std::unique_ptr<Context> context_;
    std::unique_ptr<Marks> marks_;
    std::unique_ptr<Copies> copies_;
    std::unique_ptr<Updates> updates_;
    std::unique_ptr<Arena> arena_;
    std::unique_ptr<AliasRanges> aliases_;
    int ordinal_ = 0;
};

}  // namespace stepwell::drivers::cuda
