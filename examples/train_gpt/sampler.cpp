// SPDX-License-Identifier: Apache-2.0
//
// Sampling, in double and in a fixed order, so that a seed gives the same text.

#include "sampler.h"

#include "random.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace train_gpt {

uint8_t draw_byte(const float *logits, double temperature, double uniform)
{
    const double top = *std::max_element(logits, logits + kVocabulary);
    double weights[kVocabulary];
    double sum = 0.0;
    for (uint32_t i = 0; i < kVocabulary; ++i) {
        weights[i] = std::exp((logits[i] - top) / temperature);
        sum += weights[i];
    }
    double left = uniform * sum;
    uint32_t last = 0;  // with a weight: where rounding ends when `left` does not run out
    for (uint32_t i = 0; i < kVocabulary; ++i) {
        if (weights[i] == 0.0) continue;
        last = i;
        left -= weights[i];
        if (left < 0.0) break;
    }
    return static_cast<uint8_t>(last);
}

void print_sample(Trainer &trainer, const std::string &prompt, uint32_t bytes, uint32_t sequence,
                  uint64_t seed)
{
    constexpr double kTemperature = 0.7;
    constexpr uint64_t kSampleStream = 0x73616d706c65;
    std::string text = prompt;
    std::printf("\nsample of %u bytes:\n%s", bytes, prompt.c_str());
    for (uint32_t i = 0; i < bytes; ++i) {
        const size_t count = std::min<size_t>(text.size(), sequence);
        const auto *window = reinterpret_cast<const uint8_t *>(text.data() + text.size() - count);
        const float *logits = trainer.predict(window, static_cast<uint32_t>(count));
        const double uniform = random_uniform(seed, kSampleStream, i);
        text += static_cast<char>(draw_byte(logits, kTemperature, uniform));
        std::putchar(static_cast<unsigned char>(text.back()));
        std::fflush(stdout);
    }
    std::printf("\n");
}

}  // namespace train_gpt
