// SPDX-License-Identifier: Apache-2.0
// Sums as the double takes them: in rank order, in f32 (f64 of f64), rounded once.
#pragma once

#include <cstdint>
#include <vector>

namespace stepwell::nccl_double {

// 0: none that the double knows.
uint64_t bytes_of_type(int type);
bool can_sum(int type);
// `parts` are the ranks' elements, in order.
void sum(const std::vector<const char *> &parts, char *to, uint64_t elements, int type);

}  // namespace stepwell::nccl_double
