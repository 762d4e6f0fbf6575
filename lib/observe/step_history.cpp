// SPDX-License-Identifier: Apache-2.0
// Lists and sums of what steps cost. Plain containers with a named maximum each.
#include "lib/observe/step_history.h"

#include "lib/support/assert.h"

#include <algorithm>
#include <array>
#include <new>
#include <numeric>

namespace stepwell::observe {

namespace {

// How many steps each phase has, without memory of the heap: phases are few, so a search is short.
class PhaseCounts {
public:
    void add(uint32_t phase)
    {
        const auto end = counts_.begin() + used_;
        const auto found =
            std::find_if(counts_.begin(), end, [&](const Count &c) { return c.phase == phase; });
        if (found == end) {
            STW_ASSERT(used_ < counts_.size());
            counts_[used_++] = {phase, 1};
        } else {
            ++found->steps;
        }
        most_ = std::max(most_, of(phase));
    }
    [[nodiscard]] uint32_t of(uint32_t phase) const
    {
        return std::find_if(counts_.begin(), counts_.begin() + used_,
                            [&](const Count &c) { return c.phase == phase; })
            ->steps;
    }
    [[nodiscard]] uint32_t most() const { return most_; }

private:
    struct Count {
        uint32_t phase = 0;
        uint32_t steps = 0;
    };
    std::array<Count, kStepsKept + 1> counts_{};
    uint32_t used_ = 0;
    uint32_t most_ = 0;
};

}  // namespace

// Phases with one and the same number of steps lose theirs by age. Looks at all records and moves
// what is behind: some microseconds, once a step.
void StepHistory::drop_one(uint32_t phase_added)
{
    PhaseCounts counts;
    counts.add(phase_added);
    for (const StepRecord &record : records_) counts.add(record.phase);
    const auto oldest =
        std::find_if(records_.begin(), records_.end(), [&](const StepRecord &record) {
            return counts.of(record.phase) == counts.most();
        });
    if (oldest != records_.end()) records_.erase(oldest);
}

void StepHistory::add(const StepRecord &record)
{
    STW_ASSERT(records_.capacity() >= kStepsKept);
    ++added_;
    if (records_.size() == kStepsKept) drop_one(record.phase);
    records_.push_back(record);
}

uint64_t StallTotals::total_ns() const
{
    return std::accumulate(ns.begin(), ns.end(), uint64_t{0});
}

StallTotals &StallLedger::totals_of(std::string_view tensor) noexcept
{
    const auto found = tensors_.find(tensor);
    if (found != tensors_.end()) return found->second;
    if (tensors_.size() >= kStalledTensorsKept) return others_;
    try {
        const auto made = tensors_.try_emplace(std::string(tensor)).first;
        name_bytes_ += made->first.capacity();
        return made->second;
    } catch (const std::bad_alloc &) {
        return others_;
    }
}

void StallLedger::add(std::string_view tensor, Stall cause, uint64_t ns) noexcept
{
    for (StallTotals *totals : {&totals_of(tensor), &all_}) {
        ++totals->waits;
        totals->ns[static_cast<uint32_t>(cause)] += ns;
    }
}

uint64_t StallLedger::metadata_bytes() const
{
    constexpr uint64_t kNodeBytes = 64;  // links and colour, and the allocator's share
    return tensors_.size() * (sizeof(decltype(tensors_)::value_type) + kNodeBytes) + name_bytes_;
}

}  // namespace stepwell::observe
