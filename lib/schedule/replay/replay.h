// SPDX-License-Identifier: Apache-2.0
// Replay: steps in virtual time. The real core decides where bytes are; its commands are carried
// out on modelled links, fetches wait for their grants and computing takes its time. Shows what a
// machine would do with a step under a policy.
// Lanes run concurrently: an event waits for earlier events of the other lane in the step that use
// the same tensor, unless both only read. A step ends when all lanes are done; transfers may
// continue into the next one.
// Pure; one thread. The same steps give the same results.
#pragma once

#include "lib/residency/policy.h"
#include "lib/schedule/replay/virtual_links.h"
#include "lib/schedule/trace/step.h"

#include <atomic>
#include <memory>
#include <optional>

namespace stepwell::residency {
class Core;
}  // namespace stepwell::residency

namespace stepwell::schedule {

// A victim policy that sees the accesses.
class Policy : public residency::VictimPolicy {
public:
    virtual void begin_step(const Step &step) { (void)step; }
    // A fetch, before the core gets it.
    virtual void access(const Event &event) { (void)event; }
    // The tensor stays until its next use, so it counts as needed now.
    [[nodiscard]] virtual bool keeps(residency::TensorId tensor) const
    {
        (void)tensor;
        return false;
    }
};

// Proposes prefetches, as the runtime does.
class Prefetcher {
public:
    struct Moment {
        size_t position = 0;  // events of the program's lane before this one are done
        residency::Instant now = 0;
    };
    virtual ~Prefetcher() = default;
    virtual void begin_step(const Step &step, residency::Instant now)
    {
        (void)step;
        (void)now;
    }
    virtual void end_step(residency::Instant now) { (void)now; }
    // A fetch, after the policy saw it. `told` is false for a hit, which causes no event.
    virtual void access(const Event &event, bool told, residency::Instant now)
    {
        (void)event;
        (void)told;
        (void)now;
    }
    // The next prefetch to ask of the core, as a hint. Called when a step begins, after each event
    // that takes the runtime's lock, at each end of a transfer and at wake(), repeatedly until
    // there is none.
    virtual std::optional<residency::FetchAsked> next(const Moment &moment,
                                                      const residency::Core &core) = 0;
    virtual void asked(residency::FetchId fetch) { (void)fetch; }  // made of next()'s proposal
    // The prefetch was granted or refused.
    virtual void ended(residency::FetchId fetch, const Status &status)
    {
        (void)fetch;
        (void)status;
    }
    // Called after next(), for early write-backs, so that blocks can be evicted at once later.
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
    uint64_t stall_ns = 0;               // of that lane: waits for fetches and the other lane
    uint64_t update_stall_ns = 0;        // of the update lane
    std::vector<LinkUse> links;          // by link of the machine
    uint64_t read_bytes = 0;             // by both lanes, of fetches that read
    uint64_t hit_bytes = 0;              // of these, resident when fetched
    std::vector<uint64_t> evictions;     // blocks, by place
    uint64_t events = 0;                 // events of the core
    std::vector<uint64_t> event_begins;  // if recording, by event of the step: asked for ...
    std::vector<uint64_t> event_ends;    // ... and done
    std::vector<Span> spans;             // if recording, of transfers that began
};

class Replay {
public:
    // Tensors are numbered as in `specs`. With `allowed` 0 every place is allowed; with home
    // kNoPlace the farthest of them is home. Machine, policy and prefetcher must outlive the
    // replay; without them the policy is recency, and nothing is prefetched.
    static Result<std::unique_ptr<Replay>> open(const Machine &machine,
                                                std::vector<residency::TensorSpec> specs);
    ~Replay();

    void set_policy(Policy *policy);
    void set_prefetcher(Prefetcher *prefetcher);
    void set_recording(bool recording);  // records times and spans in results
    // If it becomes true, steps fail with CANCELLED. It must outlive the replay; null: never.
    void set_stop(const std::atomic<bool> *stop);

    // Gives the tensor contents, at the farthest place that is allowed; takes no time.
    Status fill(residency::TensorId tensor);
    // For all tensors that the step reads before it writes them.
    Status fill_what_is_read(const Step &step);
    // Fails if the step is impossible: no room, nothing to read, or a release without a fetch. The
    // replay cannot be used afterwards.
    Result<StepResult> step(const Step &step);
    // Runs until nothing is in flight.
    Status drain();

    [[nodiscard]] residency::Instant now() const;
    [[nodiscard]] const residency::Core &core() const;

private:
    class Impl;
    explicit Replay(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace stepwell::schedule
