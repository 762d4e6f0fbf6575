// SPDX-License-Identifier: Apache-2.0
// Replay: steps in virtual time. The core itself decides what is where; its commands are carried
// out on modelled links, fetches wait for their grants and computing takes its time. What a machine
// would do with a step under a policy, without the machine.
// Lanes run beside each other: an event waits for those of the other lane that stand before it in
// the step and use the same tensor, unless both only read. A step ends when all lanes are through;
// transfers may go on into the next one.
// Pure; one thread. The same steps give the same answers.
#pragma once

#include "lib/residency/core.h"
#include "lib/schedule/replay/virtual_links.h"
#include "lib/schedule/trace/step.h"

#include <atomic>
#include <memory>
#include <optional>

namespace stepwell::schedule {

// A victim policy that is told what happens.
class Policy : public residency::VictimPolicy {
public:
    virtual void begin_step(const Step &step) { (void)step; }
    // A fetch is asked; before the core is told of it.
    virtual void access(const Event &event) { (void)event; }
    // It stays until its next use, so it is as good as needed now.
    [[nodiscard]] virtual bool keeps(residency::TensorId tensor) const
    {
        (void)tensor;
        return false;
    }
};

// Asks ahead of the program.
class Prefetcher {
public:
    struct Moment {
        size_t position = 0;  // events of the program's lane before this one are through
        residency::Instant now = 0;
    };
    virtual ~Prefetcher() = default;
    virtual void begin_step(const Step &step, residency::Instant now)
    {
        (void)step;
        (void)now;
    }
    virtual void end_step(residency::Instant now) { (void)now; }
    // A fetch is asked, after the policy knows. Not told: a hit, of which nobody hears before
    // something else happens.
    virtual void access(const Event &event, bool told, residency::Instant now)
    {
        (void)event;
        (void)told;
        (void)now;
    }
    // What is to be asked of the core now, as a hint. Called when a step begins, after each event
    // that takes a runtime's lock, each end of a transfer and when it wished to be, again and again
    // until there is nothing.
    virtual std::optional<residency::FetchAsked> next(const Moment &moment,
                                                      const residency::Core &core) = 0;
    virtual void asked(residency::FetchId fetch) { (void)fetch; }  // what next() returned
    // The bytes are there, or why they do not come.
    virtual void ended(residency::FetchId fetch, const Status &status)
    {
        (void)fetch;
        (void)status;
    }
    // Then what is to be written back now, so that it can leave at once later.
    virtual void clean(const Moment &moment, residency::Core &core, residency::Commands &out)
    {
        (void)moment;
        (void)core;
        (void)out;
    }
    [[nodiscard]] virtual residency::Instant wake() const { return residency::kNever; }
};

struct StepResult {
    residency::Instant begin = 0;
    uint64_t step_ns = 0;
    uint64_t compute_ns = 0;             // of the program's lane
    uint64_t stall_ns = 0;               // of the program's lane: it waited for a fetch or a lane
    uint64_t update_stall_ns = 0;        // of the other one
    std::vector<LinkUse> links;          // as in the machine
    uint64_t read_bytes = 0;             // asked for with their contents, by both lanes
    uint64_t hit_bytes = 0;              // of these, there when asked
    std::vector<uint64_t> evictions;     // blocks, by place
    uint64_t events = 0;                 // that the core was told
    std::vector<uint64_t> event_begins;  // when wanted, per event of the step: asked ...
    std::vector<uint64_t> event_ends;    // ... and through
    std::vector<Span> spans;             // when wanted, of transfers that began
};

class Replay {
public:
    // The tensors are numbered as in `specs`. Allowed 0: every place there is; home kNoPlace: the
    // farthest of these. The machine, policy and prefetcher outlive it; null: recency, none.
    static Result<std::unique_ptr<Replay>> open(const Machine &machine,
                                                std::vector<residency::TensorSpec> specs);
    ~Replay();

    void set_policy(Policy *policy);
    void set_prefetcher(Prefetcher *prefetcher);
    void set_recording(bool recording);  // times and spans in results
    // While it says true, steps are refused with CANCELLED. It outlives the replay; null: never.
    void set_stop(const std::atomic<bool> *stop);

    // The tensor has contents, in the farthest place it may be in; takes no time.
    Status fill(residency::TensorId tensor);
    // Those that the step reads before it writes them.
    Status fill_what_is_read(const Step &step);
    // In the order of its events; refused where the step cannot be: no room, nothing to read, a
    // release of what was not fetched. The replay is of no use then.
    Result<StepResult> step(const Step &step);
    // Until nothing is in flight.
    Status drain();

    [[nodiscard]] residency::Instant now() const;
    [[nodiscard]] const residency::Core &core() const;

private:
    class Impl;
    explicit Replay(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace stepwell::schedule
