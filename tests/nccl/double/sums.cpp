// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/double/sums.h"

#include "drivers/nccl/api.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace stepwell::nccl_double {

using namespace stepwell::drivers;

namespace {

struct Plain32 {
    using Stored = float;
    using Sum = float;
    static float widen(float value) { return value; }
    static float round(float value) { return value; }
};
struct Plain64 {
    using Stored = double;
    using Sum = double;
    static double widen(double value) { return value; }
    static double round(double value) { return value; }
};
struct Brain16 {
    using Stored = uint16_t;
    using Sum = float;
    static float widen(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
    static uint16_t round(float value)
    {
        const auto bits = std::bit_cast<uint32_t>(value);
        if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
        return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
};
// By way of a number with 2^-24 as its unit: slow, plain, and exact.
struct Half16 {
    using Stored = uint16_t;
    using Sum = float;
    static float widen(uint16_t bits)
    {
        const int exponent = bits >> 10 & 31;
        const int fraction = bits & 1023;
        float value = 0;
        if (exponent == 31)
            value = fraction != 0 ? NAN : INFINITY;
        else if (exponent == 0)
            value = std::ldexp(static_cast<float>(fraction), -24);
        else
            value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
        return (bits & 0x8000) != 0 ? -value : value;
    }
    static uint16_t round(float value)
    {
        const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
        const float size = std::fabs(value);
        if (std::isnan(value)) return 0x7E00;
        if (size >= 65520.0f) return sign | 0x7C00;
        const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
        // Half to even, in units of the last place; a carry goes into the exponent.
        const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
        const auto bits = static_cast<uint32_t>(exponent + 14) * 1024 + units;
        return static_cast<uint16_t>(sign | bits);
    }
};

template <class Type>
void sum_as(const std::vector<const char *> &parts, char *to, uint64_t elements)
{
    using Stored = typename Type::Stored;
    for (uint64_t i = 0; i < elements; ++i) {
        typename Type::Sum total = 0;
        for (size_t part = 0; part < parts.size(); ++part) {
            Stored stored;
            std::memcpy(&stored, parts[part] + i * sizeof stored, sizeof stored);
            total = part == 0 ? Type::widen(stored) : total + Type::widen(stored);
        }
        const Stored rounded = Type::round(total);
        std::memcpy(to + i * sizeof rounded, &rounded, sizeof rounded);
    }
}

}  // namespace

uint64_t bytes_of_type(int type)
{
    switch (type) {
    case kNcclInt8: return 1;
    case kNcclFloat16:
    case kNcclBfloat16: return 2;
    case kNcclFloat32: return 4;
    case kNcclFloat64: return 8;
    default: return 0;
    }
}

bool can_sum(int type)
{
    return type != kNcclInt8 && bytes_of_type(type) != 0;
}

void sum(const std::vector<const char *> &parts, char *to, uint64_t elements, int type)
{
    switch (type) {
    case kNcclFloat16: return sum_as<Half16>(parts, to, elements);
    case kNcclBfloat16: return sum_as<Brain16>(parts, to, elements);
    case kNcclFloat32: return sum_as<Plain32>(parts, to, elements);
    default: return sum_as<Plain64>(parts, to, elements);
    }
}

}  // namespace stepwell::nccl_double
