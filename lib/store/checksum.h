// SPDX-License-Identifier: Apache-2.0
// The checksum of the store: XXH3-64 with a seed. One place, so that every stored sum is the same
// function of the bytes. Any thread; knows nothing of what the bytes are.
#pragma once

#include <cstdint>

namespace stepwell::store {

// Written into superblocks; a store with another kind is refused.
constexpr uint32_t kChecksumXxh3 = 1;

uint64_t checksum(const void *data, uint64_t bytes, uint64_t seed);

// How it is computed; the same sums.
uint64_t checksum_portable(const void *data, uint64_t bytes, uint64_t seed);
#if defined(__x86_64__)
uint64_t checksum_avx2(const void *data, uint64_t bytes, uint64_t seed);  // processors with AVX2
#endif

}  // namespace stepwell::store
