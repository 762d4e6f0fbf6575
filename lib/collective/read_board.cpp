// SPDX-License-Identifier: Apache-2.0
// A slot's state is one word, changed by compare-and-swap alone: state, reader, how many copy, and
// how often the slot was claimed, so that who comes late to it finds that out. Claims come one at a
// time, behind a gate, so that no two ranks read the same block; the gate opens by itself behind a
// rank that stays in it.
#include "lib/collective/read_board.h"

#include "lib/support/assert.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stepwell::collective {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint32_t kClaimsMin = 2;  // of a rank: one is read while the next is about to be
constexpr uint32_t kGateTries = 64;
constexpr uint64_t kGateNs = 10'000'000;  // a claim takes a microsecond
constexpr uint64_t kGoneNs = 10'000'000;  // between two questions whether a process lives
constexpr uint32_t kCopiersMax = (1u << 12) - 1;

enum State : uint64_t { kFree = 0, kReading = 1, kFilling = 2, kReady = 3 };

// serial:44 copiers:12 reader:6 state:2
constexpr uint64_t kCopier = 1ull << 8;
constexpr uint64_t kSerial = 1ull << 20;

State state_of(uint64_t control)
{
    return static_cast<State>(control & 3);
}
uint32_t reader_of(uint64_t control)
{
    return control >> 2 & 63;
}
uint32_t copiers_of(uint64_t control)
{
    return control >> 8 & kCopiersMax;
}
uint64_t serial_of(uint64_t control)
{
    return control / kSerial;
}
uint64_t control_of(uint64_t serial, uint32_t reader, State state)
{
    return serial * kSerial | uint64_t{reader} << 2 | state;
}

uint64_t since(uint64_t then_ns, uint64_t now_ns)
{
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

uint64_t round_up(uint64_t bytes)
{
    return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

struct ReadBoard::Header {
    std::atomic<uint64_t> gate;  // 0: open; else when it was entered, and by whom
    uint64_t reserved[7];
};

struct alignas(64) ReadBoard::Slot {
    std::atomic<uint64_t> control;
    std::atomic<uint64_t> block;
    std::atomic<uint64_t> content;
    std::atomic<uint64_t> bytes;
    std::atomic<uint64_t> awaited;   // a bit for each rank that has not taken it
    std::atomic<uint64_t> since_ns;  // the claim; then the offer

    [[nodiscard]] bool is_of(const BoardKey &key) const
    {
        return BoardKey{block.load(), content.load(), bytes.load()} == key;
    }
};

uint64_t ReadBoard::bytes_of(uint64_t block_bytes)
{
    return round_up(sizeof(Header) + kBoardSlots * sizeof(Slot)) +
           kBoardSlots * round_up(block_bytes);
}

ReadBoard::ReadBoard(void *memory, uint64_t block_bytes, uint32_t ranks, uint32_t own,
                     std::function<bool(uint32_t)> gone, const BoardLimits &limits)
    : header_(static_cast<Header *>(memory)),
      slots_(reinterpret_cast<Slot *>(header_ + 1)),
      block_bytes_(round_up(block_bytes)),
      ranks_(ranks),
      own_(own),
      claims_max_(std::max(kClaimsMin, kBoardSlots / ranks)),
      gone_(std::move(gone)),
      limits_(limits)
{
    static_assert(sizeof(Header) == alignof(Slot) && sizeof(Slot) == alignof(Slot));
    STW_ASSERT(own < ranks);
    STW_ASSERT(ranks <= kBoardRanksMax);
}

ReadBoard::~ReadBoard()
{
    for (uint32_t i = 0; i < kBoardSlots; ++i) {
        uint64_t control = slots_[i].control.load();
        const State state = state_of(control);
        if (reader_of(control) != own_ || (state != kReading && state != kFilling)) continue;
        slots_[i].control.compare_exchange_strong(control,
                                                  control_of(serial_of(control), own_, kFree));
    }
}

uint8_t *ReadBoard::data_of(uint32_t slot) const
{
    return reinterpret_cast<uint8_t *>(header_) +
           round_up(sizeof(Header) + kBoardSlots * sizeof(Slot)) + slot * block_bytes_;
}

uint64_t ReadBoard::others() const
{
    const uint64_t all = ranks_ == 64 ? ~0ull : (1ull << ranks_) - 1;
    return all & ~(1ull << own_);
}

// ------------------------------------------------------------------------------------ the gate --

bool ReadBoard::enter(uint64_t now_ns, uint64_t *token_out)
{
    const uint64_t token = std::max<uint64_t>(now_ns, 1) << 7 | 64 | own_;
    *token_out = token;
    for (uint32_t i = 0; i < kGateTries; ++i) {
        uint64_t found = 0;
        if (header_->gate.compare_exchange_strong(found, token)) return true;
        if (since(found >> 7, now_ns) <= kGateNs) continue;
        if (header_->gate.compare_exchange_strong(found, token)) return true;
    }
    return false;
}

void ReadBoard::leave(uint64_t token)
{
    header_->gate.compare_exchange_strong(token, 0);
}

// ------------------------------------------------------------------------------------- looking --

// Dead, or so slow that nobody waits for it any more.
bool ReadBoard::reader_fails(uint64_t control, uint64_t reading_ns, uint64_t now_ns)
{
    if (state_of(control) == kReading && reading_ns > limits_.read_ns) return true;
    if (reading_ns > limits_.lost_ns) return true;
    const uint64_t asked_ns = asked_gone_ns_.load(std::memory_order_relaxed);
    if (reading_ns <= kGoneNs || since(asked_ns, now_ns) <= kGoneNs) return false;
    asked_gone_ns_.store(now_ns, std::memory_order_relaxed);
    return gone_(reader_of(control));
}

// For another block.
bool ReadBoard::may_take(uint64_t control, const Slot &slot, uint64_t now_ns) const
{
    const uint64_t age_ns = since(slot.since_ns.load(), now_ns);
    switch (state_of(control)) {
    case kFree: return true;
    case kReading: return age_ns > limits_.read_ns;
    case kFilling: return age_ns > limits_.lost_ns;
    case kReady: break;
    }
    if (copiers_of(control) > 0) return age_ns > limits_.lost_ns;
    return slot.awaited.load() == 0 || age_ns > limits_.keep_ns;
}

// The slot for another block, the longest unused; null: there is none. moves: something is read, so
// that one may be free soon.
ReadBoard::Slot *ReadBoard::victim(uint64_t now_ns, uint64_t *control_out, bool *moves_out)
{
    Slot *best = nullptr;
    uint64_t best_ns = UINT64_MAX;
    for (uint32_t i = 0; i < kBoardSlots; ++i) {
        Slot &slot = slots_[i];
        const uint64_t control = slot.control.load();
        const State state = state_of(control);
        *moves_out |= state == kReading || state == kFilling;
        const uint64_t since_ns = state == kFree ? 0 : slot.since_ns.load();
        if (!may_take(control, slot, now_ns) || since_ns >= best_ns) continue;
        best = &slot;
        best_ns = since_ns;
        *control_out = control;
    }
    return best;
}

// Behind the gate, so the slot's key is nobody else's to write.
ReadBoard::Found ReadBoard::claim(Slot &slot, uint64_t control, const BoardKey &key,
                                  uint64_t now_ns, Answer later)
{
    const uint64_t serial = serial_of(control) + 1;
    if (!slot.control.compare_exchange_strong(control, control_of(serial, own_, kReading))) {
        return {later, 0, 0};
    }
    slot.block = key.block;
    slot.content = key.content;
    slot.bytes = key.bytes;
    slot.awaited = 0;
    slot.since_ns = now_ns;
    ++claims_;
    return {Answer::kRead, static_cast<uint32_t>(&slot - slots_), serial};
}

// The slot of the key, if there is one: true, and what to do with it.
bool ReadBoard::find(const BoardKey &key, uint64_t now_ns, Answer later, Found *found_out)
{
    for (uint32_t i = 0; i < kBoardSlots; ++i) {
        Slot &slot = slots_[i];
        uint64_t control = slot.control.load();
        const State state = state_of(control);
        if (state == kFree || !slot.is_of(key)) continue;
        if (state != kReady) {
            const uint64_t reading_ns = since(slot.since_ns.load(), now_ns);
            const bool fails = reader_fails(control, reading_ns, now_ns);
            *found_out = fails ? claim(slot, control, key, now_ns, later) : Found{later, 0, 0};
            return true;
        }
        if (copiers_of(control) == kCopiersMax) continue;
        const bool mine = slot.control.compare_exchange_strong(control, control + kCopier);
        *found_out = {mine ? Answer::kCopy : later, i, serial_of(control)};
        return true;
    }
    return false;
}

ReadBoard::Found ReadBoard::look_inside(const BoardKey &key, uint64_t now_ns, Answer later)
{
    Found found;
    if (find(key, now_ns, later, &found)) return found;
    // Each rank has its part of the slots to read into, so that none reads for all; it goes on when
    // a read of its own ends.
    if (claims_ >= claims_max_) return {later, 0, 0};
    uint64_t control = 0;
    bool moves = false;
    Slot *slot = victim(now_ns, &control, &moves);
    if (slot) return claim(*slot, control, key, now_ns, later);
    return {moves ? later : Answer::kAlone, 0, 0};
}

ReadBoard::Found ReadBoard::look(const BoardKey &key, uint64_t now_ns, bool patient)
{
    const Answer later = patient ? Answer::kLater : Answer::kAlone;
    uint64_t token = 0;
    if (!enter(now_ns, &token)) return {later, 0, 0};
    const Found found = look_inside(key, now_ns, later);
    leave(token);
    return found;
}

// ------------------------------------------------------------------------------------- copying --

bool ReadBoard::copy(const Found &found, const BoardKey &key, void *data)
{
    Slot &slot = slots_[found.slot];
    // No longer so if it was lost on the way.
    const bool there = serial_of(slot.control.load()) == found.serial && slot.is_of(key);
    if (there) {
        std::memcpy(data, data_of(found.slot), key.bytes);
        slot.awaited.fetch_and(~(1ull << own_));
    }
    let_go(found);
    return there;
}

void ReadBoard::let_go(const Found &found)
{
    Slot &slot = slots_[found.slot];
    uint64_t control = slot.control.load();
    while (serial_of(control) == found.serial && copiers_of(control) > 0) {
        if (slot.control.compare_exchange_weak(control, control - kCopier)) return;
    }
}

void ReadBoard::offer(const Found &found, const BoardKey &key, const void *data, uint64_t awaited,
                      uint64_t now_ns)
{
    if (awaited == 0) return withdraw(found);
    Slot &slot = slots_[found.slot];
    uint64_t reading = control_of(found.serial, own_, kReading);
    const uint64_t filling = control_of(found.serial, own_, kFilling);
    --claims_;
    // Else it took so long that another has the slot.
    if (!slot.control.compare_exchange_strong(reading, filling)) return;
    std::memcpy(data_of(found.slot), data, key.bytes);
    slot.awaited = awaited;
    slot.since_ns = now_ns;
    reading = filling;
    slot.control.compare_exchange_strong(reading, control_of(found.serial, own_, kReady));
}

void ReadBoard::withdraw(const Found &found)
{
    uint64_t reading = control_of(found.serial, own_, kReading);
    --claims_;
    slots_[found.slot].control.compare_exchange_strong(reading,
                                                       control_of(found.serial, own_, kFree));
}

}  // namespace stepwell::collective
