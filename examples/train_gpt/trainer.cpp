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

// A gradient is what one rank wrote for all of its batch, or the sum of what was written for parts.
Trainer::Trainer(stw_runtime *runtime, Model &model, Arithmetic &arithmetic, const Ranks &ranks,
                 uint32_t tier)
    : runtime_(runtime),
      model_(model),
      arithmetic_(arithmetic),
      ranks_(ranks),
      tier_(tier),
      gradients_(ranks.size() > 1 || model.options().micro_batches > 1 ? STW_REDUCE : STW_WRITE)
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
    stw_fetch_request requests[2 * kSlots + 2];
    uint32_t count = 0;
    for (stw_tensor *tensor : layer.parameters)
        requests[count++] = request_of(tensor, STW_READ, tier_);
    for (uint32_t slot = kAttentionSlots; slot < kSlots; ++slot)
        requests[count++] = request_of(layer.gradients[slot], gradients_, tier_);
    if (stw_tensor *checkpoint = model_.checkpoint(0, 0))
        requests[count++] = request_of(checkpoint, STW_READ, tier_);
    // See embed_gradient().
    if (model_.options().micro_batches > model_.options().together)
        requests[count++] = request_of(model_.gradient(kTokens), STW_REDUCE, tier_);
    must(stw_fetch_fits(runtime_, requests, count));
}

// A group visits the layers up and then down again: positions 0 to 2 x layers - 1. Says that the
// one at `position` comes soon, of the next group where it is beyond the last; beyond the last of
// all there is nothing to say, because the update is about to change what the next step reads.
void Trainer::prefetch(uint32_t position, const Group &group)
{
    const uint32_t layers = model_.options().layers;
    if (position >= 2 * layers && group.last) return;
    position %= 2 * layers;
    const uint32_t index = position >= layers ? 2 * layers - 1 - position : position;
    stw_fetch_request requests[kSlots + 1];
    uint32_t count = 0;
    for (stw_tensor *tensor : model_.layer(index).parameters)
        requests[count++] = request_of(tensor, STW_READ, tier_);
    // At the turn the checkpoint is the one that is written last: not yet there, then near.
    stw_tensor *checkpoint = group.waits() ? nullptr : model_.checkpoint(index, 0);
    if (position > layers && checkpoint != nullptr)
        requests[count++] = request_of(checkpoint, STW_READ, tier_);
    must(stw_prefetch(runtime_, requests, count));
}

StepRecord Trainer::step(const Schedule &schedule, uint32_t step, const uint8_t *tokens,
                         const uint8_t *targets)
{
    const auto begin = std::chrono::steady_clock::now();
    StepRecord record = {};
    must(stw_step_begin(train_));
    const uint32_t all = model_.options().micro_batches;
    const uint32_t together = model_.options().together;
    Views table = empty_views();
    for (uint32_t begin = 0; begin < all; begin += together) {
        const Group group = {begin, begin + together, begin + together == all};
        forward(train_, model_.options().shape, group, tokens, true);
        head(group, targets);
        if (group.last && schedule.updates) set_hyper(schedule, step);
        backward(schedule, group, tokens, table);
    }
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

void Trainer::forward(stw_phase *phase, const Shape &shape, const Group &group,
                      const uint8_t *tokens, bool training)
{
    for (uint32_t position = 0; position < std::min(kLookAhead, model_.options().layers);
         ++position)
        prefetch(position, group);

    Views tables = empty_views();
    tables.add(model_.parameter(kTokens), STW_READ);
    tables.add(model_.parameter(kPositions), STW_READ);
    tables.fetch(runtime_, phase);
    for (uint32_t micro = group.begin; micro < group.end; ++micro) {
        arithmetic_.embed(shape, tokens + micro * shape.rows(), tables[0], tables[1]);
        if (group.waits()) keep_stream(0, micro - group.begin);
    }
    tables.release_all(STW_RELEASE_NEAR);

    for (uint32_t index = 0; index < model_.options().layers; ++index)
        forward_layer(phase, shape, group, index, training);
}

// The input of each block is all that backward gets from forward.
void Trainer::forward_layer(stw_phase *phase, const Shape &shape, const Group &group,
                            uint32_t index, bool training)
{
    const uint32_t layers = model_.options().layers;
    Views parameters = empty_views();
    parameters.add(model_.layer(index).parameters, kSlots, STW_READ);
    parameters.fetch(runtime_, phase);
    if (training || index + kLookAhead < layers) prefetch(index + kLookAhead, group);
    for (uint32_t place = 0; place < group.end - group.begin; ++place) {
        if (group.waits())
            load_stream(index, place);
        else if (training)
            keep_stream(index, place);
        arithmetic_.forward(shape, weights_in(parameters));
        if (!group.waits()) continue;
        keep_stream(index + 1, place);
        prefetch_streams(index, place);
    }
    // Backward starts with the layer that forward ends with.
    const bool turn = training && index + kLookAhead >= layers;
    parameters.release_all(turn ? STW_RELEASE_NEAR : 0);
}

// How the gradients of a micro-batch are given back: added to those of the ones before it.
uint32_t Trainer::sum_flags(const Group &group, uint32_t micro) const
{
    if (micro + 1 == model_.options().micro_batches) return 0;
    const uint32_t more = STW_RELEASE_MORE;
    return micro + 1 < group.end ? more | STW_RELEASE_NEAR : more;
}

void Trainer::head(const Group &group, const uint8_t *targets)
{
    const Shape &shape = model_.options().shape;
    const uint32_t layers = model_.options().layers;
    // The mean over the whole batch, so that micro-batches and ranks add up to its gradients.
    const uint32_t rows = shape.rows() * model_.options().micro_batches * ranks_.size();
    Views parameters = empty_views();
    parameters.add(model_.parameter(kFinalGain), STW_READ);
    parameters.add(model_.parameter(kFinalBias), STW_READ);
    parameters.add(model_.parameter(kTokens), STW_READ);
    parameters.fetch(runtime_, train_);
    const HeadWeights weights = {parameters[0], parameters[1], parameters[2]};
    for (uint32_t micro = group.begin; micro < group.end; ++micro) {
        if (group.waits()) load_stream(layers, micro - group.begin);
        Views sums = empty_views();
        sums.add(model_.gradient(kFinalGain), gradients_);
        sums.add(model_.gradient(kFinalBias), gradients_);
        sums.add(model_.gradient(kTokens), STW_REDUCE);
        sums.fetch(runtime_, train_);
        arithmetic_.head_forward(shape, weights);
        arithmetic_.head_backward(shape, weights, {sums[0], sums[1], sums[2]},
                                  targets + micro * shape.rows(), rows);
        sums.release(0, 2, sum_flags(group, micro));
        // The table is used twice, so its gradient has two parts: the embedding adds the other one.
        sums.release(2, 1, STW_RELEASE_MORE);
        if (!group.waits()) continue;
        keep_gradient(layers, micro - group.begin);
        prefetch_streams(layers, micro - group.begin);
    }
    parameters.release_all(0);
}

void Trainer::backward(const Schedule &schedule, const Group &group, const uint8_t *tokens,
                       Views &table)
{
    for (uint32_t index = model_.options().layers; index-- > 0;)
        backward_layer(schedule, group, index);
    for (uint32_t micro = group.begin; micro < group.end; ++micro) {
        if (group.waits()) load_gradient(0, micro - group.begin);
        embed_gradient(group, micro, tokens, table);
    }
}

// The view of the table's gradient is open from the first micro-batch to the last: what the
// embedding adds is summed apart from what the head adds, so that each order of micro-batches
// gives the same bits.
void Trainer::embed_gradient(const Group &group, uint32_t micro, const uint8_t *tokens,
                             Views &table)
{
    const Shape &shape = model_.options().shape;
    if (micro == 0) {
        table.add(model_.gradient(kTokens), STW_REDUCE);
        table.fetch(runtime_, train_);
    }
    Views positions = empty_views();
    positions.add(model_.gradient(kPositions), gradients_);
    positions.fetch(runtime_, train_);
    arithmetic_.embed_gradient(shape, tokens + micro * shape.rows(), table[0], positions[0]);
    positions.release_all(sum_flags(group, micro));
    if (micro + 1 == model_.options().micro_batches) table.release_all(0);
}

void Trainer::backward_layer(const Schedule &schedule, const Group &group, uint32_t index)
{
    const uint32_t layers = model_.options().layers;
    Views parameters = empty_views();
    parameters.add(model_.layer(index).parameters, kSlots, STW_READ);
    parameters.fetch(runtime_, train_);
    prefetch(2 * layers - 1 - index + kLookAhead, group);
    for (uint32_t micro = group.begin; micro < group.end; ++micro) {
        backward_micro(schedule, group, index, micro, parameters);
        if (group.waits()) prefetch_streams(2 * layers - index, micro - group.begin);
    }
}

void Trainer::backward_micro(const Schedule &schedule, const Group &group, uint32_t index,
                             uint32_t micro, Views &parameters)
{
    constexpr uint32_t kMlpSlots = kSlots - kAttentionSlots;
    const Layer &layer = model_.layer(index);
    const Shape &shape = model_.options().shape;
    const uint32_t place = micro - group.begin;
    const bool done = micro + 1 == group.end;
    if (group.waits()) load_gradient(index + 1, place);
    Views views = empty_views();
    float *input = fetch_stream(views, index, place, group.waits() ? STW_READ_WRITE : STW_READ);
    const Weights weights = weights_in(parameters);
    arithmetic_.recompute(shape, weights, input);

    // The gradients come into being half a layer at a time: half the room is pinned. On one rank
    // those of a whole batch are written in place, and to the last element: nothing is read and no
    // zeros are made.
    Gradients gradients = {};
    Views mlp = empty_views();
    mlp.add(layer.gradients + kAttentionSlots, kMlpSlots, gradients_);
    mlp.fetch(runtime_, train_);
    for (uint32_t i = 0; i < kMlpSlots; ++i) gradients[kAttentionSlots + i] = mlp[i];
    arithmetic_.backward_mlp(shape, weights, gradients);
    mlp.release_all(sum_flags(group, micro));
    if (done) give_back(schedule, group, index, parameters, kAttentionSlots, kMlpSlots);

    Views attention = empty_views();
    attention.add(layer.gradients, kAttentionSlots, gradients_);
    attention.fetch(runtime_, train_);
    for (uint32_t i = 0; i < kAttentionSlots; ++i) gradients[i] = attention[i];
    arithmetic_.backward_attention(shape, weights, gradients, input);
    attention.release_all(sum_flags(group, micro));
    // The input is dead, and its gradient of the same shape waits in its place.
    if (group.waits()) arithmetic_.keep_gradient(shape, input);
    views.release_all(group.waits() ? 0 : STW_RELEASE_DISCARD);
    if (done) give_back(schedule, group, index, parameters, 0, kAttentionSlots);
}

// The next to touch these parameters is the update, or the forward of the next micro-batch.
void Trainer::give_back(const Schedule &schedule, const Group &group, uint32_t index,
                        Views &parameters, uint32_t begin, uint32_t count)
{
    uint32_t flags = index < kLookAhead ? STW_RELEASE_NEAR : 0;
    if (group.last) flags = STW_RELEASE_FAR;
    parameters.release(begin, count, flags);
    if (group.last && schedule.speculates)
        update_early(model_.layer(index).parameters + begin, count);
}

const float *Trainer::predict(const uint8_t *tokens, uint32_t count)
{
    Shape shape = model_.options().shape;
    shape.batch = 1;
    shape.sequence = count;
    must(stw_step_begin(predict_));
    forward(predict_, shape, {0, 1, true}, tokens, false);
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
