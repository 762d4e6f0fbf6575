// SPDX-License-Identifier: Apache-2.0
// One range of host memory: huge pages, bound near the thread that opens it, touched, and locked
// where that is allowed. Nothing in it moves.
#include "drivers/host/host.h"

#include "drivers/common/arena.h"
#include "drivers/common/edge.h"
#include "drivers/common/system.h"

#include <cerrno>
#include <cinttypes>
#include <memory>

#include <hwloc.h>
#include <sys/resource.h>

namespace stepwell::drivers {

namespace {

class Topology {
public:
    // Nodes and processors only: caches and devices cost time and memory that nobody reads.
    bool load()
    {
        if (hwloc_topology_init(&topology_) != 0) return false;
        loaded_ = true;
        hwloc_topology_set_all_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_NONE);
        return hwloc_topology_load(topology_) == 0;
    }
    ~Topology()
    {
        if (loaded_) hwloc_topology_destroy(topology_);
    }
    hwloc_topology_t get() const { return topology_; }

private:
    hwloc_topology_t topology_ = nullptr;
    bool loaded_ = false;
};

struct FreeBitmap {
    void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

struct HostMemory {
    Arena arena;
    int32_t numa_node = -1;
    bool locked = false;
};

// To the node of the calling thread, before any page exists. A preference and no more: with a
// strict binding the kernel kills when that node is full while others are not.
void bind_to_node(HostMemory *memory)
{
    Topology topology;
    if (!topology.load()) return;
    if (hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE) < 2) return;
    const Bitmap cpus(hwloc_bitmap_alloc());
    const Bitmap nodes(hwloc_bitmap_alloc());
    if (!cpus || !nodes) return;
    const Mapping &mapping = memory->arena.mapping;
    if (hwloc_get_last_cpu_location(topology.get(), cpus.get(), HWLOC_CPUBIND_THREAD) != 0 ||
        hwloc_cpuset_to_nodeset(topology.get(), cpus.get(), nodes.get()) != 0 ||
        hwloc_set_area_membind(topology.get(), mapping.base(), mapping.bytes(), nodes.get(),
                               HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) != 0) {
        add_sentence(&memory->arena.remark, "Binding to a NUMA node was refused.");
        return;
    }
    memory->numa_node = hwloc_bitmap_first(nodes.get());
}

// mlock2 and not mlock: sanitizers turn the latter into nothing.
void lock_pages(HostMemory *memory)
{
    const Mapping &mapping = memory->arena.mapping;
    memory->locked = mlock2(mapping.base(), mapping.bytes(), 0) == 0;
    if (memory->locked) return;
    const int cause = errno;
    munlock(mapping.base(), mapping.bytes());  // a part may be
    rlimit limit = {};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    char text[224];
    std::snprintf(text, sizeof text,
                  "Not locked: %" PRIu64 " KiB asked, RLIMIT_MEMLOCK is %" PRIu64
                  " KiB (errno %d); 'ulimit -l unlimited' or LimitMEMLOCK=infinity lifts it.",
                  mapping.bytes() / 1024, static_cast<uint64_t>(limit.rlim_cur) / 1024, cause);
    add_sentence(&memory->arena.remark, text);
}

stw_status open_host(const stw_memory_options &options, stw_memory **memory_out,
                     stw_driver_error *error_out)
{
    if (const stw_status status =
            check_memory_room(options.bytes, "host", memory_room(), error_out))
        return status;
    auto memory = std::make_unique<HostMemory>();
    const uint64_t alignment = std::max<uint64_t>(kHugePageBytes, options.block_bytes);
    if (const stw_status status =
            reserve_arena("host", options.bytes, alignment, true, &memory->arena, error_out))
        return status;
    bind_to_node(memory.get());
    if (const stw_status status = populate_arena("host", memory->arena, error_out)) return status;
    lock_pages(memory.get());
    *memory_out = reinterpret_cast<stw_memory *>(memory.release());
    return STW_OK;
}

HostMemory *from(stw_memory *memory)
{
    return reinterpret_cast<HostMemory *>(memory);
}

stw_status host_open(const stw_services *, const stw_memory_options *options,
                     stw_memory **memory_out, stw_driver_error *error_out)
{
    if (const stw_status status = check_memory_options("host", options, error_out)) return status;
    return guard_open(error_out, [&] { return open_host(*options, memory_out, error_out); });
}

void host_info(stw_memory *memory, stw_memory_info *info_out)
{
    const HostMemory *host = from(memory);
    stw_memory_info info = {};
    info.locked = host->locked;
    info.base = host->arena.mapping.base();
    info.bytes = host->arena.mapping.bytes();
    info.numa_node = host->numa_node;
    info.huge_pages = host->arena.huge_pages;
    copy_text(info.remark, sizeof info.remark, host->arena.remark);
    give_info(info, info_out);
}

stw_status host_copy(stw_memory *, void *destination, const void *source, uint64_t bytes)
{
    if (bytes > 0) std::memmove(destination, source, bytes);
    return STW_OK;
}

stw_status host_zero(stw_memory *, void *destination, uint64_t bytes)
{
    if (bytes > 0) std::memset(destination, 0, bytes);
    return STW_OK;
}

stw_status host_close(stw_memory *memory)
{
    delete from(memory);
    return STW_OK;
}

}  // namespace

const stw_memory_ops kHostMemory = {
    sizeof(stw_memory_ops),
    STW_DRIVER_ABI,
    "host",
    STW_MEMORY_HOST_ACCESS,
    host_open,
    host_info,
    host_copy,
    host_zero,
    host_close,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace stepwell::drivers
