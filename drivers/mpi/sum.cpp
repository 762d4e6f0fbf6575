// SPDX-License-Identifier: Apache-2.0
// Blocks that fit into the first cache: converted, added, rounded, by loops without branches, which
// compilers turn into vector instructions.
#include "drivers/mpi/sum.h"

#include <stepwell/types.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cstring>

namespace stepwell::drivers {

namespace {

constexpr uint64_t kBlockElements = 2048;

// Threads inherit flush-to-zero and rounding modes from their creator.
class DefaultFloats {
public:
    DefaultFloats()
    {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    DefaultFloats(const DefaultFloats &) = delete;
    DefaultFloats &operator=(const DefaultFloats &) = delete;
    ~DefaultFloats() { std::fesetenv(&saved_); }

private:
    std::fenv_t saved_;
};

constexpr uint32_t kSign16 = 0x8000;
constexpr uint32_t kInfinity32 = 0x7F800000;

struct Bf16 {
    using Stored = uint16_t;
    using Sum = float;
    static float widen(uint16_t stored) { return std::bit_cast<float>(uint32_t{stored} << 16); }
    static uint16_t round(float value)
    {
        const uint32_t bits = std::bit_cast<uint32_t>(value);
        const uint32_t nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
        const uint32_t quiet = (bits >> 16) | 0x40;
        return static_cast<uint16_t>((bits & ~(uint32_t{1} << 31)) > kInfinity32 ? quiet : nearest);
    }
};

// 1 sign, 5 exponent (bias 15), 10 fraction bits; 13 fewer of the fraction than f32 has, and a bias
// that is 112 less.
struct F16 {
    using Stored = uint16_t;
    using Sum = float;
    static float widen(uint16_t stored)
    {
        constexpr uint32_t kExponent = 0x7C00u << 13;
        constexpr uint32_t kLeast = uint32_t{113} << 23;  // 2^-14, the least normal number
        const uint32_t shifted = (stored & 0x7FFFu) << 13;
        const uint32_t exponent = shifted & kExponent;
        const uint32_t normal = shifted + (uint32_t{112} << 23);
        const uint32_t special = shifted + (uint32_t{224} << 23);  // infinity, no number
        // With the exponent of 2^-14 the hidden bit would be there; without it the rest is exact.
        const uint32_t denormal = std::bit_cast<uint32_t>(std::bit_cast<float>(shifted + kLeast) -
                                                          std::bit_cast<float>(kLeast));
        const uint32_t magnitude = exponent == kExponent ? special
                                   : exponent == 0       ? denormal
                                                         : normal;
        return std::bit_cast<float>(magnitude | (stored & kSign16) << 16);
    }
    static uint16_t round(float value)
    {
        constexpr uint32_t kTooLarge = uint32_t{127 + 16} << 23;
        constexpr uint32_t kLeast = uint32_t{113} << 23;
        // Added to a number below 2^-14 it leaves, rounded, as many bits as a denormal has.
        constexpr uint32_t kMagic = uint32_t{127 - 15 + 23 - 10 + 1} << 23;
        const uint32_t bits = std::bit_cast<uint32_t>(value);
        const uint32_t sign = bits >> 16 & kSign16;
        const uint32_t magnitude = bits & ~(uint32_t{1} << 31);
        const uint32_t special = magnitude > kInfinity32 ? 0x7E00 : 0x7C00;
        const uint32_t denormal =
            std::bit_cast<uint32_t>(std::bit_cast<float>(std::min(magnitude, kLeast)) +
                                    std::bit_cast<float>(kMagic)) -
            kMagic;
        const uint32_t odd = magnitude >> 13 & 1;
        const uint32_t normal = (magnitude - (uint32_t{112} << 23) + 0xFFF + odd) >> 13;
        return static_cast<uint16_t>(sign | (magnitude >= kTooLarge ? special
                                             : magnitude < kLeast   ? denormal
                                                                    : normal));
    }
};

template <class Float> struct Plain {
    using Stored = Float;
    using Sum = Float;
    static Float widen(Float stored) { return stored; }
    static Float round(Float value) { return value; }
};

template <class Format>
void add(void *out, const void *const *parts, uint32_t part_count, uint64_t elements)
{
    using Stored = typename Format::Stored;
    typename Format::Sum sums[kBlockElements];
    for (uint64_t begin = 0; begin < elements; begin += kBlockElements) {
        const uint64_t count = std::min(kBlockElements, elements - begin);
        const Stored *from = static_cast<const Stored *>(parts[0]) + begin;
        for (uint64_t i = 0; i < count; ++i) sums[i] = Format::widen(from[i]);
        for (uint32_t part = 1; part < part_count; ++part) {
            from = static_cast<const Stored *>(parts[part]) + begin;
            for (uint64_t i = 0; i < count; ++i) sums[i] += Format::widen(from[i]);
        }
        Stored *to = static_cast<Stored *>(out) + begin;
        for (uint64_t i = 0; i < count; ++i) to[i] = Format::round(sums[i]);
    }
}

}  // namespace

uint32_t summed_element_bytes(uint32_t dtype)
{
    switch (dtype) {
    case STW_F32: return 4;
    case STW_F16:
    case STW_BF16: return 2;
    case STW_F64: return 8;
    default: return 0;
    }
}

void add_in_rank_order(uint32_t dtype, void *out, const void *const *parts, uint32_t part_count,
                       uint64_t elements)
{
    const DefaultFloats floats;
    switch (dtype) {
    case STW_F32: add<Plain<float>>(out, parts, part_count, elements); break;
    case STW_F16: add<F16>(out, parts, part_count, elements); break;
    case STW_BF16: add<Bf16>(out, parts, part_count, elements); break;
    case STW_F64: add<Plain<double>>(out, parts, part_count, elements); break;
    default: break;
    }
}

}  // namespace stepwell::drivers
