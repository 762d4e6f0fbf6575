// SPDX-License-Identifier: Apache-2.0
// A device tier in host memory. Its pages are never locked: moving locked pages unlocks their
// neighbours.
#include "drivers/cpu/cpu.h"

#include "drivers/common/arena.h"
#include "drivers/common/edge.h"
#include "drivers/common/system.h"
#include "drivers/cpu/block_map.h"

#include <cerrno>
#include <cinttypes>
#include <memory>

namespace stepwell::drivers {

namespace {

constexpr uint64_t kMapCountDefault = 65530;

struct CpuMemory {
    Arena arena;
    std::unique_ptr<BlockMap> map;  // null: discrete
};

// Half of vm.max_map_count is the program's: its libraries, threads and allocator map too.
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

stw_status open_map(const stw_memory_options &options, uint64_t alignment, CpuMemory *memory,
                    stw_driver_error *error_out)
{
    const uint64_t block = options.block_bytes;
    const uint64_t places = options.address_bytes / block + (options.address_bytes % block != 0);
    if (const stw_status status = check_mappings(options.bytes / block, places, error_out))
        return status;
    Mapping addresses;
    if (places > 0 && !addresses.map(places * block, alignment, PROT_NONE, MAP_NORESERVE))
        return fail(error_out, STW_ERROR_LIMIT, {errno, places * block, 0},
                    "The kernel refuses %s of addresses for tensors (ulimit -v).",
                    bytes_text(places * block).c_str());
    // A program that locks all its future pages would have locked these too.
    munlock(memory->arena.mapping.base(), memory->arena.mapping.bytes());
    if (places > 0) munlock(addresses.base(), addresses.bytes());
    memory->map = std::make_unique<BlockMap>(memory->arena.mapping, std::move(addresses),
                                             options.block_bytes);
    if (memory->map->valid()) return STW_OK;
    return fail(error_out, STW_ERROR_MEMORY, {ENOMEM, places * sizeof(uint32_t), 0},
                "The table of the cpu memory's addresses found no memory.");
}

stw_status open_cpu(const char *name, bool discrete, const stw_memory_options &options,
                    stw_memory **memory_out, stw_driver_error *error_out)
{
    if (options.address_bytes > (uint64_t{1} << 47))
        return fail(error_out, STW_ERROR_LIMIT, {0, options.address_bytes, uint64_t{1} << 47},
                    "%s of addresses are more than a process has.",
                    bytes_text(options.address_bytes).c_str());
    if (const stw_status status = check_memory_room(options.bytes, name, memory_room(), error_out))
        return status;
    auto memory = std::make_unique<CpuMemory>();
    const uint64_t alignment = std::max<uint64_t>(kHugePageBytes, options.block_bytes);
    // A huge page that holds several blocks would be split at the first move.
    const bool huge = discrete || options.block_bytes >= kHugePageBytes;
    if (const stw_status status =
            reserve_arena(name, options.bytes, alignment, huge, &memory->arena, error_out))
        return status;
    if (!discrete)
        if (const stw_status status = open_map(options, alignment, memory.get(), error_out))
            return status;
    if (const stw_status status = populate_arena(name, memory->arena, error_out)) return status;
    *memory_out = reinterpret_cast<stw_memory *>(memory.release());
    return STW_OK;
}

CpuMemory *from(stw_memory *memory)
{
    return reinterpret_cast<CpuMemory *>(memory);
}

stw_status cpu_open(const stw_services *, const stw_memory_options *options,
                    stw_memory **memory_out, stw_driver_error *error_out)
{
    if (const stw_status status = check_memory_options("cpu", options, error_out)) return status;
    return guard_open(error_out,
                      [&] { return open_cpu("cpu", false, *options, memory_out, error_out); });
}

stw_status cpu_discrete_open(const stw_services *, const stw_memory_options *options,
                             stw_memory **memory_out, stw_driver_error *error_out)
{
    if (const stw_status status = check_memory_options("cpu-discrete", options, error_out))
        return status;
    return guard_open(
        error_out, [&] { return open_cpu("cpu-discrete", true, *options, memory_out, error_out); });
}

void cpu_info(stw_memory *memory, stw_memory_info *info_out)
{
    const Arena &arena = from(memory)->arena;
    stw_memory_info info = {};
    info.base = arena.mapping.base();
    info.bytes = arena.mapping.bytes();
    info.numa_node = -1;
    info.huge_pages = arena.huge_pages;
    copy_text(info.remark, sizeof info.remark, arena.remark);
    give_info(info, info_out);
}

stw_status cpu_copy(stw_memory *, void *destination, const void *source, uint64_t bytes)
{
    if (bytes > 0) std::memmove(destination, source, bytes);
    return STW_OK;
}

stw_status cpu_zero(stw_memory *, void *destination, uint64_t bytes)
{
    if (bytes > 0) std::memset(destination, 0, bytes);
    return STW_OK;
}

stw_status cpu_close(stw_memory *memory)
{
    delete from(memory);
    return STW_OK;
}

stw_status cpu_reserve_address(stw_memory *memory, uint64_t bytes, void **address_out)
try {
    return from(memory)->map->reserve_address(bytes, address_out);
} catch (const std::bad_alloc &) {
    return STW_ERROR_MEMORY;
}

stw_status cpu_release_address(stw_memory *memory, void *address, uint64_t bytes)
{
    return from(memory)->map->release_address(address, bytes);
}

stw_status cpu_map(stw_memory *memory, uint32_t block, void *address)
{
    return from(memory)->map->map(block, address);
}

stw_status cpu_home(stw_memory *memory, uint32_t block)
{
    return from(memory)->map->home(block);
}

}  // namespace

const stw_memory_ops kCpuMemory = {
    sizeof(stw_memory_ops),
    STW_DRIVER_ABI,
    "cpu",
    STW_MEMORY_HOST_ACCESS | STW_MEMORY_CAN_MAP,
    cpu_open,
    cpu_info,
    cpu_copy,
    cpu_zero,
    cpu_close,
    cpu_reserve_address,
    cpu_release_address,
    cpu_map,
    cpu_home,
};

const stw_memory_ops kCpuDiscreteMemory = {
    sizeof(stw_memory_ops),
    STW_DRIVER_ABI,
    "cpu-discrete",
    0,
    cpu_discrete_open,
    cpu_info,
    cpu_copy,
    cpu_zero,
    cpu_close,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace stepwell::drivers
