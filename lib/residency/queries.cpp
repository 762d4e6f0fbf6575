// SPDX-License-Identifier: Apache-2.0
// What the shell and the reports ask of the core, and check(): every invariant in one place.
#include "lib/residency/queries.h"

#include <algorithm>
#include <utility>

namespace stepwell::residency {

Queries::Queries(Config config)
    : places_(std::move(config)),
      tensors_(places_),
      blocks_(places_),
      packs_(places_, tensors_, blocks_),
      promises_(places_, packs_),
      addresses_(places_, tensors_, blocks_, packs_),
      gates_(places_, tensors_, blocks_, packs_, addresses_),
      recency_(places_, blocks_, packs_),
      order_(places_, tensors_, blocks_, packs_, gates_),
      transfers_(places_, blocks_, packs_, addresses_),
      occupancy_(places_, tensors_, blocks_, packs_, addresses_, gates_, recency_, order_),
      locks_(places_, tensors_, blocks_, packs_, gates_),
      fetches_(places_, tensors_, blocks_, transfers_, locks_)
{
}

Lack Queries::lack(const Request &request) const
{
    Lack lack;
    if (request.tensor >= tensors_.size() || !tensors_[request.tensor].alive) return lack;
    const Tensor &tensor = tensors_[request.tensor];
    if (request.byte_count == 0 || request.byte_begin + request.byte_count > tensor.spec.bytes) {
        return lack;
    }
    lack.place = request.place == kAnyCpuPlace ? locks_.choose_cpu_place(request) : request.place;
    if (lack.place == kNoPlace || !may_rest_at(request.tensor, lack.place)) return lack;
    lack.readable = tensor.contents == Contents::kValid && !tensor.spec.agreed;
    lack.busy = tensor.writer || tensor.bars(0, false);
    const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
    lack.room_bytes = (range.second - range.first) * places_.block_bytes();
    const Pack &pack = packs_[tensor.pack];
    // What is pinned could not leave again for others.
    const bool empty = tensor.contents == Contents::kEmpty && !pack.shared && !tensor.spec.agreed &&
                       pack.pinned_home != lack.place;
    const BlockId first = pack.first;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        const Replica &here = blocks_.replica(block, lack.place);
        if ((here.valid && !here.doomed) || here.filling) continue;
        const PlaceId from = blocks_.choose_source(block, lack.place, 0);
        if (from == kNoPlace && empty && here.slot == kNoSlot)
            lack.vacant_bytes += places_.block_bytes();
        if (from == kNoPlace) continue;
        lack.bytes += places_.block_bytes();
        lack.from[from] += places_.block_bytes();
    }
    return lack;
}

bool Queries::has_claims(const std::function<bool(ClaimId)> &counts) const
{
    for (TensorId id = 0; id < tensors_.size(); ++id) {
        const ClaimId claim = tensors_[id].claim();
        if (claim != 0 && (!counts || counts(claim))) return true;
    }
    return false;
}

uint32_t Queries::residence(TensorId id) const
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = packs_.blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    uint32_t mask = 0;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        bool all = true;
        for (BlockId block = first + range.first; block < first + range.second; ++block) {
            const Replica &here = blocks_.replica(block, place);
            all &= here.valid && !here.doomed;
        }
        if (all) mask |= 1u << place;
    }
    return mask;
}

TensorId Queries::tensor_in(BlockId block) const
{
    const PackId pack = blocks_[block].pack;
    return packs_[pack].tensors.empty() ? kNone : packs_[pack].tensors[0];
}

uint64_t Queries::missing_bytes(const Request &request) const
{
    const Tensor &tensor = tensors_[request.tensor];
    const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
    const uint64_t begin = tensor.offset + request.byte_begin;
    const uint64_t end = begin + request.byte_count;
    uint64_t missing = 0;
    for (uint32_t index = range.first; index < range.second; ++index) {
        const Replica &here = blocks_.replica(packs_[tensor.pack].first + index, request.place);
        if (here.valid && !here.doomed) continue;
        const uint64_t block_begin = index * places_.block_bytes();
        missing +=
            std::min(end, block_begin + places_.block_bytes()) - std::max(begin, block_begin);
    }
    return missing;
}

bool Queries::are_quiet(PlaceId place, Slot first, uint32_t count, TensorId own) const
{
    const Arena &arena = places_.arena(place);
    for (Slot slot = first; slot < std::min(first + count, arena.slots()); ++slot) {
        const BlockId owner = arena.owner(slot);
        if (owner == kNone) continue;
        const PackId pack = blocks_[owner].pack;
        if (pack != tensors_[own].pack) {
            if (gates_.is_pinned(owner, place)) return false;
            continue;
        }
        uint32_t pins = blocks_.replica(owner, place).pins;
        for (const TensorId at : packs_[pack].tensors) pins += tensors_.door(at, place).gate.pins();
        if (pins > 1) return false;
    }
    return true;
}

PlaceUsage Queries::usage(PlaceId place) const
{
    PlaceUsage usage;
    usage.budget_blocks = places_.arena(place).budget();
    usage.used_blocks = places_.arena(place).used();
    usage.peak_blocks = places_.arena(place).peak();
    usage.promised_blocks = promises_.promised(place);
    usage.evictions = occupancy_.evictions(place);
    usage.planned = occupancy_.brought(place);
    for (BlockId block = recency_.coldest(place); block != kNone;
         block = blocks_.replica(block, place).hotter) {
        usage.pinned_blocks += gates_.is_pinned(block, place);
        usage.dirty_blocks += blocks_.block_state(block, place) == BlockState::kDirty;
    }
    return usage;
}

uint64_t Queries::metadata_bytes() const
{
    uint64_t bytes = tensors_.metadata_bytes() + packs_.metadata_bytes() + blocks_.metadata_bytes();
    for (PlaceId place = 0; place < places_.count(); ++place) {
        bytes += places_.arena(place).metadata_bytes();
    }
    return bytes;
}

uint64_t Queries::metadata_growth(const TensorSpec &spec) const
{
    const uint64_t block = places_.block_bytes();
    const uint64_t blocks = std::min<uint64_t>((spec.bytes + block - 1) / block, kNone);
    return tensors_.metadata_growth() + packs_.metadata_growth() + blocks_.metadata_growth(blocks);
}

// Every block has its room promised in some tier.
uint64_t Queries::metadata_bytes_max() const
{
    uint64_t blocks = 0;
    for (PlaceId place = 0; place < places_.count(); ++place)
        blocks += places_.arena(place).slots();
    const uint64_t tensors = places_.config().tensors_max;
    const uint64_t packs = std::min(blocks, tensors);
    return TensorTable::metadata_bytes_max(tensors) + PackTable::metadata_bytes_max(packs) +
           blocks_.metadata_bytes_max(blocks);
}

bool Queries::in_use(TensorId id) const
{
    const Tensor &tensor = tensors_[id];
    uint32_t pins = 0;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        pins += tensors_.door(id, place).gate.pins();
    }
    return tensor.readers > 0 || is_written(id) || pins > 0;
}

std::string Queries::check() const
{
    std::array<uint32_t, kPlacesMax> used{};
    std::array<uint32_t, kPlacesMax> coming{};
    std::array<uint64_t, kPlacesMax> holds{};
    RecencyLists::Listed listed{};
    std::vector<uint32_t> transfers(blocks_.size());
    for (const auto &[id, flight] : transfers_.flights()) ++transfers[flight.transfer.block];
    for (BlockId block = 0; block < blocks_.size(); ++block) {
        const Block &at = blocks_[block];
        if (at.transfers != transfers[block]) return format_text("block %u: transfers", block);
        for (PlaceId place = 0; place < places_.count(); ++place) {
            const Replica &here = blocks_.replica(block, place);
            const bool slots = !places_.is_nvme(place);
            const char *wrong = nullptr;
            if (here.slot == kNoSlot) {
                if (here.valid || here.filling || here.doomed || here.reads) wrong = "no slot";
                if (here.pins) wrong = "pinned without a slot";
                if (here.listed) wrong = "listed without a slot";
            } else {
                ++used[place];
                if (slots && places_.arena(place).owner(here.slot) != block)
                    wrong = "slot not its own";
                if (here.doomed && here.valid) wrong = "doomed and valid";
                if (here.evicting && !here.valid) wrong = "evicting without bytes";
            }
            coming[place] += here.evicting;
            holds[place] += here.holds;
            if (here.listed) ++listed[place][packs_[at.pack].agreed];
            if (wrong) return format_text("block %u at place %u: %s", block, place, wrong);
        }
    }
    for (const auto &[id, flight] : transfers_.flights()) {
        if (flight.transfer.kind == TransferKind::kRelocate) ++used[flight.transfer.to];
    }
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (used[place] != places_.arena(place).used()) return format_text("place %u: used", place);
        if (places_.arena(place).too_many() > 0 && !places_.is_shrinking(place)) {
            return format_text("place %u: budget", place);
        }
        if (const char *wrong = places_.arena(place).check()) {
            return format_text("place %u: %s", place, wrong);
        }
        if (coming[place] != occupancy_.coming(place))
            return format_text("place %u: coming", place);
        if (holds[place] != blocks_.holds(place)) return format_text("place %u: holds", place);
    }
    if (listed != recency_.listed()) return "the lists of recency: how many";
    if (std::string broken = order_.check(); !broken.empty()) return broken;
    return check_tensors();
}

// What is counted per pack against the tensors themselves.
std::string Queries::check_tensors() const
{
    for (PackId id = 0; id < packs_.size(); ++id) {
        const Pack &pack = packs_[id];
        Pack found;
        for (const TensorId at : pack.tensors) {
            const Tensor &tensor = tensors_[at];
            found.with_contents += tensor.contents != Contents::kEmpty;
            found.writing += (tensor.writer ? 1 : 0) + tensor.claim_users;
            for (PlaceId place = 0; place < places_.count(); ++place) {
                const Gate &gate = tensors_.door(at, place).gate;
                found.gates_open[place] += gate.is_open();
                found.gates_draining[place] += (tensor.draining >> place) & 1;
                if (!gate.is_open()) {
                    const bool marked = ((tensor.draining >> place) & 1) != 0;
                    if (gate.pins() > 0 && !marked) return format_text("tensor %u: drains", at);
                    continue;
                }
                if (!gates_.lies_whole(at, place)) {
                    return format_text("tensor %u: gate open, bytes gone", at);
                }
                if (tensor.writer) return format_text("tensor %u: gate open beside a writer", at);
                if (tensor.bars(0, false)) return format_text("tensor %u: gate open, claimed", at);
            }
        }
        if (found.with_contents != pack.with_contents) return format_text("pack %u: contents", id);
        if (found.writing != pack.writing) return format_text("pack %u: writing", id);
        if (found.gates_open != pack.gates_open) return format_text("pack %u: open gates", id);
        if (found.gates_draining != pack.gates_draining) return format_text("pack %u: drains", id);
    }
    return "";
}

}  // namespace stepwell::residency
