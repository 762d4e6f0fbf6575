// SPDX-License-Identifier: Apache-2.0
// NCCL and the CUDA driver, loaded when a group is opened, so that the module itself loads on any
// machine.
#pragma once

#include <stepwell/driver.h>

#include "drivers/nccl/api.h"

#include <string>

namespace stepwell::drivers {

struct Libraries {
    NcclApi nccl = {};
    CudaApi cuda = {};
    int nccl_version = 0;

    // "2.21.5"
    std::string version_text() const;
    std::string cuda_text(int error) const;
    std::string nccl_text(ncclComm_t comm, int result) const;
};

// Of an ncclResult_t.
stw_status nccl_status(int result);

// They stay loaded. UNSUPPORTED: one is absent or too old; the sentence says which.
stw_status load_libraries(Libraries *libraries_out, stw_driver_error *error_out);

}  // namespace stepwell::drivers
