// SPDX-License-Identifier: Apache-2.0
//
// An optimizer with stepwell.hpp: weights of 4 MiB learn the number 3 by AdamW. Weights, gradient
// and the two moments are 16 MiB together, in a host tier of 12 MiB. Shows: owners, views as spans,
// a step that aborts unless it is ended, updates that run behind the call, errors as exceptions.
// usage: update [DIRECTORY]

#include <stepwell/stepwell.hpp>

#include <cstdio>

namespace {

constexpr uint64_t kElements = 1 << 20;
constexpr int kSteps = 60;
constexpr float kTarget = 3;

stw::Runtime open(const char *directory)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = directory;
    nvme.budget_bytes = 64u << 20;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 12u << 20;
    options.block_bytes = STW_BLOCK_512K;
    return stw::Runtime::open(options).value();
}

// Mean squared distance to the target; its gradient goes into `gradient`.
double forward_backward(stw::Span<const float> weights, stw::Span<float> gradient)
{
    double loss = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        const float distance = weights[i] - kTarget;
        loss += static_cast<double>(distance) * distance;
        gradient[i] += 2 * distance;
    }
    return loss / static_cast<double>(weights.size());
}

double train(const char *directory)
{
    // In the order of use: destructors give back in the opposite one.
    const stw::Runtime runtime = open(directory);
    stw::Tensor weights =
        stw::Tensor::create(runtime, "w", {kElements}, STW_F32, STW_ROLE_PARAM).value();
    const stw::Tensor gradient =
        stw::Tensor::create(runtime, "w.grad", {kElements}, STW_F32, STW_ROLE_GRAD).value();
    weights.fill(0);

    stw_optimizer_options adam = STW_OPTIMIZER_OPTIONS_INIT;
    adam.algorithm = STW_OPTIMIZER_ADAMW;
    stw::Optimizer optimizer = stw::Optimizer::create(runtime, adam).value();
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.lr = 0.1;
    optimizer.set_hyper(0, hyper);
    optimizer.add(weights, gradient);

    const stw::Phase phase = stw::Phase::create(runtime, "train").value();
    double loss = 0;
    for (int i = 0; i < kSteps; ++i) {
        // Should anything below throw, the step's views are given back and its gradient dropped.
        stw::Step step = stw::Step::begin(phase).value();
        {
            // Waits for the pending update of `w` and for nothing else. The gradient's view begins
            // as zeros and is added to the gradient when it is released, here by the destructor.
            const stw::Views views = stw::Views::fetch(runtime, {stw::want(weights, STW_READ),
                                                                 stw::want(gradient, STW_REDUCE)})
                                         .value();
            loss = forward_backward(views[0].as<const float>(), views[1].as<float>());
        }
        optimizer.step();  // returns at once; the update runs behind the next step
        step.end();
        if (i % 10 == 0 || i == kSteps - 1) std::printf("step %2d  loss %.5f\n", i, loss);
    }
    return loss;
}

}  // namespace

int main(int count, char **words)
{
    try {
        const double loss = train(count > 1 ? words[1] : ".");
        std::printf("%s\n", loss < 0.1 ? "learned" : "did not learn");
        return loss < 0.1 ? 0 : 1;
    } catch (const stw::Error &error) {
        std::fprintf(stderr, "update: %s (%s)\n", error.what(), stw_status_string(error.code()));
        return 1;
    }
}
