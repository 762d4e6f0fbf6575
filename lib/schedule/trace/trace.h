// SPDX-License-Identifier: Apache-2.0
// Trace: the phases of a program as they were seen: each step's fetches and releases with the time
// computed between them, the ways in which each phase goes, and from them the distance to a
// tensor's next use. Two phases may have a step open at once.
// Pure; one thread at a time, under the shell's lock.
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
    // A step of the phase begins. False when nothing says yet how it goes.
    bool begin_step(uint32_t phase, residency::Instant now);
    // What was seen since becomes one of the ways the phase goes; a step that failed teaches
    // nothing.
    void end_step(uint32_t phase, residency::Instant now, bool learn);
    // How steps of the phase go, told instead of seen; an empty one takes it back. Not while a step
    // is open. False: the limit does not allow so many events, and nothing has changed.
    bool declare(uint32_t phase, Step step);

    // One call of the lane, all or nothing. kNoPhase, or one without an open step: not recorded.
    void fetched(uint32_t phase, Lane lane, const residency::Request *requests, size_t n,
                 residency::Instant now);
    // A fetch of the program past the lock, heard of late: no time is known, so all of these since
    // the last event with a time share the time up to the next one. Of the bytes that are expected
    // of the tensor, else of all.
    void hit(uint32_t phase, residency::TensorId tensor, residency::PlaceId place, uint64_t bytes);
    // A view that ended under the lock: of a read that is hinted, or of a write.
    void released(uint32_t phase, Lane lane, const residency::Request &view, Hint hint,
                  residency::Instant now);
    // A view of the program that ended past the lock, heard of late as hits are: it shares the
    // time, and which bytes of the tensor they were is known by its fetch.
    void ended(uint32_t phase, residency::TensorId tensor, residency::PlaceId place);
    // The contents of a tensor died without a view: no access, but a replay has to know.
    void discarded(uint32_t phase, Lane lane, residency::TensorId tensor, residency::Instant now);
    // The program waited inside the library: that is no computing.
    void waited(uint32_t phase, residency::Instant begin, residency::Instant end);

    // Accesses from now until the tensor is used, through the end of this step into the next one;
    // kNever where nothing says that it is.
    [[nodiscard]] uint64_t next_use(residency::TensorId tensor) const override;

    // What is expected in the phase, from its open step on, else in its next one. Null: no such
    // phase was seen.
    [[nodiscard]] const PhaseTrace *phase(uint32_t phase) const
    {
        return phase < phases_.size() ? phases_[phase].get() : nullptr;
    }
    // Of the open ones, and where none is, of the one that is expected to begin.
    [[nodiscard]] std::vector<uint32_t> current() const;
    [[nodiscard]] bool is_current(uint32_t phase) const;
    [[nodiscard]] uint32_t phases() const { return static_cast<uint32_t>(phases_.size()); }

    // One step of those that follow each other again and again.
    struct Turn {
        uint32_t phase = kNoPhase;
        const Learned *way = nullptr;
    };
    // From the phase's last step on, as far as is known, at most kRoundMax; none before there is
    // a step, one alone where they do not come back to it.
    static constexpr size_t kRoundMax = 4;
    [[nodiscard]] std::vector<Turn> round(uint32_t phase) const;

    // Ways and recordings beyond the limit are not kept, the oldest ways first.
    static constexpr uint64_t kBytesMax = 32ull << 20;
    void set_limit(uint64_t bytes) { limit_ = bytes; }
    [[nodiscard]] uint64_t limit() const { return limit_; }
    // Including what the steps under way may grow to when they are learned.
    [[nodiscard]] uint64_t metadata_bytes() const;

private:
    struct Clock {  // of a phase's open step
        residency::Instant last_ns = 0;
        size_t untimed = 0;       // hits at the end of the recording that share the time since
        uint64_t carried_ns = 0;  // computed before last_ns, and no event has it yet
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
    uint32_t ended_ = kNoPhase;  // the one whose step ended last
    uint64_t limit_ = kBytesMax;
    uint64_t kept_bytes_ = 0;  // of all phases, as of the last step that ended
};

}  // namespace stepwell::schedule
