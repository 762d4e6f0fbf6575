// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <cmath>

namespace stepwell::cli {
namespace {

using simulate::Home;
using simulate::Layer;
using simulate::Model;
using simulate::Update;

constexpr uint64_t kLayersMax = 10'000;
constexpr uint64_t kTilesMax = 12 * kLayersMax;
constexpr uint64_t kHiddenMax = 1 << 24;
constexpr uint64_t kHeadsMax = 1 << 16;
constexpr uint64_t kSequenceMax = 1 << 26;
constexpr double kBatchMax = 1e6;
constexpr uint64_t kExpertsMax = 4096;
constexpr uint64_t kMicroBatchesMax = 4096;
constexpr double kOpsMax = 2e6;  // tiles times micro-batches, of a simulated step
constexpr uint64_t kElementBytesMax = 8;
constexpr uint64_t kStateBytesMax = 64;
constexpr uint64_t kParallelMax = 65'536;
constexpr double kLayerFlopsMax = 1e24;
constexpr double kTensorBytesMax = 1e17;

Home home(Keys &keys, const char *key)
{
    if (!keys.has(key)) return Home::kAuto;
    return static_cast<Home>(keys.choice(key, {"auto", "device", "host", "nvme"}));
}

void read_transformer(Keys keys, Model *model)
{
    simulate::Transformer &transformer = model->transformer;
    transformer.layers = keys.whole("layers", 1, kLayersMax);
    transformer.hidden = keys.whole("hidden", 1, kHiddenMax);
    transformer.heads = keys.whole("heads", 1, kHeadsMax);
    transformer.sequence = keys.whole("sequence", 1, kSequenceMax);
    transformer.batch_per_gpu = keys.number("batch_per_gpu", 1e-6, kBatchMax);
    transformer.blocks_per_checkpoint = keys.whole_or("blocks_per_checkpoint", 1, kLayersMax, 1);
    transformer.stores_scores = !keys.boolean_or("flash_attention", true);
    transformer.lora_rank = keys.whole_or("lora_rank", 1, kHiddenMax, 0);
    transformer.experts = keys.whole_or("experts", 1, kExpertsMax, 1);
    transformer.experts_active = keys.whole_or("experts_active", 1, kExpertsMax, 1);
    if (transformer.lora_rank > transformer.hidden)
        keys.refuse("lora_rank", "is more than the hidden size");
    if (transformer.experts_active > transformer.experts)
        keys.refuse("experts_active", "is more than there are experts");
    if (transformer.hidden % transformer.heads != 0)
        keys.refuse("hidden", "is no multiple of the number of heads");
    if (transformer.blocks_per_checkpoint > transformer.layers)
        keys.refuse("blocks_per_checkpoint", "is more than there are layers");
    const double hidden = static_cast<double>(transformer.hidden);
    const double tiles = 4 + 8 * static_cast<double>(transformer.experts);
    if (tiles * static_cast<double>(transformer.layers) * hidden * hidden > kParametersMax)
        keys.refuse("hidden", "makes more than 1e16 parameters");
    if (tiles * static_cast<double>(transformer.layers) > static_cast<double>(kTilesMax))
        keys.refuse("experts", "make more than 120000 tensors");
    // More than any of its activations, with or without scores.
    const double tokens = transformer.batch_per_gpu * static_cast<double>(transformer.sequence);
    const double wide = 16 * hidden + 2 * static_cast<double>(transformer.heads) *
                                          static_cast<double>(transformer.sequence);
    if (tokens * static_cast<double>(transformer.blocks_per_checkpoint) * wide > kTensorBytesMax)
        keys.refuse("batch_per_gpu", "makes more than 1e17 bytes of activations");
    keys.source();
    keys.done();
    model->is_transformer = true;
    model->layers = simulate::transformer_layers(transformer);
    model->working_bytes = simulate::transformer_working_bytes(transformer);
}

Layer read_layer(Keys &keys, const Model &model)
{
    Layer layer;
    layer.name = keys.word("name");
    layer.count = keys.whole_or("count", 1, kLayersMax, 1);
    layer.checkpoint_bytes =
        rounded(keys.quantity_or("checkpoint", Unit::kBytes, 0, kTensorBytesMax, 0));
    layer.activation_bytes = rounded(keys.quantity_or(
        "activations", Unit::kBytes, 0, kTensorBytesMax, static_cast<double>(model.working_bytes)));
    const double flops = keys.quantity("forward", Unit::kFlops, 1, kLayerFlopsMax);
    double all = 0;
    for (Keys &tensor : keys.objects("tensors")) {
        simulate::Part part;
        part.name = tensor.word("name");
        if (tensor.has("parameters"))
            part.parameters =
                rounded(tensor.quantity("parameters", Unit::kCount, 1, kParametersMax));
        else
            part.parameters = rounded(tensor.quantity("size", Unit::kBytes, 1, kTensorBytesMax)) /
                              model.parameter_bytes;
        if (part.parameters == 0) tensor.refuse("size", "is less than one parameter");
        part.frozen = tensor.boolean_or("frozen", false);
        tensor.source();
        tensor.done();
        all += static_cast<double>(part.parameters);
        layer.parts.push_back(part);
    }
    for (simulate::Part &part : layer.parts)
        part.forward_flops = flops * static_cast<double>(part.parameters) / all;
    keys.source();
    keys.done();
    return layer;
}

void read_update(Keys &keys, Model *model)
{
    const bool clips = keys.boolean_or("clip", false);
    if (clips) model->update = Update::kSpeculative;
    if (keys.has("update"))
        model->update = static_cast<Update>(
            keys.choice("update", {"pending", "exposed", "backward", "speculative"}));
    if (clips && model->update == Update::kBackward)
        keys.refuse("update",
                    "is 'backward', where no update can wait for the norm that 'clip' needs; "
                    "write 'speculative' or 'pending'");
    if (!clips && model->update == Update::kSpeculative)
        keys.refuse("update", "is 'speculative', but without 'clip' no update can turn out wrong; "
                              "write 'backward'");
    if (keys.has("miss_rate")) model->miss_rate = keys.number("miss_rate", 0, 1);
    if (keys.has("miss_rate") && model->update != Update::kSpeculative)
        keys.refuse("miss_rate", "needs the update 'speculative': nothing else is made again");
}

void read_optimizer(Keys keys, Model *model)
{
    // Of a parameter in half precision: master, and what the rule remembers, in single precision.
    const uint64_t bytes[] = {12, 8, 8, 4};
    if (keys.has("name"))
        model->state_bytes = bytes[keys.choice("name", {"adamw", "momentum", "adagrad", "sgd"})];
    if (keys.has("state_bytes")) {
        model->state_bytes = keys.whole("state_bytes", 1, kStateBytesMax);
        model->splits_masters = false;
    }
    if (keys.has("masters")) {
        const bool splits = keys.choice("masters", {"whole", "split"}) == 1;
        if (splits && !model->splits_masters)
            keys.refuse("masters", "is 'split', which needs parameters of 2 bytes and an "
                                   "optimizer with a name");
        model->splits_masters = splits;
    }
    read_update(keys, model);
    keys.source();
    keys.done();
}

void read_placement(Keys keys, bool recomputes, simulate::Placement *placement)
{
    placement->parameters = home(keys, "parameters");
    placement->gradients = home(keys, "gradients");
    placement->states = home(keys, "states");
    placement->checkpoints = home(keys, "checkpoints");
    if (keys.has("activations")) placement->activations = home(keys, "activations");
    if (keys.has("activations") && recomputes)
        keys.refuse("activations",
                    "have no home if they are recomputed; write \"recompute\": false");
    keys.source();
    keys.done();
}

void read_micro_batches(Keys keys, Model *model)
{
    model->micro_batches.count = static_cast<uint32_t>(keys.whole("count", 1, kMicroBatchesMax));
    model->micro_batches.vertical =
        keys.has("order") && keys.choice("order", {"horizontal", "vertical"}) == 1;
    keys.source();
    keys.done();
}

}  // namespace

Model parse_model(const Located &root, const std::string &file)
{
    Keys keys(file, root, "");
    keys.choice("kind", {"stepwell model"});
    keys.whole("format", 1, 1);
    Model model;
    model.name = keys.word("name");
    model.parameter_bytes = keys.whole_or("parameter_bytes", 1, kElementBytesMax, 2);
    model.gradient_bytes = keys.whole_or("gradient_bytes", 1, kElementBytesMax, 2);
    model.model_parallel =
        static_cast<uint32_t>(keys.whole_or("model_parallel", 1, kParallelMax, 1));
    model.recomputes = keys.boolean_or("recompute", true);
    model.splits_masters = model.parameter_bytes == 2;
    if (keys.has("optimizer")) read_optimizer(keys.object("optimizer"), &model);
    if (keys.has("placement"))
        read_placement(keys.object("placement"), model.recomputes, &model.placement);
    if (keys.has("transformer") == keys.has("layers"))
        keys.refuse_all("needs a 'transformer' or a list 'layers', one of them");
    if (keys.has("transformer")) {
        read_transformer(keys.object("transformer"), &model);
    } else {
        model.working_bytes =
            rounded(keys.quantity_or("working", Unit::kBytes, 0, kTensorBytesMax, 0));
        double parameters = 0;
        uint64_t tiles = 0;
        for (Keys &layer : keys.objects("layers")) {
            model.layers.push_back(read_layer(layer, model));
            const Layer &read = model.layers.back();
            tiles += read.count * read.parts.size();
            for (const simulate::Part &part : read.parts)
                parameters +=
                    static_cast<double>(read.count) * static_cast<double>(part.parameters);
        }
        if (parameters > kParametersMax) keys.refuse("layers", "have more than 1e16 parameters");
        if (tiles > kTilesMax) keys.refuse("layers", "have more than 120000 tensors");
    }
    if (keys.has("micro_batches")) read_micro_batches(keys.object("micro_batches"), &model);
    double tiles = 0;
    for (const Layer &layer : model.layers)
        tiles += static_cast<double>(layer.count) * static_cast<double>(layer.parts.size());
    if (tiles * model.micro_batches.count > kOpsMax)
        keys.refuse("micro_batches", "times tensors are more than 2 million");
    keys.source();
    keys.done();
    return model;
}

Model read_model(const std::string &file)
{
    return parse_model(read_located(file), file);
}

}  // namespace stepwell::cli
