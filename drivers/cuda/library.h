// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, loaded when a device is opened, so that the module loads anywhere.
#pragma once

#include <stepwell/driver.h>

#include "drivers/cuda/mapping_api.h"

#include <string>

namespace stepwell::drivers::cuda {

struct Library {
    Api api = {};
    MappingApi mapping = {};
    BatchApi batch = {};
    int version = 0;  // 1000 x major + 10 x minor, of what the driver supports

    // "CUDA_ERROR_OUT_OF_MEMORY (2, out of memory)"
    std::string text(int error) const;
    // What of ours a failure is.
    static stw_status status_of(int error);
};

// It stays loaded. UNSUPPORTED: it is absent, too old, or shows no device.
stw_status load(Library *library_out, stw_driver_error *error_out);

}  // namespace stepwell::drivers::cuda
