// SPDX-License-Identifier: Apache-2.0
// The table of a memory driver that is one arena of host memory. The CPU makes copies and zeros;
// the driver defines what an open does after the checks.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/arena.h"
#include "drivers/common/edge.h"
#include "drivers/common/memory_options.h"

#include <cstring>
#include <memory>

namespace stepwell::drivers {

// Memory is an ArenaMemory with kName and `open(options, error_out)`, and kMayPopulate where the
// program decides whether that populates. The table has no mappings: a
// driver that can map adds its four operations, and sends blocks home before they are given back.
template <class Memory> class MemoryEntry {
public:
    static constexpr stw_memory_ops table(uint64_t capabilities)
    {
        return {sizeof(stw_memory_ops),
                STW_DRIVER_ABI,
                Memory::kName,
                capabilities | STW_MEMORY_CAN_SHRINK,
                open,
                info,
                copy,
                zero,
                close,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                give_back,
                take_back,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr};
    }
    static Memory *from(stw_memory *memory) { return reinterpret_cast<Memory *>(memory); }

private:
    static stw_status open(const stw_services *, const stw_memory_options *options,
                           stw_memory **memory_out, stw_driver_error *error_out)
    {
        bool populates = false;
        constexpr bool kAsked = requires
        {
            Memory::kMayPopulate;
        };
        if (const stw_status status = check_memory_options(
                Memory::kName, options, kAsked ? &populates : nullptr, error_out))
            return status;
        return open_handle<Memory>(memory_out, error_out, [&](std::unique_ptr<Memory> *made) {
            *made = std::make_unique<Memory>();
            (*made)->block_bytes = options->block_bytes;
            if (kAsked) (*made)->populates = populates;
            return (*made)->open(*options, error_out);
        });
    }
    static void info(stw_memory *memory, stw_memory_info *info_out)
    {
        from(memory)->info(info_out);
    }
    static stw_status copy(stw_memory *, void *destination, const void *source, uint64_t bytes)
    {
        if (bytes > 0) std::memmove(destination, source, bytes);
        return STW_OK;
    }
    static stw_status zero(stw_memory *, void *destination, uint64_t bytes)
    {
        if (bytes > 0) std::memset(destination, 0, bytes);
        return STW_OK;
    }
    static stw_status close(stw_memory *memory)
    {
        delete from(memory);
        return STW_OK;
    }
    static stw_status give_back(stw_memory *memory, uint32_t first_block, uint32_t count)
    {
        return from(memory)->give_back(first_block, count);
    }
    static stw_status take_back(stw_memory *memory, uint32_t first_block, uint32_t count,
                                stw_driver_error *error_out)
    try {
        return from(memory)->take_back(Memory::kName, first_block, count, error_out);
    } catch (const std::bad_alloc &) {
        return fail(error_out, STW_ERROR_MEMORY, {}, "The driver's own tables found no memory.");
    }
};

}  // namespace stepwell::drivers
