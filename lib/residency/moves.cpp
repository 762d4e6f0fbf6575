// SPDX-License-Identifier: Apache-2.0
// Transfers: what starts them, what their end changes. A replica counts as valid only after the
// completion that proves it, and a slot is free only when no transfer touches it any more.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::residency {

// Somewhere are the newest bytes, or on their way, though they cannot be read from there just now.
bool Core::bytes_exist(BlockId block, uint32_t tried) const
{
    for (PlaceId from = 0; from < places(); ++from) {
        if ((tried & (1u << from)) == 0 && replica(block, from).valid) return true;
    }
    return false;
}

bool Core::satisfied(const Target &target) const
{
    const Replica &here = replica(target.block, target.place);
    if (here.filling || here.doomed) return false;
    if (target.writes && blocks_[target.block].transfers > 0) return false;
    if (target.wanted_slot != kNoSlot && here.slot != target.wanted_slot) return false;
    if (target.needs_bytes && !here.valid) return false;
    if (guards(target.block, target.place))
        return here.mapped == target.moves || blocks_[target.block].transfers == 0;
    if (target.needs_bytes) return true;
    return here.valid || !config_.places[target.place].maps || here.mapped;
}

// Starts what the target lacks, or joins what is under way.
void Core::start_fill(Fetch &fetch, Target &target, Commands &out)
{
    Block &block = blocks_[target.block];
    Replica &here = replica(target.block, target.place);
    if (block.transfers > 0 && fetch.asked.urgency == Class::kDemand) {
        for (auto &[id, flight] : flights_) {
            if (flight.transfer.block != target.block) continue;
            if (flight.transfer.urgency == Class::kDemand) continue;
            flight.transfer.urgency = Class::kDemand;
            out.promotes.push_back(id);
        }
    }
    if (here.filling || here.doomed) return;
    const bool elsewhere = target.wanted_slot != kNoSlot && here.slot != target.wanted_slot;
    if (here.valid && !elsewhere) return;
    Transfer transfer;
    transfer.block = target.block;
    transfer.to = target.place;
    transfer.urgency = fetch.asked.urgency;
    if (elsewhere) {
        const bool whole = packs_[block.pack].agreed;
        transfer.kind = here.valid ? TransferKind::kRelocate : TransferKind::kMap;
        transfer.from = target.place;
        transfer.from_slot = here.slot;
        if (!here.valid) {
            arenas_[target.place].give(here.slot, whole);
            here.slot = target.wanted_slot;
            start_fill(fetch, target, out);
            return;
        }
        here.slot = target.wanted_slot;
    } else if (const PlaceId from = choose_source(target.block, target.place, target.tried);
               from != kNoPlace && target.needs_bytes) {
        transfer.kind = TransferKind::kMove;
        transfer.from = from;
        note_use(target.block, from);  // brought so far, it has served
    } else if (target.needs_bytes) {
        if (bytes_exist(target.block, target.tried)) return;
        transfer.kind = TransferKind::kZero;
    } else if (config_.places[target.place].maps && !here.mapped &&
               !guards(target.block, target.place)) {
        transfer.kind = TransferKind::kMap;
    } else {
        return;
    }
    here.fresh = (fetch.asked.flags & kFetchPrefetch) != 0;
    const bool brings = transfer.kind == TransferKind::kMove && !here.planned;
    if ((fetch.asked.flags & kFetchPlanned) != 0 && brings) {
        here.planned = true;
        ++brought_[target.place].brought;
    }
    here.filling = true;
    start_transfer(transfer, false, false, out);
}

uint64_t Core::block_bytes_used(BlockId block) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    const uint64_t begin = blocks_[block].index * config_.block_bytes;
    return std::min(config_.block_bytes, pack.used_bytes - begin);
}

// In the memory of one that is over, where there is such.
Flight &Core::new_flight(TransferId id)
{
    if (spare_flights_.empty()) return flights_[id];
    Flights::node_type node = std::move(spare_flights_.back());
    spare_flights_.pop_back();
    node.key() = id;
    return flights_.insert(std::move(node)).position->second;
}

void Core::start_transfer(Transfer transfer, bool evicts, bool writes_back, Commands &out)
{
    const Block &block = blocks_[transfer.block];
    transfer.id = next_transfer_++;
    transfer.bytes =
        packs_[block.pack].shared ? config_.block_bytes : block_bytes_used(transfer.block);
    transfer.to_slot = replica(transfer.block, transfer.to).slot;
    // Until it is known that it worked.
    if (!guards(transfer.block, transfer.to)) arenas_[transfer.to].note_away(transfer.to_slot);
    if (transfer.kind == TransferKind::kMove) {
        transfer.from_slot = replica(transfer.block, transfer.from).slot;
        ++replica(transfer.block, transfer.from).reads;
    }
    transfer.tensor = packs_[block.pack].tensors.empty() ? kNone : packs_[block.pack].tensors[0];
    transfer.pack = block.pack;
    transfer.pack_offset = block.index * config_.block_bytes;
    ++blocks_[transfer.block].transfers;
    write_backs_ += writes_back;
    new_flight(transfer.id) = {transfer, block.epoch, evicts, writes_back};
    out.transfers.push_back(transfer);
}

void Core::transfer_done(TransferId id, const Status &status, Instant, Commands &out)
{
    const auto found = flights_.find(id);
    STW_ASSERT(found != flights_.end());
    if (found == flights_.end()) return;
    const Flight flight = found->second;
    Flights::node_type over = flights_.extract(found);
    if (spare_flights_.size() < kSpareFlights) spare_flights_.push_back(std::move(over));
    const BlockId id_block = flight.transfer.block;
    Block &block = blocks_[id_block];
    STW_ASSERT(block.transfers > 0);
    --block.transfers;
    write_backs_ -= flight.writes_back;
    if (!flight.ordered) settle_target(flight, status.ok(), out);
    if (flight.ordered && !status.ok()) unsettle_target(flight, status, out);
    settle_source(flight, status.ok(), out);
    if (!status.ok() && flight.writes_back && flight.epoch == block.epoch) {
        block.write_failed = true;
        // All that have bytes in the block.
        for (const TensorId at : packs_[block.pack].tensors) {
            if (tensors_[at].contents != Contents::kEmpty) out.errors.push_back({at, status});
        }
    }
    // What was read from nvme is there still: its coming leaves nothing more to write back.
    const PlaceId from = flight.transfer.from;
    may_write_back_ |= !status.ok() || from == kNoPlace || !is_nvme(from);
    wake_waiters(id_block, status.ok() ? nullptr : &flight, status, out);
    Pack &pack = packs_[block.pack];
    if (!pack.shared && !pack.tensors.empty()) conceal(pack.tensors.front());
    if (pack.dead) {
        bool in_flight = false;
        for (BlockId at = pack.first; at < pack.first + pack.blocks; ++at) {
            in_flight |= blocks_[at].transfers > 0;
        }
        if (!in_flight) free_pack(block.pack, out);
    }
    for (PlaceId place = 0; place < places(); ++place) stir(id_block, place);
    advance_queue(out);
}

void Core::transfer_ordered(TransferId id, Instant, Commands &out)
{
    const auto found = flights_.find(id);
    if (found == flights_.end() || found->second.ordered) return;
    Flight &flight = found->second;
    const Transfer &transfer = flight.transfer;
    STW_ASSERT(transfer.kind == TransferKind::kMove);
    flight.ordered = true;
    settle_target(flight, true, out);
    wake_waiters(transfer.block, nullptr, {}, out);
    advance(out);
}

// The source has the bytes still. Who uses the target has others, and hears of it.
void Core::unsettle_target(const Flight &flight, const Status &status, Commands &out)
{
    const Transfer &transfer = flight.transfer;
    const Block &block = blocks_[transfer.block];
    Replica &here = replica(transfer.block, transfer.to);
    if (flight.epoch != block.epoch || here.slot != transfer.to_slot || here.filling) return;
    for (const TensorId at : packs_[block.pack].tensors) {
        if (tensors_[at].contents != Contents::kEmpty) out.errors.push_back({at, status});
    }
    here.valid = false;
    for (const TensorId at : packs_[block.pack].tensors) update_gate(at, transfer.to);
    const bool idle = here.reads == 0 && here.holds == 0 && here.pins == 0;
    if (idle && !has_pins(packs_[block.pack], transfer.to))
        drop_replica(transfer.block, transfer.to, out);
}

void Core::settle_target(const Flight &flight, bool ok, Commands &out)
{
    const Transfer &transfer = flight.transfer;
    Replica &here = replica(transfer.block, transfer.to);
    here.filling = false;
    const bool current = flight.epoch == blocks_[transfer.block].epoch;
    if (transfer.kind == TransferKind::kRelocate) {
        const bool whole = packs_[blocks_[transfer.block].pack].agreed;
        arenas_[transfer.to].give(ok ? transfer.from_slot : transfer.to_slot, whole);
        if (!ok) here.slot = transfer.from_slot;
    }
    if (here.doomed || !current) {
        if (here.reads == 0) free_slot(transfer.block, transfer.to, out);
        return;
    }
    const bool unwanted = here.holds == 0 && here.pins == 0 && !here.valid;
    const bool no_bytes = transfer.kind == TransferKind::kMap || is_worthless(transfer.block);
    if (ok && unwanted && no_bytes && !flight.writes_back) {
        free_slot(transfer.block, transfer.to, out);  // the fetch was undone meanwhile
        return;
    }
    if (ok) {
        if (!guards(transfer.block, transfer.to)) {
            here.mapped = true;
            arenas_[transfer.to].note_mapped(here.slot, transfer.block);
        }
        if (transfer.kind != TransferKind::kMap) here.valid = true;
        if (here.listed) return;
        if (flight.writes_back) {
            cool(transfer.block, transfer.to);
        } else {
            heat(transfer.block, transfer.to);
        }
        return;
    }
    const bool wanted = here.holds > 0 || here.pins > 0 || here.valid;
    if (!wanted && here.reads == 0) free_slot(transfer.block, transfer.to, out);
}

void Core::settle_source(const Flight &flight, bool ok, Commands &out)
{
    const Transfer &transfer = flight.transfer;
    if (transfer.kind != TransferKind::kMove) return;
    Replica &there = replica(transfer.block, transfer.from);
    STW_ASSERT(there.reads > 0);
    --there.reads;
    const bool leaves = flight.evicts && there.evicting;
    if (leaves) {
        there.evicting = false;
        --coming_[transfer.from];
    }
    if (there.doomed) {
        if (there.reads == 0 && !there.filling) free_slot(transfer.block, transfer.from, out);
        return;
    }
    const bool idle = there.reads == 0 && there.holds == 0 && there.pins == 0;
    if (leaves && ok && idle && is_duplicate(transfer.block, transfer.from) &&
        close_gates(transfer.block, transfer.from)) {
        ++evictions_[transfer.from];
        drop_replica(transfer.block, transfer.from, out);
    }
}

// Of a tensor without contents that nobody is writing: the replica holds zeros, or nothing.
bool Core::is_worthless(BlockId block) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.tensors.size() != 1) return false;
    const Tensor &tensor = tensors_[pack.tensors[0]];
    return tensor.contents == Contents::kEmpty && !tensor.writer && tensor.claim_users == 0;
}

// Fetches that wait for this block look again: satisfied, another source, or the error.
void Core::wake_waiters(BlockId id, const Flight *failed, const Status &status, Commands &out)
{
    std::vector<FetchId> waiters;
    waiters.swap(blocks_[id].waiters);
    for (const FetchId waiter : waiters) {
        const auto found = fetches_.find(waiter);
        if (found == fetches_.end()) continue;
        Fetch &fetch = found->second;
        bool still_waits = false;
        for (Target &target : fetch.targets) {
            if (target.block != id || !target.waiting) continue;
            const bool mine = failed && failed->transfer.to == target.place;
            if (mine) note_failure(fetch, target, *failed, status);
            if (!satisfied(target) && fetch.error.ok()) start_fill(fetch, target, out);
            const bool hopeless = !fetch.error.ok() && !replica(id, target.place).filling;
            target.waiting = !satisfied(target) && !hopeless;
            still_waits |= target.waiting;
            fetch.pending -= !target.waiting;
        }
        if (still_waits) blocks_[id].waiters.push_back(waiter);
        if (fetch.pending == 0) finish(waiter, out);
    }
}

// The tensor that was asked for and lies in the target's block; of several, the first in the call.
const std::string &Core::hurt_name(const Fetch &fetch, const Target &target) const
{
    const Block &block = blocks_[target.block];
    for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
        const Request &request = fetch.asked.requests[i];
        const Tensor &tensor = tensors_[request.tensor];
        if (fetch.places[i] != target.place || tensor.pack != block.pack) continue;
        const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
        if (range.first <= block.index && block.index < range.second) return tensor.spec.name;
    }
    STW_ASSERT(false);  // a target without a request
    return tensors_[fetch.asked.requests.front().tensor].spec.name;
}

// A source failed: another one may still have the bytes; else the fetch ends with the first cause.
void Core::note_failure(Fetch &fetch, Target &target, const Flight &failed, const Status &status)
{
    if (failed.transfer.kind == TransferKind::kMove) {
        target.tried |= 1u << failed.transfer.from;
        if (choose_source(target.block, target.place, target.tried) != kNoPlace) return;
    }
    if (!fetch.error.ok()) return;
    fetch.error = status;
    ErrorDetail &detail = fetch.error.mutable_detail();
    detail.tensor = hurt_name(fetch, target);
    detail.sentence = format_text("%s cannot be fetched: %s", tensor_text(detail.tensor).c_str(),
                                  detail.sentence.c_str());
}

// The replica is worth nothing any more. Its slot goes now, or with the last transfer that uses it.
void Core::drop_replica(BlockId id, PlaceId place, Commands &out)
{
    Replica &here = replica(id, place);
    if (here.slot == kNoSlot) return;
    const bool stale_keeps_slot =
        is_nvme(place) && !packs_[blocks_[id].pack].dead && here.valid && blocks_[id].writers > 0;
    here.valid = false;
    if (stale_keeps_slot) return;
    if (here.reads == 0 && !here.filling && here.pins == 0) hide(id, place);
    if (here.evicting) {
        here.evicting = false;
        --coming_[place];
    }
    if (here.reads > 0 || here.filling) {
        here.doomed = true;
        return;
    }
    if (here.holds > 0 || here.pins > 0) return;
    free_slot(id, place, out);
}

void Core::free_slot(BlockId id, PlaceId place, Commands &out)
{
    Replica &here = replica(id, place);
    STW_ASSERT(here.holds == 0 || here.doomed);
    note_waste(id, place);
    STW_ASSERT(here.pins == 0 && here.reads == 0);
    unlist(id, place);
    hide(id, place);
    if (is_nvme(place)) out.forgets.push_back(id);
    Pack &pack = packs_[blocks_[id].pack];
    arenas_[place].give(here.slot, pack.agreed);
    count_out(blocks_[id].pack, place);
    if (pack.resident[place] == 0) set_run(pack, place, kNoSlot);
    here.last_slot = here.slot;
    here.slot = kNoSlot;
    here.valid = here.doomed = here.mapped = here.fresh = here.filling = false;
}

// False when somebody pins through a gate; then the gates stay as they were.
bool Core::close_gates(BlockId block, PlaceId place)
{
    if (is_nvme(place)) return true;
    const Pack &pack = packs_[blocks_[block].pack];
    if (!uses_gates(pack, place)) return true;
    const std::vector<TensorId> &tensors = pack.tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
        if (try_close_gate(tensors[i], place)) continue;
        for (size_t j = 0; j < i; ++j) update_gate(tensors[j], place);
        return false;
    }
    return true;
}

}  // namespace stepwell::residency
