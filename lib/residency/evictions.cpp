// SPDX-License-Identifier: Apache-2.0
// How a block leaves a place, and where its bytes go.
#include "lib/residency/evictions.h"

namespace stepwell::residency {

// Where the newest bytes go when they leave `place`; kNoPlace if room must be made there first.
PlaceId Evictions::drain_place(BlockId block, PlaceId place, Commands &out)
{
    const Pack &pack = packs_[blocks_[block].pack];
    const Policy &policy = pack.key.policy;
    const PlaceId last = places_.last();
    const bool to_nvme = places_.is_nvme(last) && victims_.may_rest(pack, last) && last != place;
    for (PlaceId to = static_cast<PlaceId>(place + 1); to < places_.count(); ++to) {
        if (places_[to].tier != Tier::kHost || !victims_.may_rest(pack, to)) continue;
        const Replica &there = blocks_.replica(block, to);
        if (there.doomed || there.filling) continue;
        if (to_nvme && policy.retention == Retention::kStream) continue;
        if (there.slot != kNoSlot || places_.arena(to).free() > 0) return to;
        const Fetch nobody;
        const BlockId colder = victims_.pick(to, nobody);
        if (colder != kNone && (!to_nvme || victims_.leaves_before(colder, block, to))) {
            if (packs_.is_duplicate(colder, to)) {
                start(colder, to, out);
                if (places_.arena(to).free() > 0) return to;
            } else if (!to_nvme) {
                if (occupancy_.coming(to) == 0) start(colder, to, out);
            }
        }
    }
    const Replica &stored = blocks_.replica(block, last);
    if (to_nvme) return stored.doomed || stored.filling ? kNoPlace : last;
    return victims_.returns(block, place) ? pack.promised : kNoPlace;
}

// True when the block has left or is on its way out.
bool Evictions::start(BlockId block, PlaceId place, Commands &out)
{
    if (!victims_.may_leave(block, place, nullptr)) return false;
    const bool duplicate = packs_.is_duplicate(block, place);
    const PlaceId to = duplicate ? kNoPlace : drain_place(block, place, out);
    if (!duplicate && to == kNoPlace) return false;
    if (!gates_.try_close_all(block, place)) return false;
    if (duplicate) {
        occupancy_.evict(block, place, out);
        return true;
    }
    start_write_back(block, place, to, true, out);
    return true;
}

void Evictions::start_write_back(BlockId block, PlaceId from, PlaceId to, bool evicts,
                                 Commands &out)
{
    // Read from the arena, not from the address: an update that comes meanwhile must be able to
    // unmap the block.
    if (!packs_[blocks_[block].pack].shared) addresses_.hide(block, from);
    Replica &there = blocks_.replica(block, to);
    if (there.slot == kNoSlot) {
        there.slot = places_.arena(to).take(block, false, occupancy_.neighbour_slot(block, to));
        order_.count_in(block, to);
        addresses_.clear(block, to);
    }
    there.filling = true;
    addresses_.hide(block, to);
    there.mapped = Mapped::kNot;
    Transfer transfer;
    transfer.block = block;
    transfer.kind = TransferKind::kMove;
    transfer.urgency = evicts ? Class::kDemand : Class::kIdle;
    transfer.from = from;
    transfer.to = to;
    if (evicts) occupancy_.note_leaving(block, from);
    transfers_.start(transfer, evicts, true, out);
}

}  // namespace stepwell::residency
