// SPDX-License-Identifier: Apache-2.0
// How states are rounded to bf16, up or down by a draw: a hash of the element's number under a key
// of the step, the state and the number's upper half.
#pragma once

#include "drivers/cuda/kernels/numbers.h"

namespace stepwell::drivers::cuda {

// A permutation of the 32-bit numbers whose bits all depend on all.
STW_CODE uint32_t scatter(uint32_t number)
{
    number = (number ^ number >> 16) * 0x85EBCA6BU;
    number = (number ^ number >> 13) * 0xC2B2AE35U;
    return number ^ number >> 16;
}

// The key of a state for the elements whose numbers have `upper` in their upper half.
STW_CODE uint32_t key_of(uint32_t upper, uint64_t step, uint32_t state)
{
    uint64_t key = (step * 4 + state) ^ (uint64_t{upper} << 40);
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9U;
    key = (key ^ key >> 27) * 0x94D049BB133111EBU;
    return static_cast<uint32_t>(key >> 32);
}

// What is cut off, of 2^16, is the chance that it carries into what is kept.
STW_CODE uint32_t drawn_bf16(float value, uint32_t number)
{
    const uint32_t bits = bits_of(value);
    return is_nan(bits) ? kCanonicalNan >> 16 : (bits + (scatter(number) >> 16)) >> 16;
}

// One thread's keys. Every 2^32 elements have others, so they are kept until those change.
template <uint32_t States> class Keys {
public:
    STW_CODE explicit Keys(uint64_t step) : step_(step) {}

    // The number of an element that is hashed for a state; the elements come in any order.
    STW_CODE uint32_t number(uint64_t element, uint32_t state)
    {
        const auto upper = static_cast<uint32_t>(element >> 32);
        if (!known_ || upper != upper_) {
            known_ = true;
            upper_ = upper;
            STW_UNROLL
            for (uint32_t s = 0; s < States; ++s) keys_[s] = key_of(upper, step_, s);
        }
        return static_cast<uint32_t>(element) + keys_[state];
    }

private:
    uint64_t step_;
    uint32_t upper_ = 0;
    bool known_ = false;
    uint32_t keys_[States] = {};
};

}  // namespace stepwell::drivers::cuda
