// SPDX-License-Identifier: Apache-2.0
// Memory: what lies in the slots and on the disk of one rank, as stamps. It watches what memories
// themselves can tell: nobody else touches what a transfer uses, nothing touches what a view pins,
// and no more slots have memory than the budget in force. Knows nothing of the core's inside.
#pragma once

#include "tests/ranks/support.h"

#include <vector>

namespace stepwell::ranks {

// A transfer between its command and its end.
struct Sent {
    Transfer transfer;
    Image taken{};  // of the source, when it began
    Image torn{};   // what the target holds until the end
    uint32_t job = 0;
    uint64_t deaths = 0;  // of the pack's contents, when it began
    stw_status fails = STW_OK;
};

class Memory {
public:
    Memory(const Config &config, Journal &journal);

    void begin(Sent &flight);
    void end(const Sent &flight, bool arrives);
    void forget(const residency::Forget &forget);
    void free(PackId pack);
    void swap(const Swap &swap);
    void make_bare(PlaceId place, Slot slot);
    void make_backed(PlaceId place, Slot slot);
    // What is in force now: at most so many slots have memory, at most so many blocks are stored.
    void check_budget(PlaceId place, uint64_t blocks) const;

    void pin(PlaceId place, const Slot *slots, size_t n, bool write);
    void unpin(PlaceId place, const Slot *slots, size_t n, bool write);
    [[nodiscard]] uint32_t pinned(PlaceId place) const { return pinned_[place]; }
    [[nodiscard]] bool is_pinned(PlaceId place, Slot slot) const
    {
        return slots_[place][slot].views > 0;
    }
    [[nodiscard]] bool is_target(PlaceId place, Slot slot) const
    {
        return slots_[place][slot].targets > 0;
    }

    // Where a block was put last, as the shell knows it; kNoSlot: never.
    [[nodiscard]] Slot slot_of(PlaceId place, PackId pack, uint32_t index) const;
    void learn(PlaceId place, PackId pack, uint32_t index, Slot slot);
    Image &at(PlaceId place, Slot slot) { return slots_[place][slot].image; }
    // Null: the block is not on the disk.
    [[nodiscard]] const Image *stored(PackId pack, uint32_t index) const;
    [[nodiscard]] uint64_t stored_blocks() const { return stored_blocks_; }
    Stamp garbage() { return 0x80000000u | (++garbage_ & 0x7ffffffeu); }

private:
    struct SlotState {
        Image image{};
        uint16_t views = 0;
        uint16_t writers = 0;
        uint16_t sources = 0;  // transfers that read it
        uint16_t targets = 0;  // transfers that write it
        bool bare = false;
        PackId pack = kNone;  // who was put there last
        uint32_t index = 0;
    };
    struct Stored {
        Image image{};
        bool there = false;
        bool writing = false;
        uint32_t readers = 0;
        PackId pack = kNone;
        uint32_t index = 0;
    };

    [[nodiscard]] Stored &on_disk(BlockId block);
    void begin_source(Sent &flight);
    void begin_target(Sent &flight);
    void begin_store(Sent &flight);
    void end_source(const Sent &flight);
    void end_target(const Sent &flight, bool arrives);

    Journal &journal_;
    std::array<std::vector<SlotState>, kPlaces> slots_;
    std::array<std::vector<std::vector<Slot>>, kPlaces> where_;  // by pack and block of it
    std::vector<std::vector<BlockId>> numbers_;                  // of what was stored, by pack
    std::vector<Stored> disk_;                                   // by block
    std::array<uint32_t, kPlaces> backed_{};
    std::array<uint32_t, kPlaces> pinned_{};
    uint64_t stored_blocks_ = 0;
    Stamp garbage_ = 0;
};

inline uint32_t index_of(const Transfer &transfer)
{
    return static_cast<uint32_t>(transfer.pack_offset / kBlockBytes);
}

}  // namespace stepwell::ranks
