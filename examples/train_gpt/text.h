// SPDX-License-Identifier: Apache-2.0
//
// Owns the training text and cuts batches from it. A batch is a function of seed and step alone.

#ifndef TRAIN_GPT_TEXT_H
#define TRAIN_GPT_TEXT_H

#include <cstdint>
#include <string>
#include <vector>

namespace train_gpt {

class Text {
public:
    // "" on success, else the sentence for the user.
    std::string load(const std::string &path, uint32_t sequence);
    void assign(std::vector<uint8_t> bytes) { bytes_ = std::move(bytes); }

    uint64_t bytes() const { return bytes_.size(); }
    // Fills batch x sequence tokens, and for each the byte that follows it.
    void batch(uint64_t seed, uint64_t step, uint32_t batch, uint32_t sequence, uint8_t *tokens,
               uint8_t *targets) const;

private:
    std::vector<uint8_t> bytes_;
};

}  // namespace train_gpt

#endif
