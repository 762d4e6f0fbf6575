// SPDX-License-Identifier: Apache-2.0
// The arithmetic is that of the core: each tensor has blocks of its own, and room for all of them
// is reserved in its farthest tier.
#include "lib/simulate/layout.h"

#include <algorithm>
#include <cmath>

namespace stepwell::simulate {
namespace {

using residency::kNone;
using residency::TensorSpec;

// A runtime has blocks of 2 MiB that small tensors share. Here each tensor has blocks of its own,
// with a size that slices of parameters fill.
constexpr uint64_t kBlockBytes = 2 << 20;
constexpr uint64_t kBlockBytesMin = 64 << 10;
constexpr uint64_t kPageBytes = 4096;
constexpr const char *kPlaceNames[] = {"device", "host", "nvme"};
constexpr uint64_t kFinerMost = 4;      // blocks, so that little of their room stays empty ...
constexpr double kRoundingMost = 1.04;  // ... of what a tile's tensors take
constexpr uint64_t kUpdateTiles = 6;    // of updates in the backward pass, in host memory at once
constexpr double kPendingShare = 0.85;  // of the forward pass, for updates that were not speculated
constexpr uint64_t kTilesAhead = 8;     // gathered before they are needed, at most
constexpr uint64_t kMostBytes = uint64_t{1} << 60;

uint64_t divided(uint64_t bytes, uint64_t by)
{
    return std::max<uint64_t>((bytes + by - 1) / by, 1);
}

// Spreads what has room at a place evenly over tensors that do not all fit there. In one run at
// the end, the drives would rest while the others are updated.
class Spread {
public:
    Spread(uint64_t room, uint64_t bytes) : room_(room), bytes_(bytes) {}
    // Whether the next tensor is among those there.
    bool take(uint64_t bytes)
    {
        seen_ += bytes;
        const double share = static_cast<double>(seen_) / static_cast<double>(bytes_);
        const bool near = room_ >= bytes_ ||
                          static_cast<double>(taken_ + bytes) <= static_cast<double>(room_) * share;
        if (near) taken_ += bytes;
        return near;
    }

private:
    uint64_t room_;
    uint64_t bytes_;
    uint64_t seen_ = 0;
    uint64_t taken_ = 0;
};

class Builder {
public:
    Builder(const Model &model, const Machine &machine, uint32_t ranks, const Budgets &budgets)
        : model_(model), machine_(machine)
    {
        layout_.ranks = ranks;
        layout_.gather_ranks = std::max(1u, ranks / model.model_parallel);
        layout_.budgets = budgets;
        layout_.working_bytes = model.activation_bytes();
        if (model.micro_batches.vertical) layout_.kept_sets = model.micro_batches.count;
    }

    Result<Layout> build(uint64_t blocks_max)
    {
        choose_block(blocks_max);
        measure_tiles();
        STW_TRY(reserve_device());
        STW_TRY(place_all());
        return std::move(layout_);
    }
    // The tier in which something did not fit.
    [[nodiscard]] PlaceId full() const { return full_; }

private:
    struct Role {
        const char *name;
        Home home;
        PlaceId nearest;     // without a placement, the first tier to try
        bool comes_to_host;  // updated there, wherever it rests
    };

    [[nodiscard]] bool in_backward() const
    {
        return model_.update == Update::kBackward || model_.update == Update::kSpeculative;
    }
    [[nodiscard]] bool gathers() const { return layout_.gather_ranks > 1; }
    [[nodiscard]] uint64_t in_blocks(uint64_t bytes) const
    {
        return divided(bytes, layout_.block_bytes) * layout_.block_bytes;
    }
    // A frozen tile has parameters alone.
    [[nodiscard]] bool has(size_t tile, TensorId Tile::*member) const
    {
        return member == &Tile::parameter || !layout_.tiles[tile].frozen;
    }
    // Of a slice, if it is updated there.
    [[nodiscard]] uint64_t slice_bytes(size_t tile, TensorId Tile::*member, PlaceId update_at) const
    {
        const uint64_t count = has(tile, member) ? shard_parameters_[tile] : 0;
        if (member == &Tile::state) return model_.states_of(count, update_at == kDevicePlace);
        return count * (member == &Tile::gradient ? model_.gradient_bytes : model_.parameter_bytes);
    }
    [[nodiscard]] uint64_t slice_room(size_t tile, TensorId Tile::*member, PlaceId update_at) const
    {
        return has(tile, member) ? in_blocks(slice_bytes(tile, member, update_at)) : 0;
    }
    // Parameter, gradient and states.
    [[nodiscard]] uint64_t update_room(size_t tile, PlaceId update_at) const
    {
        return slice_room(tile, &Tile::parameter, update_at) +
               slice_room(tile, &Tile::gradient, update_at) +
               slice_room(tile, &Tile::state, update_at);
    }
    [[nodiscard]] uint64_t whole_budget(PlaceId place) const
    {
        const Budgets &budgets = layout_.budgets;
        const uint64_t bytes[] = {budgets.device_bytes, budgets.host_bytes, budgets.nvme_bytes};
        return bytes[place];
    }
    // In complete blocks.
    [[nodiscard]] uint64_t budget(PlaceId place) const
    {
        return whole_budget(place) / layout_.block_bytes * layout_.block_bytes;
    }

    void choose_block(uint64_t blocks_max);
    void measure_tiles();
    Status reserve_device();
    Status place_all();
    Status place_tiles(const Role &role, TensorId Tile::*member);
    Status place_checkpoints();
    void place_kept();
    [[nodiscard]] uint64_t near_room(const Role &role, uint64_t bytes) const;
    [[nodiscard]] bool updates_on_device() const;
    void choose_updates(bool all_on_device);
    [[nodiscard]] uint64_t host_window(uint64_t budget) const;
    [[nodiscard]] uint64_t room_of(PlaceId place, uint64_t budget, bool leaves_room) const;
    [[nodiscard]] uint64_t room_at(PlaceId place, bool leaves_room) const
    {
        return room_of(place, budget(place), leaves_room);
    }
    [[nodiscard]] uint64_t lacking(PlaceId place, uint64_t bytes, bool leaves_room) const;
    [[nodiscard]] std::string left_text(PlaceId place, bool leaves_room) const;
    Status add_wholes();
    Result<TensorId> add(const Role &role, const std::string &name, uint64_t bytes, bool transient);
    Result<PlaceId> home_of(const Role &role, const std::string &name, uint64_t bytes);
    [[nodiscard]] std::string name_of(const char *role, uint32_t tile) const;

    const Model &model_;
    const Machine &machine_;
    Layout layout_;
    std::vector<std::string> names_;          // by tile
    std::vector<uint64_t> checkpoint_bytes_;  // by layer, of a micro-batch
    uint64_t between_bytes_ = 0;              // of the gradient between two layers
    std::vector<uint64_t> shard_parameters_;
    uint32_t largest_ = 0;         // index of the largest tile
    uint64_t whole_bytes_ = 0;     // of the largest tile, gathered
    uint64_t gradient_bytes_ = 0;  // of its gradient before the sum
    uint64_t shard_bytes_ = 0;     // of its slices
    uint64_t update_bytes_ = 0;    // of all slices in the largest update
    uint64_t fixed_bytes_ = 0;     // of the device, not for resting tensors
    uint64_t ahead_ = 0;           // of the device, to look ahead; can be given up
    PlaceId full_ = kDevicePlace;
};

void Builder::choose_block(uint64_t blocks_max)
{
    const uint64_t a_parameter =
        model_.parameter_bytes + model_.gradient_bytes + model_.state_bytes;
    const uint64_t bytes = divided(model_.parameters(), layout_.ranks) * a_parameter;
    uint64_t slice = 1;
    for (const Layer &layer : model_.layers)
        for (const Part &part : layer.parts) slice = std::max(slice, part.parameters);
    slice = divided(slice, layout_.ranks);
    const uint64_t wanted = std::max(kBlockBytes, bytes / blocks_max);
    const uint64_t pieces = std::max<uint64_t>(slice * model_.parameter_bytes / wanted, 1);
    const uint64_t of_update[] = {slice * model_.parameter_bytes, slice * model_.gradient_bytes,
                                  model_.states_of(slice, false)};
    for (uint64_t finer = 1; finer <= kFinerMost; ++finer) {
        const uint64_t pages = divided(divided(of_update[0], finer * pieces), kPageBytes);
        layout_.block_bytes = std::max(pages * kPageBytes, kBlockBytesMin);
        uint64_t exact = 0;
        uint64_t rounded = 0;
        for (const uint64_t tensor : of_update) {
            exact += tensor;
            rounded += in_blocks(tensor);
        }
        if (static_cast<double>(rounded) <= kRoundingMost * static_cast<double>(exact)) break;
    }
}

void Builder::measure_tiles()
{
    for (const Layer &layer : model_.layers) {
        for (uint64_t number = 0; number < layer.count; ++number) {
            for (const Part &part : layer.parts) {
                Tile tile;
                tile.layer = layout_.layers;
                tile.parameters = part.parameters;
                tile.forward_flops = part.forward_flops;
                tile.frozen = part.frozen;
                const uint64_t share = divided(part.parameters, model_.model_parallel);
                tile.whole_bytes = share * model_.parameter_bytes;
                tile.gradient_whole_bytes = part.frozen ? 0 : share * model_.gradient_bytes;
                shard_parameters_.push_back(divided(share, layout_.gather_ranks));
                layout_.tiles.push_back(tile);
                names_.push_back(layer.name + "." + std::to_string(layout_.layers) + "." +
                                 part.name);
            }
            // Without recomputation the checkpoint is one of the activations.
            checkpoint_bytes_.push_back(model_.kept_bytes(layer));
            const uint64_t count = model_.micro_batches.count;
            if (layout_.kept_sets > 1)
                between_bytes_ =
                    std::max(between_bytes_, (layer.checkpoint_bytes + count - 1) / count);
            ++layout_.layers;
        }
    }
}

std::string Builder::name_of(const char *role, uint32_t tile) const
{
    return names_[tile] + " " + role;
}

// The most that the backward pass needs there at once, wherever tensors rest.
Status Builder::reserve_device()
{
    uint64_t whole = 0;
    uint64_t gradient = 0;
    uint64_t shard = 0;
    uint64_t update = 0;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < layout_.tiles.size(); ++i) {
        const Tile &tile = layout_.tiles[i];
        if (in_blocks(tile.whole_bytes) > whole) largest = i;
        whole = std::max(whole, in_blocks(tile.whole_bytes));
        gradient = std::max(gradient, in_blocks(tile.gradient_whole_bytes));
        shard = std::max(shard, slice_room(i, &Tile::parameter, kHostPlace) +
                                    slice_room(i, &Tile::gradient, kHostPlace));
        if (!tile.frozen) update = std::max(update, update_room(i, kHostPlace));
    }
    if (!gathers()) whole = gradient = 0;
    const uint64_t kept = *std::max_element(checkpoint_bytes_.begin(), checkpoint_bytes_.end());
    const uint64_t checkpoint =
        (kept == 0 ? 0 : in_blocks(kept)) + (between_bytes_ == 0 ? 0 : in_blocks(between_bytes_));
    const uint64_t a_tile = whole + gradient + shard;
    const uint64_t needed = in_blocks(layout_.working_bytes) + 2 * checkpoint + 2 * a_tile;
    if (needed > budget(kDevicePlace)) {
        const uint64_t lacks = needed - whole_budget(kDevicePlace);
        return Status::error(
            STW_ERROR_BUDGET,
            "the backward pass of '%s' does not fit into device memory by %llu bytes (%s): it "
            "needs %s, for activations %s%s, two checkpoints of %s, and two tiles of %s with their "
            "gradients; a GPU has %s",
            names_[largest].c_str(), static_cast<unsigned long long>(lacks),
            bytes_text(lacks).c_str(), bytes_text(needed).c_str(),
            bytes_text(layout_.working_bytes).c_str(),
            model_.recomputes ? "" : " (of all layers, as the model does not recompute them)",
            bytes_text(checkpoint).c_str(), bytes_text(a_tile).c_str(),
            bytes_text(whole_budget(kDevicePlace)).c_str());
    }
    update_bytes_ = update;
    layout_.host_window_bytes = host_window(budget(kHostPlace));
    // Further room is used to look ahead, up to a quarter of the memory.
    ahead_ = std::min({(kTilesAhead - 2) * (whole + shard), budget(kDevicePlace) - needed,
                       budget(kDevicePlace) / 4});
    largest_ = largest;
    whole_bytes_ = whole;
    gradient_bytes_ = gradient;
    shard_bytes_ = shard;
    fixed_bytes_ = needed;
    return {};
}

uint64_t Builder::host_window(uint64_t budget) const
{
    if (!in_backward()) return std::max(budget / 64, 2 * update_bytes_);
    // Some are read, one is updated, and some are written.
    return std::max(
        {budget / 64, 2 * update_bytes_, std::min(budget / 8, kUpdateTiles * update_bytes_)});
}

// With that budget. Tensors without a placement leave room to look ahead; an explicit placement is
// followed.
uint64_t Builder::room_of(PlaceId place, uint64_t budget, bool leaves_room) const
{
    uint64_t used = layout_.promised_bytes[place];
    if (place == kHostPlace) used += host_window(budget);
    if (place == kDevicePlace) used += fixed_bytes_ + (leaves_room ? ahead_ : 0);
    return budget - std::min(used, budget);
}

// The least growth of the place that makes so much room there.
uint64_t Builder::lacking(PlaceId place, uint64_t bytes, bool leaves_room) const
{
    const uint64_t block = layout_.block_bytes;
    uint64_t enough = 2 * (budget(place) + layout_.promised_bytes[place] + fixed_bytes_ + ahead_ +
                           host_window(budget(place)) + bytes);
    enough = in_blocks(enough);
    uint64_t too_little = budget(place);
    while (enough - too_little > block) {
        const uint64_t tried = too_little + (enough - too_little) / 2 / block * block;
        (room_of(place, tried, leaves_room) >= bytes ? enough : too_little) = tried;
    }
    return enough - whole_budget(place);
}

// For example "of the 80.0 GiB in device 3.0 GiB are left".
std::string Builder::left_text(PlaceId place, bool leaves_room) const
{
    return "of the " + bytes_text(whole_budget(place)) + " in " + kPlaceNames[place] + " " +
           bytes_text(room_at(place, leaves_room)) + " are left";
}

Result<PlaceId> Builder::home_of(const Role &role, const std::string &name, uint64_t bytes)
{
    const PlaceId first = role.home == Home::kHost   ? kHostPlace
                          : role.home == Home::kNvme ? kNvmePlace
                          : role.home == Home::kAuto ? role.nearest
                                                     : kDevicePlace;
    const bool is_auto = role.home == Home::kAuto;
    const PlaceId last = !is_auto ? first : whole_budget(kNvmePlace) > 0 ? kNvmePlace : kHostPlace;
    std::string left;
    for (PlaceId place = first; place <= last; ++place) {
        full_ = place;
        // Tensors updated in host memory need room reserved there as well.
        if (place == kDevicePlace && role.comes_to_host && room_at(place, is_auto) >= bytes)
            full_ = kHostPlace;
        if (room_at(full_, is_auto && full_ == place) >= bytes) return place;
        left += (left.empty() ? "" : ", ") + left_text(full_, is_auto && full_ == place);
    }
    const uint64_t lacks = lacking(full_, bytes, is_auto && full_ == last);
    return Status::error(STW_ERROR_BUDGET,
                         "'%s' does not fit into %s by %llu bytes when it is created: it has %s, "
                         "and %s, of each rank",
                         name.c_str(), kPlaceNames[full_], static_cast<unsigned long long>(lacks),
                         bytes_text(bytes).c_str(), left.c_str());
}

Result<TensorId> Builder::add(const Role &role, const std::string &name, uint64_t bytes,
                              bool transient)
{
    TensorSpec spec;
    spec.name = name;
    spec.bytes = bytes;
    spec.no_packing = true;
    spec.agreed = transient;  // gathered tensors have a part of the device of their own
    PlaceId home = kDevicePlace;
    if (!transient) {
        Result<PlaceId> found = home_of(role, name, in_blocks(bytes));
        if (!found.ok()) return std::move(found.status());
        home = found.value();
        layout_.promised_bytes[home] += in_blocks(bytes);
        layout_.rest_bytes[home] += bytes;
        if (home == kDevicePlace && role.comes_to_host)
            layout_.promised_bytes[kHostPlace] += in_blocks(bytes);
    }
    spec.policy.home = home;
    spec.policy.allowed = (2u << home) - 1;  // its home and nearer
    if (role.comes_to_host) spec.policy.allowed |= 1u << kHostPlace;
    layout_.specs.push_back(spec);
    return static_cast<TensorId>(layout_.specs.size() - 1);
}

// Only if all of the tensors of updates fit there.
bool Builder::updates_on_device() const
{
    const Placement &placement = model_.placement;
    if (placement.states != Home::kAuto) return placement.states == Home::kDevice;
    uint64_t bytes = fixed_bytes_ + ahead_;
    for (size_t i = 0; i < shard_parameters_.size(); ++i) {
        bytes += slice_room(i, &Tile::state, kDevicePlace);
        if (placement.parameters <= Home::kDevice)
            bytes += slice_room(i, &Tile::parameter, kDevicePlace);
        if (placement.gradients <= Home::kDevice)
            bytes += slice_room(i, &Tile::gradient, kDevicePlace);
    }
    return bytes <= budget(kDevicePlace);
}

Status Builder::place_tiles(const Role &role, TensorId Tile::*member)
{
    const auto on_device = [this](size_t i) { return layout_.tiles[i].update_at == kDevicePlace; };
    uint64_t elsewhere = 0;
    for (size_t i = 0; i < layout_.tiles.size(); ++i)
        if (!on_device(i)) elsewhere += slice_room(i, member, kHostPlace);
    Spread spread(near_room(role, elsewhere), elsewhere);
    for (uint32_t i = 0; i < layout_.tiles.size(); ++i) {
        if (!has(i, member)) continue;
        const uint64_t bytes = slice_bytes(i, member, layout_.tiles[i].update_at);
        Role at = role;
        if (on_device(i)) {
            at.nearest = kDevicePlace;
            at.comes_to_host = false;
        } else if (role.home == Home::kAuto && role.nearest == kHostPlace &&
                   !spread.take(in_blocks(bytes)) &&
                   room_at(kNvmePlace, true) >= in_blocks(bytes)) {
            at.nearest = kNvmePlace;
        }
        Result<TensorId> made = add(at, name_of(role.name, i), bytes, false);
        if (!made.ok()) return std::move(made.status());
        layout_.tiles[i].*member = made.value();
        if (member != &Tile::gradient) layout_.filled.push_back(made.value());
    }
    return {};
}

// Of the host, for tensors of that role that may rest there. Speculated states need room twice.
// Those on nvme have it there, so some more rest there than have to, until what is not speculated
// can be updated beside the forward pass.
uint64_t Builder::near_room(const Role &role, uint64_t bytes) const
{
    const uint64_t room = std::min(room_at(kHostPlace, true), bytes);
    const bool states = std::string_view(role.name) == "state";
    if (!states || model_.update != Update::kSpeculative || budget(kNvmePlace) == 0) return room;
    double forward_s = 0;
    double update_s = 0;
    for (const Tile &tile : layout_.tiles) {
        forward_s += tile.forward_flops / machine_.achieved_flops_per_s;
        if (tile.update_at == kHostPlace)
            update_s += static_cast<double>(tile.update_bytes) * machine_.gpus_per_node /
                        machine_.host_bytes_per_s;
    }
    const double pending = static_cast<double>(bytes) * kPendingShare * forward_s / update_s;
    // Of n bytes near and `room` for them, 2n - room have no second version.
    const double near = (static_cast<double>(room_at(kHostPlace, true)) + pending) / 2;
    return near < static_cast<double>(room) ? static_cast<uint64_t>(near) : room;
}

// Second versions of states, where the state rests, as far as there is room.
void Builder::place_kept()
{
    for (const PlaceId place : {kNvmePlace, kHostPlace}) {
        uint64_t bytes = 0;
        for (const Tile &tile : layout_.tiles)
            if (!tile.frozen && layout_.specs[tile.state].policy.home == place)
                bytes += in_blocks(layout_.specs[tile.state].bytes);
        Spread spread(room_at(place, true), bytes);
        for (uint32_t i = 0; i < layout_.tiles.size(); ++i) {
            Tile &tile = layout_.tiles[i];
            if (tile.frozen) continue;
            const TensorSpec &state = layout_.specs[tile.state];
            if (state.policy.home != place || tile.update_at == kDevicePlace) continue;
            if (!spread.take(in_blocks(state.bytes))) continue;
            const Role role{"kept state", Home::kAuto, place, false};
            Result<TensorId> made = add(role, name_of(role.name, i), state.bytes, false);
            if (!made.ok()) continue;
            tile.kept = made.value();
            layout_.filled.push_back(made.value());
        }
    }
}

Status Builder::place_checkpoints()
{
    const Placement &placement = model_.placement;
    const Role checkpoint{"checkpoint", placement.checkpoints, kDevicePlace, false};
    const Role activations{"activations", placement.activations, kDevicePlace, false};
    const Role &role = model_.swaps() ? activations : checkpoint;
    for (uint32_t i = 0; i < layout_.layers * layout_.kept_sets; ++i) {
        const uint32_t layer = i / layout_.kept_sets;
        layout_.checkpoints.push_back(kNone);
        if (checkpoint_bytes_[layer] == 0) continue;
        const std::string name = "layer " + std::to_string(layer) + " " + role.name;
        Result<TensorId> made = add(role, name, checkpoint_bytes_[layer], false);
        if (!made.ok()) return std::move(made.status());
        layout_.checkpoints.back() = made.value();
    }
    for (uint32_t i = 0; between_bytes_ > 0 && i < layout_.kept_sets; ++i) {
        Result<TensorId> made = add(checkpoint, "gradient between layers", between_bytes_, false);
        if (!made.ok()) return std::move(made.status());
        layout_.between.push_back(made.value());
    }
    return {};
}

// All of them, or as many as fit beside the rest if that is left to us.
void Builder::choose_updates(bool all_on_device)
{
    const Placement &placement = model_.placement;
    const bool some = placement.parameters == Home::kAuto && placement.gradients == Home::kAuto &&
                      placement.states == Home::kAuto;
    std::vector<uint64_t> bytes;
    uint64_t sum = 0;
    for (size_t i = 0; i < shard_parameters_.size(); ++i) {
        bytes.push_back(update_room(i, kDevicePlace));
        sum += bytes.back();
    }
    // As a runtime does, which keeps the other half for what passes through: parameters that do not
    // stay for the backward pass come twice.
    uint64_t room = std::min(room_at(kDevicePlace, true), budget(kDevicePlace) / 2);
    Spread spread(room, sum);
    // The first layers' gradients are the last, so their updates have the least time.
    const bool first = in_backward();
    for (size_t i = 0; i < layout_.tiles.size(); ++i) {
        const bool here =
            all_on_device || (some && (first ? room >= bytes[i] : spread.take(bytes[i])));
        if (here && first) room -= std::min(room, bytes[i]);
        Tile &tile = layout_.tiles[i];
        tile.update_at = here ? kDevicePlace : kHostPlace;
        // Gradient and states are read; parameter and states are written.
        if (!tile.frozen)
            tile.update_bytes = slice_bytes(i, &Tile::gradient, tile.update_at) +
                                slice_bytes(i, &Tile::parameter, tile.update_at) +
                                2 * slice_bytes(i, &Tile::state, tile.update_at);
    }
}

// Tensors that are read most often first.
Status Builder::place_all()
{
    const bool on_device = updates_on_device();
    if (!on_device && layout_.host_window_bytes > budget(kHostPlace)) {
        full_ = kHostPlace;
        const uint64_t lacks = in_blocks(layout_.host_window_bytes) - whole_budget(kHostPlace);
        return Status::error(STW_ERROR_BUDGET,
                             "the update of '%s' does not fit into host memory by %llu bytes: it "
                             "needs %s, for two tiles with their gradients and states; a rank has "
                             "%s",
                             names_[largest_].c_str(), static_cast<unsigned long long>(lacks),
                             bytes_text(layout_.host_window_bytes).c_str(),
                             bytes_text(whole_budget(kHostPlace)).c_str());
    }
    const Placement &placement = model_.placement;
    if (!on_device) STW_TRY(place_checkpoints());
    choose_updates(on_device);
    STW_TRY(place_tiles({"parameter", placement.parameters, kHostPlace, true}, &Tile::parameter));
    // A gradient whose update follows at once needs room where it rests, but does not go there.
    const bool passes = model_.update == Update::kBackward && model_.micro_batches.count == 1 &&
                        budget(kNvmePlace) > 0;
    const Role gradient{"gradient", placement.gradients, passes ? kNvmePlace : kHostPlace, true};
    if (!passes) STW_TRY(place_tiles(gradient, &Tile::gradient));
    STW_TRY(place_tiles({"state", placement.states, kHostPlace, false}, &Tile::state));
    if (passes) STW_TRY(place_tiles(gradient, &Tile::gradient));
    if (on_device) STW_TRY(place_checkpoints());
    if (model_.update == Update::kSpeculative) place_kept();
    const uint64_t used = layout_.promised_bytes[kDevicePlace] + fixed_bytes_;
    const uint64_t left = std::min(ahead_, budget(kDevicePlace) - used);
    layout_.tiles_ahead = static_cast<uint32_t>(2 + left / (whole_bytes_ + shard_bytes_));
    layout_.whole_bytes = layout_.tiles_ahead * whole_bytes_;
    return gathers() ? add_wholes() : Status();
}

Status Builder::add_wholes()
{
    const Role gathered{"gathered", Home::kDevice, kDevicePlace, false};
    std::array<TensorId, 2> sums;
    for (TensorId &sum : sums) {
        TensorSpec spec;
        spec.name = "gradient before the sum";
        spec.bytes = gradient_bytes_;
        spec.no_packing = true;
        spec.policy.home = kDevicePlace;
        spec.policy.allowed = 1u << kDevicePlace;
        sum = static_cast<TensorId>(layout_.specs.size());
        layout_.specs.push_back(spec);
    }
    for (uint32_t i = 0; i < layout_.tiles.size(); ++i) {
        Tile &tile = layout_.tiles[i];
        Result<TensorId> made = add(gathered, name_of(gathered.name, i), tile.whole_bytes, true);
        if (!made.ok()) return std::move(made.status());
        tile.whole = made.value();
        if (!tile.frozen) tile.gradient_whole = sums[i % sums.size()];
    }
    return {};
}

// If something does not fit, `full` is the tier without room for it.
Result<Layout> try_layout(const Model &model, const Machine &machine, uint32_t ranks,
                          const Budgets &budgets, uint64_t blocks_max, PlaceId *full)
{
    if (ranks == 0 || ranks > machine.gpus() || ranks % model.model_parallel != 0) {
        return Status::error(
            STW_ERROR_INVALID,
            "%u ranks: it must be a multiple of the model-parallel degree, %u, and "
            "at most the machine's GPUs, %u",
            ranks, model.model_parallel, machine.gpus());
    }
    Builder builder(model, machine, ranks, budgets);
    Result<Layout> made = builder.build(blocks_max);
    *full = builder.full();
    return made;
}

}  // namespace

Budgets budgets_of(const Machine &machine)
{
    return {machine.device_bytes, machine.host_bytes / machine.gpus_per_node,
            machine.nvme_bytes / machine.gpus_per_node};
}

Result<Layout> lay_out(const Model &model, const Machine &machine, uint32_t ranks,
                       const Budgets &budgets, uint64_t blocks_max)
{
    PlaceId full = kDevicePlace;
    return try_layout(model, machine, ranks, budgets, blocks_max, &full);
}

Result<Layout> lay_out_told(const Model &model, const Machine &machine, uint32_t ranks,
                            const Budgets &budgets, uint64_t blocks_max)
{
    PlaceId full = kDevicePlace;
    Result<Layout> made = try_layout(model, machine, ranks, budgets, blocks_max, &full);
    if (made.ok() || made.status().code() != STW_ERROR_BUDGET) return made;
    uint64_t Budgets::*const tiers[] = {&Budgets::device_bytes, &Budgets::host_bytes,
                                        &Budgets::nvme_bytes};
    const auto fits_with = [&](uint64_t more) {
        Budgets tried = budgets;
        tried.*tiers[full] += more;
        return lay_out(model, machine, ranks, tried, blocks_max).ok();
    };
    uint64_t enough = 1;
    while (enough < kMostBytes && !fits_with(enough)) enough *= 2;
    if (enough >= kMostBytes) return made;
    uint64_t too_few = enough / 2;
    while (enough - too_few > 1) {
        const uint64_t tried = too_few + (enough - too_few) / 2;
        (fits_with(tried) ? enough : too_few) = tried;
    }
    return Status::error(STW_ERROR_BUDGET,
                         "%s; with %llu bytes (%s) more in %s, of each rank, all would fit",
                         made.status().sentence(), static_cast<unsigned long long>(enough),
                         bytes_text(enough).c_str(), kPlaceNames[full]);
}

uint64_t layers_max(const Model &model, const Machine &machine, uint32_t ranks,
                    const Budgets &budgets, uint64_t blocks_max)
{
    constexpr uint64_t kLayersMax = 10'000;
    // Bounds the search: by all bytes of the machine, and as many layers take time to lay out.
    const double rooms = static_cast<double>(budgets.device_bytes) +
                         static_cast<double>(budgets.host_bytes) +
                         static_cast<double>(budgets.nvme_bytes);
    const Model one = model.is_transformer ? with_layers(model, 1) : model;
    const double a_layer = static_cast<double>(one.parameters()) /
                           static_cast<double>(model.is_transformer ? 1 : model.layer_count()) *
                           static_cast<double>(model.parameter_bytes + model.states_of(1, false));
    const double most = std::min<double>(kLayersMax, 2 + rooms * ranks / std::max(a_layer, 1.0));
    uint64_t fits = 0;
    auto too_many = static_cast<uint64_t>(most);
    while (too_many - fits > 1) {
        const uint64_t layers = fits + (too_many - fits) / 2;
        const Model tried = with_layers(model, layers);
        const bool there =
            tried.parameters() > 0 && lay_out(tried, machine, ranks, budgets, blocks_max).ok();
        (there ? fits : too_many) = layers;
    }
    return fits;
}

}  // namespace stepwell::simulate
