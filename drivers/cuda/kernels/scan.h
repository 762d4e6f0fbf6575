// SPDX-License-Identifier: Apache-2.0
// The scan of a gradient: for each run of 4,096 elements the sum of squares, the count of
// non-finite elements and the largest magnitude, in one pass over memory. The order of the sum is
// fixed: element i of a run is added to lane i mod 16, in order; then lane j += lane j+8, j+4,
// j+2, j+1.
//
// So a run has 16 chains of 256 additions, and no thread can help another with a chain. A thread
// has 4 bytes of a row of 16 elements: one chain of fp32, or two of a 16-bit dtype, and loads 32
// rows ahead. Of 2^25 elements of a 16-bit dtype an SM of an H200 has no more than 500 threads;
// with 28 rows of each 56 kB are in flight. The rows of a warp are complete sectors. Nothing is
// staged: each byte is needed once, by one thread. A short range takes as long as one run, so a
// launch should cover all adjacent ranges.
//
// So few threads leave each of them some 15 instructions for an element, and they may not wait for
// each other. Therefore elements are taken for finite, and become doubles by a shift and an exact
// multiplication: the conversion of fp32 is a fourth as fast and its latency varies. If the largest
// magnitude is not finite then, the thread reads its part of the run once more, with care.
#pragma once

#include "drivers/cuda/kernels/arguments.h"
#include "drivers/cuda/kernels/numbers.h"

namespace stepwell::drivers::cuda {

inline constexpr uint32_t kScanThreads = 64;  // of a thread block
inline constexpr uint32_t kScanLanes = 16;
inline constexpr uint32_t kScanRows = kScanElements / kScanLanes;
inline constexpr uint32_t kScanAhead = 32;  // rows
inline constexpr uint32_t kScanBatch = 8;   // rows loaded at once
static_assert(kScanRows % kScanAhead == 0 && kScanAhead % kScanBatch == 0);

// Elements without sign, shifted to the left by kUp: from kInfinite on they are not finite;
// value() is for the others. Shifted further, by kDouble, exponent and mantissa are where those of
// a double are, which lacks a factor for the difference of the biases; denormals become denormals.
struct ScanF32 {
    using Stored = uint32_t;
    static constexpr uint32_t kUp = 0;
    static constexpr uint32_t kDouble = 29;
    static constexpr double kFactor = 0x1p896;
    static constexpr uint32_t kInfinite = kInfinity;
    STW_CODE static float value(uint32_t magnitude) { return float_of(magnitude); }
};
struct ScanF16 {
    using Stored = uint16_t;
    static constexpr uint32_t kUp = 10;
    static constexpr uint32_t kDouble = 32;
    static constexpr double kFactor = 0x1p1008;
    static constexpr uint32_t kInfinite = 0x7C00 << kUp;
    STW_CODE static float value(uint32_t magnitude) { return magnitude_of_f16(magnitude >> kUp); }
};
struct ScanBf16 {
    using Stored = uint16_t;
    static constexpr uint32_t kUp = 13;
    static constexpr uint32_t kDouble = 32;
    static constexpr double kFactor = 0x1p896;
    static constexpr uint32_t kInfinite = (kInfinity >> 16) << kUp;
    STW_CODE static float value(uint32_t magnitude) { return from_bf16(magnitude >> kUp); }
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

    // The first `lanes` lanes of one row's word.
    STW_CODE void add(uint32_t word, uint32_t lanes)
    {
        STW_UNROLL
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            const uint32_t any = magnitude(word, lane);
            const bool finite = any < Element::kInfinite;
            if (lane < lanes) add_element(lane, finite ? any : 0);
            if (lane < lanes && !finite) ++nonfinite_;
        }
    }

    // One row's word. All results are wrong if all_finite() is false then.
    STW_CODE void add_finite(uint32_t word)
    {
        STW_UNROLL
        for (uint32_t lane = 0; lane < kLanes; ++lane) add_element(lane, magnitude(word, lane));
    }
    STW_CODE bool all_finite() const { return maximum_ < Element::kInfinite; }

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
    STW_CODE static uint32_t magnitude(uint32_t word, uint32_t lane)
    {
        constexpr uint32_t kMask = kMagnitude >> (32 - 32 / kLanes) << Element::kUp;
        return (lane == 0 ? word << Element::kUp : word >> (16 - Element::kUp)) & kMask;
    }

    STW_CODE void add_element(uint32_t lane, uint32_t magnitude)
    {
        maximum_ = maximum_ < magnitude ? magnitude : maximum_;
        // Both products are exact.
        const double value = double_of(uint64_t{magnitude} << Element::kDouble) * Element::kFactor;
        sums_[lane] += value * value;
    }

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

// For a run with all rows of this thread, if all are finite.
template <class Element>
STW_CODE void scan_run(const typename Element::Stored *from, bool whole, ScanTally<Element> &tally)
{
    uint32_t words[kScanAhead];
    STW_UNROLL
    for (uint32_t i = 0; i < kScanAhead; ++i) {
        words[i] = load_row<Element>(from + i * kScanLanes, whole);
    }
    for (uint32_t row = kScanAhead; row <= kScanRows; row += kScanAhead) {
        STW_UNROLL
        for (uint32_t batch = 0; batch < kScanAhead; batch += kScanBatch) {
            STW_UNROLL
            for (uint32_t i = batch; i < batch + kScanBatch; ++i) tally.add_finite(words[i]);
            if (row == kScanRows) continue;
            STW_UNROLL
            for (uint32_t i = batch; i < batch + kScanBatch; ++i) {
                words[i] = load_row<Element>(from + (row + i) * kScanLanes, whole);
            }
        }
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
    if (length >= kWhole) {
        if (sizeof(*from) == 4 || reinterpret_cast<uintptr_t>(from) % 4 == 0) {
            scan_run(from, true, tally);
        } else {
            scan_run(from, false, tally);
        }
        if (tally.all_finite()) return tally;
        tally = {};
    }
    scan_rest(from, length, tally);
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
    block.each_thread([&](uint32_t thread) {
        const uint64_t run = first + thread;
        if (thread >= Shape::kRuns || run * kScanElements >= arguments.count) return;
        double sums[kScanLanes];
        STW_UNROLL
        for (uint32_t i = 0; i < kScanLanes; ++i) sums[i] = memory.sums[thread * kScanLanes + i];
        STW_UNROLL
        for (uint32_t step = 1; kScanLanes >> step != 0; ++step) {
            const uint32_t half = kScanLanes >> step;
            STW_UNROLL
            for (uint32_t i = 0; i < kScanLanes / 2; ++i) {
                if (i < half) sums[i] += sums[i + half];
            }
        }
        uint32_t nonfinite = 0;
        float maximum = 0.0F;
        for (uint32_t i = thread * Shape::kThreads; i < (thread + 1) * Shape::kThreads; ++i) {
            nonfinite += memory.nonfinite[i];
            if (memory.maximum[i] > maximum) maximum = memory.maximum[i];
        }
        global<double>(arguments.sums)[run] = sums[0];
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
