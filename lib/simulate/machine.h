// SPDX-License-Identifier: Apache-2.0
// The machine to train on, as data: nodes, their tiers, links and the sharers of links. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::simulate {

constexpr double kNsPerSecond = 1e9;

// A path between two tiers; a link may carry several, like a drive that reads and writes.
enum class Route : uint8_t { kNvmeToHost, kHostToNvme, kHostToDevice, kDeviceToHost };
constexpr uint32_t kRoutes = 4;

[[nodiscard]] constexpr uint32_t route_bit(Route route)
{
    return 1u << static_cast<uint32_t>(route);
}

// What has a link of its own; the bandwidth is divided among the GPUs that use it at the time.
enum class Per : uint8_t { kGpu, kSwitch, kSocket, kNode };

struct Link {
    std::string name;
    uint32_t routes = 0;     // a bit for each Route
    double bytes_per_s = 0;  // of a stripe
    uint32_t stripes = 1;
    uint64_t latency_ns = 0;
    Per per = Per::kGpu;
    uint32_t path = 0;  // of storage, counted from 1: its blocks pass the link; 0: those of all
};

// Each rank sends its slice and receives those of the others: within the node over the GPUs' own
// links, between nodes over the sum of a node's links.
struct Collectives {
    double in_node_bytes_per_s = 0;       // of a GPU
    double across_nodes_bytes_per_s = 0;  // of a node; 0: there is only one
    uint64_t latency_ns = 0;              // of each collective
};

struct Machine {
    std::string name;
    uint32_t nodes = 1;
    uint32_t gpus_per_node = 1;
    uint32_t gpus_per_switch = 1;
    uint32_t gpus_per_socket = 1;
    uint64_t device_bytes = 0;  // of a GPU
    double device_bytes_per_s = 0;
    double peak_flops_per_s = 0;      // by its maker
    double achieved_flops_per_s = 0;  // reached with large matrices
    uint64_t host_bytes = 0;          // of a node
    double host_bytes_per_s = 0;      // of a node, reached by an update of states in host memory
    // An update, nvme and the GPUs of a node divide this rate among them; else only updates do.
    bool shares_host_memory = false;
    uint64_t nvme_bytes = 0;  // of a node; 0: none
    std::vector<Link> links;
    std::vector<double> path_shares;  // of the blocks on nvme, by path; empty: one path
    Collectives collectives;

    [[nodiscard]] uint32_t gpus() const { return nodes * gpus_per_node; }
    // The share of a route's bytes that passes the link.
    [[nodiscard]] double share_of(const Link &link) const
    {
        return link.path == 0 ? 1 : path_shares[link.path - 1];
    }
    // Of a GPU, while all of them use it. Of two links in a row the slower counts, and of storage
    // paths the one that has the most blocks for its speed. 0: there is no such route.
    [[nodiscard]] double bytes_per_s(Route route) const
    {
        double slowest = 0;
        for (const Link &link : links) {
            if ((link.routes & route_bit(route)) == 0) continue;
            const double rate =
                link.bytes_per_s * link.stripes / sharers(link.per) / share_of(link);
            slowest = slowest == 0 || rate < slowest ? rate : slowest;
        }
        return slowest;
    }
    // The number of GPUs that share one.
    [[nodiscard]] uint32_t sharers(Per per) const
    {
        switch (per) {
        case Per::kGpu: return 1;
        case Per::kSwitch: return gpus_per_switch;
        case Per::kSocket: return gpus_per_socket;
        case Per::kNode: return gpus_per_node;
        }
        return 1;
    }
};

}  // namespace stepwell::simulate
