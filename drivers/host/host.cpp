// SPDX-License-Identifier: Apache-2.0
// One range of host memory: huge pages, bound near the device or the thread that opens it, and
// locked and populated if allowed. Nothing in it moves.
#include "drivers/host/host.h"

#include "drivers/common/arena.h"
#include "drivers/common/edge.h"
#include "drivers/common/memory_entry.h"

#include <cerrno>
#include <cinttypes>
#include <memory>

#include <hwloc.h>
#include <sys/resource.h>

namespace stepwell::drivers {

namespace {

class Topology {
public:
    // Nodes, processors, and the groups that nodes belong to: caches and devices would cost time
    // and memory and are not read, but without its group a node appears to be near every processor.
    bool load()
    {
        if (hwloc_topology_init(&topology_) != 0) return false;
        loaded_ = true;
        hwloc_topology_set_all_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_NONE);
        hwloc_topology_set_type_filter(topology_, HWLOC_OBJ_GROUP,
                                       HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
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

struct HostMemory : ArenaMemory {
    static constexpr const char *kName = "host";

    stw_status open(const stw_memory_options &options, stw_driver_error *error_out);
};

// The nodes of the calling thread, if this machine does not have the requested one.
bool nodes_near(hwloc_topology_t topology, uint32_t near_node, hwloc_bitmap_t nodes_out)
{
    const bool there =
        near_node > 0 && hwloc_get_numanode_obj_by_os_index(topology, near_node - 1) != nullptr;
    if (there) return hwloc_bitmap_only(nodes_out, near_node - 1) == 0;
    const Bitmap cpus(hwloc_bitmap_alloc());
    return cpus != nullptr &&
           hwloc_get_last_cpu_location(topology, cpus.get(), HWLOC_CPUBIND_THREAD) == 0 &&
           hwloc_cpuset_to_nodeset(topology, cpus.get(), nodes_out) == 0;
}

// Before any page exists. Only a preference: with a strict binding the kernel kills the process if
// that node is full, even if others are not.
void bind_to_node(HostMemory *memory, uint32_t near_node)
{
    Topology topology;
    if (!topology.load()) return;
    if (hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE) < 2) return;
    const Bitmap nodes(hwloc_bitmap_alloc());
    if (!nodes) return;
    const Mapping &mapping = memory->arena.mapping;
    if (!nodes_near(topology.get(), near_node, nodes.get()) ||
        hwloc_set_area_membind(topology.get(), mapping.base(), mapping.bytes(), nodes.get(),
                               HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) != 0) {
        add_sentence(&memory->arena.remark, "Binding to a NUMA node was refused.");
        return;
    }
    memory->numa_node = hwloc_bitmap_first(nodes.get());
}

// Locks the memory if allowed, which populates it; otherwise pages are allocated as they are used.
// mlock2 and not mlock: sanitizers turn the latter into nothing.
void lock_pages(HostMemory *memory)
{
    const Mapping &mapping = memory->arena.mapping;
    memory->locked = mlock2(mapping.base(), mapping.bytes(), MLOCK_ONFAULT) == 0;
    memory->populates = memory->locked;
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

stw_status HostMemory::open(const stw_memory_options &options, stw_driver_error *error_out)
{
    if (const stw_status status = reserve_arena(kName, options, true, &arena, error_out))
        return status;
    bind_to_node(this, options.near_node);
    lock_pages(this);
    return settle(kName, error_out);
}

}  // namespace

constinit const stw_memory_ops kHostMemory = MemoryEntry<HostMemory>::table(STW_MEMORY_HOST_ACCESS);

}  // namespace stepwell::drivers
