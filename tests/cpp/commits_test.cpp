// SPDX-License-Identifier: Apache-2.0
// stepwell.hpp: what was committed is back after a reopen, and what cannot be is told.
#include <stepwell/stepwell.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kElements = 40000;  // three blocks, the last in part

/// A store in a directory that goes with the test.
class Generations : public testing::Test {
protected:
    void SetUp() override { ASSERT_NE(::mkdtemp(&directory_[0]), nullptr); }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    /// `flags` without STW_RUNTIME_RESUME: a new store.
    stw::Runtime open(uint32_t flags, uint64_t generation = 0, uint32_t kept = 0)
    {
        stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
        nvme.path = directory_.c_str();
        nvme.budget_bytes = 16u << 20;
        nvme.driver_options = "allow_tmpfs=1";  // the build directory may lie on one
        stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
        options.nvme = &nvme;
        options.nvme_count = 1;
        options.host_bytes = 2u << 20;
        options.block_bytes = STW_BLOCK_64K;
        options.timeout_ns = 10ull * 1000000000;
        options.store_name = "run";
        options.flags = flags;
        options.resume_generation = generation;
        options.generations_kept = kept;
        return stw::Runtime::open(options).value();
    }

private:
    std::string directory_ = "generations-XXXXXX";
};

stw::Tensor durable(const stw::Runtime &runtime, const char *name)
{
    return stw::Tensor::create(runtime, name, {kElements}, STW_F32, STW_ROLE_PARAM,
                               STW_TENSOR_DURABLE)
        .value();
}

stw::Optimizer durable_adam(const stw::Runtime &runtime)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    options.algorithm = STW_OPTIMIZER_ADAM;
    options.flags = STW_OPTIMIZER_DURABLE;
    stw::Optimizer optimizer = stw::Optimizer::create(runtime, options).value();
    optimizer.set_hyper(0, STW_HYPER_INIT);
    return optimizer;
}

std::vector<float> contents(stw::TensorRef tensor)
{
    std::vector<float> values(kElements);
    tensor.read(values.data());
    return values;
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

bool says(const stw::Error &error, const char *words)
{
    return std::string(error.what()).find(words) != std::string::npos;
}

TEST_F(Generations, ContentsLabelAndMetadataAreBack)
{
    const std::string state("step 7\0 and more", 16);
    {
        stw::Runtime runtime = open(0);
        stw::Tensor weights = durable(runtime, "w");
        EXPECT_EQ(weights.info().value().restored, 0u);
        weights.fill(0.5);
        EXPECT_EQ(runtime.commit("first", state).value(), 1u);
        weights.fill(2);  // in no generation
    }
    const stw::Runtime runtime = open(STW_RUNTIME_RESUME);
    const stw_generation_info info = runtime.generation().value();
    EXPECT_EQ(info.generation, 1u);
    EXPECT_EQ(info.ranks, 1u);
    EXPECT_EQ(info.tensors, 1u);
    EXPECT_EQ(info.bytes, kElements * sizeof(float));
    EXPECT_EQ(info.metadata_bytes, state.size());
    EXPECT_NE(info.time_unix_ns, 0u);
    EXPECT_STREQ(info.label, "first");
    EXPECT_EQ(runtime.generation_metadata().value(), state);
    const stw::Tensor weights = durable(runtime, "w");
    EXPECT_EQ(weights.info().value().restored, 1u);
    EXPECT_EQ(durable(runtime, "v").info().value().restored, 0u);
    EXPECT_EQ(contents(weights), std::vector<float>(kElements, 0.5f));
}

TEST_F(Generations, OneIsResumedByItsNumber)
{
    {
        stw::Runtime runtime = open(0, 0, 3);
        stw::Tensor weights = durable(runtime, "w");
        for (int value = 1; value <= 3; ++value) {
            weights.fill(value);
            (void)runtime.commit(nullptr, std::to_string(value)).value();
        }
        EXPECT_EQ(runtime.generation_metadata(1).value(), "1");
        EXPECT_EQ(runtime.generation_metadata().value(), "3");
    }
    const stw::Runtime runtime = open(STW_RUNTIME_RESUME, 2, 3);
    EXPECT_EQ(runtime.generation().value().generation, 2u);
    EXPECT_EQ(contents(durable(runtime, "w")), std::vector<float>(kElements, 2));
}

TEST_F(Generations, StatesAndCountsOfADurableOptimizerAreBack)
{
    std::vector<float> values;
    std::vector<float> moments;
    {
        stw::Runtime runtime = open(0);
        stw::Tensor weights = durable(runtime, "w");
        stw::Tensor gradient = stw::Tensor::create(runtime, "g", {kElements}).value();
        stw::Optimizer adam = durable_adam(runtime);
        weights.fill(1);
        adam.add(weights, gradient);
        for (int step = 0; step < 3; ++step) {
            gradient.fill(0.25);
            adam.step();
        }
        EXPECT_EQ(runtime.commit().value(), 1u);
        values = contents(weights);
        moments = contents(adam.state(weights, "exp_avg").value());
    }
    const stw::Runtime runtime = open(STW_RUNTIME_RESUME);
    const stw::Tensor weights = durable(runtime, "w");
    const stw::Tensor gradient = stw::Tensor::create(runtime, "g", {kElements}).value();
    stw::Optimizer adam = durable_adam(runtime);
    adam.add(weights, gradient);
    EXPECT_EQ(adam.count(weights).value(), 3u);
    EXPECT_EQ(adam.state(weights, "exp_avg").value().info().value().restored, 1u);
    EXPECT_EQ(contents(adam.state(weights, "exp_avg").value()), moments);
    EXPECT_EQ(contents(weights), values);
    EXPECT_NE(values[0], 1);
}

TEST_F(Generations, AStoreIsResumedOrOverwrittenByNameAlone)
{
    const stw::Error none = error_of([&] { open(STW_RUNTIME_RESUME); });
    EXPECT_EQ(none.code(), STW_ERROR_NOT_FOUND);
    EXPECT_TRUE(says(none, "run")) << none.what();
    (void)open(0).commit("old").value();
    EXPECT_EQ(error_of([&] { open(0); }).code(), STW_ERROR_EXISTS);
    EXPECT_EQ(error_of([&] { open(STW_RUNTIME_RESUME, 9); }).code(), STW_ERROR_NOT_FOUND);
    EXPECT_EQ(error_of([&] { open(STW_RUNTIME_RESUME, 0, 3); }).code(), STW_ERROR_MISMATCH);
    EXPECT_STREQ(open(STW_RUNTIME_RESUME | STW_RUNTIME_OVERWRITE).generation().value().label,
                 "old");
    const stw::Runtime anew = open(STW_RUNTIME_OVERWRITE);
    const stw::Error empty = error_of([&] { (void)anew.generation(); });
    EXPECT_EQ(empty.code(), STW_ERROR_NOT_FOUND);
    EXPECT_TRUE(says(empty, "no generation yet")) << empty.what();
    EXPECT_EQ(error_of([&] { open(STW_RUNTIME_RESUME); }).code(), STW_ERROR_LOCKED);
}

TEST_F(Generations, WhatKeepsACommitIsThrown)
{
    stw::Runtime runtime = open(0);
    stw::Tensor weights = durable(runtime, "w");
    weights.fill(1);
    stw::Views views = stw::Views::fetch(runtime, {stw::want(weights, STW_READ_WRITE)}).value();
    const stw::Error busy = error_of([&] { (void)runtime.commit(); });
    EXPECT_EQ(busy.code(), STW_ERROR_BUSY);
    EXPECT_TRUE(says(busy, "'w'")) << busy.what();
    views.release();
    const std::string longer(STW_METADATA_BYTES_MAX + 1, 'm');
    EXPECT_EQ(error_of([&] { (void)runtime.commit("l", longer); }).code(), STW_ERROR_LIMIT);
    EXPECT_EQ(error_of([&] { (void)runtime.generation_metadata(); }).code(), STW_ERROR_NOT_FOUND);
    EXPECT_EQ(runtime.commit().value(), 1u);
    EXPECT_EQ(runtime.generation_metadata().value(), "");
}

TEST_F(Generations, ATensorIsCreatedAsItIsThere)
{
    {
        stw::Runtime runtime = open(0);
        durable(runtime, "w").fill(1);  // and destroyed
        stw::Tensor kept = durable(runtime, "v");
        kept.fill(1);
        (void)runtime.commit().value();
    }
    const stw::Runtime runtime = open(STW_RUNTIME_RESUME);
    const stw::Error error = error_of([&] {
        (void)stw::Tensor::create(runtime, "v", {7}, STW_F16, STW_ROLE_PARAM, STW_TENSOR_DURABLE);
    });
    EXPECT_EQ(error.code(), STW_ERROR_MISMATCH);
    EXPECT_TRUE(says(error, "'v' is f16")) << error.what();
    EXPECT_EQ(durable(runtime, "w").info().value().restored, 0u);
}

}  // namespace
