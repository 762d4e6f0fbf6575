// SPDX-License-Identifier: Apache-2.0
// Conversions between 16-bit dtypes and fp32 by integer operations, so that GPUs and processors
// give the same bits, NaNs included. Both round to nearest even, keep denormals, and keep the sign
// and the upper part of the payload of a NaN.
#pragma once

#include "drivers/cuda/kernels/portable.h"

namespace stepwell::drivers::cuda {

inline constexpr uint32_t kCanonicalNan = 0x7FC00000;
inline constexpr uint32_t kInfinity = 0x7F800000;
inline constexpr uint32_t kMagnitude = 0x7FFFFFFF;

STW_CODE bool is_nan(float value)
{
    return value != value;  // one instruction
}

// NaN from arithmetic: GPUs and processors disagree on its payload.
STW_CODE float canonical(float value)
{
    return is_nan(value) ? float_of(kCanonicalNan) : value;
}

STW_CODE float from_bf16(uint32_t half)
{
    return float_of(half << 16);
}

STW_CODE uint32_t to_bf16(float value)
{
    const uint32_t bits = bits_of(value);
    // A tie is rounded up if what is kept is odd; a carry out of the mantissa is the next exponent.
    const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
    return (is_nan(value) ? bits | 0x00400000 : rounded) >> 16;
}

// Of a finite number, without its sign. Exponents are biased by 15 and 127: the product is exact,
// also for subnormals, which are denormals of fp32 before it.
STW_CODE float magnitude_of_f16(uint32_t magnitude)
{
    return float_of(magnitude << 13) * 0x1p112F;
}

STW_CODE float from_f16(uint32_t half)
{
    // As magnitude_of_f16, but a shift that copies the sign brings all parts to their places.
    const uint32_t placed = static_cast<uint32_t>(static_cast<int32_t>(half << 16) >> 3);
    const float value = float_of(placed & 0x8FFFE000) * 0x1p112F;
    // What is not finite has become 2^16 or more.
    uint32_t bits = bits_of(value);
    if (absolute(value) >= 0x1p16F) bits |= kInfinity;
    if (absolute(value) > 0x1p16F) bits |= kCanonicalNan;
    return float_of(bits);
}

STW_CODE uint32_t to_f16(float value)
{
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & kMagnitude;
    const uint32_t sign = (bits & ~kMagnitude) >> 16;
    // Rebiases, and rounds off the lower 13 bits; from 65520 on this carries into the infinity.
    uint32_t half = (magnitude - (112U << 23) + 0x0FFF + (magnitude >> 13 & 1)) >> 13;
    if (magnitude < 113U << 23) {
        // Below 2^-14 the unit is 2^-24, which is the last place of 0.5: the addition rounds.
        half = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000;
    }
    if (magnitude >= 143U << 23) half = 0x7C00;
    if (magnitude > kInfinity) half = 0x7E00 | (magnitude >> 13 & 0x03FF);
    return half | sign;
}

}  // namespace stepwell::drivers::cuda
