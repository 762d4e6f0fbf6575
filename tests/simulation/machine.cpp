// SPDX-License-Identifier: Apache-2.0
// Machine: executing commands, moving stamps, failing at a seeded rate.
#include "tests/simulation/machine.h"

namespace stepwell::simulation {

Machine::Machine(const Config &config, Random &random, Journal &journal)
    : core(config),
      loop(*this),
      memories(config),
      random_(random),
      journal_(journal),
      config_(config)
{
    for (const PlaceConfig &place : config.places) {
        const uint32_t slots = place.tier == Tier::kNvme ? 0 : place.blocks;
        pins_.emplace_back(slots);
        homes_.emplace_back(slots);
        slots_.emplace_back();
    }
}

void Machine::submit(std::vector<Transfer> &submitted, Commands &)
{
    for (const Transfer &transfer : submitted) begin(transfer);
}

void Machine::promote(TransferId transfer)
{
    if (flying_.count(transfer) > 0 || ended_together_.count(transfer) > 0) return;
    journal_.fail("transfer %llu is promoted but not in flight", (unsigned long long)transfer);
}

void Machine::forget(const residency::Forget &forget)
{
    const BlockId block = forget.block;
    journal_.line("  forget block %u", block);
    for (const auto &[id, flight] : flying_) {
        const Transfer &transfer = flight.transfer;
        if (transfer.block != block) continue;
        for (const PlaceId place : {transfer.from, transfer.to}) {
            if (place != kNoPlace && config_.places[place].tier == Tier::kNvme) {
                journal_.fail("block %u is forgotten while transfer %llu uses its slot", block,
                              (unsigned long long)id);
            }
        }
    }
    if (forget.heir != kNone) {
        journal_.line("    whose slot is block %u's now", forget.heir);
        if (memories.nvme.count(forget.heir) > 0 || memories.nvme.count(block) == 0) {
            journal_.fail("block %u is to have the slot of block %u, and one of them has not what "
                          "that needs",
                          forget.heir, block);
        } else {
            memories.nvme[forget.heir] = std::move(memories.nvme[block]);
            const auto [pack, index] = heirs_.at(forget.heir);
            packs_[forget.heir] = pack;
            blocks_[key(pack, index)] = forget.heir;
            if (rotten_.count(block) > 0) rotten_.insert(forget.heir);
        }
    }
    memories.nvme.erase(block);
    rotten_.erase(block);
    packs_.erase(block);
}

void Machine::know_heirs(const TensorBlocks &blocks, PackId pack)
{
    for (uint32_t index = 0; index < blocks.count; ++index)
        heirs_[blocks.first + index] = {pack, index};
}

void Machine::swap_memory(std::vector<Swap> &swaps)
{
    for (const Swap &swap : swaps) {
        journal_.line("  slot %u of place %u gives its memory to slot %u", swap.bare, swap.place,
                      swap.backed);
        if (!pins_[swap.place][swap.backed].bare) {
            journal_.fail("slot %u of place %u is backed twice", swap.backed, swap.place);
        }
        make_bare(swap.place, swap.bare);
        make_backed(swap.place, swap.backed);
    }
}

void Machine::make_bare(PlaceId place, Slot slot)
{
    Pins &pins = pins_[place][slot];
    if (pins.views > 0 || pins.sources > 0 || pins.targets > 0 || pins.bare) {
        journal_.fail("slot %u of place %u loses its memory: %u views, %u readers, %u writers%s",
                      slot, place, pins.views, pins.sources, pins.targets,
                      pins.bare ? ", a second time" : "");
    }
    pins.bare = true;
    pins.away = false;
    memories.scramble(memories.slot(place, slot));
    forget(place, slot);
}

void Machine::take_pack(PackId pack, bool shares)
{
    if (taken_packs_.insert(pack).second || shares) return;
    journal_.fail("pack %u is taken, and those whose it was are gone; nobody was told", pack);
}

void Machine::pack_freed(PackId pack)
{
    taken_packs_.erase(pack);
    for (const auto &[id, flight] : flying_) {
        if (flight.transfer.pack != pack) continue;
        journal_.fail("pack %u is freed under transfer %llu", pack, (unsigned long long)id);
    }
    // Its addresses are gone; the next pack of this number has others.
    for (PlaceId place = 0; place < homes_.size(); place++) {
        for (Slot slot = 0; slot < homes_[place].size(); slot++) {
            if (homes_[place][slot].pack == pack) forget(place, slot);
        }
    }
}

void Machine::begin(const Transfer &transfer)
{
    static const char *const kKinds[] = {"move", "zero", "map", "relocate"};
    journal_.line("  transfer %llu %s block %u (pack %u + %llu) %d:%d -> %d:%d",
                  (unsigned long long)transfer.id, kKinds[static_cast<int>(transfer.kind)],
                  transfer.block, transfer.pack, (unsigned long long)transfer.pack_offset,
                  static_cast<int8_t>(transfer.from), static_cast<int32_t>(transfer.from_slot),
                  static_cast<int8_t>(transfer.to), static_cast<int32_t>(transfer.to_slot));
    transfers++;
    if (flying_.count(transfer.id) > 0) {
        journal_.fail("transfer id %llu is used twice", (unsigned long long)transfer.id);
        return;
    }
    Flight flight;
    flight.transfer = transfer;
    if (transfer.bytes == 0 || transfer.bytes > kBlockBytes) {
        journal_.fail("transfer %llu of %llu bytes", (unsigned long long)transfer.id,
                      (unsigned long long)transfer.bytes);
    }
    const bool reads =
        transfer.kind == TransferKind::kMove || transfer.kind == TransferKind::kRelocate;
    if (reads) check_source(transfer);
    check_target(transfer);
    if (journal_.failed()) return;
    choose_fault(flight);

    Instant duration = random_.between(1, 1000);
    if (random_.chance(faults.stall_percent)) duration *= 100;
    const Instant captured = random_.between(0, duration);
    queue_.push({now_ + captured, order_++, transfer.id, false});
    queue_.push({now_ + duration, order_++, transfer.id, true});
    flying_.emplace(transfer.id, std::move(flight));
}

void Machine::check_source(const Transfer &transfer)
{
    if (transfer.from >= config_.places.size()) {
        journal_.fail("transfer %llu has no source", (unsigned long long)transfer.id);
        return;
    }
    if (config_.places[transfer.from].tier == Tier::kNvme) {
        if (memories.nvme.count(transfer.block) == 0) {
            journal_.fail("transfer %llu reads block %u from nvme, where it is not",
                          (unsigned long long)transfer.id, transfer.block);
        }
        return;
    }
    if (transfer.from_slot >= pins_[transfer.from].size()) {
        journal_.fail("transfer %llu reads slot %u", (unsigned long long)transfer.id,
                      transfer.from_slot);
        return;
    }
    Pins &pins = pins_[transfer.from][transfer.from_slot];
    if (pins.targets > 0 || pins.writers > 0) {
        journal_.fail("transfer %llu reads slot %u of place %u, which is being written",
                      (unsigned long long)transfer.id, transfer.from_slot, transfer.from);
    }
    const bool moves_away = transfer.kind == TransferKind::kRelocate;
    if (moves_away && (pins.views > 0 || pins.sources > 0)) {
        journal_.fail("transfer %llu moves bytes that are in use out of slot %u",
                      (unsigned long long)transfer.id, transfer.from_slot);
    }
    const Home &home = homes_[transfer.from][transfer.from_slot];
    const bool same = home.pack == transfer.pack && home.index == index_of(transfer);
    if (home.pack != kNone && !same) {
        journal_.fail("transfer %llu reads slot %u, where another block was put since",
                      (unsigned long long)transfer.id, transfer.from_slot);
    }
    pins.sources++;
}

void Machine::check_target(const Transfer &transfer)
{
    if (transfer.to >= config_.places.size()) {
        journal_.fail("transfer %llu has no target", (unsigned long long)transfer.id);
        return;
    }
    const PackId pack = transfer.pack;
    const uint64_t index = index_of(transfer);
    if (config_.places[transfer.to].tier == Tier::kNvme) {
        for (const auto &[id, other] : flying_) {
            const Transfer &flying = other.transfer;
            if (flying.block != transfer.block) continue;
            if (flying.to == transfer.to || flying.from == transfer.to) {
                journal_.fail("transfer %llu writes block %u to nvme while %llu uses it there",
                              (unsigned long long)transfer.id, transfer.block,
                              (unsigned long long)id);
            }
        }
        memories.scramble(memories.nvme[transfer.block]);  // torn until it is complete
        blocks_[key(pack, index)] = transfer.block;
        packs_[transfer.block] = pack;
        rotten_.erase(transfer.block);
        if (memories.nvme.size() > config_.places[transfer.to].blocks) {
            journal_.fail("%zu blocks on nvme, the budget is %u", memories.nvme.size(),
                          config_.places[transfer.to].blocks);
        }
        return;
    }
    if (transfer.to_slot >= pins_[transfer.to].size()) {
        journal_.fail("transfer %llu writes slot %u, there are %zu",
                      (unsigned long long)transfer.id, transfer.to_slot, pins_[transfer.to].size());
        return;
    }
    Pins &pins = pins_[transfer.to][transfer.to_slot];
    if (pins.bare) {
        journal_.fail("transfer %llu writes slot %u of place %u, which has no memory",
                      (unsigned long long)transfer.id, transfer.to_slot, transfer.to);
    }
    if (pins.views > 0 || pins.sources > 0 || pins.targets > 0) {
        journal_.fail("transfer %llu writes slot %u of place %u: %u views, %u readers, %u writers",
                      (unsigned long long)transfer.id, transfer.to_slot, transfer.to, pins.views,
                      pins.sources, pins.targets);
    }
    pins.targets++;
    if (core.guards(transfer.block, transfer.to) && pins.away) {
        journal_.fail(
            "transfer %llu writes slot %u of place %u in the arena, and its memory is at an "
            "address",
            (unsigned long long)transfer.id, transfer.to_slot, transfer.to);
    }
    pins.away |= core.maps(transfer.to) && !core.guards(transfer.block, transfer.to);
    if (transfer.kind == TransferKind::kRelocate) pins.moves_in++;
    learn(transfer.to, pack, index, transfer.to_slot);
    memories.scramble(memories.slot(transfer.to, transfer.to_slot));
}

void Machine::choose_fault(Flight &flight)
{
    const Transfer &transfer = flight.transfer;
    if (transfer.kind != TransferKind::kMove) return;
    const bool from_nvme = config_.places[transfer.from].tier == Tier::kNvme;
    const bool to_nvme = config_.places[transfer.to].tier == Tier::kNvme;
    if (from_nvme && rotten_.count(transfer.block) > 0) {
        flight.code = STW_ERROR_CHECKSUM;
    } else if (random_.per_million(from_nvme || to_nvme ? faults.per_million
                                                        : faults.per_million / 8)) {
        flight.code = from_nvme ? (random_.chance(50) ? STW_ERROR_IO : STW_ERROR_CHECKSUM)
                      : to_nvme ? STW_ERROR_IO
                                : STW_ERROR_DEVICE;
    }
    flight.fails = flight.code != STW_OK;
}

void Machine::capture(Flight &flight)
{
    flight.captured = true;
    const Transfer &transfer = flight.transfer;
    if (transfer.kind == TransferKind::kZero) {
        flight.taken.fill(kZeros);
    } else if (transfer.kind == TransferKind::kMap) {
        memories.scramble(flight.taken);
    } else if (config_.places[transfer.from].tier == Tier::kNvme) {
        const auto found = memories.nvme.find(transfer.block);
        if (found == memories.nvme.end()) {
            journal_.fail("block %u left nvme under transfer %llu", transfer.block,
                          (unsigned long long)transfer.id);
            return;
        }
        flight.taken = found->second;
    } else {
        flight.taken = memories.slot(transfer.from, transfer.from_slot);
    }
}

bool Machine::advance()
{
    if (queue_.empty()) return false;
    const Happening happening = queue_.top();
    queue_.pop();
    if (happening.at > now_) now_ = happening.at;
    if (!happening.completes) {
        capture(flying_.at(happening.transfer));
        order(happening.transfer);
        return true;
    }
    const bool more = !queue_.empty() && queue_.top().completes && random_.chance(25);
    complete(happening.transfer, more);
    return !more || advance();
}

// As on a device with streams: the next user of the bytes is ordered after the copy, so it sees
// them, while the copy itself may still run.
void Machine::order(TransferId id)
{
    Flight &flight = flying_.at(id);
    const PlaceConfig &to = config_.places[flight.transfer.to];
    if (!faults.orders || flight.fails || flight.transfer.kind != TransferKind::kMove) return;
    if (to.tier != Tier::kDevice || to.maps) return;
    events++;
    flight.ordered = true;
    pins_[flight.transfer.to][flight.transfer.to_slot].targets--;
    land(flight);
    journal_.line("ordered transfer %llu", (unsigned long long)id);
    core.transfer_ordered(id, loop.out);
    loop.run();
}

void Machine::complete(TransferId id, bool more)
{
    events++;
    const Flight flight = std::move(flying_.at(id));
    flying_.erase(id);
    const Transfer &transfer = flight.transfer;
    const bool reads =
        transfer.kind == TransferKind::kMove || transfer.kind == TransferKind::kRelocate;
    if (reads && config_.places[transfer.from].tier != Tier::kNvme) {
        pins_[transfer.from][transfer.from_slot].sources--;
    }
    if (config_.places[transfer.to].tier != Tier::kNvme && !flight.ordered) {
        Pins &pins = pins_[transfer.to][transfer.to_slot];
        pins.targets--;
        if (transfer.kind == TransferKind::kRelocate) pins.moves_in--;
    }
    Status status;
    if (flight.fails) {
        const bool returns =
            transfer.tensor != kNone && core.is_promised_at(transfer.tensor, transfer.to);
        const bool write = returns || transfer.to > transfer.from;
        if (write) write_faults++;
        hurt_packs_.insert(flight.transfer.pack);
        status =
            Status::error(flight.code, "simulated fault of transfer %llu", (unsigned long long)id);
    } else if (!flight.ordered) {
        land(flight);
    }
    journal_.line("done transfer %llu%s", (unsigned long long)id, flight.fails ? ": fault" : "");
    core.transfer_done(id, status, loop.out, more);
    if (together_) ended_together_.insert(id);
    together_ = more;
    if (more) return;
    loop.run();
    ended_together_.clear();
}

// Only the bytes in use arrive; the rest of the target stays what it was.
void Machine::land(const Flight &flight)
{
    const Transfer &transfer = flight.transfer;
    const bool to_nvme = config_.places[transfer.to].tier == Tier::kNvme;
    Image &target =
        to_nvme ? memories.nvme[transfer.block] : memories.slot(transfer.to, transfer.to_slot);
    const uint64_t pieces = (transfer.bytes + kPieceBytes - 1) / kPieceBytes;
    for (uint64_t i = 0; i < pieces; i++) target[i] = flight.taken[i];
    if (to_nvme && random_.per_million(faults.rot_per_million)) {
        rotten_.insert(transfer.block);
        hurt_packs_.insert(flight.transfer.pack);
    }
}

void Machine::learn(PlaceId place, PackId pack, uint64_t index, Slot slot)
{
    forget(place, slot);
    homes_[place][slot] = {pack, index};
    slots_[place][key(pack, index)] = slot;
}

void Machine::forget(PlaceId place, Slot slot)
{
    Home &home = homes_[place][slot];
    if (home.pack == kNone) return;
    const auto old = slots_[place].find(key(home.pack, home.index));
    if (old != slots_[place].end() && old->second == slot) slots_[place].erase(old);
    home = {};
}

Slot Machine::slot_of(PlaceId place, PackId pack, uint64_t index) const
{
    const auto found = slots_[place].find(key(pack, index));
    return found == slots_[place].end() ? kNoSlot : found->second;
}

const Image *Machine::stored(PackId pack, uint64_t index) const
{
    const auto block = blocks_.find(key(pack, index));
    if (block == blocks_.end()) return nullptr;
    const auto image = memories.nvme.find(block->second);
    return image == memories.nvme.end() ? nullptr : &image->second;
}

bool Machine::rotten(PackId pack) const
{
    for (const BlockId block : rotten_) {
        const auto found = packs_.find(block);
        if (found != packs_.end() && found->second == pack) return true;
    }
    return false;
}

void Machine::pin(PlaceId place, const std::vector<Slot> &slots, bool write)
{
    for (const Slot slot : slots) {
        Pins &pins = pins_[place][slot];
        if (pins.targets > 0 || pins.bare) {
            journal_.fail("a view of slot %u of place %u, which %s", slot, place,
                          pins.bare ? "has no memory" : "a transfer writes");
        }
        if (write && pins.sources > 0) {
            journal_.fail("a writer in slot %u of place %u, which a transfer reads", slot, place);
        }
        pins.views++;
        if (write) pins.writers++;
    }
}

void Machine::unpin(PlaceId place, const std::vector<Slot> &slots, bool write)
{
    for (const Slot slot : slots) {
        pins_[place][slot].views--;
        if (write) pins_[place][slot].writers--;
    }
}

uint32_t Machine::pinned_slots(PlaceId place) const
{
    uint32_t count = 0;
    for (const Pins &pins : pins_[place]) count += pins.views > 0 ? 1 : 0;
    return count;
}

}  // namespace stepwell::simulation
