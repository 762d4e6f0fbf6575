// SPDX-License-Identifier: Apache-2.0
// One launch to be made twice, on a GPU and by the processor: where its arrays lie in an arena,
// what they contain, and its argument for an arena at any address. Knows nothing of the CUDA API.
#pragma once

#include "drivers/cuda/kernels/launch.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::drivers::cuda::test {

struct GpuCase {
    Kernel kernel;
    uint32_t to_dtype;      // of values, or of the destination
    uint32_t from_dtype;    // of the gradient, or of the source
    uint32_t states_dtype;  // of updates
    uint64_t count;
    uint64_t offset;   // of the arrays from a boundary, in elements
    uint32_t variant;  // decay and flags of updates, the mode of sums, 1 for finite scans
};

// All there are of small sizes: dtypes, alignments, lengths around what the kernels handle at once.
std::vector<GpuCase> all_cases();

std::string name_of(const GpuCase &c);

// The one argument of a launch.
struct Argument {
    alignas(8) unsigned char bytes[256];
};

class Arena {
public:
    explicit Arena(const GpuCase &c);

    [[nodiscard]] uint64_t bytes() const { return bytes_; }
    // What the kernel reads and writes, once each.
    [[nodiscard]] uint64_t traffic_bytes() const;
    [[nodiscard]] Argument argument(uint64_t base) const;
    // Any bits, edges of the dtypes among them; around the arrays a pattern.
    void fill_any(unsigned char *memory, uint64_t seed) const;
    // Positive numbers of ordinary size.
    void fill_ordinary(unsigned char *memory) const;

private:
    struct Slot {
        uint64_t offset;
        uint64_t count;
        uint32_t dtype;  // 0: results of the scan, by bytes
        bool read;
        bool written;
    };
    void add(uint32_t dtype, uint64_t count, bool read, bool written);

    GpuCase case_;
    std::vector<Slot> slots_;
    uint64_t bytes_ = 0;
};

// Runs the launch by the processor, in host memory.
void run_by_processor(const GpuCase &c, Argument argument, uint32_t sm_count);

}  // namespace stepwell::drivers::cuda::test
