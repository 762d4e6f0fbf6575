// SPDX-License-Identifier: Apache-2.0
// Timeline: a ticket by fetch_add, then a sequence lock per slot. The words are stored with release
// and loaded with acquire instead of fences: a reader that sees one word of a later span also sees
// the sequence number by which that span announced itself, and the thread sanitizer can follow.
#include "lib/observe/timeline.h"

#include <bit>
#include <new>

namespace stepwell::observe {

Result<std::unique_ptr<Timeline>> Timeline::open(uint32_t spans)
{
    if (spans > kTimelineSpansMax) {
        return Status::error(STW_ERROR_LIMIT,
                             "A timeline of %u spans was asked for; %u are the most.", spans,
                             kTimelineSpansMax);
    }
    const uint32_t slots = spans == 0 ? 1 : std::bit_ceil(spans);
    std::unique_ptr<Timeline> timeline(new (std::nothrow) Timeline(slots));
    if (timeline != nullptr && spans > 0) timeline->slots_.reset(new (std::nothrow) Slot[slots]());
    if (timeline == nullptr || (spans > 0 && timeline->slots_ == nullptr)) {
        return Status::error(STW_ERROR_MEMORY, "No memory for a timeline of %u spans (%s).", slots,
                             bytes_text(uint64_t{slots} * sizeof(Slot)).c_str());
    }
    return timeline;
}

uint64_t Timeline::metadata_bytes() const
{
    return sizeof(Timeline) + (slots_ ? (mask_ + 1) * sizeof(Slot) : 0);
}

void Timeline::record(const Span &span)
{
    if (!slots_) return;
    write(next_.fetch_add(1, std::memory_order_relaxed), span);
}

void Timeline::write(uint64_t ticket, const Span &span)
{
    Slot &slot = slots_[ticket & mask_];
    // A writer that the ring has lapped finds its slot taken or used by a later span. It must not
    // wait, so its own span is lost: the snapshot counts it as such.
    uint64_t seen = slot.sequence.load(std::memory_order_relaxed);
    if ((seen & 1) != 0 || seen > 2 * ticket) return;
    if (!slot.sequence.compare_exchange_strong(seen, 2 * ticket + 1, std::memory_order_acquire,
                                               std::memory_order_relaxed)) {
        return;
    }
    const uint64_t tags =
        static_cast<uint64_t>(span.kind) | uint64_t{span.lane} << 16 | uint64_t{span.detail} << 32;
    const uint64_t words[5] = {span.start_ns, span.end_ns, span.id, span.bytes, tags};
    for (uint32_t i = 0; i < 5; ++i) slot.words[i].store(words[i], std::memory_order_release);
    slot.sequence.store(2 * ticket + 2, std::memory_order_release);
}

bool Timeline::read(uint64_t ticket, Span *span_out) const
{
    const Slot &slot = slots_[ticket & mask_];
    if (slot.sequence.load(std::memory_order_acquire) != 2 * ticket + 2) return false;
    uint64_t words[5];
    for (uint32_t i = 0; i < 5; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if (slot.sequence.load(std::memory_order_relaxed) != 2 * ticket + 2) return false;
    span_out->start_ns = words[0];
    span_out->end_ns = words[1];
    span_out->id = words[2];
    span_out->bytes = words[3];
    span_out->kind = static_cast<SpanKind>(words[4] & 0xffff);
    span_out->lane = static_cast<uint16_t>(words[4] >> 16 & 0xffff);
    span_out->detail = static_cast<uint32_t>(words[4] >> 32);
    return true;
}

TimelineSnapshot Timeline::snapshot() const
{
    TimelineSnapshot snapshot;
    if (!slots_) return snapshot;
    snapshot.recorded = next_.load(std::memory_order_relaxed);
    const uint64_t slots = mask_ + 1;
    const uint64_t first = snapshot.recorded > slots ? snapshot.recorded - slots : 0;
    snapshot.spans.reserve(snapshot.recorded - first);
    for (uint64_t ticket = first; ticket < snapshot.recorded; ++ticket) {
        Span span;
        if (read(ticket, &span)) snapshot.spans.push_back(span);
    }
    snapshot.lost = snapshot.recorded - snapshot.spans.size();
    return snapshot;
}

}  // namespace stepwell::observe
