// SPDX-License-Identifier: Apache-2.0
// BlockIds: ranges of block numbers that no pack has. The smallest range that fits is split; ranges
// that come to touch become one, so that numbers run out only when blocks do.
// Pure. One thread at a time.
#pragma once

#include "lib/residency/types.h"

#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace stepwell::residency {

class BlockIds {
public:
    [[nodiscard]] bool has(uint32_t blocks) const
    {
        return by_length_.lower_bound({blocks, 0}) != by_length_.end();
    }
    // The first of so many in a row, kNone when there are none. Allocates nothing.
    BlockId take(uint32_t blocks)
    {
        const auto fitting = by_length_.lower_bound({blocks, 0});
        if (fitting == by_length_.end()) return kNone;
        const auto [length, first] = *fitting;
        auto by_length = by_length_.extract(fitting);
        auto by_first = by_first_.extract(first);
        if (length == blocks) return first;
        by_length.value() = {length - blocks, first + blocks};
        by_first.key() = first + blocks;
        by_first.mapped() = length - blocks;
        by_length_.insert(std::move(by_length));
        by_first_.insert(std::move(by_first));
        return first;
    }
    void give(BlockId first, uint32_t blocks)
    {
        auto next = by_first_.lower_bound(first);
        if (next != by_first_.end() && next->first == first + blocks) {
            const auto [begin, length] = *next;
            remove(begin, length);
            blocks += length;
        }
        next = by_first_.lower_bound(first);
        if (next != by_first_.begin()) {
            const auto [begin, length] = *std::prev(next);
            if (begin + length == first) {
                remove(begin, length);
                first = begin;
                blocks += length;
            }
        }
        add(first, blocks);
    }

private:
    void add(BlockId first, uint32_t blocks)
    {
        auto added = by_length_.emplace(blocks, first).first;
        try {
            by_first_.emplace(first, blocks);
        } catch (...) {
            by_length_.erase(added);
            throw;
        }
    }
    void remove(BlockId first, uint32_t blocks)
    {
        by_first_.erase(first);
        by_length_.erase({blocks, first});
    }

    std::map<BlockId, uint32_t> by_first_;
    std::set<std::pair<uint32_t, BlockId>> by_length_;
};

}  // namespace stepwell::residency
