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

int Shown::hide(Address address)
{
    const auto seen = blocks_.find(address);
    if (seen == blocks_.end()) return kSuccess;
    const int error = mapping().unmap(address, arena_.block_bytes());
    if (error == kSuccess) blocks_.erase(seen);
    return error;
}

// Access is granted once for all: that is what takes long.
int Shown::map(uint32_t first, uint32_t blocks, Address address)
{
    const uint64_t block = arena_.block_bytes();
    for (uint32_t i = 0; i < blocks; ++i) {
        const MemoryHandle handle = arena_.handle(first + i);
        int error = handle == 0 ? int{kInvalidHandle} : hide(address + i * block);
        if (error == kSuccess) error = mapping().map(address + i * block, block, 0, handle, 0);
        if (error != kSuccess) return error;
        blocks_[address + i * block] = first + i;
    }
    return arena_.allow(address, blocks * block);
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
            const auto seen = blocks_.find(address + i * block);
            lacks |= seen == blocks_.end() || seen->second != first + i;
            others |= seen != blocks_.end() && seen->second != first + i;
        }
        if (!lacks) return STW_OK;
    }
    for (uint32_t i = 0; others && i < count; ++i)
        if (const int error = marks_.wait_here(marks[i])) return Library::status_of(error);
    const MutexLock lock(mutex_);
    const int error = map(first, blocks, address);
    if (error == kSuccess) return STW_OK;
    for (uint32_t i = 0; i < blocks; ++i) hide(address + i * block);
    return Library::status_of(error);
}

void Shown::forget(uint32_t first, uint32_t blocks)
{
    const MutexLock lock(mutex_);
    for (auto seen = blocks_.begin(); seen != blocks_.end();) {
        const auto next = std::next(seen);
        if (seen->second - first < blocks) hide(seen->first);
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
            for (uint64_t offset = 0; offset < at->second.bytes; offset += arena_.block_bytes())
                hide(at->first + offset);
            mapping().unreserve(at->first, at->second.bytes);
            ranges_.erase(at);
        }
        at = next;
    }
}

}  // namespace stepwell::drivers::cuda
