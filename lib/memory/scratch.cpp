// SPDX-License-Identifier: Apache-2.0
// Pieces for the program, by one of two allocators.
#include "lib/memory/scratch.h"

#include <stepwell/types.h>

#include <algorithm>
#include <cinttypes>

namespace stepwell::memory {
namespace {

// An arena rounds what it takes from its range by more than slabs do: not worth it in a small one.
constexpr uint64_t kArenaBytesMin = 16u << 20;

std::unique_ptr<JemallocArena> open_arena(char *base, uint64_t bytes)
{
    return bytes < kArenaBytesMin ? nullptr : JemallocArena::open(base, bytes);
}

}  // namespace

Scratch::Scratch(char *base, uint64_t bytes)
    : base_(base), bytes_(bytes), arena_(open_arena(base, bytes)), slabs_(arena_ ? 0 : bytes)
{
    if (arena_) begins_.assign(bytes / Slabs::kSlotBytesMin / 64, 0);
}

bool Scratch::is_piece(uint64_t offset) const
{
    const uint64_t at = offset / Slabs::kSlotBytesMin;
    return offset % Slabs::kSlotBytesMin == 0 && (begins_[at / 64] >> (at % 64) & 1) != 0;
}

void Scratch::mark(uint64_t offset, bool piece)
{
    const uint64_t at = offset / Slabs::kSlotBytesMin;
    const uint64_t bit = uint64_t{1} << (at % 64);
    begins_[at / 64] = piece ? begins_[at / 64] | bit : begins_[at / 64] & ~bit;
}

Status Scratch::refusal(uint64_t bytes, uint64_t align_bytes) const
{
    const uint64_t free = bytes_ - std::min(bytes_, used_bytes_);
    const std::string longest =
        arena_ ? "" : format_text(" (%s in one piece)", bytes_text(slabs_.largest_bytes()).c_str());
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "host_scratch_bytes cannot hold it: %s needed, aligned to %" PRIu64
        "; host_scratch_bytes %s%s, in %" PRIu64
        " pieces; give pieces back with stw_host_free, or raise it when opening the runtime",
        bytes_text(bytes).c_str(), align_bytes,
        sum_text({{used_bytes_, "given out"}, {free, "free"}}).c_str(), longest.c_str(), pieces_);
    ErrorDetail &detail = status.mutable_detail();
    detail.tier = STW_TIER_HOST;
    detail.needed_bytes = bytes;
    detail.free_bytes = free;
    detail.pinned_bytes = used_bytes_;
    return status;
}

Result<void *> Scratch::take(uint64_t bytes, uint64_t align_bytes)
{
    MutexLock lock(mutex_);
    if (!arena_) {
        const uint64_t offset = slabs_.take(bytes, align_bytes);
        used_bytes_ = slabs_.used_bytes();
        pieces_ = slabs_.pieces();
        if (offset == Slabs::kNowhere) return refusal(bytes, align_bytes);
        return static_cast<void *>(base_ + offset);
    }
    // Pieces begin where there is a bit for it.
    const uint64_t align = std::max(align_bytes, Slabs::kSlotBytesMin);
    void *pointer = bytes > bytes_ ? nullptr : arena_->take(bytes, align);
    if (!pointer) return refusal(bytes, align_bytes);
    mark(static_cast<uint64_t>(static_cast<char *>(pointer) - base_), true);
    used_bytes_ += arena_->bytes_of(pointer);
    ++pieces_;
    return pointer;
}

Status Scratch::give(void *pointer)
{
    MutexLock lock(mutex_);
    const uint64_t offset =
        reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(base_);
    const bool inside = offset < bytes_;
    bool known = false;
    if (!arena_) {
        known = inside && slabs_.give(offset);
        used_bytes_ = slabs_.used_bytes();
        pieces_ = slabs_.pieces();
    } else if (inside && is_piece(offset)) {
        known = true;
        mark(offset, false);
        used_bytes_ -= arena_->bytes_of(pointer);
        --pieces_;
        arena_->give(pointer);
    }
    if (known) return {};
    return Status::error(STW_ERROR_INVALID,
                         "%p is no piece of stw_host_alloc of this runtime: it %s; nothing was "
                         "freed",
                         pointer,
                         inside ? "was given back before, or lies inside of one"
                                : "lies outside of the runtime's scratch memory");
}

Scratch::Usage Scratch::usage() const
{
    MutexLock lock(mutex_);
    return {bytes_, used_bytes_, pieces_};
}

uint64_t Scratch::metadata_bytes() const
{
    MutexLock lock(mutex_);
    return slabs_.metadata_bytes() + begins_.capacity() * sizeof(uint64_t);
}

}  // namespace stepwell::memory
