// SPDX-License-Identifier: Apache-2.0
// What the device does with any operation: find the form of its results, make room for them and
// enqueue the CPU's kernel.
#pragma once

#include "tests/torch_double/work.h"

namespace stepwell::torch_double {

// Boxed, for each operation that has no kernel of its own here.
void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack);

// How many operations were enqueued, and the names of those that had to wait for their own results,
// as their forms depend on bytes: each once for each time.
struct Counts {
    uint64_t late = 0;
    std::vector<std::string> waited;
};
Counts take_counts();

}  // namespace stepwell::torch_double
