// SPDX-License-Identifier: Apache-2.0
// What the engine's threads share: queues, rings and counts under one short lock, held for moving a
// task from list to list and never across I/O, a copy, a checksum or a callback. Storage threads
// wait in their driver's poll and are woken through it; copy threads wait on a condition.
#pragma once

#include "lib/support/thread_annotations.h"
#include "lib/transfer/links.h"
#include "lib/transfer/task.h"

#include <pthread.h>

#include <memory>
#include <vector>

namespace stepwell::transfer {

// What waits for one storage path. Reads and writes apart, so that neither is ever behind the
// other; staged reads apart, so that one that has no ring slot holds up nobody else.
struct PathQueues {
    ClassQueues reads;
    ClassQueues staged_reads;
    ClassQueues writes;
    bool waiting = false;  // its thread is in poll, or about to, and could take more work
};

// Completions of one thread on their way out; reused, so that steady state allocates nothing.
struct Outbox {
    std::vector<Task *> tasks;
    std::vector<Completion> list;
};

constexpr uint32_t kOutboxMax = 64;

// Small copies that are started in one call, no more bytes than a large block has: what becomes
// urgent meanwhile is behind them.
constexpr uint32_t kBatchMax = 32;
constexpr uint64_t kBatchBytes = 2 << 20;
constexpr uint64_t kSmallBytes = 512 * 1024;
using Batch = std::vector<Task *>;

// Copies of one thread that are enqueued on devices, oldest first. Those of a batch have one mark.
constexpr uint32_t kStartedMax = 8;  // batches
struct Started {
    std::vector<Task *> tasks;
    uint32_t batches = 0;
};

class StorageThread;

inline const char *status_text(stw_status code)
{
#define STW_STATUS_TEXT(name, value, text)                                                         \
    if (code == (value)) return text;
    STW_STATUS_MAP(STW_STATUS_TEXT)
#undef STW_STATUS_TEXT
    return "an unknown status";
}

struct Engine::Parts {
    explicit Parts(EngineOptions given);
    ~Parts();

    // ---- any thread ----------------------------------------------------------------------------
    Status submit(const Job *jobs, uint32_t n);
    void promote(residency::TransferId id);
    Status close(uint64_t timeout_ns);
    void abandon();  // deletes this, now or with the last request that comes back
    std::string describe(uint32_t lines_max) const;
    [[nodiscard]] uint64_t now() const { return options.services->now_ns(options.services->user); }

    Status check_options();
    [[nodiscard]] store::Requests requests_of(uint32_t path, bool reads) const;
    void prepare();  // takes every list and thread's memory
    Status start_threads();
    Status start_thread(const char *name, void *(*main)(void *), void *argument);
    // Stops and joins; nothing is in flight any more.
    void stop_threads();

    // ---- engine threads ------------------------------------------------------------------------
    // The task is over. Its completion leaves with the next flush of the same outbox.
    void finish(Task &task, Outbox &outbox);
    // Frees the tasks, then calls back with no lock held.
    void flush(Outbox &outbox);
    void hop_begin(Task &task, Link link);
    void hop_end(Task &task, Link link, bool moved);
    [[nodiscard]] Link storage_link(const Task &task) const;
    [[nodiscard]] Link copy_link(const Task &task) const;
    // After its part at storage, or to free a ring slot without one.
    void give_ring_back(Task &task);
    [[nodiscard]] uint32_t hop_memory(const Task &task, Link link) const;
    bool enter_hook();
    void leave_hook();
    void queue_copy(Task &task);
    void queue_path(Task &task);
    void copy_main();
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
    // Work on streams comes before what storage is to do.
    [[nodiscard]] bool is_ordered(const Task &task) const;
    Task *take_ordered() STW_REQUIRES(mutex);
    void wake_path(uint32_t path) STW_REQUIRES(mutex);
    void wake_all() STW_REQUIRES(mutex);
    [[nodiscard]] Task *best_copy() const STW_REQUIRES(mutex);
    void take_copy(Task &task) STW_REQUIRES(mutex);
    // The most urgent copy, and those behind it that can be started in the same call.
    void next_copies(Batch &batch) STW_REQUIRES(mutex);
    // Of wait_clock_ns; UINT64_MAX: nothing is held back.
    uint64_t take_held_back() STW_REQUIRES(mutex);
    void take_ring(Task &task, std::vector<uint32_t> &ring) STW_REQUIRES(mutex);
    // Takes what no thread has begun out of the queues.
    void take_waiting(std::vector<Task *> &waiting) STW_REQUIRES(mutex);
    void cancel(const std::vector<Task *> &waiting);

    // Copy threads, without the lock.
    void run_copies(Batch &batch, Started &started, Outbox &outbox);
    bool prepare_copy(Task &task, Outbox &outbox);
    bool hold_back(Task &task);
    void end_copy(Task &task, Outbox &outbox);
    Status copy_failed(const Task &task, stw_status code) const;
    [[nodiscard]] bool may_start(const Task &task) const;
    void start_copies(Batch &batch, Started &started, Outbox &outbox);
    void enqueue_copies(Batch &batch);
    void await_copies(Started &started, Outbox &outbox);
    struct Sides;
    [[nodiscard]] bool may_batch(const Task &task) const;
    [[nodiscard]] bool are_together(const Task &a, const Task &b) const;
    [[nodiscard]] bool go_together(const Task &first, const Task &next) const;
    [[nodiscard]] Sides sides_of(const Task &task) const;
    Status copy_bytes(Task &task) const;
    Status order_copy(uint32_t memory, const void *pointer, uint64_t bytes, bool writes) const;
    Status map_block(const Task &task) const;
    Status show_block(const Task &task) const;
    bool show_started(Task &task, const Sides &sides);
    Status move_bytes(const Task &task, uint32_t to, void *target, uint32_t from,
                      const void *source) const;

    EngineOptions options;  // constant once the threads run
    std::unique_ptr<store::Store> store;
    Links links;

    mutable Mutex mutex;
    Condition copy_ready;
    Condition order_ready;
    Condition changed;  // for close: a job completed, a callback returned
    TaskPool pool STW_GUARDED_BY(mutex);
    std::vector<std::unique_ptr<PathQueues>> paths STW_GUARDED_BY(mutex);
    ClassQueues copies STW_GUARDED_BY(mutex);
    ClassQueues held_back STW_GUARDED_BY(mutex);  // copies that cannot be ordered yet
    uint64_t held_until_ns STW_GUARDED_BY(mutex) = 0;
    ClassQueues ordering STW_GUARDED_BY(mutex);              // wait for work on streams
    ClassQueues staged_writes STW_GUARDED_BY(mutex);         // wait for a slot of the write ring
    std::vector<uint32_t> read_ring STW_GUARDED_BY(mutex);   // free slots
    std::vector<uint32_t> write_ring STW_GUARDED_BY(mutex);  // free slots
    uint64_t sequence STW_GUARDED_BY(mutex) = 0;
    uint32_t callbacks STW_GUARDED_BY(mutex) = 0;  // running, hooks of shared reads among them
    uint32_t threads_alive STW_GUARDED_BY(mutex) = 0;
    bool closing STW_GUARDED_BY(mutex) = false;
    bool muted STW_GUARDED_BY(mutex) = false;
    bool stopping STW_GUARDED_BY(mutex) = false;
    bool abandoned STW_GUARDED_BY(mutex) = false;
    uint32_t staging_memory = 0;  // whose link the ring's hops count on: the host's
    bool closed = false;          // of the closing thread
    std::vector<std::unique_ptr<StorageThread>> storage_threads;
    std::vector<pthread_t> threads;  // of the opening and closing thread
};

}  // namespace stepwell::transfer
