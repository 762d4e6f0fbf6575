// SPDX-License-Identifier: Apache-2.0
// Fixed addresses of tensors: ranges at which blocks of the arena are mapped a second time. A
// mapping stays until another block is mapped there, its block's memory is given back or its range
// ends, so a tensor that returns to its old slots needs no call. A handle is mapped as a whole: if
// handles have several blocks, all blocks mapped in a range are one run in the order of the arena.
// Inside a Scope; any thread, several at once for different ranges.
#pragma once

#include "drivers/cuda/arena.h"

#include <map>
#include <vector>

namespace stepwell::drivers::cuda {

class AliasRanges {
public:
    AliasRanges(const Context &context, Marks &marks, Arena &arena)
        : context_(context), marks_(marks), arena_(arena)
    {
    }
    AliasRanges(const AliasRanges &) = delete;
    AliasRanges &operator=(const AliasRanges &) = delete;
    ~AliasRanges();  // no work uses the ranges any more

    stw_status reserve(uint64_t bytes, void **address_out);
    stw_status release(void *address, uint64_t bytes, const uint64_t *marks, uint32_t count);
    // Waits for the marks if other blocks are mapped there.
    stw_status map_blocks(uint32_t first, uint32_t blocks, void *address, const uint64_t *marks,
                          uint32_t count);
    // The blocks' memory was given back, and all work that used it is done.
    void forget(uint32_t first, uint32_t blocks);
    bool contains(const void *pointer);

private:
    struct Range {
        uint64_t bytes = 0;
        bool ends = false;
        std::vector<uint64_t> marks;  // it is unmapped after these
    };
    const MappingApi &mapping() const { return context_.library().mapping; }
    using Ranges = std::map<Address, Range>;
    Ranges::const_iterator find(Address address) const STW_REQUIRES(mutex_);
    bool is_mapped(uint32_t block, Address address) const STW_REQUIRES(mutex_);
    // Reserved addresses on both sides of a range, for handles that extend beyond it.
    uint64_t margin() const;
    int unmap(Address address, uint64_t bytes) STW_REQUIRES(mutex_);
    int map(uint32_t first, uint32_t end, Address address) STW_REQUIRES(mutex_);
    int map_all(uint32_t first, uint32_t end, Address address) STW_REQUIRES(mutex_);
    // Pieces from block `first` up to block `end`, at `address`.
    struct Wanted {
        uint32_t first = 0;
        uint32_t end = 0;
        Address address = 0;
        Address range = 0;  // with its margins
        uint64_t range_bytes = 0;
        bool lacks = false;  // some of them are not mapped there
        bool moves = false;  // the range has blocks of another run
        bool waits = false;  // other blocks are mapped there, and may be in use
    };
    bool prepare(uint32_t first, uint32_t blocks, Address address, Wanted *out) const
        STW_REQUIRES(mutex_);
    bool has_other_run(Address begin, uint64_t bytes, Address zero) const STW_REQUIRES(mutex_);
    bool is_over(const Range &range) const;
    void end_ranges() STW_REQUIRES(mutex_);

    const Context &context_;
    Marks &marks_;
    Arena &arena_;
    Mutex mutex_;
    Ranges ranges_ STW_GUARDED_BY(mutex_);
    std::map<Address, Arena::Piece> pieces_ STW_GUARDED_BY(mutex_);  // mapped there
};

}  // namespace stepwell::drivers::cuda
