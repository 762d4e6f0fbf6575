// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/ranks/plain.h"

#include <stepwell/types.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace conformance::ranks {
namespace {

// Sign, exponent, fraction: what IEEE says of a format, in doubles.
struct Format {
    int fraction_bits;
    int exponent_min;  // of a normal number
    int exponent_max;
};
constexpr Format kF16 = {10, -14, 15};
constexpr Format kBf16 = {7, -126, 127};

double widen(const Format &format, uint16_t bits)
{
    const int fraction_max = 1 << format.fraction_bits;
    const int fraction = bits & (fraction_max - 1);
    const int exponent = (bits & 0x7FFF) >> format.fraction_bits;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 0)
        return sign * std::ldexp(fraction, format.exponent_min - format.fraction_bits);
    const int power = exponent - 1 + format.exponent_min;
    if (power > format.exponent_max)
        return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::quiet_NaN();
    return sign * std::ldexp(fraction_max + fraction, power - format.fraction_bits);
}

uint16_t round(const Format &format, double value)
{
    const unsigned sign = std::signbit(value) ? 0x8000 : 0;
    const unsigned infinity = static_cast<unsigned>(format.exponent_max - format.exponent_min + 2)
                              << format.fraction_bits;
    if (std::isnan(value)) return static_cast<uint16_t>(infinity + 1);
    const double magnitude = std::fabs(value);
    if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
    if (magnitude == 0) return static_cast<uint16_t>(sign);
    const int power = std::max(std::ilogb(magnitude), format.exponent_min);
    // Whole numbers of the last place; the next power of two carries into the exponent.
    const double places = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - power));
    const unsigned above = static_cast<unsigned>(power - format.exponent_min)
                           << format.fraction_bits;
    return static_cast<uint16_t>(sign | std::min(above + static_cast<unsigned>(places), infinity));
}

uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

template <class T> T at(const void *data, uint64_t index)
{
    T value;
    std::memcpy(&value, static_cast<const char *>(data) + index * sizeof value, sizeof value);
    return value;
}

template <class T> void set(std::vector<char> *data, uint64_t index, T value)
{
    std::memcpy(data->data() + index * sizeof value, &value, sizeof value);
}

double number(uint32_t dtype, const void *data, uint64_t index)
{
    switch (dtype) {
    case STW_F32: return static_cast<double>(at<float>(data, index));
    case STW_F64: return at<double>(data, index);
    default: return widen(dtype == STW_F16 ? kF16 : kBf16, at<uint16_t>(data, index));
    }
}

}  // namespace

uint64_t element_bytes(uint32_t dtype)
{
    return stw_dtype_bits(dtype) / 8;
}

std::vector<char> values(uint32_t dtype, uint32_t rank, uint64_t elements, uint64_t seed)
{
    std::vector<char> data(elements * element_bytes(dtype));
    for (uint64_t i = 0; i < elements; ++i) {
        const uint64_t bits = mix(seed * 1'000'003 + rank * 0x9E3779B97F4A7C15u + i);
        const double small = static_cast<double>(static_cast<int64_t>(bits)) / 9.3e18;  // -1 to 1
        const int power = static_cast<int>(bits % 40) - 20;
        if (dtype == STW_F32) set(&data, i, std::ldexp(static_cast<float>(small), power));
        if (dtype == STW_F64) set(&data, i, std::ldexp(small, power));
        // Of 16 bits all patterns come, denormal ones, infinities and no numbers among them.
        if (dtype == STW_F16 || dtype == STW_BF16)
            set(&data, i, static_cast<uint16_t>(i % 3 == 0 ? bits : (bits & 0x83FF) | 0x3C00));
    }
    return data;
}

std::vector<char> sums(uint32_t dtype, uint32_t ranks, uint64_t elements, uint64_t seed)
{
    std::vector<char> sum = values(dtype, 0, elements, seed);
    std::vector<float> wide(elements);
    for (uint64_t i = 0; i < elements; ++i)
        wide[i] = static_cast<float>(number(dtype, sum.data(), i));
    for (uint32_t rank = 1; rank < ranks; ++rank) {
        const std::vector<char> more = values(dtype, rank, elements, seed);
        for (uint64_t i = 0; i < elements; ++i) {
            if (dtype == STW_F64)
                set(&sum, i, at<double>(sum.data(), i) + at<double>(more.data(), i));
            else
                wide[i] += static_cast<float>(number(dtype, more.data(), i));
        }
    }
    if (dtype == STW_F64) return sum;
    for (uint64_t i = 0; i < elements; ++i) {
        if (dtype == STW_F32)
            set(&sum, i, wide[i]);
        else
            set(&sum, i, round(dtype == STW_F16 ? kF16 : kBf16, static_cast<double>(wide[i])));
    }
    return sum;
}

std::string difference(uint32_t dtype, const void *found, const void *expected, uint64_t elements)
{
    const uint64_t bytes = element_bytes(dtype);
    for (uint64_t i = 0; i < elements; ++i) {
        const double one = number(dtype, found, i), other = number(dtype, expected, i);
        if (std::isnan(one) && std::isnan(other)) continue;
        if (std::memcmp(static_cast<const char *>(found) + i * bytes,
                        static_cast<const char *>(expected) + i * bytes, bytes) != 0)
            return "element " + std::to_string(i) + " of " + std::to_string(elements) + " is " +
                   std::to_string(one) + ", not " + std::to_string(other);
    }
    return "";
}

}  // namespace conformance::ranks
