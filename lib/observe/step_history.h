// SPDX-License-Identifier: Apache-2.0
// What the newest steps of each phase cost, one record each, and for whom the program has waited
// since open. Bounded: of steps the newest are kept, of tensors the first names that waited; what
// has no place is counted. One thread at a time, under the runtime's lock.
#pragma once

#include "lib/observe/step_stats.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace stepwell::observe {

constexpr uint32_t kStepsKept = 256;
constexpr uint32_t kStalledTensorsKept = 1024;

struct StepRecord {
    uint32_t phase = 0;
    uint64_t begin_ns = 0;
    uint64_t end_ns = 0;
    stw_step_stats stats{};
    StepBound bound;
    uint64_t way = 0;  // how the plan that drove it says that it goes; 0: none did
};

// kStepsKept steps at most, shared by the phases: a new one takes the place of the oldest of the
// phase that has most, so that many short steps of one phase leave the few of another.
class StepHistory {
public:
    // Takes all its memory. Throws std::bad_alloc.
    void open() { records_.reserve(kStepsKept); }
    void add(const StepRecord &record);
    // In the order in which they ended.
    [[nodiscard]] const std::vector<StepRecord> &newest() const { return records_; }
    [[nodiscard]] uint64_t added() const { return added_; }
    [[nodiscard]] uint64_t metadata_bytes() const
    {
        return records_.capacity() * sizeof(StepRecord);
    }

private:
    void drop_one(uint32_t phase_added);

    std::vector<StepRecord> records_;  // the oldest first
    uint64_t added_ = 0;
};

struct StallTotals {
    uint64_t waits = 0;
    std::array<uint64_t, kStalls> ns{};  // by enum Stall
    [[nodiscard]] uint64_t total_ns() const;
};

// Waits of the program by the name of the tensor: activations are made anew in each step, and keep
// their names.
class StallLedger {
public:
    // Never throws: what there is no memory for goes to the others.
    void add(std::string_view tensor, Stall cause, uint64_t ns) noexcept;
    [[nodiscard]] const std::map<std::string, StallTotals, std::less<>> &tensors() const
    {
        return tensors_;
    }
    [[nodiscard]] const StallTotals &others() const { return others_; }
    [[nodiscard]] const StallTotals &all() const { return all_; }
    [[nodiscard]] uint64_t metadata_bytes() const;

private:
    StallTotals &totals_of(std::string_view tensor) noexcept;

    std::map<std::string, StallTotals, std::less<>> tensors_;
    StallTotals others_;
    StallTotals all_;
    uint64_t name_bytes_ = 0;
};

}  // namespace stepwell::observe
