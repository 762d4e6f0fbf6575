// SPDX-License-Identifier: Apache-2.0
// Planner: a thread that makes plans in the background, on otherwise idle processors. It works on
// copies and never takes the runtime's lock, so it cannot delay the program either.
#pragma once

#include "lib/support/status.h"

#include <atomic>
#include <functional>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

namespace stepwell {

struct PlanWork;

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
    std::thread thread_;  // from the first question on
};

}  // namespace stepwell
