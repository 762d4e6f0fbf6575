// SPDX-License-Identifier: Apache-2.0
// Who is ordered after whom, and what touched which bytes last. Pure: no lock, thread or address
// space; the driver calls it under its own lock with ranges that stand for memory.
//
// A clock says, for each stream, up to which of its operations all have ended before something.
// The host is no stream of its own: every operation is enqueued by it, so whatever it did or knew
// before comes before. All host threads share one clock, as the double cannot see their locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace stepwell::cuda_double {

// One operation of a stream.
struct Epoch {
    uint32_t slot = 0;      // the stream's place in every clock
    uint64_t sequence = 0;  // among the slot's operations, from 1; 0: nothing
    // For sentences alone.
    const char *what = nullptr;
    uint64_t stream = 0;
    uint64_t serial = 0;

    bool operator==(const Epoch &other) const
    {
        return slot == other.slot && sequence == other.sequence;
    }
};

class Clock {
public:
    void advance(uint32_t slot, uint64_t sequence);
    void join(const Clock &other);
    bool covers(const Epoch &epoch) const
    {
        return epoch.sequence == 0 ||
               (epoch.slot < seen_.size() && seen_[epoch.slot] >= epoch.sequence);
    }

private:
    std::vector<uint64_t> seen_;  // by slot
};

struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
};

// An earlier operation that a later one is not ordered after, and the bytes that both touch.
struct Conflict {
    Epoch earlier;
    bool earlier_wrote = false;
    Range range;
};

class AccessMap {
public:
    // What a read or write of the range, ordered after `before`, conflicts with. `self` does not
    // conflict with itself.
    std::vector<Conflict> conflicts(Range range, bool writes, const Epoch &self,
                                    const Clock &before) const;
    void record(Range range, bool writes, const Epoch &epoch, const Clock &before);
    // Nothing can conflict with what the host knows to have ended.
    void settle(const Clock &host);
    void forget(Range range);
    size_t cells() const { return cells_.size(); }

private:
    // Bytes with one history. An earlier read that a later one is ordered after is dropped: whoever
    // is ordered after the later is ordered after both.
    struct Cell {
        uint64_t end = 0;
        Epoch write;
        std::vector<Epoch> reads;
        bool same_history(const Cell &other) const
        {
            return write == other.write && reads == other.reads;
        }
    };
    using Cells = std::map<uint64_t, Cell>;  // by the first byte

    void split(uint64_t at);
    void add_read(Range range, const Epoch &epoch, const Clock &before);
    void merge_around(Range range);

    Cells cells_;
};

}  // namespace stepwell::cuda_double
