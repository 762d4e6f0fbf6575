// SPDX-License-Identifier: Apache-2.0
// The scan of a gradient: of each run of 4,096 elements the sum of squares, the count of non-finite
// elements and the largest magnitude, in one pass over memory. The order of the sum is given:
// element i of a run is added to lane i mod 16, in order; then lane j += lane j+8, j+4, j+2, j+1.
//
// So a run has 16 chains of 256 additions, and no thread can help another with a chain. A thread
// has 4 bytes of a row of 16 elements: one chain of fp32, two of 16 bits. It loads 16 rows before
// it adds the first; with 1,024 threads an SM that is 64 kB under way, and the rows of a warp are
// whole sectors. Nothing is staged: each byte is needed once, by one thread.
#pragma once

#include "drivers/cuda/kernels/arguments.h"
#include "drivers/cuda/kernels/numbers.h"

namespace stepwell::drivers::cuda {

inline constexpr uint32_t kScanThreads = 64;  // of a thread block
inline constexpr uint32_t kScanLanes = 16;
inline constexpr uint32_t kScanRows = kScanElements / kScanLanes;
inline constexpr uint32_t kScanBatch = 16;  // rows
static_assert(kScanRows % kScanBatch == 0);

struct ScanF32 {
    using Stored = uint32_t;
    STW_CODE static uint32_t bits(uint32_t stored) { return stored; }
};
struct ScanF16 {
    using Stored = uint16_t;
    STW_CODE static uint32_t bits(uint32_t stored) { return bits_of(from_f16(stored)); }
};
struct ScanBf16 {
    using Stored = uint16_t;
    STW_CODE static uint32_t bits(uint32_t stored) { return bits_of(from_bf16(stored)); }
};

// How threads share the runs: lanes to a thread, threads to a run, runs to a thread block.
template <class Element> struct ScanShape {
    static constexpr uint32_t kLanes = 4 / sizeof(typename Element::Stored);
    static constexpr uint32_t kThreads = kScanLanes / kLanes;
    static constexpr uint32_t kRuns = kScanThreads / kThreads;
};

struct ScanMemory {
    double sums[ScanShape<ScanBf16>::kRuns * kScanLanes];
    uint32_t nonfinite[kScanThreads];
    uint32_t maximum[kScanThreads];  // as bits: magnitudes order like integers
};

// What one thread finds in its lanes of one run.
template <class Element> class ScanTally {
public:
    static constexpr uint32_t kLanes = ScanShape<Element>::kLanes;

    // One row's word, or what there is of it.
    STW_CODE void add(uint32_t word, uint32_t lanes)
    {
        STW_UNROLL
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            if (lane < lanes) add_element(lane, kLanes == 1 ? word : word >> 16 * lane & 0xFFFF);
        }
    }

    STW_CODE void put(ScanMemory &memory, uint32_t thread) const
    {
        STW_UNROLL
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            memory.sums[thread * kLanes + lane] = sums_[lane];
        }
        memory.nonfinite[thread] = nonfinite_;
        memory.maximum[thread] = maximum_;
    }

private:
    STW_CODE void add_element(uint32_t lane, uint32_t stored)
    {
        const uint32_t magnitude = Element::bits(stored) & kMagnitude;
        const bool finite = magnitude < kInfinity;
        const uint32_t kept = finite ? magnitude : 0;
        nonfinite_ += finite ? 0 : 1;
        maximum_ = maximum_ < kept ? kept : maximum_;
        const double value = float_of(kept);
        sums_[lane] += value * value;  // the square is exact
    }

    double sums_[kLanes] = {};
    uint32_t nonfinite_ = 0;
    uint32_t maximum_ = 0;
};

template <class Element>
STW_CODE uint32_t load_row(const typename Element::Stored *from, bool whole)
{
    if constexpr (sizeof(*from) == 4) {
        return load_word<uint32_t>(from);
    } else {
        if (whole) return load_word<uint32_t>(from);
        return load_word<uint16_t>(from) | uint32_t{load_word<uint16_t>(from + 1)} << 16;
    }
}

// `from` is the thread's first element of the run; `length` counts from there.
template <class Element>
STW_CODE ScanTally<Element> scan_lanes(const typename Element::Stored *from, uint64_t length)
{
    constexpr uint32_t kLanes = ScanShape<Element>::kLanes;
    constexpr uint32_t kLastRow = (kScanRows - 1) * kScanLanes;
    ScanTally<Element> tally;
    if (length >= kLastRow + kLanes) {
        const bool whole = reinterpret_cast<uintptr_t>(from) % 4 == 0;
        for (uint32_t row = 0; row < kScanRows; row += kScanBatch) {
            uint32_t words[kScanBatch];
            STW_UNROLL
            for (uint32_t i = 0; i < kScanBatch; ++i) {
                words[i] = load_row<Element>(from + (row + i) * kScanLanes, whole);
            }
            STW_UNROLL
            for (uint32_t i = 0; i < kScanBatch; ++i) tally.add(words[i], kLanes);
        }
        return tally;
    }
    for (uint64_t at = 0; at < length; at += kScanLanes) {
        uint32_t word = load_word<typename Element::Stored>(from + at);
        const bool both = kLanes == 2 && at + 1 < length;
        if (both) word |= uint32_t{load_word<typename Element::Stored>(from + at + 1)} << 16;
        tally.add(word, both ? 2 : 1);
    }
    return tally;
}

template <class Element, class Block>
STW_CODE void scan_runs(Block &block, const ScanArguments &arguments, uint64_t first)
{
    using Shape = ScanShape<Element>;
    auto &memory = block.template shared<ScanMemory>();
    block.each_thread([&](uint32_t thread) {
        const uint32_t offset = thread % Shape::kThreads * Shape::kLanes;
        const uint64_t begin = (first + thread / Shape::kThreads) * kScanElements + offset;
        const auto *gradient = global<const typename Element::Stored>(arguments.gradient);
        ScanTally<Element> tally;
        if (begin < arguments.count) {
            const uint64_t rest = arguments.count - begin;
            const uint64_t length = kScanElements - offset;
            tally = scan_lanes<Element>(gradient + begin, rest < length ? rest : length);
        }
        tally.put(memory, thread);
    });
    block.barrier();
    for (uint32_t half = kScanLanes / 2; half != 0; half /= 2) {
        block.each_thread([&](uint32_t thread) {
            for (uint32_t i = thread; i < Shape::kRuns * half; i += kScanThreads) {
                const uint32_t lane = i / half * kScanLanes + i % half;
                memory.sums[lane] += memory.sums[lane + half];
            }
        });
        block.barrier();
    }
    block.each_thread([&](uint32_t thread) {
        const uint64_t run = first + thread;
        if (thread >= Shape::kRuns || run * kScanElements >= arguments.count) return;
        uint32_t nonfinite = 0;
        uint32_t maximum = 0;
        for (uint32_t i = thread * Shape::kThreads; i < (thread + 1) * Shape::kThreads; ++i) {
            nonfinite += memory.nonfinite[i];
            if (memory.maximum[i] > maximum) maximum = memory.maximum[i];
        }
        global<double>(arguments.sums)[run] = memory.sums[thread * kScanLanes];
        global<ScanCounts>(arguments.counts)[run] = {nonfinite, float_of(maximum)};
    });
    block.barrier();  // the next runs use the memory again
}

template <class Element, class Block>
STW_CODE void scan_as(Block &block, const ScanArguments &arguments)
{
    constexpr uint32_t kRuns = ScanShape<Element>::kRuns;
    const uint64_t runs = arguments.count / kScanElements + (arguments.count % kScanElements != 0);
    const uint64_t stride = uint64_t{block.count()} * kRuns;
    for (uint64_t first = uint64_t{block.index()} * kRuns; first < runs; first += stride) {
        scan_runs<Element>(block, arguments, first);
    }
}

template <class Block> STW_CODE void scan(Block &block, const ScanArguments &arguments)
{
    if (arguments.gradient_dtype == STW_F32) return scan_as<ScanF32>(block, arguments);
    if (arguments.gradient_dtype == STW_BF16) return scan_as<ScanBf16>(block, arguments);
    scan_as<ScanF16>(block, arguments);
}

}  // namespace stepwell::drivers::cuda
