// SPDX-License-Identifier: Apache-2.0
// The state that the engine's threads share: queues, rings and counts under one short lock, held
// for moving a task from list to list and never across I/O, a copy, a checksum or a callback.
// Storage threads wait in their driver's poll and are woken through it; copy threads wait on a
// condition.
#pragma once

#include "lib/support/thread_annotations.h"
#include "lib/transfer/block_copier.h"
#include "lib/transfer/hops.h"

#include <memory>
#include <thread>
#include <vector>

namespace stepwell::transfer {

// Tasks that wait for one storage path. Reads and writes are apart, so that neither delays the
// other; staged reads are apart, so that one without a ring slot delays no other task.
struct PathQueues {
    ClassQueues reads;
    ClassQueues staged_reads;
    ClassQueues writes;
    bool waiting = false;  // its thread is in poll, or about to, and could take more work
};

// Completions of one thread that are still to be reported; reused, so that steady state allocates
// nothing.
struct Outbox {
    std::vector<Task *> tasks;
    std::vector<Completion> list;
};

constexpr uint32_t kOutboxMax = 64;

// Copies of a lane that are enqueued on its device, oldest first. Those of a batch have one mark.
constexpr uint32_t kStartedMax = 8;  // batches
struct Started {
    std::vector<Task *> tasks;
    uint32_t batches = 0;
    uint64_t bytes = 0;
};

// Copies that wait for each other and for no others. A lane is one direction of a device with
// streams: one thread starts its copies and another one waits for their arrival, so that queued
// copies start however long earlier ones take. Another lane has all copies that the copying thread
// itself waits for.
struct CopyLane {
    ClassQueues copies;
    ClassQueues staged_writes;  // wait for a slot of the write ring
    ClassQueues held_back;      // cannot be ordered yet
    uint64_t held_until_ns = 0;
    Started started;
    Condition ready;  // there is something to start, or room for it
    Condition begun;  // something was started
};

class StorageThread;

struct Engine::Parts {
    explicit Parts(EngineOptions given);
    ~Parts();

    // ---- any thread ----------------------------------------------------------------------------
    Status submit(const Job *jobs, uint32_t n);
    void promote(residency::TransferId id);
    Status close(uint64_t timeout_ns);
    void abandon();  // deletes this, now or when the last request completes
    std::string describe(uint32_t lines_max) const;

    Status check_options();
    [[nodiscard]] store::Requests requests_of(uint32_t path, bool reads) const;
    void prepare();  // allocates the memory of every list and thread
    Status start_threads();
    template <typename Run> Status start(const char *name, Run run);
    // Stops and joins; nothing is in flight any more.
    void stop_threads();

    // ---- engine threads ------------------------------------------------------------------------
    // The task is over. The next flush of the same outbox reports its completion.
    void finish(Task &task, Outbox &outbox);
    // Frees the tasks, then calls back with no lock held.
    void flush(Outbox &outbox);
    // After its part at storage, or to free a ring slot without one.
    void give_ring_back(Task &task);
    bool enter_hook();
    void leave_hook();
    void queue_copy(Task &task);
    void queue_path(Task &task);
    void copy_main(CopyLane &lane);
    void arrive_main(CopyLane &lane);
    void order_main();
    [[nodiscard]] bool thread_ends() STW_REQUIRES(mutex);
    // The last thread of an abandoned engine frees it.
    void thread_gone();

    // ---- under the lock ------------------------------------------------------------------------
    Status check_job(const Job &job) const;
    Status check_side(const Job &job, uint32_t memory, const void *pointer) const;
    Status place(Task &task) STW_REQUIRES(mutex);
    void enqueue(Task &task) STW_REQUIRES(mutex);
    void push_to_path(Task &task) STW_REQUIRES(mutex);
    // Storage must wait for work on streams before this task.
    [[nodiscard]] bool is_ordered(const Task &task) const;
    Task *take_ordered() STW_REQUIRES(mutex);
    void wake_path(uint32_t path) STW_REQUIRES(mutex);
    void wake_all() STW_REQUIRES(mutex);
    [[nodiscard]] CopyLane &lane_of(const Task &task) STW_REQUIRES(mutex);
    [[nodiscard]] Task *best_copy(const CopyLane &lane) const STW_REQUIRES(mutex);
    void take_copy(CopyLane &lane, Task &task) STW_REQUIRES(mutex);
    // The most urgent copy, and the next ones that can be started in the same call; none while the
    // lane has started enough.
    void next_copies(CopyLane &lane, Batch &batch) STW_REQUIRES(mutex);
    // When to look again, of wait_clock_ns; UINT64_MAX: nothing is held back.
    uint64_t take_held_back(CopyLane &lane) STW_REQUIRES(mutex);
    void take_ring(Task &task, std::vector<uint32_t> &ring) STW_REQUIRES(mutex);
    // Takes tasks that no thread has begun out of the queues.
    void take_waiting(std::vector<Task *> &waiting) STW_REQUIRES(mutex);
    void cancel(const std::vector<Task *> &waiting);

    // Copy threads, without the lock.
    void run_copies(CopyLane &lane, Batch &batch, Batch &rest, Outbox &outbox);
    bool prepare_copy(Task &task, Outbox &outbox);
    bool hold_back(CopyLane &lane, Task &task);
    void end_copy(Task &task, Outbox &outbox);
    void start_copies(CopyLane &lane, Batch &batch, Outbox &outbox);
    void hand_over(CopyLane &lane, const Batch &batch);
    void await_copies(CopyLane &lane, const Batch &batch, Outbox &outbox);
    // The oldest started copies that share one mark.
    void oldest_copies(const CopyLane &lane, Batch &batch) const STW_REQUIRES(mutex);

    EngineOptions options;  // constant once the threads run
    std::unique_ptr<store::Store> store;
    const BlockCopier copier{options};
    Hops hops{options};

    mutable Mutex mutex;
    Condition order_ready;
    Condition changed;  // for close: a job completed, a callback returned
    TaskPool pool STW_GUARDED_BY(mutex);
    std::vector<std::unique_ptr<PathQueues>> paths STW_GUARDED_BY(mutex);
    // First those of host memory, then into and out of each device with streams.
    std::vector<std::unique_ptr<CopyLane>> lanes STW_GUARDED_BY(mutex);
    std::vector<uint32_t> lanes_of;                         // by memory: the first of its two, or 0
    ClassQueues ordering STW_GUARDED_BY(mutex);             // wait for work on streams
    std::vector<uint32_t> read_ring STW_GUARDED_BY(mutex);  // free slots
    std::vector<uint32_t> write_ring STW_GUARDED_BY(mutex);  // free slots
    uint64_t sequence STW_GUARDED_BY(mutex) = 0;
    uint32_t callbacks STW_GUARDED_BY(mutex) = 0;  // running, hooks among them
    uint32_t threads_alive STW_GUARDED_BY(mutex) = 0;
    bool closing STW_GUARDED_BY(mutex) = false;
    bool muted STW_GUARDED_BY(mutex) = false;
    bool stopping STW_GUARDED_BY(mutex) = false;
    bool abandoned STW_GUARDED_BY(mutex) = false;
    bool closed = false;  // of the closing thread
    std::vector<std::unique_ptr<StorageThread>> storage_threads;
    // Constant once the threads run.
    struct LaneThread {
        CopyLane *lane = nullptr;
        bool arrives = false;
    };
    std::vector<LaneThread> lane_threads;
    std::vector<std::thread> threads;  // of the opening and closing thread
};

}  // namespace stepwell::transfer
