// SPDX-License-Identifier: Apache-2.0
// The scan of a gradient: sum of squares, non-finite elements and largest magnitude in one pass
// over memory. On the calling thread, no allocation. Compiled once per target; the sum's order is
// fixed by the sixteen lanes of kernels.h, whatever a register holds.
#include "lib/update/kernels/float_environment.h"
#include "lib/update/kernels/kernels.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/update/kernels/scan.cpp"
#include "lib/update/kernels/highway.h"
#include "lib/update/kernels/lanes-inl.h"

// The accumulators are an array; only where its loops are unrolled do they live in registers.
#undef STEPWELL_UNROLL
#if defined(__clang__)
#define STEPWELL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define STEPWELL_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace stepwell::kernels::HWY_NAMESPACE {
namespace {

constexpr uint32_t kSumLanes = 16;

using Floats = hn::CappedTag<float, kSumLanes>;
constexpr uint32_t kFloatLanes = hn::MaxLanes(Floats());
constexpr uint32_t kFloatVectors = kSumLanes / kFloatLanes;
// Doubles are half as many to a register; the one-lane target has one of each.
constexpr uint32_t kParts = kFloatLanes > 1 ? 2 : 1;
using FloatPart = hn::CappedTag<float, kFloatLanes / kParts>;
using Doubles = hn::Rebind<double, FloatPart>;
constexpr uint32_t kDoubleLanes = kFloatLanes / kParts;

struct Accumulators {
    hn::Vec<Doubles> sums[kFloatVectors * kParts];
    hn::Vec<Bits<Floats>> nonfinite;  // minus the count, lane by lane
    hn::Vec<Bits<Floats>> maximum;    // as bits: magnitudes order like integers
};

HWY_INLINE hn::Vec<Doubles> add_square(hn::Vec<Doubles> sum, hn::Vec<FloatPart> value)
{
    const auto wide = hn::PromoteTo(Doubles(), value);
    return hn::Add(sum, hn::Mul(wide, wide));
}

// The halves are found through their argument, and only where there are any: the one-lane target
// does not declare UpperHalf at all.
template <class V> HWY_INLINE void add_squares(V values, hn::Vec<Doubles> *sums)
{
    if constexpr (kParts == 2) {
        sums[0] = add_square(sums[0], LowerHalf(FloatPart(), values));
        sums[1] = add_square(sums[1], UpperHalf(FloatPart(), values));
    } else {
        sums[0] = add_square(sums[0], values);
    }
}

template <class Gradient>
HWY_INLINE void scan_row(const typename Gradient::Stored *row, Accumulators &a)
{
    const Floats d;
    const Bits<Floats> u;
    const hn::Rebind<int32_t, Floats> i;
    STEPWELL_UNROLL
    for (uint32_t v = 0; v < kFloatVectors; ++v) {
        const auto values = load(Gradient(), d, row + v * kFloatLanes);
        const auto magnitude = hn::And(hn::BitCast(u, values), hn::Set(u, 0x7FFFFFFF));
        const auto finite = below(d, magnitude, 0x7F800000);
        const auto kept = hn::IfThenElseZero(finite, magnitude);
        a.nonfinite = hn::Add(a.nonfinite, hn::VecFromMask(u, hn::Not(finite)));
        a.maximum = hn::BitCast(u, hn::Max(hn::BitCast(i, a.maximum), hn::BitCast(i, kept)));
        add_squares(hn::BitCast(d, kept), a.sums + v * kParts);
    }
}

HWY_INLINE double sum_of_lanes(const Accumulators &a)
{
    alignas(64) double lanes[kSumLanes];
    STEPWELL_UNROLL
    for (uint32_t v = 0; v < kFloatVectors * kParts; ++v) {
        hn::StoreU(a.sums[v], Doubles(), lanes + v * kDoubleLanes);
    }
    for (uint32_t half = kSumLanes / 2; half != 0; half /= 2) {
        for (uint32_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
}

HWY_INLINE ScanResult counts_of(const Accumulators &a)
{
    alignas(64) uint32_t nonfinite[kFloatLanes];
    alignas(64) uint32_t maximum[kFloatLanes];
    hn::StoreU(a.nonfinite, Bits<Floats>(), nonfinite);
    hn::StoreU(a.maximum, Bits<Floats>(), maximum);
    ScanResult result;
    for (uint32_t lane = 0; lane < kFloatLanes; ++lane) {
        float magnitude = 0.0F;
        std::memcpy(&magnitude, &maximum[lane], sizeof(magnitude));
        const uint32_t count = 0U - nonfinite[lane];
        if (magnitude > result.maximum) result.maximum = magnitude;
        result.nonfinite += count;
    }
    return result;
}

template <class Gradient>
HWY_INLINE double scan_block(const typename Gradient::Stored *block, uint64_t count,
                             ScanResult &result)
{
    Accumulators a;
    STEPWELL_UNROLL
    for (uint32_t v = 0; v < kFloatVectors * kParts; ++v) a.sums[v] = hn::Zero(Doubles());
    a.nonfinite = hn::Zero(Bits<Floats>());
    a.maximum = hn::Zero(Bits<Floats>());
    uint64_t at = 0;
    for (; count - at >= kSumLanes; at += kSumLanes) scan_row<Gradient>(block + at, a);
    if (at != count) {
        // Zeros add nothing: a sum of squares is never -0.
        alignas(64) typename Gradient::Stored row[kSumLanes] = {};
        std::memcpy(row, block + at, (count - at) * sizeof(row[0]));
        scan_row<Gradient>(row, a);
    }
    const ScanResult counts = counts_of(a);
    result.nonfinite += counts.nonfinite;
    if (counts.maximum > result.maximum) result.maximum = counts.maximum;
    return sum_of_lanes(a);
}

template <class Gradient>
HWY_NOINLINE void scan_array(const void *gradient, uint64_t count, double *sums, ScanResult &result)
{
    const auto *elements = static_cast<const typename Gradient::Stored *>(gradient);
    for (uint64_t at = 0; at < count; at += kScanBlockElements) {
        const uint64_t rest = count - at;
        const uint64_t length = rest < kScanBlockElements ? rest : kScanBlockElements;
        *sums++ = scan_block<Gradient>(elements + at, length, result);
    }
}

HWY_NOINLINE void run_scan(const void *gradient, uint32_t dtype, uint64_t count, double *sums,
                           ScanResult &result)
{
    switch (dtype) {
    case STW_F16: return scan_array<F16>(gradient, count, sums, result);
    case STW_BF16: return scan_array<Bf16>(gradient, count, sums, result);
    default: return scan_array<F32>(gradient, count, sums, result);
    }
}

}  // namespace
}  // namespace stepwell::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "lib/update/kernels/dispatch.h"

namespace stepwell::kernels {

STEPWELL_DISPATCH(run_scan);

ScanResult scan_blocks(const void *gradient, uint32_t dtype, uint64_t count, double *sums_out)
{
    const FloatEnvironment environment;
    ScanResult result;
    run_scan_dispatch.chosen()(gradient, dtype, count, sums_out, result);
    return result;
}

}  // namespace stepwell::kernels
#endif
