// SPDX-License-Identifier: Apache-2.0
// The forward pass takes the tiles in order; the backward pass takes the layers in reverse, with
// the forward again before each if it is recomputed, then its tiles in reverse. Updates are called
// when their gradients are there, or after the last one.
#include "lib/simulate/program.h"

#include <algorithm>
#include <cmath>

namespace stepwell::simulate {
namespace {

using residency::Access;
using residency::kNone;

uint64_t ns(double seconds)
{
    return static_cast<uint64_t>(std::ceil(seconds * kNsPerSecond));
}

class Writer {
public:
    Writer(const Layout &layout, const Model &model, const Machine &machine,
           const Schedule &schedule)
        : layout_(layout),
          model_(model),
          machine_(machine),
          schedule_(schedule),
          mode_(schedule.exposed_update ? Update::kExposed
                : schedule.overlap      ? model.update
                                        : Update::kPending),
          updated_(layout.tiles.size(), kNoOp),
          kept_(layout.checkpoints.size(), kNoOp)
    {
    }

    Program write(uint32_t steps)
    {
        for (step_ = 0; step_ < steps; ++step_) {
            begin_step();
            std::fill(reduced_.begin(), reduced_.end(), kNoOp);
            if (vertical()) {
                all_layers(true);
                all_layers(false);
            }
            for (micro_ = 0; !vertical() && micro_ < micro_batches(); ++micro_) {
                all_layers(true);
                all_layers(false);
            }
            update(step_ == schedule_.missed_step);
        }
        begin_step();
        program_.compute_ns = compute_ns_ / std::max(steps, 1u);
        if (schedule_.overlap) program_.ahead_max = layout_.tiles_ahead;
        for (const Tile &tile : layout_.tiles) {
            const auto takes = [&](uint64_t bytes) {
                return collective_ns(machine_, layout_, model_.model_parallel, bytes);
            };
            program_.gather_ns.push_back(takes(tile.whole_bytes));
            program_.sum_ns.push_back(takes(tile.gradient_whole_bytes));
        }
        return std::move(program_);
    }

private:
    OpId put(Op op);
    OpId fetch(LaneId lane, Cause cause, std::initializer_list<Use> uses,
               std::array<OpId, 3> after);
    OpId release(LaneId lane, std::initializer_list<Use> uses, bool far, bool discard);
    OpId run(LaneId lane, What what, Cause cause, uint64_t duration_ns, std::array<OpId, 3> after);
    OpId on_tile(LaneId lane, What what, Cause cause, uint32_t tile, std::array<OpId, 3> after);
    void discard(TensorId tensor, std::array<OpId, 3> after);
    void begin_step();
    void all_layers(bool forward);
    void forward_layer(uint32_t begin, uint32_t end);
    void backward_layer(uint32_t begin, uint32_t end);
    void update(bool missed);
    void update_tile(uint32_t tile, bool again, std::array<OpId, 2> after);
    [[nodiscard]] bool in_backward(const Tile &tile) const
    {
        return mode_ == Update::kBackward || speculates(tile);
    }
    [[nodiscard]] bool speculates(const Tile &tile) const
    {
        return mode_ == Update::kSpeculative && tile.kept != kNone;
    }
    void forward_tile(uint32_t tile, OpId checkpoint, bool again);
    void backward_tile(uint32_t tile);
    OpId bring(uint32_t tile, OpId checkpoint, bool again);
    OpId let_go(uint32_t tile);
    [[nodiscard]] bool gathers(const Tile &tile) const { return tile.whole != kNone; }
    // Of a micro-batch.
    [[nodiscard]] uint64_t compute_ns(const Tile &tile, double passes) const
    {
        return ns(passes * tile.forward_flops / micro_batches() / machine_.achieved_flops_per_s);
    }
    [[nodiscard]] uint32_t micro_batches() const { return model_.micro_batches.count; }
    [[nodiscard]] bool vertical() const { return layout_.kept_sets > 1; }
    // The checkpoint or activations of a layer and the present micro-batch, as an index.
    [[nodiscard]] size_t kept_of(uint32_t layer) const
    {
        return layer * layout_.kept_sets + (vertical() ? micro_ : 0);
    }

    const Layout &layout_;
    const Model &model_;
    const Machine &machine_;
    const Schedule &schedule_;
    const Update mode_;
    Program program_;
    std::vector<OpId> computed_;  // in order of execution: the end of a tile's computation
    std::vector<OpId> reduced_;
    std::vector<OpId> updated_;  // by tile: the end of its last update
    OpId called_ = kNoOp;        // the last call of an update
    std::vector<OpId> kept_;     // as layout.checkpoints: it was written
    uint32_t step_ = 0;
    uint32_t micro_ = 0;  // the present micro-batch
    uint64_t compute_ns_ = 0;
    OpId began_ = kNoOp;
    OpId verdict_ = kNoOp;  // the norm of all ranks' gradients is known
};

OpId Writer::put(Op op)
{
    const auto id = static_cast<OpId>(program_.ops.size());
    if (op.lane != LaneId::kUpdateFetch && op.lane != LaneId::kUpdate)
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
    if (lane == LaneId::kUpdate) op.cause = Cause::kUpdate;
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

OpId Writer::on_tile(LaneId lane, What what, Cause cause, uint32_t tile, std::array<OpId, 3> after)
{
    const OpId id = run(lane, what, cause, 0, after);
    program_.ops[id].tile = tile;
    return id;
}

void Writer::begin_step()
{
    // An exposed update ends, and is written, before the next step begins.
    OpId last = kNoOp;
    if (mode_ == Update::kExposed && called_ != kNoOp)
        last = run(LaneId::kAfter, What::kDrain, Cause::kUpdate, 0, {called_, kNoOp, kNoOp});
    began_ = run(LaneId::kCompute, What::kStepBegins, Cause::kUpdate, 0, {last, verdict_, kNoOp});
}

// Makes a tile's parameters available to the next computation.
OpId Writer::bring(uint32_t number, OpId checkpoint, bool again)
{
    const Tile &tile = layout_.tiles[number];
    const OpId sum = schedule_.overlap || reduced_.empty() ? kNoOp : reduced_.back();
    if (gathers(tile)) {
        return on_tile(LaneId::kCompute, What::kGather, Cause::kCollectives, number,
                       {checkpoint, sum, kNoOp});
    }
    // With an exposed update nothing is fetched before its end; else each fetch waits for its own
    // update.
    const OpId begun = mode_ == Update::kExposed || !schedule_.overlap ? began_ : kNoOp;
    const OpId update = again ? kNoOp : updated_[number];
    const Use slice{tile.parameter, Access::kRead, kDevicePlace};
    return fetch(LaneId::kCompute, Cause::kParameters, {slice},
                 {update, sum == kNoOp ? begun : sum, kNoOp});
}

OpId Writer::let_go(uint32_t number)
{
    const Tile &tile = layout_.tiles[number];
    if (gathers(tile))
        return on_tile(LaneId::kCompute, What::kLetGo, Cause::kNone, number, {kNoOp, kNoOp, kNoOp});
    const Use use{tile.parameter, Access::kRead, kDevicePlace};
    return release(LaneId::kCompute, {use}, true, false);
}

// The forward pass of a tile, first or recomputed.
void Writer::forward_tile(uint32_t number, OpId checkpoint, bool again)
{
    const OpId ready = bring(number, checkpoint, again);
    const uint64_t takes = compute_ns(layout_.tiles[number], 1);
    compute_ns_ += takes;
    run(LaneId::kCompute, What::kCompute, Cause::kNone, takes, {ready, checkpoint, kNoOp});
    computed_.push_back(let_go(number));
}

// Of the present micro-batch, or of all of them layer by layer.
void Writer::all_layers(bool forward)
{
    const auto tiles = static_cast<uint32_t>(layout_.tiles.size());
    const auto layer_of = [this](uint32_t tile) { return layout_.tiles[tile].layer; };
    for (uint32_t at = forward ? 0 : tiles; forward ? at < tiles : at > 0;) {
        uint32_t begin = forward ? at : at - 1;
        uint32_t end = begin + 1;
        while (forward && end < tiles && layer_of(end) == layer_of(begin)) ++end;
        while (!forward && begin > 0 && layer_of(begin - 1) == layer_of(end - 1)) --begin;
        at = forward ? end : begin;
        const uint32_t only = micro_;
        for (micro_ = vertical() ? 0 : only; micro_ < (vertical() ? micro_batches() : only + 1);
             ++micro_) {
            if (forward)
                forward_layer(begin, end);
            else
                backward_layer(begin, end);
        }
        micro_ = only;
    }
}

// A layer's input is its checkpoint, which was written when the layer before it was computed: at
// once before, unless other micro-batches came between.
void Writer::forward_layer(uint32_t begin, uint32_t end)
{
    const uint32_t layer = layout_.tiles[begin].layer;
    const TensorId kept = layout_.checkpoints[kept_of(layer)];
    const bool reads = vertical() && layer > 0 && !model_.swaps();
    const Use use{kept, reads ? Access::kRead : Access::kWrite, kDevicePlace};
    OpId there = kNoOp;
    if (kept != kNone)
        there = fetch(LaneId::kCompute, Cause::kCheckpoints, {use},
                      {reads ? kept_[kept_of(layer)] : kNoOp, kNoOp, kNoOp});
    const bool holds = reads || model_.swaps();
    if (kept != kNone && !holds)
        kept_[kept_of(layer)] = release(LaneId::kCompute, {use}, true, false);
    for (uint32_t number = begin; number < end; ++number)
        forward_tile(number, reads ? there : kNoOp, micro_ > 0);
    if (kept != kNone && holds)
        kept_[kept_of(layer)] = release(LaneId::kCompute, {use}, true, false);
    if (!vertical() || model_.swaps() || layer + 1 == layout_.layers) return;
    const size_t next = kept_of(layer + 1);
    if (layout_.checkpoints[next] == kNone) return;
    const Use output{layout_.checkpoints[next], Access::kWrite, kDevicePlace};
    fetch(LaneId::kCompute, Cause::kCheckpoints, {output}, {kNoOp, kNoOp, kNoOp});
    kept_[next] = release(LaneId::kCompute, {output}, true, false);
}

void Writer::backward_tile(uint32_t number)
{
    const Tile &tile = layout_.tiles[number];
    const bool gathered = gathers(tile);
    const bool last = micro_ + 1 == micro_batches();
    // A rank alone adds to the gradient itself, others when they sum it.
    const Access adds = micro_ > 0 && !gathered ? Access::kReadWrite : Access::kWrite;
    const Use before{gathered ? tile.gradient_whole : tile.gradient, adds, kDevicePlace};
    // At most two of them, as late sums would otherwise fill the device.
    const OpId late = reduced_.size() < 2 ? kNoOp : reduced_[reduced_.size() - 2];
    if (!tile.frozen) fetch(LaneId::kCompute, Cause::kGradients, {before}, {late, kNoOp, kNoOp});
    const OpId ready = bring(number, kNoOp, true);
    const uint64_t takes = compute_ns(tile, Model::backward_passes(tile.frozen));
    compute_ns_ += takes;
    run(LaneId::kCompute, What::kCompute, Cause::kNone, takes, {ready, kNoOp, kNoOp});
    if (tile.frozen) {
        computed_.push_back(let_go(number));
        return;
    }
    // Written back now, unless its update or the next micro-batch comes first.
    const bool consumed =
        mode_ == Update::kBackward && layout_.specs[tile.gradient].policy.home == kNvmePlace;
    const bool stays = consumed || (vertical() && !last);
    release(LaneId::kCompute, {before}, !gathered && !stays, false);
    computed_.push_back(let_go(number));
    reduced_.push_back(computed_.back());
    if (gathered) {
        const OpId sum =
            on_tile(LaneId::kCompute, What::kSum, Cause::kNone, number, {kNoOp, kNoOp, kNoOp});
        program_.ops[sum].again = micro_ > 0;
        reduced_.back() =
            on_tile(LaneId::kSum, What::kSummed, Cause::kGradients, number, {sum, kNoOp, kNoOp});
    }
    if (last && in_backward(tile)) update_tile(number, false, {computed_.back(), reduced_.back()});
}

void Writer::backward_layer(uint32_t begin, uint32_t end)
{
    const uint32_t layer = layout_.tiles[begin].layer;
    const TensorId kept = layout_.checkpoints[kept_of(layer)];
    const Use use{kept, Access::kRead, kDevicePlace};
    OpId there = kNoOp;
    if (kept != kNone)
        there = fetch(LaneId::kCompute, Cause::kCheckpoints, {use},
                      {kept_[kept_of(layer)], kNoOp, kNoOp});
    // Of the layer's output when it begins, of its input when it ends.
    const TensorId between = layout_.between.empty() ? kNone : layout_.between[micro_];
    const bool last = layer + 1 == layout_.layers;
    const Use gradient{between, last ? Access::kWrite : Access::kReadWrite, kDevicePlace};
    if (between != kNone)
        there = fetch(LaneId::kCompute, Cause::kCheckpoints, {gradient}, {there, kNoOp, kNoOp});
    if (model_.recomputes)
        for (uint32_t number = begin; number < end; ++number) forward_tile(number, there, true);
    for (uint32_t number = end; number-- > begin;) backward_tile(number);
    if (kept != kNone) release(LaneId::kCompute, {use}, false, true);
    if (between != kNone) release(LaneId::kCompute, {gradient}, true, layer == 0);
}

// What is left at the end of the backward pass.
void Writer::update(bool missed)
{
    if (reduced_.empty()) return;  // all of it is frozen
    std::array<OpId, 2> known = {computed_.back(), reduced_.back()};
    if (mode_ == Update::kSpeculative) {
        const uint64_t latency = layout_.gather_ranks > 1 ? machine_.collectives.latency_ns : 0;
        verdict_ = run(LaneId::kSum, What::kCompute, Cause::kGradients, latency,
                       {known[0], known[1], kNoOp});
        known = {verdict_, kNoOp};
    }
    for (uint32_t number = 0; number < layout_.tiles.size(); ++number) {
        const Tile &tile = layout_.tiles[number];
        if (tile.frozen) continue;
        if (!in_backward(tile) || (speculates(tile) && missed))
            update_tile(number, speculates(tile), known);
        else if (speculates(tile))
            discard(tile.gradient, {verdict_, updated_[number], kNoOp});
    }
}

// Of a speculated update `again` starts from the state that was kept.
void Writer::update_tile(uint32_t number, bool again, std::array<OpId, 2> after)
{
    const Tile &tile = layout_.tiles[number];
    called_ = on_tile(LaneId::kCompute, What::kUpdate, Cause::kNone, number, {kNoOp, kNoOp, kNoOp});
    program_.ops[called_].again = again;
    const Use state{tile.state, again ? Access::kWrite : Access::kReadWrite, tile.update_at};
    const Use gradient{tile.gradient, Access::kRead, tile.update_at};
    const Use parameter{tile.parameter, Access::kWrite, tile.update_at};
    const Use kept{tile.kept, Access::kRead, tile.update_at};
    // One is read, one updated and one written, as far as the window has room: more begin too early
    // for the order in which they are needed.
    const uint64_t a_tile = layout_.specs[tile.state].bytes + layout_.specs[tile.gradient].bytes +
                            layout_.specs[tile.parameter].bytes + 3 * layout_.block_bytes;
    const uint64_t at_once = std::clamp<uint64_t>(layout_.host_window_bytes / a_tile, 1, 3);
    const std::array<OpId, 3> ready = {kNoOp, after[0], after[1]};
    OpId there;
    if (again)
        there =
            fetch(LaneId::kUpdateFetch, Cause::kUpdate, {state, gradient, parameter, kept}, ready);
    else
        there = fetch(LaneId::kUpdateFetch, Cause::kUpdate, {state, gradient, parameter}, ready);
    const bool on_device = tile.update_at == kDevicePlace;
    const double bytes_per_s = on_device ? machine_.device_bytes_per_s
                                         : machine_.host_bytes_per_s / machine_.gpus_per_node;
    run(LaneId::kUpdate, What::kCompute, Cause::kUpdate,
        ns(static_cast<double>(tile.update_bytes) / bytes_per_s), {there, kNoOp, kNoOp});
    if (!on_device) program_.ops.back().memory_bytes = tile.update_bytes;
    // A speculated update may be made again with the same gradient.
    const bool is_final = again || !speculates(tile);
    const OpId used = release(LaneId::kUpdate, {gradient}, false, is_final);
    const OpId over = again ? release(LaneId::kUpdate, {state, parameter, kept}, true, false)
                            : release(LaneId::kUpdate, {state, parameter}, true, false);
    for (const OpId op : {there, used, over}) {
        program_.ops[op].tile = number;
        program_.ops[op].again = again;
    }
    program_.ops[there].step = step_;
    program_.ops[there].at_once = static_cast<uint32_t>(at_once);
    program_.ops[over].ends = true;
    updated_[number] = over;
}

void Writer::discard(TensorId tensor, std::array<OpId, 3> after)
{
    Op op;
    op.what = What::kDiscard;
    op.lane = LaneId::kAfter;
    op.after = after;
    op.uses[op.use_count++] = {tensor, Access::kRead, kHostPlace};
    put(op);
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
    // The GPUs of a model-parallel group are adjacent in a node, as far as they fit there.
    const uint32_t per_node = std::min(machine.gpus_per_node, layout.ranks);
    const uint32_t nodes = (layout.ranks + per_node - 1) / per_node;
    const uint32_t groups = std::min(model_parallel, per_node);  // in a node
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
