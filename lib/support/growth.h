// SPDX-License-Identifier: Apache-2.0
// How large a table is made when it needs more: by a quarter, so that what it will take can be
// told before it is taken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stepwell {

inline size_t grown_capacity(size_t capacity, size_t needed)
{
    return needed <= capacity ? capacity : std::max(needed, capacity + capacity / 4 + 64);
}

template <class T> void grow_to_hold(std::vector<T> &table, size_t needed)
{
    table.reserve(grown_capacity(table.capacity(), needed));
}

// Bytes that grow_to_hold() would add.
template <class T> size_t growth_bytes(const std::vector<T> &table, size_t needed)
{
    return (grown_capacity(table.capacity(), needed) - table.capacity()) * sizeof(T);
}

}  // namespace stepwell
