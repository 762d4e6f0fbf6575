// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA driver API (NVIDIA CUDA Driver API reference) that the module calls, by
// the names that its library exports. They are declared here so that no toolkit is needed to build.
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
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kNotInitialized = 3,
    kDeviceUnavailable = 46,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidHandle = 400,
    kNotReady = 600,
    kContextIsDestroyed = 709,
    kNotSupported = 801,
    kCaptureUnsupported = 900,
    kCaptureImplicit =
        906,  // another stream of the context captures, and the legacy one waits for it
};

inline constexpr int kCaptureModeRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr int kMultiprocessorCount = 16;
inline constexpr int kIntegrated = 18;
inline constexpr int kPageableAccess = 88;       // PAGEABLE_MEMORY_ACCESS
inline constexpr int kHostPointers = 91;         // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
inline constexpr int kUsesHostPageTables = 100;  // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
inline constexpr int kNumaConfig = 130;          // 1: the device's memory is a NUMA node
inline constexpr int kNumaId = 131;              // which
inline constexpr int kHostNumaId = 134;          // CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
inline constexpr int kPointerMemoryType = 2;     // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
inline constexpr int kPointerDevice = 9;         // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
inline constexpr unsigned kMemoryOfDevice = 2;   // CU_MEMORYTYPE_DEVICE
inline constexpr int kSourceInStreamOrder = 1;   // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM

struct CopyAttributes {  // CUmemcpyAttributes, its two CUmemLocation as they are
    int source_order;
    int source_hint[2];
    int destination_hint[2];
    unsigned flags;
};

// The last failed call of this thread.
struct Failure {
    const char *call = "";
    int code = 0;
};
Failure &last_failure();

// A function of the driver. A failure is recorded with its name.
template <class Signature> struct Function;
template <class... Arguments> struct Function<int(Arguments...)> {
    int operator()(Arguments... arguments) const
    {
        const int error = pointer(arguments...);
        if (error != 0) last_failure() = {name, error};
        return error;
    }
    explicit operator bool() const { return pointer != nullptr; }

    int (*pointer)(Arguments...) = nullptr;
    const char *name = "";
};

struct Api {
    Function<int(unsigned flags)> init;
    Function<int(int *version)> driver_version;
    Function<int(int error, const char **text)> error_name;
    Function<int(int error, const char **text)> error_string;
    Function<int(int *count)> device_count;
    Function<int(int *device, int ordinal)> device_get;
    Function<int(int *value, int attribute, int device)> device_attribute;
    Function<int(char *id, int capacity, int device)> device_bus_id;
    Function<int(ContextHandle *context, int device)> context_retain;  // the primary one
    Function<int(int device)> context_release;
    Function<int(ContextHandle context)> context_push;
    Function<int(ContextHandle *context)> context_pop;
    Function<int()> context_synchronize;
    Function<int(Address *address, size_t bytes)> memory_alloc;
    Function<int(Address address)> memory_free;
    Function<int(size_t *free_bytes, size_t *total_bytes)> memory_info;
    Function<int(void *value, int attribute, Address address)> pointer_attribute;
    Function<int(void *base, size_t bytes, unsigned flags)> host_register;
    Function<int(void *base)> host_unregister;
    Function<int(Address to, const void *from, size_t bytes, StreamHandle stream)> copy_to_device;
    Function<int(void *to, Address from, size_t bytes, StreamHandle stream)> copy_to_host;
    Function<int(Address to, Address from, size_t bytes, StreamHandle stream)> copy_inside;
    Function<int(Address to, unsigned char value, size_t bytes, StreamHandle stream)> set_bytes;
    Function<int(StreamHandle *stream, unsigned flags)> stream_create;
    Function<int(StreamHandle stream)> stream_destroy;
    Function<int(StreamHandle stream)> stream_synchronize;
    Function<int(StreamHandle stream, EventHandle event, unsigned flags)> stream_wait_event;
    Function<int(StreamHandle stream, int *status)> stream_is_capturing;
    Function<int(StreamHandle stream, ContextHandle *context)> stream_context;
    Function<int(int *mode)> exchange_capture_mode;
    Function<int(StreamHandle stream, unsigned long long *id)> stream_id;  // null before CUDA 12.0
    Function<int(EventHandle *event, unsigned flags)> event_create;
    Function<int(EventHandle event, StreamHandle stream)> event_record;
    Function<int(EventHandle event)> event_query;
    Function<int(EventHandle event)> event_synchronize;
    Function<int(EventHandle event)> event_destroy;
    Function<int(void **base, size_t bytes, unsigned flags)> host_alloc;
    Function<int(void *base)> host_free;
    Function<int(ModuleHandle *module, const void *image, unsigned options, int *names,
                 void **values)>
        module_load;
    Function<int(ModuleHandle module)> module_unload;
    Function<int(FunctionHandle *function, ModuleHandle module, const char *name)> module_function;
    Function<int(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                 StreamHandle stream, void **arguments, void **extra)>
        launch;
};

// Several copies in one call, in the two existing forms; null if the driver is older.
struct BatchApi {
    // From CUDA 12.8 on.
    Function<int(Address *to, Address *from, size_t *bytes, size_t count,
                 CopyAttributes *attributes, size_t *first_copies, size_t attribute_count,
                 size_t *failed, StreamHandle stream)>
        copies;
    // From CUDA 13.0 on.
    Function<int(Address *to, Address *from, size_t *bytes, size_t count,
                 CopyAttributes *attributes, size_t *first_copies, size_t attribute_count,
                 StreamHandle stream)>
        copies_v2;
};

}  // namespace stepwell::drivers::cuda
