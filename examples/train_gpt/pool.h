// SPDX-License-Identifier: Apache-2.0
//
// Owns the compute threads. One thread at a time calls run(); it works along. Tasks are handed out
// one by one, because the update and the I/O of the runtime share the cores: a fixed split would
// wait for the slower core. Who runs a task never changes what the task computes.

#ifndef TRAIN_GPT_POOL_H
#define TRAIN_GPT_POOL_H

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace train_gpt {

class Pool {
public:
    explicit Pool(uint32_t threads);  // the caller of run() is one of them
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

    // Calls body(task, worker) for every task in [0, tasks) and returns when all are done.
    // worker < threads() names the scratch memory the task may use.
    template <class Body> void run(uint32_t tasks, Body &&body)
    {
        using Plain = std::remove_reference_t<Body>;
        const auto call = [](const void *context, uint32_t task, uint32_t worker) {
            (*static_cast<const Plain *>(context))(task, worker);
        };
        run_tasks(tasks, call, &body);
    }

private:
    using Call = void (*)(const void *context, uint32_t task, uint32_t worker);

    void run_tasks(uint32_t tasks, Call call, const void *context);
    void work(uint32_t worker);
    bool take_task(uint64_t ticket, uint32_t worker);

    // Number of the run in the upper half, tasks not yet taken in the lower one. A worker that
    // takes a task swaps the whole word, so it can never take one of a run that is over.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<uint32_t> done_{0};
    std::atomic<bool> stop_{false};
    std::atomic<uint32_t> tasks_{0};
    std::atomic<Call> call_{nullptr};
    std::atomic<const void *> context_{nullptr};
    std::vector<std::thread> workers_;
};

}  // namespace train_gpt

#endif
