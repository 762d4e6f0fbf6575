// SPDX-License-Identifier: Apache-2.0
// What the double declares is what cuda.h declares. Compiled where that header is found, of CUDA
// 13.0 or later, as the last entry points are of that time; there is nothing to run. An enum counts
// as an int, any pointer as any other, and a function as its parameters one by one.
#define __CUDA_API_VERSION_INTERNAL  // every version of a function under its own name
#include <cuda.h>

#include "drivers/cuda/mapping_api.h"
#include "tests/cuda/double/api.h"

#include <type_traits>

namespace stepwell::cuda_double {
namespace {

template <size_t bytes> using Integer = std::integral_constant<size_t, bytes>;
struct Pointer {};
template <class Type> struct Crosses {
    static auto as()
    {
        if constexpr (std::is_pointer_v<Type>)
            return Pointer{};
        else if constexpr (std::is_enum_v<Type> || std::is_integral_v<Type>)
            return Integer<sizeof(Type)>{};
        else
            return Type{};
    }
    using Type_ = decltype(as());
};
template <class Return, class... Parameters> struct Crosses<Return(Parameters...)> {
    using Type_ = typename Crosses<Return>::Type_ (*)(typename Crosses<Parameters>::Type_...);
};
template <class Ours, class Theirs>
inline constexpr bool kSame =
    std::is_same_v<typename Crosses<Ours>::Type_, typename Crosses<Theirs>::Type_>;

static_assert(kSame<int(unsigned, void *), CUresult(CUmemAccess_flags, const char **)>);
static_assert(!kSame<int(unsigned), int(unsigned long long)>);
static_assert(!kSame<int(void *), int(unsigned long long)>);

#define STW_COMPARE(name, since, parameters)                                                       \
    static_assert(kSame<int parameters, decltype(::name)>, #name);
STW_CUDA_ENTRY_POINTS(STW_COMPARE)
#undef STW_COMPARE

static_assert(kSame<Address, CUdeviceptr> && kSame<Handle, CUmemGenericAllocationHandle>);

#define STW_SAME_FIELD(ours, our_field, theirs, their_field)                                       \
    static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                    \
                  sizeof(ours::our_field) == sizeof(theirs::their_field))
static_assert(sizeof(Uuid) == sizeof(CUuuid));
static_assert(sizeof(Location) == sizeof(CUmemLocation));
STW_SAME_FIELD(Location, type, CUmemLocation, type);
STW_SAME_FIELD(Location, id, CUmemLocation, id);
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
STW_SAME_FIELD(AllocationProperties, type, CUmemAllocationProp, type);
STW_SAME_FIELD(AllocationProperties, handle_types, CUmemAllocationProp, requestedHandleTypes);
STW_SAME_FIELD(AllocationProperties, location, CUmemAllocationProp, location);
STW_SAME_FIELD(AllocationProperties, win32_meta_data, CUmemAllocationProp, win32HandleMetaData);
STW_SAME_FIELD(AllocationProperties, compression_type, CUmemAllocationProp,
               allocFlags.compressionType);
STW_SAME_FIELD(AllocationProperties, usage, CUmemAllocationProp, allocFlags.usage);

// And what the module passes.
using drivers::cuda::MemoryAccess;
using drivers::cuda::MemoryLocation;
using drivers::cuda::MemoryProperties;
static_assert(sizeof(MemoryProperties) == sizeof(CUmemAllocationProp));
STW_SAME_FIELD(MemoryProperties, location, CUmemAllocationProp, location);
STW_SAME_FIELD(MemoryProperties, rdma_capable, CUmemAllocationProp,
               allocFlags.gpuDirectRDMACapable);
static_assert(sizeof(MemoryAccess) == sizeof(CUmemAccessDesc));
STW_SAME_FIELD(MemoryAccess, flags, CUmemAccessDesc, flags);
static_assert(MemoryLocation{}.type == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(MemoryProperties{}.type == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(MemoryAccess{}.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(drivers::cuda::kAttributeMapping ==
              CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(drivers::cuda::kAttributeRdmaMapping ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
STW_SAME_FIELD(AccessDescription, location, CUmemAccessDesc, location);
STW_SAME_FIELD(AccessDescription, flags, CUmemAccessDesc, flags);
static_assert(sizeof(CopyAttributes) == sizeof(CUmemcpyAttributes));
STW_SAME_FIELD(CopyAttributes, source_order, CUmemcpyAttributes, srcAccessOrder);
STW_SAME_FIELD(CopyAttributes, source_hint, CUmemcpyAttributes, srcLocHint);
STW_SAME_FIELD(CopyAttributes, destination_hint, CUmemcpyAttributes, dstLocHint);
STW_SAME_FIELD(CopyAttributes, flags, CUmemcpyAttributes, flags);
static_assert(kSourceInStreamOrder == static_cast<int>(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM));
static_assert(kSourceDuringCall == static_cast<int>(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL));
static_assert(kSourceAnyOrder == static_cast<int>(CU_MEMCPY_SRC_ACCESS_ORDER_ANY));

#define STW_SAME_NUMBER(ours, theirs)                                                              \
    static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
STW_SAME_NUMBER(kSuccess, CUDA_SUCCESS);
STW_SAME_NUMBER(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
STW_SAME_NUMBER(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
STW_SAME_NUMBER(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
STW_SAME_NUMBER(kNewerDriverNeeded, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
STW_SAME_NUMBER(kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
STW_SAME_NUMBER(kNoDevice, CUDA_ERROR_NO_DEVICE);
STW_SAME_NUMBER(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
STW_SAME_NUMBER(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
STW_SAME_NUMBER(kAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED);
STW_SAME_NUMBER(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
STW_SAME_NUMBER(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
STW_SAME_NUMBER(kNotFound, CUDA_ERROR_NOT_FOUND);
STW_SAME_NUMBER(kNotReady, CUDA_ERROR_NOT_READY);
STW_SAME_NUMBER(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
STW_SAME_NUMBER(kLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
STW_SAME_NUMBER(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
STW_SAME_NUMBER(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
STW_SAME_NUMBER(kAssert, CUDA_ERROR_ASSERT);
STW_SAME_NUMBER(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
STW_SAME_NUMBER(kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
STW_SAME_NUMBER(kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
STW_SAME_NUMBER(kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
STW_SAME_NUMBER(kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
STW_SAME_NUMBER(kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
STW_SAME_NUMBER(kInvalidPc, CUDA_ERROR_INVALID_PC);
STW_SAME_NUMBER(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
STW_SAME_NUMBER(kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
STW_SAME_NUMBER(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
STW_SAME_NUMBER(kUnknown, CUDA_ERROR_UNKNOWN);
STW_SAME_NUMBER(kMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
STW_SAME_NUMBER(kMaxBlockX, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
STW_SAME_NUMBER(kMaxBlockY, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
STW_SAME_NUMBER(kMaxBlockZ, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
STW_SAME_NUMBER(kMaxGridX, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
STW_SAME_NUMBER(kMaxGridY, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
STW_SAME_NUMBER(kMaxGridZ, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
STW_SAME_NUMBER(kMaxSharedMemoryPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
STW_SAME_NUMBER(kWarpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
STW_SAME_NUMBER(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
STW_SAME_NUMBER(kIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
STW_SAME_NUMBER(kCanMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
STW_SAME_NUMBER(kComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
STW_SAME_NUMBER(kConcurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
STW_SAME_NUMBER(kPciBusId, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
STW_SAME_NUMBER(kPciDeviceId, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
STW_SAME_NUMBER(kAsyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
STW_SAME_NUMBER(kUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
STW_SAME_NUMBER(kPciDomainId, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
STW_SAME_NUMBER(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
STW_SAME_NUMBER(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
STW_SAME_NUMBER(kStreamPrioritiesSupported, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
STW_SAME_NUMBER(kManagedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
STW_SAME_NUMBER(kPageableMemoryAccess, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
STW_SAME_NUMBER(kConcurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
STW_SAME_NUMBER(kHostPointerForRegisteredMemory,
                CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
STW_SAME_NUMBER(kHostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
STW_SAME_NUMBER(kPageableMemoryUsesHostPageTables,
                CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
STW_SAME_NUMBER(kDirectManagedAccessFromHost,
                CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
STW_SAME_NUMBER(kVirtualMemoryManagement, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
STW_SAME_NUMBER(kReadOnlyHostRegister, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
STW_SAME_NUMBER(kHostNumaId, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
STW_SAME_NUMBER(kPointerContext, CU_POINTER_ATTRIBUTE_CONTEXT);
STW_SAME_NUMBER(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
STW_SAME_NUMBER(kPointerDevicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
STW_SAME_NUMBER(kPointerHostPointer, CU_POINTER_ATTRIBUTE_HOST_POINTER);
STW_SAME_NUMBER(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
STW_SAME_NUMBER(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
STW_SAME_NUMBER(kPointerRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
STW_SAME_NUMBER(kPointerRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
STW_SAME_NUMBER(kPointerMapped, CU_POINTER_ATTRIBUTE_MAPPED);
STW_SAME_NUMBER(kMemoryTypeHost, CU_MEMORYTYPE_HOST);
STW_SAME_NUMBER(kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
STW_SAME_NUMBER(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
STW_SAME_NUMBER(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
STW_SAME_NUMBER(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
STW_SAME_NUMBER(kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
STW_SAME_NUMBER(kAccessRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
STW_SAME_NUMBER(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
STW_SAME_NUMBER(kSymbolFound, CU_GET_PROC_ADDRESS_SUCCESS);
STW_SAME_NUMBER(kSymbolNotFound, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
STW_SAME_NUMBER(kSymbolNeedsNewerVersion, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
#undef STW_SAME_NUMBER
#undef STW_SAME_FIELD

}  // namespace
}  // namespace stepwell::cuda_double
