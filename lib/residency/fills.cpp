// SPDX-License-Identifier: Apache-2.0
// What a block lacks for a fetch, and the transfer that brings it.
#include "lib/residency/fills.h"
#include "lib/support/assert.h"

namespace stepwell::residency {

bool Fills::satisfied(const Target &target) const
{
    const Replica &here = blocks_.replica(target.block, target.place);
    if (target.home) return true;
    if (here.filling || here.doomed) return false;
    if (target.writes && blocks_[target.block].transfers > 0) return false;
    if (target.wanted_slot != kNoSlot && here.slot != target.wanted_slot) return false;
    if (target.needs_bytes && !here.valid) return false;
    if (addresses_.guards(target.block, target.place))
        return here.is_mapped() == target.moves || blocks_[target.block].transfers == 0;
    if (target.needs_bytes) return true;
    return here.valid || !places_[target.place].maps || here.is_mapped();
}

// Starts what the target lacks, or joins what is under way.
void Fills::start(Fetch &fetch, Target &target, Commands &out)
{
    Block &block = blocks_[target.block];
    Replica &here = blocks_.replica(target.block, target.place);
    if (block.transfers > 0 && fetch.asked.urgency == Class::kDemand) {
        transfers_.promote(target.block, out);
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
            places_.arena(target.place).give(here.slot, whole);
            here.slot = target.wanted_slot;
            start(fetch, target, out);
            return;
        }
        here.slot = target.wanted_slot;
    } else if (const PlaceId from = blocks_.choose_source(target.block, target.place, target.tried);
               from != kNoPlace && target.needs_bytes) {
        transfer.kind = TransferKind::kMove;
        transfer.from = from;
        occupancy_.note_use(target.block, from);  // what a plan brought as far as there was used
    } else if (target.needs_bytes) {
        if (blocks_.bytes_exist(target.block, target.tried)) return;
        transfer.kind = TransferKind::kZero;
    } else if (places_[target.place].maps && !here.is_mapped() &&
               !addresses_.guards(target.block, target.place)) {
        transfer.kind = TransferKind::kMap;
    } else {
        return;
    }
    here.fresh = (fetch.asked.flags & kFetchPrefetch) != 0;
    const bool brings = transfer.kind == TransferKind::kMove && !here.planned;
    if ((fetch.asked.flags & kFetchPlanned) != 0 && brings) {
        occupancy_.note_brought(target.block, target.place);
    }
    here.filling = true;
    transfers_.start(transfer, false, false, out);
}

// The tensor that was asked for and lies in the target's block; of several, the first in the call.
const std::string &Fills::hurt_name(const Fetch &fetch, const Target &target) const
{
    const Block &block = blocks_[target.block];
    for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
        const Request &request = fetch.asked.requests[i];
        const Tensor &tensor = tensors_[request.tensor];
        if (fetch.places[i] != target.place || tensor.pack != block.pack) continue;
        const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
        if (range.first <= block.index && block.index < range.second) return tensor.spec.name;
    }
    STW_ASSERT(false);  // a target without a request
    return tensors_[fetch.asked.requests.front().tensor].spec.name;
}

// A source failed: another one may still have the bytes; otherwise the fetch fails with the first
// error.
void Fills::note_failure(Fetch &fetch, Target &target, const Flight &failed, const Status &status)
{
    if (failed.transfer.kind == TransferKind::kMove) {
        target.tried |= 1u << failed.transfer.from;
        if (blocks_.choose_source(target.block, target.place, target.tried) != kNoPlace) return;
    }
    if (!fetch.error.ok()) return;
    fetch.error = status;
    ErrorDetail &detail = fetch.error.mutable_detail();
    detail.tensor = hurt_name(fetch, target);
    detail.sentence = format_text("%s cannot be fetched: %s", tensor_text(detail.tensor).c_str(),
                                  detail.sentence.c_str());
}

}  // namespace stepwell::residency
