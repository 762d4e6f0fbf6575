// SPDX-License-Identifier: Apache-2.0
// The hops of tasks over links: which link and memory a hop counts on, and what is counted, marked
// for a profiler and reported as a span when it begins and ends. Engine threads, several at once.
#pragma once

#include "lib/transfer/links.h"
#include "lib/transfer/task.h"

namespace stepwell::transfer {

class Hops {
public:
    // The options are constant and outlive it.
    explicit Hops(const EngineOptions &options) : options_(options) {}

    [[nodiscard]] Link storage_link(const Task &task) const;
    [[nodiscard]] Link copy_link(const Task &task) const;
    void begin(Task &task, Link link);
    void end(Task &task, Link link, bool moved);
    // A request of the task to storage is sent once more.
    void retried(const Task &task);

    void expect(Link link, uint32_t memory, uint64_t bytes_per_s)
    {
        links_.expect(link, memory, bytes_per_s);
    }
    [[nodiscard]] LinkStats stats(Link link, uint32_t memory) const
    {
        return links_.stats(link, memory, options_.now());
    }

private:
    [[nodiscard]] uint32_t memory_of(const Task &task, Link link) const;

    const EngineOptions &options_;
    Links links_;
};

}  // namespace stepwell::transfer
