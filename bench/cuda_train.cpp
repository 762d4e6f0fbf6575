// SPDX-License-Identifier: Apache-2.0
// cuda.train: the GPT of examples/train_gpt_cuda with a device that holds a third of its states,
// beside one that holds them all. The losses must be the same to the bit. A step is measured
// against what it cannot be shorter than: forward and backward alone, with everything on the
// device, or the bytes that it moved over the link, at the bandwidth of the driver's own copies.
//
// usage: cuda_train --module FILE --text FILE [--layers N] [--width N] [--heads N] [--batch N]
//                   [--sequence N] [--steps N] [--block-bytes N] [--json FILE]
//        cuda_train --kernels
// --kernels prints how many bytes of kernels it has: 0 where the build had no nvcc.
#include "cuda_link.h"
#include "cuda_results.h"
#include "measure.h"
#include "tests/cuda/driver_calls.h"

#include "arithmetic.h"
#include "gpu.h"
#include "model.h"
#include "ranks.h"
#include "text.h"
#include "trainer.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

using train_gpt::StepRecord;

constexpr uint32_t kWarmUp = 2;        // steps: the first is recorded, the second planned
constexpr uint32_t kComputeSteps = 5;  // without update
constexpr uint64_t kStatesOverDevice = 3;
constexpr uint64_t kSlackBytes = uint64_t{64} << 20;

struct Setup {
    std::string module;
    train_gpt::Options options;
    train_gpt::ModelOptions model;
    train_gpt::ModelSize size;
    train_gpt::Text text;
};

struct Run {
    double compute = 0;  // seconds of forward and backward
    std::vector<StepRecord> records;
};

double median_of(const std::vector<StepRecord> &records)
{
    std::vector<double> seconds;
    for (size_t i = kWarmUp; i < records.size(); ++i) seconds.push_back(records[i].seconds);
    return bench::median(seconds);
}

// Of any contents: all tensors rest in the host tier at first.
stw_runtime *open(const Setup &setup, uint64_t device_bytes)
{
    const uint64_t bytes = setup.size.state_bytes + setup.size.checkpoint_bytes;
    bench::Budgets budgets;
    budgets.device_driver = setup.module;
    budgets.device_bytes = device_bytes;
    budgets.host_bytes = bytes + bytes / 4 + kSlackBytes;
    budgets.block_bytes = static_cast<uint32_t>(setup.options.block_bytes);
    return bench::open_runtime(budgets);
}

class Training {
public:
    Training(const Setup &setup, stw_runtime *runtime, const train_gpt::Model &model,
             train_gpt::Trainer &trainer)
        : setup_(setup),
          runtime_(runtime),
          model_(model),
          trainer_(trainer),
          tokens_(setup.model.shape.rows()),
          targets_(setup.model.shape.rows())
    {
    }
    std::vector<StepRecord> steps(uint32_t count, bool updates)
    {
        const train_gpt::Schedule schedule = {setup_.options.steps, setup_.options.learning_rate,
                                              setup_.options.clip_norm, updates};
        std::vector<StepRecord> records;
        for (uint32_t step = 0; step < count; ++step) {
            setup_.text.batch(setup_.options.seed, step, setup_.model.shape.batch,
                              setup_.model.shape.sequence, tokens_.data(), targets_.data());
            records.push_back(trainer_.step(schedule, step, tokens_.data(), targets_.data()));
            if (!updates) drop_sums();
        }
        return records;
    }

private:
    // Where no update takes it, the sum of a gradient goes on over steps.
    void drop_sums()
    {
        bench::must(stw_runtime_drain(runtime_, 0), "stw_runtime_drain");
        stw_tensor *summed = model_.gradient(train_gpt::kTokens);
        bench::must(stw_tensor_discard(&summed, 1), "stw_tensor_discard");
    }

    const Setup &setup_;
    stw_runtime *runtime_;
    const train_gpt::Model &model_;
    train_gpt::Trainer &trainer_;
    std::vector<uint8_t> tokens_;
    std::vector<uint8_t> targets_;
};

Run train(const Setup &setup, uint64_t device_bytes, bool measures_compute)
{
    Run run;
    const train_gpt::Ranks ranks(false, "");
    const auto arithmetic = train_gpt::make_arithmetic(setup.options, setup.model.shape, 0);
    stw_runtime *runtime = open(setup, device_bytes);
    {
        train_gpt::Model model(runtime, setup.model);
        train_gpt::Trainer trainer(runtime, model, *arithmetic, ranks, STW_TIER_DEVICE);
        trainer.check_fits();
        model.initialise();
        Training training(setup, runtime, model, trainer);
        if (measures_compute)
            run.compute = median_of(training.steps(kWarmUp + kComputeSteps, false));
        run.records = training.steps(setup.options.steps, true);
        bench::must(stw_runtime_drain(runtime, 0), "stw_runtime_drain");
    }
    bench::close_runtime(runtime);
    return run;
}

bool same_losses(const Run &one, const Run &other)
{
    bool same = true;
    for (size_t i = 0; i < one.records.size(); ++i) {
        if (one.records[i].loss == other.records[i].loss) continue;
        std::fprintf(stderr, "step %zu: loss %a with all on the device, %a with a third\n", i + 1,
                     one.records[i].loss, other.records[i].loss);
        same = false;
    }
    return same;
}

uint64_t moved(const StepRecord &record, uint32_t link)
{
    return record.link_bytes[link - 1];
}

bool measure(const stepwell::gpu::DriverCalls &calls, const Setup &setup, bench::Results *results)
{
    const uint64_t all = setup.size.state_bytes + setup.size.checkpoint_bytes;
    // Where they take up to half of a device they are updated there.
    const Run whole = train(setup, 2 * (all + all / 4 + kSlackBytes), true);
    const Run third = train(setup, setup.size.state_bytes / kStatesOverDevice, false);
    const bool same = same_losses(whole, third);

    const bench::CudaLink link(calls, std::min(kSlackBytes, all));
    link.up(1), link.down(1);  // the first ones are slower
    std::vector<bench::Pair> pairs;
    double up = 0, down = 0;
    for (size_t i = kWarmUp; i < third.records.size(); ++i) {
        const StepRecord &record = third.records[i];
        up = link.up(moved(record, STW_LINK_HOST_TO_DEVICE));
        down = link.down(moved(record, STW_LINK_DEVICE_TO_HOST));
        pairs.push_back({record.seconds, std::max({whole.compute, up, down})});
    }
    char against[256];
    std::snprintf(against, sizeof against,
                  "the longest of forward and backward, %.4g ms, and copies, %.4g ms up, %.4g ms "
                  "down; a step with all on the device is %.4g ms; losses are %s",
                  whole.compute * 1e3, up * 1e3, down * 1e3, median_of(whole.records) * 1e3,
                  same ? "the same" : "NOT the same");
    results->step("cuda.train", against, 0, same, pairs);
    return same;
}

Setup setup_of(const bench::Arguments &arguments)
{
    const auto number = [&](const char *name, uint32_t otherwise) {
        return static_cast<uint32_t>(arguments.number(name, otherwise));
    };
    Setup setup;
    setup.module = arguments.text("module", "");
    train_gpt::Options &options = setup.options;
    options.steps = number("steps", 12);
    options.block_bytes = arguments.number("block-bytes", 0);
    const train_gpt::Shape shape = {number("batch", 8), number("sequence", 512),
                                    number("width", 1024), number("heads", 16)};
    setup.model = {shape, number("layers", 8), options.seed, true, false};
    if (setup.module.empty()) bench::give_up("--module FILE names libstepwell-cuda.so");
    if (options.steps <= kWarmUp) bench::give_up("--steps is 3 or more: the first two warm up");
    if (shape.heads == 0 || shape.width % shape.heads != 0 || shape.rows() == 0)
        bench::give_up("--width is a multiple of --heads, and no number is 0");
    setup.size = train_gpt::model_size(setup.model);
    const std::string wrong = setup.text.load(arguments.text("text", ""), shape.sequence);
    if (!wrong.empty()) bench::give_up(wrong);
    return setup;
}

}  // namespace

int main(int argc, char **argv)
{
    if (argc == 2 && std::string(argv[1]) == "--kernels") {
        std::printf("%llu\n", static_cast<unsigned long long>(train_gpt_image_bytes));
        return 0;
    }
    const bench::Arguments arguments(argc, argv);
    const Setup setup = setup_of(arguments);
    const stepwell::gpu::DriverCalls calls = stepwell::gpu::open_driver();
    bench::Results results(arguments.text("json", ""));
    const bool same = measure(calls, setup, &results);
    stepwell::gpu::close_driver(calls);
    return same ? 0 : 1;
}
