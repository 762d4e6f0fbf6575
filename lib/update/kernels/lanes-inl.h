// SPDX-License-Identifier: Apache-2.0
// Vectors of elements in and out of memory: whatever the dtype, a lane is an fp32. Compiled once
// per target. bf16 is converted with integer operations (Highway's truncates), and so is fp16 where
// the processor has no instruction for it: Highway's own emulation differs in NaNs. Both do what
// the F16C instructions do.
#include "lib/update/kernels/elements.h"

#if defined(STEPWELL_KERNELS_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_KERNELS_LANES_INL_H
#undef STEPWELL_KERNELS_LANES_INL_H
#else
#define STEPWELL_KERNELS_LANES_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace stepwell::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D> using Bits = hn::Rebind<uint32_t, D>;

// NaN from arithmetic, the same on every processor.
template <class D, class V = hn::Vec<D>> HWY_INLINE V canonical(D d, V value)
{
    const V nan = hn::BitCast(d, hn::Set(Bits<D>(), kCanonicalNan));
    return hn::IfThenElse(hn::IsNaN(value), nan, value);
}

template <class D, class U = hn::Vec<Bits<D>>> HWY_INLINE U widen(D /*d*/, const uint16_t *from)
{
    return hn::PromoteTo(Bits<D>(), hn::LoadU(hn::Rebind<uint16_t, D>(), from));
}

template <class D, class U = hn::Vec<Bits<D>>>
HWY_INLINE void narrow(D /*d*/, U low_halves, uint16_t *to)
{
    const hn::Rebind<uint16_t, D> half;
    hn::StoreU(hn::TruncateTo(half, low_halves), half, to);
}

// Unsigned comparison of values below 2^31, which every target has as a signed one.
template <class D, class U = hn::Vec<Bits<D>>>
HWY_INLINE hn::Mask<Bits<D>> below(D /*d*/, U a, uint32_t limit)
{
    const hn::Rebind<int32_t, D> i;
    const auto less = hn::Lt(hn::BitCast(i, a), hn::Set(i, static_cast<int32_t>(limit)));
    return hn::RebindMask(Bits<D>(), less);
}

// ------------------------------------------------------------------------------------------ load

template <class D, class V = hn::Vec<D>> HWY_INLINE V load(F32 /*type*/, D d, const float *from)
{
    return hn::LoadU(d, from);
}

template <class D, class V = hn::Vec<D>> HWY_INLINE V load(Bf16 /*type*/, D d, const uint16_t *from)
{
    return hn::BitCast(d, hn::ShiftLeft<16>(widen(d, from)));
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

template <class D, class V = hn::Vec<D>> HWY_INLINE V load(F16 /*type*/, D d, const uint16_t *from)
{
    const hn::Rebind<hwy::float16_t, D> half;
    const auto bits = hn::LoadU(hn::Rebind<uint16_t, D>(), from);
    return hn::PromoteTo(d, hn::BitCast(half, bits));
}

#else

template <class D, class V = hn::Vec<D>> HWY_INLINE V load(F16 /*type*/, D d, const uint16_t *from)
{
    const Bits<D> u;
    const auto half = widen(d, from);
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(u, 0x7FFF)));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(u, 0x8000)));
    // Exponents are biased by 15 and 127. A subnormal, given the smallest normal exponent, is that
    // power of two too large: the subtraction is exact and never meets an fp32 denormal.
    const auto normal = hn::Add(magnitude, hn::Set(u, 112U << 23));
    const auto lifted = hn::BitCast(d, hn::Add(magnitude, hn::Set(u, 113U << 23)));
    const auto subnormal = hn::BitCast(u, hn::Sub(lifted, hn::Set(d, 0x1p-14F)));
    const auto finite = hn::IfThenElse(below(d, magnitude, 0x0400U << 13), subnormal, normal);
    const auto quiet = hn::Or(magnitude, hn::Set(u, 0x7FC00000));
    const auto is_number = below(d, magnitude, (0x7C00U << 13) + 1);
    const auto special = hn::IfThenElse(is_number, hn::Set(u, 0x7F800000), quiet);
    const auto result = hn::IfThenElse(below(d, magnitude, 0x7C00U << 13), finite, special);
    return hn::BitCast(d, hn::Or(result, sign));
}

#endif

// ----------------------------------------------------------------------------------------- store

template <class D, class V = hn::Vec<D>>
HWY_INLINE void store(F32 /*type*/, D d, V value, float *to)
{
    hn::StoreU(value, d, to);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE void store(Bf16 /*type*/, D d, V value, uint16_t *to)
{
    const Bits<D> u;
    const auto bits = hn::BitCast(u, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    // A tie is rounded up if what is kept is odd; a carry out of the mantissa is the next exponent.
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFF))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(u, 0x0040));
    const auto is_nan = hn::RebindMask(u, hn::IsNaN(value));
    narrow(d, hn::IfThenElse(is_nan, quiet, rounded), to);
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

template <class D, class V = hn::Vec<D>>
HWY_INLINE void store(F16 /*type*/, D /*d*/, V value, uint16_t *to)
{
    const hn::Rebind<hwy::float16_t, D> half;
    const hn::Rebind<uint16_t, D> bits;
    hn::StoreU(hn::BitCast(bits, hn::DemoteTo(half, value)), bits, to);
}

#else

template <class D, class V = hn::Vec<D>>
HWY_INLINE void store(F16 /*type*/, D d, V value, uint16_t *to)
{
    const Bits<D> u;
    const auto bits = hn::BitCast(u, value);
    const auto magnitude = hn::And(bits, hn::Set(u, 0x7FFFFFFF));
    const auto sign = hn::ShiftRight<16>(hn::AndNot(hn::Set(u, 0x7FFFFFFF), bits));
    // Rebias and round the 13 bits that go; 65520 and more carries into the infinity.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(u, 1));
    const auto rebiased = hn::Sub(magnitude, hn::Set(u, (112U << 23) - 0x0FFF));
    const auto normal = hn::ShiftRight<13>(hn::Add(rebiased, odd));
    // Below 2^-14 the unit is 2^-24, which is the last place of 0.5: the addition rounds.
    const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
    const auto subnormal = hn::Sub(hn::BitCast(u, shifted), hn::Set(u, 0x3F000000));
    const auto finite = hn::IfThenElse(below(d, magnitude, 113U << 23), subnormal, normal);
    const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(u, 0x03FF));
    const auto nan = hn::Or(payload, hn::Set(u, 0x7E00));
    const auto is_nan = hn::RebindMask(u, hn::IsNaN(value));
    const auto special = hn::IfThenElse(is_nan, nan, hn::Set(u, 0x7C00));
    const auto result = hn::IfThenElse(below(d, magnitude, 143U << 23), finite, special);
    narrow(d, hn::Or(result, sign), to);
}

#endif

}  // namespace stepwell::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
