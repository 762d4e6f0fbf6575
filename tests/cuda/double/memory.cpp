// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/memory.h"

#include "tests/cuda/double/report.h"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>

namespace stepwell::cuda_double {
namespace {

// Device memory is named by its place in the file, out of reach of any host address.
constexpr uint64_t kDeviceKey = uint64_t{1} << 63;

uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

void *as_pointer(uint64_t address)
{
    return reinterpret_cast<void *>(address);
}

// The entry that holds the address, of a map from beginnings to things with a size.
template <class Map, class Bytes> auto holder(Map &map, uint64_t address, Bytes bytes_of)
{
    auto entry = map.upper_bound(address);
    if (entry == map.begin()) return map.end();
    --entry;
    return address - entry->first < bytes_of(entry->second) ? entry : map.end();
}

constexpr auto kBytes = [](const auto &entry) { return entry.bytes; };

}  // namespace

bool Memory::open(const Options &options)
{
    total_ = options.memory;
    unified_ = options.unified != 0;
    space_ = std::make_unique<Space>();
    return space_->open(total_ * std::max<uint64_t>(options.devices, 1));
}

Place Memory::resolve(Address address, uint64_t bytes, std::vector<Piece> *pieces_out) const
{
    pieces_out->clear();
    if (!space_->contains(address)) {
        const auto entry = holder(pinned_, address, kBytes);
        if (entry != pinned_.end()) {
            if (bytes > entry->second.bytes - (address - entry->first)) return Place::kNowhere;
            pieces_out->push_back({address, bytes, address, nullptr});
            return Place::kPinned;
        }
        const auto next = pinned_.upper_bound(address);
        if (next != pinned_.end() && next->first - address < bytes) return Place::kNowhere;
        if (!unified_) return Place::kPageable;
        pieces_out->push_back({address, bytes, address, nullptr});
        return Place::kPinned;
    }
    while (bytes > 0) {
        const auto entry = holder(mappings_, address, kBytes);
        if (entry == mappings_.end()) return Place::kNowhere;
        const Mapping &mapping = entry->second;
        const uint64_t into = address - entry->first;
        const uint64_t here = std::min(bytes, mapping.bytes - into);
        pieces_out->push_back({address, here, kDeviceKey + mapping.pages->offset + into, &mapping});
        address += here;
        bytes -= here;
    }
    return Place::kDevice;
}

Place Memory::find(Address address, Address *begin_out, uint64_t *bytes_out, int *device_out) const
{
    if (!space_->contains(address)) {
        const auto entry = holder(pinned_, address, kBytes);
        if (entry == pinned_.end()) return Place::kPageable;
        *begin_out = entry->first;
        *bytes_out = entry->second.bytes;
        *device_out = entry->second.device;
        return Place::kPinned;
    }
    const auto entry = holder(mappings_, address, kBytes);
    if (entry == mappings_.end()) return Place::kNowhere;
    *begin_out = entry->first;
    *bytes_out = entry->second.bytes;
    *device_out = entry->second.pages->device;
    return Place::kDevice;
}

int Memory::allocate(int device, uint64_t bytes, Address *address_out)
{
    Pages *pages = make_pages(device, whole_pages(bytes));
    if (pages == nullptr) return kOutOfMemory;
    pages->released = true;  // there is no handle
    const uint64_t address = space_->take(pages->bytes, kPageBytes, 0);
    if (address == 0 || !space_->show(address, pages->offset, pages->bytes)) {
        if (address != 0) space_->give(address);
        drop_unused(pages);
        return kOutOfMemory;
    }
    Mapping mapping{bytes, pages, true, {}};
    mapping.access[static_cast<size_t>(device)] = kAccessReadWrite;
    pages->mappings = 1;
    mappings_[address] = mapping;
    *address_out = address;
    return kSuccess;
}

const Mapping *Memory::allocation(Address address) const
{
    const auto entry = mappings_.find(address);
    return entry != mappings_.end() && entry->second.plain ? &entry->second : nullptr;
}

void Memory::free(Address address)
{
    const auto entry = mappings_.find(address);
    Pages *pages = entry->second.pages;
    space_->hide(address, pages->bytes);
    space_->give(address);
    mappings_.erase(entry);
    --pages->mappings;
    drop_unused(pages);
}

int Memory::host_allocate(int device, uint64_t bytes, void **address_out)
{
    void *address = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return kOutOfMemory;
    pinned_[reinterpret_cast<uintptr_t>(address)] = {bytes, true, device};
    *address_out = address;
    return kSuccess;
}

int Memory::host_register(int device, uint64_t address, uint64_t bytes)
{
    const auto next = pinned_.upper_bound(address);
    const bool overlaps = holder(pinned_, address, kBytes) != pinned_.end() ||
                          (next != pinned_.end() && next->first - address < bytes);
    if (overlaps) return kHostMemoryAlreadyRegistered;
    if (space_->contains(address)) return kInvalidValue;
    const uint64_t page = address / kPageBytes * kPageBytes;
    // It fails with ENOMEM where something is not mapped, and does nothing else.
    if (msync(as_pointer(page), address - page + bytes, MS_ASYNC) != 0 && errno == ENOMEM)
        return kInvalidValue;
    pinned_[address] = {bytes, false, device};
    return kSuccess;
}

const Pinned *Memory::pinned(uint64_t address) const
{
    const auto entry = pinned_.find(address);
    return entry != pinned_.end() ? &entry->second : nullptr;
}

void Memory::unpin(uint64_t address)
{
    const auto entry = pinned_.find(address);
    if (entry->second.allocated) munmap(as_pointer(address), whole_pages(entry->second.bytes));
    pinned_.erase(entry);
}

std::vector<std::string> Memory::alive(const std::array<bool, kDevicesMax> &except) const
{
    std::vector<std::string> lines;
    for (const auto &[address, mapping] : mappings_) {
        if (except[static_cast<size_t>(mapping.pages->device)]) continue;
        lines.push_back(mapping.plain
                            ? text("An allocation of %llu bytes at 0x%llx was not freed.",
                                   static_cast<unsigned long long>(mapping.bytes), address)
                            : text("A mapping of %llu bytes at 0x%llx was not unmapped.",
                                   static_cast<unsigned long long>(mapping.bytes), address));
    }
    for (const auto &[handle, pages] : handles_)
        if (!except[static_cast<size_t>(pages->device)])
            lines.push_back(text("The handle %llu of %llu bytes was not released.", handle,
                                 static_cast<unsigned long long>(pages->bytes)));
    for (const auto &[address, bytes] : reservations_)
        lines.push_back(text("A reservation of %llu bytes at 0x%llx was not freed.",
                             static_cast<unsigned long long>(bytes), address));
    for (const auto &[address, pinned] : pinned_)
        if (!except[static_cast<size_t>(pinned.device)])
            lines.push_back(text("Host memory of %llu bytes at 0x%llx was not %s.",
                                 static_cast<unsigned long long>(pinned.bytes),
                                 static_cast<unsigned long long>(address),
                                 pinned.allocated ? "freed" : "unregistered"));
    return lines;
}

Pages *Memory::make_pages(int device, uint64_t bytes)
{
    uint64_t &used = used_[static_cast<size_t>(device)];
    if (bytes > total_ - used) return nullptr;
    const uint64_t offset = space_->make_pages(bytes);
    if (offset == UINT64_MAX) return nullptr;
    used += bytes;
    auto pages = std::make_unique<Pages>(Pages{device, offset, bytes, 0, false});
    Pages *made = pages.get();
    pages_[made] = std::move(pages);
    return made;
}

void Memory::drop_unused(Pages *pages)
{
    if (!pages->released || pages->mappings > 0) return;
    used_[static_cast<size_t>(pages->device)] -= pages->bytes;
    space_->drop_pages(pages->offset, pages->bytes);
    pages_.erase(pages);
}

}  // namespace stepwell::cuda_double
