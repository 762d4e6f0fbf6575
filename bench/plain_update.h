// SPDX-License-Identifier: Apache-2.0
// The reference of update.memory: what memory alone allows. Reads 16 and writes 12 bytes a
// parameter over the four arrays of AdamW with the least arithmetic that touches them all.
#pragma once

#include <cstdint>

namespace bench {

// The four arrays of `elements` floats each; the gradient is read only.
struct UpdateArrays {
    float *parameter;
    float *exp_avg;
    float *exp_avg_sq;
    const float *gradient;
    uint64_t elements;
};

// Seconds of one pass with `threads` threads, each over one even part.
double plain_update_seconds(const UpdateArrays &arrays, uint32_t threads);

}  // namespace bench
