// SPDX-License-Identifier: Apache-2.0
// Changes of dtype and the accumulation of gradients, in one pass. On the calling thread, no
// allocation. Compiled once per target; the conversions themselves are in lanes-inl.h.
#include "lib/update/kernels/float_environment.h"
#include "lib/update/kernels/kernels.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/update/kernels/convert.cpp"
#include "lib/update/kernels/highway.h"
#include "lib/update/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stepwell::kernels::HWY_NAMESPACE {
namespace {

struct Copy {
    template <class To, class D, class V = hn::Vec<D>>
    static HWY_INLINE V apply(D /*d*/, V source, V /*scale*/, const typename To::Stored * /*to*/)
    {
        return source;
    }
};

struct First {
    template <class To, class D, class V = hn::Vec<D>>
    static HWY_INLINE V apply(D d, V source, V scale, const typename To::Stored * /*to*/)
    {
        return canonical(d, hn::Mul(source, scale));
    }
};

struct Add {
    template <class To, class D, class V = hn::Vec<D>>
    static HWY_INLINE V apply(D d, V source, V scale, const typename To::Stored *to)
    {
        return canonical(d, hn::Add(load(To(), d, to), hn::Mul(source, scale)));
    }
};

template <class Rule, class To, class From, class D>
HWY_INLINE void apply_vector(D d, typename To::Stored *to, const typename From::Stored *from,
                             float scale)
{
    const auto source = load(From(), d, from);
    store(To(), d, Rule::template apply<To>(d, source, hn::Set(d, scale), to), to);
}

template <class Rule, class To, class From>
HWY_NOINLINE void loop(void *destination, const void *source, uint64_t count, float scale)
{
    const hn::ScalableTag<float> d;
    constexpr uint64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
    auto *to = static_cast<typename To::Stored *>(destination);
    const auto *from = static_cast<const typename From::Stored *>(source);
    uint64_t at = 0;
    for (; count - at >= kLanes; at += kLanes) {
        apply_vector<Rule, To, From>(d, to + at, from + at, scale);
    }
    if (at == count) return;
    alignas(64) typename To::Stored to_tail[kLanes] = {};
    alignas(64) typename From::Stored from_tail[kLanes] = {};
    std::memcpy(to_tail, to + at, (count - at) * sizeof(to_tail[0]));
    std::memcpy(from_tail, from + at, (count - at) * sizeof(from_tail[0]));
    apply_vector<Rule, To, From>(d, to_tail, from_tail, scale);
    std::memcpy(to + at, to_tail, (count - at) * sizeof(to_tail[0]));
}

// What a call is about, so that the choice by dtypes is written once.
struct Job {
    void *destination;
    const void *source;
    uint64_t count;
    float scale;
    uint32_t destination_dtype;
    uint32_t source_dtype;
};

template <class Rule, class To> HWY_INLINE void by_source(const Job &job)
{
    switch (job.source_dtype) {
    case STW_F16: return loop<Rule, To, F16>(job.destination, job.source, job.count, job.scale);
    case STW_BF16: return loop<Rule, To, Bf16>(job.destination, job.source, job.count, job.scale);
    default: return loop<Rule, To, F32>(job.destination, job.source, job.count, job.scale);
    }
}

template <class Rule> HWY_INLINE void by_destination(const Job &job)
{
    switch (job.destination_dtype) {
    case STW_F16: return by_source<Rule, F16>(job);
    case STW_BF16: return by_source<Rule, Bf16>(job);
    default: return by_source<Rule, F32>(job);
    }
}

HWY_NOINLINE void run_convert(void *destination, uint32_t destination_dtype, const void *source,
                              uint32_t source_dtype, uint64_t count)
{
    by_destination<Copy>({destination, source, count, 1.0F, destination_dtype, source_dtype});
}

HWY_NOINLINE void run_accumulate(Reduce mode, void *destination, uint32_t destination_dtype,
                                 const void *source, uint32_t source_dtype, uint64_t count,
                                 float scale)
{
    const Job job = {destination, source, count, scale, destination_dtype, source_dtype};
    if (mode == Reduce::kFirst) return by_destination<First>(job);
    by_destination<Add>(job);
}

}  // namespace
}  // namespace stepwell::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "lib/update/kernels/dispatch.h"

namespace stepwell::kernels {
namespace {

STEPWELL_DISPATCH(run_convert);
STEPWELL_DISPATCH(run_accumulate);

uint64_t element_bytes(uint32_t dtype)
{
    return dtype == STW_F32 ? 4 : 2;
}

// The fp32 between two roundings: the nearest one to zero, with a last bit that says "and a bit
// more". Rounding it again gives what rounding the double at once would.
[[gnu::noinline]] float round_to_odd(double value)
{
    const float nearest = static_cast<float>(value);
    if (static_cast<double>(nearest) == value || nearest != nearest) return nearest;
    uint32_t bits = 0;
    std::memcpy(&bits, &nearest, sizeof(bits));
    const bool away =
        value < 0 ? static_cast<double>(nearest) < value : static_cast<double>(nearest) > value;
    // One step towards zero in sign-magnitude order; infinity steps to the largest finite value.
    if (away) --bits;
    bits |= 1;
    float odd = 0.0F;
    std::memcpy(&odd, &bits, sizeof(odd));
    return odd;
}

template <class T> void repeat(void *destination, uint64_t count, const void *element)
{
    T value;
    std::memcpy(&value, element, sizeof(value));
    T *to = static_cast<T *>(destination);
    for (uint64_t i = 0; i < count; ++i) to[i] = value;
}

[[gnu::noinline]] float to_float(double value)
{
    return static_cast<float>(value);
}

}  // namespace

void convert(void *destination, uint32_t destination_dtype, const void *source,
             uint32_t source_dtype, uint64_t count)
{
    if (destination_dtype == source_dtype) {
        std::memmove(destination, source, count * element_bytes(source_dtype));
        return;
    }
    const FloatEnvironment environment;
    run_convert_dispatch.chosen()(destination, destination_dtype, source, source_dtype, count);
}

void accumulate(Reduce mode, void *destination, uint32_t destination_dtype, const void *source,
                uint32_t source_dtype, uint64_t count, double scale)
{
    const FloatEnvironment environment;
    run_accumulate_dispatch.chosen()(mode, destination, destination_dtype, source, source_dtype,
                                     count, to_float(scale));
}

float accumulate_scale(double scale)
{
    return to_float(scale);
}

void fill(void *destination, uint32_t dtype, uint64_t count, double value)
{
    const FloatEnvironment environment;
    if (dtype == STW_F32) {
        const float element = to_float(value);
        return repeat<uint32_t>(destination, count, &element);
    }
    const float odd = round_to_odd(value);
    uint16_t element = 0;
    run_convert_dispatch.chosen()(&element, dtype, &odd, STW_F32, 1);
    repeat<uint16_t>(destination, count, &element);
}

}  // namespace stepwell::kernels
#endif
