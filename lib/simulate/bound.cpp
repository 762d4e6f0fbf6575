// SPDX-License-Identifier: Apache-2.0
// The bound of a step in steady state: for each resource the bytes that it must carry, by what is
// alive at two moments of a step and has no room nearer. When the forward pass ends, all updates
// have: states, parameters and checkpoints are needed again. When the backward pass ends, states
// and gradients are, unless updates begin before the last gradient.
#include "lib/simulate/simulate.h"

#include <algorithm>

namespace stepwell::simulate {
namespace {

double over(uint64_t bytes, uint64_t room)
{
    return static_cast<double>(bytes - std::min(bytes, room));
}

// Of one rank; `near` are those that may not go to nvme.
struct Alive {
    uint64_t bytes = 0;
    uint64_t near = 0;
};

struct Tensors {
    Alive parameters, gradients, states, checkpoints;
};

// Of tiles that are updated at the place; kSimulatedPlaces: of all, with checkpoints, and with what
// is frozen if `frozen`.
Tensors updated_at(const Layout &layout, PlaceId place, bool frozen = false)
{
    Tensors all;
    const auto add = [&layout](TensorId tensor, Alive *alive) {
        if (tensor == residency::kNone) return;
        const residency::TensorSpec &spec = layout.specs[tensor];
        alive->bytes += spec.bytes;
        if (spec.policy.home != kNvmePlace) alive->near += spec.bytes;
    };
    for (const Tile &tile : layout.tiles) {
        if (place != kSimulatedPlaces && tile.update_at != place) continue;
        if (tile.frozen && !frozen) continue;
        add(tile.parameter, &all.parameters);
        add(tile.gradient, &all.gradients);
        add(tile.state, &all.states);
    }
    if (place == kSimulatedPlaces)
        for (const TensorId kept : layout.checkpoints) add(kept, &all.checkpoints);
    return all;
}

// Each way. A state or gradient on nvme at the end of the backward pass was written there since it
// changed, and is read by its update; a parameter or checkpoint at the end of the forward pass was
// written as well, and is read by the backward pass.
double nvme_bytes(const Tensors &all, uint64_t room, bool in_backward)
{
    const uint64_t used = all.parameters.bytes + all.checkpoints.bytes;
    const uint64_t updated = all.states.bytes + all.gradients.bytes;
    const double forward = over(all.states.bytes + used, room);
    if (in_backward) return forward;
    return std::max(forward,
                    over(updated + all.parameters.near, room) + over(used + all.states.near, room));
}

void count_bytes(const Layout &layout, bool in_backward, Bound *bound)
{
    const auto bytes_of = [bound](Route route) -> double & {
        return bound->bytes[static_cast<size_t>(route)];
    };
    const Tensors all = updated_at(layout, kSimulatedPlaces, true);
    const uint64_t gathered = layout.gather_ranks > 1 ? layout.whole_bytes : 0;
    const uint64_t device = layout.budgets.device_bytes - layout.working_bytes - gathered;
    const uint64_t room = device + layout.budgets.host_bytes;
    bytes_of(Route::kNvmeToHost) = nvme_bytes(all, room, in_backward);
    bytes_of(Route::kHostToNvme) =
        nvme_bytes(updated_at(layout, kSimulatedPlaces), room, in_backward);
    // Parameters come from their update on the host, and what the device does not keep for the
    // backward pass and for updates comes once more; of a gathered tensor that is still there no
    // slice is needed.
    const Tensors here = updated_at(layout, kDevicePlace);
    const Tensors host = updated_at(layout, kHostPlace);
    const double late = in_backward ? 0 : over(here.states.bytes + here.gradients.bytes, device);
    const uint64_t used = all.parameters.bytes + all.checkpoints.bytes + here.states.bytes;
    const uint64_t changed = here.parameters.bytes + here.states.bytes + all.checkpoints.bytes;
    bytes_of(Route::kHostToDevice) =
        static_cast<double>(host.parameters.bytes) +
        std::max(over(used, device + gathered / layout.gather_ranks), late);
    bytes_of(Route::kDeviceToHost) =
        static_cast<double>(host.gradients.bytes) + std::max(over(changed, device), late);
}

// Gathers for the forward pass, and for the backward pass what is not kept; and sums.
double collective_seconds(const Layout &layout, const Model &model, const Machine &machine)
{
    if (layout.gather_ranks == 1) return 0;
    const auto takes = [&](uint64_t bytes) {
        return collective_ns(machine, layout, model.model_parallel, bytes);
    };
    uint64_t ns = 0;
    uint64_t whole_bytes = 0;
    for (const Tile &tile : layout.tiles) {
        ns += takes(tile.whole_bytes);
        if (!tile.frozen) ns += takes(tile.gradient_whole_bytes);
        whole_bytes += tile.whole_bytes;
    }
    const uint64_t again = whole_bytes - std::min(whole_bytes, layout.whole_bytes);
    return static_cast<double>(again == 0 ? ns : ns + takes(again)) / kNsPerSecond;
}

}  // namespace

Bound bound_of(const Layout &layout, const Model &model, const Machine &machine)
{
    Bound bound;
    bound.seconds = model.step_flops() / machine.achieved_flops_per_s;
    bound.what = "computation";
    const bool in_backward =
        model.update == Update::kBackward || model.update == Update::kSpeculative;
    count_bytes(layout, in_backward, &bound);
    const auto consider = [&bound](double seconds, const std::string &what) {
        if (seconds <= bound.seconds) return;
        bound.seconds = seconds;
        bound.what = what;
    };
    const uint32_t in_node = std::min(layout.ranks, machine.gpus_per_node);
    for (const Link &link : machine.links) {
        double all = 0;
        for (uint32_t route = 0; route < kRoutes; ++route)
            if ((link.routes >> route & 1) != 0) all += bound.bytes[route] * machine.share_of(link);
        const uint32_t sharers = std::min(machine.sharers(link.per), in_node);
        consider(all * sharers / (link.bytes_per_s * link.stripes), link.name);
    }
    consider(collective_seconds(layout, model, machine), "collectives");
    double updates[kSimulatedPlaces] = {};
    for (const Tile &tile : layout.tiles)
        updates[tile.update_at] += static_cast<double>(tile.update_bytes);
    consider(updates[kDevicePlace] / machine.device_bytes_per_s, "update");
    consider(updates[kHostPlace] * in_node / machine.host_bytes_per_s, "update");
    double memory = updates[kHostPlace];
    for (const double bytes : bound.bytes) memory += bytes;
    if (machine.shares_host_memory)
        consider(memory * in_node / machine.host_bytes_per_s, "host memory");
    return bound;
}

}  // namespace stepwell::simulate
