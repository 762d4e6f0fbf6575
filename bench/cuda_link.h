// SPDX-License-Identifier: Apache-2.0
// What the link to a GPU can do: plain copies of the driver's, from and to pinned memory, as large
// as they come.
#pragma once

#include "tests/cuda/driver_calls.h"

#include <cstdint>

namespace bench {

class CudaLink {
public:
    CudaLink(const stepwell::gpu::DriverCalls &calls, uint64_t bytes);
    ~CudaLink();
    CudaLink(const CudaLink &) = delete;
    CudaLink &operator=(const CudaLink &) = delete;

    // Seconds for so many bytes, measured now.
    double up(uint64_t bytes) const;
    double down(uint64_t bytes) const;

private:
    template <class Copy> double timed(uint64_t bytes, const Copy &copy) const;

    const stepwell::gpu::DriverCalls &calls_;
    uint64_t bytes_;
    void *stream_ = nullptr;
    void *host_ = nullptr;
    stepwell::gpu::Address device_ = 0;
};

}  // namespace bench
