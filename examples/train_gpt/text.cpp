// SPDX-License-Identifier: Apache-2.0
//
// Reads the text once; a batch is copied from random places of it.

#include "text.h"

#include "random.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace train_gpt {

namespace {

constexpr uint64_t kBatchStream = 0x6261746368;  // apart from the streams of the tensors

}  // namespace

std::string Text::load(const std::string &path, uint32_t sequence)
{
    std::FILE *file = std::fopen(path.c_str(), "rb");
    if (file == nullptr)
        return "cannot read the text " + path + ": " + std::strerror(errno) +
               "; name a file with --text";
    bytes_.clear();
    uint8_t piece[16384];
    size_t count = 0;
    while ((count = std::fread(piece, 1, sizeof(piece), file)) > 0)
        bytes_.insert(bytes_.end(), piece, piece + count);
    const bool failed = std::ferror(file) != 0;
    const int cause = errno;
    std::fclose(file);
    if (failed) return "reading the text " + path + " failed: " + std::strerror(cause);
    if (bytes_.size() < uint64_t{sequence} + 2)
        return "the text " + path + " has " + std::to_string(bytes_.size()) +
               " bytes, fewer than one --sequence of " + std::to_string(sequence) +
               " and the byte that follows; take a longer text or a shorter sequence";
    bytes_.shrink_to_fit();
    return "";
}

void Text::batch(uint64_t seed, uint64_t step, uint32_t batch, uint32_t sequence, uint8_t *tokens,
                 uint8_t *targets) const
{
    const uint64_t places = bytes_.size() - sequence;
    for (uint32_t b = 0; b < batch; ++b) {
        const uint64_t at = random_bits(seed, kBatchStream, step * batch + b) % places;
        const auto from = bytes_.begin() + static_cast<int64_t>(at);
        std::copy_n(from, sequence, tokens + uint64_t{b} * sequence);
        std::copy_n(from + 1, sequence, targets + uint64_t{b} * sequence);
    }
}

}  // namespace train_gpt
