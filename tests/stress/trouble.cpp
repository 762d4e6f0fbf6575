// SPDX-License-Identifier: Apache-2.0
#include "trouble.h"

#include <cinttypes>
#include <csignal>
#include <cstdlib>
#include <utility>

namespace stress {
namespace {

std::atomic<World *> troubled{nullptr};

void do_nothing(int) {}

// In the thread that touched, in the middle of its own code.
void tell_touch(int, siginfo_t *info, void *)
{
    stw_error_info error = {};
    error.struct_size = sizeof error;
    World *world = troubled.load();
    if (!world) std::abort();
    const stw_status status = stw_runtime_error(world->runtime, &error);
    world->fail("no access to %p: %s", info->si_addr,
                status < 0 ? error.sentence : "there is no background error");
}

}  // namespace

void take_signals()
{
    struct sigaction action = {};
    action.sa_handler = do_nothing;  // no SA_RESTART
    sigaction(SIGUSR1, &action, nullptr);
    action.sa_handler = nullptr;
    action.sa_sigaction = tell_touch;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
}

Trouble::Trouble(World &world, std::vector<pthread_t> actors)
    : world_(world), actors_(std::move(actors)), state_(world.seed ^ 0x74726f75626cull)
{
    troubled.store(&world);
    thread_ = std::thread([this] { run(); });
}

void Trouble::end()
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ends_ = true;
    }
    wakes_.notify_all();
    thread_.join();
    troubled.store(nullptr);
}

void Trouble::run()
{
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        const std::chrono::microseconds pause(100 + next_random(&state_) % 2000);
        if (wakes_.wait_for(lock, pause, [this] { return ends_; })) return;
        lock.unlock();
        make_one();
        lock.lock();
    }
}

void Trouble::make_one()
{
    const uint64_t kind = next_random(&state_) % 20;
    if (kind < 10) pthread_kill(actors_[next_random(&state_) % actors_.size()], SIGUSR1);
    if (kind >= 10 && kind < 13 && world_.features.interrupts) world_.interrupt();
    if (kind >= 13 && kind < 17 && world_.features.budgets)
        world_.change_budget(next_random(&state_));
    if (kind == 17) {
        const uint32_t tier = world_.setup.device ? STW_TIER_DEVICE : STW_TIER_HOST;
        const uint64_t begin = World::now_ns();
        const stw_status status = stw_evict(world_.runtime, nullptr, 0, tier, 0, kWaitNs);
        world_.check_time("an eviction of all", begin);
        const bool interrupted = status == STW_ERROR_INTERRUPTED && world_.features.interrupts;
        if (status < 0 && status != STW_ERROR_BUSY && !interrupted && !world_.is_fault(status))
            world_.fail("evict of all: %s", stw_last_error());
    }
}

}  // namespace stress
