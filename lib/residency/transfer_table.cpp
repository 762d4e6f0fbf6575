// SPDX-License-Identifier: Apache-2.0
// Transfers in flight: what a start notes, and how urgent they are.
#include "lib/residency/transfer_table.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <utility>

namespace stepwell::residency {

TransferTable::TransferTable(Places &places, BlockTable &blocks, const PackTable &packs,
                             const Addresses &addresses)
    : places_(places), blocks_(blocks), packs_(packs), addresses_(addresses)
{
    spare_.reserve(kSpareFlights);
}

// Reuses the memory of an ended transfer if there is one.
Flight &TransferTable::new_flight(TransferId id)
{
    if (spare_.empty()) return flights_[id];
    Flights::node_type node = std::move(spare_.back());
    spare_.pop_back();
    node.key() = id;
    return flights_.insert(std::move(node)).position->second;
}

void TransferTable::start(Transfer transfer, bool evicts, bool writes_back, Commands &out)
{
    const Block &block = blocks_[transfer.block];
    transfer.id = next_++;
    transfer.bytes =
        packs_[block.pack].shared ? places_.block_bytes() : packs_.bytes_used(transfer.block);
    transfer.to_slot = blocks_.replica(transfer.block, transfer.to).slot;
    // Where the slot is mapped is unknown until the transfer has ended well.
    if (!addresses_.guards(transfer.block, transfer.to))
        places_.arena(transfer.to).note_away(transfer.to_slot);
    if (transfer.kind == TransferKind::kMove) {
        transfer.from_slot = blocks_.replica(transfer.block, transfer.from).slot;
        ++blocks_.replica(transfer.block, transfer.from).reads;
    }
    transfer.tensor = packs_[block.pack].tensors.empty() ? kNone : packs_[block.pack].tensors[0];
    transfer.pack = block.pack;
    transfer.pack_offset = block.index * places_.block_bytes();
    ++blocks_[transfer.block].transfers;
    write_backs_ += writes_back;
    new_flight(transfer.id) = {transfer, block.epoch, evicts, writes_back};
    out.transfers.push_back(transfer);
}

Flight *TransferTable::find(TransferId id)
{
    const auto found = flights_.find(id);
    return found != flights_.end() ? &found->second : nullptr;
}

Flight TransferTable::finish(TransferId id)
{
    Flights::node_type over = flights_.extract(id);
    const Flight flight = over.mapped();
    if (spare_.size() < kSpareFlights) spare_.push_back(std::move(over));
    Block &block = blocks_[flight.transfer.block];
    STW_ASSERT(block.transfers > 0);
    --block.transfers;
    write_backs_ -= flight.writes_back;
    return flight;
}

void TransferTable::promote(BlockId block, Commands &out)
{
    for (auto &[id, flight] : flights_) {
        if (flight.transfer.block != block) continue;
        if (flight.transfer.urgency == Class::kDemand) continue;
        flight.transfer.urgency = Class::kDemand;
        out.promotes.push_back(id);
    }
}

void TransferTable::promote(const std::vector<Target> &targets, std::vector<TransferId> *promoted)
{
    for (auto &[transfer, flight] : flights_) {
        const BlockId block = flight.transfer.block;
        const bool waits = std::any_of(targets.begin(), targets.end(),
                                       [&](const Target &at) { return at.block == block; });
        if (!waits || flight.transfer.urgency == Class::kDemand) continue;
        flight.transfer.urgency = Class::kDemand;
        promoted->push_back(transfer);
    }
}

// Early write-backs are not urgent, unless a fetch waits for the slots they read from.
void TransferTable::hasten_write_backs(const Fetch &fetch, PlaceId place, Commands &out)
{
    if (fetch.asked.urgency != Class::kDemand) return;
    for (auto &[id, flight] : flights_) {
        Transfer &transfer = flight.transfer;
        if (transfer.from != place || transfer.urgency != Class::kIdle) continue;
        transfer.urgency = Class::kDemand;
        out.promotes.push_back(id);
    }
}

// Blocks are changing slots there: a plan made now would choose other blocks, and so on without
// end.
bool TransferTable::is_rearranging(PlaceId place) const
{
    return std::any_of(flights_.begin(), flights_.end(), [&](const auto &flight) {
        const Transfer &transfer = flight.second.transfer;
        return transfer.kind == TransferKind::kRelocate && transfer.to == place;
    });
}

// A fetch or a plan needs a transfer from the place or to it.
bool TransferTable::is_wanted(PlaceId place) const
{
    return std::any_of(flights_.begin(), flights_.end(), [&](const auto &at) {
        const Transfer &transfer = at.second.transfer;
        const bool there = transfer.from == place || transfer.to == place;
        return there && transfer.urgency != Class::kIdle;
    });
}

}  // namespace stepwell::residency
