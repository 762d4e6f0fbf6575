// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: a seeded generator, arrays in any dtype, dtypes decoded and rounded
// from their definition, and a reference number that carries its own rounding bound. Written from
// the formats and the published formulas, not from the kernels.
#pragma once

#include "lib/update/kernels/kernels.h"

#include <gtest/gtest.h>

#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace stepwell::kernels::test {

inline constexpr uint32_t kDtypes[] = {STW_F32, STW_F16, STW_BF16};
inline constexpr uint32_t kMxcsrDefault = 0x1F80;
inline constexpr uint32_t kMxcsrHostile = 0x9F80 | 0x0040 | 0x4000;  // flush, zeros, round up

// Leaves the best target in force, and the thread's mode as it was.
class KernelTest : public testing::Test {
protected:
    void TearDown() override
    {
        force_target_for_test(0);
        _mm_setcsr(kMxcsrDefault);
    }
};

// SplitMix64: the same numbers everywhere.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next()
    {
        uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
        return z ^ (z >> 31);
    }
    // Uniform in [-1, 1).
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-52 - 1.0; }

private:
    uint64_t state_;
};

inline uint64_t bytes_of(uint32_t dtype)
{
    return dtype == STW_F32 ? 4 : 2;
}

struct Format {
    int mantissa_bits;
    int exponent_bias;
    int exponent_max;  // the field of infinities and NaNs
};

inline Format format_of(uint32_t dtype)
{
    if (dtype == STW_F16) return {10, 15, 31};
    if (dtype == STW_BF16) return {7, 127, 255};
    return {23, 127, 255};
}

// The value of a bit pattern, by the definition of IEEE 754.
inline double decode(uint32_t dtype, uint32_t bits)
{
    const Format f = format_of(dtype);
    const int sign_bit = dtype == STW_F32 ? 31 : 15;
    const int field = static_cast<int>(bits >> f.mantissa_bits) & f.exponent_max;
    const uint32_t mantissa = bits & ((1U << f.mantissa_bits) - 1);
    const double sign = (bits >> sign_bit) != 0 ? -1.0 : 1.0;
    if (field == f.exponent_max) return mantissa != 0 ? NAN : sign * INFINITY;
    if (field == 0) return sign * std::ldexp(mantissa, 1 - f.exponent_bias - f.mantissa_bits);
    return sign * std::ldexp(mantissa + (1U << f.mantissa_bits),
                             field - f.exponent_bias - f.mantissa_bits);
}

// The nearest value of the dtype, ties to even, by scaling to integers.
inline double round_to(uint32_t dtype, double value)
{
    if (value == 0.0 || !std::isfinite(value)) return value;
    const Format f = format_of(dtype);
    const int exponent = std::max(std::ilogb(value), 1 - f.exponent_bias);
    const double unit = std::ldexp(1.0, exponent - f.mantissa_bits);
    const double rounded = std::nearbyint(value / unit) * unit;
    const double limit = std::ldexp(1.0, f.exponent_max - f.exponent_bias);
    return std::abs(rounded) >= limit ? std::copysign(INFINITY, value) : rounded;
}

// An array of a dtype, at an offset of some elements from a 64-byte boundary. What lies around it
// is known, so that a write outside is seen.
class Array {
public:
    Array(uint32_t dtype, uint64_t count, uint64_t offset = 0)
        : dtype_(dtype), count_(count), offset_(offset)
    {
        storage_.assign((offset + count) * bytes_of(dtype) / 64 + 3, Line{});
        for (Line &line : storage_) std::memset(line.bytes, 0xA5, sizeof(line.bytes));
    }
    [[nodiscard]] uint32_t dtype() const { return dtype_; }
    [[nodiscard]] uint64_t count() const { return count_; }
    void *data(uint64_t element = 0) { return begin() + (offset_ + element) * bytes_of(dtype_); }
    float *floats(uint64_t element = 0) { return static_cast<float *>(data(element)); }

    [[nodiscard]] uint32_t bits(uint64_t i)
    {
        uint32_t result = 0;
        std::memcpy(&result, data(i), bytes_of(dtype_));
        return result;
    }
    void set_bits(uint64_t i, uint32_t bits) { std::memcpy(data(i), &bits, bytes_of(dtype_)); }
    [[nodiscard]] double at(uint64_t i) { return decode(dtype_, bits(i)); }
    // A value that the dtype has: rounded by the reference, then looked up by its fields.
    void set(uint64_t i, double value) { set_bits(i, encode(round_to(dtype_, value))); }

    void randomize(Random &random, double magnitude)
    {
        for (uint64_t i = 0; i < count_; ++i) set(i, magnitude * random.uniform());
    }
    // Any pattern: denormals, infinities and NaNs with all payloads among them.
    void randomize_bits(Random &random)
    {
        for (uint64_t i = 0; i < count_; ++i) set_bits(i, static_cast<uint32_t>(random.next()));
    }
    [[nodiscard]] std::vector<uint32_t> all_bits()
    {
        std::vector<uint32_t> result(count_);
        for (uint64_t i = 0; i < count_; ++i) result[i] = bits(i);
        return result;
    }
    [[nodiscard]] bool surroundings_intact()
    {
        const uint8_t *first = begin();
        const uint8_t *values = static_cast<uint8_t *>(data());
        const uint8_t *values_end = values + count_ * bytes_of(dtype_);
        const uint8_t *end = first + (storage_.size() - 1) * 64;
        for (const uint8_t *b = first; b != end; ++b) {
            if ((b < values || b >= values_end) && *b != 0xA5) return false;
        }
        return true;
    }

private:
    struct alignas(64) Line {
        uint8_t bytes[64];
    };
    uint8_t *begin() { return storage_[1].bytes; }
    [[nodiscard]] uint32_t encode(double value) const
    {
        const auto narrow = static_cast<float>(value);  // exact: the dtype's value fits
        const auto bits = std::bit_cast<uint32_t>(narrow);
        if (dtype_ == STW_F32) return bits;
        if (dtype_ == STW_BF16) return bits >> 16;
        const uint32_t sign = (bits >> 16) & 0x8000;
        if (std::isinf(value)) return sign | 0x7C00;
        const double magnitude = std::abs(value);
        if (magnitude < 0x1p-14) return sign | static_cast<uint32_t>(magnitude * 0x1p24);
        return sign | (((bits & 0x7FFFFFFF) - (112U << 23)) >> 13);
    }

    uint32_t dtype_;
    uint64_t count_;
    uint64_t offset_;
    std::vector<Line> storage_;
};

// A real number as fp64 computes it, with a bound on how far the same formula in fp32, each
// operation rounded once, can be from it: the running error analysis of Wilkinson. The formula
// decides the bound; no tolerance is chosen.
struct Tracked {
    double value = 0.0;
    double error = 0.0;

    static Tracked exact(double value) { return {value, 0.0}; }
    // A double that the kernel has as an fp32.
    static Tracked constant(double value) { return rounded(value, 0.0); }
    static Tracked rounded(double value, double error)
    {
        return {value, error + 0x1p-24 * (std::abs(value) + error) + 0x1p-150};
    }
};

inline Tracked operator+(Tracked a, Tracked b)
{
    return Tracked::rounded(a.value + b.value, a.error + b.error);
}
inline Tracked operator*(Tracked a, Tracked b)
{
    const double error =
        std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error;
    return Tracked::rounded(a.value * b.value, error);
}
inline Tracked operator/(Tracked a, Tracked b)
{
    const double quotient = a.value / b.value;
    const double error = (a.error + std::abs(quotient) * b.error) / (std::abs(b.value) - b.error);
    return Tracked::rounded(quotient, error);
}
inline Tracked square_root(Tracked a)
{
    const double root = std::sqrt(a.value);
    const double low = std::sqrt(std::max(0.0, a.value - a.error));
    const double high = std::sqrt(a.value + a.error);
    return Tracked::rounded(root, std::max(high - root, root - low));
}

}  // namespace stepwell::kernels::test
