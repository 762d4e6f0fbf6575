// SPDX-License-Identifier: Apache-2.0
// Questions and answers are handed over as pointers, so neither side ever waits for the other.
#include "lib/runtime/plan_thread/planner.h"

#include "lib/runtime/plan_thread/work.h"
#include "lib/support/thread.h"

#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <new>
#include <utility>

namespace stepwell {
namespace {

constexpr int kNiceMost = 19;

uint64_t thread_ns()
{
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

void Planner::stop()
{
    stop_ = true;
    if (!thread_.joinable()) return;
    wake_.release();
    thread_.join();
}

Planner::~Planner()
{
    stop();
    delete question_.load();
    delete answer_.load();
}

Status Planner::ask(std::unique_ptr<PlanWork> work)
{
    if (!thread_.joinable())
        STW_TRY(start_thread(thread_, "stw-planner", "plans", [this] { run(); }));
    delete question_.exchange(work.release(), std::memory_order_acq_rel);
    wake_.release();
    return {};
}

std::unique_ptr<PlanWork> Planner::take()
{
    return std::unique_ptr<PlanWork>(answer_.exchange(nullptr, std::memory_order_acquire));
}

void Planner::run()
{
    // Nice gets about 1/100 of a busy processor; a SCHED_IDLE thread might never run.
    (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceMost);
    for (;;) {
        wake_.acquire();
        if (stop_) return;
        PlanWork *work = question_.exchange(nullptr, std::memory_order_acquire);
        if (!work) continue;
        const uint64_t begin = thread_ns();
        try {
            prepare_(*work);
            auto made = schedule::Plan::make(std::exchange(work->question, {}), &stop_);
            work->status = made.ok() ? Status() : std::move(made.status());
            if (made.ok()) work->plan = made.take();
        } catch (const std::bad_alloc &) {
            work->status = Status::error(STW_ERROR_BUDGET, "no memory is left to make a plan");
        }
        work->cpu_ns = thread_ns() - begin;
        cpu_ns_ += work->cpu_ns;
        delete answer_.exchange(work, std::memory_order_acq_rel);
    }
}

}  // namespace stepwell
