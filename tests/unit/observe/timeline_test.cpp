// SPDX-License-Identifier: Apache-2.0
// The ring of spans: what is in a snapshot is whole and in order, what is not is counted.
#include "lib/observe/timeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace stepwell::observe {

// The steps of record(), one at a time.
struct TimelinePeer {
    Timeline &timeline;
    uint64_t take_ticket() { return timeline.next_.fetch_add(1); }
    void write(uint64_t ticket, const Span &span) { timeline.write(ticket, span); }
    void set_sequence(uint64_t ticket, uint64_t sequence)
    {
        timeline.slots_[ticket & timeline.mask_].sequence.store(sequence);
    }
};

namespace {

std::unique_ptr<Timeline> open(uint32_t spans)
{
    auto timeline = Timeline::open(spans);
    EXPECT_TRUE(timeline.ok());
    return timeline.take();
}

// Every field follows from (thread, number), so that a mixture of two spans shows.
Span span_of(uint32_t thread, uint64_t number)
{
    const uint64_t key = (uint64_t{thread} << 32 | number) * 0x9e3779b97f4a7c15;
    Span span;
    span.id = uint64_t{thread} << 32 | number;
    span.start_ns = key;
    span.end_ns = ~key;
    span.bytes = key ^ 0x5555555555555555;
    span.kind = SpanKind::kTransfer;
    span.lane = static_cast<uint16_t>(thread);
    span.detail = static_cast<uint32_t>(key >> 32);
    return span;
}

bool is_whole(const Span &span)
{
    const Span expected = span_of(static_cast<uint32_t>(span.id >> 32), span.id & 0xffffffff);
    return span.start_ns == expected.start_ns && span.end_ns == expected.end_ns &&
           span.bytes == expected.bytes && span.kind == expected.kind &&
           span.lane == expected.lane && span.detail == expected.detail;
}

TEST(Timeline, GivesBackWhatWasRecordedInOrder)
{
    auto timeline = open(8);
    timeline->record({10, 20, 7, 4096, SpanKind::kStall, 65535, UINT32_MAX});
    timeline->record({UINT64_MAX, UINT64_MAX - 1, UINT64_MAX, UINT64_MAX, SpanKind::kStep, 1, 2});
    const TimelineSnapshot snapshot = timeline->snapshot();
    ASSERT_EQ(snapshot.spans.size(), 2u);
    EXPECT_EQ(snapshot.recorded, 2u);
    EXPECT_EQ(snapshot.lost, 0u);
    const Span &first = snapshot.spans[0];
    EXPECT_EQ(first.start_ns, 10u);
    EXPECT_EQ(first.end_ns, 20u);
    EXPECT_EQ(first.id, 7u);
    EXPECT_EQ(first.bytes, 4096u);
    EXPECT_EQ(first.kind, SpanKind::kStall);
    EXPECT_EQ(first.lane, 65535);
    EXPECT_EQ(first.detail, UINT32_MAX);
    EXPECT_EQ(snapshot.spans[1].bytes, UINT64_MAX);
    EXPECT_EQ(snapshot.spans[1].kind, SpanKind::kStep);
}

TEST(Timeline, OverwritesTheOldestAndCountsIt)
{
    auto timeline = open(5);  // rounded up to 8
    for (uint64_t i = 0; i < 20; ++i) timeline->record(span_of(0, i));
    const TimelineSnapshot snapshot = timeline->snapshot();
    ASSERT_EQ(snapshot.spans.size(), 8u);
    for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(snapshot.spans[i].id, 12 + i);
    EXPECT_EQ(snapshot.recorded, 20u);
    EXPECT_EQ(snapshot.lost, 12u);
    EXPECT_EQ(timeline->recorded(), 20u);
    EXPECT_EQ(timeline->overwritten(), 12u);
}

TEST(Timeline, WithoutSpansIsAbsent)
{
    auto timeline = open(0);
    timeline->record(span_of(0, 1));
    EXPECT_EQ(timeline->snapshot().recorded, 0u);
    EXPECT_LT(timeline->metadata_bytes(), 1024u);
}

TEST(Timeline, RefusesMoreThanItsMaximum)
{
    auto timeline = Timeline::open(kTimelineSpansMax + 1);
    ASSERT_FALSE(timeline.ok());
    EXPECT_EQ(timeline.status().code(), STW_ERROR_LIMIT);
    EXPECT_STREQ(timeline.status().sentence(),
                 "A timeline of 4194305 spans was asked for; 4194304 are the most.");
}

TEST(Timeline, ALateWriterGivesWayToTheLaterSpan)
{
    auto timeline = open(8);
    TimelinePeer peer{*timeline};
    const uint64_t late = peer.take_ticket();
    for (uint64_t i = 1; i <= 8; ++i) timeline->record(span_of(0, i));
    peer.write(late, span_of(1, 99));
    const TimelineSnapshot snapshot = timeline->snapshot();
    ASSERT_EQ(snapshot.spans.size(), 8u);
    EXPECT_EQ(snapshot.spans.back().id, 8u);
    EXPECT_TRUE(is_whole(snapshot.spans.back()));
    EXPECT_EQ(snapshot.lost, 1u);
}

TEST(Timeline, ASlotUnderWayIsNeitherReadNorOverwritten)
{
    auto timeline = open(8);
    TimelinePeer peer{*timeline};
    const uint64_t stopped = peer.take_ticket();
    peer.set_sequence(stopped, 2 * stopped + 1);
    for (uint64_t i = 1; i <= 8; ++i) timeline->record(span_of(0, i));
    const TimelineSnapshot snapshot = timeline->snapshot();
    ASSERT_EQ(snapshot.spans.size(), 7u);
    EXPECT_EQ(snapshot.spans.back().id, 7u) << "the eighth met the stopped writer";
    EXPECT_EQ(snapshot.recorded, 9u);
    EXPECT_EQ(snapshot.lost, 2u);

    peer.set_sequence(stopped, 2 * stopped + 2);
    for (uint64_t i = 9; i <= 16; ++i) timeline->record(span_of(0, i));
    EXPECT_EQ(timeline->snapshot().spans.size(), 8u) << "the slot is used again";
}

TEST(Timeline, FourWritersLoseNothingWhenTheRingIsLargeEnough)
{
    constexpr uint64_t kEach = 4096;
    auto timeline = open(4 * kEach);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
        threads.emplace_back([&timeline, t] {
            for (uint64_t i = 0; i < kEach; ++i) timeline->record(span_of(t, i));
        });
    }
    for (auto &thread : threads) thread.join();
    const TimelineSnapshot snapshot = timeline->snapshot();
    ASSERT_EQ(snapshot.spans.size(), 4 * kEach);
    uint64_t next[4] = {};
    for (const Span &span : snapshot.spans) {
        ASSERT_TRUE(is_whole(span));
        ASSERT_EQ(span.id & 0xffffffff, next[span.lane]++) << "a thread's spans are in its order";
    }
}

// Returns how many spans were read; broken ones are failures.
uint64_t read_beside_writers(uint32_t slots, uint64_t each)
{
    auto timeline = open(slots);
    std::atomic<uint32_t> running{4};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (uint64_t i = 0; i < each; ++i) timeline->record(span_of(t, i));
            running.fetch_sub(1);
        });
    }
    uint64_t seen = 0;
    uint64_t broken = 0;
    for (bool last = false; !last;) {
        last = running.load() == 0;
        const TimelineSnapshot snapshot = timeline->snapshot();
        EXPECT_EQ(snapshot.spans.size() + snapshot.lost, snapshot.recorded);
        for (const Span &span : snapshot.spans) broken += !is_whole(span);
        seen += snapshot.spans.size();
    }
    for (auto &thread : threads) thread.join();
    EXPECT_EQ(broken, 0u) << "of " << seen << " spans read from " << slots << " slots";
    EXPECT_EQ(timeline->snapshot().recorded, 4 * each);
    return seen;
}

// Tiny rings, so that writers lap each other and the reader all the time.
TEST(Timeline, ReadersSeeOnlyWholeSpansWhileFourThreadsOverwrite)
{
    EXPECT_GT(read_beside_writers(16, 50'000), 0u);
    // Every writer at the same slot.
    read_beside_writers(1, 200'000);
}

}  // namespace
}  // namespace stepwell::observe
