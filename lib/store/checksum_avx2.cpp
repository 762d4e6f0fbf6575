// SPDX-License-Identifier: Apache-2.0
// XXH3-64 with 256-bit vectors: the same sums, faster where the processor has them. Compiled for
// AVX2 whatever the build is for; called only after the processor was asked.
#include "lib/store/checksum.h"

#if defined(__x86_64__)

// Before the target changes: nothing of these is to be compiled for it.
#include <immintrin.h>

#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR 2  // XXH_AVX2; clang's pragma defines no __AVX2__ by which it would be chosen
#include <xxhash.h>
static_assert(XXH_VECTOR == XXH_AVX2);

namespace stepwell::store {

uint64_t checksum_avx2(const void *data, uint64_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace stepwell::store

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
