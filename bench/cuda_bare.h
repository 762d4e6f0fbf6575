// SPDX-License-Identifier: Apache-2.0
// What cuda_probe calls of CUDA's driver beside what gpu::open_driver takes of it.
#pragma once

#include "tests/cuda/driver_calls.h"

#include <cstddef>

namespace bench {

using stepwell::gpu::Address;
using Handle = unsigned long long;
struct Location {
    int type = 1;  // of a device
    int id = 0;
};
struct Properties {  // CUmemAllocationProp
    int type = 1;    // pinned
    int handle_types = 0;
    Location location;
    void *meta_data = nullptr;
    unsigned char flags[8] = {};
};
struct Access {  // CUmemAccessDesc
    Location location;
    int flags = 3;  // read and write
};
struct CopyAttributes {    // CUmemcpyAttributes
    int source_order = 1;  // of the stream
    int hints[4] = {};
    unsigned flags = 0;
};

// Null where this driver has none of that name.
struct Bare {
    int (*driver_version)(int *version);
    int (*attribute)(int *value, int attribute, int device);
    int (*memory_info)(size_t *free_bytes, size_t *total_bytes);
    int (*context_synchronize)();
    int (*host_register)(void *base, size_t bytes, unsigned flags);
    int (*host_unregister)(void *base);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_destroy)(void *event);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    int (*stream_id)(void *stream, unsigned long long *id);
    int (*granularity)(size_t *bytes, const Properties *properties, int option);
    int (*reserve)(Address *address, size_t bytes, size_t alignment, Address wish, Handle flags);
    int (*unreserve)(Address address, size_t bytes);
    int (*create)(Handle *handle, size_t bytes, const Properties *properties, Handle flags);
    int (*release)(Handle handle);
    int (*map)(Address address, size_t bytes, size_t offset, Handle handle, Handle flags);
    int (*unmap)(Address address, size_t bytes);
    int (*set_access)(Address address, size_t bytes, const Access *access, size_t count);
    int (*batch)(Address *to, Address *from, size_t *bytes, size_t count,
                 CopyAttributes *attributes, size_t *first, size_t attribute_count, size_t *failed,
                 void *stream);
    int (*batch_v2)(Address *to, Address *from, size_t *bytes, size_t count,
                    CopyAttributes *attributes, size_t *first, size_t attribute_count,
                    void *stream);
};

Bare open_bare();

}  // namespace bench
