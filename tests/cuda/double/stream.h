// SPDX-License-Identifier: Apache-2.0
// Streams, their operations, and the one thread that runs them: it picks among the streams whose
// next operation could begin, at random but by the seed, and lets each begin late by a random time.
// So nothing happens at the enqueue, and streams overtake each other; that two never run at the
// same instant loses nothing, as order is judged by clocks and not by time.
#pragma once

#include "tests/cuda/double/order.h"
#include "tests/cuda/double/timing.h"
#include "tests/cuda/double/tracker.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace stepwell::cuda_double {

struct Stream;

struct Context {
    int device = 0;
    uint64_t retained = 0;  // 0: it is no context now
    int sticky = 0;         // what broke it
    Stream *legacy = nullptr;
};

using Time = std::chrono::steady_clock::time_point;

struct Operation {
    Epoch epoch;
    Clock clock;  // all that comes before it, and itself
    std::vector<Touch> touches;
    std::vector<std::shared_ptr<Operation>> after;  // of other streams
    std::function<void()> run;                      // without the lock; may be empty
    std::function<bool()> ready;                    // it does not begin before; under the lock
    int fault = 0;                                  // the context breaks instead
    bool tells_host = false;  // a function of the host's: it knows what came before
    bool running = false;
    bool dropped = false;  // its memory went away: nothing is left to be done
    bool ended = false;
    Time begins_at;
    Times times;
};
// Shared by its stream, the events that it records, and the operations that wait for it.
using OperationPtr = std::shared_ptr<Operation>;
// What this thread runs, if it is the scheduler's: a kernel, or a function of the host's.
extern thread_local const Operation *running_operation;

struct Stream {
    Context *context = nullptr;
    void *handle = nullptr;  // its own, or that of one that was destroyed
    uint64_t number = 0;
    bool blocking = true;  // with the legacy stream
    bool is_default = false;
    bool destroyed = false;
    bool held = false;
    bool captures = false;              // what is enqueued would go into a graph
    const void *captured_by = nullptr;  // the thread that began to
    uint64_t let_go = 0;                // operations that may begin though it is held
    uint32_t slot = 0;
    Clock clock;  // all that comes before its next operation
    std::deque<OperationPtr> queue;
    OperationPtr last;
    uint64_t called_ns = 0;  // by the thread that enqueued it
};

// An operation as it is asked for.
struct Request {
    const char *what = nullptr;
    std::vector<Touch> touches = {};
    std::function<void()> run = {};
    OperationPtr after = {};
    Work work = {};
    bool kernel = false;
    bool tells_host = false;
    std::function<bool()> ready = {};
};

class Scheduler {
public:
    Scheduler(std::mutex &lock, Tracker &tracker, Timing &timing, const Options &options);
    // Nothing runs any more; not under the lock.
    ~Scheduler();
    Scheduler(const Scheduler &) = delete;
    Scheduler &operator=(const Scheduler &) = delete;

    Stream *create(Context *context, bool blocking, bool is_default);
    // Its work goes on to its end.
    void destroy(Stream *stream);
    // The last that had it; nullptr: it never was a stream of this driver.
    Stream *find(void *handle);

    // nullptr: a copy's memory is not there. A kernel's context breaks instead, when it runs. Waits
    // where the stream's queue is full.
    OperationPtr submit(Stream &stream, Request request);
    // Let an event's last record come before what the stream does next.
    void wait_event(Stream &stream, const OperationPtr &record, const char *what);

    void wait(std::unique_lock<std::mutex> &lock, const OperationPtr &operation);
    // Until all that is enqueued now has ended, in one context or in all; the host is told nothing.
    void drain(std::unique_lock<std::mutex> &lock, const Context *context = nullptr);
    // Drop what would touch the range, and wait for the one that runs.
    void drop(std::unique_lock<std::mutex> &lock, Address address, uint64_t bytes);
    // Drop everything and wait until nothing runs.
    void abandon(std::unique_lock<std::mutex> &lock);

    void hold_all(bool hold);
    void changed() { work_.notify_one(); }
    uint64_t pending() const;
    uint64_t blocked() const { return blocked_; }
    template <class Body> void each(Body &&body)
    {
        for (auto &stream : streams_) body(*stream);
    }

private:
    uint32_t take_slot();
    void await_room(Stream &stream);
    // Returns when all that comes before has ended, in virtual time.
    uint64_t order(Stream &stream, Operation &operation);
    void run();
    Stream *pick(Time now, Time *next_out);
    bool may_begin(const Stream &stream) const;
    bool waits_outside(const Stream &stream) const;
    void execute(std::unique_lock<std::mutex> &lock, Stream &stream);

    std::mutex &lock_;  // the driver's; outlives this
    Tracker &tracker_;  // outlives this
    Timing &timing_;    // outlives this
    const Options &options_;
    std::condition_variable work_;                  // for the thread
    std::condition_variable ended_;                 // for those who wait
    std::vector<std::unique_ptr<Stream>> streams_;  // also destroyed ones
    std::vector<void *> free_handles_;              // the last one is the next stream's
    std::vector<Stream *> active_;                  // with operations
    std::vector<uint64_t> sequences_;               // last operation, by slot
    std::vector<uint32_t> retired_;                 // slots of destroyed streams
    uint64_t streams_made_ = 0;
    uint64_t serial_ = 0;
    uint64_t blocked_ = 0;  // calls, by a full queue
    bool hold_all_ = false;
    bool abandoning_ = false;
    bool closing_ = false;
    std::thread thread_;        // from the first operation on
    std::minstd_rand delays_;   // drawn in the order of enqueuing
    std::minstd_rand choices_;  // drawn by the thread
};

}  // namespace stepwell::cuda_double
