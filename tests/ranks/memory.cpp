// SPDX-License-Identifier: Apache-2.0
// Memory: transfers take the stamps of their source when they begin and leave them at their end;
// whoever touches either meanwhile is seen.
#include "tests/ranks/memory.h"

namespace stepwell::ranks {
namespace {

bool moves_bytes(const Transfer &transfer)
{
    return transfer.kind == TransferKind::kMove || transfer.kind == TransferKind::kRelocate;
}

}  // namespace

Memory::Memory(const Config &config, Journal &journal) : journal_(journal)
{
    for (PlaceId place = 0; place < kNvme; ++place) {
        slots_[place].resize(config.places[place].blocks);
        backed_[place] = config.places[place].blocks;
        for (SlotState &slot : slots_[place]) slot.image.fill(garbage());
    }
}

Memory::Stored &Memory::on_disk(BlockId block)
{
    if (block >= disk_.size()) disk_.resize(block + 1);
    return disk_[block];
}

Slot Memory::slot_of(PlaceId place, PackId pack, uint32_t index) const
{
    const auto &packs = where_[place];
    return pack < packs.size() && index < packs[pack].size() ? packs[pack][index] : kNoSlot;
}

void Memory::learn(PlaceId place, PackId pack, uint32_t index, Slot slot)
{
    auto &packs = where_[place];
    if (pack >= packs.size()) packs.resize(pack + 1);
    if (index >= packs[pack].size()) packs[pack].resize(index + 1, kNoSlot);
    SlotState &at = slots_[place][slot];
    if (at.pack != kNone && slot_of(place, at.pack, at.index) == slot) {
        packs[at.pack][at.index] = kNoSlot;
    }
    at.pack = pack;
    at.index = index;
    packs[pack][index] = slot;
}

const Image *Memory::stored(PackId pack, uint32_t index) const
{
    if (pack >= numbers_.size() || index >= numbers_[pack].size()) return nullptr;
    const BlockId block = numbers_[pack][index];
    if (block == kNone || !disk_[block].there) return nullptr;
    const bool same = disk_[block].pack == pack && disk_[block].index == index;
    return same ? &disk_[block].image : nullptr;
}

void Memory::begin(Sent &flight)
{
    const Transfer &transfer = flight.transfer;
    if (transfer.bytes == 0 || transfer.bytes > kBlockBytes || transfer.to >= kPlaces) {
        journal_.fail("transfer %llu of %llu bytes to place %u", number(transfer.id),
                      number(transfer.bytes), transfer.to);
        return;
    }
    if (moves_bytes(transfer)) {
        begin_source(flight);
    } else {
        flight.taken.fill(transfer.kind == TransferKind::kZero ? kZeros : garbage());
    }
    if (journal_.failed()) return;
    transfer.to == kNvme ? begin_store(flight) : begin_target(flight);
}

void Memory::begin_source(Sent &flight)
{
    const Transfer &transfer = flight.transfer;
    if (transfer.from == kNvme) {
        Stored &at = on_disk(transfer.block);
        if (!at.there || at.writing) {
            journal_.fail("transfer %llu reads block %u from the disk, where it is not",
                          number(transfer.id), transfer.block);
        }
        ++at.readers;
        flight.taken = at.image;
        return;
    }
    if (transfer.from >= kPlaces || transfer.from_slot >= slots_[transfer.from].size()) {
        journal_.fail("transfer %llu reads slot %u of place %u", number(transfer.id),
                      transfer.from_slot, transfer.from);
        return;
    }
    SlotState &at = slots_[transfer.from][transfer.from_slot];
    const bool leaves = transfer.kind == TransferKind::kRelocate;
    const bool used = leaves && (at.views > 0 || at.sources > 0);
    if (at.targets > 0 || at.writers > 0 || used) {
        journal_.fail("transfer %llu reads slot %u of place %u: %u views, %u of them write, %u "
                      "readers, %u writers",
                      number(transfer.id), transfer.from_slot, transfer.from, at.views, at.writers,
                      at.sources, at.targets);
    }
    if (at.pack != kNone && (at.pack != transfer.pack || at.index != index_of(transfer))) {
        journal_.fail("transfer %llu reads slot %u of place %u, where another block is",
                      number(transfer.id), transfer.from_slot, transfer.from);
    }
    ++at.sources;
    flight.taken = at.image;
}

void Memory::begin_target(Sent &flight)
{
    const Transfer &transfer = flight.transfer;
    if (transfer.to_slot >= slots_[transfer.to].size()) {
        journal_.fail("transfer %llu writes slot %u, there are %zu", number(transfer.id),
                      transfer.to_slot, slots_[transfer.to].size());
        return;
    }
    SlotState &at = slots_[transfer.to][transfer.to_slot];
    if (at.bare || at.views > 0 || at.sources > 0 || at.targets > 0) {
        journal_.fail("transfer %llu writes slot %u of place %u: %u views, %u readers, %u "
                      "writers%s",
                      number(transfer.id), transfer.to_slot, transfer.to, at.views, at.sources,
                      at.targets, at.bare ? ", no memory" : "");
    }
    ++at.targets;
    learn(transfer.to, transfer.pack, index_of(transfer), transfer.to_slot);
    flight.torn.fill(garbage());
    at.image = flight.torn;
}

void Memory::begin_store(Sent &flight)
{
    const Transfer &transfer = flight.transfer;
    Stored &at = on_disk(transfer.block);
    if (at.writing || at.readers > 0) {
        journal_.fail("transfer %llu writes block %u to the disk while %s it there",
                      number(transfer.id), transfer.block,
                      at.writing ? "another one writes" : "somebody reads");
    }
    stored_blocks_ += !at.there;
    at.there = at.writing = true;
    at.pack = transfer.pack;
    at.index = index_of(transfer);
    flight.torn.fill(garbage());
    at.image = flight.torn;
    if (at.pack >= numbers_.size()) numbers_.resize(at.pack + 1);
    std::vector<BlockId> &blocks = numbers_[at.pack];
    if (at.index >= blocks.size()) blocks.resize(at.index + 1, kNone);
    blocks[at.index] = transfer.block;
}

void Memory::end_source(const Sent &flight)
{
    const Transfer &transfer = flight.transfer;
    const bool from_disk = transfer.from == kNvme;
    if (from_disk) --disk_[transfer.block].readers;
    if (!from_disk) --slots_[transfer.from][transfer.from_slot].sources;
    const Image &now =
        from_disk ? disk_[transfer.block].image : slots_[transfer.from][transfer.from_slot].image;
    if (now != flight.taken) {
        journal_.fail("the source of transfer %llu changed under it", number(transfer.id));
    }
}

void Memory::end_target(const Sent &flight, bool arrives)
{
    const Transfer &transfer = flight.transfer;
    const bool to_disk = transfer.to == kNvme;
    if (to_disk) disk_[transfer.block].writing = false;
    if (!to_disk) --slots_[transfer.to][transfer.to_slot].targets;
    Image &now =
        to_disk ? disk_[transfer.block].image : slots_[transfer.to][transfer.to_slot].image;
    if (now != flight.torn) {
        journal_.fail("the target of transfer %llu changed under it", number(transfer.id));
    }
    // Only the bytes in use arrive.
    const uint64_t pieces = (transfer.bytes + kPieceBytes - 1) / kPieceBytes;
    for (uint64_t i = 0; arrives && i < pieces; ++i) now[i] = flight.taken[i];
}

void Memory::end(const Sent &flight, bool arrives)
{
    if (moves_bytes(flight.transfer)) end_source(flight);
    end_target(flight, arrives);
}

void Memory::forget(const residency::Forget &forget)
{
    const BlockId block = forget.block;
    if (forget.heir != kNone) (void)on_disk(forget.heir);
    Stored &at = on_disk(block);
    if (at.readers > 0 || at.writing) {
        journal_.fail("block %u is forgotten while a transfer uses it on the disk", block);
    }
    if (forget.heir != kNone) {
        Stored &heir = on_disk(forget.heir);
        if (heir.there || !at.there) journal_.fail("block %u inherits nothing", forget.heir);
        heir = at;
        stored_blocks_ += heir.there;
    }
    stored_blocks_ -= at.there;
    at.there = false;
}

void Memory::free(PackId pack)
{
    for (auto &packs : where_) {
        if (pack < packs.size()) packs[pack].clear();
    }
    if (pack < numbers_.size()) numbers_[pack].clear();
}

void Memory::swap(const Swap &swap)
{
    make_bare(swap.place, swap.bare);
    make_backed(swap.place, swap.backed);
}

void Memory::make_bare(PlaceId place, Slot slot)
{
    SlotState &at = slots_[place][slot];
    if (at.views > 0 || at.sources > 0 || at.targets > 0 || at.bare) {
        journal_.fail("slot %u of place %u loses its memory: %u views, %u readers, %u writers%s",
                      slot, place, at.views, at.sources, at.targets,
                      at.bare ? ", a second time" : "");
    }
    at.bare = true;
    at.image.fill(garbage());
    --backed_[place];
}

void Memory::make_backed(PlaceId place, Slot slot)
{
    SlotState &at = slots_[place][slot];
    if (!at.bare) journal_.fail("slot %u of place %u gets memory twice", slot, place);
    at.bare = false;
    ++backed_[place];
}

void Memory::check_budget(PlaceId place, uint64_t blocks) const
{
    const uint64_t used = place == kNvme ? stored_blocks_ : backed_[place];
    if (used <= blocks) return;
    journal_.fail("place %u has %llu blocks, its budget is %llu", place, number(used),
                  number(blocks));
}

void Memory::pin(PlaceId place, const Slot *slots, size_t n, bool write)
{
    for (size_t i = 0; i < n; ++i) {
        SlotState &at = slots_[place][slots[i]];
        if (at.targets > 0 || at.bare || (write && at.sources > 0)) {
            journal_.fail("a view of slot %u of place %u, which %s", slots[i], place,
                          at.bare          ? "has no memory"
                          : at.targets > 0 ? "a transfer writes"
                                           : "a transfer reads, to write it");
        }
        pinned_[place] += at.views == 0;
        ++at.views;
        at.writers += write;
    }
}

void Memory::unpin(PlaceId place, const Slot *slots, size_t n, bool write)
{
    for (size_t i = 0; i < n; ++i) {
        SlotState &at = slots_[place][slots[i]];
        --at.views;
        at.writers -= write;
        pinned_[place] -= at.views == 0;
    }
}

}  // namespace stepwell::ranks
