// SPDX-License-Identifier: Apache-2.0
#include "lib/simulate/model.h"
#include "lib/simulate/paper.h"

#include <gtest/gtest.h>

namespace stepwell::simulate {
namespace {

Model model_of(const Transformer &transformer)
{
    Model model;
    model.is_transformer = true;
    model.transformer = transformer;
    model.layers = transformer_layers(transformer);
    model.working_bytes = transformer_working_bytes(transformer);
    return model;
}

TEST(SimulatedModel, ATransformerHasTheParametersAndTheWorkOfThePaper)
{
    const Model model = model_of({80, 10240, 128, 1024, 4, 1, true});
    const paper::Shape shape{80, 10240, 128, 4, 1024, 1};
    EXPECT_EQ(static_cast<double>(model.parameters()), paper::parameters(shape));
    EXPECT_EQ(model.step_flops(), paper::step_flops(shape));
    EXPECT_EQ(static_cast<double>(model.working_bytes), paper::activation_working_bytes(shape));
    EXPECT_EQ(static_cast<double>(80 * model.layers.front().checkpoint_bytes),
              paper::checkpoint_bytes(shape));
}

TEST(SimulatedModel, ScoresOfAttentionAreNotStoredUnlessAsked)
{
    const Transformer llama{32, 4096, 32, 131072, 1, 1};
    const Model flash = model_of(llama);
    EXPECT_EQ(flash.working_bytes, uint64_t{131072} * (16 * 4096 + 2 * 32));
    Transformer stores = llama;
    stores.stores_scores = true;
    const Model scores = model_of(stores);
    EXPECT_EQ(scores.working_bytes, uint64_t{131072} * (16 * 4096 + uint64_t{64} * 131072));
    EXPECT_EQ(scores.step_flops(), flash.step_flops());
}

TEST(SimulatedModel, WithoutRecomputationTheActivationsOfAllLayersAreKept)
{
    for (const uint64_t every : {1, 2, 3}) {
        Model model = model_of({80, 10240, 128, 1024, 4, every, true});
        EXPECT_EQ(model.activation_bytes(), model.working_bytes);
        model.recomputes = false;
        const paper::Shape shape{80, 10240, 128, 4, 1024, every};
        EXPECT_EQ(static_cast<double>(model.activation_bytes() - model.working_bytes),
                  paper::activation_bytes(shape));
    }
}

TEST(SimulatedModel, BlocksBetweenCheckpointsShareOne)
{
    for (const uint64_t every : {1, 2, 3, 7}) {
        const Model model = model_of({7, 64, 8, 128, 2, every});
        uint64_t checkpoints = 0;
        for (const Layer &layer : model.layers) checkpoints += layer.count;
        EXPECT_EQ(checkpoints, (7 + every - 1) / every) << every;
        EXPECT_EQ(model.parameters(), 12u * 7 * 64 * 64) << every;
    }
}

TEST(SimulatedModel, ScaledHasAboutAsManyParametersAsAskedAndWholeHeads)
{
    const Model model = model_of({128, 25600, 256, 1024, 5, 1});
    for (const double wanted : {0.1e12, 0.5e12, 5e12, 20e12}) {
        const Result<Model> made = scaled(model, wanted);
        ASSERT_TRUE(made.ok());
        EXPECT_NEAR(static_cast<double>(made.value().parameters()) / wanted, 1, 0.02);
        EXPECT_EQ(made.value().transformer.hidden % 256, 0u);
    }
    Model list = model;
    list.is_transformer = false;
    EXPECT_FALSE(scaled(list, 1e12).ok());
    EXPECT_FALSE(scaled(model, 10).ok());
}

TEST(SimulatedModel, RecomputingAddsAForwardPass)
{
    Model model = model_of({4, 64, 4, 128, 1, 1});
    const double with = model.step_flops();
    model.recomputes = false;
    EXPECT_EQ(model.step_flops() / with, 3.0 / 4);
}

// Factors of rank r beside matrices of h x h, 3h, 4h and 4h x h: r (4 + 2 + 5 + 5) h.
TEST(SimulatedModel, OfASplitMasterTheHostHasWhatItsParameterLacks)
{
    Model model;
    EXPECT_EQ(model.states_of(1000, false), 12'000u);
    model.splits_masters = true;
    EXPECT_EQ(model.states_of(1000, false), 10'125u) << "two halves of moments, 17 bits of masters";
    EXPECT_EQ(model.states_of(1, false), 11u) << "in whole bytes";
    EXPECT_EQ(model.states_of(1000, true), 12'000u) << "a device updates whole masters";
}

TEST(SimulatedModel, LoraFreezesTheMatricesAndAddsTwoFactorsToEach)
{
    Transformer transformer{10, 1024, 16, 512, 4, 1};
    Model model;
    model.layers = transformer_layers(transformer);
    const double whole = model.useful_flops();
    transformer.lora_rank = 8;
    model.layers = transformer_layers(transformer);
    uint64_t trained = 0;
    for (const Part &part : model.layers[0].parts)
        if (!part.frozen) trained += part.parameters;
    EXPECT_EQ(trained, 8u * 16 * 1024);
    EXPECT_EQ(model.parameters(), 10 * (12u * 1024 * 1024 + trained));
    // Two passes of the matrices, not three; three of the factors.
    EXPECT_NEAR(model.useful_flops(), whole * 2 / 3 + 10 * 6.0 * trained * 4 * 512, 1);
}

TEST(SimulatedModel, ExpertsHaveParametersOfAllAndWorkOfTheActiveOnes)
{
    Transformer transformer{10, 1024, 16, 512, 4, 1};
    transformer.experts = 8;
    transformer.experts_active = 2;
    Model model;
    model.layers = transformer_layers(transformer);
    EXPECT_EQ(model.parameters(), 10 * (4u + 8 * 8) * 1024 * 1024);
    EXPECT_NEAR(model.useful_flops(), 10 * (4.0 + 2 * 8) * 1024 * 1024 * 6 * 4 * 512, 1e3);
}

}  // namespace
}  // namespace stepwell::simulate
