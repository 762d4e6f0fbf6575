// SPDX-License-Identifier: Apache-2.0
// Ranges that NVIDIA's profilers draw beside kernels and copies, in the domain "stepwell". Built
// only where the header is (meson option nvtx); elsewhere, and where no profiler listens, they cost
// a call. Any thread. Never fails, never waits.
#pragma once

#include <cstdint>

namespace stepwell::observe {

enum class NvtxKind : uint8_t { kFetch, kTransfer, kUpdate };

constexpr uint64_t kNoRange = 0;

// A range may end on another thread than the one it began on. `bytes`: shown with it.
uint64_t nvtx_begin(NvtxKind kind, uint64_t bytes);
void nvtx_end(uint64_t range);
bool nvtx_is_built();

class NvtxRange {
public:
    explicit NvtxRange(NvtxKind kind, uint64_t bytes = 0) : range_(nvtx_begin(kind, bytes)) {}
    ~NvtxRange() { nvtx_end(range_); }
    NvtxRange(const NvtxRange &) = delete;
    NvtxRange &operator=(const NvtxRange &) = delete;

private:
    const uint64_t range_;
};

}  // namespace stepwell::observe
