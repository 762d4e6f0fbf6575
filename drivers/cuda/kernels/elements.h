// SPDX-License-Identifier: Apache-2.0
// Loads and stores of elements, one at a time or in groups of four: 16 bytes of fp32, or 8 of a
// 16-bit dtype. Also, which elements a thread handles.
//
// Memory limits these kernels: an H200's 4.8 TB/s at a latency near 0.8 us need 30 kB in flight
// for each SM at any time. Neighbouring threads take neighbouring groups, so the accesses of a
// warp are complete lines. AdamW of fp32 loads four groups for each thread, 64 bytes, before it
// needs the first; with the 1,280 threads that its registers allow on an SM that is 80 kB.
// Operations that load less load several groups ahead (kBatch), and decode them only when all
// loads are issued. The dtype is a branch that all threads take alike: 28 bytes for each element
// leave time for some 200 instructions, and one kernel for all dtypes is a ninth of the code.
// instructions, and one kernel for all dtypes is a ninth of the code.
#pragma once

#include "drivers/cuda/kernels/arguments.h"
#include "drivers/cuda/kernels/numbers.h"

namespace stepwell::drivers::cuda {

inline constexpr uint32_t kGroup = 4;

struct Array {
    uint64_t address;
    uint32_t dtype;
};

// Elements as stored: 16-bit ones fill the first half of the words.
template <uint32_t N> struct Raw {
    uint32_t words[N];
};

template <uint32_t N> struct Floats {
    float at[N];
};

template <uint32_t N> STW_CODE Raw<N> load_raw(const Array &array, uint64_t element)
{
    static_assert(N == 1 || N == kGroup);
    Raw<N> raw = {};
    if (array.dtype == STW_F32) {
        const void *from = global<uint32_t>(array.address) + element;
        if constexpr (N == 1) {
            raw.words[0] = load_word<uint32_t>(from);
        } else {
            const auto words = load_word<Words4>(from);
            raw = {{words.x, words.y, words.z, words.w}};
        }
    } else {
        const void *from = global<uint16_t>(array.address) + element;
        if constexpr (N == 1) {
            raw.words[0] = load_word<uint16_t>(from);
        } else {
            const auto words = load_word<Words2>(from);
            raw = {{words.x, words.y}};
        }
    }
    return raw;
}

template <uint32_t N> STW_CODE void store_raw(const Array &array, uint64_t element, Raw<N> raw)
{
    if (array.dtype == STW_F32) {
        void *to = global<uint32_t>(array.address) + element;
        if constexpr (N == 1) {
            store_word(to, raw.words[0]);
        } else {
            store_word(to, Words4{raw.words[0], raw.words[1], raw.words[2], raw.words[3]});
        }
    } else {
        void *to = global<uint16_t>(array.address) + element;
        if constexpr (N == 1) {
            store_word(to, static_cast<uint16_t>(raw.words[0]));
        } else {
            store_word(to, Words2{raw.words[0], raw.words[1]});
        }
    }
}

template <uint32_t N> STW_CODE uint32_t half_of(const Raw<N> &raw, uint32_t i)
{
    return raw.words[i / 2] >> (i % 2 * 16) & 0xFFFF;
}

template <uint32_t N> STW_CODE Floats<N> decode(uint32_t dtype, const Raw<N> &raw)
{
    Floats<N> floats;
    if (dtype == STW_F32) {
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) floats.at[i] = float_of(raw.words[i]);
    } else if (dtype == STW_BF16) {
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) floats.at[i] = from_bf16(half_of(raw, i));
    } else {
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) floats.at[i] = from_f16(half_of(raw, i));
    }
    return floats;
}

template <uint32_t N> STW_CODE Raw<N> encode(uint32_t dtype, const Floats<N> &floats)
{
    Raw<N> raw = {};
    if (dtype == STW_F32) {
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) raw.words[i] = bits_of(floats.at[i]);
    } else if (dtype == STW_BF16) {
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) raw.words[i / 2] |= to_bf16(floats.at[i]) << (i % 2 * 16);
    } else {
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) raw.words[i / 2] |= to_f16(floats.at[i]) << (i % 2 * 16);
    }
    return raw;
}

// A run of elements: first those before the groups, then the groups, then the rest.
struct Run {
    uint64_t count;
    uint64_t head;
    uint64_t groups;
};

// Elements before the array's first complete group.
STW_CODE uint64_t elements_to_group(const Array &array)
{
    return (0 - array.address / (array.dtype == STW_F32 ? 4 : 2)) % kGroup;
}

// Groups are used if they begin at the same element in all arrays, as in ranges of tensors that
// begin at the same offset in their blocks; else all elements are handled one by one.
template <uint32_t Arrays> STW_CODE Run make_run(uint64_t count, const Array (&arrays)[Arrays])
{
    uint64_t head = elements_to_group(arrays[0]);
    STW_UNROLL
    for (uint32_t i = 1; i < Arrays; ++i) {
        if (elements_to_group(arrays[i]) != head) head = count;
    }
    if (head > count) head = count;
    return {count, head, (count - head) / kGroup};
}

// Runs an operation over this thread's part of the run. Operation::load<N>(element) only loads;
// Operation::finish<N>(element, loaded) computes and stores.
template <uint32_t kBatch, class Operation>
STW_CODE void run_thread(const Run &run, uint64_t thread, uint64_t threads, Operation &operation)
{
    uint64_t group = thread;
    for (; group + (kBatch - 1) * threads < run.groups; group += kBatch * threads) {
        decltype(operation.template load<kGroup>(0)) loaded[kBatch];
        STW_UNROLL
        for (uint32_t i = 0; i < kBatch; ++i) {
            loaded[i] = operation.template load<kGroup>(run.head + (group + i * threads) * kGroup);
        }
        STW_UNROLL
        for (uint32_t i = 0; i < kBatch; ++i) {
            operation.template finish<kGroup>(run.head + (group + i * threads) * kGroup, loaded[i]);
        }
    }
    for (; group < run.groups; group += threads) {
        const uint64_t element = run.head + group * kGroup;
        operation.template finish<kGroup>(element, operation.template load<kGroup>(element));
    }
    for (uint64_t i = thread; i < run.count - run.groups * kGroup; i += threads) {
        const uint64_t element = i < run.head ? i : i + run.groups * kGroup;
        operation.template finish<1>(element, operation.template load<1>(element));
    }
}

// `make()` returns the operation of one thread, which may keep state between elements.
template <uint32_t kBatch, class Block, class Make>
STW_CODE void run_block(Block &block, const Run &run, const Make &make)
{
    const uint64_t threads = uint64_t{block.count()} * block.threads();
    block.each_thread([&](uint32_t thread) {
        auto operation = make();
        const uint64_t number = uint64_t{block.index()} * block.threads() + thread;
        run_thread<kBatch>(run, number, threads, operation);
    });
}

}  // namespace stepwell::drivers::cuda
