// SPDX-License-Identifier: Apache-2.0
// Copies of blocks by the drivers of memories: of one task at once, or of a batch that is enqueued
// on a device. Its only state are the engine's options, and it takes no lock. Used by copy threads
// and storage threads. Must not know queues, lanes or rings other than by a task's slot.
#pragma once

#include "lib/transfer/task.h"

#include <vector>

namespace stepwell::transfer {

// Copies of one class that are started together, with one mark after them: a mark for each would
// leave the link idle for a few percent of the time. A copy that becomes urgent meanwhile has to
// wait for the started ones, about 32 MiB.
constexpr uint32_t kBatchMax = 256;
constexpr uint64_t kBatchBytes = 16 << 20;
constexpr uint64_t kStartedBytes = 2 * kBatchBytes;
using Batch = std::vector<Task *>;

class BlockCopier {
public:
    // The two ends of a move; a slot of the ring is host memory.
    struct Sides {
        uint32_t device = 0;  // whose driver copies
        void *target = nullptr;
        const void *source = nullptr;
        bool into = false;  // the device, else out of it

        [[nodiscard]] const void *on_device() const { return into ? target : source; }
    };

    // The options are constant and outlive it.
    explicit BlockCopier(const EngineOptions &options) : options_(options) {}

    [[nodiscard]] Sides sides_of(const Task &task) const;
    // Between host memory and a device with streams.
    [[nodiscard]] bool may_start(const Task &task) const;
    // Moves tasks that would have to wait for work on streams from `batch` to `rest`, unless all
    // of them would.
    void set_waiting_apart(Batch &batch, Batch &rest) const;
    // Orders the task's copy after work on streams, on the device. BUSY: try it again later.
    Status order(const Task &task) const;
    // Starts the copies of a batch; sets the mark or the error of each.
    void enqueue(Batch &batch) const;
    // After enqueue, of a copy into the device: its bytes are at its tensor's address from now on.
    // False: they are not, and the copy is over.
    bool map_started(Task &task, const Sides &sides) const;

    // Copies, clears or maps at once.
    Status copy(const Task &task) const;
    Status map_block(const Task &task) const;
    Status map_alias(const Task &task) const;
    [[nodiscard]] Status failed(const Task &task, stw_status code) const;

private:
    // Makes a list of them, sorted, and says which of it each is of; how many.
    uint32_t join(Batch &batch, stw_memory_copy *list, uint32_t *copy_of) const;
    Status order_copy(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                      bool into) const;
    Status move_bytes(const Task &task, uint32_t to, void *target, uint32_t from,
                      const void *source) const;

    const EngineOptions &options_;
};

}  // namespace stepwell::transfer
