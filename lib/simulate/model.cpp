// SPDX-License-Identifier: Apache-2.0
#include "lib/simulate/model.h"

#include <algorithm>
#include <cmath>

namespace stepwell::simulate {
namespace {

// Of a matrix, for each parameter and token: a multiplication and an addition.
constexpr double kForwardFlops = 2;
constexpr uint64_t kActivationBytes = 2;  // half precision
// Of a master of 32 bits its parameter has the upper half, but for one bit.
constexpr uint64_t kSharedBits = 15;

struct Matrix {
    const char *name;
    uint64_t tiles;
    bool of_expert;
};
constexpr Matrix kMatrices[] = {
    {"attention_in", 3, false}, {"attention_out", 1, false}, {"up", 4, true}, {"down", 4, true}};

double tokens_of(const Transformer &transformer)
{
    return transformer.batch_per_gpu * static_cast<double>(transformer.sequence);
}

// Of a block, for each token: 16 of the hidden size, and for each head two scores for each token of
// the sequence. FlashAttention keeps a logarithm in single precision for each head instead.
double activation_elements(const Transformer &transformer)
{
    const double of_head =
        transformer.stores_scores ? 2 * static_cast<double>(transformer.sequence) : 2;
    return 16 * static_cast<double>(transformer.hidden) +
           static_cast<double>(transformer.heads) * of_head;
}

}  // namespace

uint64_t Model::parameters() const
{
    uint64_t sum = 0;
    for (const Layer &layer : layers)
        for (const Part &part : layer.parts) sum += layer.count * part.parameters;
    return sum;
}

uint64_t Model::layer_count() const
{
    uint64_t sum = 0;
    for (const Layer &layer : layers) sum += layer.count;
    return sum;
}

uint64_t Model::states_of(uint64_t count, bool on_device) const
{
    const uint64_t bits = 8 * state_bytes - (splits_masters && !on_device ? kSharedBits : 0);
    return (count * bits + 7) / 8;
}

uint64_t Model::activation_bytes() const
{
    const uint64_t count = micro_batches.count;
    uint64_t sum = (working_bytes + count - 1) / count;
    if (recomputes || swaps()) return sum;
    const uint64_t alive = micro_batches.vertical ? 1 : count;  // else one micro-batch's at a time
    for (const Layer &layer : layers)
        sum += layer.count * ((layer.activation_bytes + alive - 1) / alive);
    return sum;
}

uint64_t Model::kept_bytes(const Layer &layer) const
{
    const uint64_t bytes = recomputes ? layer.checkpoint_bytes
                           : swaps()  ? layer.activation_bytes
                                      : 0;
    return (bytes + micro_batches.count - 1) / micro_batches.count;
}

double Model::flops(double forward_passes) const
{
    double sum = 0;
    for (const Layer &layer : layers)
        for (const Part &part : layer.parts)
            sum += static_cast<double>(layer.count) * part.forward_flops *
                   (forward_passes + backward_passes(part.frozen));
    return sum;
}

std::vector<Layer> transformer_layers(const Transformer &transformer)
{
    const uint64_t tile = transformer.hidden * transformer.hidden;
    const double tokens = tokens_of(transformer);
    const double flops = kForwardFlops * tokens;  // of a parameter
    const bool adapts = transformer.lora_rank > 0;
    const double share =
        static_cast<double>(transformer.experts_active) / static_cast<double>(transformer.experts);
    Layer layer;
    layer.name = "layer";
    // Experts are of equal load.
    const auto add = [&](const Matrix &matrix, const std::string &name, double tokens_share) {
        const auto put = [&](const std::string &part, uint64_t parameters, bool frozen) {
            layer.parts.push_back(
                {part, parameters, flops * tokens_share * static_cast<double>(parameters), frozen});
        };
        for (uint64_t number = 0; number < matrix.tiles; ++number) put(name, tile, adapts);
        // One factor for each side, of hidden and tiles x hidden.
        if (adapts)
            put(name + "_lora", transformer.lora_rank * transformer.hidden * (1 + matrix.tiles),
                false);
    };
    for (const Matrix &matrix : kMatrices)
        if (!matrix.of_expert || transformer.experts == 1) add(matrix, matrix.name, 1);
    for (uint64_t expert = 0; transformer.experts > 1 && expert < transformer.experts; ++expert)
        for (const Matrix &matrix : kMatrices)
            if (matrix.of_expert)
                add(matrix, matrix.name + std::string("_") + std::to_string(expert), share);
    layer.checkpoint_bytes =
        kActivationBytes *
        static_cast<uint64_t>(std::llround(tokens * static_cast<double>(transformer.hidden)));
    // The blocks between two checkpoints are one layer here, with one input kept for all of them.
    const uint64_t every = std::max<uint64_t>(transformer.blocks_per_checkpoint, 1);
    const auto group_of = [&](uint64_t blocks, uint64_t count) {
        Layer group = layer;
        group.count = count;
        group.activation_bytes =
            kActivationBytes * blocks *
            static_cast<uint64_t>(std::llround(tokens * activation_elements(transformer)));
        for (uint64_t block = 1; block < blocks; ++block)
            group.parts.insert(group.parts.end(), layer.parts.begin(), layer.parts.end());
        return group;
    };
    std::vector<Layer> layers;
    if (transformer.layers >= every) layers.push_back(group_of(every, transformer.layers / every));
    if (transformer.layers % every > 0) layers.push_back(group_of(transformer.layers % every, 1));
    return layers;
}

uint64_t transformer_working_bytes(const Transformer &transformer)
{
    return static_cast<uint64_t>(std::llround(
        tokens_of(transformer) * static_cast<double>(transformer.blocks_per_checkpoint) *
        activation_elements(transformer)));
}

Result<Model> scaled(const Model &model, double parameters)
{
    if (!model.is_transformer) {
        return Status::error(STW_ERROR_INVALID,
                             "a list of layers has no other size; sweep a transformer, or give a "
                             "file for each size");
    }
    // Both grow with the cube root, as wider models are deeper.
    const Transformer &from = model.transformer;
    const double ratio = std::cbrt(parameters / static_cast<double>(model.parameters()));
    const uint64_t multiple = std::max<uint64_t>(from.heads, 1);
    Transformer to = from;
    const double hidden = static_cast<double>(from.hidden) * ratio / static_cast<double>(multiple);
    to.hidden = std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(hidden))) * multiple;
    const double a_layer = 12 * static_cast<double>(to.hidden) * static_cast<double>(to.hidden);
    to.layers = static_cast<uint64_t>(std::llround(parameters / a_layer));
    if (to.layers == 0) {
        return Status::error(STW_ERROR_INVALID,
                             "%.4g parameters are fewer than one layer of %llu heads has",
                             parameters, static_cast<unsigned long long>(from.heads));
    }
    Model result = model;
    result.transformer = to;
    result.layers = transformer_layers(to);
    result.working_bytes = transformer_working_bytes(to);
    return result;
}

Model with_layers(const Model &model, uint64_t layers)
{
    Model result = model;
    if (model.is_transformer) {
        result.transformer.layers = layers;
        result.layers = transformer_layers(result.transformer);
        return result;
    }
    const double ratio = static_cast<double>(layers) / static_cast<double>(model.layer_count());
    for (Layer &layer : result.layers)
        layer.count = static_cast<uint64_t>(static_cast<double>(layer.count) * ratio);
    return result;
}

}  // namespace stepwell::simulate
