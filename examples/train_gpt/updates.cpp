// SPDX-License-Identifier: Apache-2.0
//
// The updates of a step: at which rate, early ones behind backward, and the verdict at its end.

#include "must.h"
#include "trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace train_gpt {

namespace {

constexpr double kPi = 3.141592653589793;

}  // namespace

double learning_rate_of(const Schedule &schedule, uint32_t step)
{
    const uint32_t warm_up = std::clamp(schedule.steps / 10, 1u, 20u);
    if (step < warm_up) return schedule.learning_rate * (step + 1) / warm_up;
    const double done =
        static_cast<double>(step - warm_up) / std::max(1u, schedule.steps - warm_up);
    return schedule.learning_rate * (0.1 + 0.45 * (1.0 + std::cos(kPi * std::min(done, 1.0))));
}

// As if the clip were not reached; the step behind backward is the verdict, and where it is reached
// these parameters are set back first. Losses are the same either way.
void Trainer::update_early(stw_tensor *const *parameters, uint32_t count)
{
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    options.flags = STW_UPDATE_SPECULATE;
    options.parameters = parameters;
    options.parameter_count = count;
    must(stw_optimizer_step(model_.optimizer(), &options, nullptr));
}

// Returns the seconds until the norm of all gradients was known. Waiting for it costs no overlap:
// without it no parameter may change, and the next forward begins with a parameter. The update
// itself goes on behind that forward, a few tensors ahead of it.
double Trainer::update(const Schedule &schedule, double *norm_out)
{
    const auto begin = std::chrono::steady_clock::now();
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    options.clip_norm = schedule.clip_norm;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    must(stw_optimizer_step(model_.optimizer(), &options, &result));
    *norm_out = result.norm;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Trainer::set_hyper(const Schedule &schedule, uint32_t step)
{
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.lr = learning_rate_of(schedule, step);
    hyper.beta2 = 0.99;
    hyper.weight_decay = 0.1;
    must(stw_optimizer_set_hyper(model_.optimizer(), kDecayGroup, &hyper));
    hyper.weight_decay = 0.0;
    must(stw_optimizer_set_hyper(model_.optimizer(), kPlainGroup, &hyper));
}

}  // namespace train_gpt
