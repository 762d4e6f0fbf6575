// SPDX-License-Identifier: Apache-2.0
// From hyper-parameters to the coefficients of one step, once per parameter and step, in double on
// the calling thread. Knows the algorithms' formulas, nothing of vectors.
#include "lib/update/kernels/kernels.h"

#include "lib/update/kernels/float_environment.h"

#include <cmath>

namespace stepwell::kernels {
namespace {

// Relative error below exponent x 2^-53, as for any product of that many factors; beta^step has
// long vanished beside 1 where that would show in an fp32.
double power(double base, uint64_t exponent)
{
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        if ((exponent & 1) != 0) result *= base;
        base *= base;
    }
    return result;
}

void set_decay(Algorithm algorithm, const stw_hyper &hyper, Coefficients &c)
{
    c.decay = Decay::kNone;
    c.decay_factor = 0.0F;
    if (hyper.weight_decay == 0.0) return;
    if (algorithm == Algorithm::kAdamW || algorithm == Algorithm::kLion) {
        c.decay = Decay::kDecoupled;
        c.decay_factor = static_cast<float>(1.0 - hyper.lr * hyper.weight_decay);
    } else {
        c.decay = Decay::kCoupled;
        c.decay_factor = static_cast<float>(hyper.weight_decay);
    }
}

[[gnu::noinline]] Coefficients compute(Algorithm algorithm, const stw_hyper &hyper, uint64_t step,
                                       double gradient_scale)
{
    Coefficients c = {};
    const bool maximize = (hyper.flags & STW_HYPER_MAXIMIZE) != 0;
    c.gradient_scale = static_cast<float>(maximize ? -gradient_scale : gradient_scale);
    set_decay(algorithm, hyper, c);
    c.first_step = step <= 1;
    if (algorithm == Algorithm::kSgd) {
        c.has_momentum = hyper.momentum != 0.0;
        c.nesterov = (hyper.flags & STW_HYPER_NESTEROV) != 0;
        c.momentum = static_cast<float>(hyper.momentum);
        c.one_minus_dampening = static_cast<float>(1.0 - hyper.dampening);
        c.negative_step_size = static_cast<float>(-hyper.lr);
        return c;
    }
    c.eps = static_cast<float>(hyper.eps);
    if (algorithm == Algorithm::kAdagrad) {
        const double steps_before = static_cast<double>(step) - 1.0;
        c.negative_step_size =
            static_cast<float>(-(hyper.lr / (1.0 + steps_before * hyper.lr_decay)));
        return c;
    }
    c.beta1 = static_cast<float>(hyper.beta1);
    c.one_minus_beta1 = static_cast<float>(1.0 - hyper.beta1);
    c.beta2 = static_cast<float>(hyper.beta2);
    c.one_minus_beta2 = static_cast<float>(1.0 - hyper.beta2);
    if (algorithm == Algorithm::kLion) {
        c.negative_step_size = static_cast<float>(-hyper.lr);
        return c;
    }
    c.correction2_sqrt = static_cast<float>(std::sqrt(1.0 - power(hyper.beta2, step)));
    c.negative_step_size = static_cast<float>(-(hyper.lr / (1.0 - power(hyper.beta1, step))));
    return c;
}

[[gnu::noinline]] double add_in_order(double total, const double *sums, uint64_t count)
{
    for (uint64_t i = 0; i < count; ++i) total += sums[i];
    return total;
}

}  // namespace

Coefficients make_coefficients(Algorithm algorithm, const stw_hyper &hyper, uint64_t step,
                               double gradient_scale)
{
    const FloatEnvironment environment;
    return compute(algorithm, hyper, step, gradient_scale);
}

uint32_t state_count(Algorithm algorithm, const stw_hyper &hyper)
{
    switch (algorithm) {
    case Algorithm::kAdamW:
    case Algorithm::kAdam: return 2;
    case Algorithm::kAdagrad:
    case Algorithm::kLion: return 1;
    case Algorithm::kSgd: break;
    }
    return hyper.momentum != 0.0 ? 1 : 0;
}

double combine_block_sums(double total, const double *sums, uint64_t count)
{
    const FloatEnvironment environment;
    return add_in_order(total, sums, count);
}

}  // namespace stepwell::kernels
