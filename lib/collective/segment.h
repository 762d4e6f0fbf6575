// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of one host share: a slot for each rank and its count at each disk,
// which that rank alone writes. No lock lies in it, so a rank that is killed in the middle of
// anything holds up nobody. It has a name only until all ranks have it: what is killed later leaves
// nothing behind.
#pragma once

#include "lib/collective/fair_share.h"
#include "lib/support/status.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace stepwell::collective {

constexpr uint32_t kHostRanksMax = 1024;
constexpr uint32_t kHostDisksMax = 16;  // that are shared; more are not
constexpr uint32_t kStandingBytesMax = 144;
// Changes with the layout below: ranks of different builds must not meet in it.
constexpr uint64_t kSegmentLayout = 0x5354575345470003;  // "STWSEG", 3

struct alignas(64) RankSlot {
    enum : uint64_t { kNobody = 0, kJoined = 1, kLeft = 2 };

    std::atomic<uint64_t> state;
    std::atomic<uint64_t> collective;  // the number of the one it is in
    std::atomic<uint64_t> sequence;    // odd while the text is written
    std::atomic<uint64_t> bytes;
    std::atomic<uint64_t> words[kStandingBytesMax / 8];

    // One thread of the slot's rank at a time. Never blocks.
    void write(uint64_t number, std::string_view text);
    // Any process. False: it was written all the while.
    bool read(uint64_t &number_out, std::string &text_out) const;
};

// Random, so that nobody can make or open it before.
using SegmentName = std::array<uint64_t, 2>;

class Segment {
public:
    // With a name of its own, which goes with the object or with forget_name().
    static Result<std::unique_ptr<Segment>> create(uint32_t ranks);
    static Result<std::unique_ptr<Segment>> open(const SegmentName &name, uint32_t ranks);
    // Without a name: of a rank that is alone on its host.
    static Result<std::unique_ptr<Segment>> alone();
    ~Segment();
    Segment(const Segment &) = delete;
    Segment &operator=(const Segment &) = delete;

    void forget_name();
    [[nodiscard]] const SegmentName &name() const { return name_; }
    // Rank `index` of those on the host.
    [[nodiscard]] RankSlot &slot(uint32_t index) const;
    // Counts of all ranks at a disk, in order; the first to ask for it gives it a place. Null: all
    // places are taken, or the disk is 0.
    [[nodiscard]] FairLane *lanes(uint64_t disk) const;
    // False in a fork of the process that opened it: nothing of it is there.
    [[nodiscard]] bool is_mapped() const;

private:
    struct Header;
    Segment();
    Status map(int file);
    void lay_out(uint32_t ranks);

    int64_t process_ = 0;
    SegmentName name_{};
    bool named_ = false;
    void *memory_ = nullptr;
    uint64_t bytes_ = 0;
    uint64_t ranks_ = 0;
    RankSlot *slots_ = nullptr;
    FairLane *lanes_ = nullptr;  // [kHostDisksMax][ranks_]
};

}  // namespace stepwell::collective
