// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/context.h"

#include "drivers/common/edge.h"

#include <cctype>
#include <cstdio>
#include <string>

namespace stepwell::drivers::cuda {

stw_status Context::open(int ordinal, stw_driver_error *error_out)
{
    const Unrecorded unrecorded(api());
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

// Drivers before CUDA 12.2 do not know the attribute; the kernel knows the device's node.
int Context::numa_node() const
{
    int node = -1;
    if (api().device_attribute(&node, kHostNumaId, device_) == kSuccess) return node;
    char id[32] = "";
    if (api().device_bus_id(id, sizeof id, device_) != kSuccess) return -1;
    for (char &letter : id) letter = static_cast<char>(std::tolower(letter));
    std::FILE *file =
        std::fopen((std::string("/sys/bus/pci/devices/") + id + "/numa_node").c_str(), "re");
    if (file == nullptr) return -1;
    if (std::fscanf(file, "%d", &node) != 1) node = -1;
    std::fclose(file);
    return node;
}

}  // namespace stepwell::drivers::cuda
