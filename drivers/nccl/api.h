// SPDX-License-Identifier: Apache-2.0
// The functions and constants of NCCL and of the CUDA driver that the module uses, so that it
// builds on machines that have neither. Types as their documentation gives them: the chapters
// "Communicator Creation and Management Functions", "Collective Communication Functions" and
// "Types" of the NCCL user guide (2.14 and later; the numbers have not changed since), and the CUDA
// driver API reference.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepwell::drivers {

// ------------------------------------------------------------------------------------- NCCL --

using ncclComm_t = struct ncclComm *;

enum : int {  // ncclResult_t
    kNcclSuccess = 0,
    kNcclUnhandledCudaError = 1,
    kNcclSystemError = 2,
    kNcclInvalidArgument = 4,
    kNcclInvalidUsage = 5,
    kNcclRemoteError = 6,
    kNcclInProgress = 7,
};
enum : int {  // ncclDataType_t
    kNcclInt8 = 0,
    kNcclFloat16 = 6,
    kNcclFloat32 = 7,
    kNcclFloat64 = 8,
    kNcclBfloat16 = 9,
};
inline constexpr int kNcclSum = 0;  // ncclRedOp_t

struct NcclUniqueId {
    char internal[128];
};
// ncclConfig_t as of 2.14, which later releases accept: they check size and version.
struct NcclConfig {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
};
inline constexpr unsigned kNcclMagic = 0xCAFEBEEF;
inline constexpr int kNcclVersionMin = 21400;
inline constexpr int kNcclRegisterMin = 22300;  // before it only what NVLink SHARP reaches

struct NcclApi {
    int (*get_version)(int *version);
    const char *(*get_error_string)(int result);
    const char *(*get_last_error)(ncclComm_t comm);
    int (*comm_init_rank_config)(ncclComm_t *comm, int ranks, NcclUniqueId id, int rank,
                                 NcclConfig *config);
    int (*comm_count)(ncclComm_t comm, int *count);
    int (*comm_user_rank)(ncclComm_t comm, int *rank);
    int (*comm_device)(ncclComm_t comm, int *device);
    int (*comm_get_async_error)(ncclComm_t comm, int *result);
    int (*comm_finalize)(ncclComm_t comm);
    int (*comm_destroy)(ncclComm_t comm);
    int (*comm_abort)(ncclComm_t comm);
    int (*all_gather)(const void *from, void *to, size_t count, int type, ncclComm_t comm,
                      void *stream);
    int (*reduce_scatter)(const void *from, void *to, size_t count, int type, int operation,
                          ncclComm_t comm, void *stream);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int operation,
                      ncclComm_t comm, void *stream);
    // Null before 2.19.
    int (*comm_register)(ncclComm_t comm, void *memory, size_t bytes, void **handle);
    int (*comm_deregister)(ncclComm_t comm, void *handle);
};

// ------------------------------------------------------------------------------------- CUDA --

using CudaAddress = unsigned long long;  // CUdeviceptr

enum : int { kCudaSuccess = 0, kCudaNotReady = 600 };
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr int kCudaCaptureModeRelaxed = 2;
inline constexpr unsigned kCudaEventDisableTiming = 2;

struct CudaApi {
    int (*init)(unsigned flags);
    int (*get_error_name)(int error, const char **text);
    int (*get_error_string)(int error, const char **text);
    int (*device_get_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);  // the primary one
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_query)(void *stream);
    int (*exchange_capture_mode)(int *mode);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_destroy)(void *event);
    int (*memory_alloc)(CudaAddress *address, size_t bytes);
    int (*memory_free)(CudaAddress address);
    int (*host_alloc)(void **address, size_t bytes, unsigned flags);
    int (*host_free)(void *address);
    int (*copy_to_device)(CudaAddress to, const void *from, size_t bytes, void *stream);
    int (*copy_to_host)(void *to, CudaAddress from, size_t bytes, void *stream);
};

}  // namespace stepwell::drivers
