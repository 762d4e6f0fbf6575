// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/simulate/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stepwell::simulate {
namespace {

using testing::HasSubstr;

Result<Layout> laid_out(const Model &model, const Budgets &budgets, uint32_t ranks = 8)
{
    return lay_out(model, small_machine(), ranks, budgets, 16384);
}

TEST(SimulatedLayout, TheBytesOfAllTensorsAreThoseOfTheModel)
{
    const Model model = small_model(4, 2048);
    const Result<Layout> made = laid_out(model, budgets_of(small_machine()));
    ASSERT_TRUE(made.ok());
    uint64_t resting = 0;
    for (const uint64_t bytes : made.value().rest_bytes) resting += bytes;
    const uint64_t checkpoints = 4 * model.layers.front().checkpoint_bytes;
    EXPECT_EQ(resting, model.parameters() * 16 / 8 + checkpoints);
    EXPECT_EQ(made.value().tiles.size(), 48u);
}

TEST(SimulatedLayout, WhatIsPlacedByItselfGoesAsNearAsItFits)
{
    const Model model = small_model(8, 2048);
    Budgets budgets = budgets_of(small_machine());
    const Result<Layout> roomy = laid_out(model, budgets);
    ASSERT_TRUE(roomy.ok());
    EXPECT_EQ(roomy.value().rest_bytes[kHostPlace] + roomy.value().rest_bytes[kNvmePlace], 0u);
    EXPECT_EQ(roomy.value().tiles.front().update_at, kDevicePlace);
    budgets.device_bytes = 600 << 20;
    const Result<Layout> less = laid_out(model, budgets);
    ASSERT_TRUE(less.ok());
    EXPECT_GT(less.value().rest_bytes[kHostPlace], 0u);
    EXPECT_EQ(less.value().tiles.front().update_at, kHostPlace);
    budgets.host_bytes = 300 << 20;
    const Result<Layout> least = laid_out(model, budgets);
    ASSERT_TRUE(least.ok());
    EXPECT_GT(least.value().rest_bytes[kNvmePlace], 0u);
}

TEST(SimulatedLayout, WhatCannotBeIsToldWithTensorMomentAndBytes)
{
    Model model = small_model(8, 2048);
    model.placement.states = Home::kHost;
    Budgets budgets = budgets_of(small_machine());
    budgets.host_bytes = 256 << 20;
    Result<Layout> made = laid_out(model, budgets);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.status().sentence(), HasSubstr("' does not fit into host by "));
    EXPECT_THAT(made.status().sentence(), HasSubstr(" bytes when it is created: "));
    budgets.device_bytes = 64 << 20;
    made = laid_out(model, budgets);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.status().sentence(),
                HasSubstr("the backward pass of 'layer.0.attention_in' does not fit into device "
                          "memory by "));
    EXPECT_FALSE(laid_out(model, budgets_of(small_machine()), 9).ok());
}

TEST(SimulatedLayout, TheLargestModelFitsAndOneLayerMoreDoesNot)
{
    Model model = small_model(8, 2048);
    const Machine machine = small_machine();
    const Budgets budgets = budgets_of(machine);
    const uint64_t layers = layers_max(model, machine, 8, budgets, 16384);
    EXPECT_GT(layers, 8u);
    EXPECT_TRUE(lay_out(with_layers(model, layers), machine, 8, budgets, 16384).ok());
    EXPECT_FALSE(lay_out(with_layers(model, layers + 1), machine, 8, budgets, 16384).ok());
}

}  // namespace
}  // namespace stepwell::simulate
