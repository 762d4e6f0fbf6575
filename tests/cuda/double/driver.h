// SPDX-License-Identifier: Apache-2.0
// All that the double is, under one lock, and the way in that every entry point takes: counted,
// refused in a forked child, in a host function and where a test injects it, with the checks that
// CUDA makes first.
#pragma once

#include "tests/cuda/double/entry.h"
#include "tests/cuda/double/kernel.h"
#include "tests/cuda/double/memory.h"
#include "tests/cuda/double/options.h"
#include "tests/cuda/double/report.h"
#include "tests/cuda/double/stream.h"
#include "tests/cuda/double/timing.h"
#include "tests/cuda/double/tracker.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <set>

namespace stepwell::cuda_double {

inline Address as_address(const void *pointer)
{
    return reinterpret_cast<uintptr_t>(pointer);
}

struct Event {
    Context *context = nullptr;
    bool timed = true;
    bool destroyed = false;
    OperationPtr record;  // the last one
};

// A kernel's three functions, as the process or the library of kernels exports them.
struct Function {
    std::string name;
    stw_double_kernel *run = nullptr;
    stw_double_ranges *ranges = nullptr;
    stw_double_args *args = nullptr;
};
// A module or a library; images are not looked at.
struct Module {
    const Context *context = nullptr;  // nullptr: a library, which is of none
    bool unloaded = false;
};

// What each reset makes anew.
struct State {
    State(std::mutex &lock, const Options &chosen)
        : options(chosen),
          timing(options),
          tracker(memory, report),
          scheduler(lock, tracker, timing, options)
    {
        failures.reset(options.failures);
        for (int device = 0; device < static_cast<int>(kDevicesMax); ++device)
            contexts[static_cast<size_t>(device)].device = device;
    }

    Options options;
    FailurePlan failures;
    Report report;
    Memory memory;
    Timing timing;
    Tracker tracker;
    std::array<Context, kDevicesMax> contexts;
    Scheduler scheduler;
    std::map<void *, std::unique_ptr<Event>> events;  // also destroyed ones
    std::map<void *, std::unique_ptr<Module>> modules;
    std::map<std::string, std::unique_ptr<Function>> functions;  // by name
    std::array<uint64_t, kEntryCount> calls{};
    uint64_t pageable_copies = 0;
    uint64_t implicit_waits = 0;
    uint64_t generation = 0;
    bool initialized = false;
};

// What CUDA keeps for each thread.
struct Thread {
    Thread();
    ~Thread();
    Thread(const Thread &) = delete;
    Thread &operator=(const Thread &) = delete;
    // Empty again after a reset.
    static Thread &current(uint64_t generation);

    Context *context() const { return stack.empty() ? nullptr : stack.back(); }

    std::vector<Context *> stack;
    int64_t pushes = 0;  // less pops
    std::map<Context *, Stream *> own_streams;
    int capture_mode = kCaptureModeGlobal;
    uint64_t generation = 0;
};

class Driver {
public:
    static Driver &get();
    static Driver *if_made();

    // False where memory for it cannot be had; then nothing has changed.
    bool reset(const Options &options);
    bool forked() const { return forked_.load(std::memory_order_relaxed); }
    State &state() { return *state_; }

    std::mutex lock;
    std::set<Thread *> threads;  // of all that called
    std::array<bool, kEntryCount> held{};
    std::condition_variable entered;  // calls of one that was held may go on

private:
    Driver();
    std::unique_ptr<State> state_;
    uint64_t generation_ = 0;
    std::atomic<bool> forked_ = false;
};

// One call of an entry point, under the lock.
struct Call {
    State &state;
    Thread &thread;
    std::unique_lock<std::mutex> &lock;
    Entry entry;
    Context *context;  // the current one; set where it is needed

    const char *name() const { return entry_point(entry).name; }
    Memory &memory() const { return state.memory; }
    Scheduler &scheduler() const { return state.scheduler; }
    Tracker &tracker() const { return state.tracker; }
    bool is_device(int device) const
    {
        return device >= 0 && static_cast<uint64_t>(device) < state.options.devices;
    }
    // What broke the context meanwhile, or success: what a call that waited returns.
    int verdict() const { return context->sticky; }
};

enum class Needs { kNothing, kInit, kContext };

// 0, or the code that the call returns without having done anything.
int refuse(Call &call, Needs needs);

template <class Body> int enter(Entry entry, Needs needs, Body &&body) noexcept
{
    Driver &driver = Driver::get();
    if (driver.forked()) return kNotInitialized;
    try {
        std::unique_lock lock(driver.lock);
        driver.entered.wait(lock, [&] { return !driver.held[static_cast<size_t>(entry)]; });
        State &state = driver.state();
        Call call{state, Thread::current(state.generation), lock, entry, nullptr};
        const int refused = refuse(call, needs);
        if (refused == 0) state.timing.call(entry);
        return refused != 0 ? refused : static_cast<int>(body(call));
    } catch (const std::bad_alloc &) {
        return kOutOfMemory;
    }
}

// 0: no stream of the context (nullptr: of any) records a graph, else the code that the call
// returns; what is recorded is of no use any more.
int break_captures(Call &call, const Context *context);

// CUDA may wait for all work of the device here, though it does not promise to: the host knows
// nothing by that. It does, but where a test holds a stream.
void wait_implicitly(Call &call);

// Handles to things; on failure the misuse is reported and an error returned.
int find_stream(Call &call, void *handle, Stream **stream_out);
int find_event(Call &call, void *handle, Event **event_out);

// The context breaks: whatever it had to do is not done.
void break_context(State &state, Context &context, int code);
bool is_sticky(int code);

// What is alive that should have been given back, a line each.
std::vector<std::string> leaks(State &state, const std::set<Thread *> &threads);

}  // namespace stepwell::cuda_double
