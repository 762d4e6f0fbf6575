// SPDX-License-Identifier: Apache-2.0
// The moving average of a parameter, in one pass. On the calling thread, no allocation. Compiled
// once per target.
#include "lib/update/kernels/float_environment.h"
#include "lib/update/kernels/kernels.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/update/kernels/average.cpp"
#include "lib/update/kernels/highway.h"
#include "lib/update/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stepwell::kernels::HWY_NAMESPACE {
namespace {

template <class D>
HWY_INLINE void average_vector(D d, float *average, const float *values, float weight)
{
    const auto before = hn::LoadU(d, average);
    const auto way = hn::Sub(hn::LoadU(d, values), before);
    const auto after = hn::Add(before, hn::Mul(way, hn::Set(d, weight)));
    hn::StoreU(canonical(d, after), d, average);
}

HWY_NOINLINE void run_average(float *average, const float *values, uint64_t count, float weight)
{
    const hn::ScalableTag<float> d;
    constexpr uint64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
    uint64_t at = 0;
    for (; count - at >= kLanes; at += kLanes) average_vector(d, average + at, values + at, weight);
    if (at == count) return;
    alignas(64) float average_tail[kLanes] = {};
    alignas(64) float values_tail[kLanes] = {};
    std::memcpy(average_tail, average + at, (count - at) * sizeof(float));
    std::memcpy(values_tail, values + at, (count - at) * sizeof(float));
    average_vector(d, average_tail, values_tail, weight);
    std::memcpy(average + at, average_tail, (count - at) * sizeof(float));
}

}  // namespace
}  // namespace stepwell::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "lib/update/kernels/dispatch.h"

namespace stepwell::kernels {
namespace {

STEPWELL_DISPATCH(run_average);

}  // namespace

// Not 1 minus the rounded decay: of 0.9999 that would be another weight by 2 parts in 10,000.
[[gnu::noinline]] float average_weight(double decay)
{
    return static_cast<float>(1.0 - decay);
}

void average(float *average, const float *values, uint64_t count, double decay)
{
    const FloatEnvironment environment;
    run_average_dispatch.chosen()(average, values, count, average_weight(decay));
}

}  // namespace stepwell::kernels
#endif
