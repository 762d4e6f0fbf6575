// SPDX-License-Identifier: Apache-2.0
// Runs are found in bins by length and join their free neighbours when they are given back; a page
// becomes a slab with its first slot and a free run again with its last.
#include "lib/memory/slabs.h"

#include "lib/support/assert.h"

#include <algorithm>
#include <bit>

namespace stepwell::memory {
namespace {

constexpr uint64_t slot_bytes(uint32_t slab_class)
{
    return Slabs::kSlotBytesMin << slab_class;
}

constexpr uint64_t all_slots(uint32_t slab_class)
{
    const uint64_t slots = Slabs::kPageBytes / slot_bytes(slab_class);
    return slots == 64 ? UINT64_MAX : (uint64_t{1} << slots) - 1;
}

}  // namespace

Slabs::Slabs(uint64_t bytes) : pages_(bytes / kPageBytes)
{
    STW_ASSERT(pages_.size() < kNone);
    free_.fill(kNone);
    slabs_.fill(kNone);
    if (!pages_.empty()) add_free(0, static_cast<uint32_t>(pages_.size()));
}

void Slabs::link(uint32_t *head, uint32_t page)
{
    pages_[page].previous = kNone;
    pages_[page].next = *head;
    if (*head != kNone) pages_[*head].previous = page;
    *head = page;
}

void Slabs::unlink(uint32_t *head, uint32_t page)
{
    const Page &at = pages_[page];
    (at.previous == kNone ? *head : pages_[at.previous].next) = at.next;
    if (at.next != kNone) pages_[at.next].previous = at.previous;
}

// Of lengths from 1 on: 1, 2-3, 4-7, ...
uint32_t Slabs::bin_of(uint32_t length)
{
    return static_cast<uint32_t>(std::bit_width(length)) - 1;
}

void Slabs::add_free(uint32_t first, uint32_t length)
{
    if (length == 0) return;
    pages_[first].state = pages_[first + length - 1].state = State::kFree;
    pages_[first].length = pages_[first + length - 1].length = length;
    link(&free_[bin_of(length)], first);
}

void Slabs::remove_free(uint32_t first)
{
    unlink(&free_[bin_of(pages_[first].length)], first);
}

// A free run with room for `length` pages at a multiple of `align`; kNone when there is none.
uint32_t Slabs::find_run(uint32_t length, uint32_t align, uint32_t *at_out) const
{
    for (uint32_t bin = bin_of(length); bin < kBins; ++bin) {
        for (uint32_t first = free_[bin]; first != kNone; first = pages_[first].next) {
            const uint64_t at = (uint64_t{first} + align - 1) / align * align;
            if (at + length > uint64_t{first} + pages_[first].length) continue;
            *at_out = static_cast<uint32_t>(at);
            return first;
        }
    }
    return kNone;
}

uint32_t Slabs::take_run(uint32_t length, uint32_t align)
{
    uint32_t at = 0;
    const uint32_t first = find_run(length, align, &at);
    if (first == kNone) return kNone;
    const uint32_t end = first + pages_[first].length;
    remove_free(first);
    add_free(first, at - first);
    add_free(at + length, end - at - length);
    for (uint32_t page = at; page < at + length; ++page) pages_[page].state = State::kInside;
    pages_[at].state = State::kRun;
    pages_[at].length = length;
    return at;
}

void Slabs::give_run(uint32_t first)
{
    uint32_t end = first + pages_[first].length;
    pages_[first].state = State::kInside;
    if (end < pages_.size() && pages_[end].state == State::kFree) {
        const uint32_t behind = end;
        end += pages_[behind].length;
        remove_free(behind);
    }
    if (first > 0 && pages_[first - 1].state == State::kFree) {
        first -= pages_[first - 1].length;
        remove_free(first);
    }
    add_free(first, end - first);
}

uint64_t Slabs::take_slot(uint32_t slab_class)
{
    uint32_t page = slabs_[slab_class];
    if (page == kNone) {
        page = take_run(1, 1);
        if (page == kNone) return kNowhere;
        pages_[page].state = State::kSlab;
        pages_[page].slab_class = static_cast<uint8_t>(slab_class);
        pages_[page].slots = 0;
        link(&slabs_[slab_class], page);
    }
    const auto slot = static_cast<uint32_t>(std::countr_one(pages_[page].slots));
    pages_[page].slots |= uint64_t{1} << slot;
    if (pages_[page].slots == all_slots(slab_class)) unlink(&slabs_[slab_class], page);
    return page * kPageBytes + slot * slot_bytes(slab_class);
}

bool Slabs::give_slot(uint32_t page, uint64_t within)
{
    Page &slab = pages_[page];
    const uint64_t bytes = slot_bytes(slab.slab_class);
    const uint64_t bit = uint64_t{1} << (within / bytes);
    if (within % bytes != 0 || (slab.slots & bit) == 0) return false;
    uint32_t *head = &slabs_[slab.slab_class];
    if (slab.slots == all_slots(slab.slab_class)) link(head, page);
    slab.slots &= ~bit;
    if (slab.slots == 0) {
        unlink(head, page);
        give_run(page);
    }
    used_bytes_ -= bytes;
    --pieces_;
    return true;
}

uint64_t Slabs::take(uint64_t bytes, uint64_t align_bytes)
{
    const uint64_t least = std::max({bytes, align_bytes, kSlotBytesMin});
    if (least > pages_.size() * kPageBytes) return kNowhere;
    uint64_t offset = 0;
    uint64_t rounded = std::bit_ceil(least);
    if (rounded < kPageBytes) {
        offset = take_slot(static_cast<uint32_t>(std::countr_zero(rounded / kSlotBytesMin)));
    } else {
        const auto length = static_cast<uint32_t>((bytes + kPageBytes - 1) / kPageBytes);
        const uint32_t run = take_run(
            length, static_cast<uint32_t>(std::max(align_bytes / kPageBytes, uint64_t{1})));
        offset = run == kNone ? kNowhere : run * kPageBytes;
        rounded = length * kPageBytes;
    }
    if (offset == kNowhere) return kNowhere;
    used_bytes_ += rounded;
    ++pieces_;
    return offset;
}

bool Slabs::give(uint64_t offset)
{
    if (offset >= pages_.size() * kPageBytes) return false;
    const auto page = static_cast<uint32_t>(offset / kPageBytes);
    const uint64_t within = offset % kPageBytes;
    if (pages_[page].state == State::kSlab) return give_slot(page, within);
    if (pages_[page].state != State::kRun || within != 0) return false;
    used_bytes_ -= pages_[page].length * kPageBytes;
    --pieces_;
    give_run(page);
    return true;
}

uint64_t Slabs::largest_bytes() const
{
    for (uint32_t bin = kBins; bin-- > 0;) {
        uint32_t longest = 0;
        for (uint32_t at = free_[bin]; at != kNone; at = pages_[at].next) {
            longest = std::max(longest, pages_[at].length);
        }
        if (longest > 0) return longest * kPageBytes;
    }
    return 0;
}

}  // namespace stepwell::memory
