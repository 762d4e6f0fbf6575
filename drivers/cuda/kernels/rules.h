// SPDX-License-Identifier: Apache-2.0
// What an optimizer does to one element. The operations and their order are those of PyTorch's
// single-tensor implementation; each rounds once to nearest, so the processor's kernels give the
// same bits. The branches on `c` are the same for all elements.
#pragma once

#include "drivers/cuda/kernels/arguments.h"
#include "drivers/cuda/kernels/portable.h"

namespace stepwell::drivers::cuda {

STW_CODE float decayed_parameter(const Coefficients &c, float parameter)
{
    return c.decay == kDecayDecoupled ? parameter * c.decay_factor : parameter;
}

STW_CODE float decayed_gradient(const Coefficients &c, float gradient, float parameter)
{
    return c.decay == kDecayCoupled ? gradient + parameter * c.decay_factor : gradient;
}

// AdamW and Adam.
struct Adam {
    static constexpr uint32_t kStates = 2;

    STW_CODE static float step(const Coefficients &c, float gradient, float parameter,
                               float (&states)[kStates])
    {
        parameter = decayed_parameter(c, parameter);
        gradient = decayed_gradient(c, gradient, parameter);
        states[0] = states[0] * c.beta1 + gradient * c.one_minus_beta1;
        states[1] = states[1] * c.beta2 + gradient * c.one_minus_beta2 * gradient;
        const float denominator = square_root(states[1]) / c.correction2_sqrt + c.eps;
        return parameter + states[0] * c.negative_step_size / denominator;
    }
};

struct Sgd {
    static constexpr uint32_t kStates = 0;

    STW_CODE static float step(const Coefficients &c, float gradient, float parameter, float (&)[1])
    {
        gradient = decayed_gradient(c, gradient, parameter);
        return parameter + gradient * c.negative_step_size;
    }
};

struct Momentum {
    static constexpr uint32_t kStates = 1;

    STW_CODE static float step(const Coefficients &c, float gradient, float parameter,
                               float (&states)[kStates])
    {
        gradient = decayed_gradient(c, gradient, parameter);
        if ((c.flags & kFirstStep) != 0) {
            states[0] = gradient;  // the buffer may hold anything
        } else {
            states[0] = states[0] * c.momentum + gradient * c.one_minus_dampening;
        }
        float direction = states[0];
        if ((c.flags & kNesterov) != 0) direction = gradient + states[0] * c.momentum;
        return parameter + direction * c.negative_step_size;
    }
};

struct Adagrad {
    static constexpr uint32_t kStates = 1;

    STW_CODE static float step(const Coefficients &c, float gradient, float parameter,
                               float (&states)[kStates])
    {
        gradient = decayed_gradient(c, gradient, parameter);
        states[0] = states[0] + gradient * gradient;
        const float denominator = square_root(states[0]) + c.eps;
        return parameter + gradient * c.negative_step_size / denominator;
    }
};

struct Lion {
    static constexpr uint32_t kStates = 1;

    STW_CODE static float step(const Coefficients &c, float gradient, float parameter,
                               float (&states)[kStates])
    {
        parameter = decayed_parameter(c, parameter);
        const float mean = states[0] * c.beta1 + gradient * c.one_minus_beta1;
        states[0] = states[0] * c.beta2 + gradient * c.one_minus_beta2;
        // Zero moves nothing, and a NaN stays one.
        float move = mean;
        if (mean > 0.0F) move = c.negative_step_size;
        if (mean < 0.0F) move = -c.negative_step_size;
        return parameter + move;
    }
};

}  // namespace stepwell::drivers::cuda
