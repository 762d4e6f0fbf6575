// SPDX-License-Identifier: Apache-2.0
// Where the ranks of one unique id meet: a file of shared memory, with room for what each gives to
// two collectives, as no rank is further ahead of another.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace stepwell::nccl_double {

inline constexpr int kRanksMax = 8;
inline constexpr uint64_t kRoomBytes = uint64_t{64} << 20;

// A collective, as all ranks must have called for it.
struct Called {
    uint32_t kind = 0;
    int type = 0;
    uint64_t count = 0;
    bool registered = false;  // all that it reads and writes
    bool operator==(const Called &other) const = default;
};

// Zeros are a rank that has not come.
struct RankState {
    std::atomic<int> process;
    std::atomic<uint64_t> sent;      // collectives that it has given its bytes to
    std::atomic<uint64_t> received;  // and that it has got all bytes of
    Called called[2];                // its last ones, by their number's parity
};

class Segment {
public:
    // Null: there is no memory for it.
    static std::shared_ptr<Segment> open(const std::string &name, int ranks);
    Segment(const Segment &) = delete;
    Segment &operator=(const Segment &) = delete;
    ~Segment();

    int ranks() const { return ranks_; }
    RankState &rank(int rank) const { return states_[rank]; }
    char *room(int rank, uint64_t collective) const;
    bool all_joined() const;
    template <class Ask> bool all(Ask &&ask) const
    {
        for (int rank = 0; rank < ranks_; ++rank)
            if (!ask(states_[rank])) return false;
        return true;
    }
    // Nobody else finds it.
    void hide();

private:
    Segment() = default;

    std::string name_;
    int ranks_ = 0;
    RankState *states_ = nullptr;
    char *rooms_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace stepwell::nccl_double
