// SPDX-License-Identifier: Apache-2.0
// The optimizers' loops over elements: one pass that reads gradient, master and states and writes
// master, states and the parameter's rounded copy. On the calling thread, no allocation. Compiled
// once per target. torch_order.cpp has the same rules with the roundings of another library.
#include "lib/update/kernels/float_environment.h"
#include "lib/update/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/update/kernels/update_chunk.cpp"
#include "lib/update/kernels/highway.h"
#include "lib/update/kernels/update_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stepwell::kernels::HWY_NAMESPACE {
namespace {

// AdamW and Adam. The tests on `c` are the same for all elements, so they are always predicted.
struct Moments {
    static constexpr uint32_t kStates = 2;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&states)[2])
    {
        if (c.decay == Decay::kDecoupled) {
            parameter = hn::Mul(parameter, hn::Set(d, c.decay_factor));
        } else if (c.decay == Decay::kCoupled) {
            gradient = hn::Add(gradient, hn::Mul(parameter, hn::Set(d, c.decay_factor)));
        }
        states[0] = hn::Add(hn::Mul(states[0], hn::Set(d, c.beta1)),
                            hn::Mul(gradient, hn::Set(d, c.one_minus_beta1)));
        const V share = hn::Mul(gradient, hn::Set(d, c.one_minus_beta2));
        states[1] = hn::Add(hn::Mul(states[1], hn::Set(d, c.beta2)), hn::Mul(share, gradient));
        const V root = hn::Div(hn::Sqrt(states[1]), hn::Set(d, c.correction2_sqrt));
        const V denominator = hn::Add(root, hn::Set(d, c.eps));
        const V numerator = hn::Mul(states[0], hn::Set(d, c.negative_step_size));
        return hn::Add(parameter, hn::Div(numerator, denominator));
    }
};

struct Sgd {
    static constexpr uint32_t kStates = 0;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V decayed(D d, const Coefficients &c, V gradient, V parameter)
    {
        if (c.decay == Decay::kNone) return gradient;
        return hn::Add(gradient, hn::Mul(parameter, hn::Set(d, c.decay_factor)));
    }

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&)[2])
    {
        gradient = decayed(d, c, gradient, parameter);
        return hn::Add(parameter, hn::Mul(gradient, hn::Set(d, c.negative_step_size)));
    }
};

struct SgdMomentum {
    static constexpr uint32_t kStates = 1;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&states)[2])
    {
        gradient = Sgd::decayed(d, c, gradient, parameter);
        if (c.first_step) {
            states[0] = gradient;  // whatever the buffer held
        } else {
            states[0] = hn::Add(hn::Mul(states[0], hn::Set(d, c.momentum)),
                                hn::Mul(gradient, hn::Set(d, c.one_minus_dampening)));
        }
        V direction = states[0];
        if (c.nesterov) {
            direction = hn::Add(gradient, hn::Mul(states[0], hn::Set(d, c.momentum)));
        }
        return hn::Add(parameter, hn::Mul(direction, hn::Set(d, c.negative_step_size)));
    }
};

// Duchi, Hazan, Singer 2011, with the decaying rate of the reference implementation.
struct Adagrad {
    static constexpr uint32_t kStates = 1;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&states)[2])
    {
        gradient = Sgd::decayed(d, c, gradient, parameter);
        states[0] = hn::Add(states[0], hn::Mul(gradient, gradient));
        const V denominator = hn::Add(hn::Sqrt(states[0]), hn::Set(d, c.eps));
        const V numerator = hn::Mul(gradient, hn::Set(d, c.negative_step_size));
        return hn::Add(parameter, hn::Div(numerator, denominator));
    }
};

// Chen and others 2023 (arXiv 2302.06675): the sign of an interpolation, a moment of its own rate.
struct Lion {
    static constexpr uint32_t kStates = 1;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&states)[2])
    {
        if (c.decay == Decay::kDecoupled) {
            parameter = hn::Mul(parameter, hn::Set(d, c.decay_factor));
        }
        const V mean = hn::Add(hn::Mul(states[0], hn::Set(d, c.beta1)),
                               hn::Mul(gradient, hn::Set(d, c.one_minus_beta1)));
        states[0] = hn::Add(hn::Mul(states[0], hn::Set(d, c.beta2)),
                            hn::Mul(gradient, hn::Set(d, c.one_minus_beta2)));
        const V down = hn::Set(d, c.negative_step_size);
        const V zero = hn::Zero(d);
        // Zero moves nothing, and a NaN stays one.
        const V up_or_none = hn::IfThenElse(hn::Lt(mean, zero), hn::Neg(down), mean);
        return hn::Add(parameter, hn::IfThenElse(hn::Gt(mean, zero), down, up_or_none));
    }
};

HWY_NOINLINE void run_update(Algorithm algorithm, const Coefficients &c, const Chunk &chunk)
{
    switch (algorithm) {
    case Algorithm::kAdamW:
    case Algorithm::kAdam: return by_gradient<Moments>(c, chunk);
    case Algorithm::kAdagrad: return by_gradient<Adagrad>(c, chunk);
    case Algorithm::kLion: return by_gradient<Lion>(c, chunk);
    case Algorithm::kSgd: break;
    }
    if (c.has_momentum) return by_gradient<SgdMomentum>(c, chunk);
    return by_gradient<Sgd>(c, chunk);
}

}  // namespace
}  // namespace stepwell::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "lib/update/kernels/dispatch.h"

namespace stepwell::kernels {

STEPWELL_DISPATCH(run_update);

void update_chunk(Algorithm algorithm, const Coefficients &coefficients, const Chunk &chunk)
{
    const FloatEnvironment environment;
    run_update_dispatch.chosen()(algorithm, coefficients, chunk);
}

}  // namespace stepwell::kernels
#endif
