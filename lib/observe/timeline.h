// SPDX-License-Identifier: Apache-2.0
// What happened when: a bounded ring of spans in memory taken at open. Writers on any thread take
// no lock and never wait; when the ring is full the oldest spans are overwritten. A reader gets
// whole spans only, never half of one. Plain integers: knows no link, tensor or phase.
#pragma once

#include "lib/support/status.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace stepwell::observe {

constexpr uint32_t kTimelineSpans = 65536;  // the default
constexpr uint32_t kTimelineSpansMax = 1u << 22;

// What a span is, and with it what its lane and bytes mean.
enum class SpanKind : uint16_t {
    kTransfer = 1,   // lane: STW_LINK_*; detail: device; id: see transfer_id()
    kStall = 2,      // lane: Stall; a fetch waited; detail: thread of the program; id: tensor
    kUpdate = 3,     // lane: thread of the update pool; one chunk; id: tensor
    kStep = 4,       // lane: number of the phase; id: number of the step
    kTierBytes = 5,  // a sample at start_ns; lane: STW_TIER_*; detail: device; bytes: in use
    kUse = 6,        // lane: thread of the program; a fetch was asked and granted; id: tensor
};

struct Span {
    uint64_t start_ns = 0;
    uint64_t end_ns = 0;
    uint64_t id = 0;
    uint64_t bytes = 0;
    SpanKind kind = SpanKind::kTransfer;
    uint16_t lane = 0;
    uint32_t detail = 0;
};
static_assert(sizeof(Span) == 40);

// Of a transfer: the block in the lower half, the block's first tensor in the upper.
constexpr uint64_t transfer_id(uint32_t block, uint32_t tensor)
{
    return uint64_t{tensor} << 32 | block;
}
constexpr uint32_t block_of(const Span &span)
{
    return static_cast<uint32_t>(span.id);
}
// Of every kind but steps and samples.
constexpr uint32_t tensor_of(const Span &span)
{
    return static_cast<uint32_t>(span.kind == SpanKind::kTransfer ? span.id >> 32 : span.id);
}

struct TimelineSnapshot {
    std::vector<Span> spans;  // in the order in which they were recorded
    uint64_t recorded = 0;    // since open
    uint64_t lost = 0;        // of these, no longer or not yet in `spans`
};

// The padding is meant: what every writer adds to has a cache line of its own.
class Timeline {  // NOLINT(clang-analyzer-optin.performance.Padding)
public:
    // `spans` is rounded up to a power of two; 0: no ring, record() does nothing. MEMORY, LIMIT.
    static Result<std::unique_ptr<Timeline>> open(uint32_t spans = kTimelineSpans);
    Timeline(const Timeline &) = delete;
    Timeline &operator=(const Timeline &) = delete;

    // Any thread. Blocks: never.
    void record(const Span &span);
    // Beside writers, any thread. Allocates for the spans it returns.
    [[nodiscard]] TimelineSnapshot snapshot() const;
    // Spans since open, and how many of them later ones have taken the place of. Cheap.
    [[nodiscard]] uint64_t recorded() const { return next_.load(std::memory_order_relaxed); }
    [[nodiscard]] uint64_t overwritten() const
    {
        const uint64_t spans = recorded();
        return spans > mask_ + 1 ? spans - mask_ - 1 : 0;
    }
    [[nodiscard]] uint64_t metadata_bytes() const;

private:
    // The ticket of a span is its place in the order of all spans. `sequence` is twice the ticket
    // plus 1 while the slot is being written and plus 2 when it is whole; 0: never used.
    struct Slot {
        std::atomic<uint64_t> sequence{0};
        std::atomic<uint64_t> words[5];
    };

    friend struct TimelinePeer;  // of the test: writers stopped half way

    explicit Timeline(uint32_t spans) : mask_(spans - 1) {}
    void write(uint64_t ticket, const Span &span);
    [[nodiscard]] bool read(uint64_t ticket, Span *span_out) const;

    const uint64_t mask_;
    std::unique_ptr<Slot[]> slots_;  // null: no ring
    alignas(64) std::atomic<uint64_t> next_{0};
};

}  // namespace stepwell::observe
