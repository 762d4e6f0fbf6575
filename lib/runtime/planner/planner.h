// SPDX-License-Identifier: Apache-2.0
// Planner: a thread that makes plans beside the program, on processors that nobody else wants. It
// gets a copy of all it needs and never takes the runtime's lock, so it cannot keep it either.
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

// A plan with what it holds for, from the question on.
struct PlanWork {
    struct Turn {
        uint32_t phase = schedule::kNoPhase;
        uint64_t way = 0;  // its key
    };
    std::vector<Turn> round;  // of steps that repeats
    bool varies = false;      // no: of steps of one phase that differ
    uint64_t steps_seen = 0;  // of these, when it was asked
    uint64_t room = 0;        // a number for the budgets and policies
    std::vector<double> speeds;
    uint64_t compute_ns = 0;
    uint64_t update_bytes = 0;
    std::vector<uint32_t> numbers;  // of its tensors, by those of the core

    schedule::PlanQuestion question;  // empty once it is answered
    std::unique_ptr<schedule::Plan> plan;
    Status status;              // why there is none
    uint64_t cpu_ns = 0;        // that it took
    uint64_t whole_cpu_ns = 0;  // that a plan for these steps takes, where none is taken over
    uint64_t steps = 0;         // it was followed for
    uint64_t bytes = 0;         // of it all, once it is made

    // What is left to be done of the question, by the planner's thread.
    StepModel model;
    std::vector<size_t> lengths;  // of the steps in it, in events
    std::vector<observe::LinkTotal> totals;
};

class Planner {
public:
    // `prepare` makes the question of the copies, in the planner's thread.
    explicit Planner(std::function<void(PlanWork &)> prepare) : prepare_(std::move(prepare)) {}
    ~Planner();
    Planner(const Planner &) = delete;
    Planner &operator=(const Planner &) = delete;

    // By one thread at a time. In place of a question that was not begun with. Refused where the
    // system starts no thread.
    Status ask(std::unique_ptr<PlanWork> work);
    // What is being made is given up; nothing is answered any more.
    void stop();
    // The newest answer, once. Null: there is none, or not yet.
    std::unique_ptr<PlanWork> take();
    [[nodiscard]] uint64_t cpu_ns() const { return cpu_ns_; }  // of all that was answered

private:
    void run();

    const std::function<void(PlanWork &)> prepare_;
    std::atomic<bool> stop_{false};
    std::atomic<PlanWork *> question_{nullptr};
    std::atomic<PlanWork *> answer_{nullptr};
    std::counting_semaphore<> wake_{0};  // a stop can follow a question that nobody woke up for yet
    std::atomic<uint64_t> cpu_ns_{0};
    bool started_ = false;
    pthread_t thread_{};
};

}  // namespace stepwell
