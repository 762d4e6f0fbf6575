// SPDX-License-Identifier: Apache-2.0
//
// stepwell/hpp/phase.hpp: phases, and steps that abort unless they are ended.
#ifndef STEPWELL_HPP_PHASE_HPP
#define STEPWELL_HPP_PHASE_HPP

#include <stepwell/hpp/owner.hpp>
#include <stepwell/hpp/runtime.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace stw {

namespace detail {

struct DestroyPhase {
    stw_status operator()(stw_phase *phase) const noexcept { return stw_phase_destroy(phase); }
};

}  // namespace detail

/// A repeating unit: "train", "eval", "decode".
class Phase : public detail::Owner<stw_phase, detail::DestroyPhase> {
public:
    using Owner::Owner;
    static Result<Phase> create(const Runtime &runtime, const char *name)
    {
        stw_phase *phase = nullptr;
        const stw_status code = stw_phase_create(runtime.get(), name, &phase);
        if (code < 0) return Result<Phase>(code);
        return Phase(phase);
    }
    /// Declares its steps, so that the first one is planned too; no entries removes it. BUSY while
    /// one is open. Start each entry from STW_PLAN_ENTRY_INIT.
    Status declare(const std::vector<stw_plan_entry> &entries)
    {
        return Status(
            stw_phase_declare(get(), entries.data(), static_cast<uint32_t>(entries.size())));
    }
    /// Advice on other orders of its steps, best first; most often there is none. EMPTY
    /// before the first step has ended. Blocks while it replays, up to some seconds for the
    /// largest steps.
    Result<std::vector<stw_plan_advice>> advice() const
    {
        stw_plan_advice found[3] = {STW_PLAN_ADVICE_INIT, STW_PLAN_ADVICE_INIT,
                                    STW_PLAN_ADVICE_INIT};
        std::uint32_t count = 0;
        const stw_status code = stw_phase_advice_get(get(), found, 3, &count);
        if (code < 0) return Result<std::vector<stw_plan_advice>>(code);
        return std::vector<stw_plan_advice>(found, found + (count < 3 ? count : 3));
    }
    /// BUSY while a step is open; then it is still owned.
    Status destroy() { return Status(close_now()); }
};

/// One run of a phase. Leaving its scope without end() aborts it: every view fetched in it is
/// released as abandoned and its gradients are dropped. Neither blocks.
class Step {
public:
    Step() noexcept = default;
    Step(const Step &) = delete;
    Step &operator=(const Step &) = delete;
    Step(Step &&other) noexcept
        : phase_(std::exchange(other.phase_, nullptr)), stream_(other.stream_)
    {
    }
    Step &operator=(Step &&other) noexcept
    {
        Step taken(std::move(other));
        std::swap(phase_, taken.phase_);
        std::swap(stream_, taken.stream_);
        return *this;
    }
    ~Step()
    {
        if (phase_) (void)stw_step_abort(phase_, stream_);
    }

    /// BUSY when the phase has an open step. `stream` is the one on which an abort releases the
    /// views.
    static Result<Step> begin(const Phase &phase, void *stream = STW_STREAM_HOST)
    {
        const stw_status code = stw_step_begin(phase.get());
        if (code < 0) return Result<Step>(code);
        Step step;
        step.phase_ = phase.get();
        step.stream_ = stream;
        return step;
    }
    /// Ends the step, whatever the status: a failure is the first background error.
    Status end(stw_step_stats *stats_out = nullptr)
    {
        return Status(stw_step_end(std::exchange(phase_, nullptr), stats_out));
    }
    Status abort() { return Status(stw_step_abort(std::exchange(phase_, nullptr), stream_)); }

private:
    stw_phase *phase_ = nullptr;
    void *stream_ = STW_STREAM_HOST;
};

}  // namespace stw

#endif  // STEPWELL_HPP_PHASE_HPP
