// SPDX-License-Identifier: Apache-2.0
// Cutting ranges of elements at the blocks of their tensors.
#include "lib/update/cuts.h"

#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::update {
namespace {

// Of the pack, where the element begins.
uint64_t layout_byte(const Layout &layout, uint64_t element)
{
    const uint64_t before = element - layout.first_element;
    STW_ASSERT(before % layout.shared_by == 0);
    return layout.pack_offset + before / layout.shared_by * layout.element_bytes;
}

uint64_t layout_bytes(const Layout &layout, uint64_t elements)
{
    return (elements + layout.shared_by - 1) / layout.shared_by * layout.element_bytes;
}

}  // namespace

uint64_t elements_to_block_end(const Layout &layout, uint64_t element, uint64_t block_bytes)
{
    const uint64_t begin = layout_byte(layout, element);
    const uint64_t end = (begin / block_bytes + 1) * block_bytes;
    STW_ASSERT(end - begin >= layout.element_bytes);
    return std::max<uint64_t>((end - begin) / layout.element_bytes, 1) * layout.shared_by;
}

uint64_t common_run(const Layout *layouts, uint32_t n, uint64_t element, uint64_t limit,
                    uint64_t block_bytes)
{
    uint64_t run = limit;
    for (uint32_t i = 0; i < n; ++i) {
        run = std::min(run, elements_to_block_end(layouts[i], element, block_bytes));
    }
    return run;
}

uint64_t unit_run(const Layout &layout, uint64_t element, uint64_t left, uint64_t unit,
                  uint64_t block_bytes)
{
    const uint64_t inside = elements_to_block_end(layout, element, block_bytes);
    if (inside >= left) return left;
    if (inside >= unit) return inside / unit * unit;
    return std::min(unit, left);
}

uint32_t count_pieces(const Layout &layout, uint64_t element, uint64_t count, uint64_t block_bytes)
{
    const uint64_t begin = layout_byte(layout, element);
    const uint64_t last = begin + layout_bytes(layout, count) - 1;
    return static_cast<uint32_t>(last / block_bytes - begin / block_bytes + 1);
}

uint32_t make_pieces(const Layout &layout, Access access, uint64_t element, uint64_t count,
                     uint64_t block_bytes, Piece *pieces, uint32_t capacity)
{
    uint32_t n = 0;
    while (count > 0 && n < capacity) {
        const uint64_t run = std::min(count, elements_to_block_end(layout, element, block_bytes));
        pieces[n].tensor = layout.tensor;
        pieces[n].access = access;
        pieces[n].byte_begin = layout_byte(layout, element) - layout.pack_offset;
        pieces[n].byte_count = layout_bytes(layout, run);
        ++n;
        element += run;
        count -= run;
    }
    STW_ASSERT(count == 0);
    return n;
}

}  // namespace stepwell::update
