// SPDX-License-Identifier: Apache-2.0
//
// Creates the tensors layer by layer, so that what is used together lies together.

#include "model.h"

#include "must.h"
#include "random.h"

#include <algorithm>
#include <cmath>

namespace train_gpt {

namespace {

struct SlotShape {
    const char *name;
    uint32_t rows;  // in units of the width; 0: a vector
    uint32_t columns;
};
constexpr SlotShape kSlotShapes[kSlots] = {
    {"norm1.gain", 0, 1},  {"norm1.bias", 0, 1},      {"qkv.weight", 1, 3},
    {"qkv.bias", 0, 3},    {"project.weight", 1, 1},  {"project.bias", 0, 1},
    {"norm2.gain", 0, 1},  {"norm2.bias", 0, 1},      {"expand.weight", 1, 4},
    {"expand.bias", 0, 4}, {"contract.weight", 4, 1}, {"contract.bias", 0, 1},
};
constexpr const char *kOuterNames[kOuters] = {"tokens", "positions", "final.gain", "final.bias"};

// Numbers that say what lies side by side: the parameters of one layer, and its gradients.
uint64_t parameters_of(uint32_t layer)
{
    return 2 * uint64_t{layer} + 1;
}
uint64_t gradients_of(uint32_t layer)
{
    return 2 * uint64_t{layer} + 2;
}

stw_tensor_spec spec_of(const std::string &name, uint32_t role, uint32_t rows, uint32_t columns,
                        uint64_t neighbour)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = name.c_str();
    spec.role = role;
    spec.dtype = STW_F32;
    // Each rank has its slice of a matrix. A vector lies on all of them, which costs little and
    // saves a collective; what an optimizer keeps lies as its parameter does.
    if (role != STW_ROLE_ACTIVATION)
        spec.partition = rows == 0 ? STW_PARTITION_REPLICATED : STW_PARTITION_SHARDED;
    spec.dimensions = rows == 0 ? 1 : 2;
    spec.shape[0] = rows == 0 ? columns : rows;
    spec.shape[1] = rows == 0 ? 0 : columns;
    spec.neighbour = neighbour;
    return spec;
}

bool is_matrix(uint32_t slot)
{
    return kSlotShapes[slot].rows != 0;
}
bool is_gain(uint32_t slot)
{
    return slot == kNorm1Gain || slot == kNorm2Gain;
}

}  // namespace

ModelSize model_size(const ModelOptions &options)
{
    const double rows = static_cast<double>(options.shape.rows()) * options.micro_batches;
    const uint64_t width = options.shape.width;
    uint64_t matrices = 0;
    uint64_t vectors = 0;
    for (const SlotShape &slot : kSlotShapes)
        (slot.rows == 0 ? vectors : matrices) +=
            slot.rows == 0 ? slot.columns * width : slot.rows * width * slot.columns * width;

    ModelSize size = {};
    size.parameters = options.layers * (matrices + vectors) + kVocabulary * width +
                      options.shape.sequence * width + 2 * width;
    size.state_bytes = 4 * sizeof(float) * size.parameters;
    size.checkpoint_bytes =
        options.checkpoint_count() * sizeof(float) * options.shape.rows() * width;
    // Forward and twice that in backward; the recomputation leaves out the last product of a
    // block. Attention counts the half of the scores that the mask leaves.
    const double contract = 4.0 * static_cast<double>(width * width);
    const double products = 8.0 * static_cast<double>(matrices) - 2.0 * contract;
    const double attention = 18.0 * options.shape.sequence / 2.0 * static_cast<double>(width);
    size.flops_per_step = rows * (options.layers * (products + attention) +
                                  6.0 * static_cast<double>(kVocabulary * width));
    return size;
}

Model::Model(stw_runtime *runtime, const ModelOptions &options)
    : runtime_(runtime), options_(options)
{
    create_outer();
    layers_.resize(options.layers);
    for (uint32_t index = 0; index < options.layers; ++index) create_layer(index);
    if (options.together > 1) create_checkpoints("final.input");
    create_optimizer();
}

Model::~Model()
{
    must(stw_optimizer_destroy(optimizer_));
    must(stw_tensor_destroy(tensors_.data(), static_cast<uint32_t>(tensors_.size())));
}

stw_tensor *Model::create(const stw_tensor_spec &spec)
{
    stw_tensor *tensor = nullptr;
    must(stw_tensor_create(runtime_, &spec, 1, &tensor));
    tensors_.push_back(tensor);
    return tensor;
}

void Model::create_outer()
{
    // Small, and needed at both ends of every step: they leave the device last.
    stw_policy keep = STW_POLICY_INIT;
    keep.retention = STW_RETAIN_KEEP;
    const uint32_t rows[kOuters] = {kVocabulary, options_.shape.sequence, 0, 0};
    for (uint32_t which = 0; which < kOuters; ++which) {
        const std::string name = kOuterNames[which];
        stw_tensor_spec spec = spec_of(name, STW_ROLE_PARAM, rows[which], options_.shape.width,
                                       parameters_of(options_.layers));
        spec.flags = which == kFinalBias ? STW_TENSOR_ZERO : 0;
        if (options_.durable) spec.flags |= STW_TENSOR_DURABLE;
        spec.policy = &keep;
        parameters_[which] = create(spec);
        const std::string gradient = name + ".gradient";
        gradients_[which] = create(spec_of(gradient, STW_ROLE_GRAD, rows[which],
                                           options_.shape.width, gradients_of(options_.layers)));
    }
}

void Model::create_layer(uint32_t index)
{
    Layer &layer = layers_[index];
    const uint32_t width = options_.shape.width;
    const std::string prefix = "layer" + std::to_string(index) + ".";
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
        const SlotShape &shape = kSlotShapes[slot];
        const std::string name = prefix + shape.name;
        stw_tensor_spec spec = spec_of(name, STW_ROLE_PARAM, shape.rows * width,
                                       shape.columns * width, parameters_of(index));
        // A bias starts at zero, which costs no byte and no write.
        spec.flags = is_matrix(slot) || is_gain(slot) ? 0 : STW_TENSOR_ZERO;
        if (options_.durable) spec.flags |= STW_TENSOR_DURABLE;
        layer.parameters[slot] = create(spec);
    }
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
        const SlotShape &shape = kSlotShapes[slot];
        const std::string name = prefix + shape.name + ".gradient";
        layer.gradients[slot] = create(spec_of(name, STW_ROLE_GRAD, shape.rows * width,
                                               shape.columns * width, gradients_of(index)));
    }
    create_checkpoints(prefix + "input");
}

void Model::create_checkpoints(const std::string &name)
{
    if (!options_.checkpoints) return;
    for (uint32_t place = 0; place < options_.together; ++place) {
        const std::string own = options_.together > 1 ? name + "." + std::to_string(place) : name;
        checkpoints_.push_back(create(
            spec_of(own, STW_ROLE_ACTIVATION, options_.shape.rows(), options_.shape.width, 0)));
    }
}

void Model::create_optimizer()
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    options.algorithm = STW_OPTIMIZER_ADAMW;
    options.name = "adamw";
    options.flags = options_.durable ? STW_OPTIMIZER_DURABLE : 0;
    must(stw_optimizer_create(runtime_, &options, &optimizer_));

    // In the order in which the next forward asks for them, so that the update, which goes on
    // behind it, stays ahead.
    std::vector<stw_optimizer_entry> entries;
    const auto add = [&entries](stw_tensor *parameter, stw_tensor *gradient, uint32_t group) {
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        entry.parameter = parameter;
        entry.gradient = gradient;
        entry.parameter_group = group;
        entries.push_back(entry);
    };
    add(parameters_[kTokens], gradients_[kTokens], kDecayGroup);
    add(parameters_[kPositions], gradients_[kPositions], kDecayGroup);
    for (const Layer &layer : layers_)
        for (uint32_t slot = 0; slot < kSlots; ++slot)
            add(layer.parameters[slot], layer.gradients[slot],
                is_matrix(slot) ? kDecayGroup : kPlainGroup);
    add(parameters_[kFinalGain], gradients_[kFinalGain], kPlainGroup);
    add(parameters_[kFinalBias], gradients_[kFinalBias], kPlainGroup);
    must(stw_optimizer_add(optimizer_, entries.data(), static_cast<uint32_t>(entries.size())));
}

void Model::initialise()
{
    constexpr double kDeviation = 0.02;
    // Each block adds twice to the stream; so scaled, the stream's variance does not grow with
    // the depth.
    const double last = kDeviation / std::sqrt(2.0 * options_.layers);
    fill_normal(parameters_[kTokens], kDeviation);
    fill_normal(parameters_[kPositions], kDeviation);
    must(stw_tensor_fill(parameters_[kFinalGain], 1.0, nullptr));
    for (const Layer &layer : layers_) {
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
            if (is_gain(slot))
                must(stw_tensor_fill(layer.parameters[slot], 1.0, nullptr));
            else if (is_matrix(slot))
                fill_normal(layer.parameters[slot],
                            slot == kProjectWeight || slot == kContractWeight ? last : kDeviation);
        }
    }
}

uint64_t Model::own_state_bytes() const
{
    uint64_t bytes = 0;
    stw_tensor *tensor = nullptr;
    while (stw_tensor_next(runtime_, tensor, &tensor) == STW_OK && tensor != nullptr) {
        stw_tensor_info info = {};
        info.struct_size = sizeof(info);
        must(stw_tensor_info_get(tensor, &info));
        if (info.role != STW_ROLE_ACTIVATION) bytes += info.shard_bytes;
    }
    return bytes;
}

// From a small buffer straight to where the tensor rests: the model may be larger than memory.
void Model::fill_normal(stw_tensor *tensor, double deviation)
{
    constexpr uint64_t kPieceElements = 1 << 16;
    stw_tensor_info info = {};
    info.struct_size = sizeof(info);
    must(stw_tensor_info_get(tensor, &info));
    const uint64_t stream = ++filled_;
    std::vector<float> piece(std::min(kPieceElements, info.elements));
    for (uint64_t begin = 0; begin < info.elements; begin += piece.size()) {
        stw_copy_options options = STW_COPY_OPTIONS_INIT;
        options.tier = STW_TIER_HOST;
        options.element_begin = begin;
        options.element_count = std::min<uint64_t>(piece.size(), info.elements - begin);
        for (uint64_t i = 0; i < options.element_count; ++i)
            piece[i] =
                static_cast<float>(deviation * random_normal(options_.seed, stream, begin + i));
        must(stw_tensor_write(tensor, piece.data(), &options));
    }
}

}  // namespace train_gpt
