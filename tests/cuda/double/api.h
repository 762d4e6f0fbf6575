// SPDX-License-Identifier: Apache-2.0
// The CUDA driver API as far as the double has it: types, numbers, and a list of entry points with
// the version of CUDA that brought each. Types as the driver API reference gives them, so that the
// double builds without the toolkit; header_test.cpp compares them with cuda.h where that is found.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepwell::cuda_double {

using Address = unsigned long long;  // CUdeviceptr
using Handle = unsigned long long;   // CUmemGenericAllocationHandle
using HostFunction = void (*)(void *user);

enum Result : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kNotInitialized = 3,
    kNewerDriverNeeded = 36,
    kDeviceUnavailable = 46,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidContext = 201,
    kAlreadyMapped = 208,
    kEccUncorrectable = 214,
    kInvalidHandle = 400,
    kNotFound = 500,
    kNotReady = 600,
    kIllegalAddress = 700,
    kLaunchOutOfResources = 701,
    kLaunchTimeout = 702,
    kContextIsDestroyed = 709,
    kAssert = 710,
    kHostMemoryAlreadyRegistered = 712,
    kHostMemoryNotRegistered = 713,
    kHardwareStackError = 714,
    kIllegalInstruction = 715,
    kMisalignedAddress = 716,
    kInvalidAddressSpace = 717,
    kInvalidPc = 718,
    kLaunchFailed = 719,
    kNotPermitted = 800,
    kNotSupported = 801,
    kCaptureUnsupported = 900,
    kCaptureImplicit = 906,
    kUnknown = 999,
};

enum : int {  // CUdevice_attribute
    kMaxThreadsPerBlock = 1,
    kMaxBlockX = 2,
    kMaxBlockY = 3,
    kMaxBlockZ = 4,
    kMaxGridX = 5,
    kMaxGridY = 6,
    kMaxGridZ = 7,
    kMaxSharedMemoryPerBlock = 8,
    kWarpSize = 10,
    kMultiprocessorCount = 16,
    kIntegrated = 18,
    kCanMapHostMemory = 19,
    kComputeMode = 20,
    kConcurrentKernels = 31,
    kPciBusId = 33,
    kPciDeviceId = 34,
    kAsyncEngineCount = 40,
    kUnifiedAddressing = 41,
    kPciDomainId = 50,
    kComputeCapabilityMajor = 75,
    kComputeCapabilityMinor = 76,
    kStreamPrioritiesSupported = 78,
    kManagedMemory = 83,
    kPageableMemoryAccess = 88,
    kConcurrentManagedAccess = 89,
    kHostPointerForRegisteredMemory = 91,
    kHostRegisterSupported = 99,
    kPageableMemoryUsesHostPageTables = 100,
    kDirectManagedAccessFromHost = 101,
    kVirtualMemoryManagement = 102,
    kReadOnlyHostRegister = 113,
    kHostNumaId = 134,
};

enum : int {  // CUpointer_attribute
    kPointerContext = 1,
    kPointerMemoryType = 2,
    kPointerDevicePointer = 3,
    kPointerHostPointer = 4,
    kPointerIsManaged = 8,
    kPointerDeviceOrdinal = 9,
    kPointerRangeStart = 11,
    kPointerRangeSize = 12,
    kPointerMapped = 13,
};
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kCaptureModeGlobal = 0;
inline constexpr int kCaptureModeThreadLocal = 1;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr uintptr_t kStreamLegacy = 1;
inline constexpr uintptr_t kStreamPerThread = 2;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterFlagsKnown = 0xf;
inline constexpr unsigned kHostAllocFlagsKnown = 0x7;
inline constexpr int kLocationDevice = 1;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kAccessRead = 1;
inline constexpr int kAccessReadWrite = 3;

enum : int {  // CUmemcpySrcAccessOrder
    kSourceInStreamOrder = 1,
    kSourceDuringCall = 2,
    kSourceAnyOrder = 3,
};
enum : int {  // CUdriverProcAddressQueryResult
    kSymbolFound = 0,
    kSymbolNotFound = 1,
    kSymbolNeedsNewerVersion = 2,
};

struct Uuid {  // CUuuid
    char bytes[16];
};
struct Location {  // CUmemLocation
    int type;
    int id;
};
struct AllocationProperties {  // CUmemAllocationProp
    int type;
    int handle_types;
    Location location;
    void *win32_meta_data;
    unsigned char compression_type;
    unsigned char rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
};
struct AccessDescription {  // CUmemAccessDesc
    Location location;
    int flags;
};
struct CopyAttributes {  // CUmemcpyAttributes
    int source_order;
    Location source_hint;
    Location destination_hint;
    unsigned flags;
};

}  // namespace stepwell::cuda_double

// X(exported name, version of CUDA that brought it, parameters). All return a CUresult, an int.
// clang-format off
#define STW_CUDA_ENTRY_POINTS(X) \
    X(cuInit, 2000, (unsigned flags)) \
    X(cuDriverGetVersion, 2020, (int *version_out)) \
    X(cuGetProcAddress_v2, 12000, (const char *symbol, void **function_out, int version, \
                                   uint64_t flags, int *status_out)) \
    X(cuGetErrorName, 6000, (int error, const char **text_out)) \
    X(cuGetErrorString, 6000, (int error, const char **text_out)) \
    X(cuDeviceGetCount, 2000, (int *count_out)) \
    X(cuDeviceGet, 2000, (int *device_out, int ordinal)) \
    X(cuDeviceGetName, 2000, (char *name, int capacity, int device)) \
    X(cuDeviceGetAttribute, 2000, (int *value_out, int attribute, int device)) \
    X(cuDeviceTotalMem_v2, 3020, (size_t *bytes_out, int device)) \
    X(cuDeviceGetUuid, 9020, (Uuid *uuid_out, int device)) \
    X(cuDeviceGetUuid_v2, 11040, (Uuid *uuid_out, int device)) \
    X(cuDeviceGetPCIBusId, 4010, (char *id, int capacity, int device)) \
    X(cuDevicePrimaryCtxRetain, 7000, (void **context_out, int device)) \
    X(cuDevicePrimaryCtxRelease_v2, 11000, (int device)) \
    X(cuCtxGetCurrent, 4000, (void **context_out)) \
    X(cuCtxSetCurrent, 4000, (void *context)) \
    X(cuCtxPushCurrent_v2, 4000, (void *context)) \
    X(cuCtxPopCurrent_v2, 4000, (void **context_out)) \
    X(cuCtxGetDevice, 2000, (int *device_out)) \
    X(cuCtxSynchronize, 2000, ()) \
    X(cuCtxGetStreamPriorityRange, 5050, (int *least_out, int *greatest_out)) \
    X(cuMemAlloc_v2, 3020, (Address *address_out, size_t bytes)) \
    X(cuMemFree_v2, 3020, (Address address)) \
    X(cuMemGetInfo_v2, 3020, (size_t *free_out, size_t *total_out)) \
    X(cuMemHostAlloc, 2020, (void **address_out, size_t bytes, unsigned flags)) \
    X(cuMemFreeHost, 2000, (void *address)) \
    X(cuMemHostRegister_v2, 6050, (void *address, size_t bytes, unsigned flags)) \
    X(cuMemHostUnregister, 4000, (void *address)) \
    X(cuMemHostGetDevicePointer_v2, 3020, (Address *device_out, void *address, unsigned flags)) \
    X(cuPointerGetAttribute, 4000, (void *data, int attribute, Address address)) \
    X(cuPointerGetAttributes, 7000, (unsigned count, int *attributes, void **data, \
                                     Address address)) \
    X(cuMemcpy, 4000, (Address to, Address from, size_t bytes)) \
    X(cuMemcpyAsync, 4000, (Address to, Address from, size_t bytes, void *stream)) \
    X(cuMemcpyHtoDAsync_v2, 3020, (Address to, const void *from, size_t bytes, void *stream)) \
    X(cuMemcpyDtoHAsync_v2, 3020, (void *to, Address from, size_t bytes, void *stream)) \
    X(cuMemcpyDtoDAsync_v2, 3020, (Address to, Address from, size_t bytes, void *stream)) \
    X(cuMemcpyBatchAsync, 12080, (Address *to, Address *from, size_t *bytes, size_t count, \
                                  CopyAttributes *attributes, size_t *first_copies, \
                                  size_t attribute_count, size_t *failed_out, void *stream)) \
    X(cuMemcpyBatchAsync_v2, 13000, (Address *to, Address *from, size_t *bytes, size_t count, \
                                     CopyAttributes *attributes, size_t *first_copies, \
                                     size_t attribute_count, void *stream)) \
    X(cuMemsetD8_v2, 3020, (Address address, unsigned char value, size_t bytes)) \
    X(cuMemsetD8Async, 3020, (Address address, unsigned char value, size_t bytes, void *stream)) \
    X(cuMemsetD32Async, 3020, (Address address, unsigned value, size_t count, void *stream)) \
    X(cuStreamCreate, 2000, (void **stream_out, unsigned flags)) \
    X(cuStreamCreateWithPriority, 5050, (void **stream_out, unsigned flags, int priority)) \
    X(cuStreamDestroy_v2, 4000, (void *stream)) \
    X(cuStreamQuery, 2000, (void *stream)) \
    X(cuStreamSynchronize, 2000, (void *stream)) \
    X(cuStreamWaitEvent, 3020, (void *stream, void *event, unsigned flags)) \
    X(cuStreamIsCapturing, 10000, (void *stream, int *status_out)) \
    X(cuStreamGetCtx, 9020, (void *stream, void **context_out)) \
    X(cuStreamGetDevice, 12080, (void *stream, int *device_out)) \
    X(cuStreamGetId, 12000, (void *stream, unsigned long long *id_out)) \
    X(cuThreadExchangeStreamCaptureMode, 10010, (int *mode)) \
    X(cuEventCreate, 2000, (void **event_out, unsigned flags)) \
    X(cuEventRecord, 2000, (void *event, void *stream)) \
    X(cuEventQuery, 2000, (void *event)) \
    X(cuEventSynchronize, 2000, (void *event)) \
    X(cuEventElapsedTime, 2000, (float *milliseconds_out, void *start, void *end)) \
    X(cuEventElapsedTime_v2, 12080, (float *milliseconds_out, void *start, void *end)) \
    X(cuEventDestroy_v2, 4000, (void *event)) \
    X(cuLaunchHostFunc, 10000, (void *stream, HostFunction function, void *user)) \
    X(cuMemAddressReserve, 10020, (Address *address_out, size_t bytes, size_t alignment, \
                                   Address wish, unsigned long long flags)) \
    X(cuMemAddressFree, 10020, (Address address, size_t bytes)) \
    X(cuMemCreate, 10020, (Handle *handle_out, size_t bytes, \
                           const AllocationProperties *properties, unsigned long long flags)) \
    X(cuMemRelease, 10020, (Handle handle)) \
    X(cuMemMap, 10020, (Address address, size_t bytes, size_t offset, Handle handle, \
                        unsigned long long flags)) \
    X(cuMemUnmap, 10020, (Address address, size_t bytes)) \
    X(cuMemSetAccess, 10020, (Address address, size_t bytes, const AccessDescription *accesses, \
                              size_t count)) \
    X(cuMemGetAllocationGranularity, 10020, (size_t *bytes_out, \
                                             const AllocationProperties *properties, \
                                             int option)) \
    X(cuModuleLoadData, 2000, (void **module_out, const void *image)) \
    X(cuModuleLoadDataEx, 2010, (void **module_out, const void *image, unsigned count, \
                                 int *options, void **values)) \
    X(cuModuleUnload, 2000, (void *module)) \
    X(cuModuleGetFunction, 2000, (void **function_out, void *module, const char *name)) \
    X(cuLibraryLoadData, 12000, (void **library_out, const void *image, int *jit_options, \
                                 void **jit_values, unsigned jit_count, int *options, \
                                 void **values, unsigned count)) \
    X(cuLibraryUnload, 12000, (void *library)) \
    X(cuLibraryGetKernel, 12000, (void **kernel_out, void *library, const char *name)) \
    X(cuKernelGetFunction, 12000, (void **function_out, void *kernel)) \
    X(cuFuncGetAttribute, 2020, (int *value_out, int attribute, void *function)) \
    X(cuLaunchKernel, 4000, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
                             unsigned block_x, unsigned block_y, unsigned block_z, \
                             unsigned shared_bytes, void *stream, void **arguments, \
                             void **extra))
// clang-format on
