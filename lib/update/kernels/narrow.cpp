// SPDX-License-Identifier: Apache-2.0
// fp32 states to bf16, up or down by a draw that is a hash of the element's number. On the calling
// thread, no allocation. Compiled once per target.
#include "lib/update/kernels/float_environment.h"
#include "lib/update/kernels/kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/update/kernels/narrow.cpp"
#include "lib/update/kernels/highway.h"
#include "lib/update/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stepwell::kernels::HWY_NAMESPACE {
namespace {

// A permutation of the 32-bit numbers whose bits all depend on all: multiplications and shifts.
template <class D, class U = hn::Vec<Bits<D>>> HWY_INLINE U scatter(D /*d*/, U number)
{
    const Bits<D> u;
    number = hn::Xor(number, hn::ShiftRight<16>(number));
    number = hn::Mul(number, hn::Set(u, 0x85EBCA6BU));
    number = hn::Xor(number, hn::ShiftRight<13>(number));
    number = hn::Mul(number, hn::Set(u, 0xC2B2AE35U));
    return hn::Xor(number, hn::ShiftRight<16>(number));
}

// What is cut off, of 2^16, is the chance that it carries into what is kept.
template <class D>
HWY_INLINE void narrow_vector(D d, uint16_t *to, const float *from, uint32_t first, uint32_t key)
{
    const Bits<D> u;
    const auto numbers = hn::Add(hn::Iota(u, first), hn::Set(u, key));
    const auto chance = hn::ShiftRight<16>(scatter(d, numbers));
    const auto value = hn::LoadU(d, from);
    const auto bits = hn::BitCast(u, value);
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, chance));
    const auto is_nan = hn::RebindMask(u, hn::IsNaN(value));
    narrow(d, hn::IfThenElse(is_nan, hn::Set(u, kCanonicalNan >> 16), rounded), to);
}

HWY_NOINLINE void run_narrow(uint16_t *to, const float *from, uint64_t count, uint32_t first,
                             uint32_t key)
{
    const hn::ScalableTag<float> d;
    constexpr uint64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
    uint64_t at = 0;
    for (; count - at >= kLanes; at += kLanes) {
        narrow_vector(d, to + at, from + at, first + static_cast<uint32_t>(at), key);
    }
    if (at == count) return;
    alignas(64) float from_tail[kLanes] = {};
    alignas(64) uint16_t to_tail[kLanes] = {};
    std::memcpy(from_tail, from + at, (count - at) * sizeof(float));
    narrow_vector(d, to_tail, from_tail, first + static_cast<uint32_t>(at), key);
    std::memcpy(to + at, to_tail, (count - at) * sizeof(uint16_t));
}

}  // namespace
}  // namespace stepwell::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "lib/update/kernels/dispatch.h"

namespace stepwell::kernels {
namespace {

STEPWELL_DISPATCH(run_narrow);

// Other numbers for each state and step, and for each 2^32 elements.
uint32_t key_of(uint64_t high, uint64_t step, uint32_t state)
{
    uint64_t key = (step * 4 + state) ^ (high << 40);
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9U;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBU;
    return static_cast<uint32_t>(key >> 32);
}

}  // namespace

void narrow_state(uint16_t *to, const float *from, uint64_t count, const Draw &draw)
{
    const FloatEnvironment environment;
    uint64_t element = draw.first_element;
    while (count > 0) {
        const auto low = static_cast<uint32_t>(element);
        const uint64_t run = std::min(count, (uint64_t{1} << 32) - low);
        const uint32_t key = key_of(element >> 32, draw.step, draw.state);
        run_narrow_dispatch.chosen()(to, from, run, low, key);
        element += run;
        to += run;
        from += run;
        count -= run;
    }
}

}  // namespace stepwell::kernels
#endif
