// SPDX-License-Identifier: Apache-2.0
// XXH3-64, compiled in: the library needs no libxxhash at run time.
#include "lib/store/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace stepwell::store {

uint64_t checksum_portable(const void *data, uint64_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

uint64_t checksum(const void *data, uint64_t bytes, uint64_t seed)
{
#if defined(__x86_64__)
    static const bool avx2 = __builtin_cpu_supports("avx2");
    if (avx2) return checksum_avx2(data, bytes, seed);
#endif
    return checksum_portable(data, bytes, seed);
}

}  // namespace stepwell::store
