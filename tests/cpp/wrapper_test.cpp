// SPDX-License-Identifier: Apache-2.0
// stepwell.hpp: lifetimes, moves, abort when an exception unwinds, and that nothing stays behind.
// One thread, public API only.
#include <stepwell/stepwell.hpp>

#include "../support/budget_sentence.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace {

constexpr uint64_t kElements = 40000;  // three blocks, the last in part

stw::Runtime open_runtime()
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = ".";
    nvme.budget_bytes = 8u << 20;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 2u << 20;
    options.block_bytes = STW_BLOCK_64K;
    options.timeout_ns = 10ull * 1000000000;
    return stw::Runtime::open(options).value();
}

uint64_t open_views(const stw::Runtime &runtime)
{
    return runtime.tier(STW_TIER_HOST).value().open_views;
}

uint64_t tensors(const stw::Runtime &runtime)
{
    return runtime.tier(STW_TIER_HOST).value().tensors;
}

template <class Body> stw::Error error_of(Body &&body)
{
    try {
        body();
    } catch (const stw::Error &error) {
        return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return stw::Error(stw_error_info{});
}

TEST(Owner, TypesMoveAndDoNotCopy)
{
    static_assert(!std::is_copy_constructible_v<stw::Runtime>);
    static_assert(!std::is_copy_constructible_v<stw::Tensor>);
    static_assert(!std::is_copy_constructible_v<stw::Views>);
    static_assert(!std::is_copy_constructible_v<stw::Step>);
    static_assert(!std::is_copy_constructible_v<stw::Operation>);
    static_assert(std::is_nothrow_move_constructible_v<stw::Runtime>);
    static_assert(std::is_nothrow_move_constructible_v<stw::Tensor>);
    static_assert(std::is_nothrow_move_constructible_v<stw::Views>);
    static_assert(std::is_nothrow_move_constructible_v<stw::Step>);
    static_assert(std::is_nothrow_move_constructible_v<stw::Optimizer>);
}

TEST(Error, CarriesCodeSentenceAndNumbers)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Tensor tensor = stw::Tensor::create(runtime, "big", {1u << 20}).value();
    const stw::Error error = error_of(
        [&] { (void)stw::Views::fetch(runtime, {stw::want(tensor, STW_WRITE, STW_TIER_HOST)}); });
    EXPECT_EQ(error.code(), STW_ERROR_BUDGET);
    EXPECT_EQ(error.info().needed_bytes, 4u << 20);
    EXPECT_NE(std::string(error.what()).find("'big'"), std::string::npos) << error.what();
    EXPECT_EQ(budget_sentence_wrong(error.what()), nullptr) << error.what();
}

TEST(Error, OpenSaysWhichDirectory)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = "there-is-none";
    nvme.budget_bytes = 64u << 20;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 32u << 20;
    const stw::Error error = error_of([&] { (void)stw::Runtime::open(options); });
    EXPECT_EQ(error.code(), STW_ERROR_NOT_FOUND);
    EXPECT_NE(std::string(error.what()).find("there-is-none"), std::string::npos) << error.what();
}

TEST(Tensor, IsDestroyedWithItsOwner)
{
    const stw::Runtime runtime = open_runtime();
    {
        const stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
        EXPECT_EQ(tensors(runtime), 1u);
    }
    EXPECT_EQ(tensors(runtime), 0u);
}

TEST(Tensor, MoveTakesTheHandleAlong)
{
    const stw::Runtime runtime = open_runtime();
    stw::Tensor first = stw::Tensor::create(runtime, "a", {kElements}).value();
    stw_tensor *const handle = first.get();
    stw::Tensor second = std::move(first);
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that it is empty is the claim
    EXPECT_EQ(second.get(), handle);
    second = stw::Tensor::create(runtime, "b", {kElements}).value();
    EXPECT_EQ(tensors(runtime), 1u) << "assignment destroys what was owned";
    stw_tensor *const kept = second.detach();
    EXPECT_FALSE(second);
    stw::Tensor(kept).destroy();
    EXPECT_EQ(tensors(runtime), 0u);
}

TEST(Tensor, StaysOwnedWhenDestroyIsRefused)
{
    const stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
    tensor.fill(1);
    stw::Views views = stw::Views::fetch(runtime, {stw::want(tensor)}).value();
    EXPECT_EQ(error_of([&] { tensor.destroy(); }).code(), STW_ERROR_BUSY);
    EXPECT_TRUE(tensor);
    views.release();
    tensor.destroy();
    EXPECT_FALSE(tensor);
    EXPECT_EQ(tensors(runtime), 0u);
}

TEST(Tensor, WriteAndReadGiveTheBytesBack)
{
    const stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
    std::vector<float> in(kElements);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
    tensor.write(in.data());
    std::vector<float> out(kElements);
    tensor.read(out.data());
    EXPECT_EQ(in, out);
    EXPECT_EQ(tensor.info().value().state, uint32_t{STW_STATE_VALID});
    tensor.discard();
    EXPECT_EQ(tensor.info().value().state, uint32_t{STW_STATE_EMPTY});
}

TEST(Views, EndWithTheirScope)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
    {
        const stw::Views views = stw::Views::fetch(runtime, {stw::want(tensor, STW_WRITE)}).value();
        EXPECT_EQ(open_views(runtime), 1u);
        for (float &value : views[0].as<float>()) value = 7;
    }
    EXPECT_EQ(open_views(runtime), 0u);
    const stw::Views views = stw::Views::fetch(runtime, {stw::want(tensor)}).value();
    const stw::Span<const float> values = views[0].as<const float>();
    ASSERT_EQ(values.size(), kElements);
    for (const float value : values) ASSERT_EQ(value, 7);
}

TEST(Views, AreReleasedOnceThoughMoved)
{
    const stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
    tensor.fill(1);
    stw::Views first = stw::Views::fetch(runtime, {stw::want(tensor)}).value();
    stw::Views second = std::move(first);
    EXPECT_EQ(first.size(), 0u);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(second.size(), 1u);
    second = stw::Views::fetch(runtime, {stw::want(tensor), stw::want(tensor)}).value();
    EXPECT_EQ(open_views(runtime), 2u) << "assignment releases what was held";
    second.release();
    second.release();
    EXPECT_EQ(open_views(runtime), 0u);
}

TEST(Views, ReleaseWithTheFlagsThatWereSet)
{
    const stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
    tensor.fill(1);
    {
        stw::Views views = stw::Views::fetch(runtime, {stw::want(tensor, STW_READ_WRITE)}).value();
        views.set_release_flags(STW_RELEASE_DISCARD);
    }
    EXPECT_EQ(tensor.info().value().state, uint32_t{STW_STATE_EMPTY});
}

TEST(Views, AreAbandonedWhenAnExceptionUnwinds)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
    try {
        const stw::Views views = stw::Views::fetch(runtime, {stw::want(tensor, STW_WRITE)}).value();
        views[0].as<float>()[0] = 1;
        throw std::runtime_error("the write failed half way");
    } catch (const std::runtime_error &) {
    }
    EXPECT_EQ(open_views(runtime), 0u);
    EXPECT_EQ(tensor.info().value().state, uint32_t{STW_STATE_EMPTY})
        << "half a write must not be contents";
}

TEST(Step, IsAbortedWhenAnExceptionUnwinds)
{
    stw::Runtime runtime = open_runtime();
    const stw::Tensor gradient =
        stw::Tensor::create(runtime, "g", {kElements}, STW_F32, STW_ROLE_GRAD).value();
    const stw::Phase phase = stw::Phase::create(runtime, "train").value();
    try {
        const stw::Step step = stw::Step::begin(phase).value();
        {
            const stw::Views views =
                stw::Views::fetch(runtime, {stw::want(gradient, STW_REDUCE)}).value();
            views[0].as<float>()[0] = 1;
        }
        throw std::runtime_error("the step failed");
    } catch (const std::runtime_error &) {
    }
    EXPECT_EQ(open_views(runtime), 0u);
    runtime.drain();
    EXPECT_EQ(gradient.info().value().state, uint32_t{STW_STATE_EMPTY})
        << "what the step summed is dropped";
    stw::Step again = stw::Step::begin(phase).value();
    again.end();
}

TEST(Step, EndLeavesNothingToAbort)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Phase phase = stw::Phase::create(runtime, "train").value();
    stw_step_stats stats{};
    stats.struct_size = sizeof stats;
    {
        stw::Step step = stw::Step::begin(phase).value();
        stw::Step moved = std::move(step);
        moved.end(&stats);
    }
    EXPECT_EQ(stats.step, 1u);
    const stw::Step open = stw::Step::begin(phase).value();
    EXPECT_EQ(error_of([&] { (void)stw::Step::begin(phase); }).code(), STW_ERROR_BUSY);
}

TEST(Operation, CollectsItsViewsOrCancelsThem)
{
    const stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
    tensor.fill(5);
    {
        stw::Operation operation = stw::Operation::fetch(runtime, {stw::want(tensor)}).value();
        const stw::Views views = operation.collect().value();
        EXPECT_EQ(views[0].as<const float>()[0], 5);
        EXPECT_EQ(open_views(runtime), 1u);
    }
    EXPECT_EQ(open_views(runtime), 0u);
    (void)stw::Operation::fetch(runtime, {stw::want(tensor)}).value();
    tensor.destroy();
    EXPECT_EQ(tensors(runtime), 0u) << "an operation that was dropped holds no pin";
}

TEST(Optimizer, WaitsForItsStepBeforeItGoes)
{
    stw::Runtime runtime = open_runtime();
    {
        stw::Tensor weights =
            stw::Tensor::create(runtime, "w", {kElements}, STW_F32, STW_ROLE_PARAM).value();
        stw::Tensor gradient =
            stw::Tensor::create(runtime, "g", {kElements}, STW_F32, STW_ROLE_GRAD).value();
        weights.fill(1);
        gradient.fill(0.5);
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        options.algorithm = STW_OPTIMIZER_SGD;
        stw::Optimizer optimizer = stw::Optimizer::create(runtime, options).value();
        optimizer.add(weights, gradient);
        stw_hyper hyper = STW_HYPER_INIT;
        hyper.lr = 0.5;
        optimizer.set_hyper(0, hyper);
        optimizer.step();
        const stw::Views views = stw::Views::fetch(runtime, {stw::want(weights)}).value();
        for (const float value : views[0].as<const float>()) ASSERT_EQ(value, 0.75f);
        EXPECT_EQ(error_of([&] { (void)optimizer.state(weights, "none"); }).code(),
                  STW_ERROR_NOT_FOUND);
    }
    EXPECT_EQ(tensors(runtime), 0u);
    runtime.close();
    EXPECT_FALSE(runtime);
}

TEST(Runtime, StaysOpenWhileViewsAreOpen)
{
    stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
    tensor.fill(1);
    stw::Views views = stw::Views::fetch(runtime, {stw::want(tensor)}).value();
    EXPECT_EQ(error_of([&] { runtime.close(); }).code(), STW_ERROR_BUSY);
    EXPECT_TRUE(runtime);
    views.release();
    tensor.destroy();
    runtime.drain();
    const stw_tier_stats stats = runtime.tier(STW_TIER_HOST).value();
    EXPECT_EQ(stats.used_bytes, stats.staging_bytes);
    runtime.close();
}

}  // namespace
