// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/simulate/machines.h"

#include <algorithm>
#include <map>
#include <random>

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
    EXPECT_EQ(less.value().tiles.back().update_at, kHostPlace);
    budgets.host_bytes = 300 << 20;
    const Result<Layout> least = laid_out(model, budgets);
    ASSERT_TRUE(least.ok());
    EXPECT_GT(least.value().rest_bytes[kNvmePlace], 0u);
}

TEST(SimulatedLayout, TheHomesOfOneRoleAreSpreadOverTheLayers)
{
    Model model = small_model(8, 2048);
    model.placement.parameters = Home::kHost;  // and so no updates on the device
    Budgets budgets = budgets_of(small_machine());
    budgets.device_bytes = 600 << 20;
    for (const uint64_t host : {300u << 20, 420u << 20, 640u << 20}) {
        budgets.host_bytes = host;
        const Result<Layout> made = laid_out(model, budgets);
        ASSERT_TRUE(made.ok());
        const Layout &layout = made.value();
        const auto is_near = [&layout](const Tile &tile) {
            return layout.specs[tile.state].policy.home == kHostPlace;
        };
        const auto count = [&](size_t begin, size_t end) {
            return std::count_if(layout.tiles.begin() + static_cast<ptrdiff_t>(begin),
                                 layout.tiles.begin() + static_cast<ptrdiff_t>(end), is_near);
        };
        const size_t tiles = layout.tiles.size();
        const double near = static_cast<double>(count(0, tiles));
        EXPECT_GT(near, 0);
        EXPECT_LT(near, static_cast<double>(tiles));
        for (size_t end = 1; end <= tiles; ++end)
            EXPECT_NEAR(static_cast<double>(count(0, end)),
                        near * static_cast<double>(end) / static_cast<double>(tiles), 1.01);
        // No room for one more is left.
        const uint64_t state = layout.specs[layout.tiles[0].state].bytes;
        EXPECT_LT(host - layout.host_window_bytes - layout.promised_bytes[kHostPlace],
                  state + layout.block_bytes);
    }
}

TEST(SimulatedLayout, TheDeviceIsAHomeForAPartOfTheStates)
{
    Model model = small_model(8, 2048);
    Budgets budgets = budgets_of(small_machine());
    const auto tiles_on_device = [&](uint64_t device_bytes) {
        budgets.device_bytes = device_bytes;
        const Result<Layout> made = laid_out(model, budgets);
        EXPECT_TRUE(made.ok());
        size_t count = 0;
        for (const Tile &tile : made.ok() ? made.value().tiles : std::vector<Tile>()) {
            const bool here = tile.update_at == kDevicePlace;
            count += here;
            for (const TensorId tensor : {tile.parameter, tile.gradient, tile.state}) {
                EXPECT_EQ(made.value().specs[tensor].policy.home == kDevicePlace, here);
            }
        }
        return count;
    };
    const size_t some = tiles_on_device(600 << 20);
    const size_t more = tiles_on_device(800 << 20);
    EXPECT_GT(some, 0u);
    EXPECT_GT(more, some);
    EXPECT_LT(more, 96u);
    EXPECT_EQ(tiles_on_device(uint64_t{4} << 30), 96u);
    model.placement.states = Home::kNvme;
    EXPECT_EQ(laid_out(model, budgets).value().tiles.front().update_at, kHostPlace);
}

// Second versions need blocks where the state rests: on nvme, and on the host as many as fit.
TEST(SimulatedLayout, SpeculatedStatesHaveRoomTwice)
{
    Model model = small_model(8, 2048);
    model.update = Update::kSpeculative;
    model.placement = {Home::kHost, Home::kHost, Home::kNvme, Home::kHost};
    Budgets budgets = budgets_of(small_machine());
    const auto layout = [&] {
        Result<Layout> made = laid_out(model, budgets);
        EXPECT_TRUE(made.ok()) << made.status().sentence();
        return made.ok() ? made.take() : Layout{};
    };
    const auto count = [](const Layout &of) {
        return std::count_if(of.tiles.begin(), of.tiles.end(),
                             [](const Tile &tile) { return tile.kept != residency::kNone; });
    };
    const uint64_t states = 12 * model.parameters() / 8;
    EXPECT_EQ(layout().rest_bytes[kNvmePlace], 2 * states);
    EXPECT_EQ(count(layout()), 96);
    model.placement.states = Home::kHost;
    const Layout roomy = layout();
    EXPECT_EQ(count(roomy), 96);
    const uint64_t state = roomy.specs[roomy.tiles[0].state].bytes;
    budgets.host_bytes = roomy.promised_bytes[kHostPlace] + roomy.host_window_bytes - 30 * state;
    const Layout less = layout();
    EXPECT_NEAR(static_cast<double>(count(less)), 66, 3) << "30 have no room";
    EXPECT_LT(budgets.host_bytes - less.promised_bytes[kHostPlace] - less.host_window_bytes,
              state + less.block_bytes)
        << "no room for one more is left";
    for (size_t layer = 0; layer < 8; ++layer) {
        size_t kept = 0;
        for (size_t i = 12 * layer; i < 12 * (layer + 1); ++i)
            kept += less.tiles[i].kept != residency::kNone;
        EXPECT_GE(kept, 7u) << "they are spread over the layers";
    }
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

TEST(SimulatedLayout, WithoutRecomputationItNeedsTheActivationsOfAllLayersOnTheDevice)
{
    Model model = small_model(8, 2048);
    model.placement.states = Home::kHost;
    const Result<Layout> with = laid_out(model, budgets_of(small_machine()));
    ASSERT_TRUE(with.ok());
    model.recomputes = false;
    const Result<Layout> without = laid_out(model, budgets_of(small_machine()));
    ASSERT_TRUE(without.ok());
    const uint64_t kept = 8 * model.layers[0].activation_bytes;
    EXPECT_EQ(without.value().working_bytes, with.value().working_bytes + kept);
    for (const TensorId checkpoint : without.value().checkpoints)
        EXPECT_EQ(checkpoint, residency::kNone) << "it is one of the activations";
    Budgets budgets = budgets_of(small_machine());
    budgets.device_bytes = kept;
    Result<Layout> refused = laid_out(model, budgets);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().sentence(),
                HasSubstr("(of all layers, as the model does not recompute them)"));
    model.recomputes = true;
    EXPECT_TRUE(laid_out(model, budgets).ok());
}

uint64_t told_bytes(const std::string &sentence)
{
    const size_t at = sentence.find(" by ");
    return at == std::string::npos ? 0 : std::stoull(sentence.substr(at + 4));
}

// So many bytes more, and it fits; one less, and the same is said again. Where a tensor may go
// elsewhere, others that may as well take the room that comes first.
TEST(SimulatedLayout, WhatIsSaidToLackIsWhatLacks)
{
    std::mt19937_64 random(11);
    const auto drawn = [&](uint64_t from, uint64_t to) { return from + random() % (to - from); };
    std::map<std::string, int> seen;
    int fits = 0;
    for (int round = 0; round < 4000; ++round) {
        Model model = small_model(8, 2048);
        const Home homes[] = {Home::kDevice, Home::kHost, Home::kNvme};
        for (Home *home : {&model.placement.states, &model.placement.parameters,
                           &model.placement.gradients, &model.placement.checkpoints})
            *home = homes[drawn(0, 3)];
        Budgets budgets{drawn(1 << 20, 1 << 30), drawn(1 << 20, 1 << 30), drawn(0, 1 << 30)};
        Result<Layout> made = laid_out(model, budgets);
        if (made.ok()) continue;
        const std::string why = made.status().sentence();
        const std::string what = why.substr(0, why.find(" by "));
        uint64_t *tier = what.ends_with("nvme") ? &budgets.nvme_bytes
                         : what.ends_with("host") || what.ends_with("host memory")
                             ? &budgets.host_bytes
                             : &budgets.device_bytes;
        const uint64_t lacks = told_bytes(why);
        ASSERT_GT(lacks, 0u) << why;
        *tier += lacks - 1;
        Result<Layout> nearly = laid_out(model, budgets);
        ASSERT_FALSE(nearly.ok()) << why;
        EXPECT_EQ(told_bytes(nearly.status().sentence()), 1u) << why;
        *tier += 1;
        ++seen[what.substr(what.find(" does not"))];
        Result<Layout> enough = laid_out(model, budgets);
        // Another tensor may be next; it lacks whole blocks, as there are whole ones now.
        if (enough.ok()) {
            // What is updated has room beside what rests there.
            const uint64_t host = enough.value().promised_bytes[kHostPlace];
            EXPECT_LE(host + enough.value().host_window_bytes, budgets.host_bytes) << why;
            ++fits;
            continue;
        }
        EXPECT_GT(told_bytes(enough.status().sentence()), 1u) << why;
    }
    EXPECT_EQ(seen.size(), 5u) << "each tier, the backward pass and the update";
    EXPECT_GT(fits, 0);
}

TEST(SimulatedLayout, WithSoManyBytesMoreAllOfItFits)
{
    std::mt19937_64 random(12);
    const auto drawn = [&](uint64_t from, uint64_t to) { return from + random() % (to - from); };
    int told = 0;
    for (int round = 0; round < 50; ++round) {
        const Model model = small_model(8, 2048);
        Budgets budgets{drawn(300 << 20, 1 << 30), drawn(1 << 20, 300 << 20), drawn(0, 200 << 20)};
        Result<Layout> made = lay_out_told(model, small_machine(), 8, budgets, 16384);
        if (made.ok()) continue;
        const std::string why = made.status().sentence();
        const size_t at = why.find("; with ");
        ASSERT_NE(at, std::string::npos) << why;
        const uint64_t more = std::stoull(why.substr(at + 7));
        uint64_t *tier = why.find("more in nvme") != std::string::npos   ? &budgets.nvme_bytes
                         : why.find("more in host") != std::string::npos ? &budgets.host_bytes
                                                                         : &budgets.device_bytes;
        *tier += more - 1;
        EXPECT_FALSE(laid_out(model, budgets).ok()) << why;
        *tier += 1;
        EXPECT_TRUE(laid_out(model, budgets).ok()) << why;
        ++told;
    }
    EXPECT_GT(told, 10);
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
