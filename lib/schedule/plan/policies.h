// SPDX-License-Identifier: Apache-2.0
// Candidate policies: each says what leaves a place first, from what it was told of a repeating
// step or from what it has seen so far. They plan (VictimPolicy::plans), so the core keeps their
// order. Which one is best is not theirs to know: choose.h replays them.
// Pure; one thread.
#pragma once

#include "lib/schedule/plan/keeping.h"
#include "lib/schedule/replay/replay.h"
#include "lib/schedule/trace/uses.h"

#include <array>
#include <limits>

namespace stepwell::schedule {

// What was used longest ago leaves first.
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

// What was used often leaves last, and a use counts for less with each step that has passed: by
// `fading` of 1 all uses count alike, by 0 only the last step's do. For steps that differ.
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
        double uses = 0;  // as of `step`
        uint64_t step = 0;
    };
    [[nodiscard]] double faded(const Count &count) const;

    const double halving_;  // bits per step
    std::vector<Count> counts_;
    uint64_t step_ = 0;
};

// The rest of these know the step that repeats; what it does not use leaves first. They lose count
// of a tensor where a step differs, until the next one begins.
class KnownStep : public Policy {
public:
    explicit KnownStep(const Uses &uses);  // which outlives it
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
    // Of what the step does not use, below all that it does. Of tensors that were not there when it
    // was known nothing is known: they leave in the order of their use.
    [[nodiscard]] double worth_unused(residency::TensorId tensor) const;
    // Of its uses in a step, the one that comes next: from 0 to their number, which is the first
    // one of the next step.
    [[nodiscard]] size_t turn(residency::TensorId tensor) const;
    // Fetches from the first step's begin on; grows from step to step.
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

// What is used farthest in the future leaves first; of what must be written back, as if it were
// used `write_back` of a step sooner.
class NextUse final : public KnownStep {
public:
    explicit NextUse(const Uses &uses, double write_back = 0);
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId) const override;
    [[nodiscard]] double write_back_worth() const override { return write_back_; }

private:
    const double write_back_;
};

// What has the role stays; of the rest, and where it is too much, by next use.
class PinRole final : public KnownStep {
public:
    PinRole(const Uses &uses, const std::vector<residency::TensorSpec> &specs, uint32_t role);
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId) const override;

private:
    std::vector<bool> pinned_;
};

// Each step finds the part that it begins with: what it uses first stays, as an optimizer that goes
// back and forth would leave it.
class ZigZag final : public KnownStep {
public:
    explicit ZigZag(const Uses &uses) : KnownStep(uses) {}
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId) const override;
};

// What a plan of keeping keeps until its next use stays; the rest by next use, clean ones first.
class Kept final : public KnownStep {
public:
    Kept(const Uses &uses, Keeping keeping, residency::PlaceId place);
    // Of what stays: now, so that nothing brought ahead takes its room and nothing of it is written
    // back early.
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
