// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/library.h"

#include "drivers/common/edge.h"
#include "drivers/common/functions.h"

#include <utility>

namespace stepwell::drivers::cuda {

namespace {

constexpr const char *kLibrary = "libcuda.so.1";
constexpr int kVersionMin = 11000;
constexpr int kVersionIds = 12000;
constexpr int kVersionBatch = 12080;
constexpr int kVersionBatch2 = 13000;

// The last error given to failed() on this thread.
Failure &last_told()
{
    thread_local Failure told;
    return told;
}

class Take {
public:
    explicit Take(void *handle) : functions_(handle) {}
    template <class Signature> void operator()(const char *name, Function<Signature> *function_out)
    {
        functions_(name, &function_out->pointer);
        function_out->name = name;
    }
    const char *lacks() const { return functions_.lacks(); }

private:
    Functions functions_;
};

// Names without a suffix in cuda.h mean the versions named here.
const char *take(void *handle, Api *api)
{
    Take take(handle);
    take("cuInit", &api->init);
    take("cuDriverGetVersion", &api->driver_version);
    take("cuGetErrorName", &api->error_name);
    take("cuGetErrorString", &api->error_string);
    take("cuDeviceGetCount", &api->device_count);
    take("cuDeviceGet", &api->device_get);
    take("cuDeviceGetAttribute", &api->device_attribute);
    take("cuDeviceGetPCIBusId", &api->device_bus_id);
    take("cuDevicePrimaryCtxRetain", &api->context_retain);
    take("cuDevicePrimaryCtxRelease_v2", &api->context_release);
    take("cuCtxPushCurrent_v2", &api->context_push);
    take("cuCtxPopCurrent_v2", &api->context_pop);
    take("cuCtxSynchronize", &api->context_synchronize);
    take("cuMemAlloc_v2", &api->memory_alloc);
    take("cuMemFree_v2", &api->memory_free);
    take("cuMemGetInfo_v2", &api->memory_info);
    take("cuPointerGetAttribute", &api->pointer_attribute);
    take("cuMemHostRegister_v2", &api->host_register);
    take("cuMemHostUnregister", &api->host_unregister);
    take("cuMemcpyHtoDAsync_v2", &api->copy_to_device);
    take("cuMemcpyDtoHAsync_v2", &api->copy_to_host);
    take("cuMemcpyDtoDAsync_v2", &api->copy_inside);
    take("cuMemsetD8Async", &api->set_bytes);
    take("cuStreamCreate", &api->stream_create);
    take("cuStreamDestroy_v2", &api->stream_destroy);
    take("cuStreamSynchronize", &api->stream_synchronize);
    take("cuStreamWaitEvent", &api->stream_wait_event);
    take("cuStreamIsCapturing", &api->stream_is_capturing);
    take("cuStreamGetCtx", &api->stream_context);
    take("cuThreadExchangeStreamCaptureMode", &api->exchange_capture_mode);
    take("cuEventCreate", &api->event_create);
    take("cuEventRecord", &api->event_record);
    take("cuEventQuery", &api->event_query);
    take("cuEventSynchronize", &api->event_synchronize);
    take("cuEventDestroy_v2", &api->event_destroy);
    take("cuMemHostAlloc", &api->host_alloc);
    take("cuMemFreeHost", &api->host_free);
    take("cuModuleLoadDataEx", &api->module_load);
    take("cuModuleUnload", &api->module_unload);
    take("cuModuleGetFunction", &api->module_function);
    take("cuLaunchKernel", &api->launch);
    return take.lacks();
}

// Functions of CUDA 10.2; a driver without them is no error.
void take(void *handle, MappingApi *api)
{
    Take take(handle);
    take("cuDeviceGetAttribute", &api->attribute);
    take("cuMemGetAllocationGranularity", &api->granularity);
    take("cuMemAddressReserve", &api->reserve);
    take("cuMemAddressFree", &api->unreserve);
    take("cuMemCreate", &api->create);
    take("cuMemRelease", &api->release);
    take("cuMemMap", &api->map);
    take("cuMemUnmap", &api->unmap);
    take("cuMemSetAccess", &api->set_access);
    api->there = take.lacks() == nullptr;
}

// A driver without them is no error. A library may export a function that its driver does not
// implement yet.
void take_later(void *handle, Library *library)
{
    Take take(handle);
    if (library->version >= kVersionIds) take("cuStreamGetId", &library->api.stream_id);
    if (library->version >= kVersionBatch2)
        take("cuMemcpyBatchAsync_v2", &library->batch.copies_v2);
    else if (library->version >= kVersionBatch)
        take("cuMemcpyBatchAsync", &library->batch.copies);
}

}  // namespace

Failure &last_failure()
{
    thread_local Failure failure;
    return failure;
}

void Failures::note(const Failure &failure, const std::string &sentence)
{
    const MutexLock lock(mutex_);
    if (!seen_.emplace(failure.call, failure.code).second) return;
    untold_.push_back(sentence);
    any_.store(true, std::memory_order_release);
}

bool Failures::next(std::string *sentence_out)
{
    if (!any_.load(std::memory_order_acquire)) return false;
    const MutexLock lock(mutex_);
    if (untold_.empty()) return false;
    *sentence_out = std::move(untold_.front());
    untold_.pop_front();
    any_.store(!untold_.empty(), std::memory_order_release);
    return true;
}

stw_status Library::failed(int error) const
{
    const stw_status status = status_of(error);
    if (status == STW_OK) return status;
    const Failure &failure = last_failure();
    last_told() = failure.code == error ? failure : Failure{"The module", error};
    // The call will be tried again: not a failure.
    if (status != STW_ERROR_BUSY) failures->note(last_told(), why());
    return status;
}

std::string Library::why() const
{
    const Failure told = last_told();
    return std::string(told.call) + " returned " + text(told.code);
}

std::string Library::text(int error) const
{
    const char *name = nullptr;
    const char *words = nullptr;
    if (api.error_name(error, &name) != kSuccess || name == nullptr) name = "an unknown CUDA error";
    std::string text = std::string(name) + " (" + std::to_string(error);
    if (api.error_string(error, &words) == kSuccess && words != nullptr)
        text += std::string(", ") + words;
    return text + ")";
}

stw_status Library::status_of(int error)
{
    switch (error) {
    case kSuccess: return STW_OK;
    case kOutOfMemory: return STW_ERROR_MEMORY;
    case kDeviceUnavailable:
    case kCaptureUnsupported: return STW_ERROR_BUSY;
    case kNoDevice:
    case kInvalidDevice: return STW_ERROR_UNSUPPORTED;
    default: return STW_ERROR_DEVICE;
    }
}

stw_status load(Library *library_out, stw_driver_error *error_out)
{
    void *handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char *why = dlerror();
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "This machine has no NVIDIA driver: %s. Use the device driver 'cpu' here.",
                    why != nullptr ? why : "the dynamic loader gives no reason");
    }
    if (const char *lacks = take(handle, &library_out->api))
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "'%s' has no function %s, so it is too old; a driver of CUDA 11 is the oldest "
                    "that can be used.",
                    kLibrary, lacks);
    take(handle, &library_out->mapping);
    const int error = library_out->api.init(0);
    if (error != kSuccess)
        return fail(
            error_out, STW_ERROR_UNSUPPORTED, {},
            "The NVIDIA driver does not start in this process: %s. nvidia-smi tells whether "
            "it works at all.",
            library_out->text(error).c_str());
    library_out->api.driver_version(&library_out->version);
    take_later(handle, library_out);
    if (library_out->version >= kVersionMin) return STW_OK;
    return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                "The NVIDIA driver supports CUDA %d.%d, and 11.0 is the oldest that can be used; "
                "update it.",
                library_out->version / 1000, library_out->version / 10 % 100);
}

}  // namespace stepwell::drivers::cuda
