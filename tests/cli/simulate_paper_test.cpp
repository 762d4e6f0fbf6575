// SPDX-License-Identifier: Apache-2.0
// What arXiv 2104.07857 measured, simulated from the files that ship. docs/paper.md has the
// same figures side by side; what is fitted is told there.
#include "simulate/files.h"

#include "lib/simulate/simulate.h"

#include <cstdio>

#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

using simulate::Answer;

Answer answer_of(const std::string &name, uint32_t ranks, bool exposed, bool overlap)
{
    const simulate::Machine machine = read_machine(TEST_DATA "/machines/dgx-2-v100.json");
    const simulate::Model model = read_model(std::string(TEST_DATA "/models/") + name + ".json");
    simulate::Options options;
    options.ranks = ranks;
    options.schedule = {overlap, exposed};
    options.largest = false;
    Result<Answer> made = simulate::simulate(model, machine, options);
    if (made.ok()) return made.take();
    ADD_FAILURE() << name << ": " << made.status().sentence();
    return {};
}

double tflops(const Answer &answer)
{
    return answer.flops_per_gpu / 1e12;
}

// For docs/paper.md: the log of the test has the figures.
void note(const std::string &what, double ours, double theirs)
{
    std::printf("%-28s %8.3f  paper %8.3f  %+.1f %%\n", what.c_str(), ours, theirs,
                100 * (ours / theirs - 1));
}

TEST(Paper, ThroughputOn512GpusIsWithinATenthOfThePaper)
{
    const struct {
        const char *model;
        double tflops;
    } rows[] = {{"paper-0.5t", 46.4},
                {"paper-1t", 49.0},
                {"paper-5t", 44.0},
                {"paper-10t", 42.9},
                {"paper-20t", 37.3}};
    for (const auto &row : rows) {
        const double ours = tflops(answer_of(row.model, 512, true, true));
        note(row.model, ours, row.tflops);
        EXPECT_NEAR(ours / row.tflops, 1, 0.10) << row.model;
    }
}

TEST(Paper, AnUpdateBesideTheNextForwardPassHidesAllOfIt)
{
    for (const char *model : {"paper-0.5t", "paper-1t", "paper-5t", "paper-10t", "paper-20t"}) {
        const Answer ours = answer_of(model, 512, false, true);
        note(std::string(model) + " overlapped", tflops(ours), 47.7);
        EXPECT_GE(ours.bound.seconds / ours.step_s, 0.97) << model;
    }
}

TEST(Paper, ScalingFrom64To512GpusIsSuperLinear)
{
    const struct {
        uint32_t ranks;
        double pflops;
    } rows[] = {{64, 2.81}, {128, 6.23}, {256, 11.86}, {512, 25.1}};
    double before = 0;
    for (const auto &row : rows) {
        const Answer answer = answer_of("paper-1t-auto", row.ranks, true, true);
        const double pflops = answer.flops_per_gpu * row.ranks / 1e15;
        note(std::to_string(row.ranks) + " GPUs, PFLOPS", pflops, row.pflops);
        EXPECT_NEAR(pflops / row.pflops, 1, 0.15) << row.ranks;
        EXPECT_GT(pflops, 2 * before) << row.ranks;
        before = pflops;
    }
}

TEST(Paper, PrefetchAndOverlapHelpAsMuchAsInThePaper)
{
    const struct {
        int batch;
        double ratio;
    } rows[] = {{2, 1.289}, {4, 1.187}, {8, 1.090}, {16, 1.021}};
    for (const auto &row : rows) {
        const std::string model = "paper-8b-" + std::to_string(row.batch);
        const double with = answer_of(model, 64, true, true).step_s;
        const double ratio = answer_of(model, 64, true, false).step_s / with;
        note("8B, batch " + std::to_string(row.batch), ratio, row.ratio);
        EXPECT_NEAR(ratio, row.ratio, 0.05) << row.batch;
    }
}

TEST(Paper, OneNodeTrainsATrillionParameters)
{
    const Answer answer = answer_of("paper-1t-auto", 16, true, true);
    EXPECT_EQ(answer.ranks, 16u);
    EXPECT_GT(answer.step_s, 0);
}

// What docs/simulate.md shows: 13B on a workstation, with its states partly on nvme.
TEST(Example, UpdatesInTheBackwardPassOverlapWithItClippedOrNot)
{
    const simulate::Machine machine = read_machine(TEST_DATA "/machines/workstation-24gb.json");
    simulate::Model model = read_model(TEST_DATA "/models/gpt-13b.json");
    simulate::Options options;
    options.largest = false;
    const auto of_bound = [&](simulate::Update update, double miss_rate) {
        model.update = update;
        model.miss_rate = miss_rate;
        Result<Answer> made = simulate::simulate(model, machine, options);
        EXPECT_TRUE(made.ok()) << made.status().sentence();
        if (!made.ok()) return 0.0;
        // Look aheads that are not due are no events: there were thirteen times as many.
        EXPECT_LT(made.value().events, 200'000u);
        return made.value().bound.seconds / made.value().step_s;
    };
    EXPECT_LT(of_bound(simulate::Update::kPending, 0), 0.75);
    EXPECT_GE(of_bound(simulate::Update::kBackward, 0), 0.97);
    EXPECT_GE(of_bound(simulate::Update::kSpeculative, 0.0012), 0.96);
    EXPECT_GE(of_bound(simulate::Update::kSpeculative, 0.07), 0.93);
}

// docs/paper.md has these figures.
TEST(Example, LargeModelsOnOneGpu)
{
    simulate::Options options;
    options.largest = false;
    const auto answer = [&](const std::string &model, const std::string &machine) {
        Result<Answer> made =
            simulate::simulate(read_model(TEST_DATA "/models/" + model + ".json"),
                               read_machine(TEST_DATA "/machines/" + machine + ".json"), options);
        EXPECT_TRUE(made.ok()) << made.status().sentence();
        return made.ok() ? made.take() : Answer{};
    };
    const Answer huge = answer("gpt-175b", "workstation-24gb-256gb");
    EXPECT_GE(huge.bound.seconds / huge.step_s, 0.95);
    EXPECT_LE(answer("gpt-120b", "h200-1.5tb").step_s, 28);
    const double vertical = answer("gpt-65b-vertical", "a100-40gb").step_s;
    EXPECT_GE(answer("gpt-65b-horizontal", "a100-40gb").step_s / vertical, 1.80);
    const double overlapped = answer("gpt-65b", "a100-40gb").step_s;
    options.schedule.exposed_update = true;
    EXPECT_GE(answer("gpt-65b", "a100-40gb").step_s / overlapped, 1.96);
}

}  // namespace
}  // namespace stepwell::cli
