// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/shown.h"

#include <algorithm>
#include <iterator>

namespace stepwell::drivers::cuda {

namespace {

Address address_of(const void *pointer)
{
    return reinterpret_cast<Address>(pointer);
}

}  // namespace

Shown::~Shown()
{
    const MutexLock lock(mutex_);
    while (!blocks_.empty()) {
        mapping().unmap(blocks_.begin()->first, arena_.block_bytes());
        blocks_.erase(blocks_.begin());
    }
    for (const auto &[address, range] : ranges_) mapping().unreserve(address, range.bytes);
}

stw_status Shown::reserve(uint64_t bytes, void **address_out)
{
    if (bytes == 0) return STW_ERROR_INVALID;
    if (!arena_.is_mapped()) return STW_ERROR_UNSUPPORTED;
    const uint64_t block = arena_.block_bytes();
    const uint64_t whole = (bytes + block - 1) / block * block;
    const MutexLock lock(mutex_);
    end_ranges();
    Address address = 0;
    const int error = mapping().reserve(&address, whole, block, 0, 0);
    if (error != kSuccess)
        return error == kOutOfMemory ? STW_ERROR_LIMIT : Library::status_of(error);
    ranges_[address] = {whole, false, {}};
    *address_out = reinterpret_cast<void *>(address);
    return STW_OK;
}

stw_status Shown::release(void *address, uint64_t bytes, const uint64_t *marks, uint32_t count)
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

const Shown::Range *Shown::find(Address address) const
{
    const auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return nullptr;
    const auto &[begin, range] = *std::prev(next);
    return address - begin < range.bytes && !range.ends ? &range : nullptr;
}

bool Shown::contains(const void *pointer)
{
    const MutexLock lock(mutex_);
    return find(address_of(pointer)) != nullptr;
}

bool Shown::is_seen(uint32_t block, Address address) const
{
    const auto seen = blocks_.find(address);
    return seen != blocks_.end() && seen->second == block;
}

// One call for neighbours.
int Shown::hide(Address address, uint64_t bytes)
{
    const uint64_t block = arena_.block_bytes();
    for (auto first = blocks_.lower_bound(address);
         first != blocks_.end() && first->first - address < bytes;) {
        const Address begin = first->first;
        Address end = begin;
        auto last = first;
        for (; last != blocks_.end() && last->first == end && end - address < bytes; ++last)
            end += block;
        if (const int error = mapping().unmap(begin, end - begin)) return error;
        first = blocks_.erase(first, last);
    }
    return kSuccess;
}

// Nothing of them is seen there yet. Access is granted once for all.
int Shown::map(uint32_t first, uint32_t blocks, Address address)
{
    const uint64_t block = arena_.block_bytes();
    int error = hide(address, blocks * block);
    for (uint32_t i = 0; i < blocks && error == kSuccess; ++i) {
        const MemoryHandle handle = arena_.handle(first + i);
        error = handle == 0 ? int{kInvalidHandle}
                            : mapping().map(address + i * block, block, 0, handle, 0);
        if (error == kSuccess) blocks_[address + i * block] = first + i;
    }
    if (error == kSuccess) error = arena_.allow(address, blocks * block);
    if (error != kSuccess) hide(address, blocks * block);
    return error;
}

// What is seen already may be in use, and stays.
int Shown::map_all(uint32_t first, uint32_t blocks, Address address)
{
    const uint64_t block = arena_.block_bytes();
    for (uint32_t i = 0; i < blocks;) {
        uint32_t end = i;
        while (end < blocks && !is_seen(first + end, address + end * block)) ++end;
        if (end > i)
            if (const int error = map(first + i, end - i, address + i * block)) return error;
        i = std::max(end, i + 1);
    }
    return kSuccess;
}

stw_status Shown::show(uint32_t first, uint32_t blocks, void *pointer, const uint64_t *marks,
                       uint32_t count)
{
    const Address address = address_of(pointer);
    const uint64_t block = arena_.block_bytes();
    bool others = false;
    {
        const MutexLock lock(mutex_);
        const Range *range = find(address);
        if (!arena_.in_range(first, blocks) || range == nullptr || address % block != 0 ||
            find(address + (blocks - 1) * block) != range)
            return STW_ERROR_INVALID;
        bool lacks = false;
        for (uint32_t i = 0; i < blocks; ++i) {
            const bool here = is_seen(first + i, address + i * block);
            lacks |= !here;
            others |= !here && blocks_.count(address + i * block) != 0;
        }
        if (!lacks) return STW_OK;
    }
    for (uint32_t i = 0; others && i < count; ++i)
        if (const int error = marks_.wait_here(marks[i])) return Library::status_of(error);
    const MutexLock lock(mutex_);
    return Library::status_of(map_all(first, blocks, address));
}

void Shown::forget(uint32_t first, uint32_t blocks)
{
    const MutexLock lock(mutex_);
    for (auto seen = blocks_.begin(); seen != blocks_.end();) {
        const auto next = std::next(seen);
        if (seen->second - first < blocks) hide(seen->first, arena_.block_bytes());
        seen = next;
    }
}

bool Shown::is_over(const Range &range) const
{
    return std::all_of(range.marks.begin(), range.marks.end(),
                       [this](uint64_t mark) { return marks_.passed(mark) == kSuccess; });
}

// Those whose work has passed; the others are looked at again by who reserves or releases next.
void Shown::end_ranges()
{
    for (auto at = ranges_.begin(); at != ranges_.end();) {
        const auto next = std::next(at);
        if (at->second.ends && is_over(at->second)) {
            hide(at->first, at->second.bytes);
            mapping().unreserve(at->first, at->second.bytes);
            ranges_.erase(at);
        }
        at = next;
    }
}

}  // namespace stepwell::drivers::cuda
