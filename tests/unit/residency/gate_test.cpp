// SPDX-License-Identifier: Apache-2.0
// The gate under every interleaving of two or three threads with the core. A thread is run again
// from its start for each of its steps: what its atomic operations returned before is played back,
// the next one is performed, and it is left. So no threads, no timing, every schedule exactly once.
#include "lib/residency/gate.h"

#include <csetjmp>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stepwell::residency {
namespace {

struct Script {
    uint64_t results[64];  // of the atomic operations so far
    uint32_t count = 0;
    uint32_t at = 0;     // played back
    uint32_t marks = 0;  // observations made in this run
    uint32_t marks_seen = 0;
    bool performed = false;
    bool finished = false;
};

Script *running = nullptr;
std::jmp_buf leave;

// One operation of the running thread: played back, performed, or the point where it is left. The
// frames in between have nothing to destroy.
template <class Operation> uint64_t atomic_step(Operation operation)
{
    if (running->at < running->count) return running->results[running->at++];
    if (running->performed) std::longjmp(leave, 1);
    running->performed = true;
    const uint64_t result = operation();
    running->results[running->count++] = result;
    running->at++;
    return result;
}

template <class T> class Instrumented {
public:
    explicit constexpr Instrumented(T value) : value_(value) {}
    T load(std::memory_order) const
    {
        return atomic_step([this] { return value_; });
    }
    bool compare_exchange_weak(T &expected, T desired, std::memory_order, std::memory_order)
    {
        const T wanted = expected;
        const T old = atomic_step([&] {
            const T before = value_;
            if (before == wanted) value_ = desired;
            return before;
        });
        expected = old;
        return old == wanted;
    }
    T fetch_add(T by, std::memory_order)
    {
        return atomic_step([&] { return std::exchange(value_, value_ + by); });
    }
    T fetch_sub(T by, std::memory_order)
    {
        return atomic_step([&] { return std::exchange(value_, value_ - by); });
    }
    T fetch_and(T mask, std::memory_order)
    {
        return atomic_step([&] { return std::exchange(value_, value_ & mask); });
    }

private:
    T value_;
};

using TestGate = BasicGate<Instrumented>;

// What the threads of one schedule saw.
struct World {
    TestGate gate;
    bool closed = false;         // by a try_close_idle that succeeded, until it is open again
    bool pinned_closed = false;  // a pin came in between
    int pins = 0;
    int pins_lowest = 0;
    int reports = 0;  // unpins that said: the last of a closed gate
    int left = -1;    // what close() returned
    int opened = 0;
};

// An observation is made once, right behind the operation that brought it about.
template <class Action> void observe(Action action)
{
    if (running->marks++ < running->marks_seen) return;
    running->marks_seen++;
    action();
}

bool pin(World &world)
{
    if (!world.gate.try_pin()) return false;
    observe([&] {
        world.pins++;
        world.pinned_closed = world.pinned_closed || world.closed;
    });
    return true;
}

void unpin(World &world)
{
    const bool last = world.gate.unpin();
    observe([&] {
        world.pins_lowest = std::min(world.pins_lowest, --world.pins);
        world.reports += last ? 1 : 0;
    });
}

using Body = void (*)(World &);

void run_step(Script &script, Body body, World &world)
{
    running = &script;
    script.at = script.marks = 0;
    script.performed = false;
    if (setjmp(leave) == 0) {
        body(world);
        script.finished = true;
    }
}

// Follows `choices`, then always the first thread that can go on; says what else could be chosen.
void run_schedule(const std::vector<Body> &bodies, std::vector<uint32_t> &choices,
                  std::vector<std::vector<uint32_t>> &alternatives, World &world)
{
    std::vector<Script> scripts(bodies.size());
    alternatives.clear();
    for (size_t step = 0;; step++) {
        std::vector<uint32_t> ready;
        for (uint32_t i = 0; i < bodies.size(); i++) {
            if (!scripts[i].finished) ready.push_back(i);
        }
        if (ready.empty()) return;
        if (step == choices.size()) choices.push_back(ready[0]);
        alternatives.push_back(ready);
        run_step(scripts[choices[step]], bodies[choices[step]], world);
    }
}

// Depth first over all schedules; returns how many there are.
uint64_t explore(const std::vector<Body> &bodies, const std::function<void(const World &)> &check)
{
    std::vector<uint32_t> choices;
    std::vector<std::vector<uint32_t>> alternatives;
    uint64_t schedules = 0;
    while (true) {
        World world;
        Script opening;
        while (!opening.finished) {
            run_step(
                opening, [](World &at) { at.gate.open(); }, world);
        }
        run_schedule(bodies, choices, alternatives, world);
        schedules++;
        check(world);
        if (testing::Test::HasFailure()) return schedules;
        size_t step = choices.size();
        while (step > 0) {
            const std::vector<uint32_t> &ready = alternatives[step - 1];
            size_t at = 0;
            while (ready[at] != choices[step - 1]) at++;
            if (at + 1 < ready.size()) {
                choices.resize(step);
                choices[step - 1] = ready[at + 1];
                break;
            }
            step--;
        }
        if (step == 0) return schedules;
    }
}

void reader(World &world)
{
    if (pin(world)) unpin(world);
}

void reader_twice(World &world)
{
    for (int i = 0; i < 2; i++) {
        if (pin(world)) unpin(world);
    }
}

void sharer(World &world)
{
    if (!pin(world)) return;
    world.gate.add_pin();
    observe([&] { world.pins++; });
    unpin(world);
    unpin(world);
}

void closer(World &world)
{
    const int left = static_cast<int>(world.gate.close());
    observe([&] { world.left = left; });
}

void evictor(World &world)
{
    if (!world.gate.try_close_idle()) return;
    observe([&] { world.closed = true; });
    world.gate.open();
    observe([&] {
        world.closed = false;
        world.opened++;
    });
}

void check_counts(const World &world)
{
    EXPECT_FALSE(world.pinned_closed) << "a pin in a gate that was closed idle";
    EXPECT_EQ(world.pins, 0);
    EXPECT_GE(world.pins_lowest, 0);
}

TEST(Gate, NoPinComesInBetweenAnIdleCloseAndTheNextOpening)
{
    uint64_t opened = 0;
    const auto check = [&](const World &world) {
        check_counts(world);
        EXPECT_EQ(world.reports, 0) << "an idle gate has no last pin to report";
        opened += static_cast<uint64_t>(world.opened);
    };
    const uint64_t schedules =
        explore({reader, reader, evictor}, check) + explore({reader_twice, evictor}, check);
    EXPECT_GT(opened, 0u);
    EXPECT_LT(opened, schedules);
    std::printf("%llu schedules\n", static_cast<unsigned long long>(schedules));
}

TEST(Gate, TheLastPinOfAClosedGateIsReportedExactlyOnce)
{
    uint64_t with_pins = 0;
    const auto check = [&](const World &world) {
        check_counts(world);
        EXPECT_EQ(world.reports, world.left > 0 ? 1 : 0) << "left " << world.left;
        with_pins += world.left > 0 ? 1 : 0;
    };
    const uint64_t schedules =
        explore({reader, reader, closer}, check) + explore({sharer, reader, closer}, check);
    EXPECT_GT(with_pins, 0u);
    EXPECT_LT(with_pins, schedules);
    std::printf("%llu schedules\n", static_cast<unsigned long long>(schedules));
}

TEST(Gate, AClosedGateRefusesAndKeepsItsPins)
{
    Gate gate;
    EXPECT_FALSE(gate.try_pin());
    gate.open();
    EXPECT_TRUE(gate.try_pin());
    EXPECT_FALSE(gate.try_close_idle());
    EXPECT_TRUE(gate.is_open());
    EXPECT_EQ(gate.close(), 1u);
    EXPECT_FALSE(gate.try_pin());
    EXPECT_TRUE(gate.unpin());
    EXPECT_TRUE(gate.try_close_idle());
    EXPECT_EQ(gate.pins(), 0u);
}

}  // namespace
}  // namespace stepwell::residency
