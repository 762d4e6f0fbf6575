// SPDX-License-Identifier: Apache-2.0
// Trace: the recorded phases of a program: each step's fetches and releases with the compute time
// between them, the access patterns of each phase, and from them the distance to a tensor's next
// use. Two phases may have a step open at once. Pure; one thread at a time, under the runtime's
// lock.
#pragma once

#include "lib/residency/policy.h"
#include "lib/schedule/trace/phase_trace.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace stepwell::schedule {

constexpr uint32_t kNoPhase = UINT32_MAX;

class Trace final : public residency::VictimPolicy {
public:
    // False if the phase has no access pattern yet.
    bool begin_step(uint32_t phase, residency::Instant now);
    // The recording becomes an access pattern of the phase, unless the step failed (`learn`
    // false).
    void end_step(uint32_t phase, residency::Instant now, bool learn);
    // Declares how steps of the phase go; an empty step withdraws it. Not while a step is open.
    // False: the limit does not allow so many events, and nothing has changed.
    bool declare(uint32_t phase, Step step);

    // One call of the lane, all or nothing. Not recorded for kNoPhase or without an open step.
    void fetched(uint32_t phase, Lane lane, const residency::Request *requests, size_t n,
                 residency::Instant now);
    // A hit of the program, which is reported late and without its time: all hits since the last
    // timed event share the time up to the next one. Its byte range is the expected one, else the
    // whole tensor.
    void hit(uint32_t phase, residency::TensorId tensor, residency::PlaceId place, uint64_t bytes);
    // A view that ended under the lock: one that writes, or a read with a hint.
    void released(uint32_t phase, Lane lane, const residency::Request &view, Hint hint,
                  residency::Instant now);
    // A view that ended without the lock, reported late like hits: it shares the time, and its
    // byte range is that of its fetch.
    void ended(uint32_t phase, residency::TensorId tensor, residency::PlaceId place);
    // The contents were discarded without a view: not an access, but replays need it. Between two
    // steps it is recorded in the second.
    void discarded(uint32_t phase, Lane lane, residency::TensorId tensor, residency::Instant now);
    // The program waited inside the library, which is not compute time.
    void waited(uint32_t phase, residency::Instant begin, residency::Instant end);

    // Accesses from now until the tensor is used, in this step or the next one; kNever if no use
    // is expected.
    [[nodiscard]] uint64_t next_use(residency::TensorId tensor) const override;

    // The forecast of the phase, from its open step on, or for its next one. Null: the phase was
    // not seen.
    [[nodiscard]] const PhaseTrace *phase(uint32_t phase) const
    {
        return phase < phases_.size() ? phases_[phase].get() : nullptr;
    }
    // The phases with an open step; if none is, the one that is expected to begin.
    [[nodiscard]] std::vector<uint32_t> current() const;
    [[nodiscard]] bool is_current(uint32_t phase) const;
    [[nodiscard]] uint32_t phases() const { return static_cast<uint32_t>(phases_.size()); }

    // One step of a round, a repeating sequence of steps.
    struct Turn {
        uint32_t phase = kNoPhase;
        const Learned *way = nullptr;
    };
    // The round that begins with the phase's last step, of at most kRoundMax steps: empty before
    // there is a step, only that step if they do not return to it.
    static constexpr size_t kRoundMax = 4;
    [[nodiscard]] std::vector<Turn> round(uint32_t phase) const;

    // Beyond the limit, patterns are dropped, the oldest first, and events are not recorded.
    static constexpr uint64_t kBytesMax = 32ull << 20;
    void set_limit(uint64_t bytes) { limit_ = bytes; }
    [[nodiscard]] uint64_t limit() const { return limit_; }
    // Includes what recordings may grow to when they are learned.
    [[nodiscard]] uint64_t metadata_bytes() const;

private:
    // Of the program in a phase's open step. Events of the update lane are not on it: they happen
    // while the program computes and while it waits.
    struct Clock {
        residency::Instant last_ns = 0;
        std::vector<size_t> untimed;  // recorded hits that share the time since
    };

    PhaseTrace &make_phase(uint32_t phase);
    static bool is_again(const Step &events, residency::TensorId tensor, residency::PlaceId place);
    [[nodiscard]] uint32_t phase_after(uint32_t phase) const;
    PhaseTrace *open_phase(uint32_t phase);
    void record(uint32_t phase, Event event, residency::Instant now);
    uint64_t compute_until(uint32_t phase, residency::Instant now);
    bool has_room(PhaseTrace &phase);

    std::vector<std::unique_ptr<PhaseTrace>> phases_;
    std::vector<Clock> clocks_;
    uint32_t open_ = 0;          // phases with an open step
    uint32_t ended_ = kNoPhase;  // whose step ended last
    Step between_;               // what was discarded since; the next step begins with it
    uint64_t limit_ = kBytesMax;
    uint64_t kept_bytes_ = 0;  // of all phases, at the last end of a step
};

}  // namespace stepwell::schedule
