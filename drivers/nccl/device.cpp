// SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl/device.h"

#include "drivers/common/edge.h"

namespace stepwell::drivers {

stw_status Device::failed(const char *what, int error, stw_driver_error *error_out) const
{
    return fail(error_out, STW_ERROR_DEVICE, {}, "The device gave no %s to a group: %s.", what,
                libraries_.cuda_text(error).c_str());
}

stw_status Device::open(int ordinal, stw_driver_error *error_out)
{
    const CudaApi &cuda = libraries_.cuda;
    int count = 0;
    int error = cuda.init(0);
    if (error == kCudaSuccess) error = cuda.device_get_count(&count);
    if (error != kCudaSuccess || count == 0)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "NCCL needs an NVIDIA GPU, and CUDA shows none to this process: %s.",
                    libraries_.cuda_text(error).c_str());
    if (ordinal < 0 || ordinal >= count)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "CUDA shows %d devices to this process and none of ordinal %d.", count,
                    ordinal);
    const Unrecorded unrecorded(cuda);
    error = cuda.device_get(&device_, ordinal);
    if (error == kCudaSuccess) error = cuda.context_retain(&context_, device_);
    if (error != kCudaSuccess) return failed("context", error, error_out);
    const Scope scope(*this);
    error = cuda.stream_create(&stream_, kCudaStreamNonBlocking);
    return error == kCudaSuccess ? STW_OK : failed("stream", error, error_out);
}

stw_status Device::take_room(size_t bytes, stw_driver_error *error_out)
{
    int error = libraries_.cuda.memory_alloc(&on_device_, bytes);
    if (error == kCudaSuccess) error = libraries_.cuda.host_alloc(&on_host_, bytes, 0);
    if (error == kCudaSuccess) return STW_OK;
    return fail(error_out, STW_ERROR_MEMORY, {0, bytes, 0},
                "A group found no %s of device memory and pinned host memory each: %s.",
                bytes_text(bytes).c_str(), libraries_.cuda_text(error).c_str());
}

Device::~Device()
{
    if (context_ == nullptr) return;
    const Unrecorded unrecorded(libraries_.cuda);
    {
        const Scope scope(*this);
        if (stream_ != nullptr) libraries_.cuda.stream_destroy(stream_);
        if (on_device_ != 0) libraries_.cuda.memory_free(on_device_);
        if (on_host_ != nullptr) libraries_.cuda.host_free(on_host_);
    }
    libraries_.cuda.context_release(device_);
}

}  // namespace stepwell::drivers
