// SPDX-License-Identifier: Apache-2.0
// Worths change only when a tensor is used: they are times on a fixed axis, not distances from
// now.
#include "lib/schedule/plan/policies.h"

#include <cmath>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::PlaceId;
using residency::TensorId;

// Times of the program are below 0; kept tensors are above by more than any write-back is worth.
constexpr double kPartWorth = 1e15;
constexpr double kStayWorth = 2e15;
constexpr double kFarBelow = 1e15;     // doubles count fetches exactly up to this
constexpr double kFarBelowBits = 1e9;  // logarithms still have a resolution of a millionth
constexpr double kHalvingMost = 64;
constexpr double kStrangersBelow = 1e15;
constexpr double kWriteBack = 0.25;  // of a step; for what is not kept

}  // namespace

void LastUse::access(const Event &event)
{
    if (event.tensor >= last_.size()) last_.resize(event.tensor + size_t{1});
    last_[event.tensor] = ++now_;
}

double LastUse::worth(TensorId tensor, PlaceId) const
{
    const double last = tensor < last_.size() ? static_cast<double>(last_[tensor]) : 0;
    return last - kFarBelow;
}

OftenUsed::OftenUsed(double fading) : halving_(fading > 0 ? -std::log2(fading) : kHalvingMost) {}

// Uses, faded to the present step.
double OftenUsed::faded(const Count &count) const
{
    return count.uses * std::exp2(-halving_ * static_cast<double>(step_ - count.step));
}

void OftenUsed::access(const Event &event)
{
    if (event.tensor >= counts_.size()) counts_.resize(event.tensor + size_t{1});
    Count &count = counts_[event.tensor];
    count.uses = faded(count) + 1;
    count.step = step_;
}

// All fade at the same rate, so logarithms on a fixed axis have the order of the uses.
double OftenUsed::worth(TensorId tensor, PlaceId) const
{
    if (tensor >= counts_.size() || counts_[tensor].uses <= 0) return -2 * kFarBelowBits;
    const Count &count = counts_[tensor];
    return std::log2(count.uses) + halving_ * static_cast<double>(count.step) - kFarBelowBits;
}

KnownStep::KnownStep(const Uses &uses) : uses_(uses), places_(uses.tensors()) {}

void KnownStep::begin_step(const Step &)
{
    ++step_;
    begin_ += step_ > 1 ? uses_.fetches() : 0;
    now_ = 0;
    last_.fill(residency::kNone);
}

void KnownStep::access(const Event &event)
{
    ++now_;
    const bool again =
        std::exchange(last_[static_cast<size_t>(event.lane)], event.tensor) == event.tensor;
    if (again || event.tensor >= places_.size()) return;
    Place &place = places_[event.tensor];
    if (place.step != step_) place = {step_, 0};
    if (place.turn < uses_.of(event.tensor).size()) ++place.turn;
}

size_t KnownStep::turn(TensorId tensor) const
{
    return places_[tensor].step == step_ ? places_[tensor].turn : 0;
}

double KnownStep::next_at(TensorId tensor) const
{
    const std::vector<Use> &uses = uses_.of(tensor);
    const size_t next = turn(tensor);
    const uint64_t position =
        next < uses.size() ? uses[next].position : uses_.fetches() + uses.front().position;
    return static_cast<double>(begin_ + position);
}

uint64_t KnownStep::next_use(TensorId tensor) const
{
    if (tensor >= uses_.tensors() || uses_.of(tensor).empty()) return residency::kNever;
    const double distance = next_at(tensor) - static_cast<double>(begin_ + now_);
    return distance > 0 ? static_cast<uint64_t>(distance) : 0;
}

double KnownStep::worth_unused(TensorId tensor) const
{
    if (tensor < uses_.tensors()) return -std::numeric_limits<double>::infinity();
    return static_cast<double>(now_ + begin_) - kStrangersBelow;
}

NextUse::NextUse(const Uses &uses, double write_back)
    : KnownStep(uses), write_back_(write_back * uses.fetches())
{
}

double NextUse::worth(TensorId tensor, PlaceId) const
{
    if (!is_used(tensor)) return worth_unused(tensor);
    return -next_at(tensor);
}

PinRole::PinRole(const Uses &uses, const std::vector<residency::TensorSpec> &specs, uint32_t role)
    : KnownStep(uses), pinned_(uses.tensors())
{
    for (TensorId tensor = 0; tensor < uses.tensors(); ++tensor) {
        pinned_[tensor] = specs[tensor].role == role;
    }
}

double PinRole::worth(TensorId tensor, PlaceId) const
{
    if (!is_used(tensor)) return worth_unused(tensor);
    // If the role is too large, always the same tensors stay.
    if (pinned_[tensor]) return 1 / (1.0 + uses().of(tensor).front().position);
    return -next_at(tensor);
}

double ZigZag::worth(TensorId tensor, PlaceId) const
{
    if (!is_used(tensor)) return worth_unused(tensor);
    return -static_cast<double>(uses().of(tensor).front().position);
}

Kept::Kept(const Uses &uses, Keeping keeping, PlaceId place)
    : KnownStep(uses),
      keeping_(std::move(keeping)),
      place_(place),
      write_back_(kWriteBack * uses.fetches())
{
}

// Until its next use.
Stay Kept::stay(TensorId tensor) const
{
    const size_t count = uses().of(tensor).size();
    return keeping_.stays[tensor][(turn(tensor) + count - 1) % count];
}

uint64_t Kept::next_use(TensorId tensor) const
{
    const uint64_t distance = KnownStep::next_use(tensor);
    return distance != residency::kNever && stay(tensor) == Stay::kStays ? 0 : distance;
}

double Kept::worth(TensorId tensor, PlaceId place) const
{
    if (!is_used(tensor)) return worth_unused(tensor);
    const Stay how = stay(tensor);
    if (place != place_ || how == Stay::kLeaves) return -next_at(tensor);
    return how == Stay::kStays ? kStayWorth : kPartWorth;
}

}  // namespace stepwell::schedule
