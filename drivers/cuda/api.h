// SPDX-License-Identifier: Apache-2.0
// What is used of the CUDA driver API (NVIDIA CUDA Driver API reference), declared here so that no
// toolkit is needed to build: its functions, by the names that its library exports.
#pragma once

#include <cstddef>

namespace stepwell::drivers::cuda {

using Address = unsigned long long;  // CUdeviceptr
using StreamHandle = void *;         // CUstream
using EventHandle = void *;          // CUevent
using ContextHandle = void *;        // CUcontext
using ModuleHandle = void *;         // CUmodule
using FunctionHandle = void *;       // CUfunction

[[nodiscard]] inline Address address_of(const void *pointer)
{
    return reinterpret_cast<Address>(pointer);
}

enum Result : int {
    kSuccess = 0,
    kOutOfMemory = 2,
    kNotInitialized = 3,
    kDeviceUnavailable = 46,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidHandle = 400,
    kNotReady = 600,
    kContextIsDestroyed = 709,
    kNotSupported = 801,
    kCaptureImplicit =
        906,  // another stream of the context captures, and the legacy one waits for it
};

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr int kMultiprocessorCount = 16;
inline constexpr int kIntegrated = 18;
inline constexpr int kPageableAccess = 88;       // PAGEABLE_MEMORY_ACCESS
inline constexpr int kUsesHostPageTables = 100;  // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
inline constexpr int kNumaConfig = 130;          // 1: the device's memory is a NUMA node
inline constexpr int kNumaId = 131;              // which
inline constexpr int kHostNumaId = 134;          // CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
inline constexpr int kSourceInStreamOrder = 1;   // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM

struct CopyAttributes {  // CUmemcpyAttributes, its two CUmemLocation as they are
    int source_order;
    int source_hint[2];
    int destination_hint[2];
    unsigned flags;
};

struct Api {
    int (*init)(unsigned flags);
    int (*driver_version)(int *version);
    int (*error_name)(int error, const char **text);
    int (*error_string)(int error, const char **text);
    int (*device_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*device_bus_id)(char *id, int capacity, int device);
    int (*context_retain)(ContextHandle *context, int device);  // the primary one
    int (*context_release)(int device);
    int (*context_push)(ContextHandle context);
    int (*context_pop)(ContextHandle *context);
    int (*context_synchronize)();
    int (*memory_alloc)(Address *address, size_t bytes);
    int (*memory_free)(Address address);
    int (*memory_info)(size_t *free_bytes, size_t *total_bytes);
    int (*host_register)(void *base, size_t bytes, unsigned flags);
    int (*host_unregister)(void *base);
    int (*copy_to_device)(Address to, const void *from, size_t bytes, StreamHandle stream);
    int (*copy_to_host)(void *to, Address from, size_t bytes, StreamHandle stream);
    int (*copy_inside)(Address to, Address from, size_t bytes, StreamHandle stream);
    int (*set_bytes)(Address to, unsigned char value, size_t bytes, StreamHandle stream);
    int (*stream_create)(StreamHandle *stream, unsigned flags);
    int (*stream_destroy)(StreamHandle stream);
    int (*stream_synchronize)(StreamHandle stream);
    int (*stream_wait_event)(StreamHandle stream, EventHandle event, unsigned flags);
    int (*stream_is_capturing)(StreamHandle stream, int *status);
    int (*stream_context)(StreamHandle stream, ContextHandle *context);
    int (*event_create)(EventHandle *event, unsigned flags);
    int (*event_record)(EventHandle event, StreamHandle stream);
    int (*event_query)(EventHandle event);
    int (*event_synchronize)(EventHandle event);
    int (*event_destroy)(EventHandle event);
    int (*host_alloc)(void **base, size_t bytes, unsigned flags);
    int (*host_free)(void *base);
    int (*module_load)(ModuleHandle *module, const void *image, unsigned options, int *names,
                       void **values);
    int (*module_unload)(ModuleHandle module);
    int (*module_function)(FunctionHandle *function, ModuleHandle module, const char *name);
    int (*launch)(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  StreamHandle stream, void **arguments, void **extra);
};

// Several copies in one call, in the two forms that there are; null in a driver that is older.
struct BatchApi {
    // From CUDA 12.8 on.
    int (*copies)(Address *to, Address *from, size_t *bytes, size_t count,
                  CopyAttributes *attributes, size_t *first_copies, size_t attribute_count,
                  size_t *failed, StreamHandle stream);
    // From CUDA 13.0 on.
    int (*copies_v2)(Address *to, Address *from, size_t *bytes, size_t count,
                     CopyAttributes *attributes, size_t *first_copies, size_t attribute_count,
                     StreamHandle stream);
};

}  // namespace stepwell::drivers::cuda
