// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/context.h"

#include "drivers/common/edge.h"

namespace stepwell::drivers::cuda {

stw_status Context::open(int ordinal, stw_driver_error *error_out)
{
    int count = 0;
    int error = api().device_count(&count);
    if (error != kSuccess || count == 0)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "CUDA shows no device to this process: %s; look at CUDA_VISIBLE_DEVICES and "
                    "nvidia-smi.",
                    library_.text(error != kSuccess ? error : kNoDevice).c_str());
    if (ordinal < 0 || ordinal >= count)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "CUDA shows %d devices to this process and none of ordinal %d.", count,
                    ordinal);
    error = api().device_get(&device_, ordinal);
    if (error == kSuccess) error = api().context_retain(&handle_, device_);
    if (error == kSuccess) return STW_OK;
    handle_ = nullptr;
    return fail(error_out, Library::status_of(error), {},
                "CUDA gives this process no context on device %d: %s.", ordinal,
                library_.text(error).c_str());
}

}  // namespace stepwell::drivers::cuda
