// SPDX-License-Identifier: Apache-2.0
// What is mapped where: allocations, reservations, mapped handles, pinned and registered host
// memory, and how much of each device is taken. It knows nothing of streams; who may still use what
// goes away is the tracker's question. Called under the driver's lock.
#pragma once

#include "tests/cuda/double/api.h"
#include "tests/cuda/double/options.h"
#include "tests/cuda/double/order.h"
#include "tests/cuda/double/space.h"

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::cuda_double {

inline constexpr uint64_t kGranularityBytes = uint64_t{2} << 20;

// Physical memory: of cuMemAlloc or cuMemCreate. It goes when it is released and mapped nowhere.
struct Pages {
    int device = 0;
    uint64_t offset = 0;  // in the space's file
    uint64_t bytes = 0;
    uint64_t mappings = 0;
    bool released = false;
};

struct Mapping {
    uint64_t bytes = 0;
    Pages *pages = nullptr;  // owned by the memory
    bool plain = false;      // of cuMemAlloc: reservation, pages and mapping in one
    std::array<uint8_t, kDevicesMax> access{};  // kAccessRead, kAccessReadWrite, by device
};

struct Pinned {
    uint64_t bytes = 0;
    bool allocated = false;  // else registered
    int device = 0;          // whose context was current
};

enum class Place { kDevice, kPinned, kPageable, kNowhere };

// Contiguous bytes of one piece of memory.
struct Piece {
    Address address = 0;
    uint64_t bytes = 0;
    uint64_t key = 0;                  // of the first byte: what the order of accesses is kept by
    const Mapping *mapping = nullptr;  // of device memory
};

class Memory {
public:
    bool open(const Options &options);

    Space &space() { return *space_; }
    uint64_t total() const { return total_; }
    uint64_t used(int device) const { return used_[static_cast<size_t>(device)]; }

    // kNowhere: some of the range is not mapped, or host memory is registered in part.
    Place resolve(Address address, uint64_t bytes, std::vector<Piece> *pieces_out) const;
    // The beginning and size of what holds the address; nothing but success writes.
    Place find(Address address, Address *begin_out, uint64_t *bytes_out, int *device_out) const;

    int allocate(int device, uint64_t bytes, Address *address_out);
    const Mapping *allocation(Address address) const;  // nullptr: none begins there
    void free(Address address);

    int host_allocate(int device, uint64_t bytes, void **address_out);
    int host_register(int device, uint64_t address, uint64_t bytes);
    const Pinned *pinned(uint64_t address) const;  // nullptr: none begins there
    void unpin(uint64_t address);

    int reserve(uint64_t bytes, uint64_t alignment, uint64_t wish, Address *address_out);
    int release_reservation(Address address, uint64_t bytes);
    int create(int device, uint64_t bytes, Handle *handle_out);
    int release(Handle handle);
    int map(Address address, uint64_t bytes, Handle handle);
    // Whether the range is made of whole mappings of handles.
    bool can_unmap(Address address, uint64_t bytes) const;
    uint64_t handles_in(Address address, uint64_t bytes) const;  // that are mapped there
    void unmap(Address address, uint64_t bytes);
    int set_access(Address address, uint64_t bytes, int device, uint8_t access);

    // Lines for what is alive, without the devices in `except`.
    std::vector<std::string> alive(const std::array<bool, kDevicesMax> &except) const;

private:
    Pages *make_pages(int device, uint64_t bytes);
    void drop_unused(Pages *pages);

    std::unique_ptr<Space> space_;
    uint64_t total_ = 0;
    bool unified_ = false;
    std::array<uint64_t, kDevicesMax> used_{};
    std::map<Address, Mapping> mappings_;
    std::map<Address, uint64_t> reservations_;  // to bytes
    std::map<const Pages *, std::unique_ptr<Pages>> pages_;
    std::map<Handle, Pages *> handles_;
    Handle next_handle_ = 1;
    std::map<uint64_t, Pinned> pinned_;
};

}  // namespace stepwell::cuda_double
