// SPDX-License-Identifier: Apache-2.0
// Which copies of a device are made to wait for which marks, by the calls of a driver that does
// nothing.
#include "lib/memory/streams.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stepwell::memory {
namespace {

// What it was told of copies: the mark, and which of them wait for it.
struct Told {
    uint64_t marks = 0;
    void *marked = nullptr;  // the stream of the last one
    std::vector<std::pair<uint64_t, uint32_t>> copies;
    uint64_t streams = 0;  // the last mark that one was made to wait for
    // The call that marks this stream, or that orders it, blocks for as long.
    std::atomic<void *> full{nullptr};
    std::atomic<uint32_t> blocked{0};

    void await_room(void *stream)
    {
        if (full.load() != stream) return;
        ++blocked;
        while (full.load() == stream) std::this_thread::yield();
    }
};

Told &told_of(stw_memory *memory)
{
    return *reinterpret_cast<Told *>(memory);
}

stw_memory_ops telling_ops()
{
    stw_memory_ops made{};
    made.struct_size = sizeof made;
    made.name = "told";
    made.check_stream = [](stw_memory *, void *, stw_driver_error *) -> stw_status {
        return STW_OK;
    };
    made.mark = [](stw_memory *memory, void *stream, uint64_t *mark_out) -> stw_status {
        told_of(memory).await_room(stream);
        told_of(memory).marked = stream;
        *mark_out = ++told_of(memory).marks;
        return STW_OK;
    };
    made.copies_after = [](stw_memory *memory, uint64_t mark, uint32_t copies) -> stw_status {
        told_of(memory).copies.emplace_back(mark, copies);
        return STW_OK;
    };
    made.stream_after = [](stw_memory *memory, void *stream, uint64_t mark) -> stw_status {
        told_of(memory).await_room(stream);
        told_of(memory).streams = mark;
        return STW_OK;
    };
    return made;
}

class StreamsOfADevice : public testing::Test {
protected:
    // The stream leaves the slot behind, written.
    void release(void *stream, residency::Slot slot)
    {
        const Result<DeviceStreams::Id> id = streams.id_of(stream);
        ASSERT_TRUE(id.ok());
        ASSERT_TRUE(streams.begin(id.value(), {slot, 1}, true).ok());
        streams.end(id.value(), {slot, 1}, true);
    }
    using Copies = std::vector<std::pair<uint64_t, uint32_t>>;

    Told told;
    const stw_memory_ops ops = telling_ops();
    DeviceStreams streams{&ops, reinterpret_cast<stw_memory *>(&told), 128, "device 0"};
    int first = 0;  // its address is a stream
    int second = 0;
};

TEST_F(StreamsOfADevice, ACopyOutThatWaitsHoldsUpNoCopyIn)
{
    release(&first, 0);
    ASSERT_TRUE(streams.before_copy({0, 1}, false, STW_COPIES_OUT).ok());
    EXPECT_EQ(told.copies, (Copies{{1, STW_COPIES_OUT}}));
    ASSERT_TRUE(streams.before_copy({1, 1}, true, STW_COPIES_IN).ok());
    EXPECT_EQ(told.copies.size(), 1u);
}

TEST_F(StreamsOfADevice, ADirectionThatWaitedSpeaksForItselfAlone)
{
    release(&first, 0);
    ASSERT_TRUE(streams.before_copy({0, 1}, false, STW_COPIES_OUT).ok());
    ASSERT_TRUE(streams.before_copy({0, 1}, false, STW_COPIES_OUT).ok());
    EXPECT_EQ(told.copies.size(), 1u) << "once is enough";
    ASSERT_TRUE(streams.before_copy({0, 1}, true, STW_COPIES_IN).ok());
    EXPECT_EQ(told.copies, (Copies{{1, STW_COPIES_OUT}, {1, STW_COPIES_IN}}));
}

// What is brought and taken away again before it has arrived.
TEST_F(StreamsOfADevice, ACopyOutComesBehindTheCopyIn)
{
    ASSERT_TRUE(streams.before_copy({3, 1}, true, STW_COPIES_IN).ok());
    streams.copy_started({3, 1}, 77);
    ASSERT_TRUE(streams.before_copy({3, 1}, false, STW_COPIES_OUT).ok());
    EXPECT_EQ(told.copies, (Copies{{77, STW_COPIES_OUT}}));
}

TEST_F(StreamsOfADevice, WhichCopiesWouldHaveToWaitIsKnown)
{
    release(&first, 0);
    EXPECT_TRUE(streams.would_wait({0, 2}, false, STW_COPIES_OUT));
    EXPECT_FALSE(streams.would_wait({1, 1}, true, STW_COPIES_OUT));
    ASSERT_TRUE(streams.before_copy({0, 1}, false, STW_COPIES_OUT).ok());
    EXPECT_FALSE(streams.would_wait({0, 2}, false, STW_COPIES_OUT)) << "they do";
    EXPECT_TRUE(streams.would_wait({0, 2}, true, STW_COPIES_IN));
    EXPECT_EQ(told.copies.size(), 1u);
}

// Either direction, and the fetch of another stream, where they do not need it.
class StreamsOfADeviceThatIsFull : public StreamsOfADevice,
                                   public testing::WithParamInterface<uint32_t> {};

TEST_P(StreamsOfADeviceThatIsFull, HoldUpThoseAloneWhoNeedTheStream)
{
    const uint32_t needs = GetParam();
    const uint32_t other = needs == STW_COPIES_OUT ? STW_COPIES_IN : STW_COPIES_OUT;
    release(&first, 0);
    release(&second, 1);
    told.full = &first;
    std::thread marks([&] { EXPECT_TRUE(streams.before_copy({0, 1}, false, needs).ok()); });
    while (told.blocked == 0) std::this_thread::yield();
    EXPECT_TRUE(streams.before_copy({1, 1}, false, other).ok());
    ASSERT_EQ(told.copies.size(), 1u);
    EXPECT_EQ(told.copies[0].second, other);
    release(&second, 1);
    EXPECT_EQ(told.blocked, 1u);
    told.full = nullptr;
    marks.join();
    EXPECT_EQ(told.copies.size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Directions, StreamsOfADeviceThatIsFull,
                         testing::Values(STW_COPIES_OUT, STW_COPIES_IN));

TEST_F(StreamsOfADevice, ReleasesMakeMarksAfterACopyThatCameBehindTheStream)
{
    release(&first, 0);
    EXPECT_EQ(told.marked, nullptr);
    ASSERT_TRUE(streams.before_copy({0, 1}, false, STW_COPIES_OUT).ok());
    ASSERT_EQ(told.marked, &first);
    for (const bool marks : {true, false}) {
        for (uint32_t i = 0; i < 64; ++i) {
            told.marked = nullptr;
            release(&first, 0);
            EXPECT_EQ(told.marked != nullptr, marks) << i;
        }
    }
}

TEST_F(StreamsOfADevice, AViewThatAnotherFollowsMakesNoMark)
{
    release(&first, 0);
    ASSERT_TRUE(streams.before_copy({0, 1}, false, STW_COPIES_OUT).ok());
    told.marked = nullptr;
    const Result<DeviceStreams::Id> id = streams.id_of(&first);
    ASSERT_TRUE(id.ok());
    for (const residency::Slot slot : {1, 2}) {
        ASSERT_TRUE(streams.begin(id.value(), {slot, 1}, true).ok());
        streams.end(id.value(), {slot, 1}, true, nullptr, slot == 1);
        EXPECT_EQ(told.marked != nullptr, slot == 2);
    }
    // If none follows after all, the next copy makes it.
    told.marked = nullptr;
    ASSERT_TRUE(streams.begin(id.value(), {3, 1}, true).ok());
    streams.end(id.value(), {3, 1}, true, nullptr, true);
    EXPECT_EQ(told.marked, nullptr);
    ASSERT_TRUE(streams.before_copy({3, 1}, false, STW_COPIES_IN).ok());
    EXPECT_EQ(told.marked, &first);
}

TEST_F(StreamsOfADevice, AFetchOnAStreamWhoseQueueIsFullHoldsUpNoCopy)
{
    release(&second, 1);
    const Result<DeviceStreams::Id> id = streams.id_of(&first);
    ASSERT_TRUE(id.ok());
    told.full = &first;
    std::thread fetches([&] { EXPECT_TRUE(streams.begin(id.value(), {1, 1}, true).ok()); });
    while (told.blocked == 0) std::this_thread::yield();
    EXPECT_TRUE(streams.before_copy({1, 1}, false, STW_COPIES_OUT).ok());
    EXPECT_EQ(told.copies.size(), 1u);
    told.full = nullptr;
    fetches.join();
}

// Two streams have read, so all that have released are waited for, a forgotten one by its marks.
TEST_F(StreamsOfADevice, AForgottenStreamIsNotMarkedAgain)
{
    for (void *stream : {&first, &second}) {
        const Result<DeviceStreams::Id> id = streams.id_of(stream);
        ASSERT_TRUE(id.ok());
        streams.end(id.value(), {0, 1}, false);
    }
    ASSERT_TRUE(streams.forget(&second).ok());
    EXPECT_EQ(told.marked, &second);
    ASSERT_TRUE(streams.before_copy({0, 1}, true, STW_COPIES_IN).ok());
    EXPECT_EQ(told.marked, &first);
    EXPECT_EQ(told.copies.size(), 2u);
}

// More of them than marks are kept.
TEST_F(StreamsOfADevice, CopiesThatWereStartedTogetherHaveOneMark)
{
    for (residency::Slot slot = 0; slot < 128; ++slot)
        streams.copy_started({slot, 1}, slot < 64 ? 70 : 71);
    const Result<DeviceStreams::Id> id = streams.id_of(&first);
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(streams.begin(id.value(), {0, 1}, false).ok());
    EXPECT_EQ(told.streams, 70u) << "not what came after it";
}

}  // namespace
}  // namespace stepwell::memory
