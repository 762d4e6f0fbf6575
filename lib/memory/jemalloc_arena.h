// SPDX-License-Identifier: Apache-2.0
// An arena of the jemalloc that the process runs already, in one fixed range of memory. The library
// neither links nor loads jemalloc: where there is none, or none that can keep its tables out of
// the range, open() gives null. Any thread.
#pragma once

#include <cstdint>
#include <memory>

namespace stepwell::memory {

class JemallocArena {
public:
    // The range is whole pages and outlives the arena. Its memory is never given back or moved.
    static std::unique_ptr<JemallocArena> open(char *base, uint64_t bytes);
    ~JemallocArena();
    JemallocArena(const JemallocArena &) = delete;
    JemallocArena &operator=(const JemallocArena &) = delete;

    void *take(uint64_t bytes, uint64_t align_bytes);  // null: no room
    void give(void *pointer);                          // of take
    [[nodiscard]] uint64_t bytes_of(void *pointer) const;

private:
    struct Functions;
    struct Hooks;
    JemallocArena();
    void take_range(uint64_t bytes);

    std::unique_ptr<Functions> functions_;
    std::unique_ptr<Hooks> hooks_;
    unsigned number_ = 0;
    bool created_ = false;
};

}  // namespace stepwell::memory
