// SPDX-License-Identifier: Apache-2.0
// A recorded step, made into one that can be replayed: what a recording does not see is put back by
// assumption. Pure.
#pragma once

#include "lib/schedule/trace/step.h"

namespace stepwell::schedule {

// Sums into gradients that go by private buffers, a flag per tensor: the library adds these behind
// the program. For a replay the program has the gradient itself instead, where it asked for the
// buffer, else where the sum was made.
void fold_sums(Step &step, const std::vector<bool> &buffers);

// The end of a view that nobody saw is taken to be just before the next call of its lane, behind
// the computing. Left out are a release without a fetch, and a discard of what is read afterwards
// although no write was seen. A sum is a write where the tensor has no contents then, else it adds
// to them. What an update asks for while the program has it comes behind that, and pieces of a
// tensor one behind the other. Copies (fetches of the program at any place that the CPU works in)
// go piece by piece, `copy_bytes` at a time.
Step completed(const Step &recorded, uint64_t copy_bytes);

}  // namespace stepwell::schedule
