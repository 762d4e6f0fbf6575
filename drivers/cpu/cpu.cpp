// SPDX-License-Identifier: Apache-2.0
// A device tier in host memory. Its pages are never locked: moving locked pages unlocks their
// neighbours.
#include "drivers/cpu/cpu.h"

#include "drivers/common/arena.h"
#include "drivers/common/edge.h"
#include "drivers/common/memory_entry.h"
#include "drivers/common/system.h"
#include "drivers/cpu/block_map.h"

#include <cerrno>
#include <cinttypes>
#include <memory>

namespace stepwell::drivers {

namespace {

constexpr uint64_t kMapCountDefault = 65530;

struct CpuMemory : ArenaMemory {
    static constexpr const char *kName = "cpu";
    static constexpr bool kMayPopulate = true;

    std::unique_ptr<BlockMap> map;

    stw_status open(const stw_memory_options &options, stw_driver_error *error_out);
};

struct CpuDiscreteMemory : ArenaMemory {
    static constexpr const char *kName = "cpu-discrete";

    stw_status open(const stw_memory_options &options, stw_driver_error *error_out);
};

// Half of vm.max_map_count is left to the program: libraries, threads and its allocator map too.
stw_status check_mappings(uint64_t blocks, uint64_t address_blocks, stw_driver_error *error_out)
{
    const uint64_t most = read_number("/proc/sys/vm/max_map_count").value_or(kMapCountDefault);
    const uint64_t now = count_mappings();
    const uint64_t needed = BlockMap::mappings_max(blocks, address_blocks);
    if (needed + now <= most / 2) return STW_OK;
    return fail(error_out, STW_ERROR_LIMIT, {},
                "The cpu memory of %" PRIu64 " blocks at %" PRIu64 " addresses may need %" PRIu64
                " mappings, the process has %" PRIu64 ", and half of vm.max_map_count is %" PRIu64
                "; use larger blocks, a smaller budget, or 'sysctl vm.max_map_count=%" PRIu64 "'.",
                blocks, address_blocks, needed, now, most / 2, 2 * (needed + now + 1024));
}

stw_status open_map(const stw_memory_options &options, CpuMemory *memory,
                    stw_driver_error *error_out)
{
    const uint64_t block = options.block_bytes;
    const uint64_t places = options.address_bytes / block + (options.address_bytes % block != 0);
    if (const stw_status status = check_mappings(options.bytes / block, places, error_out))
        return status;
    Mapping addresses;
    if (places > 0 &&
        !addresses.map(places * block, arena_alignment(options), PROT_NONE, MAP_NORESERVE))
        return refuse_addresses(STW_ERROR_LIMIT, places * block + arena_alignment(options),
                                "tensors", error_out);
    // A program that locks all its future pages would have locked these too.
    munlock(memory->arena.mapping.base(), memory->arena.mapping.bytes());
    if (places > 0) munlock(addresses.base(), addresses.bytes());
    memory->map = std::make_unique<BlockMap>(memory->arena.mapping, std::move(addresses),
                                             options.block_bytes, &memory->moved_bytes);
    if (memory->map->valid()) return STW_OK;
    return fail(error_out, STW_ERROR_MEMORY, {ENOMEM, places * sizeof(uint32_t), 0},
                "The table of the cpu memory's addresses found no memory.");
}

stw_status check_addresses(const stw_memory_options &options, stw_driver_error *error_out)
{
    constexpr uint64_t kAddressesMax = uint64_t{1} << 47;
    if (options.address_bytes <= kAddressesMax) return STW_OK;
    return fail(error_out, STW_ERROR_LIMIT, {0, options.address_bytes, kAddressesMax},
                "%s of addresses are more than a process has.",
                bytes_text(options.address_bytes).c_str());
}

stw_status CpuMemory::open(const stw_memory_options &options, stw_driver_error *error_out)
{
    if (const stw_status status = check_addresses(options, error_out)) return status;
    // A huge page that holds several blocks would be split at the first move.
    const bool huge = options.block_bytes >= kHugePageBytes;
    if (const stw_status status = reserve_arena(kName, options, huge, &arena, error_out))
        return status;
    if (const stw_status status = open_map(options, this, error_out)) return status;
    return settle(kName, error_out);
}

stw_status CpuDiscreteMemory::open(const stw_memory_options &options, stw_driver_error *error_out)
{
    if (const stw_status status = check_addresses(options, error_out)) return status;
    if (const stw_status status = reserve_arena(kName, options, true, &arena, error_out))
        return status;
    return settle(kName, error_out);
}

BlockMap &map_of(stw_memory *memory)
{
    return *MemoryEntry<CpuMemory>::from(memory)->map;
}

stw_status cpu_reserve_address(stw_memory *memory, uint64_t bytes, void **address_out)
try {
    return map_of(memory).reserve_address(bytes, address_out);
} catch (const std::bad_alloc &) {
    return STW_ERROR_MEMORY;
}

stw_status cpu_release_address(stw_memory *memory, void *address, uint64_t bytes)
{
    return map_of(memory).release_address(address, bytes);
}

stw_status cpu_map(stw_memory *memory, uint32_t block, void *address)
{
    return map_of(memory).map(block, address, true);
}

stw_status cpu_map_as(stw_memory *memory, uint32_t block, void *address, uint32_t writable)
{
    return map_of(memory).map(block, address, writable != 0);
}

stw_status cpu_home(stw_memory *memory, uint32_t block)
{
    return map_of(memory).home(block);
}

stw_status cpu_give_back(stw_memory *memory, uint32_t first_block, uint32_t count)
{
    for (uint32_t i = 0; i < count; ++i) {
        const stw_status status = map_of(memory).home(first_block + i);
        if (status != STW_OK) return status;
    }
    return MemoryEntry<CpuMemory>::from(memory)->give_back(first_block, count);
}

constexpr stw_memory_ops cpu_table()
{
    stw_memory_ops ops = MemoryEntry<CpuMemory>::table(STW_MEMORY_HOST_ACCESS | STW_MEMORY_CAN_MAP |
                                                       STW_MEMORY_CAN_PROTECT);
    ops.reserve_address = cpu_reserve_address;
    ops.release_address = cpu_release_address;
    ops.map = cpu_map;
    ops.home = cpu_home;
    ops.give_back = cpu_give_back;
    ops.map_as = cpu_map_as;
    return ops;
}

}  // namespace

constinit const stw_memory_ops kCpuMemory = cpu_table();

constinit const stw_memory_ops kCpuDiscreteMemory = MemoryEntry<CpuDiscreteMemory>::table(0);

}  // namespace stepwell::drivers
