// SPDX-License-Identifier: Apache-2.0
//
// The compute threads: how tasks are taken and how a run ends. Knows nothing of what is computed.

#include "pool.h"

namespace train_gpt {

namespace {

// A run follows the last one within microseconds while a layer computes, so a short spin saves
// most wake-ups; it is short because the runtime's threads want the same cores.
constexpr int kSpins = 2000;

void pause_briefly()
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

template <class Value> void wait_for_change(const std::atomic<Value> &value, Value old)
{
    for (int i = 0; i < kSpins; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_briefly();
    }
    value.wait(old, std::memory_order_acquire);
}

}  // namespace

Pool::Pool(uint32_t threads)
{
    for (uint32_t worker = 1; worker < threads; ++worker)
        workers_.emplace_back([this, worker] { work(worker); });
}

Pool::~Pool()
{
    stop_.store(true);
    ticket_.fetch_add(uint64_t{1} << 32);
    ticket_.notify_all();
    for (std::thread &thread : workers_) thread.join();
}

void Pool::run_tasks(uint32_t tasks, Call call, const void *context)
{
    if (tasks == 0) return;
    tasks_.store(tasks, std::memory_order_relaxed);
    call_.store(call, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint64_t run = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(run << 32 | tasks, std::memory_order_release);
    ticket_.notify_all();

    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(ticket) != 0) {
        take_task(ticket, 0);
        ticket = ticket_.load(std::memory_order_acquire);
    }
    for (uint32_t done = done_.load(std::memory_order_acquire); done != tasks;
         done = done_.load(std::memory_order_acquire))
        wait_for_change(done_, done);
}

void Pool::work(uint32_t worker)
{
    while (true) {
        const uint64_t ticket = ticket_.load(std::memory_order_acquire);
        if (stop_.load(std::memory_order_acquire)) return;
        if (static_cast<uint32_t>(ticket) == 0)
            wait_for_change(ticket_, ticket);
        else
            take_task(ticket, worker);
    }
}

// The fields are read before the swap. They are those of the ticket's run if the swap succeeds:
// run_tasks() does not return, and so nobody changes them, while a task is not yet taken.
bool Pool::take_task(uint64_t ticket, uint32_t worker)
{
    const uint32_t tasks = tasks_.load(std::memory_order_relaxed);
    const Call call = call_.load(std::memory_order_relaxed);
    const void *context = context_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_strong(ticket, ticket - 1, std::memory_order_acq_rel))
        return false;
    call(context, tasks - static_cast<uint32_t>(ticket), worker);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_one();
    return true;
}

}  // namespace train_gpt
