// SPDX-License-Identifier: Apache-2.0
// What the double pretends to be, and which calls fail: the text that control.h describes.
#pragma once

#include "tests/cuda/double/entry.h"

#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace stepwell::cuda_double {

inline constexpr unsigned kDevicesMax = 8;
inline constexpr unsigned kAttributesMax = 512;
inline constexpr uint64_t kCostMax = 1'000'000'000;

struct Failure {
    Entry entry = Entry::kCount;
    uint64_t nth = 0;  // call from now on; 0: every one
    int code = 0;
};

// What things take, in virtual time. Published figures where there are any:
// - rates of copies and of device memory: an H100 SXM5 on PCIe 5 (Voltage Park's benchmark suite,
//   git.onestrm.cn/aigatech/vpbenchmarking: 54.8, 46.8 and 2,903 GB/s);
// - a call that copies: 5 to 7 us (DualPath, arXiv 2602.21548, section 5.2);
// - a call that launches, and how many are taken before one blocks: 4 to 5 us and about 1000 on
//   each stream (forums.developer.nvidia.com/t/68937);
// - mapping, of one handle of 2 MiB: an A100 (bench_vmm in github.com/magnate3/linux-riscv-dev). A
//   call for several handles is counted as so many: nothing was found of that.
// Assumed, until a GPU has been measured: all others.
struct Costs {
    uint64_t up_mb_per_s = 54'800;  // 10^6 bytes
    uint64_t down_mb_per_s = 46'800;
    uint64_t device_mb_per_s = 2'903'000;
    uint64_t copy_ns = 500;      // of the engine, before the bytes
    uint64_t kernel_ns = 3'000;  // the same
    uint64_t event_ns = 1'500;   // of a stream
    uint64_t copy_call_ns = 5'000;
    uint64_t launch_call_ns = 4'500;
    uint64_t event_call_ns = 1'000;
    uint64_t wake_ns = 20'000;  // of a thread that slept in a call
    uint64_t create_ns = 193'000;
    uint64_t map_ns = 1'450;
    uint64_t access_ns = 36'000;
    uint64_t unmap_ns = 25'600;
    uint64_t register_mb_per_s = 10'000;
};

struct Options {
    uint64_t seed = 1;
    uint64_t delay_us = 20;
    uint64_t devices = 1;
    uint64_t memory = uint64_t{256} << 20;
    uint64_t driver = 13000;
    uint64_t unified = 0;
    uint64_t busy = 0;
    uint64_t queue = 1024;
    uint64_t register_max = 0;
    uint64_t batch_max = 0;
    uint64_t exit = 0;
    Costs costs;
    std::vector<Failure> failures;
    std::map<int, int> attributes;  // of every device, instead of the usual ones
};

// Nothing where the text is not understood.
std::optional<Options> parse_options(std::string_view text);

// Counts down to the calls that fail.
class FailurePlan {
public:
    void reset(std::vector<Failure> failures) { failures_ = std::move(failures); }
    void add(const Failure &failure) { failures_.push_back(failure); }
    // The code that this call is to return, or 0.
    int next(Entry entry);

private:
    std::vector<Failure> failures_;
};

}  // namespace stepwell::cuda_double
