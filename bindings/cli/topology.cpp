// SPDX-License-Identifier: Apache-2.0
#include "topology.h"

#include "text.h"

#include <hwloc.h>

namespace stepwell::cli {

namespace {

// Loaded once and kept to the end of the process: with the last topology hwloc unloads its plugins,
// and the library of one of them (PCI) then loses its memory. nullptr: there is none.
hwloc_topology_t topology_of_process()
{
    static hwloc_topology_t topology = nullptr;
    if (topology != nullptr) return topology;
    hwloc_topology_t loaded = nullptr;
    if (hwloc_topology_init(&loaded) != 0) return nullptr;
    hwloc_topology_set_io_types_filter(loaded, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(loaded) == 0) return topology = loaded;
    hwloc_topology_destroy(loaded);
    return nullptr;
}

std::string info_of(hwloc_obj_t object, const char *key)
{
    const char *text = hwloc_obj_get_info_by_name(object, key);
    return text != nullptr ? printable(trimmed(text)) : "";
}

void append_word(std::string *text, const std::string &word)
{
    if (word.empty()) return;
    if (!text->empty()) *text += " ";
    *text += word;
}

const char *device_type(hwloc_obj_osdev_type_t type)
{
    switch (type) {
    case HWLOC_OBJ_OSDEV_BLOCK: return "block_device";
    case HWLOC_OBJ_OSDEV_GPU: return "gpu";
    case HWLOC_OBJ_OSDEV_NETWORK: return "network";
    case HWLOC_OBJ_OSDEV_OPENFABRICS: return "openfabrics";
    case HWLOC_OBJ_OSDEV_DMA: return "dma";
    case HWLOC_OBJ_OSDEV_COPROC: return "coprocessor";
    }
    return "device";
}

uint64_t count_below(hwloc_topology_t topology, hwloc_obj_t object, hwloc_obj_type_t type)
{
    if (object->cpuset == nullptr) return 0;
    const int count = hwloc_get_nbobjs_inside_cpuset_by_type(topology, object->cpuset, type);
    return count > 0 ? static_cast<uint64_t>(count) : 0;
}

uint64_t cache_below(hwloc_topology_t topology, hwloc_obj_t object)
{
    for (const hwloc_obj_type_t level : {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
        uint64_t bytes = 0;
        hwloc_obj_t cache = nullptr;
        while ((cache = hwloc_get_next_obj_inside_cpuset_by_type(topology, object->cpuset, level,
                                                                 cache)) != nullptr)
            bytes += cache->attr->cache.size;
        if (bytes > 0) return bytes;
    }
    return 0;
}

void name_pci_device(hwloc_obj_t object, TopologyNode *node)
{
    const auto &pci = object->attr->pcidev;
    char text[64];
    std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", static_cast<unsigned>(pci.domain),
                  static_cast<unsigned>(pci.bus), static_cast<unsigned>(pci.dev),
                  static_cast<unsigned>(pci.func));
    node->type = "pci_device";
    node->name = text;
    append_word(&node->name, info_of(object, "PCIVendor"));
    const std::string device = info_of(object, "PCIDevice");
    std::snprintf(text, sizeof text, "[%04x:%04x]", static_cast<unsigned>(pci.vendor_id),
                  static_cast<unsigned>(pci.device_id));
    append_word(&node->name, device.empty() ? text : device);
}

// False for what is not shown itself: bridges, caches, cores. What is below them may be.
bool describe(hwloc_topology_t topology, hwloc_obj_t object, TopologyNode *node)
{
    const std::string number = object->os_index != HWLOC_UNKNOWN_INDEX
                                   ? std::to_string(object->os_index)
                                   : std::to_string(object->logical_index);
    switch (object->type) {
    case HWLOC_OBJ_MACHINE:
    case HWLOC_OBJ_PACKAGE:
        node->type = object->type == HWLOC_OBJ_MACHINE ? "machine" : "package";
        node->name = object->type == HWLOC_OBJ_MACHINE ? "" : number;
        append_word(&node->name, info_of(object, "CPUModel"));
        node->cores = count_below(topology, object, HWLOC_OBJ_CORE);
        node->threads = count_below(topology, object, HWLOC_OBJ_PU);
        node->cache_bytes = cache_below(topology, object);
        return true;
    case HWLOC_OBJ_GROUP:
        node->type = "group";
        node->name = number;
        return true;
    case HWLOC_OBJ_NUMANODE:
        node->type = "numa_node";
        node->name = number;
        node->memory_bytes = object->attr->numanode.local_memory;
        return true;
    case HWLOC_OBJ_PCI_DEVICE: name_pci_device(object, node); return true;
    case HWLOC_OBJ_OS_DEVICE:
        node->type = device_type(object->attr->osdev.type);
        node->name = object->name != nullptr ? printable(object->name) : "";
        append_word(&node->name, info_of(object, "Model"));
        append_word(&node->name, info_of(object, "GPUModel"));
        return true;
    default: return false;
    }
}

// Memory hangs beside the processors and devices behind both, each list with a first child of its
// own.
void add_below(hwloc_topology_t topology, hwloc_obj_t object, TopologyNode *parent)
{
    for (hwloc_obj_t first :
         {object->memory_first_child, object->first_child, object->io_first_child}) {
        for (hwloc_obj_t child = first; child != nullptr; child = child->next_sibling) {
            TopologyNode node;
            if (!describe(topology, child, &node)) {
                add_below(topology, child, parent);
                continue;
            }
            add_below(topology, child, &node);
            parent->children.push_back(std::move(node));
        }
    }
}

}  // namespace

TopologyNode read_topology()
{
    TopologyNode machine;
    machine.type = "machine";
    const hwloc_topology_t topology = topology_of_process();
    if (topology == nullptr) return machine;
    const hwloc_obj_t root = hwloc_get_root_obj(topology);
    describe(topology, root, &machine);
    add_below(topology, root, &machine);
    return machine;
}

}  // namespace stepwell::cli
