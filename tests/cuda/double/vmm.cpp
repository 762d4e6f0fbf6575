// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: reservations, handles, and which of them lie where.
#include "tests/cuda/double/memory.h"

#include <bit>
#include <iterator>

namespace stepwell::cuda_double {

int Memory::reserve(uint64_t bytes, uint64_t alignment, uint64_t wish, Address *address_out)
{
    if (bytes == 0 || bytes % kGranularityBytes != 0) return kInvalidValue;
    if (alignment != 0 && !std::has_single_bit(alignment)) return kInvalidValue;
    const uint64_t address = space_->take(bytes, std::max(alignment, kGranularityBytes), wish);
    if (address == 0) return kOutOfMemory;
    reservations_[address] = bytes;
    *address_out = address;
    return kSuccess;
}

int Memory::release_reservation(Address address, uint64_t bytes)
{
    const auto entry = reservations_.find(address);
    if (entry == reservations_.end() || entry->second != bytes) return kInvalidValue;
    const auto mapped = mappings_.lower_bound(address);
    if (mapped != mappings_.end() && mapped->first - address < bytes) return kInvalidValue;
    space_->give(address);
    reservations_.erase(entry);
    return kSuccess;
}

int Memory::create(int device, uint64_t bytes, Handle *handle_out)
{
    if (bytes == 0 || bytes % kGranularityBytes != 0) return kInvalidValue;
    Pages *pages = make_pages(device, bytes);
    if (pages == nullptr) return kOutOfMemory;
    handles_[next_handle_] = pages;
    *handle_out = next_handle_++;
    return kSuccess;
}

int Memory::release(Handle handle)
{
    const auto entry = handles_.find(handle);
    if (entry == handles_.end()) return kInvalidValue;
    Pages *pages = entry->second;
    handles_.erase(entry);
    pages->released = true;
    drop_unused(pages);
    return kSuccess;
}

// No offset can be given, and cuda.h promises nothing of a part of a handle: only wholes are taken.
int Memory::map(Address address, uint64_t bytes, Handle handle)
{
    const auto entry = handles_.find(handle);
    if (entry == handles_.end() || bytes != entry->second->bytes ||
        address % kGranularityBytes != 0)
        return kInvalidValue;
    const auto next = reservations_.upper_bound(address);
    if (next == reservations_.begin()) return kInvalidValue;
    const auto [begin, reserved] = *std::prev(next);
    if (address - begin >= reserved || bytes > reserved - (address - begin)) return kInvalidValue;
    const auto above = mappings_.upper_bound(address);
    if (above != mappings_.end() && above->first - address < bytes) return kAlreadyMapped;
    if (above != mappings_.begin()) {
        const auto below = std::prev(above);
        if (address - below->first < below->second.bytes) return kAlreadyMapped;
    }
    Pages *pages = entry->second;
    if (!space_->show(address, pages->offset, bytes)) return kOutOfMemory;
    ++pages->mappings;
    mappings_[address] = {bytes, pages, false, {}};
    return kSuccess;
}

bool Memory::can_unmap(Address address, uint64_t bytes) const
{
    if (bytes == 0) return false;
    while (bytes > 0) {
        const auto entry = mappings_.find(address);
        if (entry == mappings_.end() || entry->second.plain || entry->second.bytes > bytes)
            return false;
        address += entry->second.bytes;
        bytes -= entry->second.bytes;
    }
    return true;
}

uint64_t Memory::handles_in(Address address, uint64_t bytes) const
{
    const auto begin = mappings_.lower_bound(address);
    const auto end = mappings_.lower_bound(address + bytes);
    return static_cast<uint64_t>(std::distance(begin, end));
}

void Memory::unmap(Address address, uint64_t bytes)
{
    const Address end = address + bytes;
    for (auto entry = mappings_.find(address); entry != mappings_.end() && entry->first < end;
         entry = mappings_.erase(entry)) {
        Pages *pages = entry->second.pages;
        space_->hide(entry->first, entry->second.bytes);
        --pages->mappings;
        drop_unused(pages);
    }
}

int Memory::set_access(Address address, uint64_t bytes, int device, uint8_t access)
{
    if (!can_unmap(address, bytes)) return kInvalidValue;
    const Address end = address + bytes;
    for (auto entry = mappings_.find(address); entry != mappings_.end() && entry->first < end;
         ++entry)
        entry->second.access[static_cast<size_t>(device)] = access;
    return kSuccess;
}

}  // namespace stepwell::cuda_double
