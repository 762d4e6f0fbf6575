// SPDX-License-Identifier: Apache-2.0
// Sums over ranks in rank order. Each rank sends every other rank that rank's piece, adds the
// received pieces in rank order, and for an all-reduce sends the sum to all. Chunks alternate
// between two lanes, so that one is in transfer while the other is added. One reduction at a time.
#pragma once

#include "drivers/mpi/requests.h"

#include <memory>

namespace stepwell::drivers {

struct Reduction {
    const char *from = nullptr;
    char *to = nullptr;     // this rank's shard; for an all-reduce the whole, as `from`
    uint64_t elements = 0;  // at `to`
    uint32_t dtype = 0;
    bool to_all = false;
    int tag = 0;  // and the kTags - 1 after it
};

class Reducer {
public:
    static constexpr int kTags = 4;

    // Allocates all memory. Throws bad_alloc.
    void open(const Ranks &ranks);
    bool busy() const { return busy_; }
    void begin(const Reduction &reduction);
    // Progresses it once, without waiting; true when it is over, with an error or not.
    bool advance();
    int error() const { return error_; }

private:
    enum class Stage { kCollect, kSpread, kOver };
    struct Lane {
        Requests requests;
        char *scratch = nullptr;
        uint64_t chunk = 0;
        Stage stage = Stage::kOver;
        int tag = 0;
    };
    struct Part {
        uint64_t begin;
        uint64_t elements;
    };
    static constexpr uint64_t kLanes = 2;
    static_assert(kTags == 2 * kLanes);

    Part part_of(uint64_t chunk, uint32_t rank) const;
    void collect(Lane &lane);
    void add(Lane &lane);
    void spread(Lane &lane);
    void advance(Lane &lane);

    Ranks ranks_;
    std::unique_ptr<char[]> scratch_;
    uint64_t piece_bytes_ = 0;  // at most, from each rank
    Lane lanes_[kLanes];
    std::vector<const void *> parts_;
    Reduction reduction_;
    uint64_t element_bytes_ = 0;
    uint64_t piece_elements_ = 0;
    uint64_t chunks_ = 0;
    int error_ = MPI_SUCCESS;
    bool busy_ = false;
};

}  // namespace stepwell::drivers
