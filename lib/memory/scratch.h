// SPDX-License-Identifier: Apache-2.0
// Scratch: the part of the host tier that stw_host_alloc gives out, by the process's own jemalloc
// where it runs one, else by slabs. Knows every piece, so what is no piece is refused and never
// reaches an allocator. Any thread.
#pragma once

#include "lib/memory/jemalloc_arena.h"
#include "lib/memory/slabs.h"
#include "lib/support/status.h"
#include "lib/support/thread_annotations.h"

#include <memory>
#include <vector>

namespace stepwell::memory {

class Scratch {
public:
    // The range is aligned to all that is asked of it, and outlives this.
    Scratch(char *base, uint64_t bytes);

    Result<void *> take(uint64_t bytes, uint64_t align_bytes);
    Status give(void *pointer);

    struct Usage {
        uint64_t bytes = 0;       // of the range
        uint64_t used_bytes = 0;  // of pieces, as they were rounded up
        uint64_t pieces = 0;
    };
    [[nodiscard]] Usage usage() const;
    [[nodiscard]] uint64_t metadata_bytes() const;
    [[nodiscard]] const char *allocator() const { return arena_ ? "jemalloc" : "slabs"; }

private:
    [[nodiscard]] Status refusal(uint64_t bytes, uint64_t align_bytes) const STW_REQUIRES(mutex_);
    [[nodiscard]] bool is_piece(uint64_t offset) const STW_REQUIRES(mutex_);
    void mark(uint64_t offset, bool piece) STW_REQUIRES(mutex_);

    char *const base_;
    const uint64_t bytes_;
    mutable Mutex mutex_;
    const std::unique_ptr<JemallocArena> arena_ STW_PT_GUARDED_BY(mutex_);
    Slabs slabs_ STW_GUARDED_BY(mutex_);
    // With jemalloc: a bit per place where a piece may begin.
    std::vector<uint64_t> begins_ STW_GUARDED_BY(mutex_);
    uint64_t used_bytes_ STW_GUARDED_BY(mutex_) = 0;
    uint64_t pieces_ STW_GUARDED_BY(mutex_) = 0;
};

}  // namespace stepwell::memory
