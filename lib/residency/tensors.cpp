// SPDX-License-Identifier: Apache-2.0
// Tensors and the packs they lie in: creation with its promise of room, discard, destruction.
#include "lib/residency/core.h"
#include "lib/support/assert.h"
#include "lib/support/growth.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>
#include <new>

namespace stepwell::residency {
namespace {

constexpr size_t kPackTensorsMax = 4096;

uint64_t align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

Core::Core(Config config) : config_(std::move(config))
{
    STW_ASSERT(config_.places.size() <= kPlacesMax);
    places_ = static_cast<PlaceId>(config_.places.size());
    if (std::has_single_bit(config_.block_bytes)) {
        block_shift_ = static_cast<uint32_t>(std::countr_zero(config_.block_bytes));
    }
    for (PlaceId place = 0; place < places(); ++place) {
        const PlaceConfig &wanted = config_.places[place];
        arenas_[place] =
            Arena(wanted.blocks, wanted.whole_blocks, wanted.tier == Tier::kNvme, wanted.maps);
        hottest_[place] = coldest_[place] = kNone;
    }
    doors_.reserve(config_.tensors_max / kDoorsChunk + 1);
    spare_fetches_.reserve(kSpareFetches);
    spare_flights_.reserve(kSpareFlights);
    spare_ranks_.reserve(kSpareRanks);
}

Core::~Core() = default;

Status Core::can_promise(PlaceId place, uint32_t blocks) const
{
    const uint32_t wholes = arenas_[place].whole_slots();
    const uint32_t budget = arenas_[place].budget() - wholes;
    const uint32_t withheld = is_nvme(place) ? withheld_ : 0;
    const uint64_t taken = uint64_t{promised_[place]} + withheld;
    if (blocks + taken <= budget) return {};
    const uint64_t block = config_.block_bytes;
    const uint64_t left = taken < budget ? budget - taken : 0;
    const uint64_t aside = arenas_[place].budget() > 0 ? config_.places[place].aside_bytes : 0;
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%s cannot promise room: %s needed; budget %s; raise the budget, allow another tier, or "
        "destroy what is not needed",
        place_name(place).c_str(), bytes_text(blocks * block).c_str(),
        sum_text({{aside, "for staging and scratch"},
                  {wholes * block, "for gathered wholes"},
                  {promised_[place] * block, "promised to other tensors"},
                  {withheld * block, "kept for generations of tensors that are gone or frozen"},
                  {left * block, "left"}})
            .c_str());
    ErrorDetail &detail = status.mutable_detail();
    detail.tier = static_cast<uint32_t>(config_.places[place].tier);
    detail.device = config_.places[place].device;
    detail.needed_bytes = blocks * block;
    detail.free_bytes = left * block;
    return status;
}

// Of devices alone none is farther than another: its home, or where most room is left.
PlaceId Core::device_to_promise(const Pack &pack, PlaceId last) const
{
    const Policy &policy = pack.key.policy;
    PlaceId best = kNoPlace;
    uint32_t most = 0;
    for (PlaceId place = 0; place <= last; ++place) {
        if (!is_open(place) || !(policy.allowed & (1u << place))) continue;
        const uint32_t left =
            arenas_[place].budget() - arenas_[place].whole_slots() - promised_[place];
        if (place == policy.home && left >= pack.blocks) return place;
        if (best != kNoPlace && left <= most) continue;
        best = place;
        most = left;
    }
    return best;
}

PlaceId Core::place_to_promise(const Pack &pack) const
{
    PlaceId farthest = kNoPlace;
    for (PlaceId place = 0; place < places(); ++place) {
        if (is_open(place) && (pack.key.policy.allowed & (1u << place))) farthest = place;
    }
    if (farthest == kNoPlace || config_.places[farthest].tier != Tier::kDevice) return farthest;
    return device_to_promise(pack, farthest);
}

// The farthest tier it may live in keeps room for it, so that eviction always has somewhere to go;
// and so does the home of what never leaves it.
Status Core::promise(Pack &pack)
{
    if (pack.agreed) return {};
    const Policy &policy = pack.key.policy;
    const PlaceId farthest = place_to_promise(pack);
    if (farthest == kNoPlace) {
        for (PlaceId place = 0; place < places(); ++place) {
            if (exists(place) && (policy.allowed & (1u << place))) return can_promise(place, 1);
        }
        return Status::error(STW_ERROR_INVALID,
                             "the tensor's policy allows no tier that exists; every tier it allows "
                             "has a budget of 0");
    }
    STW_TRY(can_promise(farthest, promised_blocks(pack, farthest)));
    const bool stays = policy.retention == Retention::kPin && policy.home < places() &&
                       policy.home != farthest && exists(policy.home);
    if (stays) STW_TRY(can_promise(policy.home, pack.blocks));
    keep_promise(pack, farthest, stays ? policy.home : kNoPlace);
    return {};
}

void Core::keep_promise(Pack &pack, PlaceId place, PlaceId home)
{
    pack.promised = place;
    pack.promised_home = home;
    if (place != kNoPlace) promised_[place] += promised_blocks(pack, place);
    if (home != kNoPlace) promised_[home] += pack.blocks;
}

// What was made while the place had no budget may rest there from now on, as far as the room goes.
void Core::promise_farther(PlaceId place)
{
    for (PackId id = 0; id < packs_.size(); ++id) {
        Pack &pack = packs_[id];
        if (pack.blocks == 0 || pack.agreed || pack.promised == kNoPlace) continue;
        if (pack.promised >= place || config_.places[place].tier == Tier::kDevice) continue;
        if (pack.pinned_home == pack.promised || pack.promised_home == place) continue;
        if (!(pack.key.policy.allowed & (1u << place))) continue;
        if (!can_promise(place, promised_blocks(pack, place)).ok()) continue;
        promised_[pack.promised] -= promised_blocks(pack, pack.promised);
        promised_[place] += promised_blocks(pack, place);
        pack.promised = place;
    }
}

void Core::unpromise(const Pack &pack)
{
    if (pack.promised != kNoPlace) promised_[pack.promised] -= promised_blocks(pack, pack.promised);
    if (pack.promised_home != kNoPlace) promised_[pack.promised_home] -= pack.blocks;
}

// What follows makes room in the tables for one more, so that nothing can fail once it is taken.
void Core::prepare_tensor()
{
    if (!free_tensors_.empty()) return;
    const size_t ids = tensors_.size() + 1;
    grow_to_hold(free_tensors_, ids);
    if (doors_.size() * kDoorsChunk < ids) doors_.push_back(std::make_unique<Doors[]>(kDoorsChunk));
    tensors_.emplace_back();
    free_tensors_.push_back(static_cast<TensorId>(ids - 1));
}

void Core::prepare_pack(uint32_t blocks)
{
    if (free_packs_.empty()) {
        grow_to_hold(free_packs_, packs_.size() + 1);
        packs_.emplace_back();
        free_packs_.push_back(static_cast<PackId>(packs_.size() - 1));
    }
    if (free_blocks_.has(blocks)) return;
    const size_t first = blocks_.size();
    grow_to_hold(blocks_, first + blocks);
    grow_to_hold(replicas_, (first + blocks) * places());
    free_blocks_.give(static_cast<BlockId>(first), blocks);
    blocks_.resize(first + blocks);
    replicas_.resize((first + blocks) * places());
}

// Of a pack that keeps its promise, over what was prepared.
PackId Core::take_pack(Pack &&pack)
{
    const PackId id = free_packs_.back();
    free_packs_.pop_back();
    pack.first = free_blocks_.take(pack.blocks);
    for (uint32_t i = 0; i < pack.blocks; ++i) {
        Block &block = blocks_[pack.first + i];
        const uint32_t epoch = block.epoch + 1;
        block = Block{};
        block.pack = id;
        block.index = i;
        block.epoch = epoch;
        for (PlaceId place = 0; place < places(); ++place) {
            replica(pack.first + i, place).last_slot = kNoSlot;  // of an address that is no more
        }
    }
    packs_[id] = std::move(pack);
    return id;
}

// A shared block with room for the tensor; kNone when there is none.
PackId Core::open_pack(const PackKey &key, const TensorSpec &spec) const
{
    const auto open = open_packs_.find(key);
    if (open == open_packs_.end()) return kNone;
    const uint64_t offset = align_up(packs_[open->second].used_bytes, spec.align_bytes);
    return offset + spec.bytes <= config_.block_bytes ? open->second : kNone;
}

// Open: of a shared one, that tensors to come may lie in it too.
Result<PackId> Core::new_pack(const TensorSpec &spec, const PackKey &key, bool shared, bool open)
{
    const uint64_t blocks = (spec.bytes + config_.block_bytes - 1) / config_.block_bytes;
    if (blocks >= kNone) {
        return Status::error(STW_ERROR_LIMIT, "the tensor has too many blocks");
    }
    Pack pack;
    pack.blocks = static_cast<uint32_t>(blocks);
    pack.shared = shared;
    pack.agreed = spec.agreed;
    pack.frozen = spec.read_only && !shared;
    pack.key = key;
    if (spec.policy.retention == Retention::kPin) pack.pinned_home = spec.policy.home;
    pack.tensors.reserve(1);
    prepare_pack(pack.blocks);
    std::map<PackKey, PackId> entry;
    if (open) entry.emplace(key, free_packs_.back());
    STW_TRY(promise(pack));
    const PackId id = take_pack(std::move(pack));
    if (open) {
        open_packs_.erase(key);
        open_packs_.merge(entry);
    }
    return id;
}

Status Core::check_tensors_max() const
{
    if (!free_tensors_.empty() || tensors_.size() < config_.tensors_max) return {};
    return Status::error(STW_ERROR_LIMIT,
                         "%u tensors exist, as many as tensors_max allows; raise it when opening "
                         "the runtime",
                         config_.tensors_max);
}

// Over what was prepared.
TensorId Core::take_tensor(TensorSpec &&spec, PackId pack_id, uint64_t offset)
{
    const TensorId id = free_tensors_.back();
    free_tensors_.pop_back();
    Pack &pack = packs_[pack_id];
    Tensor &tensor = tensors_[id];
    tensor = Tensor{};
    tensor.offset = offset;
    tensor.spec = std::move(spec);
    tensor.pack = pack_id;
    tensor.alive = true;
    set_contents(id, tensor.spec.reads_zero ? Contents::kValid : Contents::kEmpty);
    tensor.index_in_pack = static_cast<uint32_t>(pack.tensors.size());
    pack.used_bytes = std::max(pack.used_bytes, tensor.offset + tensor.spec.bytes);
    pack.tensors.push_back(id);
    return id;
}

// Memory that is refused on the way is refused before anything has changed.
Result<TensorId> Core::create(TensorSpec spec)
{
    STW_TRY(check_tensors_max());
    spec.bytes = std::max<uint64_t>(spec.bytes, 1);
    const bool shares = spec.bytes < config_.block_bytes && !spec.no_packing && !spec.agreed &&
                        spec.policy.retention != Retention::kPin;
    const PackKey key{spec.role, spec.neighbour, spec.policy, spec.durable, spec.guarded};
    prepare_tensor();
    PackId pack_id = shares ? open_pack(key, spec) : kNone;
    if (pack_id == kNone) {
        Result<PackId> made = new_pack(spec, key, shares, shares);
        if (!made.ok()) return std::move(made.status());
        pack_id = made.value();
    } else {
        std::vector<TensorId> &tensors = packs_[pack_id].tensors;
        if (tensors.size() == tensors.capacity()) tensors.reserve(2 * tensors.size());
        note_unscored(pack_id);
    }
    const Pack &pack = packs_[pack_id];
    const uint64_t offset = pack.tensors.empty() ? 0 : align_up(pack.used_bytes, spec.align_bytes);
    const TensorId id = take_tensor(std::move(spec), pack_id, offset);
    if (pack.shared && pack.tensors.size() >= kPackTensorsMax) open_packs_.erase(key);
    look_at_plan(pack_id);
    return id;
}

// Its blocks are counted at nvme, where room was promised for them, and read from there as if they
// had been written back.
Result<TensorId> Core::restore(TensorSpec spec, const Stored &stored)
{
    STW_TRY(check_tensors_max());
    const PackKey key{spec.role, spec.neighbour, spec.policy, spec.durable, spec.guarded};
    const bool joins = stored.pack != kNone && !packs_[stored.pack].dead;
    if (joins && (packs_[stored.pack].key < key || key < packs_[stored.pack].key)) {
        return Status::error(
            STW_ERROR_MISMATCH,
            "%s lies in one block with %s, from before, and is now "
            "created with another role, neighbour, policy or STW_TENSOR_NO_ADDRESS; create both "
            "alike",
            tensor_text(spec.name).c_str(),
            tensor_text(tensors_[packs_[stored.pack].tensors[0]].spec.name).c_str());
    }
    prepare_tensor();
    PackId pack_id = stored.pack;
    if (joins) {
        std::vector<TensorId> &tensors = packs_[pack_id].tensors;
        if (tensors.size() == tensors.capacity()) tensors.reserve(2 * tensors.size());
        note_unscored(pack_id);
    } else {
        Result<PackId> made = new_pack(spec, key, stored.shares, false);
        if (!made.ok()) return std::move(made.status());
        pack_id = made.value();
        const PlaceId nvme = static_cast<PlaceId>(places() - 1);
        STW_ASSERT(is_nvme(nvme) && stored.there.size() == packs_[pack_id].blocks);
        for (uint32_t i = 0; i < stored.there.size(); ++i) {
            if (!stored.there[i]) continue;
            const BlockId block = packs_[pack_id].first + i;
            Replica &there = replica(block, nvme);
            there.slot = arenas_[nvme].take(block, false);
            there.valid = true;
            count_in(block, nvme);
        }
    }
    const TensorId id = take_tensor(std::move(spec), pack_id, stored.offset);
    set_contents(id, Contents::kValid);
    look_at_plan(pack_id);
    return id;
}

// Nobody waits for a hint, so it does not keep a tensor busy either.
void Core::drop_hints(TensorId id, Commands &out)
{
    if (tensors_[id].fetches == 0) return;
    std::vector<FetchId> hints;
    for (const auto &[at, fetch] : fetches_) {
        if ((fetch.asked.flags & kFetchPrefetch) == 0) continue;
        const bool names = std::any_of(fetch.asked.requests.begin(), fetch.asked.requests.end(),
                                       [id](const Request &asked) { return asked.tensor == id; });
        if (names) hints.push_back(at);
    }
    std::sort(hints.begin(), hints.end());
    for (const FetchId hint : hints) {
        refuse(hint,
               Status::error(STW_ERROR_CANCELLED, "%s was discarded or destroyed",
                             tensor_text(tensors_[id].spec.name).c_str()),
               out);
    }
}

Status Core::may_destroy(TensorId id, Commands &out)
{
    drop_hints(id, out);
    Tensor &tensor = tensors_[id];
    uint32_t pins = 0;
    for (PlaceId place = 0; place < places(); ++place) {
        pins += close_gate(id, place);
    }
    if (tensor.readers || tensor.writer || tensor.claim_users || tensor.fetches || pins) {
        for (PlaceId place = 0; place < places(); ++place) update_gate(id, place);
        return Status::error(STW_ERROR_BUSY, "%s has open views or fetches under way",
                             tensor_text(tensor.spec.name).c_str());
    }
    if (tensor.claim()) {
        return Status::error(STW_ERROR_BUSY, "%s has an update or a reduce under way",
                             tensor_text(tensor.spec.name).c_str());
    }
    return {};
}

Status Core::destroy(TensorId id, Commands &out)
{
    STW_TRY(may_destroy(id, out));
    Tensor &tensor = tensors_[id];
    drop_contents(id, out);
    set_contents(id, Contents::kEmpty);
    tensor.alive = false;
    Pack &pack = packs_[tensor.pack];
    const TensorId moved = pack.tensors.back();
    pack.tensors[tensor.index_in_pack] = moved;
    tensors_[moved].index_in_pack = tensor.index_in_pack;
    pack.tensors.pop_back();
    if (pack.tensors.empty()) bury(tensor.pack, out);
    tensor.spec.name.clear();
    free_tensors_.push_back(id);
    advance(out);
    return {};
}

// The pack has no tensor any more: its blocks go now, or with their last transfer.
void Core::bury(PackId id, Commands &out)
{
    Pack &pack = packs_[id];
    if (pack.shared) {
        const auto open = open_packs_.find(pack.key);
        if (open != open_packs_.end() && open->second == id) open_packs_.erase(open);
    }
    pack.dead = true;
    bool in_flight = false;
    for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
        ++blocks_[block].epoch;
        for (PlaceId place = 0; place < places(); ++place) drop_replica(block, place, out);
        in_flight |= blocks_[block].transfers > 0;
    }
    if (!in_flight) free_pack(id, out);
}

void Core::free_pack(PackId id, Commands &out)
{
    Pack &pack = packs_[id];
    unpromise(pack);
    try {
        free_blocks_.give(pack.first, pack.blocks);
    } catch (const std::bad_alloc &) {
        // The numbers are not used again; everything else is.
    }
    pack = Pack{};
    free_packs_.push_back(id);
    out.freed_packs.push_back(id);
}

// The tensor reads as empty (or zeros) from now on. Blocks that it shares keep the others' bytes.
void Core::drop_contents(TensorId id, Commands &out)
{
    Tensor &tensor = tensors_[id];
    const Pack &pack = packs_[tensor.pack];
    tensor.cause = Status();
    set_contents(id, Contents::kEmpty);
    // A neighbour may be empty still, but being written for the first time.
    const uint32_t own = (tensor.writer ? 1 : 0) + tensor.claim_users;
    if (pack.with_contents > 0 || pack.writing > own) return;
    if (tensor.spec.reads_zero) set_contents(id, Contents::kValid);
    for (PlaceId place = 0; place < places(); ++place) {
        if (!uses_gates(pack, place)) continue;
        for (const TensorId at : pack.tensors) close_gate(at, place);
    }
    for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
        ++blocks_[block].epoch;
        blocks_[block].write_failed = false;
        for (PlaceId place = 0; place < places(); ++place) drop_replica(block, place, out);
    }
}

Status Core::discard(TensorId id, Commands &out)
{
    drop_hints(id, out);
    Tensor &tensor = tensors_[id];
    uint32_t pins = 0;
    for (PlaceId place = 0; place < places(); ++place) pins += close_gate(id, place);
    if (tensor.readers || tensor.writer || tensor.claim_users || pins || tensor.claim()) {
        for (PlaceId place = 0; place < places(); ++place) update_gate(id, place);
        return Status::error(STW_ERROR_BUSY,
                             "%s cannot be discarded: it has open views or an update "
                             "under way",
                             tensor_text(tensor.spec.name).c_str());
    }
    ++tensor.version;
    drop_contents(id, out);
    advance(out);
    return {};
}

Status Core::set_policy(TensorId id, const Policy &policy)
{
    Tensor &tensor = tensors_[id];
    Pack &pack = packs_[tensor.pack];
    if (pack.tensors.size() > 1) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "%s shares its block with others, so its policy cannot "
                             "change alone; give it a neighbour number of its own at creation",
                             tensor_text(tensor.spec.name).c_str());
    }
    unpromise(pack);
    const PackKey before = pack.key;
    const PlaceId promised = pack.promised;
    const PlaceId promised_home = pack.promised_home;
    rerank(tensor.pack, [&] { pack.key.policy = policy; });
    Status status = promise(pack);
    if (!status.ok()) {
        rerank(tensor.pack, [&] { pack.key = before; });
        keep_promise(pack, promised, promised_home);  // the room is still there
        return status;
    }
    pack.pinned_home = policy.retention == Retention::kPin ? policy.home : kNoPlace;
    // Alone in its block, it stays that; those of the new policy may have another one open.
    const auto open = open_packs_.find(before);
    if (open != open_packs_.end() && open->second == tensor.pack) open_packs_.erase(open);
    tensor.spec.policy = policy;
    return {};
}

Status Core::freeze(TensorId id, bool frozen)
{
    Tensor &tensor = tensors_[id];
    Pack &pack = packs_[tensor.pack];
    if (!pack.shared && pack.frozen != frozen) {
        const PlaceId promised = pack.promised;
        const PlaceId promised_home = pack.promised_home;
        unpromise(pack);
        pack.frozen = frozen;
        Status status = promise(pack);
        if (!status.ok()) {
            pack.frozen = !frozen;
            keep_promise(pack, promised, promised_home);
            return status;
        }
    }
    tensor.spec.read_only = frozen;
    return {};
}

void Core::advise(TensorId id, Advice advice, Commands &out)
{
    Pack &pack = packs_[tensors_[id].pack];
    rerank(tensors_[id].pack, [&] { pack.advice = advice; });
    for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
        if (advice != Advice::kCold) break;
        for (PlaceId place = 0; place < places(); ++place) {
            if (!replica(block, place).listed) continue;
            cool(block, place);
            clean_soon(block, place);
        }
    }
    advance(out);
}

void Core::fail(TensorId id, const Status &cause)
{
    set_contents(id, Contents::kFailed);
    // Later fetches are refused with it, and the cause may lie in another tensor.
    Tensor &tensor = tensors_[id];
    tensor.cause = cause;
    ErrorDetail &detail = tensor.cause.mutable_detail();
    detail.tensor = tensor.spec.name;
    detail.sentence = format_text("%s was not written to its end: %s",
                                  tensor_text(detail.tensor).c_str(), detail.sentence.c_str());
    for (PlaceId place = 0; place < places(); ++place) close_gate(id, place);
}

void Core::miss(TensorId id, const Status &cause)
{
    Tensor &tensor = tensors_[id];
    if (tensor.contents != Contents::kValid) return;
    tensor.cause = cause;
    for (PlaceId place = 0; place < places(); ++place) close_gate(id, place);
}

void Core::mark_valid(TensorId id)
{
    set_contents(id, Contents::kValid);
    tensors_[id].cause = Status();
    ++tensors_[id].version;
}

void Core::set_contents(TensorId id, Contents contents)
{
    Tensor &tensor = tensors_[id];
    uint32_t &count = packs_[tensor.pack].with_contents;
    count -= tensor.contents != Contents::kEmpty;
    count += contents != Contents::kEmpty;
    tensor.contents = contents;
}

}  // namespace stepwell::residency
