// SPDX-License-Identifier: Apache-2.0
// What programs see at the addresses of tensors while they hold no view: bytes that are there and
// valid, for reading, and nothing else. A block moves to its address or away from it only while no
// transfer has it and nobody works on it: fetches wait for that, and claims exclude each other.
#include "lib/residency/addresses.h"

namespace stepwell::residency {

bool Addresses::guards(BlockId block, PlaceId place) const
{
    return aliases_ != nullptr && places_[place].maps && packs_[blocks_[block].pack].key.guarded;
}

// Called when the fetch is granted. The library works on what it claims for itself in the arena,
// unmapped; small tensors that share a block cannot be kept apart, and are mapped together.
bool Addresses::show_targets(const Fetch &fetch)
{
    if (aliases_ == nullptr) return true;
    for (const Target &target : fetch.targets) {
        if (target.home || !guards(target.block, target.place)) continue;
        Replica &here = blocks_.replica(target.block, target.place);
        const Block &block = blocks_[target.block];
        if (!target.moves) {
            hide(target.block, target.place);
            continue;
        }
        if (here.is_mapped() && !target.writes) continue;
        if (target.writes && is_hint(fetch)) continue;  // what is in the slot is not its own
        if (!aliases_->show(target.place, here.slot, block.pack, block.index, target.writes))
            return false;
        here.mapped = target.writes ? Mapped::kWritable : Mapped::kReadable;
    }
    return true;
}

// The last writer has released its view: from now on a write without a view faults, so that no
// write is lost.
void Addresses::protect(BlockId block, PlaceId place)
{
    Replica &here = blocks_.replica(block, place);
    if (!guards(block, place) || !here.is_mapped() || blocks_[block].writers > 0) return;
    if (aliases_->show(place, here.slot, blocks_[block].pack, blocks_[block].index, false))
        here.mapped = Mapped::kReadable;
}

bool Addresses::shows(BlockId block, PlaceId place, bool writable) const
{
    if (!guards(block, place)) return false;
    const Mapped mapped = blocks_.replica(block, place).mapped;
    return mapped == Mapped::kWritable || (mapped == Mapped::kReadable && !writable);
}

bool Addresses::shows_touched(const Fetch &fetch) const
{
    const Request &request = fetch.asked.requests.front();
    return fetch.asked.touched != kNone &&
           shows(fetch.asked.touched, request.place, request.access != Access::kRead);
}

void Addresses::hide(BlockId block, PlaceId place)
{
    Replica &here = blocks_.replica(block, place);
    if (!here.is_mapped() || !guards(block, place)) return;
    aliases_->hide(place, here.slot);
    here.mapped = Mapped::kNot;
}

// The memory of a slot that was just taken for the block may still be mapped at the address of an
// unguarded block.
void Addresses::clear(BlockId block, PlaceId place)
{
    const Slot slot = blocks_.replica(block, place).slot;
    if (!guards(block, place) || !places_.arena(place).is_away(slot)) return;
    aliases_->hide(place, slot);
    places_.arena(place).note_home(slot);
}

// A tensor is unmapped while an update has it, is next for it, or has failed to make it, so that
// no thread reads old bytes for new ones. Blocks that views or transfers use follow when these end.
// A view that an access without a view left open does not count: the next access faults and waits.
void Addresses::conceal(TensorId id)
{
    if (aliases_ == nullptr) return;
    const Tensor &tensor = tensors_[id];
    const Pack &pack = packs_[tensor.pack];
    const bool readable = tensor.contents == Contents::kValid && tensor.cause.ok();
    if (pack.shared || (!tensor.bars(0, false) && readable)) return;
    const bool viewed = is_viewed(tensor);
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (!guards(pack.first, place) || pack.resident[place] == 0) continue;
        if (tensors_.gate(id, place).pins() > 0) continue;
        for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
            const Replica &here = blocks_.replica(block, place);
            const bool pinned = here.pins > 0 && viewed;
            const bool used = pinned || here.holds > 0 || here.reads > 0 || here.filling;
            if (here.is_mapped() && !used) hide(block, place);
        }
    }
}

bool Addresses::is_exposed(TensorId id, bool viewed) const
{
    const Tensor &tensor = tensors_[id];
    const Pack &pack = packs_[tensor.pack];
    if (aliases_ == nullptr || pack.shared || !tensor.bars(0, false)) return false;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (!guards(pack.first, place)) continue;
        for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
            const Replica &here = blocks_.replica(block, place);
            const bool stays = !viewed || here.holds > 0 || here.reads > 0 || here.filling;
            if (here.is_mapped() && stays) return true;
        }
    }
    return false;
}

// For updates that came while the fetch had the tensors.
void Addresses::conceal_asked(const Fetch &fetch)
{
    for (const Request &request : fetch.asked.requests) conceal(request.tensor);
}

}  // namespace stepwell::residency
