// SPDX-License-Identifier: Apache-2.0
// The machine as a tree: packages, NUMA nodes, and the devices that hwloc sees. Cores and caches
// are counted at the package that has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::cli {

struct TopologyNode {
    std::string
        type;  // "machine", "group", "package", "numa_node", "pci_device", "block_device"...
    std::string name;
    uint64_t cores = 0;  // machine and package
    uint64_t threads = 0;
    uint64_t cache_bytes = 0;   // package: the last level, all of it
    uint64_t memory_bytes = 0;  // numa_node
    std::vector<TopologyNode> children;
};

// A machine without children where hwloc cannot tell.
TopologyNode read_topology();

}  // namespace stepwell::cli
