/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Half-precision numbers of tests, written apart from the library: to nearest, ties to even. Of F16
 * normal numbers and zero alone.
 */
#ifndef STEPWELL_TESTS_MULTIRANK_HALF_H
#define STEPWELL_TESTS_MULTIRANK_HALF_H

#include <stepwell/stepwell.h>

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* `bits` without its last `count`. */
static inline uint32_t rounded_off(uint32_t bits, uint32_t count)
{
    const uint32_t half = (1u << (count - 1)) - 1;
    return (bits + half + (bits >> count & 1)) >> count;
}

static inline uint16_t half_of(float value, uint32_t dtype)
{
    const uint32_t bits = bits_of_f32(value);
    if (dtype == STW_BF16) return (uint16_t)rounded_off(bits, 16);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude == 0) return (uint16_t)(bits >> 16);
    return (uint16_t)((bits >> 16 & 0x8000u) | rounded_off(magnitude - (112u << 23), 13));
}

static inline float of_half(uint16_t half, uint32_t dtype)
{
    const uint32_t bits = half;
    if (dtype == STW_BF16) return f32_of_bits(bits << 16);
    const uint32_t magnitude = bits & 0x7fffu;
    if (magnitude == 0) return f32_of_bits(bits << 16);
    return f32_of_bits((bits & 0x8000u) << 16 | ((magnitude << 13) + (112u << 23)));
}

/* Of memory that holds F32, F16 or BF16. */
static inline float value_in(const void *values, uint64_t i, uint32_t dtype)
{
    if (dtype == STW_F32) return ((const float *)values)[i];
    return of_half(((const uint16_t *)values)[i], dtype);
}

static inline void put_value(void *values, uint64_t i, uint32_t dtype, float value)
{
    if (dtype == STW_F32)
        ((float *)values)[i] = value;
    else
        ((uint16_t *)values)[i] = half_of(value, dtype);
}

#endif
