// SPDX-License-Identifier: Apache-2.0
// Addresses for life: ranges at which blocks of the arena are seen a second time. A mapping stays
// until another block is to be seen there, or until its block's memory or its range goes, so what
// comes back to the slot it had needs none. A handle is mapped whole: where it has several blocks,
// all that is seen in a range lies there as in the arena, whatever it begins with.
// Inside a Scope; any thread, several at once for different ranges.
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
    using Ranges = std::map<Address, Range>;
    Ranges::const_iterator find(Address address) const STW_REQUIRES(mutex_);
    bool is_seen(uint32_t block, Address address) const STW_REQUIRES(mutex_);
    // What lies around a range, for the ends of handles that reach beyond it.
    uint64_t margin() const;
    int hide(Address address, uint64_t bytes) STW_REQUIRES(mutex_);
    int map(uint32_t first, uint32_t end, Address address) STW_REQUIRES(mutex_);
    int map_all(uint32_t first, uint32_t end, Address address) STW_REQUIRES(mutex_);
    // Pieces from block `first` up to block `end`, at `address`.
    struct Wanted {
        uint32_t first = 0;
        uint32_t end = 0;
        Address address = 0;
        Address range = 0;  // with its margins
        uint64_t range_bytes = 0;
        bool lacks = false;  // some of them are not seen there
        bool moves = false;  // what is seen in the range lies otherwise
        bool waits = false;  // something else is seen, and may be in use
    };
    bool prepare(uint32_t first, uint32_t blocks, Address address, Wanted *out) const
        STW_REQUIRES(mutex_);
    bool lies_elsewhere(Address begin, uint64_t bytes, Address zero) const STW_REQUIRES(mutex_);
    bool is_over(const Range &range) const;
    void end_ranges() STW_REQUIRES(mutex_);

    const Context &context_;
    Marks &marks_;
    Arena &arena_;
    Mutex mutex_;
    Ranges ranges_ STW_GUARDED_BY(mutex_);
    std::map<Address, Arena::Piece> pieces_ STW_GUARDED_BY(mutex_);  // seen there
};

}  // namespace stepwell::drivers::cuda
