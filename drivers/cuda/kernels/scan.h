// SPDX-License-Identifier: Apache-2.0
// The scan of a gradient: for each run of 4,096 elements the sum of squares, the count of
// non-finite elements and the largest magnitude, in one pass over memory. The order of the sum is
// fixed: element i of a run is added to lane i mod 16, in order; then lane j += lane j+8, j+4,
// j+2, j+1.
//
// So a run has 16 chains of 256 additions, and no thread can help another with a chain. A thread
// has 4 bytes of a row of 16 elements: one chain of fp32, or two of a 16-bit dtype. While it adds
// 16 rows it loads the next 16; without that explicit order the compiler would load them one by
// one when needed. With the 1,152 threads that its registers allow on an SM, 74 kB are in flight,
// and the rows of a warp are complete sectors. Nothing is staged: each byte is needed once, by one
// thread. A short range takes as long as one run, so a launch should cover all adjacent ranges.
#pragma once

#include "drivers/cuda/kernels/arguments.h"
#include "drivers/cuda/kernels/numbers.h"

namespace stepwell::drivers::cuda {

inline constexpr uint32_t kScanThreads = 64;  // of a thread block
inline constexpr uint32_t kScanLanes = 16;
inline constexpr uint32_t kScanRows = kScanElements / kScanLanes;
inline constexpr uint32_t kScanBatch = 16;  // rows
static_assert(kScanRows % kScanBatch == 0);

// Elements without sign: from kInfinite on they are not finite; value() is for the others.
struct ScanF32 {
    using Stored = uint32_t;
    static constexpr uint32_t kInfinite = kInfinity;
    STW_CODE static float value(uint32_t magnitude) { return float_of(magnitude); }
};
struct ScanF16 {
    using Stored = uint16_t;
    static constexpr uint32_t kInfinite = 0x7C00;
    STW_CODE static float value(uint32_t magnitude) { return magnitude_of_f16(magnitude); }
};
struct ScanBf16 {
    using Stored = uint16_t;
    static constexpr uint32_t kInfinite = kInfinity >> 16;
    STW_CODE static float value(uint32_t magnitude) { return from_bf16(magnitude); }
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
    float maximum[kScanThreads];
};

// The results of one thread for its lanes of one run.
template <class Element> class ScanTally {
public:
    static constexpr uint32_t kLanes = ScanShape<Element>::kLanes;

    // One row's word, or its first `lanes` lanes.
    STW_CODE void add(uint32_t word, uint32_t lanes)
    {
        STW_UNROLL
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            if (lane < lanes) add_element(lane, word >> (kBits * lane) & kMagnitudeMask);
        }
    }

    STW_CODE void put(ScanMemory &memory, uint32_t thread) const
    {
        STW_UNROLL
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            memory.sums[thread * kLanes + lane] = sums_[lane];
        }
        memory.nonfinite[thread] = nonfinite_;
        memory.maximum[thread] = Element::value(maximum_);
    }

private:
    STW_CODE void add_element(uint32_t lane, uint32_t magnitude)
    {
        const bool finite = magnitude < Element::kInfinite;
        const uint32_t kept = finite ? magnitude : 0;
        nonfinite_ += finite ? 0 : 1;
        maximum_ = maximum_ < kept ? kept : maximum_;
        const double value = Element::value(kept);
        sums_[lane] += value * value;  // the square is exact
    }

    static constexpr uint32_t kBits = 32 / kLanes;
    static constexpr uint32_t kMagnitudeMask = kMagnitude >> (32 - kBits);

    double sums_[kLanes] = {};
    uint32_t nonfinite_ = 0;
    uint32_t maximum_ = 0;  // magnitudes order like integers
};

// `whole`: the address is a multiple of 4.
template <class Element>
STW_CODE uint32_t load_row(const typename Element::Stored *from, bool whole)
{
    if (whole) return load_word<uint32_t>(from);
    return load_word<uint16_t>(from) | uint32_t{load_word<uint16_t>(from + 1)} << 16;
}

// For a run with all rows of this thread.
template <class Element>
STW_CODE void scan_run(const typename Element::Stored *from, bool whole, ScanTally<Element> &tally)
{
    uint32_t words[kScanBatch];
    uint32_t ahead[kScanBatch];
    STW_UNROLL
    for (uint32_t i = 0; i < kScanBatch; ++i) {
        ahead[i] = load_row<Element>(from + i * kScanLanes, whole);
    }
    for (uint32_t row = kScanBatch; row <= kScanRows; row += kScanBatch) {
        STW_UNROLL
        for (uint32_t i = 0; i < kScanBatch; ++i) words[i] = ahead[i];
        if (row < kScanRows) {
            STW_UNROLL
            for (uint32_t i = 0; i < kScanBatch; ++i) {
                ahead[i] = load_row<Element>(from + (row + i) * kScanLanes, whole);
            }
        }
        STW_UNROLL
        for (uint32_t i = 0; i < kScanBatch; ++i) tally.add(words[i], ScanTally<Element>::kLanes);
    }
}

template <class Element>
STW_CODE void scan_rest(const typename Element::Stored *from, uint64_t length,
                        ScanTally<Element> &tally)
{
    for (uint64_t at = 0; at < length; at += kScanLanes) {
        uint32_t word = load_word<typename Element::Stored>(from + at);
        const bool both = ScanTally<Element>::kLanes == 2 && at + 1 < length;
        if (both) word |= uint32_t{load_word<typename Element::Stored>(from + at + 1)} << 16;
        tally.add(word, both ? 2 : 1);
    }
}

// `from` is the thread's first element of the run; `length` counts from there.
template <class Element>
STW_CODE ScanTally<Element> scan_lanes(const typename Element::Stored *from, uint64_t length)
{
    constexpr uint32_t kWhole = (kScanRows - 1) * kScanLanes + ScanTally<Element>::kLanes;
    ScanTally<Element> tally;
    if (length < kWhole) {
        scan_rest(from, length, tally);
    } else if (sizeof(*from) == 4 || reinterpret_cast<uintptr_t>(from) % 4 == 0) {
        scan_run(from, true, tally);
    } else {
        scan_run(from, false, tally);
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
        float maximum = 0.0F;
        for (uint32_t i = thread * Shape::kThreads; i < (thread + 1) * Shape::kThreads; ++i) {
            nonfinite += memory.nonfinite[i];
            if (memory.maximum[i] > maximum) maximum = memory.maximum[i];
        }
        global<double>(arguments.sums)[run] = memory.sums[thread * kScanLanes];
        global<ScanCounts>(arguments.counts)[run] = {nonfinite, maximum};
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
