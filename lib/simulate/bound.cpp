// SPDX-License-Identifier: Apache-2.0
// The bound of a step in steady state, whatever is kept where: what does not fit into all nearer
// tiers together is read from its own at least once, and written back there if it changes; one sum
// of gradients and one gather cannot be left out; parameters enter the device at least once.
#include "lib/simulate/simulate.h"

#include <algorithm>

namespace stepwell::simulate {
namespace {

struct Needed {
    double bytes[kRoutes] = {};  // of one rank
};

double over(uint64_t bytes, uint64_t room)
{
    return static_cast<double>(bytes - std::min(bytes, room));
}

Needed needed(const Layout &layout)
{
    uint64_t parameters = 0;
    uint64_t checkpoints = 0;
    uint64_t durable = 0;  // written in every step, and read in the next
    uint64_t at_host = 0;  // gradients that are updated there
    for (const Tile &tile : layout.tiles) {
        parameters += layout.specs[tile.parameter].bytes;
        durable += layout.specs[tile.parameter].bytes + layout.specs[tile.state].bytes;
        if (tile.update_at == kHostPlace) at_host += layout.specs[tile.gradient].bytes;
    }
    for (const TensorId kept : layout.checkpoints)
        if (kept != residency::kNone) checkpoints += layout.specs[kept].bytes;
    const Budgets &budgets = layout.budgets;
    const uint64_t device = budgets.device_bytes;
    Needed needed;
    const double far = over(durable, device + budgets.host_bytes);
    needed.bytes[static_cast<size_t>(Route::kNvmeToHost)] = far;
    needed.bytes[static_cast<size_t>(Route::kHostToNvme)] = far;
    const double in = std::max(over(parameters, device), over(checkpoints, device));
    needed.bytes[static_cast<size_t>(Route::kHostToDevice)] = in;
    needed.bytes[static_cast<size_t>(Route::kDeviceToHost)] =
        over(checkpoints, device) + static_cast<double>(at_host);
    return needed;
}

}  // namespace

Bound bound_of(const Layout &layout, const Model &model, const Machine &machine)
{
    Bound bound{model.step_flops() / machine.achieved_flops_per_s, "computation"};
    const auto consider = [&bound](double seconds, const std::string &what) {
        if (seconds > bound.seconds) bound = {seconds, what};
    };
    const Needed bytes = needed(layout);
    const uint32_t in_node = std::min(layout.ranks, machine.gpus_per_node);
    for (const Link &link : machine.links) {
        double all = 0;
        for (uint32_t route = 0; route < kRoutes; ++route)
            if ((link.routes >> route & 1) != 0) all += bytes.bytes[route];
        const uint32_t sharers = std::min(machine.sharers(link.per), in_node);
        consider(all * sharers / (link.bytes_per_s * link.stripes), link.name);
    }
    double collectives = 0;
    double updates = 0;
    for (const Tile &tile : layout.tiles) {
        if (layout.gather_ranks > 1)
            collectives +=
                static_cast<double>(collective_ns(machine, layout, model.model_parallel,
                                                  tile.whole_bytes + tile.gradient_whole_bytes)) /
                1e9;
        if (tile.update_at == kHostPlace) updates += static_cast<double>(tile.update_bytes);
    }
    consider(collectives, "collectives");
    consider(updates * in_node / machine.host_bytes_per_s, "update");
    return bound;
}

}  // namespace stepwell::simulate
