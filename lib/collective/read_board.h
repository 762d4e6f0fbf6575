// SPDX-License-Identifier: Apache-2.0
// Blocks that one rank of a host reads from its disk for all: a fixed number of slots in memory
// that the ranks share, each with a key, who reads it, and then its bytes until all others have
// taken them. It only saves reads: nobody relies on it. A reader waits for nobody; others wait for
// it a bounded time, and then read their own disks; what is copied out is verified by who copied
// it, so what a rank leaves behind that dies, stops or writes rubbish is never used.
// Time is an argument. Knows no process, disk or clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace stepwell::collective {

constexpr uint32_t kBoardSlots = 16;
constexpr uint32_t kBoardRanksMax = 64;  // of a host; more do not share

// What the bytes are: the same on all ranks that want the same ones.
struct BoardKey {
    uint64_t block = 0;    // its tensor and its place there
    uint64_t content = 0;  // what its bytes sum to
    uint64_t bytes = 0;

    bool operator==(const BoardKey &) const = default;
};

struct BoardLimits {
    // From the begin of a read until others read for themselves: what a full queue of 32 MiB takes
    // on a disk of 320 MB/s.
    uint64_t read_ns = 100'000'000;
    // Bytes that some rank has not taken may go after that, for others: it is elsewhere by now.
    // Three ranks that read 64 blocks of 2 MiB on two busy cores read 64 together 11 times of 12,
    // with 50 ms 8 times, with 20 ms twice. To let blocks go that one late rank alone still awaits
    // was worse: it reads them alone then, and offers them to nobody.
    uint64_t keep_ns = 100'000'000;
    // Whoever was about to copy is dead or stopped after that.
    uint64_t lost_ns = 2'000'000'000;
};

class ReadBoard {
public:
    enum class Answer : uint8_t {
        kAlone,  // read it, for nobody else
        kRead,   // read it and offer(), or withdraw()
        kCopy,   // copy(), or let_go()
        kLater,  // another rank reads it, or room for it is about to come: look again in a moment
    };
    struct Found {
        Answer answer = Answer::kAlone;
        uint32_t slot = 0;
        uint64_t serial = 0;
    };

    static uint64_t bytes_of(uint64_t block_bytes);
    // memory: bytes_of() that were zeros when the first rank came, aligned to pages; outlives it.
    // `own` of `ranks`, at most kBoardRanksMax. gone: whether a rank's process is no more; asked
    // seldom, from look().
    ReadBoard(void *memory, uint64_t block_bytes, uint32_t ranks, uint32_t own,
              std::function<bool(uint32_t rank)> gone, const BoardLimits &limits = {});
    // Withdraws what it reads.
    ~ReadBoard();
    ReadBoard(const ReadBoard &) = delete;
    ReadBoard &operator=(const ReadBoard &) = delete;

    // Any thread, as all that follows; no system call but gone()'s. Never kLater unless patient.
    Found look(const BoardKey &key, uint64_t now_ns, bool patient);
    // False: it was taken away meanwhile. Whatever it says, verify what is in `data`.
    bool copy(const Found &found, const BoardKey &key, void *data);
    void let_go(const Found &found);
    // awaited: a bit for each rank that may want it; 0: as withdraw().
    void offer(const Found &found, const BoardKey &key, const void *data, uint64_t awaited,
               uint64_t now_ns);
    void withdraw(const Found &found);
    // Bits of all ranks but this one.
    [[nodiscard]] uint64_t others() const;

private:
    struct Header;
    struct Slot;

    [[nodiscard]] bool enter(uint64_t now_ns, uint64_t *token_out);
    void leave(uint64_t token);
    bool reader_fails(uint64_t control, uint64_t reading_ns, uint64_t now_ns);
    [[nodiscard]] bool may_take(uint64_t control, const Slot &slot, uint64_t now_ns) const;
    Slot *victim(uint64_t now_ns, uint64_t *control_out, bool *moves_out);
    bool find(const BoardKey &key, uint64_t now_ns, Answer later, Found *found_out);
    Found look_inside(const BoardKey &key, uint64_t now_ns, Answer later);
    Found claim(Slot &slot, uint64_t control, const BoardKey &key, uint64_t now_ns, Answer later);
    [[nodiscard]] uint8_t *data_of(uint32_t slot) const;

    Header *header_;
    Slot *slots_;
    uint64_t block_bytes_;
    uint32_t ranks_;
    uint32_t own_;
    uint32_t claims_max_;
    std::function<bool(uint32_t)> gone_;
    BoardLimits limits_;
    std::atomic<uint32_t> claims_{0};  // reads of this rank that are on the board
    std::atomic<uint64_t> asked_gone_ns_{0};
};

}  // namespace stepwell::collective
