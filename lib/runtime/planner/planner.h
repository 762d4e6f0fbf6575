// SPDX-License-Identifier: Apache-2.0
// Planner: a thread that makes plans in the background, on otherwise idle processors. It works on
// copies and never takes the runtime's lock, so it cannot delay the program either.
#pragma once

#include "lib/observe/step_stats.h"
#include "lib/runtime/planner/model.h"
#include "lib/schedule/plan/plan.h"

#include <pthread.h>

#include <atomic>
#include <functional>
#include <memory>
#include <semaphore>
#include <utility>
#include <vector>

namespace stepwell {

// A plan and what it holds for, filled from when it is asked for.
struct PlanWork {
    struct Turn {
        uint32_t phase = schedule::kNoPhase;
        uint64_t way = 0;  // key of the access pattern
    };
    std::vector<Turn> round;  // of repeating steps
    bool varies = false;      // instead of a round: steps of one phase that differ
    uint64_t steps_seen = 0;  // of such steps, when it was asked for
    uint64_t room = 0;        // identifies budgets and policies
    std::vector<double> speeds;
    uint64_t compute_ns = 0;
    uint64_t update_bytes = 0;
    std::vector<uint32_t> numbers;  // of its tensors, by id of the core

    schedule::PlanQuestion question;  // empty once answered
    std::unique_ptr<schedule::Plan> plan;
    Status status;              // why there is no plan
    uint64_t cpu_ns = 0;        // of making it
    uint64_t whole_cpu_ns = 0;  // of making one for these steps from scratch
    uint64_t steps = 0;         // for which it was followed
    uint64_t bytes = 0;         // its total size, once made

    // The part of the question that the planner's thread prepares.
    StepModel model;
    std::vector<size_t> lengths;  // of its steps, in events
    std::vector<observe::LinkTotal> totals;
};

class Planner {
public:
    // `prepare` completes the question from the copies, on the planner's thread.
    explicit Planner(std::function<void(PlanWork &)> prepare) : prepare_(std::move(prepare)) {}
    ~Planner();
    Planner(const Planner &) = delete;
    Planner &operator=(const Planner &) = delete;

    // One thread at a time. Replaces a question that was not begun. Fails if the system starts no
    // thread.
    Status ask(std::unique_ptr<PlanWork> work);
    // Abandons the current question; nothing is answered afterwards.
    void stop();
    // The newest answer, once; null: none yet.
    std::unique_ptr<PlanWork> take();
    [[nodiscard]] uint64_t cpu_ns() const { return cpu_ns_; }  // of all answers

private:
    void run();

    const std::function<void(PlanWork &)> prepare_;
    std::atomic<bool> stop_{false};
    std::atomic<PlanWork *> question_{nullptr};
    std::atomic<PlanWork *> answer_{nullptr};
    std::counting_semaphore<> wake_{0};  // a stop can follow a question before its wake-up
    std::atomic<uint64_t> cpu_ns_{0};
    bool started_ = false;
    pthread_t thread_{};
};

}  // namespace stepwell
