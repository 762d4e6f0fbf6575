// SPDX-License-Identifier: Apache-2.0
// Sums over ranks, in rank order: the same bits for any order of arrival, and for any rounding and
// denormal mode of the caller's thread.
#pragma once

#include <cstdint>

namespace stepwell::drivers {

// STW_F32, STW_F16, STW_BF16 or STW_F64; 0 for other dtypes.
uint32_t summed_element_bytes(uint32_t dtype);

// out[i] = parts[0][i] + parts[1][i] + ..., in f32 (f64 for STW_F64), rounded once to nearest even.
// `out` may be one of the parts; else it overlaps none.
void add_in_rank_order(uint32_t dtype, void *out, const void *const *parts, uint32_t part_count,
                       uint64_t elements);

}  // namespace stepwell::drivers
