// SPDX-License-Identifier: Apache-2.0
// The virtual time of products of matrices. The double knows the time of a kernel by its bytes,
// which is little where a GPU computes long.
#pragma once

#include "tests/torch_double/work.h"

namespace stepwell::torch_double {

// 0, as it is at first: products take the time of their bytes alone.
void set_rate(double flops_per_s);
// What the work takes beside the time of its bytes.
uint64_t product_ns(const Work &work);

}  // namespace stepwell::torch_double
