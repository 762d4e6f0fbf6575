// SPDX-License-Identifier: Apache-2.0
// Candidate policies: each orders the victims of a place, from a repeating step that it knows or
// from the accesses so far. They plan (VictimPolicy::plans), so the core keeps their order.
// choose.h finds the best one by replays. Pure; one thread.
#pragma once

#include "lib/schedule/plan/keeping.h"
#include "lib/schedule/replay/replay.h"
#include "lib/schedule/trace/uses.h"

#include <array>
#include <limits>

namespace stepwell::schedule {

// Evicts the least recently used.
class LastUse final : public Policy {
public:
    void access(const Event &event) override;
    [[nodiscard]] uint64_t next_use(residency::TensorId) const override
    {
        return residency::kNever;
    }
    [[nodiscard]] bool plans() const override { return true; }
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId) const override;

private:
    std::vector<uint64_t> last_;
    uint64_t now_ = 0;
};

// Evicts the least frequently used; uses fade with each step: with `fading` 1 all count alike,
// with 0 only those of the last step. For steps that differ.
class OftenUsed final : public Policy {
public:
    explicit OftenUsed(double fading);
    void begin_step(const Step &) override { ++step_; }
    void access(const Event &event) override;
    [[nodiscard]] uint64_t next_use(residency::TensorId) const override
    {
        return residency::kNever;
    }
    [[nodiscard]] bool plans() const override { return true; }
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId) const override;

private:
    struct Count {
        double uses = 0;  // as faded at `step`
        uint64_t step = 0;
    };
    [[nodiscard]] double faded(const Count &count) const;

    const double halving_;  // bits per step
    std::vector<Count> counts_;
    uint64_t step_ = 0;
};

// Base of policies that know the repeating step; tensors that it does not use are evicted first.
// If a step differs, they may be off for a tensor until the next step begins.
class KnownStep : public Policy {
public:
    explicit KnownStep(const Uses &uses);  // `uses` must outlive it
    void begin_step(const Step &step) override;
    void access(const Event &event) override;
    // In fetches of the step.
    [[nodiscard]] uint64_t next_use(residency::TensorId tensor) const override;
    [[nodiscard]] bool plans() const override { return true; }

protected:
    [[nodiscard]] const Uses &uses() const { return uses_; }
    [[nodiscard]] bool is_used(residency::TensorId tensor) const
    {
        return tensor < uses_.tensors() && !uses_.of(tensor).empty();
    }
    // For tensors that the step does not use: below all that it uses. Nothing is known about
    // tensors created later: they are evicted in the order of their use.
    [[nodiscard]] double worth_unused(residency::TensorId tensor) const;
    // Index of the tensor's next use in a step; their number stands for the first use of the next
    // step.
    [[nodiscard]] size_t turn(residency::TensorId tensor) const;
    // In fetches since the begin of the first step.
    [[nodiscard]] double next_at(residency::TensorId tensor) const;

private:
    struct Place {
        uint64_t step = 0;
        uint32_t turn = 0;
    };
    const Uses &uses_;
    std::vector<Place> places_;
    uint64_t step_ = 0;
    uint64_t begin_ = 0;
    uint64_t now_ = 0;
    std::array<residency::TensorId, kLanes> last_ = {residency::kNone, residency::kNone};
};

// Evicts what is used farthest in the future; dirty tensors as if they were used `write_back` of a
// step sooner.
class NextUse final : public KnownStep {
public:
    explicit NextUse(const Uses &uses, double write_back = 0);
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId) const override;
    [[nodiscard]] double write_back_worth() const override { return write_back_; }

private:
    const double write_back_;
};

// Tensors of the role stay; the others, and the role if it is too large, by next use.
class PinRole final : public KnownStep {
public:
    PinRole(const Uses &uses, const std::vector<residency::TensorSpec> &specs, uint32_t role);
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId) const override;

private:
    std::vector<bool> pinned_;
};

// Keeps what a step uses first for the next step, which suits an order that goes back and forth.
class ZigZag final : public KnownStep {
public:
    explicit ZigZag(const Uses &uses) : KnownStep(uses) {}
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId) const override;
};

// Keeps what a Keeping keeps until its next use; the rest by next use, clean ones first.
class Kept final : public KnownStep {
public:
    Kept(const Uses &uses, Keeping keeping, residency::PlaceId place);
    // 0 for kept tensors, so that no prefetch evicts them and they are not written back early.
    [[nodiscard]] uint64_t next_use(residency::TensorId tensor) const override;
    [[nodiscard]] bool keeps(residency::TensorId tensor) const override
    {
        return is_used(tensor) && stay(tensor) == Stay::kStays;
    }
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId) const override;
    [[nodiscard]] double write_back_worth() const override { return write_back_; }

private:
    [[nodiscard]] Stay stay(residency::TensorId tensor) const;

    const Keeping keeping_;
    const residency::PlaceId place_;
    const double write_back_;
};

}  // namespace stepwell::schedule
