// SPDX-License-Identifier: Apache-2.0
// Threads of a program that fetch and release more than fits, beside threads that complete
// transfers in random order, the timer, and interrupts. A model has the waiting fetches and the
// newest value of each tensor. Draws are seeded, thread switches are not, so every check holds in
// any order.
#include "tests/unit/runtime/dispatcher_fixture.h"

#include <array>
#include <map>
#include <random>
#include <set>

namespace stepwell::dispatching {
namespace {

constexpr uint32_t kPrograms = 4;
constexpr uint32_t kMovers = 2;
constexpr uint32_t kTensors = 12;
constexpr uint32_t kHostBlocks = 4;
constexpr uint32_t kRounds = 250;

// One number stands for the bytes of a block. Blocks at nvme have no slot.
struct Bytes {
    std::array<uint64_t, kHostBlocks> host{};
    std::map<residency::BlockId, uint64_t> nvme;
};

class World final : public DispatchHook, public AnswerListener {
public:
    World()
        : dispatch(config_of(kHostBlocks), disk,
                   {.callback =
                        [](void *self, uint32_t, const char *, const char *) {
                            static_cast<World *>(self)->lines_heard.fetch_add(1);
                        },
                    .user = this},
                   kTimeoutNs)
    {
        dispatch.add(*this);
        dispatch.add_answers();
        for (uint32_t i = 0; i < kTensors; ++i) {
            tensors[i] = create_in(dispatch, "t" + std::to_string(i));
        }
    }

    void answered(Waiter &waiter) override STW_REQUIRES(runtime_lock)
    {
        EXPECT_EQ(waiting.erase(waiter.fetch), 1u) << "it waits, and is answered once";
        ++answers;
    }
    // The core, the dispatcher and the model agree about the fetches that wait.
    void before_unlock() override STW_REQUIRES(runtime_lock)
    {
        EXPECT_LE(dispatch.core.waiting_fetches(), waiting.size()) << "some wait for transfers";
        for (const FetchId fetch : waiting) {
            EXPECT_TRUE(dispatch.core.is_waiting(fetch));
            EXPECT_NE(dispatch.find(fetch), nullptr);
        }
        if (++events % 16 == 0) {
            EXPECT_EQ(dispatch.core.check(), "");
        }
    }
    void unlocked() override { events_unlocked.fetch_add(1); }

    void move(const Transfer &transfer, Commands &out) STW_REQUIRES(runtime_lock)
    {
        uint64_t value = 0;
        if (transfer.from == kHostPlace) value = bytes.host.at(transfer.from_slot);
        if (transfer.from == kNvmePlace) value = bytes.nvme.at(transfer.block);
        if (transfer.to == kHostPlace) bytes.host.at(transfer.to_slot) = value;
        if (transfer.to == kNvmePlace) bytes.nvme[transfer.block] = value;
        dispatch.core.transfer_done(transfer.id, {}, out);
    }

    Disk disk;
    Dispatcher dispatch;
    std::array<TensorId, kTensors> tensors{};
    std::set<FetchId> waiting STW_GUARDED_BY(runtime_lock);
    std::array<uint64_t, kTensors> newest STW_GUARDED_BY(runtime_lock) = {};
    Bytes bytes STW_GUARDED_BY(runtime_lock);
    bool over STW_GUARDED_BY(runtime_lock) = false;
    uint64_t asked STW_GUARDED_BY(runtime_lock) = 0;
    uint64_t answers STW_GUARDED_BY(runtime_lock) = 0;
    uint64_t events STW_GUARDED_BY(runtime_lock) = 0;
    uint64_t lines_said STW_GUARDED_BY(runtime_lock) = 0;
    std::atomic<uint64_t> lines_heard{0};
    std::atomic<uint64_t> events_unlocked{0};
};

// A thread of the program. It holds views of one fetch at a time, so there is no deadlock.
class Program {
public:
    Program(World &world, uint32_t seed) : world_(world), dispatch_(world.dispatch), random_(seed)
    {
    }

    void run()
    {
        for (uint32_t round = 0; round < kRounds; ++round) fetch_and_release();
    }
    // Of one tensor, however long it takes: its first write, or its last read.
    void visit(uint32_t index, Access access)
    {
        Fetch fetch;
        fetch.indices = {index};
        fetch.access = {access};
        ask(fetch, residency::kFetchWaitRoom, kNever);
        wait(fetch);
        finish(fetch);
        MutexLock lock(dispatch_.mutex());
        EXPECT_TRUE(fetch.waiter.status.ok()) << fetch.waiter.status.sentence();
    }

private:
    struct Fetch {
        std::vector<uint32_t> indices;  // of tensors
        std::vector<Access> access;
        std::set<stw_status> refusals;  // that it may get
        Waiter waiter;
        bool called STW_GUARDED_BY(runtime_lock) = false;
        Dispatcher *dispatch = nullptr;
    };

    bool one_in(uint32_t n) { return random_() % n == 0; }

    void fetch_and_release()
    {
        Fetch fetch;
        const uint32_t first = random_() % kTensors;
        fetch.indices = {first};
        if (one_in(3)) fetch.indices.push_back((first + 1 + random_() % (kTensors - 1)) % kTensors);
        for (size_t i = 0; i < fetch.indices.size(); ++i)
            fetch.access.push_back(one_in(3) ? Access::kReadWrite : Access::kRead);
        if (one_in(4)) fetch.waiter.call = called;
        if (!fetch.waiter.call) fetch.refusals = {STW_ERROR_INTERRUPTED};
        const bool tries = one_in(8);
        if (tries) fetch.refusals.insert({STW_ERROR_BUSY, STW_ERROR_BUDGET});
        const bool hurries = one_in(8);
        if (hurries) fetch.refusals.insert(STW_ERROR_TIMEOUT);
        ask(fetch, tries ? residency::kFetchTry : residency::kFetchWaitRoom,
            hurries ? Dispatcher::now() + 1 + random_() % 100'000 : kNever);
        if (one_in(16)) dispatch_.interrupt();
        if (one_in(16)) cancel(fetch);
        wait(fetch);
        finish(fetch);
    }
    void ask(Fetch &fetch, uint32_t flags, Instant deadline)
    {
        residency::FetchAsked asked;
        for (size_t i = 0; i < fetch.indices.size(); ++i) {
            const TensorId tensor = world_.tensors[fetch.indices[i]];
            asked.requests.push_back(asked_of(tensor, fetch.access[i]).requests[0]);
        }
        asked.flags = flags;
        asked.deadline = deadline;
        Waiter &waiter = fetch.waiter;
        waiter.listener = &world_;
        waiter.user = &fetch;
        fetch.dispatch = &dispatch_;
        dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
            waiter.begin = Dispatcher::now();
            dispatch_.ask(waiter, asked, out);
            world_.waiting.insert(waiter.fetch);
            ++world_.asked;
            dispatch_.say(STW_LOG_ERROR, "test", "asked");
            ++world_.lines_said;
            if (deadline != kNever) dispatch_.arm_timer(deadline);
        });
    }
    void cancel(Fetch &fetch)
    {
        fetch.refusals.insert(STW_ERROR_CANCELLED);
        dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
            core.cancel(fetch.waiter.fetch, Status::error(STW_ERROR_CANCELLED, "cancelled"), out);
        });
    }
    static void called(Waiter &waiter)
    {
        Fetch &fetch = *static_cast<Fetch *>(waiter.user);
        MutexLock lock(fetch.dispatch->mutex());
        fetch.called = true;
        waiter.cv.notify_all();
    }
    void wait(Fetch &fetch)
    {
        MutexLock lock(dispatch_.mutex());
        while (fetch.waiter.call ? !fetch.called : !fetch.waiter.done)
            fetch.waiter.cv.wait(dispatch_.mutex());
    }
    // Views see the newest bytes, and change them.
    void finish(Fetch &fetch)
    {
        std::vector<residency::Gate *> gates;
        {
            MutexLock lock(dispatch_.mutex());
            const Status &status = fetch.waiter.status;
            EXPECT_TRUE(status.ok() || fetch.refusals.count(status.code()) > 0)
                << status.sentence();
            if (!status.ok()) return;
            for (size_t i = 0; i < fetch.indices.size(); ++i) {
                gates.push_back(look(fetch.indices[i], fetch.access[i], fetch.waiter.grants[i]));
            }
        }
        for (size_t i = 0; i < fetch.indices.size(); ++i) {
            release(world_.tensors[fetch.indices[i]], fetch.access[i], gates[i]);
        }
    }
    residency::Gate *look(uint32_t index, Access access, const Grant &grant)
        STW_REQUIRES(runtime_lock)
    {
        uint64_t &here = world_.bytes.host.at(grant.slot);
        uint64_t &newest = world_.newest[index];
        if (access != Access::kWrite) {
            EXPECT_EQ(here, newest);
        }
        if (access != Access::kRead) here = newest = newest * kTensors + index + 1;
        return grant.by_gate ? &dispatch_.core.gate(world_.tensors[index], kHostPlace) : nullptr;
    }
    // As in the runtime: the end of a view in a gate is an event only if a fetch waits for it.
    void release(TensorId tensor, Access access, residency::Gate *gate)
    {
        if (gate && !gate->unpin() && !dispatch_.has_stuck_fetch()) return;
        dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
            if (gate) return core.gate_idle(tensor, out);
            core.release(release_of(tensor, access), out);
        });
    }

    World &world_;
    Dispatcher &dispatch_;
    std::minstd_rand random_;
};

// Ends once the test is over and no transfer is queued.
void run_mover(World &world, uint32_t seed)
{
    std::minstd_rand random(seed);
    Dispatcher &dispatch = world.dispatch;
    for (;;) {
        Transfer transfer;
        {
            MutexLock lock(dispatch.mutex());
            std::deque<Transfer> &queue = world.disk.queue;
            while (queue.empty() && !world.over) world.disk.more.wait(dispatch.mutex());
            if (queue.empty()) return;
            const auto drawn = queue.begin() + static_cast<long>(random() % queue.size());
            transfer = *drawn;
            queue.erase(drawn);
        }
        dispatch.act([&](Core &, Commands &out)
                         STW_REQUIRES(runtime_lock) { world.move(transfer, out); });
    }
}

// Sleeps until the next event, again and again.
void watch_progress(World &world)
{
    MutexLock lock(world.dispatch.mutex());
    while (!world.over) {
        const uint64_t seen = world.dispatch.progress();
        while (world.dispatch.progress() == seen) world.dispatch.wait_progress(kNever);
    }
}

void end(World &world)
{
    world.dispatch.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        world.over = true;
        world.disk.more.notify_all();
    });
}

void expect_nothing_left(World &world)
{
    MutexLock lock(world.dispatch.mutex());
    EXPECT_EQ(world.waiting.size(), 0u);
    EXPECT_EQ(world.dispatch.core.waiting_fetches(), 0u);
    EXPECT_EQ(world.dispatch.core.transfers_in_flight(), 0u);
    EXPECT_FALSE(world.dispatch.has_stuck_fetch());
    EXPECT_EQ(world.dispatch.core.check(), "");
    EXPECT_EQ(world.answers, world.asked);
    EXPECT_EQ(world.lines_heard.load(), world.lines_said);
    EXPECT_EQ(world.events_unlocked.load(), world.events);
}

class DispatcherStress : public testing::TestWithParam<uint32_t> {};

TEST_P(DispatcherStress, NoFetchWaitsAtTheEndAndNothingIsLost)
{
    World world;
    std::vector<std::thread> movers;
    for (uint32_t i = 0; i < kMovers; ++i)
        movers.emplace_back([&, i] { run_mover(world, GetParam() + i); });
    std::thread watcher([&] { watch_progress(world); });
    Program first(world, 1);
    for (uint32_t i = 0; i < kTensors; ++i) first.visit(i, Access::kWrite);
    ASSERT_TRUE(world.dispatch.start_timer().ok());
    std::vector<std::thread> programs;
    for (uint32_t i = 0; i < kPrograms; ++i)
        programs.emplace_back([&, i] { Program(world, GetParam() * kPrograms + i).run(); });
    for (std::thread &program : programs) program.join();
    world.dispatch.stop_timer();  // with the last interrupt
    for (uint32_t i = 0; i < kTensors; ++i) first.visit(i, Access::kRead);
    end(world);
    for (std::thread &mover : movers) mover.join();
    watcher.join();
    expect_nothing_left(world);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DispatcherStress, testing::Values(1u, 2u, 3u, 4u));

}  // namespace
}  // namespace stepwell::dispatching
