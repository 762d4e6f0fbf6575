// SPDX-License-Identifier: Apache-2.0
// PhaseTrace: what is known of one phase: the ways its steps went, and how far the step under way
// has come along one of them. What deviates costs nothing but itself: the place in the forecast
// stays, or goes on to where the accesses fit again.
// Pure; one thread at a time.
#pragma once

#include "lib/schedule/trace/forecast.h"
#include "lib/schedule/trace/learned.h"

#include <memory>

namespace stepwell::schedule {

class PhaseTrace final : public Forecast {
public:
    // False when there is nothing yet to go by.
    bool begin(residency::Instant now);
    // What was recorded becomes one of the ways, in at most so many bytes beside them.
    void learn(uint64_t bytes_max);
    void end();
    void declare(Step step);
    void forget_declared();

    // An access of the step under way.
    void follow(Lane lane, residency::TensorId tensor, residency::Instant now);
    // The fetch that is expected next in the lane; null: none.
    [[nodiscard]] const Event *expected(Lane lane) const;

    [[nodiscard]] bool is_open() const { return open_; }
    [[nodiscard]] bool has_forecast() const { return following_ != nullptr; }
    // Accesses until the tensor is used, into what comes after this step; kNever.
    [[nodiscard]] uint64_t distance(residency::TensorId tensor) const;
    // Whose step comes after one of this; null: not known.
    void set_next(const PhaseTrace *next) { next_ = next; }
    [[nodiscard]] const PhaseTrace *next() const { return next_; }
    // How its last step went, and how the one goes that begins next; null: not known.
    [[nodiscard]] const Learned *last() const { return last_; }
    [[nodiscard]] const Learned *coming() const;
    // No access pattern is usual: a step's tensors depend on its data. Of the order ahead only
    // those are certain then that nearly all steps use.
    [[nodiscard]] bool varies() const { return varies_; }
    [[nodiscard]] uint64_t steps() const { return steps_; }  // that were learned
    // The last steps of a phase that varies, as far as they are kept, the oldest first.
    static constexpr size_t kSeenMax = 64;
    [[nodiscard]] std::vector<const Step *> seen() const;

    [[nodiscard]] uint64_t turn() const override { return turn_; }
    [[nodiscard]] uint64_t passed() const override { return passed_; }
    [[nodiscard]] residency::Instant passed_at() const override { return passed_at_; }
    [[nodiscard]] std::optional<Expected> ahead(uint64_t fetches) const override;

    [[nodiscard]] uint64_t bytes() const;  // without what is being recorded
    bool drop_oldest();                    // false: nothing but what is followed is left
    [[nodiscard]] uint64_t deviations() const { return deviations_; }
    [[nodiscard]] const std::vector<std::unique_ptr<Learned>> &learned() const { return learned_; }

    Step recording;

private:
    static constexpr size_t kRecent = 8;  // accesses that tell where in a step one is
    struct Cursor {
        size_t at = 0;            // in the order of the lane
        size_t guess = SIZE_MAX;  // where it would be, if the last access was no insertion
        std::array<residency::TensorId, kRecent> recent{};
        size_t seen = 0;
    };
    struct Habit {              // of a tensor
        float rate = 0;         // of the steps, those that use it; recent ones count more
        uint32_t position = 0;  // of its first use, when it was used last
    };
    struct Found {
        const Learned *learned = nullptr;
        size_t at = 0;
        size_t matched = 0;
    };

    void restart(const Learned *learned);
    [[nodiscard]] const Learned *predict() const;
    [[nodiscard]] bool finds_varying() const;
    [[nodiscard]] Learned *find_known(const Learned &step);
    Learned *mix_lengths(const Learned &step);
    bool retire_oldest();
    [[nodiscard]] size_t find_oldest() const;
    void forget(size_t way);
    void drop_past();
    void forget_past();
    void note_habits(const Learned &step, uint64_t bytes_max);
    [[nodiscard]] float rate(residency::TensorId tensor) const
    {
        return tensor < habits_.size() ? habits_[tensor].rate : 0;
    }
    bool step_on(Lane lane, residency::TensorId tensor);
    void jump(Lane lane, const Learned *learned, size_t at);
    [[nodiscard]] size_t skip_to(Lane lane, residency::TensorId tensor, size_t most) const;
    [[nodiscard]] Found find(Lane lane, residency::TensorId tensor) const;
    [[nodiscard]] size_t matched(const Learned &learned, Lane lane, size_t index) const;
    [[nodiscard]] uint64_t base(Lane lane) const;  // the number of its next fetch
    [[nodiscard]] uint64_t first_use(residency::TensorId tensor) const;

    std::vector<std::unique_ptr<Learned>> learned_;
    std::vector<Step> past_;  // of a phase that varies: ways that had to go, the oldest first
    uint64_t past_bytes_ = 0;
    std::vector<Habit> habits_;  // by tensor
    const Learned *following_ = nullptr;
    const Learned *last_ = nullptr;  // how the last step went
    const PhaseTrace *next_ = nullptr;
    std::array<Cursor, kLanes> cursors_;
    uint64_t steps_ = 0;
    uint64_t turn_ = 0;
    uint64_t passed_ = 0;
    residency::Instant passed_at_ = 0;
    uint64_t deviations_ = 0;
    bool open_ = false;
    bool varies_ = false;
};

}  // namespace stepwell::schedule
