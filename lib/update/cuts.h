// SPDX-License-Identifier: Apache-2.0
// Where a range of elements has to be cut so that no piece crosses a block of any tensor. Pure
// arithmetic; any thread. Knows nothing of jobs or of what the pieces are for.
#pragma once

#include "lib/update/tiers.h"

#include <cstdint>

namespace stepwell::update {

// A flat array of elements in its pack.
struct Layout {
    TensorId tensor = kNone;
    uint64_t pack_offset = 0;
    uint32_t element_bytes = 0;
    uint64_t first_element = 0;  // of the walk, that is this tensor's first
    // Elements that share element_bytes: 8 of a bit each share a byte. Cuts are at multiples of it.
    uint32_t shared_by = 1;
};

// Elements from `element` to the end of the block it lies in; at least 1.
uint64_t elements_to_block_end(const Layout &layout, uint64_t element, uint64_t block_bytes);

// The longest run from `element` that lies in one block of each of the n tensors, at most `limit`.
uint64_t common_run(const Layout *layouts, uint32_t n, uint64_t element, uint64_t limit,
                    uint64_t block_bytes);

// A run that begins at a multiple of `unit` elements from the first of its range and has `left`
// elements to the end of it: as many whole units as lie in one block, or all that is left. One unit
// where a block ends inside of it; that one takes several pieces.
uint64_t unit_run(const Layout &layout, uint64_t element, uint64_t left, uint64_t unit,
                  uint64_t block_bytes);

// How many blocks `count` elements lie in.
uint32_t count_pieces(const Layout &layout, uint64_t element, uint64_t count, uint64_t block_bytes);

// The pieces of `count` elements; how many.
uint32_t make_pieces(const Layout &layout, Access access, uint64_t element, uint64_t count,
                     uint64_t block_bytes, Piece *pieces, uint32_t capacity);

}  // namespace stepwell::update
