// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/space.h"

#include <algorithm>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace stepwell::cuda_double {
namespace {

constexpr uint64_t kBytesMin = uint64_t{64} << 30;
constexpr uint64_t kAlignment = uint64_t{2} << 20;
constexpr uint64_t kGuardBytes = kPageBytes;  // running over the end finds nothing

void *as_pointer(uint64_t address)
{
    return reinterpret_cast<void *>(address);
}

uint64_t round_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

uint64_t reserve(uint64_t bytes)
{
    void *range =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return range == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(range);
}

}  // namespace

Space::~Space()
{
    if (base_ != 0) munmap(as_pointer(base_), bytes_);
    if (alias_base_ != 0) munmap(as_pointer(alias_base_), bytes_);
    if (file_ >= 0) close(file_);
}

bool Space::open(uint64_t memory_bytes)
{
    file_ = memfd_create("cuda-double", MFD_CLOEXEC);
    bytes_ = round_up(std::max(kBytesMin, 8 * memory_bytes), kAlignment);
    base_ = reserve(bytes_);
    alias_base_ = reserve(bytes_);
    cursor_ = round_up(base_, kAlignment);
    return file_ >= 0 && base_ != 0 && alias_base_ != 0;
}

void *Space::alias(uint64_t address) const
{
    return as_pointer(contains(address) ? address - base_ + alias_base_ : address);
}

uint64_t Space::take(uint64_t bytes, uint64_t alignment, uint64_t wish)
{
    alignment = std::max(alignment, kPageBytes);
    uint64_t address = 0;
    if (wish % alignment == 0 && is_free(wish, bytes)) address = wish;
    if (address == 0) address = find(cursor_, bytes, alignment);
    if (address == 0) address = find(base_, bytes, alignment);
    if (address == 0) return 0;
    cursor_ = address + bytes + kGuardBytes;
    taken_[address] = bytes + kGuardBytes;
    return address;
}

uint64_t Space::make_pages(uint64_t bytes)
{
    const uint64_t offset = file_end_;
    if (ftruncate(file_, static_cast<off_t>(offset + bytes)) != 0) return UINT64_MAX;
    file_end_ += bytes;
    return offset;
}

void Space::drop_pages(uint64_t offset, uint64_t bytes)
{
    // The memory comes back later where this is refused; nobody sees the bytes again either way.
    (void)fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes));
}

bool Space::show(uint64_t address, uint64_t offset, uint64_t bytes)
{
    return mmap(alias(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
                static_cast<off_t>(offset)) != MAP_FAILED;
}

void Space::hide(uint64_t address, uint64_t bytes)
{
    mmap(alias(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
}

bool Space::is_free(uint64_t address, uint64_t bytes) const
{
    if (!contains(address) || bytes + kGuardBytes > base_ + bytes_ - address) return false;
    const auto next = taken_.upper_bound(address);
    if (next != taken_.end() && next->first < address + bytes + kGuardBytes) return false;
    if (next == taken_.begin()) return true;
    const auto before = std::prev(next);
    return before->first + before->second <= address;
}

uint64_t Space::find(uint64_t from, uint64_t bytes, uint64_t alignment) const
{
    uint64_t address = round_up(from, alignment);
    while (contains(address) && !is_free(address, bytes)) {
        const auto next = taken_.upper_bound(address);
        // Behind the range that begins here or before, else behind the one that is in the way.
        auto blocks = next;
        if (next != taken_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second > address) blocks = before;
        }
        if (blocks == taken_.end()) return 0;
        address = round_up(blocks->first + blocks->second, alignment);
    }
    return contains(address) ? address : 0;
}

}  // namespace stepwell::cuda_double
