// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the optimizer: element-wise updates, the fused scan of a gradient, and changes
// of dtype, over plain memory. Runs on the thread that calls it; no allocation, no I/O, no state.
// Every result is the same to the bit on every instruction set (but those in torch's order), for
// every split of an array into chunks and whatever the caller's floating-point mode is. Knows
// nothing of tensors or tiers.
//
// Element types are STW_F32, STW_F16 and STW_BF16; arrays need the alignment of their element only.
// All arithmetic is + - x / and sqrt in fp32 (sums in fp64), each rounded once to nearest even,
// denormals kept. A NaN that arithmetic produces is stored as 0x7FC00000 (or the same rounded to 16
// bits): processors disagree on payloads, and the bits must not depend on the processor.
#pragma once

#include <stepwell/optimizer.h>

#include <cstdint>

namespace stepwell::kernels {

enum class Algorithm : uint32_t {
    kAdamW = STW_OPTIMIZER_ADAMW,  // decay decoupled from the gradient
    kAdam = STW_OPTIMIZER_ADAM,    // decay added to the gradient
    kSgd = STW_OPTIMIZER_SGD,
    kAdagrad = STW_OPTIMIZER_ADAGRAD,
    kLion = STW_OPTIMIZER_LION,  // decay decoupled
};

enum class Decay : uint32_t { kNone, kDecoupled, kCoupled };

// One parameter's step, from doubles to what the loop over its elements needs. All ranks and all
// chunks of the step use the same one.
struct Coefficients {
    float gradient_scale;  // negative when the objective is maximized
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
    Decay decay;
    bool has_momentum;
    bool first_step;  // the momentum buffer starts as the gradient itself, undampened
    bool nesterov;
};

// `step` is this parameter's, counted from 1. `gradient_scale` is the unscale factor times the clip
// coefficient. The powers of beta are products in a fixed order, not pow(): the C library has
// several of those and picks one by processor.
Coefficients make_coefficients(Algorithm algorithm, const stw_hyper &hyper, uint64_t step,
                               double gradient_scale);

// fp32 arrays that the algorithm keeps for each parameter: Adam's two moments, SGD's momentum,
// Adagrad's sum of squares, Lion's moment.
uint32_t state_count(Algorithm algorithm, const stw_hyper &hyper);

// A run of elements of one parameter; arrays do not overlap, but for values and master of an fp32
// parameter, which are the same.
struct Chunk {
    void *values;  // in values_dtype; gets the rounded master when it is not fp32
    uint32_t values_dtype;
    uint32_t gradient_dtype;
    float *master;         // fp32; the values themselves when they are fp32
    const void *gradient;  // in gradient_dtype; left as it is
    float *states[2];      // the first state_count() of them are used
    uint64_t count;
};

void update_chunk(Algorithm algorithm, const Coefficients &coefficients, const Chunk &chunk);

// Roots of n values, as stw_optimizer_options has it; null: each is the nearest fp32.
struct SquareRoot {
    void (*function)(int32_t n, const float *values, float *roots, int64_t mode) = nullptr;
    int64_t mode = 0;
    int32_t (*set_threads)(int32_t count) = nullptr;
};

// What STW_OPTIMIZER_TORCH_ORDER promises, of all algorithms but Lion: the bits of torch.optim. On
// this processor: a product and its sum are rounded once where it has AVX2 and FMA, and twice where
// it has not, as torch's kernels do. Powers are pow()'s, as Python's are.
Coefficients make_torch_coefficients(Algorithm algorithm, const stw_hyper &hyper, uint64_t step,
                                     double gradient_scale);
void update_chunk_as_torch(Algorithm algorithm, const Coefficients &coefficients,
                           const Chunk &chunk, const SquareRoot &square_root);

// The exponential moving average of parameters: decay x average + (1 - decay) x values, computed as
// average + (values - average) x (1 - decay), so that an average that has come to its values stays
// there, however decay rounds. Arrays do not overlap.
void average(float *average, const float *values, uint64_t count, double decay);
// 1 - decay, rounded once.
float average_weight(double decay);

// Which numbers narrow_state() draws: the same ones for the same element, step and state.
struct Draw {
    uint64_t first_element = 0;  // of the tensor; that of from[0]
    uint64_t step = 0;
    uint32_t state = 0;  // below 4
};

// A state kept in bf16: each element becomes one of its two neighbours there, the nearer one the
// more likely, so that the mean is kept. To nearest, what changes by less than 1 part in 512 a step
// would never change: a second moment with beta2 0.999 could grow and not shrink. The draw is a
// function of the element's number, the step and the state: results depend on no split, thread or
// processor. What bf16 has stays as it is.
void narrow_state(uint16_t *to, const float *from, uint64_t count, const Draw &draw);

// What an fp32 master has beyond the bf16 it was rounded to: its lower half, and a bit where that
// leaves the upper half open. The rounded value is the upper half, or one more where the lower half
// is above 0x8000. Of two masters with the lower half 0x8000, a tie, one was rounded up to the
// value that the other one has as it is: the bit tells them apart, as it tells a quiet NaN from one
// that the rounding made quiet. One bit in 8 of a byte, the first element's the lowest.
struct SplitMaster {
    uint16_t *low;
    uint8_t *open;
};

// The master that convert() made `rounded` of, to the bit. Where lower half and bit are 0, it is
// the bf16 value alone.
void merge_master(float *master, const uint16_t *rounded, const SplitMaster &from, uint64_t count);
// Writes every bit of the last byte.
void split_master(const SplitMaster &to, const float *master, uint64_t count);

// ------------------------------------------------------------------------------------------ scan

// Sums are taken over blocks of this many elements, counted from the beginning of the tensor.
inline constexpr uint64_t kScanBlockElements = 4096;

constexpr uint64_t scan_block_count(uint64_t elements)
{
    return elements / kScanBlockElements + (elements % kScanBlockElements != 0 ? 1 : 0);
}

struct ScanResult {
    uint64_t nonfinite = 0;  // NaNs and infinities
    float maximum = 0.0F;    // largest absolute value of the finite elements
};

// Results of different ranges join in any order.
constexpr ScanResult join(ScanResult a, ScanResult b)
{
    return {a.nonfinite + b.nonfinite, a.maximum > b.maximum ? a.maximum : b.maximum};
}

// One pass over a gradient that starts at a multiple of kScanBlockElements of its tensor. Writes
// sums_out[0 .. scan_block_count(count)): of each block the sum of the squares of its finite
// elements, in fp64. (A square of an fp32 is exact there.) Element i of a block is added to lane
// i mod 16, in order; then lane j += lane j+8, j+4, j+2, j+1. Not scaled: the norm of the scaled
// gradient is |scale| x sqrt(sum), and what is not finite decides for itself.
ScanResult scan_blocks(const void *gradient, uint32_t dtype, uint64_t count, double *sums_out);

// ((total + sums[0]) + sums[1]) + ...: call it in index order, with the result of the call before.
double combine_block_sums(double total, const double *sums, uint64_t count);

// ---------------------------------------------------------------------------------------- dtypes

// destination = source, rounded to nearest even; fp16 overflows to infinity. A NaN keeps its sign
// and the upper part of its payload. It becomes quiet, but from bf16 to fp32, which only moves
// bits; where both dtypes are the same nothing is looked at.
void convert(void *destination, uint32_t destination_dtype, const void *source,
             uint32_t source_dtype, uint64_t count);

enum class Reduce : uint32_t {
    kFirst,  // destination = source x scale
    kAdd     // destination = destination + source x scale
};

// A contribution to a gradient: product and sum in fp32, then rounded to the destination's dtype.
void accumulate(Reduce mode, void *destination, uint32_t destination_dtype, const void *source,
                uint32_t source_dtype, uint64_t count, double scale);
// As it is used: rounded once.
float accumulate_scale(double scale);

// destination[0 .. count) = value, rounded once from fp64.
void fill(void *destination, uint32_t dtype, uint64_t count, double value);

// --------------------------------------------------------------------------------------- targets

// Instruction sets this build has code for and this machine can run, best first. The kernels use
// the first one.
inline constexpr uint32_t kTargetsMax = 5;
uint32_t target_count();
const char *target_name(uint32_t index);
// Tests only: use that one from now on, in all threads. False if there is no such index.
bool force_target_for_test(uint32_t index);

}  // namespace stepwell::kernels
