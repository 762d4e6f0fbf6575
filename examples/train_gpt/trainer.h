// SPDX-License-Identifier: Apache-2.0
//
// One training step over the tiers: what is fetched when, how far ahead, and how it is given back.
// Owns the phases; runs on one thread.

#ifndef TRAIN_GPT_TRAINER_H
#define TRAIN_GPT_TRAINER_H

#include "arithmetic.h"
#include "model.h"
#include "ranks.h"
#include "views.h"

#include <stepwell/stepwell.h>

#include <string>
#include <vector>

namespace train_gpt {

constexpr uint32_t kLinks = STW_LINK_RANKS;  // links 1 to 7
// Totals of a link; of that to other ranks zeros where there are none.
stw_link_stats link_stats(stw_runtime *runtime, uint32_t link);

// What a step did and cost.
struct StepRecord {
    double loss;  // of the whole batch, the parts of other ranks too
    double norm;  // of all gradients, before the clip
    double learning_rate;
    double seconds;
    double verdict_seconds;  // of them: waiting for the norm of all gradients
    uint64_t link_bytes[kLinks];
    stw_step_stats stats;
};

struct Schedule {
    uint32_t steps;
    double learning_rate;
    double clip_norm;
    bool updates = true;      // else forward and backward alone, for a measurement
    bool speculates = false;  // updates before the norm of all gradients is known
};
// Linear warm-up, then half a cosine down to a tenth. step counts from 0.
double learning_rate_of(const Schedule &schedule, uint32_t step);

// Layers, or streams, that are on their way while one computes. Two, so that a link is never
// without work when a layer ends early; more would pin room that the update could use.
constexpr uint32_t kLookAhead = 2;

// Micro-batches [begin, end) of a step, which a layer computes before the next layer does.
struct Group {
    uint32_t begin;
    uint32_t end;
    bool last;  // of the step

    // Their streams wait in turn between two layers; that of one stays where it is.
    bool waits() const { return end - begin > 1; }
};

class Trainer {
public:
    // tier: where the arithmetic reads and writes, STW_TIER_DEVICE or STW_TIER_HOST.
    Trainer(stw_runtime *runtime, Model &model, Arithmetic &arithmetic, const Ranks &ranks,
            uint32_t tier);
    ~Trainer();
    Trainer(const Trainer &) = delete;
    Trainer &operator=(const Trainer &) = delete;

    // Ends with the arithmetic if the views that backward holds at once cannot fit: better before
    // the model is filled than in the middle of the first step.
    void check_fits();
    // tokens, targets: of all micro-batches.
    StepRecord step(const Schedule &schedule, uint32_t step, const uint8_t *tokens,
                    const uint8_t *targets);
    // The logits of the byte that follows tokens[0..count), a forward without backward.
    const float *predict(const uint8_t *tokens, uint32_t count);

private:
    Views empty_views() const { return {tier_, arithmetic_.stream()}; }
    void prefetch(uint32_t position, const Group &group);
    void prefetch_streams(uint32_t level, uint32_t place);
    void forward(stw_phase *phase, const Shape &shape, const Group &group, const uint8_t *tokens,
                 bool training);
    void forward_layer(stw_phase *phase, const Shape &shape, const Group &group, uint32_t index,
                       bool training);
    float *fetch_stream(Views &views, uint32_t index, uint32_t place, uint32_t access);
    void keep_stream(uint32_t index, uint32_t place);
    void load_stream(uint32_t index, uint32_t place);
    void keep_gradient(uint32_t index, uint32_t place);
    void load_gradient(uint32_t index, uint32_t place);
    void head(const Group &group, const uint8_t *targets);
    void backward(const Schedule &schedule, const Group &group, const uint8_t *tokens,
                  Views &table);
    void backward_layer(const Schedule &schedule, const Group &group, uint32_t index);
    void backward_micro(const Schedule &schedule, const Group &group, uint32_t index,
                        uint32_t micro, Views &parameters);
    void give_back(const Schedule &schedule, const Group &group, uint32_t index, Views &parameters,
                   uint32_t begin, uint32_t count);
    void embed_gradient(const Group &group, uint32_t micro, const uint8_t *tokens, Views &table);
    uint32_t sum_flags(const Group &group, uint32_t micro) const;
    void update_early(stw_tensor *const *parameters, uint32_t count);
    void set_hyper(const Schedule &schedule, uint32_t step);
    double update(const Schedule &schedule, double *norm_out);

    stw_runtime *runtime_;  // not owned, none of these: all outlive the trainer
    Model &model_;
    Arithmetic &arithmetic_;
    const Ranks &ranks_;
    const uint32_t tier_;
    const uint32_t gradients_;  // how they are fetched
    stw_phase *train_ = nullptr;
    stw_phase *predict_ = nullptr;
    uint64_t link_bytes_[kLinks] = {};  // totals at the end of the last step
};

}  // namespace train_gpt

#endif
