// SPDX-License-Identifier: Apache-2.0
//
// Writes text with the model, byte by byte. One thread.

#ifndef TRAIN_GPT_SAMPLER_H
#define TRAIN_GPT_SAMPLER_H

#include "trainer.h"

#include <cstdint>
#include <string>

namespace train_gpt {

// A byte drawn from softmax(logits / temperature); uniform is in (0, 1).
uint8_t draw_byte(const float *logits, double temperature, double uniform);

// Goes on from the prompt for `bytes` bytes, printing each as it comes.
void print_sample(Trainer &trainer, const std::string &prompt, uint32_t bytes, uint32_t sequence,
                  uint64_t seed);

}  // namespace train_gpt

#endif
