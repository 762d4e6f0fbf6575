// SPDX-License-Identifier: Apache-2.0
// Machine: a shell in virtual time. It carries out the core's commands on stamped memories:
// transfers take seeded times, finish in any order, read their source at any moment between, and
// may fail.
// Watches what the memories themselves can tell: nobody else touches what a transfer uses, and
// nothing touches what a view pins. One thread.
#pragma once

#include "lib/residency/command_loop.h"
#include "tests/simulation/support.h"

#include <queue>
#include <set>
#include <unordered_map>

namespace stepwell::simulation {

struct Faults {
    uint32_t per_million = 0;      // of transfers fail, once
    uint32_t rot_per_million = 0;  // of writes to nvme cannot be read again
    uint32_t stall_percent = 0;    // of transfers take a hundred times longer
    bool orders = false;           // devices across a bus have streams
};

class Machine final : CommandSink {
public:
    Machine(const Config &config, Random &random, Journal &journal);

    // Time goes on to the next thing that happens; false when nothing is under way.
    bool advance();
    void wait(Instant duration_ns) { now_ += duration_ns; }
    [[nodiscard]] bool idle() const { return flying_.empty(); }
    [[nodiscard]] Instant now() const override { return now_; }

    // Views of the program, by the slots they pin.
    void pin(PlaceId place, const std::vector<Slot> &slots, bool write);
    void unpin(PlaceId place, const std::vector<Slot> &slots, bool write);
    [[nodiscard]] uint32_t pinned_slots(PlaceId place) const;
    [[nodiscard]] bool pinned(PlaceId place, Slot slot) const
    {
        return pins_[place][slot].views > 0;
    }

    // The memory of a free slot goes away, or is there again.
    void make_bare(PlaceId place, Slot slot);
    void make_backed(PlaceId place, Slot slot) { pins_[place][slot].bare = false; }

    struct Use {
        uint32_t views = 0;
        uint32_t sources = 0;  // transfers that read it
        uint32_t targets = 0;  // transfers that write it
    };
    [[nodiscard]] Use use(PlaceId place, Slot slot) const
    {
        const Pins &pins = pins_[place][slot];
        return {pins.views, pins.sources, pins.targets};
    }

    // The bytes are still in another slot of the place.
    [[nodiscard]] bool moving_in(PlaceId place, Slot slot) const
    {
        return pins_[place][slot].moves_in > 0;
    }

    // Where a block was put last, as the shell knows it; kNoSlot: never, or overtaken by another.
    [[nodiscard]] Slot slot_of(PlaceId place, PackId pack, uint64_t index) const;
    void learn(PlaceId place, PackId pack, uint64_t index, Slot slot);
    void forget(PlaceId place, Slot slot);
    // The slot's memory is at the address of a block that is not guarded, or was there last.
    [[nodiscard]] bool is_away(PlaceId place, Slot slot) const { return pins_[place][slot].away; }
    void bring_home(PlaceId place, Slot slot) { pins_[place][slot].away = false; }
    // Of a tensor that was created; `shares`: with others that live.
    void take_pack(PackId pack, bool shares);
    // Blocks that may be given the slots of others at nvme.
    void know_heirs(const TensorBlocks &blocks, PackId pack);
    // Null when no image of the block is on nvme.
    [[nodiscard]] const Image *stored(PackId pack, uint64_t index) const;
    [[nodiscard]] bool rotten(PackId pack) const;
    [[nodiscard]] bool hurt(PackId pack) const { return hurt_packs_.count(pack) > 0; }

    Core core;
    CommandLoop loop;
    Memories memories;
    Faults faults;
    uint64_t write_faults = 0;  // since the program forgave
    uint64_t events = 0;
    uint64_t transfers = 0;

private:
    struct Flight {
        Transfer transfer;
        Image taken;  // of the source
        bool captured = false;
        bool ordered = false;  // whoever uses the target comes behind it
        bool fails = false;
        stw_status code = STW_OK;
    };
    struct Happening {
        Instant at;
        uint64_t order;
        TransferId transfer;
        bool completes;
        bool operator>(const Happening &other) const
        {
            return at != other.at ? at > other.at : order > other.order;
        }
    };
    struct Pins {
        uint32_t views = 0;
        uint32_t writers = 0;
        uint32_t sources = 0;   // transfers that read it
        uint32_t targets = 0;   // transfers that write it
        uint32_t moves_in = 0;  // of these from a slot of the same place
        bool bare = false;
        bool away = false;
    };
    struct Home {
        PackId pack = kNone;
        uint64_t index = 0;
    };

    // What the loop calls.
    void forget(const residency::Forget &forget) override;
    void swap_memory(std::vector<Swap> &swaps) override;
    void pack_freed(PackId pack) override;
    void submit(std::vector<Transfer> &transfers, Commands &out) override;
    void promote(TransferId transfer) override;
    void failed(const BackgroundError &) override {}

    void begin(const Transfer &transfer);
    void check_source(const Transfer &transfer);
    void check_target(const Transfer &transfer);
    void choose_fault(Flight &flight);
    void capture(Flight &flight);
    void complete(TransferId id, bool more);  // more: another one has ended with it
    void order(TransferId id);
    void land(const Flight &flight);
    static uint64_t index_of(const Transfer &transfer)
    {
        return transfer.pack_offset / kBlockBytes;
    }
    static uint64_t key(PackId pack, uint64_t index) { return (uint64_t{pack} << 32) | index; }

    Random &random_;
    Journal &journal_;
    Config config_;
    Instant now_ = 1;
    uint64_t order_ = 0;
    std::map<TransferId, Flight> flying_;
    std::priority_queue<Happening, std::vector<Happening>, std::greater<>> queue_;
    std::vector<std::vector<Pins>> pins_;
    std::vector<std::vector<Home>> homes_;                   // slot to block
    std::vector<std::unordered_map<uint64_t, Slot>> slots_;  // block to slot
    std::unordered_map<uint64_t, BlockId> blocks_;           // of the nvme images
    std::map<BlockId, PackId> packs_;
    std::map<BlockId, std::pair<PackId, uint64_t>> heirs_;
    std::set<BlockId> rotten_;
    std::set<PackId> hurt_packs_;
    std::set<PackId> taken_packs_;         // and not freed
    bool together_ = false;                // the next to end does so with the one before
    std::set<TransferId> ended_together_;  // in this event, and not the first of them
};

}  // namespace stepwell::simulation
