// SPDX-License-Identifier: Apache-2.0
// One array made from another, or added to it: the moving average, conversions of dtype, sums of
// gradients.
#pragma once

#include "drivers/cuda/kernels/elements.h"

namespace stepwell::drivers::cuda {

// Groups that a thread loads at once: at least 32 bytes.
inline constexpr uint32_t kMapBatch = 4;

template <uint32_t N> struct Both {
    Raw<N> to;
    Raw<N> from;
};

struct Average {
    const AverageArguments &arguments;

    STW_CODE Array to() const { return {arguments.average, STW_F32}; }
    STW_CODE Array from() const { return {arguments.values, STW_F32}; }

    template <uint32_t N> STW_CODE Both<N> load(const Place &place) const
    {
        return {load_raw<N>(to(), place), load_raw<N>(from(), place)};
    }

    template <uint32_t N> STW_CODE void finish(const Place &place, const Both<N> &loaded) const
    {
        Floats<N> average = decode(STW_F32, loaded.to);
        const Floats<N> values = decode(STW_F32, loaded.from);
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) {
            const float way = values.at[i] - average.at[i];
            average.at[i] = canonical(average.at[i] + way * arguments.weight);
        }
        store_raw(to(), place, encode(STW_F32, average));
    }
};

struct Convert {
    const ConvertArguments &arguments;

    STW_CODE Array to() const { return {arguments.destination, arguments.destination_dtype}; }
    STW_CODE Array from() const { return {arguments.source, arguments.source_dtype}; }

    template <uint32_t N> STW_CODE Raw<N> load(const Place &place) const
    {
        return load_raw<N>(from(), place);
    }

    template <uint32_t N> STW_CODE void finish(const Place &place, const Raw<N> &loaded) const
    {
        // With equal dtypes a NaN is copied unchanged.
        const bool same = arguments.destination_dtype == arguments.source_dtype;
        store_raw(
            to(), place,
            same ? loaded
                 : encode(arguments.destination_dtype, decode(arguments.source_dtype, loaded)));
    }
};

struct Accumulate {
    const AccumulateArguments &arguments;

    STW_CODE Array to() const { return {arguments.destination, arguments.destination_dtype}; }
    STW_CODE Array from() const { return {arguments.source, arguments.source_dtype}; }

    template <uint32_t N> STW_CODE Both<N> load(const Place &place) const
    {
        Both<N> loaded = {};
        if (arguments.mode == kAccumulateAdd) loaded.to = load_raw<N>(to(), place);
        loaded.from = load_raw<N>(from(), place);
        return loaded;
    }

    template <uint32_t N> STW_CODE void finish(const Place &place, const Both<N> &loaded) const
    {
        Floats<N> sum = decode(arguments.source_dtype, loaded.from);
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) sum.at[i] = sum.at[i] * arguments.scale;
        if (arguments.mode == kAccumulateAdd) {
            const Floats<N> before = decode(arguments.destination_dtype, loaded.to);
            STW_UNROLL
            for (uint32_t i = 0; i < N; ++i) sum.at[i] = before.at[i] + sum.at[i];
        }
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) sum.at[i] = canonical(sum.at[i]);
        store_raw(to(), place, encode(arguments.destination_dtype, sum));
    }
};

template <class Operation, class Block, class Arguments>
STW_CODE void map(Block &block, const Arguments &arguments)
{
    const Operation operation = {arguments};
    const Array arrays[] = {operation.to(), operation.from()};
    run_block<kMapBatch>(block, make_run(arguments.count, arrays),
                         [&] { return Operation{arguments}; });
}

}  // namespace stepwell::drivers::cuda
