// SPDX-License-Identifier: Apache-2.0
// Tensors that rest on a drive, read to a tier of a machine with a GPU.
#pragma once

#include "measure.h"
#include "tests/cuda/driver_calls.h"

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

struct DriveSetup {
    std::string module;
    std::string directory;
    uint64_t bytes = 0;
    uint64_t piece = 0;  // of a tensor
};

class Drive {
public:
    Drive(const stepwell::gpu::DriverCalls &calls, const DriveSetup &setup);
    ~Drive();
    Drive(const Drive &) = delete;
    Drive &operator=(const Drive &) = delete;

    // Seconds for all tensors from the drive to the tier, a few of them asked for ahead.
    double read(uint32_t tier);
    [[nodiscard]] uint64_t bytes() const { return tensors_.size() * piece_; }

private:
    void everything_out();

    const stepwell::gpu::DriverCalls &calls_;
    const uint64_t piece_;
    stw_runtime *runtime_ = nullptr;
    std::vector<stw_tensor *> tensors_;
    void *stream_ = nullptr;
};

}  // namespace bench
