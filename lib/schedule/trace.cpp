// SPDX-License-Identifier: Apache-2.0
// Positions are looked up by binary search in each tensor's list of uses.
#include "lib/schedule/trace.h"

#include <algorithm>

namespace stepwell::schedule {
namespace {

constexpr uint64_t kSkipMax = 256;  // an access farther ahead than this is a deviation
// Of one access at most: twice in a vector that doubles, and a list of uses of its own.
constexpr uint64_t kAccessBytes = 4 * sizeof(uint32_t) + sizeof(std::vector<uint32_t>);

}  // namespace

uint64_t Trace::Phase::bytes() const
{
    uint64_t bytes = order.capacity() * sizeof(order[0]) + uses.capacity() * sizeof(uses[0]);
    for (const std::vector<uint32_t> &positions : uses) {
        bytes += positions.capacity() * sizeof(uint32_t);
    }
    return bytes;
}

uint64_t Trace::metadata_bytes() const
{
    return learned_bytes_ + recorded_.size() * kAccessBytes;
}

bool Trace::begin_step(uint32_t phase)
{
    if (phase >= phases_.size()) phases_.resize(phase + 1);
    phase_ = phase;
    cursor_ = 0;
    recorded_.clear();
    return !forecast().empty();
}

void Trace::end_step(uint32_t phase, bool learn)
{
    if (phase != phase_ || !learn) return;
    Phase &done = phases_[phase];
    learned_bytes_ -= done.bytes();
    done.order.swap(recorded_);
    recorded_.clear();
    for (std::vector<uint32_t> &uses : done.uses) uses.clear();
    for (uint32_t position = 0; position < done.order.size(); ++position) {
        const residency::TensorId tensor = done.order[position];
        if (tensor >= done.uses.size()) done.uses.resize(tensor + 1);
        done.uses[tensor].push_back(position);
    }
    if (learned_bytes_ + done.bytes() > limit_) done = Phase();
    learned_bytes_ += done.bytes();
    cursor_ = 0;
}

void Trace::access(residency::TensorId tensor)
{
    if (phase_ == UINT32_MAX) return;
    if (metadata_bytes() + kAccessBytes <= limit_) recorded_.push_back(tensor);
    const uint64_t distance = next_use(tensor);
    if (distance > kSkipMax) return;
    cursor_ = (cursor_ + distance + 1) % std::max<size_t>(forecast().size(), 1);
}

uint64_t Trace::next_use(residency::TensorId tensor) const
{
    if (phase_ == UINT32_MAX) return residency::kNever;
    const Phase &phase = phases_[phase_];
    if (tensor >= phase.uses.size() || phase.uses[tensor].empty()) return residency::kNever;
    const std::vector<uint32_t> &uses = phase.uses[tensor];
    const auto next = std::lower_bound(uses.begin(), uses.end(), cursor_);
    if (next != uses.end()) return *next - cursor_;
    return phase.order.size() - cursor_ + uses.front();
}

}  // namespace stepwell::schedule
