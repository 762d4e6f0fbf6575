// SPDX-License-Identifier: Apache-2.0
// Rings and sums of what steps cost. Plain containers with a named maximum each.
#include "lib/observe/step_history.h"

#include "lib/support/assert.h"

#include <new>
#include <numeric>

namespace stepwell::observe {

void StepHistory::add(const StepRecord &record)
{
    STW_ASSERT(records_.capacity() >= kStepsKept);
    const size_t at = added_++ % kStepsKept;
    if (at == records_.size()) {
        records_.push_back(record);
    } else {
        records_[at] = record;
    }
}

std::vector<StepRecord> StepHistory::newest() const
{
    std::vector<StepRecord> list;
    list.reserve(records_.size());
    for (uint64_t i = added_ - records_.size(); i < added_; ++i) {
        list.push_back(records_[i % kStepsKept]);
    }
    return list;
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
