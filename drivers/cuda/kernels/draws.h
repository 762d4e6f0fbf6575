// SPDX-License-Identifier: Apache-2.0
// Rounding of states to bf16, up or down by a draw: a hash of the element's number with a key of
// the step, the state and the number's upper half.
#pragma once

#include "drivers/cuda/kernels/numbers.h"

namespace stepwell::drivers::cuda {

// A permutation of the 32-bit numbers in which each bit depends on all bits.
STW_CODE uint32_t scatter(uint32_t number)
{
    number = (number ^ number >> 16) * 0x85EBCA6BU;
    number = (number ^ number >> 13) * 0xC2B2AE35U;
    return number ^ number >> 16;
}

// The key of a state for elements with `upper` as the upper half of their number.
STW_CODE uint32_t key_of(uint32_t upper, uint64_t step, uint32_t state)
{
    uint64_t key = (step * 4 + state) ^ (uint64_t{upper} << 40);
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9U;
    key = (key ^ key >> 27) * 0x94D049BB133111EBU;
    return static_cast<uint32_t>(key >> 32);
}

// The lower 16 bits, in units of 2^-16, are the probability of rounding away from zero.
STW_CODE uint32_t drawn_bf16(float value, uint32_t number)
{
    const uint32_t rounded = bits_of(value) + (scatter(number) >> 16);
    return (is_nan(value) ? kCanonicalNan : rounded) >> 16;
}

// The keys of one thread, kept for all elements with the same upper half.
template <uint32_t States> class Keys {
public:
    STW_CODE explicit Keys(uint64_t step) : step_(step) {}

    // The hashed numbers of N elements in a row for a state; rows may come in any order.
    template <uint32_t N>
    STW_CODE void numbers(uint64_t element, uint32_t state, uint32_t (&hashed)[N])
    {
        const auto upper = static_cast<uint32_t>(element >> 32);
        const auto lower = static_cast<uint32_t>(element);
        if (!known_ || upper != upper_) {
            known_ = true;
            upper_ = upper;
            STW_UNROLL
            for (uint32_t s = 0; s < States; ++s) keys_[s] = key_of(upper, step_, s);
        }
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) hashed[i] = lower + i + keys_[state];
        if (lower <= UINT32_MAX - (N - 1)) return;
        // Those behind a multiple of 2^32.
        const uint32_t next = key_of(upper + 1, step_, state);
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) {
            if (lower + i < lower) hashed[i] = lower + i + next;
        }
    }

private:
    uint64_t step_;
    uint32_t upper_ = 0;
    bool known_ = false;
    uint32_t keys_[States] = {};
};

}  // namespace stepwell::drivers::cuda
