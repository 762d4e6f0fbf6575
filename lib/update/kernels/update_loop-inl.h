// SPDX-License-Identifier: Apache-2.0
// The loop of an update over a run of elements, whatever the rule for one vector and the dtypes.
// Compiled once per target.
#include "lib/update/kernels/kernels.h"

#include <cstring>
#include <type_traits>

#include "lib/update/kernels/lanes-inl.h"

#if defined(STEPWELL_KERNELS_UPDATE_LOOP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_KERNELS_UPDATE_LOOP_INL_H
#undef STEPWELL_KERNELS_UPDATE_LOOP_INL_H
#else
#define STEPWELL_KERNELS_UPDATE_LOOP_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace stepwell::kernels::HWY_NAMESPACE {
namespace {

template <class Gradient, class Value> struct Arrays {
    const typename Gradient::Stored *HWY_RESTRICT gradient;
    typename Value::Stored *HWY_RESTRICT values;  // not used when fp32
    float *HWY_RESTRICT master;
    float *HWY_RESTRICT states[2];
};

template <class Rule, class Gradient, class Value, class D>
HWY_INLINE void step_vector(D d, const Coefficients &c, const Arrays<Gradient, Value> &arrays,
                            uint64_t at)
{
    using V = hn::Vec<D>;
    const V scale = hn::Set(d, c.gradient_scale);
    const V gradient = hn::Mul(load(Gradient(), d, arrays.gradient + at), scale);
    V states[2] = {hn::Zero(d), hn::Zero(d)};
    for (uint32_t s = 0; s < Rule::kStates; ++s) states[s] = hn::LoadU(d, arrays.states[s] + at);
    const V before = hn::LoadU(d, arrays.master + at);
    const V master = canonical(d, Rule::step(d, c, gradient, before, states));
    for (uint32_t s = 0; s < Rule::kStates; ++s) {
        hn::StoreU(canonical(d, states[s]), d, arrays.states[s] + at);
    }
    hn::StoreU(master, d, arrays.master + at);
    if constexpr (!std::is_same_v<Value, F32>) store(Value(), d, master, arrays.values + at);
}

// Fewer elements than a vector has: through vectors of our own, by the same instructions. The
// lanes past the end compute on zeros and are dropped.
template <class Rule, class Gradient, class Value, class D>
HWY_INLINE void step_tail(D d, const Coefficients &c, const Arrays<Gradient, Value> &arrays,
                          uint64_t at, uint64_t count)
{
    constexpr uint32_t kLanes = hn::MaxLanes(D());
    alignas(64) typename Gradient::Stored gradient[kLanes] = {};
    alignas(64) typename Value::Stored values[kLanes] = {};
    alignas(64) float master[kLanes] = {};
    alignas(64) float states[2][kLanes] = {};
    std::memcpy(gradient, arrays.gradient + at, count * sizeof(gradient[0]));
    std::memcpy(master, arrays.master + at, count * sizeof(float));
    for (uint32_t s = 0; s < Rule::kStates; ++s) {
        std::memcpy(states[s], arrays.states[s] + at, count * sizeof(float));
    }
    const Arrays<Gradient, Value> local = {gradient, values, master, {states[0], states[1]}};
    step_vector<Rule>(d, c, local, 0);
    std::memcpy(arrays.master + at, master, count * sizeof(float));
    for (uint32_t s = 0; s < Rule::kStates; ++s) {
        std::memcpy(arrays.states[s] + at, states[s], count * sizeof(float));
    }
    if constexpr (!std::is_same_v<Value, F32>) {
        std::memcpy(arrays.values + at, values, count * sizeof(values[0]));
    }
}

template <class Rule, class Gradient, class Value>
HWY_NOINLINE void loop(const Coefficients &coefficients, const Chunk &chunk)
{
    const hn::ScalableTag<float> d;
    constexpr uint64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
    const Coefficients c = coefficients;  // ours: the stores below cannot change it
    const Arrays<Gradient, Value> arrays = {
        static_cast<const typename Gradient::Stored *>(chunk.gradient),
        static_cast<typename Value::Stored *>(chunk.values),
        chunk.master,
        {chunk.states[0], chunk.states[1]},
    };
    uint64_t at = 0;
    for (; chunk.count - at >= kLanes; at += kLanes) step_vector<Rule>(d, c, arrays, at);
    if (at != chunk.count) step_tail<Rule>(d, c, arrays, at, chunk.count - at);
}

template <class Rule, class Gradient>
HWY_INLINE void by_values(const Coefficients &c, const Chunk &chunk)
{
    switch (chunk.values_dtype) {
    case STW_F16: return loop<Rule, Gradient, F16>(c, chunk);
    case STW_BF16: return loop<Rule, Gradient, Bf16>(c, chunk);
    default: return loop<Rule, Gradient, F32>(c, chunk);
    }
}

template <class Rule> HWY_INLINE void by_gradient(const Coefficients &c, const Chunk &chunk)
{
    switch (chunk.gradient_dtype) {
    case STW_F16: return by_values<Rule, F16>(c, chunk);
    case STW_BF16: return by_values<Rule, Bf16>(c, chunk);
    default: return by_values<Rule, F32>(c, chunk);
    }
}

}  // namespace
}  // namespace stepwell::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
