// SPDX-License-Identifier: Apache-2.0
// Scratch: the part of the host tier that stw_host_alloc gives out, by the process's own jemalloc
// where it runs one, else by slabs. Knows every piece, so what is no piece is refused and never
// reaches an allocator. Any thread.
#pragma once

#include "lib/runtime/jemalloc_arena.h"
#include "lib/runtime/slabs.h"
#include "lib/support/status.h"

#include <memory>
#include <mutex>
#include <vector>

namespace stepwell {

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
    [[nodiscard]] Status refusal(uint64_t bytes, uint64_t align_bytes) const;
    [[nodiscard]] bool is_piece(uint64_t offset) const;
    void mark(uint64_t offset, bool piece);

    char *const base_;
    const uint64_t bytes_;
    mutable std::mutex mutex_;  // everything below
    std::unique_ptr<JemallocArena> arena_;
    Slabs slabs_;
    std::vector<uint64_t> begins_;  // with jemalloc: a bit per place where a piece may begin
    uint64_t used_bytes_ = 0;
    uint64_t pieces_ = 0;
};

}  // namespace stepwell
