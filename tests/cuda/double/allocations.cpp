// SPDX-License-Identifier: Apache-2.0
// Entry points that make memory, take it away, and say what a pointer is.
#include "tests/cuda/double/driver.h"

#include <cstring>

namespace stepwell::cuda_double {
namespace {

// Memory goes away. What may still use it does nothing from now on, so that a misuse is a sentence
// and no crash.
void take_away(Call &call, Address address, uint64_t bytes)
{
    if (call.tracker().gone(address, bytes, call.name())) return;
    call.scheduler().drop(call.lock, address, bytes);
}

bool properties_known(const Call &call, const AllocationProperties *properties)
{
    return properties != nullptr && properties->type == kAllocationPinned &&
           properties->location.type == kLocationDevice && call.is_device(properties->location.id);
}

// The entry points of virtual memory management, where the devices have it.
template <class Body> int enter_mapping(Entry entry, Body &&body)
{
    return enter(entry, Needs::kInit, [&](Call &call) -> int {
        const auto &attributes = call.state.options.attributes;
        const auto given = attributes.find(kVirtualMemoryManagement);
        if (given != attributes.end() && given->second == 0) return kNotSupported;
        return body(call);
    });
}

// What cuPointerGetAttribute says of memory; false: it does not know the attribute.
bool write_attribute(Call &call, void *data, int which, Address address, Place place)
{
    Address begin = address;
    uint64_t bytes = 0;
    int device = 0;
    call.memory().find(address, &begin, &bytes, &device);
    const bool known = place != Place::kPageable;
    const auto write = [&](const auto &value) {
        std::memcpy(data, &value, sizeof value);
        return true;
    };
    void *const host = place == Place::kPinned ? reinterpret_cast<void *>(address) : nullptr;
    switch (which) {
    case kPointerContext:
        return write(known ? &call.state.contexts[static_cast<size_t>(device)] : nullptr);
    case kPointerMemoryType:
        return write(place == Place::kDevice ? kMemoryTypeDevice : known ? kMemoryTypeHost : 0u);
    case kPointerDevicePointer: return write(known ? address : Address{0});
    case kPointerHostPointer: return write(host);
    case kPointerIsManaged: return write(false);
    case kPointerDeviceOrdinal: return write(known ? device : -2);
    case kPointerRangeStart: return write(known ? begin : Address{0});
    case kPointerRangeSize: return write(size_t{bytes});
    case kPointerMapped: return write(known);
    default: return false;
    }
}

Place place_of(Call &call, Address address)
{
    Address begin = 0;
    uint64_t bytes = 0;
    int device = 0;
    return call.memory().find(address, &begin, &bytes, &device);
}

}  // namespace

extern "C" {

int cuMemAlloc_v2(Address *address_out, size_t bytes)
{
    return enter(Entry::cuMemAlloc_v2, Needs::kContext, [&](Call &call) -> int {
        if (address_out == nullptr || bytes == 0) return kInvalidValue;
        return call.memory().allocate(call.context->device, bytes, address_out);
    });
}

int cuMemFree_v2(Address address)
{
    return enter(Entry::cuMemFree_v2, Needs::kContext, [&](Call &call) -> int {
        if (address == 0) return kSuccess;
        const Mapping *allocation = call.memory().allocation(address);
        if (allocation == nullptr) return kInvalidValue;
        const uint64_t bytes = allocation->bytes;
        take_away(call, address, bytes);
        wait_implicitly(call);
        call.memory().free(address);
        return kSuccess;
    });
}

int cuMemGetInfo_v2(size_t *free_out, size_t *total_out)
{
    return enter(Entry::cuMemGetInfo_v2, Needs::kContext, [&](Call &call) -> int {
        if (free_out == nullptr || total_out == nullptr) return kInvalidValue;
        *total_out = call.memory().total();
        *free_out = *total_out - call.memory().used(call.context->device);
        return kSuccess;
    });
}

int cuMemHostAlloc(void **address_out, size_t bytes, unsigned flags)
{
    return enter(Entry::cuMemHostAlloc, Needs::kContext, [&](Call &call) -> int {
        if (address_out == nullptr || bytes == 0 || (flags & ~kHostAllocFlagsKnown) != 0)
            return kInvalidValue;
        wait_implicitly(call);
        return call.memory().host_allocate(call.context->device, bytes, address_out);
    });
}

int cuMemFreeHost(void *address)
{
    return enter(Entry::cuMemFreeHost, Needs::kContext, [&](Call &call) -> int {
        const Pinned *pinned = call.memory().pinned(as_address(address));
        if (pinned == nullptr || !pinned->allocated) return kInvalidValue;
        take_away(call, as_address(address), pinned->bytes);
        wait_implicitly(call);
        call.memory().unpin(as_address(address));
        return kSuccess;
    });
}

int cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    return enter(Entry::cuMemHostRegister_v2, Needs::kContext, [&](Call &call) -> int {
        const uint64_t most = call.state.options.register_max;
        if (address == nullptr || bytes == 0 || (flags & ~kHostRegisterFlagsKnown) != 0 ||
            (most != 0 && bytes > most))
            return kInvalidValue;
        call.state.timing.registers(bytes);
        return call.memory().host_register(call.context->device, as_address(address), bytes);
    });
}

int cuMemHostUnregister(void *address)
{
    return enter(Entry::cuMemHostUnregister, Needs::kContext, [&](Call &call) -> int {
        if (address == nullptr) return kInvalidValue;
        const Pinned *pinned = call.memory().pinned(as_address(address));
        if (pinned == nullptr || pinned->allocated) return kHostMemoryNotRegistered;
        take_away(call, as_address(address), pinned->bytes);
        wait_implicitly(call);
        call.memory().unpin(as_address(address));
        return kSuccess;
    });
}

int cuMemHostGetDevicePointer_v2(Address *device_out, void *address, unsigned flags)
{
    return enter(Entry::cuMemHostGetDevicePointer_v2, Needs::kContext, [&](Call &call) -> int {
        if (device_out == nullptr || flags != 0) return kInvalidValue;
        if (place_of(call, as_address(address)) != Place::kPinned) return kInvalidValue;
        *device_out = as_address(address);
        return kSuccess;
    });
}

int cuPointerGetAttribute(void *data, int attribute, Address address)
{
    return enter(Entry::cuPointerGetAttribute, Needs::kContext, [&](Call &call) -> int {
        const Place place = place_of(call, address);
        if (data == nullptr || place == Place::kPageable || place == Place::kNowhere)
            return kInvalidValue;
        return write_attribute(call, data, attribute, address, place) ? kSuccess : kNotSupported;
    });
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **data, Address address)
{
    return enter(Entry::cuPointerGetAttributes, Needs::kContext, [&](Call &call) -> int {
        if (attributes == nullptr || data == nullptr) return kInvalidValue;
        Place place = place_of(call, address);
        if (place == Place::kNowhere) place = Place::kPageable;  // unknown: zeros, no error
        for (unsigned i = 0; i < count; ++i)
            if (!write_attribute(call, data[i], attributes[i], address, place))
                return kNotSupported;
        return kSuccess;
    });
}

int cuMemAddressReserve(Address *address_out, size_t bytes, size_t alignment, Address wish,
                        unsigned long long flags)
{
    return enter_mapping(Entry::cuMemAddressReserve, [&](Call &call) -> int {
        if (address_out == nullptr || flags != 0) return kInvalidValue;
        return call.memory().reserve(bytes, alignment, wish, address_out);
    });
}

int cuMemAddressFree(Address address, size_t bytes)
{
    return enter_mapping(Entry::cuMemAddressFree, [&](Call &call) -> int {
        return call.memory().release_reservation(address, bytes);
    });
}

int cuMemCreate(Handle *handle_out, size_t bytes, const AllocationProperties *properties,
                unsigned long long flags)
{
    return enter_mapping(Entry::cuMemCreate, [&](Call &call) -> int {
        if (handle_out == nullptr || flags != 0 || !properties_known(call, properties))
            return kInvalidValue;
        return call.memory().create(properties->location.id, bytes, handle_out);
    });
}

int cuMemRelease(Handle handle)
{
    return enter_mapping(Entry::cuMemRelease,
                         [&](Call &call) -> int { return call.memory().release(handle); });
}

int cuMemMap(Address address, size_t bytes, size_t offset, Handle handle, unsigned long long flags)
{
    return enter_mapping(Entry::cuMemMap, [&](Call &call) -> int {
        if (offset != 0 || flags != 0) return kInvalidValue;
        return call.memory().map(address, bytes, handle);
    });
}

int cuMemUnmap(Address address, size_t bytes)
{
    return enter_mapping(Entry::cuMemUnmap, [&](Call &call) -> int {
        if (!call.memory().can_unmap(address, bytes)) return kInvalidValue;
        take_away(call, address, bytes);
        call.state.timing.spend(call.memory().handles_in(address, bytes) *
                                call.state.timing.costs().unmap_ns);
        call.memory().unmap(address, bytes);
        return kSuccess;
    });
}

int cuMemSetAccess(Address address, size_t bytes, const AccessDescription *accesses, size_t count)
{
    return enter_mapping(Entry::cuMemSetAccess, [&](Call &call) -> int {
        if (accesses == nullptr || count == 0) return kInvalidValue;
        for (size_t i = 0; i < count; ++i) {
            const AccessDescription &access = accesses[i];
            const bool known = access.flags == 0 || access.flags == kAccessRead ||
                               access.flags == kAccessReadWrite;
            if (access.location.type != kLocationDevice || !known) return kInvalidValue;
            if (!call.is_device(access.location.id)) return kInvalidDevice;
            const int result = call.memory().set_access(address, bytes, access.location.id,
                                                        static_cast<uint8_t>(access.flags));
            if (result != kSuccess) return result;
        }
        call.state.timing.spend(call.memory().handles_in(address, bytes) *
                                call.state.timing.costs().access_ns);
        return kSuccess;
    });
}

int cuMemGetAllocationGranularity(size_t *bytes_out, const AllocationProperties *properties,
                                  int option)
{
    return enter_mapping(Entry::cuMemGetAllocationGranularity, [&](Call &call) -> int {
        if (bytes_out == nullptr || option < 0 || option > 1) return kInvalidValue;
        if (!properties_known(call, properties)) return kInvalidValue;
        *bytes_out = kGranularityBytes;
        return kSuccess;
    });
}

}  // extern "C"

}  // namespace stepwell::cuda_double
