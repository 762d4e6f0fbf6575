// SPDX-License-Identifier: Apache-2.0
// Records what the program and updates do with tensors: the access pattern of each phase, stalls
// and counters. Hits, which take no lock, arrive in batches.
#pragma once

#include "lib/observe/step_history.h"
#include "lib/runtime/handles/lock.h"
#include "lib/schedule/plan/planned.h"

struct stw_phase;
struct stw_tensor;

namespace stepwell {

class Dispatcher;
struct FetchPlan;
class HandleTable;
struct Machine;
struct Phase;
class ReleaseHint;
struct RequestedRange;
class ViewTable;

schedule::Hint hint_of(ReleaseHint release);

class AccessRecorder final {
public:
    AccessRecorder(Dispatcher &dispatch, HandleTable &handles, Machine &machine, ViewTable &views);
    ~AccessRecorder();
    AccessRecorder(const AccessRecorder &) = delete;
    AccessRecorder &operator=(const AccessRecorder &) = delete;

    [[nodiscard]] uint64_t step_of(const stw_phase *phase) const;  // 0: none open
    // The newest step that is open; 0: none.
    [[nodiscard]] uint64_t current_step() const { return step_.load(std::memory_order_relaxed); }
    // Of a thread that cannot name its phase: of those that begin steps their own.
    [[nodiscard]] uint64_t step_of_thread(uint32_t owner) const STW_REQUIRES(runtime_lock);
    void set_current_step(uint64_t step) { step_.store(step, std::memory_order_relaxed); }
    void drain_hits() STW_REQUIRES(runtime_lock);
    void add_stall_of(uint64_t step, observe::Stall cause, residency::TensorId tensor,
                      residency::Instant begin, residency::Instant end) STW_REQUIRES(runtime_lock);
    void note_use(stw_tensor &tensor, residency::Instant begin, uint32_t thread)
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] residency::PlaceId shard_place() const;
    [[nodiscard]] std::optional<residency::Request> shard_request(
        const RequestedRange &range) const;
    void note_gathered(const FetchPlan &plan) STW_REQUIRES(runtime_lock);
    void note_fetch(const FetchPlan &plan) STW_REQUIRES(runtime_lock);
    void note_copies(const FetchPlan &plan) STW_REQUIRES(runtime_lock);
    void note_update(const residency::FetchAsked &asked) STW_REQUIRES(runtime_lock);
    void note_update_end(const residency::Release &release) STW_REQUIRES(runtime_lock);
    void note_release(const residency::Request &view, uint64_t step, ReleaseHint hint)
        STW_REQUIRES(runtime_lock);
    void note_discard(schedule::Lane lane, residency::TensorId tensor) STW_REQUIRES(runtime_lock);
    void note_reduced(stw_tensor *gradient, uint64_t step) STW_REQUIRES(runtime_lock);
    void note_miss() STW_REQUIRES(runtime_lock) { ++misses_; }
    uint32_t owner_number();

    // Since open: of tensors, hits among them as far as drained from the rings of threads, misses.
    [[nodiscard]] uint64_t accesses() const STW_REQUIRES(runtime_lock) { return accesses_; }
    [[nodiscard]] uint64_t hits() const STW_REQUIRES(runtime_lock) { return hits_; }
    [[nodiscard]] uint64_t misses() const STW_REQUIRES(runtime_lock) { return misses_; }

    bool enabled = true;  // constant after open
    schedule::Trace trace STW_GUARDED_BY(runtime_lock);
    schedule::Planned planned STW_GUARDED_BY(runtime_lock){trace};
    bool plan_due STW_GUARDED_BY(runtime_lock) = false;  // a plan's input has changed
    std::vector<std::unique_ptr<Phase>> phases STW_GUARDED_BY(runtime_lock);
    observe::StallLedger stalls STW_GUARDED_BY(runtime_lock);

private:
    void note_access(residency::TensorId tensor) STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint32_t phase_of(uint64_t step) const STW_REQUIRES(runtime_lock);
    void note_fetched(uint32_t phase, schedule::Lane lane,
                      const std::vector<residency::Request> &requests) STW_REQUIRES(runtime_lock);

    Dispatcher &dispatch_;
    HandleTable &handles_;
    Machine &machine_;
    ViewTable &views_;
    std::atomic<uint64_t> step_{0};
    uint64_t accesses_ STW_GUARDED_BY(runtime_lock) = 0;
    uint64_t hits_ STW_GUARDED_BY(runtime_lock) = 0;
    uint64_t misses_ STW_GUARDED_BY(runtime_lock) = 0;
    std::vector<residency::Request> noted_ STW_GUARDED_BY(runtime_lock);  // keeps its memory
    residency::Instant drained_ns_ STW_GUARDED_BY(runtime_lock) = 0;  // when hits were last drained
};

}  // namespace stepwell
