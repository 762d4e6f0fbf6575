// SPDX-License-Identifier: Apache-2.0
// Loads and stores of elements, one at a time or in groups of four: 16 bytes of fp32, or 8 of a
// 16-bit dtype. Also, which elements a thread handles.
//
// Memory limits these kernels: an H200's 4.8 TB/s at a latency near 0.8 us need 30 kB in flight
// for each SM at any time. Neighbouring threads take neighbouring groups, so the accesses of a
// warp are complete lines. AdamW of fp32 loads four groups for each thread, 64 bytes, before it
// needs the first; with the 1,280 threads that its registers allow on an SM that is 80 kB.
// Operations that load less load several groups at once (kBatch). The dtype is a branch that all
// threads take alike, once for all these groups, and one kernel for all dtypes is a ninth of the
// code. At that bandwidth an SM has time for 8 instructions for each byte of an element.
#pragma once

#include "drivers/cuda/kernels/arguments.h"
#include "drivers/cuda/kernels/numbers.h"

namespace stepwell::drivers::cuda {

inline constexpr uint32_t kGroup = 4;

struct Array {
    uint64_t address;
    uint32_t dtype;
};

// Where N elements are: one, or groups whose first elements are `stride` apart.
struct Place {
    uint64_t element;
    uint64_t stride;

    STW_CODE Place group(uint32_t i) const { return {element + i / kGroup * stride, stride}; }
};

// Elements as stored: 16-bit ones fill the first half of each group's words.
template <uint32_t N> struct Raw {
    uint32_t words[N];
};

template <uint32_t N> struct Floats {
    float at[N];
};

template <uint32_t N> STW_CODE Raw<N> load_raw(const Array &array, const Place &place)
{
    static_assert(N == 1 || N % kGroup == 0);
    Raw<N> raw = {};
    if (array.dtype == STW_F32) {
        STW_UNROLL
        for (uint32_t i = 0; i < N; i += kGroup) {
            const void *from = global<uint32_t>(array.address) + place.group(i).element;
            if constexpr (N == 1) {
                raw.words[0] = load_word<uint32_t>(from);
            } else {
                const auto words = load_word<Words4>(from);
                raw.words[i] = words.x;
                raw.words[i + 1] = words.y;
                raw.words[i + 2] = words.z;
                raw.words[i + 3] = words.w;
            }
        }
    } else {
        STW_UNROLL
        for (uint32_t i = 0; i < N; i += kGroup) {
            const void *from = global<uint16_t>(array.address) + place.group(i).element;
            if constexpr (N == 1) {
                raw.words[0] = load_word<uint16_t>(from);
            } else {
                const auto words = load_word<Words2>(from);
                raw.words[i] = words.x;
                raw.words[i + 1] = words.y;
            }
        }
    }
    return raw;
}

template <uint32_t N>
STW_CODE void store_raw(const Array &array, const Place &place, const Raw<N> &raw)
{
    const auto &words = raw.words;
    if (array.dtype == STW_F32) {
        STW_UNROLL
        for (uint32_t i = 0; i < N; i += kGroup) {
            void *to = global<uint32_t>(array.address) + place.group(i).element;
            if constexpr (N == 1) {
                store_word(to, words[0]);
            } else {
                store_word(to, Words4{words[i], words[i + 1], words[i + 2], words[i + 3]});
            }
        }
    } else {
        STW_UNROLL
        for (uint32_t i = 0; i < N; i += kGroup) {
            void *to = global<uint16_t>(array.address) + place.group(i).element;
            if constexpr (N == 1) {
                store_word(to, static_cast<uint16_t>(words[0]));
            } else {
                store_word(to, Words2{words[i], words[i + 1]});
            }
        }
    }
}

// The word and the shift of a 16-bit element.
STW_CODE uint32_t word_of(uint32_t i)
{
    return i / kGroup * kGroup + i % kGroup / 2;
}
STW_CODE uint32_t shift_of(uint32_t i)
{
    return i % 2 * 16;
}

template <uint32_t N> STW_CODE uint32_t half_of(const Raw<N> &raw, uint32_t i)
{
    return raw.words[word_of(i)] >> shift_of(i) & 0xFFFF;
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
        for (uint32_t i = 0; i < N; ++i) {
            raw.words[word_of(i)] |= to_bf16(floats.at[i]) << shift_of(i);
        }
    } else {
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) {
            raw.words[word_of(i)] |= to_f16(floats.at[i]) << shift_of(i);
        }
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

// Runs an operation over this thread's part of the run. Operation::load<N>(place) only loads;
// Operation::finish<N>(place, loaded) computes and stores. A thread block takes kBatch groups for
// each of its threads at once, all beside each other; the last of these tiles may lack groups.
template <uint32_t kBatch, class Block, class Operation>
STW_CODE void run_thread(const Block &block, const Run &run, uint32_t thread, Operation &operation)
{
    const uint64_t threads = block.threads();
    const uint64_t tile = threads * kBatch;
    for (uint64_t first = block.index() * tile; first < run.groups; first += block.count() * tile) {
        const uint64_t end = first + tile;
        uint64_t group = first + thread;
        if (kBatch > 1 && end <= run.groups) {
            const Place place = {run.head + group * kGroup, threads * kGroup};
            operation.finish(place, operation.template load<kBatch * kGroup>(place));
            continue;
        }
        for (; group < end && group < run.groups; group += threads) {
            const Place place = {run.head + group * kGroup, 0};
            operation.finish(place, operation.template load<kGroup>(place));
        }
    }
    const uint64_t singles = run.count - run.groups * kGroup;
    for (uint64_t i = block.index() * threads + thread; i < singles; i += block.count() * threads) {
        const Place place = {i < run.head ? i : i + run.groups * kGroup, 0};
        operation.finish(place, operation.template load<1>(place));
    }
}

// `make()` returns the operation of one thread, which may keep state between elements.
template <uint32_t kBatch, class Block, class Make>
STW_CODE void run_block(Block &block, const Run &run, const Make &make)
{
    block.each_thread([&](uint32_t thread) {
        auto operation = make();
        run_thread<kBatch>(block, run, thread, operation);
    });
}

}  // namespace stepwell::drivers::cuda
