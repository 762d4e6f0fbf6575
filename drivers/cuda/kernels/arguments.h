// SPDX-License-Identifier: Apache-2.0
// The kernels' arguments: one struct by value for each. Addresses are device addresses; counts and
// positions are in elements. Both compilers check the layout. Arrays need only the alignment of
// their elements; 16-byte accesses are made if all arrays of a launch allow them.
#pragma once

#include <stepwell/types.h>

#include <cstddef>
#include <cstdint>

namespace stepwell::drivers::cuda {

enum Decay : uint32_t { kDecayNone, kDecayDecoupled, kDecayCoupled };
enum UpdateFlag : uint32_t {
    kFirstStep = 1,  // the momentum starts as the gradient itself, undampened
    kNesterov = 2
};

// Computed by the host in double, once for each parameter and step.
struct Coefficients {
    float gradient_scale;  // negative if the objective is maximized
    float decay_factor;    // decoupled: parameter x this; coupled: gradient + parameter x this
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float eps;
    float correction2_sqrt;    // sqrt(1 - beta2^step)
    float negative_step_size;  // Adam: -lr / (1 - beta1^step); Adagrad: decayed; else -lr
    float momentum;
    float one_minus_dampening;
    uint32_t decay;  // Decay
    uint32_t flags;  // UpdateFlag
    uint32_t reserved;
};
static_assert(sizeof(Coefficients) == 56 && offsetof(Coefficients, decay) == 44);

// A run of elements of one parameter. Arrays do not overlap; an algorithm uses the first of the
// states. States of BF16 are rounded by a draw that depends on the element's number in the tensor,
// the step and the state.
struct UpdateArguments {
    uint64_t values;    // in values_dtype: gets the rounded master; not used for F32
    uint64_t master;    // fp32; the values themselves if they are F32
    uint64_t gradient;  // in gradient_dtype
    uint64_t states[2];
    uint64_t count;
    uint64_t first_element;  // of the tensor, for the draws
    uint64_t step;           // for the draws
    uint32_t values_dtype;
    uint32_t gradient_dtype;
    uint32_t states_dtype;  // STW_F32, STW_BF16
    uint32_t reserved;
    Coefficients coefficients;
};
static_assert(sizeof(UpdateArguments) == 136 && offsetof(UpdateArguments, count) == 40 &&
              offsetof(UpdateArguments, values_dtype) == 64 &&
              offsetof(UpdateArguments, coefficients) == 80);

// average += (values - average) x weight, all fp32; weight is 1 - decay, rounded once from double.
struct AverageArguments {
    uint64_t average;
    uint64_t values;
    uint64_t count;
    float weight;
    uint32_t reserved;
};
static_assert(sizeof(AverageArguments) == 32 && offsetof(AverageArguments, weight) == 24);

// destination = source in another dtype. The arrays do not overlap.
struct ConvertArguments {
    uint64_t destination;
    uint64_t source;
    uint64_t count;
    uint32_t destination_dtype;
    uint32_t source_dtype;
};
static_assert(sizeof(ConvertArguments) == 32 && offsetof(ConvertArguments, source_dtype) == 28);

enum AccumulateMode : uint32_t {
    kAccumulateFirst,  // destination = source x scale
    kAccumulateAdd     // destination = destination + source x scale
};

struct AccumulateArguments {
    uint64_t destination;
    uint64_t source;
    uint64_t count;
    uint32_t destination_dtype;
    uint32_t source_dtype;
    float scale;
    uint32_t mode;  // AccumulateMode
};
static_assert(sizeof(AccumulateArguments) == 40 && offsetof(AccumulateArguments, scale) == 32);

// Sums are taken over runs of this many elements, counted from the start of the tensor.
inline constexpr uint32_t kScanElements = 4096;

struct ScanCounts {
    uint32_t nonfinite;
    float maximum;  // largest magnitude of the finite elements
};
static_assert(sizeof(ScanCounts) == 8 && offsetof(ScanCounts, maximum) == 4);

// The gradient starts at a multiple of kScanElements of its tensor. For each run, of which the
// last may be short, the kernel writes the sum of the squares of its finite elements, and the
// counts. The host adds the sums in index order. The results need not be zeroed before.
struct ScanArguments {
    uint64_t gradient;
    uint64_t count;
    uint64_t sums;    // double for each run
    uint64_t counts;  // ScanCounts for each run
    uint32_t gradient_dtype;
    uint32_t reserved;
};
static_assert(sizeof(ScanArguments) == 40 && offsetof(ScanArguments, gradient_dtype) == 32);

}  // namespace stepwell::drivers::cuda
