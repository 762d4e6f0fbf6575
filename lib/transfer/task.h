// SPDX-License-Identifier: Apache-2.0
// Tasks: the engine's record of a job, the queues that they wait in and the pool that they come
// from. Plain structures under the engine's lock; nothing here waits, and only the pool allocates.
// Must not know threads or drivers.
#pragma once

#include "lib/observe/nvtx.h"
#include "lib/support/assert.h"
#include "lib/transfer/engine.h"

#include <array>
#include <memory>
#include <vector>

namespace stepwell::transfer {

constexpr uint32_t kClasses = 4;
constexpr uint32_t kNoRing = UINT32_MAX;

enum class Route : uint8_t {
    kCopy,         // memory alone: copy, zeros, map
    kRead,         // nvme to CPU memory
    kReadStaged,   // nvme to a ring slot, then a copy
    kWrite,        // CPU memory to nvme
    kWriteStaged,  // a copy to a ring slot, then to nvme
};

enum class Stage : uint8_t { kFree, kQueued, kStorage, kCopy, kOrder, kHeld };

class ClassQueues;

struct Task {
    // Written at submit; then read by any thread.
    Job job;
    Route route = Route::kCopy;
    store::Placement place;  // routes through storage; its sum is set by the storage thread
    uint64_t io_bytes = 0;   // of the block's bytes in use, rounded up to the path's alignment
    uint64_t sequence = 0;   // order of submit
    uint64_t submitted_ns = 0;

    // Under the engine's lock.
    Stage stage = Stage::kFree;
    residency::Class urgency = residency::Class::kIdle;
    bool begun = false;  // a thread has taken it at least once
    ClassQueues *queue = nullptr;
    Task *next = nullptr;
    Task *previous = nullptr;
    Task *next_of_id = nullptr;

    // Of the thread that has it; handed on under the lock.
    Status status;
    void *data = nullptr;  // what storage reads into or writes from
    uint32_t ring = kNoRing;
    uint64_t given_bytes = 0;    // handed out as requests
    uint32_t open_requests = 0;  // handed out and not finished
    bool read_again = false;
    bool placed = false;  // place is begun at the store and to be ended
    uint64_t hop_start_ns = 0;
    bool held_back = false;                  // its hop has begun, and its copy not
    uint64_t mark = 0;                       // recorded after its copy, on a device
    uint64_t order_number = 0;               // of a copy into it
    uint64_t hop_range = observe::kNoRange;  // in a profiler
};

inline bool is_read(const Task &task)
{
    return task.route == Route::kRead || task.route == Route::kReadStaged;
}

inline bool is_write(const Task &task)
{
    return task.route == Route::kWrite || task.route == Route::kWriteStaged;
}

// First in, first out per class. Intrusive: a task is in one queue at a time.
class ClassQueues {
public:
    ClassQueues() = default;
    ClassQueues(const ClassQueues &) = delete;
    ClassQueues &operator=(const ClassQueues &) = delete;

    void push(Task &task)
    {
        STW_ASSERT(task.queue == nullptr);
        List &list = lists_[static_cast<uint32_t>(task.urgency)];
        task.queue = this;
        task.next = nullptr;
        task.previous = list.last;
        (list.last == nullptr ? list.first : list.last->next) = &task;
        list.last = &task;
    }

    void remove(Task &task)
    {
        STW_ASSERT(task.queue == this);
        List &list = lists_[static_cast<uint32_t>(task.urgency)];
        (task.previous == nullptr ? list.first : task.previous->next) = task.next;
        (task.next == nullptr ? list.last : task.next->previous) = task.previous;
        task.queue = nullptr;
        task.next = task.previous = nullptr;
    }

    // The oldest of the most urgent class; null when empty.
    [[nodiscard]] Task *best() const
    {
        for (uint32_t i = kClasses; i > 0; --i) {
            if (lists_[i - 1].first != nullptr) return lists_[i - 1].first;
        }
        return nullptr;
    }

    // Remove all for which `wanted` holds, handing each to `take`.
    template <class Wanted, class Take> void drain(Wanted wanted, Take take)
    {
        for (List &list : lists_) {
            for (Task *task = list.first; task != nullptr;) {
                Task *next = task->next;
                if (wanted(*task)) {
                    remove(*task);
                    take(*task);
                }
                task = next;
            }
        }
    }

private:
    struct List {
        Task *first = nullptr;
        Task *last = nullptr;
    };
    std::array<List, kClasses> lists_{};
};

// The more urgent, then the older. Null loses.
inline Task *more_urgent(Task *a, Task *b)
{
    if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
    if (a->urgency != b->urgency) return a->urgency > b->urgency ? a : b;
    return a->sequence < b->sequence ? a : b;
}

// Tasks in chunks that never move, and a table from ids to tasks.
class TaskPool {
public:
    void reserve(uint32_t reserved, uint32_t max)
    {
        max_ = max;
        ensure(reserved);
        uint32_t buckets = 256;
        while (buckets < max && buckets < 65536) buckets *= 2;
        buckets_.assign(buckets, nullptr);
    }

    [[nodiscard]] uint32_t used() const { return used_; }
    [[nodiscard]] bool has_room(uint32_t n) const { return n <= max_ - used_; }

    // The only thing here that allocates; before anything changes.
    void ensure(uint32_t n)
    {
        while (free_count_ < n) add_chunk();
    }

    Task &take(const Job &job)
    {
        STW_ASSERT(free_ != nullptr);
        Task &task = *free_;
        free_ = task.next;
        --free_count_;
        ++used_;
        task.next = nullptr;
        task.job = job;
        Task *&bucket = buckets_[job.transfer.id & (buckets_.size() - 1)];
        task.next_of_id = bucket;
        bucket = &task;
        return task;
    }

    void give_back(Task &task)
    {
        Task **at = &buckets_[task.job.transfer.id & (buckets_.size() - 1)];
        while (*at != &task) at = &(*at)->next_of_id;
        *at = task.next_of_id;
        task = Task{};
        task.next = free_;
        free_ = &task;
        ++free_count_;
        --used_;
    }

    [[nodiscard]] Task *find(residency::TransferId id) const
    {
        Task *task = buckets_[id & (buckets_.size() - 1)];
        while (task != nullptr && task->job.transfer.id != id) task = task->next_of_id;
        return task;
    }

    template <class Body> void for_each(Body body) const
    {
        for (const std::unique_ptr<Chunk> &chunk : chunks_) {
            for (const Task &task : *chunk) {
                if (task.stage != Stage::kFree) body(task);
            }
        }
    }

    [[nodiscard]] uint64_t metadata_bytes() const
    {
        return chunks_.size() * sizeof(Chunk) + buckets_.capacity() * sizeof(Task *);
    }

private:
    using Chunk = std::array<Task, 256>;

    void add_chunk()
    {
        chunks_.push_back(std::make_unique<Chunk>());
        for (Task &task : *chunks_.back()) {
            task.next = free_;
            free_ = &task;
        }
        free_count_ += static_cast<uint32_t>(chunks_.back()->size());
    }

    std::vector<std::unique_ptr<Chunk>> chunks_;
    std::vector<Task *> buckets_;
    Task *free_ = nullptr;
    uint32_t free_count_ = 0;
    uint32_t used_ = 0;
    uint32_t max_ = 0;
};

}  // namespace stepwell::transfer
