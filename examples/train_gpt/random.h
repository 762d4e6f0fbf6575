// SPDX-License-Identifier: Apache-2.0
//
// Random numbers by counting: the value is a function of (seed, stream, index) alone, so a tensor
// can be filled piece by piece, in any order, and every run of a seed sees the same numbers.

#ifndef TRAIN_GPT_RANDOM_H
#define TRAIN_GPT_RANDOM_H

#include <cmath>
#include <cstdint>

namespace train_gpt {

// The finaliser of SplitMix64: every bit of the input moves every bit of the output.
inline uint64_t mix_bits(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

inline uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    return mix_bits(mix_bits(mix_bits(seed) ^ stream) ^ index);
}

// Uniform in (0, 1): never 0, so that its logarithm is finite.
inline double random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (static_cast<double>(random_bits(seed, stream, index) >> 12) + 0.5) * 0x1p-52;
}

// Standard normal, by Box and Muller.
inline double random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    constexpr double kTwoPi = 6.283185307179586;
    const double radius = std::sqrt(-2.0 * std::log(random_uniform(seed, stream, 2 * index)));
    return radius * std::cos(kTwoPi * random_uniform(seed, stream, 2 * index + 1));
}

}  // namespace train_gpt

#endif
