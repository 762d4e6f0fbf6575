// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/alias_ranges.h"

#include <algorithm>
#include <iterator>

namespace stepwell::drivers::cuda {

AliasRanges::~AliasRanges()
{
    const MutexLock lock(mutex_);
    for (const auto &[address, piece] : pieces_)
        mapping().unmap(address, piece.blocks * arena_.block_bytes());
    for (const auto &[address, range] : ranges_)
        mapping().unreserve(address - margin(), range.bytes + 2 * margin());
}

uint64_t AliasRanges::margin() const
{
    return arena_.largest_piece() - arena_.block_bytes();
}

stw_status AliasRanges::reserve(uint64_t bytes, void **address_out)
{
    if (bytes == 0) return STW_ERROR_INVALID;
    if (!arena_.is_mapped()) return STW_ERROR_UNSUPPORTED;
    const uint64_t block = arena_.block_bytes();
    const uint64_t whole = (bytes + block - 1) / block * block;
    const MutexLock lock(mutex_);
    end_ranges();
    Address address = 0;
    const int error = mapping().reserve(&address, whole + 2 * margin(), block, 0, 0);
    if (error != kSuccess)
        return error == kOutOfMemory ? STW_ERROR_LIMIT : context_.library().failed(error);
    ranges_[address + margin()] = {whole, false, {}};
    *address_out = reinterpret_cast<void *>(address + margin());
    return STW_OK;
}

stw_status AliasRanges::release(void *address, uint64_t bytes, const uint64_t *marks,
                                uint32_t count)
{
    const uint64_t block = arena_.block_bytes();
    const MutexLock lock(mutex_);
    const auto found = ranges_.find(address_of(address));
    if (found == ranges_.end() || found->second.ends ||
        found->second.bytes != (bytes + block - 1) / block * block)
        return STW_ERROR_INVALID;
    found->second.ends = true;
    found->second.marks.assign(marks, marks + count);
    end_ranges();
    return STW_OK;
}

AliasRanges::Ranges::const_iterator AliasRanges::find(Address address) const
{
    const auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return ranges_.end();
    const auto found = std::prev(next);
    const Range &range = found->second;
    return address - found->first < range.bytes && !range.ends ? found : ranges_.end();
}

bool AliasRanges::contains(const void *pointer)
{
    const MutexLock lock(mutex_);
    return find(address_of(pointer)) != ranges_.end();
}

bool AliasRanges::is_mapped(uint32_t block, Address address) const
{
    const auto seen = pieces_.find(address);
    return seen != pieces_.end() && seen->second.first == block;
}

// One call for pieces that are side by side.
int AliasRanges::unmap(Address address, uint64_t bytes)
{
    const uint64_t block = arena_.block_bytes();
    for (auto first = pieces_.lower_bound(address);
         first != pieces_.end() && first->first - address < bytes;) {
        const Address begin = first->first;
        Address end = begin;
        auto last = first;
        for (; last != pieces_.end() && last->first == end && end - address < bytes; ++last)
            end += last->second.blocks * block;
        if (const int error = mapping().unmap(begin, end - begin)) return error;
        first = pieces_.erase(first, last);
    }
    return kSuccess;
}

// Maps the pieces from block `first` up to block `end`, the first of them at `address`. Blocks that
// are mapped there may be unmapped. Access is granted by one call for all of them.
int AliasRanges::map(uint32_t first, uint32_t end, Address address)
{
    const uint64_t block = arena_.block_bytes();
    const uint64_t bytes = (end - first) * block;
    int error = unmap(address, bytes);
    Address at = address;
    while (first < end && error == kSuccess) {
        const Arena::Piece piece = arena_.piece_of(first);
        const MemoryHandle handle = arena_.handle(piece.first);
        error = handle == 0 ? int{kInvalidHandle}
                            : mapping().map(at, piece.blocks * block, 0, handle, 0);
        if (error == kSuccess) pieces_[at] = piece;
        first += piece.blocks;
        at += piece.blocks * block;
    }
    if (error == kSuccess) error = arena_.allow(address, bytes);
    if (error != kSuccess) unmap(address, bytes);
    return error;
}

// Pieces that are mapped already may be in use, and stay mapped.
int AliasRanges::map_all(uint32_t first, uint32_t end, Address address)
{
    const uint64_t block = arena_.block_bytes();
    while (first < end) {
        uint32_t last = first;
        Address at = address;
        while (last < end && !is_mapped(last, at)) {
            const uint32_t blocks = arena_.piece_of(last).blocks;
            last += blocks;
            at += blocks * block;
        }
        if (last > first)
            if (const int error = map(first, last, address)) return error;
        const uint32_t blocks = last < end ? arena_.piece_of(last).blocks : 0;
        first = last + blocks;
        address = at + blocks * block;
    }
    return kSuccess;
}

// Rounds to whole pieces. False: the arguments are invalid.
bool AliasRanges::prepare(uint32_t first, uint32_t blocks, Address address, Wanted *out) const
{
    const uint64_t block = arena_.block_bytes();
    const auto range = find(address);
    if (!arena_.in_range(first, blocks) || range == ranges_.end() || address % block != 0 ||
        find(address + (blocks - 1) * block) != range)
        return false;
    const Arena::Piece tail = arena_.piece_of(first + blocks - 1);
    out->first = arena_.piece_of(first).first;
    out->end = tail.first + tail.blocks;
    out->address = address - (first - out->first) * block;
    out->range = range->first - margin();
    out->range_bytes = range->second.bytes + 2 * margin();
    out->moves = has_other_run(out->range, out->range_bytes, address - first * block);
    Address at = out->address;
    for (uint32_t next = out->first; next < out->end;) {
        const uint32_t count = arena_.piece_of(next).blocks;
        const bool here = is_mapped(next, at);
        out->lacks |= !here;
        out->waits |= !here && pieces_.count(at) != 0;
        next += count;
        at += count * block;
    }
    out->waits |= out->moves;
    return true;
}

stw_status AliasRanges::map_blocks(uint32_t first, uint32_t blocks, void *pointer,
                                   const uint64_t *marks, uint32_t count)
{
    Wanted wanted;
    {
        const MutexLock lock(mutex_);
        if (!prepare(first, blocks, address_of(pointer), &wanted)) return STW_ERROR_INVALID;
        if (!wanted.lacks) return STW_OK;
    }
    for (uint32_t i = 0; wanted.waits && i < count; ++i)
        if (const int error = marks_.wait_here(marks[i])) return context_.library().failed(error);
    const MutexLock lock(mutex_);
    wanted = {};
    if (!prepare(first, blocks, address_of(pointer), &wanted)) return STW_ERROR_INVALID;
    int error = wanted.moves ? unmap(wanted.range, wanted.range_bytes) : int{kSuccess};
    if (error == kSuccess) error = map_all(wanted.first, wanted.end, wanted.address);
    return context_.library().failed(error);
}

// Whether the range has blocks of another run than the one that has block 0 at address `zero`.
bool AliasRanges::has_other_run(Address begin, uint64_t bytes, Address zero) const
{
    if (!arena_.is_permanent()) return false;
    const auto seen = pieces_.lower_bound(begin);
    return seen != pieces_.end() && seen->first - begin < bytes &&
           seen->first - seen->second.first * arena_.block_bytes() != zero;
}

void AliasRanges::forget(uint32_t first, uint32_t blocks)
{
    const MutexLock lock(mutex_);
    for (auto seen = pieces_.begin(); seen != pieces_.end();) {
        const auto next = std::next(seen);
        if (seen->second.first - first < blocks) unmap(seen->first, arena_.block_bytes());
        seen = next;
    }
}

bool AliasRanges::is_over(const Range &range) const
{
    return std::all_of(range.marks.begin(), range.marks.end(),
                       [this](uint64_t mark) { return marks_.passed(mark) == kSuccess; });
}

// Ends ranges whose work has passed; the next reserve or release checks the others again.
void AliasRanges::end_ranges()
{
    for (auto at = ranges_.begin(); at != ranges_.end();) {
        const auto next = std::next(at);
        if (at->second.ends && is_over(at->second)) {
            const Address begin = at->first - margin();
            const uint64_t bytes = at->second.bytes + 2 * margin();
            unmap(begin, bytes);
            mapping().unreserve(begin, bytes);
            ranges_.erase(at);
        }
        at = next;
    }
}

}  // namespace stepwell::drivers::cuda
