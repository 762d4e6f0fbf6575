// SPDX-License-Identifier: Apache-2.0
// Makes a recorded step replayable: what the recording cannot see is reconstructed. Pure.
#pragma once

#include "lib/schedule/trace/step.h"

namespace stepwell::schedule {

// Removes sums into gradients through private buffers (a flag for each tensor), which the library
// adds beside the program. Instead the program itself accesses the gradient where it asked for the
// buffer, or else where the sum was made.
void fold_sums(Step &step, const std::vector<bool> &buffers);

// A view whose end was not recorded ends just before the next call of its lane, after the compute
// time. A release without a fetch is dropped, and so is a discard of what is read afterwards
// without a recorded write. A sum is a write if the tensor is empty then, else it adds to the
// contents. Accesses of an update to a tensor that the program holds come after that, and pieces
// of a tensor one after the other. Copies (fetches of the program at any place where the CPU
// works) are split into pieces of `copy_bytes`.
Step completed(const Step &recorded, uint64_t copy_bytes);

// Of a completed step. Work that a program only enqueues on a device (the places of `enqueued`, a
// bit each) ends later than its release says, and the bytes cannot be evicted before: here each
// release at such a place comes after the next call of the program, if both have room there.
void delay_releases(Step &step, uint32_t enqueued, const residency::Config &config);

}  // namespace stepwell::schedule
