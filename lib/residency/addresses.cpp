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

// Of a fetch that is granted now. The library works on what it claims in the arena, out of sight;
// small tensors that share a block cannot be kept apart, and are seen together.
bool Addresses::show_targets(const Fetch &fetch)
{
    if (aliases_ == nullptr) return true;
    for (const Target &target : fetch.targets) {
        if (!guards(target.block, target.place)) continue;
        Replica &here = blocks_.replica(target.block, target.place);
        const Block &block = blocks_[target.block];
        if (!target.moves) {
            hide(target.block, target.place);
            continue;
        }
        if (here.mapped && !target.writes) continue;
        if (!aliases_->show(target.place, here.slot, block.pack, block.index, target.writes))
            return false;
        here.mapped = true;
    }
    return true;
}

// The last one who could write lets go: from now on a write without a view faults, and is not lost.
void Addresses::protect(BlockId block, PlaceId place)
{
    const Replica &here = blocks_.replica(block, place);
    if (!guards(block, place) || !here.mapped || blocks_[block].writers > 0) return;
    (void)aliases_->show(place, here.slot, blocks_[block].pack, blocks_[block].index, false);
}

void Addresses::hide(BlockId block, PlaceId place)
{
    Replica &here = blocks_.replica(block, place);
    if (!here.mapped || !guards(block, place)) return;
    aliases_->hide(place, here.slot);
    here.mapped = false;
}

// Of a slot that was taken for the block now, whose memory may still be at the address of one that
// is not guarded.
void Addresses::clear(BlockId block, PlaceId place)
{
    const Slot slot = blocks_.replica(block, place).slot;
    if (!guards(block, place) || !places_.arena(place).is_away(slot)) return;
    aliases_->hide(place, slot);
    places_.arena(place).note_home(slot);
}

// What an update has, or is about to have, or has failed to make, is out of sight, so that nobody
// reads old bytes for new ones; what views and transfers have meanwhile, when they end.
void Addresses::conceal(TensorId id)
{
    if (aliases_ == nullptr) return;
    const Tensor &tensor = tensors_[id];
    const Pack &pack = packs_[tensor.pack];
    const bool readable = tensor.contents == Contents::kValid && tensor.cause.ok();
    if (pack.shared || (tensor.claims.empty() && readable)) return;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (!guards(pack.first, place) || pack.resident[place] == 0) continue;
        if (tensors_.gate(id, place).pins() > 0) continue;
        for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
            const Replica &here = blocks_.replica(block, place);
            const bool used = here.pins > 0 || here.holds > 0 || here.reads > 0 || here.filling;
            if (here.mapped && !used) hide(block, place);
        }
    }
}

// An update came while the fetch had them.
void Addresses::conceal_asked(const Fetch &fetch)
{
    for (const Request &request : fetch.asked.requests) conceal(request.tensor);
}

}  // namespace stepwell::residency
