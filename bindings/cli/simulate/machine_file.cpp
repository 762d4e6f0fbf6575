// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include "text.h"

#include <cmath>

namespace stepwell::cli {
namespace {

using simulate::Link;
using simulate::Machine;
using simulate::Per;
using simulate::Route;

constexpr uint64_t kNodesMax = 1'000'000;
constexpr uint64_t kGpusMax = 1024;
constexpr uint64_t kStripesMax = 1024;
constexpr uint64_t kPathsMax = 64;
constexpr double kBytesMin = 1e6;
constexpr double kBytesMax = 1e18;
constexpr double kRateMin = 1e3;
constexpr double kFlopsMin = 1e6;
constexpr double kFlopsMax = 1e21;
constexpr double kLatencyMax = 10;  // seconds

uint64_t latency_ns(Keys &keys)
{
    return rounded(1e9 * keys.quantity_or("latency", Unit::kSeconds, 0, kLatencyMax, 0));
}

Link read_link(Keys &keys)
{
    Link link;
    link.name = keys.word("name");
    const uint32_t routes[] = {
        route_bit(Route::kNvmeToHost),
        route_bit(Route::kHostToNvme),
        route_bit(Route::kNvmeToHost) | route_bit(Route::kHostToNvme),
        route_bit(Route::kHostToDevice),
        route_bit(Route::kDeviceToHost),
        route_bit(Route::kHostToDevice) | route_bit(Route::kDeviceToHost),
    };
    link.routes = routes[keys.choice("route", {"nvme>host", "host>nvme", "nvme<>host",
                                               "host>device", "device>host", "host<>device"})];
    link.bytes_per_s = keys.quantity("bandwidth", Unit::kBytesPerSecond, kRateMin, kRateMax);
    link.stripes = static_cast<uint32_t>(keys.whole_or("stripes", 1, kStripesMax, 1));
    link.latency_ns = latency_ns(keys);
    link.per = static_cast<Per>(keys.choice("per", {"gpu", "switch", "socket", "node"}));
    link.path = static_cast<uint32_t>(keys.whole_or("path", 1, kPathsMax, 0));
    const uint32_t of_nvme = route_bit(Route::kNvmeToHost) | route_bit(Route::kHostToNvme);
    if (link.path > 0 && (link.routes & of_nvme) == 0)
        keys.refuse("path", "is of nvme, and the route is not");
    keys.source();
    keys.done();
    return link;
}

void read_gpu(Keys keys, Machine *machine)
{
    machine->device_bytes = rounded(keys.quantity("memory", Unit::kBytes, kBytesMin, kBytesMax));
    machine->device_bytes_per_s =
        keys.quantity("memory_bandwidth", Unit::kBytesPerSecond, kRateMin, kRateMax);
    machine->peak_flops_per_s = keys.quantity("peak", Unit::kFlopsPerSecond, kFlopsMin, kFlopsMax);
    machine->achieved_flops_per_s =
        keys.quantity("achieved", Unit::kFlopsPerSecond, kFlopsMin, kFlopsMax);
    if (machine->achieved_flops_per_s > machine->peak_flops_per_s)
        keys.refuse("achieved", "is more than the peak");
    keys.source();
    keys.done();
}

void read_host(Keys keys, Machine *machine)
{
    machine->host_bytes = rounded(keys.quantity("memory", Unit::kBytes, kBytesMin, kBytesMax));
    machine->host_bytes_per_s =
        keys.quantity("update_bandwidth", Unit::kBytesPerSecond, kRateMin, kRateMax);
    machine->shares_host_memory = keys.boolean_or("shared_bandwidth", false);
    keys.source();
    keys.done();
}

void read_collectives(Keys keys, Machine *machine)
{
    simulate::Collectives &collectives = machine->collectives;
    collectives.in_node_bytes_per_s =
        keys.quantity_or("in_node_bandwidth_per_gpu", Unit::kBytesPerSecond, kRateMin, kRateMax, 0);
    collectives.across_nodes_bytes_per_s = keys.quantity_or(
        "across_nodes_bandwidth_per_node", Unit::kBytesPerSecond, kRateMin, kRateMax, 0);
    collectives.latency_ns = latency_ns(keys);
    if (machine->gpus_per_node > 1 && collectives.in_node_bytes_per_s == 0)
        keys.refuse("in_node_bandwidth_per_gpu", "is missing, and a node has several GPUs");
    if (machine->nodes > 1 && collectives.across_nodes_bytes_per_s == 0)
        keys.refuse("across_nodes_bandwidth_per_node", "is missing, and there are several nodes");
    keys.source();
    keys.done();
}

// How many GPUs share one of `key`, of which a node has so many.
uint32_t gpus_per(Keys &keys, const char *key, uint32_t gpus_per_node)
{
    const uint64_t count = keys.whole_or(key, 1, kGpusMax, 1);
    if (gpus_per_node % count != 0)
        keys.refuse(key, "does not divide the GPUs of a node, " + std::to_string(gpus_per_node) +
                             ", evenly");
    return gpus_per_node / static_cast<uint32_t>(count);
}

// As the runtime shares blocks: by the time that a path takes for reads and writes of one, or
// equally.
void share_paths(const Keys &keys, bool equally, Machine *machine)
{
    uint32_t paths = 0;
    for (const Link &link : machine->links) paths = std::max(paths, link.path);
    double sum = 0;
    for (uint32_t path = 1; path <= paths; ++path) {
        double time = 0;
        for (const Route route : {Route::kNvmeToHost, Route::kHostToNvme}) {
            double slowest = 0;
            for (const Link &link : machine->links)
                if (link.path == path && (link.routes & route_bit(route)) != 0)
                    slowest = std::max(slowest, machine->sharers(link.per) /
                                                    (link.bytes_per_s * link.stripes));
            if (slowest == 0)
                keys.refuse(
                    "links",
                    "have no " +
                        std::string(route == Route::kNvmeToHost ? "nvme>host" : "host>nvme") +
                        " of path " + std::to_string(path) + ", of " + std::to_string(paths));
            time += slowest;
        }
        machine->path_shares.push_back(equally ? 1 : 1 / time);
        sum += machine->path_shares.back();
    }
    for (double &share : machine->path_shares) share /= sum;
}

void check_routes(const Keys &keys, const Machine &machine)
{
    const char *names[] = {"nvme>host", "host>nvme", "host>device", "device>host"};
    uint32_t routes = 0;
    for (const Link &link : machine.links) routes |= link.routes;
    for (uint32_t route = 0; route < simulate::kRoutes; ++route) {
        const bool of_nvme = route < 2;
        const bool there = (routes >> route & 1) != 0;
        if (of_nvme && machine.nvme_bytes == 0) {
            if (there) keys.refuse("links", "go to a tier nvme that is not there");
            continue;
        }
        if (!there) keys.refuse("links", std::string("has none for ") + names[route]);
    }
}

}  // namespace

Machine parse_machine(const Located &root, const std::string &file)
{
    Keys keys(file, root, "");
    keys.choice("kind", {"stepwell machine"});
    keys.whole("format", 1, 1);
    Machine machine;
    machine.name = keys.word("name");
    machine.nodes = static_cast<uint32_t>(keys.whole_or("nodes", 1, kNodesMax, 1));
    machine.gpus_per_node = static_cast<uint32_t>(keys.whole_or("gpus_per_node", 1, kGpusMax, 1));
    machine.gpus_per_switch = gpus_per(keys, "switches_per_node", machine.gpus_per_node);
    machine.gpus_per_socket = gpus_per(keys, "sockets_per_node", machine.gpus_per_node);
    read_gpu(keys.object("gpu"), &machine);
    read_host(keys.object("host"), &machine);
    bool equally = false;
    if (keys.has("nvme")) {
        Keys nvme = keys.object("nvme");
        equally = nvme.has("shares") && nvme.choice("shares", {"by_bandwidth", "equal"}) == 1;
        machine.nvme_bytes = rounded(nvme.quantity("capacity", Unit::kBytes, kBytesMin, kBytesMax));
        nvme.source();
        nvme.done();
    }
    for (Keys &keys_of_link : keys.objects("links")) {
        const Link link = read_link(keys_of_link);
        for (const Link &other : machine.links)
            if (other.name == link.name)
                keys_of_link.refuse("name", "is '" + printable(link.name) +
                                                "', which another link is called");
        machine.links.push_back(link);
    }
    check_routes(keys, machine);
    share_paths(keys, equally, &machine);
    if (keys.has("collectives") || machine.gpus() > 1)
        read_collectives(keys.object("collectives"), &machine);
    keys.source();
    keys.done();
    return machine;
}

Machine read_machine(const std::string &file)
{
    return parse_machine(read_located(file), file);
}

}  // namespace stepwell::cli
