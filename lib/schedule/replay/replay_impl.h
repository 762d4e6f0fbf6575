// SPDX-License-Identifier: Apache-2.0
// The inside of a replay: its lanes, and the core with its links. One thread.
#pragma once

#include "lib/residency/command_loop.h"
#include "lib/residency/core.h"
#include "lib/schedule/replay/replay.h"

#include <array>

namespace stepwell::schedule {

constexpr size_t kNoEvent = SIZE_MAX;

inline bool reads(residency::Access access)
{
    return access == residency::Access::kRead || access == residency::Access::kReadWrite;
}

class Replay::Impl final : residency::CommandSink, residency::EventHook {
public:
    explicit Impl(const Machine &on) : machine(on), core(on.config), links(on) { loop_.add(*this); }

    Status create(std::vector<residency::TensorSpec> specs);
    Status fill(residency::TensorId tensor);
    Result<StepResult> step(const Step &step);
    Status drain();

    const Machine &machine;  // not owned
    residency::Core core;
    VirtualLinks links;
    Policy *policy = nullptr;          // not owned
    Prefetcher *prefetcher = nullptr;  // not owned
    residency::Instant time = 0;
    bool recording = false;
    const std::atomic<bool> *stop = nullptr;  // not owned

private:
    enum class Wait : uint8_t { kNothing, kCompute, kLane, kFetch, kDone };
    struct LaneState {
        std::vector<size_t> events;  // indexes in the step
        size_t cursor = 0;           // in `events`
        Wait wait = Wait::kNothing;
        bool computed = false;    // the compute time before the event at the cursor has passed
        bool goes_first = false;  // does not wait for the other lane this time
        residency::Instant until = residency::kNever;
        residency::Instant since = 0;  // begin of the wait
        size_t past = 0;  // all events of the step before this one that are in this lane are done
        residency::FetchId fetch = 0;
        std::vector<Event> asked;  // of the fetch under way
        std::vector<size_t> positions;
        uint64_t compute_ns = 0;
        uint64_t stall_ns = 0;
    };
    struct View {
        residency::Request request;
        Lane lane = Lane::kProgram;
        bool by_gate = false;
    };

    // A step.
    Status check(const Step &step) const;
    void begin(const Step &step);
    void find_orders(const Step &step);
    [[nodiscard]] bool through() const;
    bool give_up_order();
    [[nodiscard]] residency::Instant next_end() const;
    StepResult finish(const Step &step);

    // A lane.
    Status run_lanes();
    Status run_lane(Lane lane, bool *moved);
    Status perform(Lane lane);
    [[nodiscard]] bool comes_after(size_t position) const;
    Status ask(Lane lane);
    bool try_hit(const std::vector<residency::Request> &requests);
    void grant(Lane lane, const residency::Granted &granted);
    void pass(Lane lane, size_t events);
    Status release(Lane lane, const Event &event);
    Status discard(const Event &event);

    // The core.
    residency::Request request_of(const Event &event) const;
    residency::Request settled(residency::Request request) const;
    void count_read(const residency::Request &request);
    Status execute();
    [[nodiscard]] const LaneState *waiting_lane(residency::FetchId fetch) const;
    Status end_transfer();
    Status prefetch();
    void note_access(Lane lane, bool told);

    // For the command loop. There is no store, and memory takes no time.
    [[nodiscard]] residency::Instant now() const override { return time; }
    void forget(const residency::Forget &) override {}
    void swap_memory(std::vector<residency::Swap> &) override {}
    void pack_freed(residency::PackId) override {}
    void submit(std::vector<residency::Transfer> &transfers, residency::Commands &out) override;
    void promote(residency::TransferId id) override { links.promote(id); }
    void failed(const residency::BackgroundError &) override {}
    bool granted(residency::Granted &granted, residency::Commands &) override;
    bool refused(residency::Refused &refused, residency::Commands &) override;

    const Step *step_ = nullptr;
    std::array<LaneState, kLanes> lanes_;
    std::vector<size_t> order_;  // by event: the last event of the other lane that it waits for
    std::vector<std::vector<View>> open_;  // by tensor
    bool news_ = false;                    // since the prefetcher last looked
    residency::CommandLoop loop_{*this};
    residency::Commands &out_ = loop_.out;
    Status failure_;  // of a command
    StepResult result_;
};

}  // namespace stepwell::schedule
