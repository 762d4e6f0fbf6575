// SPDX-License-Identifier: Apache-2.0
// PhaseTrace: the access patterns of one phase, and the position of the current step in one of
// them. A deviation costs only itself: the position stays, or moves to where the accesses match
// again. Pure; one thread at a time.
#pragma once

#include "lib/schedule/trace/forecast.h"
#include "lib/schedule/trace/learned.h"

#include <memory>

namespace stepwell::schedule {

class PhaseTrace final : public Forecast {
public:
    // False if there is no access pattern yet.
    bool begin(residency::Instant now);
    // The recording becomes an access pattern, or updates one, in at most that many more bytes.
    void learn(uint64_t bytes_max);
    void end();
    void declare(Step step);
    void forget_declared();

    // An access in the current step.
    void follow(Lane lane, residency::TensorId tensor, residency::Instant now);
    // The next expected fetch of the lane; null: none.
    [[nodiscard]] const Event *expected(Lane lane) const;

    [[nodiscard]] bool is_open() const { return open_; }
    [[nodiscard]] bool has_forecast() const { return following_ != nullptr; }
    // Accesses until the tensor is used, in this step or the next one; kNever.
    [[nodiscard]] uint64_t distance(residency::TensorId tensor) const;
    // The phase whose step comes next; null: not known.
    void set_next(const PhaseTrace *next) { next_ = next; }
    [[nodiscard]] const PhaseTrace *next() const { return next_; }
    // The patterns of the last step and of the one that begins next; null: not known.
    [[nodiscard]] const Learned *last() const { return last_; }
    [[nodiscard]] const Learned *coming() const;
    // No access pattern is usual: a step's tensors depend on its data. Then only tensors that
    // nearly all steps use are certain.
    [[nodiscard]] bool varies() const { return varies_; }
    [[nodiscard]] uint64_t steps() const { return steps_; }  // learned so far
    // The last steps of a phase that varies, as many as are kept, the oldest first.
    static constexpr size_t kSeenMax = 64;
    [[nodiscard]] std::vector<const Step *> seen() const;

    [[nodiscard]] uint64_t turn() const override { return turn_; }
    [[nodiscard]] uint64_t passed() const override { return passed_; }
    [[nodiscard]] residency::Instant passed_at() const override { return passed_at_; }
    [[nodiscard]] std::optional<Expected> ahead(uint64_t fetches) const override;

    [[nodiscard]] uint64_t bytes() const;  // without the recording
    bool drop_oldest();                    // false: only patterns in use are left
    [[nodiscard]] uint64_t deviations() const { return deviations_; }
    [[nodiscard]] const std::vector<std::unique_ptr<Learned>> &learned() const { return learned_; }

    Step recording;

private:
    static constexpr size_t kRecent = 8;  // accesses that determine the position in a step
    struct Cursor {
        size_t at = 0;            // index in the lane's order
        size_t guess = SIZE_MAX;  // the position if the last access was not an insertion
        std::array<residency::TensorId, kRecent> recent{};
        size_t seen = 0;
    };
    struct Habit {              // of a tensor
        float rate = 0;         // share of steps that use it, with more weight on recent ones
        uint32_t position = 0;  // of the first use in the last step that had one
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
    [[nodiscard]] uint64_t base(Lane lane) const;  // number of the lane's next fetch
    [[nodiscard]] uint64_t first_use(residency::TensorId tensor) const;

    std::vector<std::unique_ptr<Learned>> learned_;
    std::vector<Step> past_;  // of a varying phase: steps of dropped patterns, the oldest first
    uint64_t past_bytes_ = 0;
    std::vector<Habit> habits_;  // by tensor
    const Learned *following_ = nullptr;
    const Learned *last_ = nullptr;  // pattern of the last step
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
