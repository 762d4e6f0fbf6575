// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/order.h"

#include <algorithm>
#include <iterator>

namespace stepwell::cuda_double {

void Clock::advance(uint32_t slot, uint64_t sequence)
{
    if (slot >= seen_.size()) seen_.resize(slot + 1, 0);
    seen_[slot] = std::max(seen_[slot], sequence);
}

void Clock::join(const Clock &other)
{
    if (other.seen_.size() > seen_.size()) seen_.resize(other.seen_.size(), 0);
    for (size_t slot = 0; slot < other.seen_.size(); ++slot)
        seen_[slot] = std::max(seen_[slot], other.seen_[slot]);
}

namespace {

// One sentence for each pair of operations, however many cells they meet in.
void note(std::vector<Conflict> &found, const Epoch &earlier, bool wrote, Range range)
{
    for (Conflict &conflict : found) {
        if (conflict.earlier == earlier && conflict.earlier_wrote == wrote) {
            conflict.range.end = range.end;
            return;
        }
    }
    found.push_back({earlier, wrote, range});
}

}  // namespace

std::vector<Conflict> AccessMap::conflicts(Range range, bool writes, const Epoch &self,
                                           const Clock &before) const
{
    std::vector<Conflict> found;
    const auto ordered = [&](const Epoch &epoch) { return before.covers(epoch) || epoch == self; };
    auto cell = cells_.upper_bound(range.begin);
    if (cell != cells_.begin() && std::prev(cell)->second.end > range.begin) --cell;
    for (; cell != cells_.end() && cell->first < range.end; ++cell) {
        const Range shared{std::max(cell->first, range.begin),
                           std::min(cell->second.end, range.end)};
        if (!ordered(cell->second.write)) note(found, cell->second.write, true, shared);
        if (!writes) continue;
        for (const Epoch &read : cell->second.reads)
            if (!ordered(read)) note(found, read, false, shared);
    }
    return found;
}

void AccessMap::record(Range range, bool writes, const Epoch &epoch, const Clock &before)
{
    if (range.begin >= range.end) return;
    split(range.begin);
    split(range.end);
    if (writes) {
        cells_.erase(cells_.lower_bound(range.begin), cells_.lower_bound(range.end));
        cells_[range.begin] = {range.end, epoch, {}};
    } else {
        add_read(range, epoch, before);
    }
    merge_around(range);
}

void AccessMap::settle(const Clock &host)
{
    for (auto cell = cells_.begin(); cell != cells_.end();) {
        std::vector<Epoch> &reads = cell->second.reads;
        std::erase_if(reads, [&](const Epoch &read) { return host.covers(read); });
        if (host.covers(cell->second.write)) cell->second.write = {};
        const bool settled = cell->second.write.sequence == 0 && reads.empty();
        cell = settled ? cells_.erase(cell) : std::next(cell);
    }
}

void AccessMap::forget(Range range)
{
    split(range.begin);
    split(range.end);
    cells_.erase(cells_.lower_bound(range.begin), cells_.lower_bound(range.end));
}

// A cell begins at `at`, if one lies there at all.
void AccessMap::split(uint64_t at)
{
    auto after = cells_.lower_bound(at);
    if (after == cells_.begin()) return;
    auto cell = std::prev(after);
    if (cell->second.end <= at) return;
    Cell rest = cell->second;
    cell->second.end = at;
    cells_.emplace_hint(after, at, std::move(rest));
}

// The range's ends are ends of cells.
void AccessMap::add_read(Range range, const Epoch &epoch, const Clock &before)
{
    uint64_t at = range.begin;
    auto cell = cells_.lower_bound(at);
    while (at < range.end) {
        if (cell == cells_.end() || cell->first > at) {
            const uint64_t end =
                cell == cells_.end() ? range.end : std::min(range.end, cell->first);
            cell = std::next(cells_.emplace_hint(cell, at, Cell{end, {}, {epoch}}));
            at = end;
            continue;
        }
        std::vector<Epoch> &reads = cell->second.reads;
        std::erase_if(reads, [&](const Epoch &read) {
            return before.covers(read) || read.slot == epoch.slot;
        });
        reads.push_back(epoch);
        at = cell->second.end;
        ++cell;
    }
}

void AccessMap::merge_around(Range range)
{
    auto cell = cells_.lower_bound(range.begin);
    if (cell != cells_.begin()) --cell;
    while (cell != cells_.end() && cell->first <= range.end) {
        const auto next = std::next(cell);
        if (next != cells_.end() && next->first == cell->second.end &&
            next->second.same_history(cell->second)) {
            cell->second.end = next->second.end;
            cells_.erase(next);
        } else {
            cell = next;
        }
    }
}

}  // namespace stepwell::cuda_double
