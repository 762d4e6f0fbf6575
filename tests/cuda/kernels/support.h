// SPDX-License-Identifier: Apache-2.0
// What the tests of the GPU's kernels share: launches through the library that the double of the
// CUDA driver loads, at device addresses that mean nothing before they went through alias().
#pragma once

#include "drivers/cuda/kernels/launch.h"
#include "tests/cuda/double/kernel.h"
#include "tests/unit/update/kernels_support.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace stepwell::drivers::cuda::test {

using kernels::test::Array;
using kernels::test::kDtypes;
using kernels::test::Random;

// Around a group, a batch of groups, a thread block's round and a run of the scan.
inline constexpr uint64_t kCounts[] = {0, 1, 2, 3, 4, 5, 7, 63, 1023, 1025, 4095, 4096, 4097};

struct Geometry {
    uint32_t blocks;
    uint32_t threads;
};

// Offsets of arrays from a boundary, in elements: groups from the first on, after a head, and none,
// because no element begins a group of all arrays.
inline constexpr uint64_t kOffsets[][3] = {{0, 0, 0}, {1, 1, 1}, {7, 3, 3}, {0, 1, 2}, {5, 5, 4}};

uint64_t device_address(const void *host);
std::vector<stw_double_range> ranges_of(Kernel kernel, void *argument);
void launch(Kernel kernel, void *argument, Geometry geometry);
// As the driver would on a device of so many SMs.
void launch(Kernel kernel, void *argument, uint64_t count, uint32_t sm_count);

// Values of ordinary size, any bits, and what is on the edge of a dtype: zeros, denormals, the
// largest, what overflows, infinities, NaNs with payloads.
void mix(Array &array, Random &random);

// Equal to the bit, with the first difference in words.
testing::AssertionResult same(Array &expected, Array &found);

}  // namespace stepwell::drivers::cuda::test
