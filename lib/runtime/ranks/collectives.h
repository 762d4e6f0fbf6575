// SPDX-License-Identifier: Apache-2.0
// The queue of collectives: each rank starts the same ones in the same order.
#pragma once

#include "lib/runtime/group/state.h"
#include "lib/runtime/views/sleepers.h"

namespace stepwell {

class GroupMemory;

// Executes collectives of some kinds, on the thread of the queue.
class CollectiveRunner {
public:
    virtual ~CollectiveRunner() = default;
    virtual void run(Collective &work) STW_EXCLUDES(runtime_lock) = 0;
};

class Collectives final : public DispatchHook, public CallerWork, Grounded {
public:
    Collectives(const Ground &ground, GroupMemory &group_memory)
        : Grounded(ground), group_memory_(group_memory)
    {
    }

    Status open_ranks();
    void close_ranks();
    [[nodiscard]] bool is_idle() const override STW_REQUIRES(runtime_lock);
    // True if collectives run on the program's threads, while these wait.
    [[nodiscard]] bool works_here() const override;
    Status drain_ranks(residency::Instant begin, residency::Instant deadline);
    [[nodiscard]] bool ranks_stopped() const STW_REQUIRES(runtime_lock);
    void queue_collective(std::unique_ptr<Collective> next) STW_REQUIRES(runtime_lock);
    bool work_one() override STW_REQUIRES(runtime_lock);
    bool wait_ranks(residency::Instant begin, residency::Instant deadline,
                    const std::function<bool()> &done) STW_REQUIRES(runtime_lock);
    static collective::Record record_of(collective::Kind kind,
                                        const std::vector<stw_tensor *> &tensors,
                                        const Status &status);

    std::atomic<bool> ranks_news{false};  // tell_ranks() once the lock is released

    void add(Collective::Kind kind, CollectiveRunner &runner)
    {
        runners_[static_cast<size_t>(kind)] = &runner;
    }
    void notify() override
    {
        if (ranks_news.exchange(false)) tell_ranks();
    }
    void unlocked() override { notify(); }  // not earlier: a thread that wakes needs the lock

private:
    void tell_ranks();
    void run_collective(Collective &work) STW_EXCLUDES(runtime_lock);
    void lose_bucket();
    void share_failure();

    GroupMemory &group_memory_;
    CollectiveRunner *runners_[Collective::kKinds] = {};
};

}  // namespace stepwell
