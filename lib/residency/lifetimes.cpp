// SPDX-License-Identifier: Apache-2.0
// Tensors from creation, with its promise of room, to destruction.
#include "lib/residency/lifetimes.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <utility>

namespace stepwell::residency {
namespace {

constexpr size_t kPackTensorsMax = 4096;

// The end of one call's wait. Whoever repeats a call for it would do so for good if a tensor's
// contents had this code: they stay lost.
bool ends_a_wait(stw_status code)
{
    return code == STW_ERROR_TIMEOUT || code == STW_ERROR_INTERRUPTED ||
           code == STW_ERROR_CANCELLED || code == STW_ERROR_BUSY;
}

}  // namespace

// open: a shared pack, which later tensors may join.
Result<PackId> Lifetimes::new_pack(const TensorSpec &spec, const PackKey &key, bool shared,
                                   bool open)
{
    const uint64_t blocks = (spec.bytes + places_.block_bytes() - 1) / places_.block_bytes();
    if (blocks >= kNone) {
        return Status::error(STW_ERROR_LIMIT, "the tensor has too many blocks");
    }
    Pack pack;
    pack.blocks = static_cast<uint32_t>(blocks);
    pack.shared = shared;
    pack.agreed = spec.agreed;
    pack.passing = spec.passing;
    pack.frozen = spec.read_only && !shared;
    pack.key = key;
    if (spec.policy.retention == Retention::kPin) pack.pinned_home = spec.policy.home;
    pack.tensors.reserve(1);
    const PackId next = packs_.prepare(pack.blocks);
    PackTable::OpenPacks entry;
    if (open) entry.emplace(key, next);
    STW_TRY(promises_.make(pack, next, Promises::Nearer::kAny));
    const PackId id = packs_.take(std::move(pack));
    if (open) packs_.open(std::move(entry));
    return id;
}

// Uses what was prepared: nothing here can fail.
TensorId Lifetimes::take_tensor(TensorSpec &&spec, PackId pack_id, uint64_t offset)
{
    const TensorId id = tensors_.take();
    Pack &pack = packs_[pack_id];
    Tensor &tensor = tensors_[id];
    tensor = Tensor{};
    tensor.offset = offset;
    tensor.spec = std::move(spec);
    tensor.pack = pack_id;
    tensor.alive = true;
    packs_.set_contents(id, tensor.spec.reads_zero ? Contents::kValid : Contents::kEmpty);
    tensor.index_in_pack = static_cast<uint32_t>(pack.tensors.size());
    pack.used_bytes = std::max(pack.used_bytes, tensor.offset + tensor.spec.bytes);
    pack.tensors.push_back(id);
    return id;
}

// Allocations come first: if one fails, nothing has changed.
Result<TensorId> Lifetimes::create(TensorSpec spec)
{
    STW_TRY(tensors_.check_max());
    spec.bytes = std::max<uint64_t>(spec.bytes, 1);
    const bool shares = spec.bytes < places_.block_bytes() && !spec.no_packing && !spec.agreed &&
                        spec.policy.retention != Retention::kPin;
    const PackKey key{spec.role, spec.neighbour, spec.policy, spec.durable, spec.guarded};
    tensors_.prepare();
    PackId pack_id = shares ? packs_.find_open(key, spec) : kNone;
    if (pack_id == kNone) {
        Result<PackId> made = new_pack(spec, key, shares, shares);
        if (!made.ok()) return std::move(made.status());
        pack_id = made.value();
    } else {
        std::vector<TensorId> &tensors = packs_[pack_id].tensors;
        if (tensors.size() == tensors.capacity()) tensors.reserve(2 * tensors.size());
        order_.note_unscored(pack_id);
    }
    const Pack &pack = packs_[pack_id];
    const uint64_t offset =
        pack.tensors.empty() ? 0 : PackTable::next_offset(pack, spec.align_bytes);
    const TensorId id = take_tensor(std::move(spec), pack_id, offset);
    if (pack.shared && pack.tensors.size() >= kPackTensorsMax) packs_.close(key);
    order_.look_at_plan(pack_id);
    return id;
}

// Its blocks take the room at nvme that was promised for them, and are read from there as if they
// had been written back.
Result<TensorId> Lifetimes::restore(TensorSpec spec, const Stored &stored)
{
    STW_TRY(tensors_.check_max());
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
    tensors_.prepare();
    PackId pack_id = stored.pack;
    if (joins) {
        std::vector<TensorId> &tensors = packs_[pack_id].tensors;
        if (tensors.size() == tensors.capacity()) tensors.reserve(2 * tensors.size());
        order_.note_unscored(pack_id);
    } else {
        Result<PackId> made = new_pack(spec, key, stored.shares, false);
        if (!made.ok()) return std::move(made.status());
        pack_id = made.value();
        const PlaceId nvme = places_.last();
        STW_ASSERT(places_.is_nvme(nvme) && stored.there.size() == packs_[pack_id].blocks);
        for (uint32_t i = 0; i < stored.there.size(); ++i) {
            if (!stored.there[i]) continue;
            const BlockId block = packs_[pack_id].first + i;
            Replica &there = blocks_.replica(block, nvme);
            there.slot = places_.arena(nvme).take(block, false);
            there.valid = true;
            order_.count_in(block, nvme);
        }
    }
    const TensorId id = take_tensor(std::move(spec), pack_id, stored.offset);
    packs_.set_contents(id, Contents::kValid);
    order_.look_at_plan(pack_id);
    return id;
}

// No thread waits for a hint, so a hint does not make a tensor busy.
void Lifetimes::drop_hints(TensorId id, Commands &out)
{
    if (tensors_[id].fetches == 0) return;
    for (const FetchId hint : fetches_.hints_of(id)) {
        runner_.refuse(hint,
                       Status::error(STW_ERROR_CANCELLED, "%s was discarded or destroyed",
                                     tensor_text(tensors_[id].spec.name).c_str()),
                       out);
    }
}

Status Lifetimes::may_destroy(TensorId id, Commands &out)
{
    drop_hints(id, out);
    Tensor &tensor = tensors_[id];
    uint32_t pins = 0;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        pins += gates_.close(id, place);
    }
    if (tensor.readers || tensor.writer || tensor.claim_users || tensor.fetches || pins) {
        for (PlaceId place = 0; place < places_.count(); ++place) gates_.update(id, place);
        return Status::error(STW_ERROR_BUSY,
                             "%s has open views or fetches under way: %u to read it, %u to write "
                             "it, %u fetches, %u pieces of an update, a sum or a copy",
                             tensor_text(tensor.spec.name).c_str(), tensor.readers + pins,
                             tensor.writer ? 1u : 0u, tensor.fetches, tensor.claim_users);
    }
    if (tensor.claim()) {
        return Status::error(STW_ERROR_BUSY,
                             "%s has an update, a sum, a copy or a commit under way",
                             tensor_text(tensor.spec.name).c_str());
    }
    return {};
}

Status Lifetimes::destroy(TensorId id, Commands &out)
{
    STW_TRY(may_destroy(id, out));
    Tensor &tensor = tensors_[id];
    tensor.spec.reads_zero = false;  // owed zeros would take memory
    drop_contents(id, out);
    packs_.set_contents(id, Contents::kEmpty);
    tensor.alive = false;
    Pack &pack = packs_[tensor.pack];
    const TensorId moved = pack.tensors.back();
    pack.tensors[tensor.index_in_pack] = moved;
    tensors_[moved].index_in_pack = tensor.index_in_pack;
    pack.tensors.pop_back();
    if (pack.tensors.empty()) bury(tensor.pack, out);
    tensor.spec.name.clear();
    tensors_.give(id);
    runner_.advance(out);
    return {};
}

// The last tensor of the pack was destroyed: its blocks are freed now, or with their last transfer.
void Lifetimes::bury(PackId id, Commands &out)
{
    Pack &pack = packs_[id];
    if (pack.shared) packs_.close(pack.key, id);
    pack.dead = true;
    bool in_flight = false;
    for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
        ++blocks_[block].epoch;
        occupancy_.drop_all(block, out);
        in_flight |= blocks_[block].transfers > 0;
    }
    if (!in_flight) free_pack(id, out);
}

void Lifetimes::free_pack(PackId id, Commands &out)
{
    const PlaceId place = packs_[id].promised;
    promises_.give_back(packs_[id], id);
    packs_.give(id);
    out.freed_packs.push_back(id);
    if (place != kNoPlace) settle(promises_.refill(place), out);
}

// The room of these packs was promised at another place.
void Lifetimes::settle(const std::vector<PackId> &moved, Commands &out)
{
    for (const PackId id : moved) {
        occupancy_.free_kept(id, out);
        const Pack &pack = packs_[id];
        for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block)
            recency_.wake(block);
    }
    if (!moved.empty()) packs_.note_homes_changed();
}

// The tensor reads as empty (or zeros) from now on. A shared block keeps the bytes of the others,
// so that zeros have to be written there.
void Lifetimes::drop_contents(TensorId id, Commands &out)
{
    Tensor &tensor = tensors_[id];
    const Pack &pack = packs_[tensor.pack];
    tensor.cause = Status();
    packs_.set_contents(id, Contents::kEmpty);
    // A neighbour may be empty and be written for the first time now.
    const uint32_t own = (tensor.writer ? 1 : 0) + tensor.claim_users;
    if (pack.with_contents > 0 || pack.writing > own) {
        if (tensor.spec.reads_zero) owed_zeros_.insert(id);
        for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block)
            recency_.wake(block);
        return;
    }
    if (tensor.spec.reads_zero) packs_.set_contents(id, Contents::kValid);
    owed_zeros_.erase(id);
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (!gates_.uses_gates(pack, place)) continue;
        for (const TensorId at : pack.tensors) gates_.close(at, place);
    }
    for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
        ++blocks_[block].epoch;
        blocks_[block].write_failed = false;
        occupancy_.drop_all(block, out);
    }
}

Status Lifetimes::discard(TensorId id, Commands &out)
{
    drop_hints(id, out);
    Tensor &tensor = tensors_[id];
    uint32_t pins = 0;
    for (PlaceId place = 0; place < places_.count(); ++place) pins += gates_.close(id, place);
    if (tensor.readers || tensor.writer || tensor.claim_users || pins || tensor.claim()) {
        for (PlaceId place = 0; place < places_.count(); ++place) gates_.update(id, place);
        return Status::error(STW_ERROR_BUSY,
                             "%s cannot be discarded: it has open views, or an update, a copy or "
                             "a commit under way",
                             tensor_text(tensor.spec.name).c_str());
    }
    ++tensor.version;
    drop_contents(id, out);
    runner_.advance(out);
    return {};
}

Status Lifetimes::set_policy(TensorId id, const Policy &policy)
{
    Tensor &tensor = tensors_[id];
    Pack &pack = packs_[tensor.pack];
    if (pack.tensors.size() > 1) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "%s shares its block with others, so its policy cannot "
                             "change alone; give it a neighbour number of its own at creation",
                             tensor_text(tensor.spec.name).c_str());
    }
    recency_.wake_all();
    promises_.give_back(pack, tensor.pack);
    const PackKey before = pack.key;
    const PlaceId promised = pack.promised;
    const PlaceId promised_home = pack.promised_home;
    order_.rerank(tensor.pack, [&] { pack.key.policy = policy; });
    Status status = promises_.make(pack, tensor.pack, Promises::Nearer::kAsBefore);
    if (!status.ok()) {
        order_.rerank(tensor.pack, [&] { pack.key = before; });
        promises_.keep(pack, tensor.pack, promised, promised_home);  // it is still free
        return status;
    }
    pack.pinned_home = policy.retention == Retention::kPin ? policy.home : kNoPlace;
    Commands none;  // slots of nvme are not kept for bytes elsewhere
    settle({tensor.pack}, none);
    // It keeps the block for itself: tensors of the new policy may have another one open.
    packs_.close(before, tensor.pack);
    tensor.spec.policy = policy;
    return {};
}

Status Lifetimes::freeze(TensorId id, bool frozen)
{
    Tensor &tensor = tensors_[id];
    Pack &pack = packs_[tensor.pack];
    if (!pack.shared && pack.frozen != frozen) {
        const PlaceId promised = pack.promised;
        const PlaceId promised_home = pack.promised_home;
        recency_.wake_all();
        promises_.give_back(pack, tensor.pack);
        pack.frozen = frozen;
        Status status = promises_.make(pack, tensor.pack, Promises::Nearer::kAsBefore);
        if (!status.ok()) {
            pack.frozen = !frozen;
            promises_.keep(pack, tensor.pack, promised, promised_home);
            return status;
        }
    }
    tensor.spec.read_only = frozen;
    return {};
}

void Lifetimes::advise(TensorId id, Advice advice, Commands &out)
{
    Pack &pack = packs_[tensors_[id].pack];
    order_.rerank(tensors_[id].pack, [&] { pack.advice = advice; });
    for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
        if (advice != Advice::kCold) break;
        for (PlaceId place = 0; place < places_.count(); ++place) {
            if (!blocks_.replica(block, place).listed) continue;
            recency_.cool(block, place);
            write_back_.clean_soon(block, place);
        }
    }
    runner_.advance(out);
}

void Lifetimes::fail(TensorId id, const Status &cause)
{
    packs_.set_contents(id, Contents::kFailed);
    // Later fetches are refused with this error, which may name another tensor as its cause.
    Tensor &tensor = tensors_[id];
    ErrorDetail detail = cause.detail() ? *cause.detail() : ErrorDetail();
    detail.tensor = tensor.spec.name;
    detail.sentence = format_text("%s was not written to its end: %s",
                                  tensor_text(detail.tensor).c_str(), detail.sentence.c_str());
    const stw_status code = ends_a_wait(cause.code()) ? STW_ERROR_IO : cause.code();
    tensor.cause = Status(code, std::move(detail));
    for (PlaceId place = 0; place < places_.count(); ++place) gates_.close(id, place);
}

void Lifetimes::miss(TensorId id, const Status &cause)
{
    Tensor &tensor = tensors_[id];
    if (tensor.contents != Contents::kValid) return;
    tensor.cause = cause;
    for (PlaceId place = 0; place < places_.count(); ++place) gates_.close(id, place);
}

void Lifetimes::mark_valid(TensorId id)
{
    packs_.set_contents(id, Contents::kValid);
    tensors_[id].cause = Status();
    ++tensors_[id].version;
}

}  // namespace stepwell::residency
