// SPDX-License-Identifier: Apache-2.0
#include "lib/simulate/estimate.h"
#include "tests/unit/simulate/machines.h"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace stepwell::simulate {
namespace {

Answer answer_of(const Model &model, const Machine &machine, Options options)
{
    options.largest = false;
    Result<Answer> made = simulate(model, machine, options);
    if (made.ok()) return made.take();
    ADD_FAILURE() << made.status().sentence();
    return {};
}

Model on_nvme(uint64_t layers)
{
    Model model = small_model(layers, 2048);
    model.placement = {Home::kNvme, Home::kHost, Home::kNvme, Home::kHost};
    return model;
}

TEST(Simulate, OneRankStandsForAllOfThem)
{
    for (const uint32_t ranks : {1u, 2u, 4u, 8u}) {
        for (const bool exposed : {false, true}) {
            for (const bool overlap : {false, true}) {
                SCOPED_TRACE(testing::Message() << ranks << " ranks " << exposed << overlap);
                Options options;
                options.ranks = ranks;
                options.schedule = {overlap, exposed};
                const Model model = on_nvme(3);
                const Answer folded = answer_of(model, small_machine(), options);
                options.folded = false;
                const Answer all = answer_of(model, small_machine(), options);
                ASSERT_EQ(all.rank_step_ns.size(), ranks);
                for (const Instant step : all.rank_step_ns)
                    EXPECT_EQ(step, folded.rank_step_ns.at(0));
                EXPECT_EQ(all.stall_s, folded.stall_s);
                EXPECT_EQ(all.peak_bytes[kHostPlace], folded.peak_bytes[kHostPlace]);
                EXPECT_EQ(all.events, folded.events * ranks);
            }
        }
    }
}

TEST(Simulate, OneSlowRankHoldsUpAllThatGatherWithIt)
{
    Options options;
    options.ranks = 4;
    options.folded = false;
    const Model model = on_nvme(3);
    const Answer equal = answer_of(model, small_machine(), options);
    // It alone computes for two of the steps of before.
    options.slowness = {1, 1, 2 * equal.step_s / equal.compute_s, 1};
    const Answer slow = answer_of(model, small_machine(), options);
    EXPECT_GE(slow.step_s, 2 * equal.step_s);
    EXPECT_GT(slow.stall_s[static_cast<size_t>(Cause::kCollectives)],
              equal.stall_s[static_cast<size_t>(Cause::kCollectives)]);
}

TEST(Simulate, TheStepIsWorkAndStallAndNeverBelowTheBound)
{
    for (const uint32_t ranks : {1u, 4u, 8u}) {
        for (const bool exposed : {false, true}) {
            Options options;
            options.ranks = ranks;
            options.schedule.exposed_update = exposed;
            const Answer answer = answer_of(on_nvme(4), small_machine(), options);
            EXPECT_GE(answer.step_s, answer.bound.seconds * (1 - 1e-9));
            const double stall = std::accumulate(answer.stall_s.begin(), answer.stall_s.end(), 0.0);
            EXPECT_NEAR(answer.compute_s + stall, answer.step_s, 0.02 * answer.step_s);
        }
    }
}

TEST(Simulate, TheBoundCountsAllBytesThatMustMove)
{
    Machine machine = small_machine();
    machine.nodes = machine.gpus_per_node = machine.gpus_per_switch = machine.gpus_per_socket = 1;
    machine.device_bytes = 1 << 30;
    machine.host_bytes = 1 << 30;
    machine.achieved_flops_per_s = 500e12;
    Model model = small_model(6, 2048);
    model.placement = {Home::kHost, Home::kNvme, Home::kNvme, Home::kDevice};
    model.update = Update::kPending;
    const Answer answer = answer_of(model, machine, {});
    const auto bytes = [&answer](Route route) {
        return answer.bound.bytes[static_cast<size_t>(route)];
    };
    const uint64_t parameters = 2 * model.parameters();
    const uint64_t device = machine.device_bytes - model.working_bytes;
    EXPECT_GT(device, parameters + 6 * model.layers[0].checkpoint_bytes);
    EXPECT_EQ(bytes(Route::kHostToDevice), static_cast<double>(parameters));
    EXPECT_EQ(bytes(Route::kDeviceToHost), static_cast<double>(parameters)) << "of gradients";
    // Gradients, of two bytes as well, states and parameters at the end of the backward pass.
    const uint64_t far = 16 * model.parameters() - device - machine.host_bytes;
    EXPECT_EQ(bytes(Route::kNvmeToHost), static_cast<double>(far));
    EXPECT_EQ(bytes(Route::kHostToNvme), static_cast<double>(far));
    EXPECT_EQ(answer.bound.what, "nvme");
    EXPECT_EQ(answer.bound.seconds, 2 * static_cast<double>(far) / 4e9) << "it reads or writes";
    EXPECT_GE(answer.step_s, answer.bound.seconds);
    // Updates in the backward pass leave no gradients at its end; what counts is the end of the
    // forward pass.
    model.update = Update::kBackward;
    const uint64_t alive = 14 * model.parameters() + 6 * model.layers[0].checkpoint_bytes;
    EXPECT_EQ(answer_of(model, machine, {}).bound.bytes[static_cast<size_t>(Route::kHostToNvme)],
              static_cast<double>(alive - device - machine.host_bytes));
}

// Layers of one matrix each, of which each is a whole to gather.
Model matrices(uint64_t count)
{
    Model model = on_nvme(1);
    model.is_transformer = false;
    Layer layer = model.layers[0];
    layer.count = count;
    layer.parts.resize(1);
    model.layers = {layer};
    return model;
}

TEST(Simulate, AWholeThatIsStillThereIsNotGatheredAgain)
{
    Options options;
    options.ranks = 4;
    // Up to eight wholes are kept: all of six, from the forward pass to the update.
    EXPECT_EQ(answer_of(matrices(6), small_machine(), options).gathers, 6u);
    // Of more the last few of the forward pass are there when the backward pass begins, and each
    // that was computed again when its gradient is.
    const uint64_t gathers = answer_of(matrices(24), small_machine(), options).gathers;
    EXPECT_LT(gathers, 2u * 24);
    EXPECT_GE(gathers, 2u * 24 - 8);
    // One at a time: the last of the forward pass is the first of the backward pass.
    options.schedule.overlap = false;
    EXPECT_EQ(answer_of(matrices(24), small_machine(), options).gathers, 2u * 24 - 1);
}

// The ledger has learned the order by then: nearly all of what is gathered comes before it is
// fetched, and only the first of a step is waited for, since its update comes before it.
TEST(Simulate, WhatIsGatheredComesAheadOfItsFetch)
{
    Options options;
    options.ranks = 4;
    Model model = matrices(24);
    for (Part &part : model.layers[0].parts) part.forward_flops *= 1000;
    const Answer answer = answer_of(model, small_machine(), options);
    const auto waits = static_cast<size_t>(Cause::kCollectives);
    options.schedule.overlap = false;
    const Answer each = answer_of(model, small_machine(), options);
    EXPECT_GT(each.stall_s[waits], 20 * answer.stall_s[waits]);
}

TEST(Simulate, AnUpdateBesideTheNextForwardPassIsNoSlower)
{
    Options options;
    options.schedule.exposed_update = true;
    const Answer exposed = answer_of(on_nvme(6), small_machine(), options);
    options.schedule.exposed_update = false;
    const Answer beside = answer_of(on_nvme(6), small_machine(), options);
    EXPECT_LT(beside.step_s, exposed.step_s);
    options.schedule.overlap = false;
    EXPECT_GT(answer_of(on_nvme(6), small_machine(), options).step_s, beside.step_s);
}

// The update of a tile takes longer than the transfer of its parameter, which has to follow it:
// the update sets the pace, and the transfers are exposed only since it is late.
TEST(Simulate, AParameterWhoseUpdateIsPendingWaitsForTheUpdate)
{
    for (const uint32_t ranks : {1u, 4u}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks");
        Options options;
        options.ranks = ranks;
        Model model = small_model(6, 2048);
        model.placement = {Home::kHost, Home::kHost, Home::kHost, Home::kHost};
        model.update = Update::kPending;
        Machine machine = small_machine();
        machine.achieved_flops_per_s = 500e12;
        machine.collectives.in_node_bytes_per_s = 1e12;
        Result<Estimate> made = estimate(model, machine, options);
        ASSERT_TRUE(made.ok()) << made.status().sentence();
        EXPECT_EQ(made.value().limit.substr(0, 6), "update");
        const Answer &answer = made.value().whole;
        const auto stall = [&](Cause cause) { return answer.stall_s[static_cast<size_t>(cause)]; };
        EXPECT_GT(stall(Cause::kUpdate), 0.9 * answer.step_s);
        EXPECT_LT(stall(Cause::kParameters), 0.01 * answer.step_s);
    }
}

TEST(Simulate, UpdatesOfAPartOnTheDeviceMakeAStepShorter)
{
    Options options;
    options.ranks = 1;
    Machine machine = small_machine();
    machine.achieved_flops_per_s = 500e12;
    machine.host_bytes_per_s = 10e9;
    Model model = small_model(12, 2048);
    const Answer part = answer_of(model, machine, options);
    EXPECT_GT(part.rest_bytes[kDevicePlace], uint64_t{1} << 30);
    EXPECT_GT(part.rest_bytes[kHostPlace], uint64_t{1} << 30);
    model.placement = {Home::kHost, Home::kHost, Home::kHost, Home::kAuto};
    const Answer none = answer_of(model, machine, options);
    EXPECT_LT(part.step_s, 0.85 * none.step_s);
}

// One GPU, whose layers compute for 40 ms forward and 120 ms backward with the forward pass again,
// of 50 M parameters each, whose updates take 28 bytes of a parameter over 14 GB/s: 100 ms.
struct Slow {
    explicit Slow(Update update)
    {
        machine.nodes = machine.gpus_per_node = 1;
        machine.gpus_per_switch = machine.gpus_per_socket = 1;
        machine.host_bytes = 256ull << 30;
        machine.host_bytes_per_s = 14e9;
        model.layers = {{"l", kLayers, {{"t", 50'000'000, 0.2e12}}, 1 << 20}};
        model.placement = {Home::kHost, Home::kHost, Home::kHost, Home::kHost};
        model.update = update;
    }
    static constexpr uint64_t kLayers = 16;
    static constexpr double kForward = 0.04, kUpdate = 0.1;
    // Of a parameter or a gradient over a link of 6 GB/s.
    static constexpr double kTransfer = 100e6 / 6e9 + 10e-6;
    Machine machine = small_machine();
    Model model;
};

TEST(SimulatedUpdate, InTheBackwardPassOnlyTheFirstLayersIsExposed)
{
    Slow slow(Update::kBackward);
    const Answer answer = answer_of(slow.model, slow.machine, {});
    // The first layer's gradient is the last: its transfer, update and the parameter's follow.
    EXPECT_NEAR(answer.step_s,
                Slow::kLayers * 4 * Slow::kForward + Slow::kUpdate + 2 * Slow::kTransfer, 0.01);
    // Pending updates have the forward pass alone, and the first one's parameter waits for it.
    slow.model.update = Update::kPending;
    EXPECT_NEAR(answer_of(slow.model, slow.machine, {}).step_s,
                Slow::kLayers * (3 * Slow::kForward + Slow::kUpdate) + Slow::kForward +
                    2 * Slow::kTransfer,
                0.03);
    // Exposed ones have nothing.
    slow.model.update = Update::kExposed;
    EXPECT_NEAR(answer_of(slow.model, slow.machine, {}).step_s,
                Slow::kLayers * (4 * Slow::kForward + Slow::kUpdate) + 2 * Slow::kTransfer, 0.03);
}

// In their order they would end with the parameters that the forward pass begins with.
TEST(SimulatedUpdate, ThatTheNextForwardPassNeedsFirstGoesFirst)
{
    Slow slow(Update::kBackward);
    constexpr double kLonger =
        0.155;  // than the backward pass of a layer, shorter than both passes
    slow.machine.host_bytes_per_s *= Slow::kUpdate / kLonger;
    const double passes = Slow::kLayers * 4 * Slow::kForward;
    ASSERT_GT(Slow::kLayers * kLonger, Slow::kLayers * 3 * Slow::kForward + 2 * kLonger);
    EXPECT_LT(answer_of(slow.model, slow.machine, {}).step_s, passes + 3 * kLonger);
}

TEST(SimulatedUpdate, AMissMakesAllThatWasSpeculatedAgain)
{
    Slow slow(Update::kSpeculative);
    const Answer hit = answer_of(slow.model, slow.machine, {});
    EXPECT_EQ(hit.speculated, slow.model.parameters());
    EXPECT_NEAR(hit.step_s,
                Slow::kLayers * 4 * Slow::kForward + Slow::kUpdate + 2 * Slow::kTransfer, 0.02);
    EXPECT_EQ(hit.step_s, hit.hit_step_s);
    EXPECT_EQ(hit.miss_step_s, 0);
    slow.model.miss_rate = 0.25;
    const Answer mixed = answer_of(slow.model, slow.machine, {});
    EXPECT_EQ(mixed.hit_step_s, hit.step_s);
    EXPECT_NEAR(mixed.step_s, 0.75 * mixed.hit_step_s + 0.25 * mixed.miss_step_s, 1e-9);
    // The same as if all were pending, after the update of the first layer that turned out wrong.
    EXPECT_NEAR(mixed.miss_step_s,
                Slow::kLayers * (3 * Slow::kForward + Slow::kUpdate) + Slow::kForward +
                    Slow::kUpdate + 2 * Slow::kTransfer,
                0.03);
    double stall = 0;
    for (const double cause : mixed.stall_s) stall += cause;
    EXPECT_NEAR(mixed.compute_s + stall, mixed.step_s, 0.02 * mixed.step_s);
}

// The old state is read again from the drives: 12 bytes of each parameter, of a missed step.
TEST(SimulatedUpdate, AMissReadsTheKeptStatesAgain)
{
    Slow slow(Update::kSpeculative);
    slow.model.placement.states = Home::kNvme;
    slow.machine.links[0].bytes_per_s = 24e9;
    const double nvme = answer_of(slow.model, slow.machine, {}).links[0].bytes;
    slow.model.miss_rate = 0.5;
    const double more = answer_of(slow.model, slow.machine, {}).links[0].bytes - nvme;
    // What is read is written as well when it has been updated.
    const double states = 12 * static_cast<double>(slow.model.parameters());
    EXPECT_NEAR(more, 0.5 * 2 * states, 0.1 * states);
}

// A device with room for three of sixteen layers, which hold 100 MB of parameters each.
struct Micro : Slow {
    explicit Micro(bool vertical) : Slow(Update::kBackward)
    {
        machine.device_bytes = 512 << 20;
        machine.host_bytes_per_s = 1e12;
        model.layers[0].checkpoint_bytes = 8 << 20;
        model.micro_batches = {8, vertical};
    }
    [[nodiscard]] double bytes_to_device() { return answer_of(model, machine, {}).links[1].bytes; }
    static constexpr double kParameters = kLayers * 100e6;
};

// Each passes all parameters forward and backward; those at a turn are still there.
TEST(SimulatedMicroBatches, AllOfALayerFetchItsParametersOnce)
{
    const double parameters = Micro::kParameters;
    Micro vertical(true);
    // And the inputs of layers: read in the forward and in the backward pass, but for the last, and
    // the gradients between layers. Each is 1 MiB of a micro-batch.
    const double kept = 8.0 * Slow::kLayers * (1 << 20);
    EXPECT_GT(vertical.bytes_to_device(), 2 * parameters - 4 * 100e6);
    EXPECT_LT(vertical.bytes_to_device(), 2 * parameters + 3 * kept);
    Micro horizontal(false);
    // Gradients of earlier micro-batches come again as well, to be added to.
    EXPECT_GT(horizontal.bytes_to_device(), (8 * 2 + 7) * parameters - 24 * 4 * 100e6);
    EXPECT_LT(horizontal.bytes_to_device(), (8 * 2 + 7) * parameters + 8 * kept);
}

TEST(SimulatedMicroBatches, TheWorkIsTheSame)
{
    for (const bool vertical : {false, true}) {
        for (const uint32_t ranks : {1u, 4u}) {
            SCOPED_TRACE(testing::Message() << vertical << " " << ranks);
            Options options;
            options.ranks = ranks;
            Model model = on_nvme(4);
            const double whole = answer_of(model, small_machine(), options).compute_s;
            model.micro_batches = {4, vertical};
            const Answer answer = answer_of(model, small_machine(), options);
            EXPECT_NEAR(answer.compute_s, whole, 1e-6);
            EXPECT_GE(answer.step_s, answer.bound.seconds * (1 - 1e-9));
        }
    }
}

// 1 GB of activations a layer: each goes to the host and comes back, but for what still fits.
TEST(SimulatedActivations, ThatAreSwappedPassTheLinksOnceEachWay)
{
    Slow slow(Update::kBackward);
    slow.model.layers[0].activation_bytes = 1'000'000'000;
    slow.model.recomputes = false;
    EXPECT_NE(simulate(slow.model, slow.machine, {}).status().code(), STW_OK) << "16 GB on 4 GiB";
    for (const Home home : {Home::kHost, Home::kNvme}) {
        slow.model.placement.activations = home;
        const Answer answer = answer_of(slow.model, slow.machine, {});
        const double out = answer.links[2].bytes;
        const double gradients = 2 * static_cast<double>(slow.model.parameters());
        EXPECT_LT(out, gradients + 16e9);
        EXPECT_GT(out, gradients + 16e9 - 4e9);
        EXPECT_NEAR(answer.compute_s, Slow::kLayers * 3 * Slow::kForward, 1e-6);
    }
}

// A frozen matrix has a forward pass, that again, and the gradient of its input.
TEST(SimulatedFrozen, PartsHaveNoGradientStateOrUpdate)
{
    Slow slow(Update::kPending);
    slow.model.layers[0].parts[0].frozen = true;
    slow.model.layers[0].parts.push_back({"adapter", 1'000'000, 0.004e12});
    for (const uint32_t ranks : {1u, 2u}) {
        slow.machine.gpus_per_node = slow.machine.gpus_per_socket = ranks;
        const Answer answer = answer_of(slow.model, slow.machine, {});
        EXPECT_NEAR(answer.compute_s, Slow::kLayers * (3 * 0.04 + 4 * 0.0008), 1e-6);
        const uint64_t rest = (Slow::kLayers * (100'000'000 + 16 * 1'000'000)) / ranks;
        EXPECT_EQ(answer.rest_bytes[kHostPlace], rest + Slow::kLayers * (1 << 20));
        EXPECT_LT(answer.step_s, 1.1 * answer.compute_s + 0.1);
    }
}

// Two drives, with three and one quarter of the blocks: a step that waits for them takes as long as
// with one drive of four thirds of the first one's speed, or of four times the second one's.
TEST(SimulatedPaths, EachStoragePathCarriesItsShareOfTheBytes)
{
    Slow slow(Update::kPending);
    slow.model.placement.states = Home::kNvme;
    slow.machine.achieved_flops_per_s = 500e12;
    slow.machine.host_bytes_per_s = 1e12;
    slow.machine.host_bytes = 6ull << 30;
    Link drive = slow.machine.links[0];
    slow.machine.links[0].bytes_per_s = 3e9;
    slow.machine.links[0].path = 1;
    drive.name = "slow";
    drive.bytes_per_s = 1e9;
    drive.path = 2;
    slow.machine.links.push_back(drive);
    slow.machine.path_shares = {0.75, 0.25};
    const Answer two = answer_of(slow.model, slow.machine, {});
    const double bytes = two.links[0].bytes + two.links.back().bytes;
    EXPECT_NEAR(two.links.back().bytes / bytes, 0.25, 0.03);
    slow.machine.links.pop_back();
    slow.machine.links[0].path = 0;
    slow.machine.links[0].bytes_per_s = 4e9;
    slow.machine.path_shares.clear();
    const Answer one = answer_of(slow.model, slow.machine, {});
    EXPECT_NEAR(two.bound.seconds, one.bound.seconds, 1e-9);
    EXPECT_NEAR(two.step_s / one.step_s, 1, 0.1);
}

// Of one rank nothing is gathered: its parameters come up the links by the lookahead alone.
TEST(Simulate, ParametersAreBroughtAheadOfTheirUse)
{
    Options options;
    options.ranks = 1;
    Model model = on_nvme(6);
    for (Layer &layer : model.layers)
        for (Part &part : layer.parts) part.forward_flops *= 4;
    const Answer ahead = answer_of(model, small_machine(), options);
    const auto waits = static_cast<size_t>(Cause::kParameters);
    EXPECT_LT(ahead.stall_s[waits], 0.01 * ahead.step_s);
}

TEST(Simulate, AFasterLinkHelpsWhereTheLinkIsTheBound)
{
    Options options;
    Machine machine = small_machine();
    machine.links.front().bytes_per_s /= 16;
    const Answer slow = answer_of(on_nvme(4), machine, options);
    machine.links.front().stripes = 4;
    const Answer fast = answer_of(on_nvme(4), machine, options);
    EXPECT_LT(fast.step_s, slow.step_s);
    machine.links.front().bytes_per_s /= 50;
    const Answer slowest = answer_of(on_nvme(4), machine, options);
    EXPECT_GT(slowest.links.front().busy, 0.9);
}

TEST(Simulate, TheSameQuestionHasTheSameAnswer)
{
    const Answer one = answer_of(on_nvme(4), small_machine(), {});
    const Answer other = answer_of(on_nvme(4), small_machine(), {});
    EXPECT_EQ(one.rank_step_ns, other.rank_step_ns);
    EXPECT_EQ(one.events, other.events);
}

TEST(Simulate, TheCostGrowsWithTheTensorsAndNotWithTheRanks)
{
    Options options;
    options.blocks_max = 1 << 20;
    const Answer four = answer_of(on_nvme(4), small_machine(), options);
    const Answer eight = answer_of(on_nvme(8), small_machine(), options);
    EXPECT_LT(static_cast<double>(eight.events), 2.2 * static_cast<double>(four.events));
    Machine large = small_machine();
    large.nodes = 128;
    Model model = on_nvme(4);
    const Answer many = answer_of(model, large, options);
    EXPECT_EQ(many.ranks, 512u);
    EXPECT_LE(many.events, four.events);
}

// A slow processor hides what is moved, a fast one waits for it whatever the budgets.
TEST(SimulatedEstimate, SaysWhetherThereAreBudgetsWithoutStall)
{
    const Model model = on_nvme(3);
    const auto estimate_with = [&](double flops_per_s) {
        Machine machine = small_machine();
        machine.peak_flops_per_s = machine.achieved_flops_per_s = flops_per_s;
        Result<Estimate> made = estimate(model, machine, {});
        EXPECT_TRUE(made.ok()) << made.status().sentence();
        return made.ok() ? made.take() : Estimate{};
    };
    const Estimate slow = estimate_with(0.02e12);
    EXPECT_TRUE(slow.without_stall) << slow.waits;
    EXPECT_EQ(slow.limit, "computation");
    EXPECT_LE(slow.fast.budgets.device_bytes, slow.whole.budgets.device_bytes);
    EXPECT_LE(slow.fast.step_s, 1.01 * slow.whole.step_s);
    EXPECT_LT(slow.least.budgets.device_bytes, slow.whole.budgets.device_bytes);
    EXPECT_LE(slow.least.budgets.device_bytes, slow.fast.budgets.device_bytes);
    EXPECT_GE(slow.least.step_s, slow.fast.step_s);
    const Estimate fast = estimate_with(500e12);
    EXPECT_FALSE(fast.without_stall) << fast.waits;
    EXPECT_NE(fast.limit, "computation");
    EXPECT_LE(fast.waits, 1);
}

TEST(Simulate, MoreRanksThanThereAreAreRefused)
{
    Options options;
    const auto refusal = [&](uint32_t ranks) {
        options.ranks = ranks;
        Result<Answer> made = simulate(on_nvme(2), small_machine(), options);
        return std::string(made.ok() ? "" : made.status().sentence());
    };
    EXPECT_NE(refusal(9).find("9 ranks are more than the machine has GPUs, which is 8"),
              std::string::npos)
        << refusal(9);
    EXPECT_NE(refusal(6).find("6 ranks are no whole nodes"), std::string::npos) << refusal(6);
}

// A sum has its gradient before an update that is called after it, wherever the gradient rests.
TEST(Simulate, GradientsThatRestFarAwayAreSummedBeforeTheyAreUsed)
{
    for (const uint32_t ranks : {2u, 4u, 8u}) {
        for (const Schedule schedule :
             {Schedule{true, false}, Schedule{true, true}, Schedule{false, false}}) {
            Model model;
            model.layers = {{"l", 1, {{"t", 100'000'000, 0.01e12}}, 0}};
            model.placement.gradients = Home::kNvme;
            Options options;
            options.ranks = ranks;
            options.schedule = schedule;
            Result<Answer> made = simulate(model, small_machine(), options);
            EXPECT_TRUE(made.ok()) << ranks << " ranks: " << made.status().sentence();
        }
    }
}

// A machine and a model of which nobody thought.
class Drawn {
public:
    explicit Drawn(uint64_t seed) : random_(seed)
    {
        machine.nodes = pick<uint32_t>({1, 2});
        machine.gpus_per_node = pick<uint32_t>({1, 2, 4});
        machine.gpus_per_switch = std::min(machine.gpus_per_node, pick<uint32_t>({1, 2}));
        machine.gpus_per_socket = machine.gpus_per_node;
        machine.device_bytes = pick<uint64_t>({64, 256, 1024, 4096}) << 20;
        machine.host_bytes = pick<uint64_t>({1, 64, 512, 8192}) << 20;
        machine.nvme_bytes = pick<uint64_t>({0, 1, 64}) << 30;
        machine.shares_host_memory = pick<int>({0, 1, 2}) == 0;
        for (Link &link : machine.links) link.bytes_per_s *= pick<double>({0.1, 1, 10});
        if (machine.nvme_bytes == 0) machine.links.erase(machine.links.begin());
        model = small_model(pick<uint64_t>({1, 2, 5}), pick<uint64_t>({64, 512, 1536}));
        model.transformer.blocks_per_checkpoint = pick<uint64_t>({1, 2});
        model.layers = transformer_layers(model.transformer);
        model.model_parallel = pick<uint32_t>({1, 1, 2});
        model.micro_batches = {pick<uint32_t>({1, 1, 3}), pick<int>({0, 1}) == 1};
        if (pick<int>({0, 3}) == 0) model.layers[0].parts[0].frozen = true;
        model.placement.activations = pick<Home>({Home::kDevice, Home::kDevice, Home::kHost});
        model.update = pick<Update>({Update::kPending, Update::kBackward, Update::kSpeculative});
        if (model.update == Update::kSpeculative) model.miss_rate = pick<double>({0, 0.1, 1});
        model.recomputes = pick<int>({0, 1}) == 1;
        for (Home *home : {&model.placement.parameters, &model.placement.gradients,
                           &model.placement.states, &model.placement.checkpoints})
            *home = pick<Home>({Home::kAuto, Home::kAuto, Home::kDevice, Home::kHost, Home::kNvme});
        options.schedule = {pick<int>({0, 1}) == 1, pick<int>({0, 1}) == 1};
        options.largest = false;
    }

    Machine machine = small_machine();
    Model model;
    Options options;

private:
    template <class T> T pick(std::initializer_list<T> values)
    {
        return values.begin()[random_() % values.size()];
    }

    std::mt19937_64 random_;
};

TEST(Simulate, AnyMachineAndModelEndOrAreRefusedAndFoldedIsUnfolded)
{
    uint32_t answered = 0;
    for (uint64_t seed = 0; seed < 150; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Drawn drawn(seed);
        Result<Answer> folded = simulate(drawn.model, drawn.machine, drawn.options);
        drawn.options.folded = false;
        Result<Answer> all = simulate(drawn.model, drawn.machine, drawn.options);
        ASSERT_EQ(folded.ok(), all.ok());
        if (!folded.ok()) {
            const std::string why = folded.status().sentence();
            EXPECT_TRUE(why.find("does not fit") != std::string::npos ||
                        why.find("model-parallel degree") != std::string::npos)
                << why;
            continue;
        }
        ++answered;
        const Answer &answer = folded.value();
        EXPECT_GE(answer.step_s, answer.bound.seconds * (1 - 1e-9)) << answer.bound.what;
        for (size_t i = 0; i < answer.links.size(); ++i) {
            double least = 0;
            for (uint32_t route = 0; route < kRoutes; ++route)
                if ((drawn.machine.links[i].routes >> route & 1) != 0)
                    least += answer.bound.bytes[route];
            // Of updates in the backward pass, the last of a step may move their bytes in the next.
            const double share = drawn.model.update == Update::kPending ? 1 : 0.75;
            EXPECT_GE(answer.links[i].bytes, share * least - 1) << answer.links[i].name;
        }
        for (const Instant step : all.value().rank_step_ns)
            ASSERT_EQ(step, answer.rank_step_ns.at(0));
    }
    EXPECT_GT(answered, 50u);
}

}  // namespace
}  // namespace stepwell::simulate
