// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA driver API that place memory at chosen addresses. A driver that lacks
// one of them is treated as lacking all.
#pragma once

#include "drivers/cuda/api.h"

namespace stepwell::drivers::cuda {

using MemoryHandle = unsigned long long;  // CUmemGenericAllocationHandle

inline constexpr int kAttributeMapping = 102;      // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
inline constexpr int kAttributeRdmaMapping = 110;  // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
inline constexpr int kGranularityMinimum = 0;

struct MemoryLocation {  // CUmemLocation
    int type = 1;        // DEVICE
    int id = 0;
};
struct MemoryProperties {  // CUmemAllocationProp
    int type = 1;          // PINNED
    int handle_types = 0;
    MemoryLocation location;
    void *win32_meta_data = nullptr;
    unsigned char compression_type = 0;
    unsigned char rdma_capable = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
};
struct MemoryAccess {  // CUmemAccessDesc
    MemoryLocation location;
    int flags = 3;  // READWRITE
};

struct MappingApi {
    bool there = false;
    Function<int(int *value, int attribute, int device)> attribute;
    Function<int(size_t *bytes, const MemoryProperties *properties, int option)> granularity;
    Function<int(Address *address, size_t bytes, size_t alignment, Address wish,
                 unsigned long long flags)>
        reserve;
    Function<int(Address address, size_t bytes)> unreserve;
    Function<int(MemoryHandle *handle, size_t bytes, const MemoryProperties *properties,
                 unsigned long long flags)>
        create;
    Function<int(MemoryHandle handle)> release;
    Function<int(Address address, size_t bytes, size_t offset, MemoryHandle handle,
                 unsigned long long flags)>
        map;
    Function<int(Address address, size_t bytes)> unmap;
    Function<int(Address address, size_t bytes, const MemoryAccess *access, size_t count)>
        set_access;
};

}  // namespace stepwell::drivers::cuda
