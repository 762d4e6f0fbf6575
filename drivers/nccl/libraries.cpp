// SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl/libraries.h"

#include "drivers/common/edge.h"
#include "drivers/common/functions.h"

namespace stepwell::drivers {

namespace {

// A library of that name that the process has loaded already is used: the NCCL of a framework, for
// example.
void *load(const char *name, std::string *why_out)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return handle;
    const char *why = dlerror();
    *why_out = why != nullptr ? why : "the dynamic loader gives no reason";
    return nullptr;
}

const char *take(void *handle, NcclApi *api)
{
    Functions take(handle);
    take("ncclGetVersion", &api->get_version);
    take("ncclGetErrorString", &api->get_error_string);
    take("ncclGetLastError", &api->get_last_error);
    take("ncclCommInitRankConfig", &api->comm_init_rank_config);
    take("ncclCommCount", &api->comm_count);
    take("ncclCommUserRank", &api->comm_user_rank);
    take("ncclCommCuDevice", &api->comm_device);
    take("ncclCommGetAsyncError", &api->comm_get_async_error);
    take("ncclCommFinalize", &api->comm_finalize);
    take("ncclCommDestroy", &api->comm_destroy);
    take("ncclCommAbort", &api->comm_abort);
    take("ncclAllGather", &api->all_gather);
    take("ncclReduceScatter", &api->reduce_scatter);
    take("ncclAllReduce", &api->all_reduce);
    // Later functions may be missing; the others are used all the same.
    const auto optional = [handle](const char *name, auto *function) {
        *function =
            reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
    };
    optional("ncclCommRegister", &api->comm_register);
    optional("ncclCommDeregister", &api->comm_deregister);
    return take.lacks();
}

// Names without "_v2" in cuda.h mean these versions.
const char *take(void *handle, CudaApi *api)
{
    Functions take(handle);
    take("cuInit", &api->init);
    take("cuGetErrorName", &api->get_error_name);
    take("cuGetErrorString", &api->get_error_string);
    take("cuDeviceGetCount", &api->device_get_count);
    take("cuDeviceGet", &api->device_get);
    take("cuDevicePrimaryCtxRetain", &api->context_retain);
    take("cuDevicePrimaryCtxRelease_v2", &api->context_release);
    take("cuCtxPushCurrent_v2", &api->context_push);
    take("cuCtxPopCurrent_v2", &api->context_pop);
    take("cuStreamCreate", &api->stream_create);
    take("cuStreamDestroy_v2", &api->stream_destroy);
    take("cuStreamQuery", &api->stream_query);
    take("cuThreadExchangeStreamCaptureMode", &api->exchange_capture_mode);
    take("cuEventCreate", &api->event_create);
    take("cuEventRecord", &api->event_record);
    take("cuEventQuery", &api->event_query);
    take("cuEventDestroy_v2", &api->event_destroy);
    take("cuMemAlloc_v2", &api->memory_alloc);
    take("cuMemFree_v2", &api->memory_free);
    take("cuMemHostAlloc", &api->host_alloc);
    take("cuMemFreeHost", &api->host_free);
    take("cuMemcpyHtoDAsync_v2", &api->copy_to_device);
    take("cuMemcpyDtoHAsync_v2", &api->copy_to_host);
    return take.lacks();
}

stw_status too_old(const char *library, const char *lacks, stw_driver_error *error_out)
{
    return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                "'%s' has no function %s, so it is too old; NCCL 2.14 and a driver of CUDA 11 are "
                "the oldest that can be used.",
                library, lacks);
}

}  // namespace

std::string Libraries::version_text() const
{
    return std::to_string(nccl_version / 10000) + "." + std::to_string(nccl_version / 100 % 100) +
           "." + std::to_string(nccl_version % 100);
}

std::string Libraries::cuda_text(int error) const
{
    const char *name = nullptr;
    const char *words = nullptr;
    if (cuda.get_error_name(error, &name) != kCudaSuccess || name == nullptr)
        name = "an unknown CUDA error";
    std::string text = std::string(name) + " (" + std::to_string(error);
    if (cuda.get_error_string(error, &words) == kCudaSuccess && words != nullptr)
        text += std::string(", ") + words;
    return text + ")";
}

std::string Libraries::nccl_text(ncclComm_t comm, int result) const
{
    std::string text = nccl.get_error_string(result);
    const char *last = nccl.get_last_error(comm);
    if (last != nullptr && *last != '\0') text += " (" + std::string(last) + ")";
    return text;
}

stw_status nccl_status(int result)
{
    switch (result) {
    case kNcclSuccess: return STW_OK;
    case kNcclUnhandledCudaError: return STW_ERROR_DEVICE;
    case kNcclInvalidArgument:
    case kNcclInvalidUsage: return STW_ERROR_INVALID;
    case kNcclSystemError:
    case kNcclRemoteError: return STW_ERROR_PEER;
    default: return STW_ERROR_INTERNAL;
    }
}

stw_status load_libraries(Libraries *libraries_out, stw_driver_error *error_out)
{
    std::string why;
    void *cuda = load("libcuda.so.1", &why);
    if (cuda == nullptr)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "NCCL needs an NVIDIA GPU, and this machine has no driver for one: %s. Use MPI "
                    "or callbacks for groups here.",
                    why.c_str());
    if (const char *lacks = take(cuda, &libraries_out->cuda))
        return too_old("libcuda.so.1", lacks, error_out);
    void *nccl = load("libnccl.so.2", &why);
    if (nccl == nullptr)
        return fail(
            error_out, STW_ERROR_UNSUPPORTED, {},
            "NCCL is not to be found: %s. Install libnccl2, or put the directory of another "
            "libnccl.so.2 (of the Python package nvidia-nccl-cu12, say) into "
            "LD_LIBRARY_PATH.",
            why.c_str());
    if (const char *lacks = take(nccl, &libraries_out->nccl))
        return too_old("libnccl.so.2", lacks, error_out);
    libraries_out->nccl.get_version(&libraries_out->nccl_version);
    if (libraries_out->nccl_version >= kNcclVersionMin) return STW_OK;
    return too_old("libnccl.so.2", "for communicators that do not block", error_out);
}

}  // namespace stepwell::drivers
