// SPDX-License-Identifier: Apache-2.0
// The forward pass takes the tiles in order; the backward pass takes the layers in reverse, each
// forward once more where it is computed again, then its tiles in reverse; updates go in the order
// of the next forward pass.
#include "lib/simulate/program.h"

#include <algorithm>
#include <cmath>

namespace stepwell::simulate {
namespace {

using residency::Access;
using residency::kNone;

constexpr double kNs = 1e9;

uint64_t ns(double seconds)
{
    return static_cast<uint64_t>(std::ceil(seconds * kNs));
}

class Writer {
public:
    Writer(const Layout &layout, const Model &model, const Machine &machine,
           const Schedule &schedule)
        : layout_(layout),
          model_(model),
          machine_(machine),
          schedule_(schedule),
          updated_(layout.tiles.size(), kNoOp),
          dropped_(layout.specs.size(), kNoOp),
          kept_(layout.layers, kNoOp)
    {
        ahead_ = schedule.overlap ? layout.tiles_ahead : 1;
    }

    Program write(uint32_t steps)
    {
        for (uint32_t step = 0; step < steps; ++step) {
            begin_step();
            forward();
            backward();
            update();
        }
        begin_step();
        program_.compute_ns = compute_ns_ / std::max(steps, 1u);
        return std::move(program_);
    }

private:
    enum class Pass : uint8_t { kForward, kAgain, kBackward };
    struct Ready {  // a tile's parameters are on the device
        OpId op = kNoOp;
        TensorId tensor = kNone;
    };

    OpId put(Op op);
    OpId fetch(LaneId lane, Cause cause, std::initializer_list<Use> uses,
               std::array<OpId, 3> after);
    OpId release(LaneId lane, std::initializer_list<Use> uses, bool far, bool discard);
    OpId run(LaneId lane, What what, Cause cause, uint64_t duration_ns, std::array<OpId, 3> after);
    void begin_step();
    void forward();
    void backward();
    void update();
    void forward_tile(uint32_t tile, Pass pass, OpId checkpoint);
    void backward_tile(uint32_t tile);
    Ready gather(const Tile &tile, Pass pass, OpId update);
    OpId earlier_computation() const;
    [[nodiscard]] bool gathers(const Tile &tile) const { return tile.gradient_whole != kNone; }
    [[nodiscard]] uint64_t compute_ns(const Tile &tile, double passes) const
    {
        return ns(passes * tile.forward_flops / machine_.achieved_flops_per_s);
    }

    const Layout &layout_;
    const Model &model_;
    const Machine &machine_;
    const Schedule &schedule_;
    Program program_;
    std::vector<OpId> computed_;  // by tile as they come: its computation is over
    std::vector<OpId> reduced_;
    std::vector<OpId> updated_;  // by tile: the last step's
    std::vector<OpId> dropped_;  // by tensor: what was gathered
    std::vector<OpId> kept_;     // by layer: its checkpoint is written
    uint64_t ahead_ = 1;         // tiles
    uint64_t compute_ns_ = 0;
    OpId began_ = kNoOp;
};

OpId Writer::put(Op op)
{
    const auto id = static_cast<OpId>(program_.ops.size());
    program_.lanes[static_cast<size_t>(op.lane)].push_back(id);
    program_.ops.push_back(op);
    return id;
}

OpId Writer::fetch(LaneId lane, Cause cause, std::initializer_list<Use> uses,
                   std::array<OpId, 3> after)
{
    Op op;
    op.what = What::kFetch;
    op.lane = lane;
    op.cause = cause;
    op.after = after;
    for (const Use &use : uses) op.uses[op.use_count++] = use;
    return put(op);
}

OpId Writer::release(LaneId lane, std::initializer_list<Use> uses, bool far, bool discard)
{
    Op op;
    op.what = What::kRelease;
    op.lane = lane;
    op.far = far;
    op.discard = discard;
    for (const Use &use : uses) op.uses[op.use_count++] = use;
    return put(op);
}

OpId Writer::run(LaneId lane, What what, Cause cause, uint64_t duration_ns,
                 std::array<OpId, 3> after)
{
    Op op;
    op.what = what;
    op.lane = lane;
    op.cause = cause;
    op.duration_ns = duration_ns;
    op.after = after;
    return put(op);
}

void Writer::begin_step()
{
    // An update that is exposed is over, and written, before anything of the next step begins.
    OpId last = kNoOp;
    if (schedule_.exposed_update && !updated_.empty() && updated_.back() != kNoOp)
        last = run(LaneId::kUpdate, What::kDrain, Cause::kUpdate, 0, {kNoOp, kNoOp, kNoOp});
    began_ = run(LaneId::kCompute, What::kStepBegins, Cause::kUpdate, 0, {last, kNoOp, kNoOp});
}

// So far ahead of the computation nothing is fetched, or it would crowd out what is needed now.
OpId Writer::earlier_computation() const
{
    if (computed_.size() < ahead_) return kNoOp;
    return computed_[computed_.size() - ahead_];
}

Writer::Ready Writer::gather(const Tile &tile, Pass pass, OpId update)
{
    const Use slice{tile.parameter, Access::kRead, kDevicePlace};
    const OpId room = earlier_computation();
    // Of a step whose update is exposed nothing is fetched before it; else each waits for its own.
    const OpId begun = schedule_.exposed_update || !schedule_.overlap ? began_ : kNoOp;
    const OpId sum = schedule_.overlap || reduced_.empty() ? begun : reduced_.back();
    const OpId here = fetch(LaneId::kFetch, Cause::kParameters, {slice}, {room, update, sum});
    if (!gathers(tile)) return {here, tile.parameter};
    const TensorId tensor = tile.wholes[static_cast<size_t>(pass)];
    const Use whole{tensor, Access::kWrite, kDevicePlace};
    // In a model of few tiles the same pass of the last step may not be through.
    fetch(LaneId::kGather, Cause::kCollectives, {whole}, {here, room, dropped_[tensor]});
    const uint64_t takes =
        collective_ns(machine_, layout_, model_.model_parallel, tile.whole_bytes);
    run(LaneId::kGather, What::kCollective, Cause::kCollectives, takes, {kNoOp, kNoOp, kNoOp});
    release(LaneId::kGather, {slice}, true, false);
    return {release(LaneId::kGather, {whole}, false, false), tensor};
}

// A tile forward, the first time or once more.
void Writer::forward_tile(uint32_t number, Pass pass, OpId checkpoint)
{
    const Tile &tile = layout_.tiles[number];
    const Ready ready = gather(tile, pass, updated_[number]);
    const Use use{ready.tensor, Access::kRead, kDevicePlace};
    const bool gathered = gathers(tile);
    if (gathered)
        fetch(LaneId::kCompute, Cause::kCollectives, {use}, {ready.op, checkpoint, kNoOp});
    const std::array<OpId, 3> after = {gathered ? kNoOp : ready.op, checkpoint, kNoOp};
    const uint64_t takes = compute_ns(tile, 1);
    compute_ns_ += takes;
    run(LaneId::kCompute, What::kCompute, Cause::kNone, takes, after);
    computed_.push_back(release(LaneId::kCompute, {use}, true, gathered));
    dropped_[ready.tensor] = computed_.back();
}

void Writer::forward()
{
    std::fill(reduced_.begin(), reduced_.end(), kNoOp);
    for (uint32_t number = 0; number < layout_.tiles.size(); ++number) {
        const uint32_t layer = layout_.tiles[number].layer;
        const bool first = number == 0 || layout_.tiles[number - 1].layer != layer;
        const TensorId kept = layout_.checkpoints[layer];
        if (first && kept != kNone) {
            const Use use{kept, Access::kWrite, kDevicePlace};
            fetch(LaneId::kCompute, Cause::kCheckpoints, {use}, {kNoOp, kNoOp, kNoOp});
            kept_[layer] = release(LaneId::kCompute, {use}, true, false);
        }
        forward_tile(number, Pass::kForward, kNoOp);
    }
}

void Writer::backward_tile(uint32_t number)
{
    const Tile &tile = layout_.tiles[number];
    const Ready ready = gather(tile, Pass::kBackward, kNoOp);
    const bool gathered = gathers(tile);
    const Use use{ready.tensor, Access::kRead, kDevicePlace};
    const Use sum{tile.gradient, Access::kWrite, kDevicePlace};
    const Use before{gathered ? tile.gradient_whole : tile.gradient, Access::kWrite, kDevicePlace};
    // No more of them than two, or sums that come late would fill the device.
    const OpId late = reduced_.size() < 2 ? kNoOp : reduced_[reduced_.size() - 2];
    fetch(LaneId::kCompute, Cause::kGradients, {before}, {late, kNoOp, kNoOp});
    if (gathered) fetch(LaneId::kCompute, Cause::kCollectives, {use}, {ready.op, kNoOp, kNoOp});
    const uint64_t takes = compute_ns(tile, 2);
    compute_ns_ += takes;
    run(LaneId::kCompute, What::kCompute, Cause::kNone, takes,
        {gathered ? kNoOp : ready.op, kNoOp, kNoOp});
    release(LaneId::kCompute, {before}, !gathered, false);
    computed_.push_back(release(LaneId::kCompute, {use}, true, gathered));
    dropped_[ready.tensor] = computed_.back();
    reduced_.push_back(computed_.back());
    if (!gathered) return;
    const Use read{tile.gradient_whole, Access::kRead, kDevicePlace};
    const Use slice = sum;
    fetch(LaneId::kReduce, Cause::kGradients, {read, slice}, {computed_.back(), kNoOp, kNoOp});
    run(LaneId::kReduce, What::kCollective, Cause::kGradients,
        collective_ns(machine_, layout_, model_.model_parallel, tile.gradient_whole_bytes),
        {kNoOp, kNoOp, kNoOp});
    release(LaneId::kReduce, {read}, false, true);
    reduced_.back() = release(LaneId::kReduce, {slice}, true, false);
}

void Writer::backward()
{
    auto end = static_cast<uint32_t>(layout_.tiles.size());
    while (end > 0) {
        const uint32_t layer = layout_.tiles[end - 1].layer;
        uint32_t begin = end;
        while (begin > 0 && layout_.tiles[begin - 1].layer == layer) --begin;
        const TensorId kept = layout_.checkpoints[layer];
        const Use use{kept, Access::kRead, kDevicePlace};
        OpId there = kNoOp;
        if (kept != kNone) {
            // Among the slices, as far ahead as they are.
            there = fetch(LaneId::kFetch, Cause::kCheckpoints, {use},
                          {earlier_computation(), kept_[layer], kNoOp});
        }
        if (model_.recomputes)
            for (uint32_t number = begin; number < end; ++number)
                forward_tile(number, Pass::kAgain, there);
        for (uint32_t number = end; number-- > begin;) backward_tile(number);
        if (kept != kNone) release(LaneId::kCompute, {use}, false, true);
        end = begin;
    }
}

void Writer::update()
{
    std::vector<OpId> over;
    const OpId computed = computed_.back();
    const OpId summed = reduced_.back();
    for (uint32_t number = 0; number < layout_.tiles.size(); ++number) {
        const Tile &tile = layout_.tiles[number];
        const Use state{tile.state, Access::kReadWrite, tile.update_at};
        const Use gradient{tile.gradient, Access::kRead, tile.update_at};
        const Use parameter{tile.parameter, Access::kWrite, tile.update_at};
        // As many at once as fit twice: one half is read or written, the other worked on.
        const uint64_t a_tile = layout_.specs[tile.state].bytes +
                                layout_.specs[tile.gradient].bytes +
                                layout_.specs[tile.parameter].bytes + 3 * layout_.block_bytes;
        const uint64_t at_once = std::clamp<uint64_t>(layout_.host_window_bytes / a_tile, 1, 8);
        const OpId earlier = over.size() < at_once ? kNoOp : over[over.size() - at_once];
        // Clipping by the norm of all gradients has to have seen all of them.
        fetch(LaneId::kUpdateFetch, Cause::kUpdate, {state, gradient, parameter},
              {earlier, computed, summed});
        const OpId there = program_.lanes[static_cast<size_t>(LaneId::kUpdateFetch)].back();
        const bool on_device = tile.update_at == kDevicePlace;
        const double bytes_per_s = on_device ? machine_.device_bytes_per_s
                                             : machine_.host_bytes_per_s / machine_.gpus_per_node;
        run(LaneId::kUpdate, What::kCompute, Cause::kUpdate,
            ns(static_cast<double>(tile.update_bytes) / bytes_per_s), {there, kNoOp, kNoOp});
        release(LaneId::kUpdate, {gradient}, false, true);
        over.push_back(release(LaneId::kUpdate, {state, parameter}, true, false));
        updated_[number] = over.back();
    }
}

}  // namespace

const char *cause_name(Cause cause)
{
    const char *const names[kCauses] = {"none",        "parameters", "collectives",
                                        "checkpoints", "gradients",  "update"};
    return names[static_cast<size_t>(cause)];
}

uint64_t collective_ns(const Machine &machine, const Layout &layout, uint32_t model_parallel,
                       uint64_t whole_bytes)
{
    const double bytes = static_cast<double>(whole_bytes);
    // The GPUs of a model-parallel group sit side by side in a node, as far as they fit there.
    const uint32_t per_node = std::min(machine.gpus_per_node, layout.ranks);
    const uint32_t nodes = (layout.ranks + per_node - 1) / per_node;
    const uint32_t groups = std::min(model_parallel, per_node);  // of them in a node
    const double members = static_cast<double>(layout.gather_ranks);
    const double in_node = bytes * (members - 1) / members;
    double seconds = 0;
    if (per_node > 1) seconds = in_node / machine.collectives.in_node_bytes_per_s;
    if (nodes > 1) {
        const double others = static_cast<double>(nodes - 1) / nodes;
        const double enters = bytes * groups * others;
        seconds = std::max(seconds, enters / machine.collectives.across_nodes_bytes_per_s);
    }
    return ns(seconds) + machine.collectives.latency_ns;
}

Program write_program(const Layout &layout, const Model &model, const Machine &machine,
                      const Schedule &schedule, uint32_t steps)
{
    return Writer(layout, model, machine, schedule).write(steps);
}

}  // namespace stepwell::simulate
