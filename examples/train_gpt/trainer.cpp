// SPDX-License-Identifier: Apache-2.0
//
// The order of fetches, prefetches and releases. Every view is held for the arithmetic that needs
// it and no longer: what is not pinned is room for what comes next.

#include "trainer.h"

#include "must.h"

#include <algorithm>
#include <chrono>

namespace train_gpt {

namespace {

// Layers that are on their way while one computes. Two, so that a link is never without work when
// a layer ends early; more would pin room that the update could use.
constexpr uint32_t kLookAhead = 2;

double seconds_since(std::chrono::steady_clock::time_point begin)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Weights weights_in(const Views &views)
{
    Weights weights;
    for (uint32_t slot = 0; slot < kSlots; ++slot) weights[slot] = views[slot];
    return weights;
}

}  // namespace

stw_link_stats link_stats(stw_runtime *runtime, uint32_t link)
{
    stw_link_stats stats = STW_LINK_STATS_INIT;
    const stw_status status = stw_link_stats_get(runtime, link, 0, &stats);
    if (link != STW_LINK_RANKS || status != STW_ERROR_UNSUPPORTED) must(status);
    return stats;
}

// A gradient is what one rank wrote, or the sum of what all ranks did.
Trainer::Trainer(stw_runtime *runtime, Model &model, Arithmetic &arithmetic, const Ranks &ranks,
                 uint32_t tier)
    : runtime_(runtime),
      model_(model),
      arithmetic_(arithmetic),
      ranks_(ranks),
      tier_(tier),
      gradients_(ranks.size() > 1 ? STW_REDUCE : STW_WRITE)
{
    must(stw_phase_create(runtime, "train", &train_));
    must(stw_phase_create(runtime, "predict", &predict_));
}

Trainer::~Trainer()
{
    must(stw_phase_destroy(predict_));
    must(stw_phase_destroy(train_));
}

// All layers have one shape, so the first one speaks for all.
void Trainer::check_fits()
{
    const Layer &layer = model_.layer(0);
    stw_fetch_request requests[2 * kSlots + 1];
    uint32_t count = 0;
    for (stw_tensor *tensor : layer.parameters)
        requests[count++] = request_of(tensor, STW_READ, tier_);
    for (uint32_t slot = kAttentionSlots; slot < kSlots; ++slot)
        requests[count++] = request_of(layer.gradients[slot], gradients_, tier_);
    if (layer.checkpoint != nullptr)
        requests[count++] = request_of(layer.checkpoint, STW_READ, tier_);
    must(stw_fetch_fits(runtime_, requests, count));
}

// A step visits the layers up and then down again: positions 0 to 2 x layers - 1. Says that the
// one at `position` comes soon; beyond the last there is nothing to say, because the update is
// about to change what the next step reads.
void Trainer::prefetch(uint32_t position)
{
    const uint32_t layers = model_.options().layers;
    if (position >= 2 * layers) return;
    const bool down = position >= layers;
    const Layer &layer = model_.layer(down ? 2 * layers - 1 - position : position);
    stw_fetch_request requests[kSlots + 1];
    uint32_t count = 0;
    for (stw_tensor *tensor : layer.parameters)
        requests[count++] = request_of(tensor, STW_READ, tier_);
    // At the turn the checkpoint is the one that is written last: not yet there, then near.
    if (position > layers && layer.checkpoint != nullptr)
        requests[count++] = request_of(layer.checkpoint, STW_READ, tier_);
    must(stw_prefetch(runtime_, requests, count));
}

StepRecord Trainer::step(const Schedule &schedule, uint32_t step, const uint8_t *tokens,
                         const uint8_t *targets)
{
    const auto begin = std::chrono::steady_clock::now();
    StepRecord record = {};
    must(stw_step_begin(train_));
    forward(train_, model_.options().shape, tokens, true);
    head(targets);
    if (schedule.updates) set_hyper(schedule, step);
    backward(schedule, tokens);
    if (schedule.updates) record.verdict_seconds = update(schedule, &record.norm);
    record.loss = ranks_.sum(arithmetic_.loss());
    record.learning_rate = learning_rate_of(schedule, step);
    record.stats.struct_size = sizeof(record.stats);
    must(stw_step_end(train_, &record.stats));
    record.seconds = seconds_since(begin);

    for (uint32_t link = 0; link < kLinks; ++link) {
        const uint64_t bytes = link_stats(runtime_, link + 1).bytes;
        record.link_bytes[link] = bytes - link_bytes_[link];
        link_bytes_[link] = bytes;
    }
    return record;
}

void Trainer::forward(stw_phase *phase, const Shape &shape, const uint8_t *tokens, bool training)
{
    for (uint32_t position = 0; position < std::min(kLookAhead, model_.options().layers);
         ++position)
        prefetch(position);

    Views tables = empty_views();
    tables.add(model_.parameter(kTokens), STW_READ);
    tables.add(model_.parameter(kPositions), STW_READ);
    tables.fetch(runtime_, phase);
    arithmetic_.embed(shape, tokens, tables[0], tables[1]);
    tables.release_all(STW_RELEASE_NEAR);

    for (uint32_t index = 0; index < model_.options().layers; ++index)
        forward_layer(phase, shape, index, training);
}

void Trainer::forward_layer(stw_phase *phase, const Shape &shape, uint32_t index, bool training)
{
    const uint32_t layers = model_.options().layers;
    Views parameters = empty_views();
    parameters.add(model_.layer(index).parameters, kSlots, STW_READ);
    parameters.fetch(runtime_, phase);
    if (training || index + kLookAhead < layers) prefetch(index + kLookAhead);
    if (training) keep_input(index);
    arithmetic_.forward(shape, weights_in(parameters));
    // Backward starts with the layer that forward ends with.
    const bool turn = training && index + kLookAhead >= layers;
    parameters.release_all(turn ? STW_RELEASE_NEAR : 0);
}

// The input of each block is all that backward gets from forward.
void Trainer::keep_input(uint32_t index)
{
    const Shape &shape = model_.options().shape;
    stw_tensor *checkpoint = model_.layer(index).checkpoint;
    if (checkpoint == nullptr) {
        arithmetic_.keep_input(shape, arithmetic_.checkpoint(index));
        return;
    }
    Views input = empty_views();
    input.add(checkpoint, STW_WRITE);
    input.fetch(runtime_, train_);
    arithmetic_.keep_input(shape, input[0]);
    input.release_all(0);
}

void Trainer::head(const uint8_t *targets)
{
    const Shape &shape = model_.options().shape;
    Views views = empty_views();
    views.add(model_.parameter(kFinalGain), STW_READ);
    views.add(model_.parameter(kFinalBias), STW_READ);
    views.add(model_.parameter(kTokens), STW_READ);
    views.add(model_.gradient(kFinalGain), gradients_);
    views.add(model_.gradient(kFinalBias), gradients_);
    views.add(model_.gradient(kTokens), STW_REDUCE);
    views.fetch(runtime_, train_);
    const HeadWeights weights = {views[0], views[1], views[2]};
    arithmetic_.head_forward(shape, weights);
    // The mean over the whole batch, so that ranks add up to the gradients that one rank has.
    arithmetic_.head_backward(shape, weights, {views[3], views[4], views[5]}, targets,
                              shape.rows() * ranks_.size());
    views.release(0, 5, 0);
    // The table is used twice, so its gradient has two parts: the embedding adds the other one.
    views.release(5, 1, STW_RELEASE_MORE);
}

void Trainer::backward(const Schedule &schedule, const uint8_t *tokens)
{
    for (uint32_t index = model_.options().layers; index-- > 0;) backward_layer(schedule, index);

    Views reduced = empty_views();
    reduced.add(model_.gradient(kTokens), STW_REDUCE);
    reduced.add(model_.gradient(kPositions), gradients_);
    reduced.fetch(runtime_, train_);
    arithmetic_.embed_gradient(model_.options().shape, tokens, reduced[0], reduced[1]);
    reduced.release_all(0);
}

void Trainer::backward_layer(const Schedule &schedule, uint32_t index)
{
    constexpr uint32_t kMlpSlots = kSlots - kAttentionSlots;
    const Layer &layer = model_.layer(index);
    const Shape &shape = model_.options().shape;

    Views views = empty_views();
    views.add(layer.parameters, kSlots, STW_READ);
    if (layer.checkpoint != nullptr) views.add(layer.checkpoint, STW_READ);
    views.fetch(runtime_, train_);
    prefetch(2 * model_.options().layers - 1 - index + kLookAhead);
    const Weights weights = weights_in(views);
    const float *input =
        layer.checkpoint != nullptr ? views[kSlots] : arithmetic_.checkpoint(index);
    arithmetic_.recompute(shape, weights, input);

    // The gradients come into being half a layer at a time: half the room is pinned. On one rank
    // they are written in place, and to the last element: nothing is read and no zeros are made.
    Gradients gradients = {};
    Views mlp = empty_views();
    mlp.add(layer.gradients + kAttentionSlots, kMlpSlots, gradients_);
    mlp.fetch(runtime_, train_);
    for (uint32_t i = 0; i < kMlpSlots; ++i) gradients[kAttentionSlots + i] = mlp[i];
    arithmetic_.backward_mlp(shape, weights, gradients);
    mlp.release_all(0);
    // The next to touch these parameters is the update.
    views.release(kAttentionSlots, kMlpSlots, STW_RELEASE_FAR);
    if (schedule.speculates) update_early(layer.parameters + kAttentionSlots, kMlpSlots);

    Views attention = empty_views();
    attention.add(layer.gradients, kAttentionSlots, gradients_);
    attention.fetch(runtime_, train_);
    for (uint32_t i = 0; i < kAttentionSlots; ++i) gradients[i] = attention[i];
    arithmetic_.backward_attention(shape, weights, gradients, input);
    attention.release_all(0);
    views.release(0, kAttentionSlots, STW_RELEASE_FAR);
    if (layer.checkpoint != nullptr) views.release(kSlots, 1, STW_RELEASE_DISCARD);
    if (schedule.speculates) update_early(layer.parameters, kAttentionSlots);
}

const float *Trainer::predict(const uint8_t *tokens, uint32_t count)
{
    Shape shape = model_.options().shape;
    shape.batch = 1;
    shape.sequence = count;
    must(stw_step_begin(predict_));
    forward(predict_, shape, tokens, false);
    Views views = empty_views();
    views.add(model_.parameter(kFinalGain), STW_READ);
    views.add(model_.parameter(kFinalBias), STW_READ);
    views.add(model_.parameter(kTokens), STW_READ);
    views.fetch(runtime_, predict_);
    arithmetic_.head_forward(shape, {views[0], views[1], views[2]});
    views.release_all(0);
    must(stw_step_end(predict_, nullptr));
    return arithmetic_.logits(count - 1);
}

}  // namespace train_gpt
