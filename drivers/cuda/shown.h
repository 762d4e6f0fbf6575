// SPDX-License-Identifier: Apache-2.0
// Addresses for life: ranges at which blocks of the arena are seen a second time. A mapping stays
// until another block is to be seen there, or until its block's memory or its range goes, so what
// comes back to the slot it had needs none. Inside a Scope; any thread, several at once for
// different addresses.
#pragma once

#include "drivers/cuda/arena.h"

#include <map>
#include <vector>

namespace stepwell::drivers::cuda {

class Shown {
public:
    Shown(const Context &context, Marks &marks, Arena &arena)
        : context_(context), marks_(marks), arena_(arena)
    {
    }
    Shown(const Shown &) = delete;
    Shown &operator=(const Shown &) = delete;
    ~Shown();  // nothing uses it any more

    stw_status reserve(uint64_t bytes, void **address_out);
    stw_status release(void *address, uint64_t bytes, const uint64_t *marks, uint32_t count);
    // Waits for the marks where other blocks are seen there.
    stw_status show(uint32_t first, uint32_t blocks, void *address, const uint64_t *marks,
                    uint32_t count);
    // Their memory has gone from the arena, with all work that used it.
    void forget(uint32_t first, uint32_t blocks);
    bool contains(const void *pointer);

private:
    struct Range {
        uint64_t bytes = 0;
        bool ends = false;
        std::vector<uint64_t> marks;  // what it ends behind
    };
    const MappingApi &mapping() const { return context_.library().mapping; }
    const Range *find(Address address) const STW_REQUIRES(mutex_);
    bool is_seen(uint32_t block, Address address) const STW_REQUIRES(mutex_);
    int hide(Address address, uint64_t bytes) STW_REQUIRES(mutex_);
    int map(uint32_t first, uint32_t blocks, Address address) STW_REQUIRES(mutex_);
    int map_all(uint32_t first, uint32_t blocks, Address address) STW_REQUIRES(mutex_);
    bool is_over(const Range &range) const;
    void end_ranges() STW_REQUIRES(mutex_);

    const Context &context_;
    Marks &marks_;
    Arena &arena_;
    Mutex mutex_;
    std::map<Address, Range> ranges_ STW_GUARDED_BY(mutex_);
    std::map<Address, uint32_t> blocks_ STW_GUARDED_BY(mutex_);  // seen there
};

}  // namespace stepwell::drivers::cuda
