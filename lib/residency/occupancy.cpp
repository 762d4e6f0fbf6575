// SPDX-License-Identifier: Apache-2.0
// Replicas and their slots: what the end of a transfer changes. A replica counts as valid only
// after the completion that proves it, and a slot is free only when no transfer touches it any
// more.
#include "lib/residency/occupancy.h"
#include "lib/support/assert.h"

#include <utility>

namespace stepwell::residency {

// A plan brings the block: it is counted again when it is used or leaves, see PlannedBlocks.
void Occupancy::note_brought(BlockId block, PlaceId place)
{
    blocks_.replica(block, place).planned = true;
    ++brought_[place].brought;
}

// The bytes that were brought ahead are used.
void Occupancy::note_use(BlockId block, PlaceId place)
{
    Replica &here = blocks_.replica(block, place);
    here.fresh = false;
    if (!here.planned) return;
    here.planned = false;
    ++brought_[place].used;
}

void Occupancy::note_waste(BlockId block, PlaceId place)
{
    Replica &here = blocks_.replica(block, place);
    if (!here.planned) return;
    here.planned = false;
    ++brought_[place].wasted;
}

// A copy failed whose target was used already: the source still has the bytes, the target has
// wrong ones, and the program is notified.
void Occupancy::unsettle_target(const Flight &flight, const Status &status, Commands &out)
{
    const Transfer &transfer = flight.transfer;
    const Block &block = blocks_[transfer.block];
    Replica &here = blocks_.replica(transfer.block, transfer.to);
    if (flight.epoch != block.epoch || here.slot != transfer.to_slot || here.filling) return;
    for (const TensorId at : packs_[block.pack].tensors) {
        if (tensors_[at].contents != Contents::kEmpty) out.errors.push_back({at, status});
    }
    here.valid = false;
    recency_.wake(transfer.block, transfer.to);
    for (const TensorId at : packs_[block.pack].tensors) gates_.update(at, transfer.to);
    const bool idle = here.reads == 0 && here.holds == 0 && here.pins == 0;
    if (idle && !gates_.has_pins(packs_[block.pack], transfer.to))
        drop(transfer.block, transfer.to, out);
}

void Occupancy::settle_target(const Flight &flight, bool ok, Commands &out)
{
    const Transfer &transfer = flight.transfer;
    Replica &here = blocks_.replica(transfer.block, transfer.to);
    here.filling = false;
    const bool current = flight.epoch == blocks_[transfer.block].epoch;
    if (transfer.kind == TransferKind::kRelocate) {
        const bool whole = packs_[blocks_[transfer.block].pack].agreed;
        places_.arena(transfer.to).give(ok ? transfer.from_slot : transfer.to_slot, whole);
        if (!ok) here.slot = transfer.from_slot;
    }
    if (here.doomed || !current) {
        if (here.reads == 0) free_slot(transfer.block, transfer.to, out);
        return;
    }
    const bool unwanted = here.holds == 0 && here.pins == 0 && !here.valid;
    const bool no_bytes =
        transfer.kind == TransferKind::kMap || packs_.is_worthless(transfer.block);
    if (ok && unwanted && no_bytes && !flight.writes_back) {
        drop(transfer.block, transfer.to, out);  // the fetch was undone meanwhile
        return;
    }
    if (ok) {
        if (!addresses_.guards(transfer.block, transfer.to)) {
            here.mapped = Mapped::kWritable;
            places_.arena(transfer.to).note_mapped(here.slot, transfer.block);
        }
        if (transfer.kind != TransferKind::kMap) here.valid = true;
        recency_.wake(transfer.block);  // the bytes are at two places now
        if (here.listed) return;
        if (flight.writes_back) {
            recency_.cool(transfer.block, transfer.to);
        } else {
            recency_.heat(transfer.block, transfer.to);
        }
        return;
    }
    const bool wanted = here.holds > 0 || here.pins > 0 || here.valid;
    if (!wanted && here.reads == 0) drop(transfer.block, transfer.to, out);
}

void Occupancy::settle_source(const Flight &flight, bool ok, Commands &out)
{
    const Transfer &transfer = flight.transfer;
    if (transfer.kind != TransferKind::kMove) return;
    Replica &there = blocks_.replica(transfer.block, transfer.from);
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
    if (leaves && ok && idle && packs_.is_duplicate(transfer.block, transfer.from) &&
        gates_.try_close_all(transfer.block, transfer.from)) {
        evict(transfer.block, transfer.from, out);
    }
}

// Invalidates the replica. Its slot is freed now, or with the last transfer that uses it.
void Occupancy::drop(BlockId id, PlaceId place, Commands &out)
{
    Replica &here = blocks_.replica(id, place);
    if (here.slot == kNoSlot) return;
    const bool stale_keeps_slot = places_.is_nvme(place) && !packs_[blocks_[id].pack].dead &&
                                  here.valid && blocks_[id].writers > 0;
    here.valid = false;
    if (stale_keeps_slot) return;
    if (here.reads == 0 && !here.filling && here.pins == 0) addresses_.hide(id, place);
    if (here.evicting) {
        here.evicting = false;
        --coming_[place];
    }
    recency_.wake(id, place);  // it may keep its slot for a while, and has no contents to rest for
    if (here.reads > 0 || here.filling) {
        here.doomed = true;
        return;
    }
    if (here.holds > 0 || here.pins > 0 || packs_.awaits_bytes(id, place)) return;
    free_slot(id, place, out);
}

// At all places: the slot that is kept for its bytes last.
void Occupancy::drop_all(BlockId block, Commands &out)
{
    const PlaceId home = packs_[blocks_[block].pack].promised;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (place != home) drop(block, place, out);
    }
    if (home != kNoPlace) drop(block, home, out);
}

// Its room is promised at another place from now on: slots that were kept for bytes are free.
void Occupancy::free_kept(PackId id, Commands &out)
{
    const Pack &pack = packs_[id];
    for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
        for (PlaceId place = 0; place < places_.count(); ++place) {
            const Replica &here = blocks_.replica(block, place);
            const bool idle = here.reads == 0 && !here.filling && here.pins == 0;
            const bool kept = here.slot != kNoSlot && !here.valid && !here.doomed;
            if (kept && idle && !places_.is_nvme(place)) drop(block, place, out);
        }
    }
}

void Occupancy::evict(BlockId block, PlaceId place, Commands &out)
{
    ++evictions_[place];
    drop(block, place, out);
}

// The block is to be written, and its tensor's contents are kept as they are in another one: the
// replica at nvme is the other's from now on, unless an earlier write gave it one.
void Occupancy::keep_older(BlockId id, Commands &out)
{
    const Pack &pack = packs_[blocks_[id].pack];
    if (pack.shared) return;
    const TensorId older = tensors_[pack.tensors.front()].older;
    if (older == kNone) return;
    const PlaceId nvme = places_.last();
    const PackId older_pack = tensors_[older].pack;
    const BlockId heir = packs_[older_pack].first + blocks_[id].index;
    Replica &stored = blocks_.replica(id, nvme);
    Replica &kept = blocks_.replica(heir, nvme);
    if (kept.slot != kNoSlot) return;
    STW_ASSERT(places_.is_nvme(nvme) && stored.valid && !stored.doomed && stored.reads == 0);
    note_waste(id, nvme);
    kept.slot = std::exchange(stored.slot, kNoSlot);
    kept.valid = std::exchange(stored.valid, false);
    recency_.wake(heir);
    order_.count_out(blocks_[id].pack, nvme);
    order_.count_in(heir, nvme);
    packs_.set_contents(older, Contents::kValid);
    out.forgets.push_back({id, heir});
}

void Occupancy::free_slot(BlockId id, PlaceId place, Commands &out)
{
    Replica &here = blocks_.replica(id, place);
    STW_ASSERT(here.holds == 0 || here.doomed);
    note_waste(id, place);
    STW_ASSERT(here.pins == 0 && here.reads == 0);
    recency_.unlist(id, place);
    addresses_.hide(id, place);
    if (places_.is_nvme(place)) out.forgets.push_back({id, kNone});
    Pack &pack = packs_[blocks_[id].pack];
    places_.arena(place).give(here.slot, pack.agreed);
    order_.count_out(blocks_[id].pack, place);
    if (pack.resident[place] == 0) set_run(pack, place, kNoSlot);
    here.last_slot = here.slot;
    here.slot = kNoSlot;
    here.valid = here.doomed = here.fresh = here.filling = false;
    here.mapped = Mapped::kNot;
}

void Occupancy::take_slot(PlaceId place, BlockId block, bool whole, Slot slot, Commands &out)
{
    const Slot bare = places_.arena(place).take_at(block, whole, slot);
    if (bare != kNoSlot) out.swaps.push_back({place, slot, bare});
}

void Occupancy::hold(BlockId block, PlaceId place)
{
    Replica &here = blocks_.replica(block, place);
    blocks_.hold(block, place);
    if (!here.evicting) return;
    here.evicting = false;
    --coming_[place];
}

// Its eviction has begun. It ends with the transfer, or earlier if a fetch needs the block.
void Occupancy::note_leaving(BlockId block, PlaceId place)
{
    blocks_.replica(block, place).evicting = true;
    ++coming_[place];
}

// The slot that puts the block in one run with the others of its pack, so that views need no moves
// later. At a place that maps, its last slot: if no other block took it since, it is still mapped
// at the block's address. kNoSlot: any slot is as good.
Slot Occupancy::neighbour_slot(BlockId block, PlaceId place)
{
    Pack &pack = packs_[blocks_[block].pack];
    if (places_[place].maps) return blocks_.replica(block, place).last_slot;
    if (places_.is_nvme(place) || pack.blocks == 1) return kNoSlot;
    if (pack.run[place] == kNoSlot)
        set_run(pack, place, places_.arena(place).find_run(pack.blocks));
    if (pack.run[place] == kNoSlot) return kNoSlot;
    return pack.run[place] + blocks_[block].index;
}

void Occupancy::set_run(Pack &pack, PlaceId place, Slot begin)
{
    if (pack.run[place] != kNoSlot) {
        places_.arena(place).set_aside(pack.run[place], pack.blocks, false);
    }
    pack.run[place] = begin;
    if (begin != kNoSlot) places_.arena(place).set_aside(begin, pack.blocks, true);
}

}  // namespace stepwell::residency
