// SPDX-License-Identifier: Apache-2.0
// An fp32 master as what its bf16 parameter lacks, and back. On the calling thread, no allocation.
// Compiled once per target.
#include "lib/update/kernels/kernels.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/update/kernels/split.cpp"
#include "lib/update/kernels/highway.h"
#include "lib/update/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stepwell::kernels::HWY_NAMESPACE {
namespace {

constexpr uint64_t kSplitGroup = 64;  // elements, whose bits are one word of `open`

// A carry went into the upper half where the lower one is above a tie; at a tie `open` decides. An
// infinity or a NaN never came from a larger magnitude: of a NaN nothing was rounded.
template <class D>
HWY_INLINE void merge_vector(D d, float *master, const uint16_t *rounded, const uint16_t *low)
{
    const Bits<D> u;
    const auto upper = widen(d, rounded);
    const auto lower = widen(d, low);
    const auto magnitude = hn::And(upper, hn::Set(u, 0x7FFF));
    const auto no_carry = hn::Or(below(d, lower, 0x8001), hn::Not(below(d, magnitude, 0x7F81)));
    const auto before = hn::IfThenElse(no_carry, upper, hn::Sub(upper, hn::Set(u, 1)));
    hn::StoreU(hn::BitCast(d, hn::Or(hn::ShiftLeft<16>(before), lower)), d, master);
}

// Of a group in which some bit is set, which is rare.
void apply_open(float *master, uint64_t open)
{
    for (uint64_t i = 0; open != 0; ++i, open >>= 1) {
        if ((open & 1) == 0) continue;
        uint32_t bits = 0;
        std::memcpy(&bits, master + i, sizeof bits);
        // By the upper half: of the largest finite tie the rounded value is an infinity.
        const bool is_nan = (bits >> 16 & 0x7FFF) > 0x7F80;
        bits = is_nan ? bits & ~0x00400000U : bits - 0x10000U;
        std::memcpy(master + i, &bits, sizeof bits);
    }
}

HWY_INLINE void merge_group(float *master, const uint16_t *rounded, const uint16_t *low,
                            uint64_t open)
{
    const hn::ScalableTag<float> d;
    constexpr uint64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
    for (uint64_t i = 0; i < kSplitGroup; i += kLanes) {
        merge_vector(d, master + i, rounded + i, low + i);
    }
    if (open != 0) apply_open(master, open);
}

HWY_NOINLINE void run_merge(float *master, const uint16_t *rounded, const uint16_t *low,
                            const uint8_t *open, uint64_t count)
{
    uint64_t at = 0;
    for (; count - at >= kSplitGroup; at += kSplitGroup) {
        uint64_t bits = 0;
        std::memcpy(&bits, open + at / 8, sizeof bits);
        merge_group(master + at, rounded + at, low + at, bits);
    }
    const uint64_t left = count - at;
    if (left == 0) return;
    alignas(64) float master_tail[kSplitGroup] = {};
    alignas(64) uint16_t rounded_tail[kSplitGroup] = {};
    alignas(64) uint16_t low_tail[kSplitGroup] = {};
    uint64_t bits = 0;
    std::memcpy(rounded_tail, rounded + at, left * sizeof(uint16_t));
    std::memcpy(low_tail, low + at, left * sizeof(uint16_t));
    std::memcpy(&bits, open + at / 8, (left + 7) / 8);
    merge_group(master_tail, rounded_tail, low_tail, bits);
    std::memcpy(master + at, master_tail, left * sizeof(float));
}

// The bit of an element that merge_vector() would get wrong: a tie that was rounded up, or a NaN
// that the rounding made quiet.
uint64_t open_bits(const float *master)
{
    uint64_t open = 0;
    for (uint64_t i = 0; i < kSplitGroup; ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, master + i, sizeof bits);
        const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
        const bool is_open = is_nan ? (bits & 0x00400000) == 0 : (bits & 0x0001FFFF) == 0x00018000;
        open |= uint64_t{is_open} << i;
    }
    return open;
}

HWY_INLINE uint64_t split_group(uint16_t *low, const float *master)
{
    const hn::ScalableTag<float> d;
    const Bits<decltype(d)> u;
    constexpr uint64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
    const auto zero = hn::Zero(u);
    auto seldom = hn::Ne(zero, zero);  // ties and NaNs
    for (uint64_t i = 0; i < kSplitGroup; i += kLanes) {
        const auto value = hn::LoadU(d, master + i);
        const auto bits = hn::BitCast(u, value);
        narrow(d, hn::And(bits, hn::Set(u, 0xFFFF)), low + i);
        const auto tie = hn::Eq(hn::And(bits, hn::Set(u, 0x1FFFF)), hn::Set(u, 0x18000));
        seldom = hn::Or(seldom, hn::Or(tie, hn::RebindMask(u, hn::IsNaN(value))));
    }
    return hn::AllFalse(u, seldom) ? 0 : open_bits(master);
}

HWY_NOINLINE void run_split(uint16_t *low, uint8_t *open, const float *master, uint64_t count)
{
    uint64_t at = 0;
    for (; count - at >= kSplitGroup; at += kSplitGroup) {
        const uint64_t bits = split_group(low + at, master + at);
        std::memcpy(open + at / 8, &bits, sizeof bits);
    }
    const uint64_t left = count - at;
    if (left == 0) return;
    alignas(64) float master_tail[kSplitGroup] = {};
    alignas(64) uint16_t low_tail[kSplitGroup] = {};
    std::memcpy(master_tail, master + at, left * sizeof(float));
    const uint64_t bits = split_group(low_tail, master_tail);
    std::memcpy(low + at, low_tail, left * sizeof(uint16_t));
    std::memcpy(open + at / 8, &bits, (left + 7) / 8);
}

}  // namespace
}  // namespace stepwell::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "lib/update/kernels/dispatch.h"

namespace stepwell::kernels {
namespace {

STEPWELL_DISPATCH(run_merge);
STEPWELL_DISPATCH(run_split);

}  // namespace

void merge_master(float *master, const uint16_t *rounded, const SplitMaster &from, uint64_t count)
{
    run_merge_dispatch.chosen()(master, rounded, from.low, from.open, count);
}

void split_master(const SplitMaster &to, const float *master, uint64_t count)
{
    run_split_dispatch.chosen()(to.low, to.open, master, count);
}

}  // namespace stepwell::kernels
#endif
