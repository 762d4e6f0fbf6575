// SPDX-License-Identifier: Apache-2.0
// What one step cost: wall time, what its consumers waited for by cause, bytes per link, and the
// time that bytes, bandwidths and compute force; and the sums of a phase's steps.
// Stalls are added from any thread without a lock. Time and totals come in as arguments.
#pragma once

#include <stepwell/observe.h>
#include <stepwell/phase.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

namespace stepwell::observe {

// Why a consumer waited. The timeline's lanes of kStall have these numbers.
enum class Stall : uint8_t { kNvme = 0, kHostDevice = 1, kCollective = 2, kRoom = 3, kUpdate = 4 };
constexpr uint32_t kStalls = 5;
// "nvme", "host_device", "collective", "room", "update". Static text.
const char *stall_name(Stall stall);

constexpr uint32_t kLinkTotalsMax = 32;
constexpr uint32_t kLinkTable = STW_LINK_RANKS + 1;  // a table by STW_LINK_* has so many places

// One link's total since open, and what it was measured to do (0: not measured yet).
struct LinkTotal {
    uint32_t link = 0;  // STW_LINK_*
    uint32_t device = 0;
    uint64_t bytes = 0;
    uint64_t bytes_per_s = 0;
};

// Which of the limits is the bound of a step.
struct StepBound {
    uint64_t ns = 0;
    uint64_t compute_ns = 0;  // wall without stalls
    uint64_t link_ns = 0;     // the slowest link's bytes at its bandwidth
    uint32_t link = 0;        // that link; 0: no link moved anything
    uint32_t device = 0;
    bool by_link = false;                           // else by compute
    std::array<uint64_t, kLinkTable> link_bytes{};  // by STW_LINK_*, of all devices
};

// One open step. begin and end on one thread at a time, add_stall on any thread between them.
class StepAccount {
public:
    // `links`: at most kLinkTotalsMax, in the same order at begin and end.
    void begin(uint64_t now_ns, std::span<const LinkTotal> links);
    void add_stall(Stall stall, uint64_t ns)
    {
        stalls_[static_cast<uint32_t>(stall)].fetch_add(ns, std::memory_order_relaxed);
    }
    // Fills everything but struct_size, planned and step.
    //
    // bound_ns is the larger of compute and of each link's bytes at its measured bandwidth. Compute
    // is the wall time in which nobody waited. Stalls of several threads add up and may exceed the
    // wall time; compute is then 0. Links are taken as independent of each other, so what two of
    // them share (one disk read and written) is not charged twice: a bound, not a prediction.
    StepBound end(uint64_t now_ns, std::span<const LinkTotal> links, stw_step_stats *stats_out);

private:
    uint64_t begin_ns_ = 0;
    uint32_t links_ = 0;
    std::array<uint64_t, kLinkTotalsMax> begin_bytes_{};
    std::array<std::atomic<uint64_t>, kStalls> stalls_{};
};

// The steps of a phase. One thread at a time, under the runtime's lock.
class PhaseAccount {
public:
    void add(const stw_step_stats &stats, const StepBound &bound);
    [[nodiscard]] uint64_t steps() const { return steps_; }
    [[nodiscard]] const stw_step_stats &last() const { return last_; }
    [[nodiscard]] const StepBound &last_bound() const { return last_bound_; }
    // Arithmetic means; `step` is the number of steps, `planned` 1 when all were.
    [[nodiscard]] stw_step_stats mean() const;

private:
    uint64_t steps_ = 0;
    uint64_t planned_ = 0;
    stw_step_stats last_{};
    stw_step_stats sum_{};
    StepBound last_bound_;
};

// The cause of the difference between a step's wall time and its bound: the largest stall. -1 when
// nobody waited.
int largest_stall(const stw_step_stats &stats);

}  // namespace stepwell::observe
