// SPDX-License-Identifier: Apache-2.0
// The thread for memory that storage accesses and consumers use on streams: it waits for their work
// before storage begins. It waits for one block at a time, the most urgent first, so that neither
// storage nor copies ever wait for a consumer.
#include "lib/transfer/parts.h"

namespace stepwell::transfer {

bool Engine::Parts::is_ordered(const Task &task) const
{
    if (task.route != Route::kRead && task.route != Route::kWrite) return false;
    const uint32_t memory = is_read(task) ? task.job.to_memory : task.job.from_memory;
    return options.memories[memory].direct && options.order != nullptr;
}

Task *Engine::Parts::take_ordered()
{
    Task *task = ordering.best();
    if (task == nullptr) return nullptr;
    ordering.remove(*task);
    task->begun = true;
    task->stage = Stage::kOrder;
    return task;
}

void Engine::Parts::order_main()
{
    Outbox outbox;
    outbox.tasks.reserve(1);
    outbox.list.reserve(1);
    for (;;) {
        Task *task = nullptr;
        {
            MutexLock lock(mutex);
            for (task = take_ordered(); task == nullptr && !thread_ends(); task = take_ordered())
                order_ready.wait(mutex);
        }
        if (task == nullptr) break;
        const bool reads = is_read(*task);
        const uint32_t memory = reads ? task->job.to_memory : task->job.from_memory;
        task->status = options.order->await(memory, task->data, task->job.transfer.bytes, reads);
        if (task->status.ok()) {
            queue_path(*task);
        } else {
            finish(*task, outbox);
            flush(outbox);
        }
    }
    thread_gone();
}

}  // namespace stepwell::transfer
