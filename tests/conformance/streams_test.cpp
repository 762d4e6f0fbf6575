// SPDX-License-Identifier: Apache-2.0
// Memory drivers whose consumers have streams: what can be asked of their marks without work on a
// stream. That work comes in order is seen where the runtime is driven, on a double or a device.
#include "tests/conformance/support.h"

#include <stepwell/types.h>

#include <cstring>
#include <vector>

namespace conformance {
namespace {

constexpr uint32_t kStreamBlock = 64 << 10;

class StreamsConformance : public testing::TestWithParam<MemoryCase> {
protected:
    void SetUp() override
    {
        if (!memory_.can(STW_MEMORY_STREAMS)) GTEST_SKIP() << "consumers have no streams";
        ASSERT_EQ(memory_.open(4 * kMiB, kStreamBlock, 0), STW_OK) << memory_.sentence();
    }
    uint64_t mark(void *stream)
    {
        uint64_t number = 0;
        EXPECT_EQ(ops().mark(memory_.get(), stream, &number), STW_OK);
        return number;
    }
    const stw_memory_ops &ops() { return *memory_.ops(); }
    Memory memory_{GetParam()};
};

TEST_P(StreamsConformance, TheDefaultStreamsAreStreamsOfEachDevice)
{
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    for (void *stream : {STW_STREAM_LEGACY, STW_STREAM_PER_THREAD})
        EXPECT_EQ(ops().check_stream(memory_.get(), stream, &error), STW_OK) << error.sentence;
}

TEST_P(StreamsConformance, CopiesAndStreamsComeBehindMarks)
{
    const uint64_t first = mark(STW_STREAM_LEGACY);
    EXPECT_EQ(ops().copies_after(memory_.get(), first, STW_COPIES_IN | STW_COPIES_OUT), STW_OK);
    EXPECT_EQ(ops().stream_after(memory_.get(), STW_STREAM_PER_THREAD, first), STW_OK);
    Buffer data(kMiB);
    data.fill(3);
    ASSERT_EQ(ops().copy(memory_.get(), memory_.block(0), data.data(), kMiB), STW_OK);
    Buffer back(kMiB);
    ASSERT_EQ(ops().copy(memory_.get(), back.data(), memory_.block(0), kMiB), STW_OK);
    EXPECT_TRUE(back.holds(3));
}

TEST_P(StreamsConformance, AnOldMarkIsAsGoodAsTheNewerOnesOfItsStream)
{
    const uint64_t old = mark(STW_STREAM_LEGACY);
    for (int i = 0; i < 1000; ++i) mark(STW_STREAM_LEGACY);
    EXPECT_EQ(ops().copies_after(memory_.get(), old, STW_COPIES_IN), STW_OK);
    EXPECT_EQ(ops().stream_after(memory_.get(), STW_STREAM_PER_THREAD, old), STW_OK);
}

TEST_P(StreamsConformance, MarksOfAForgottenStreamAreGoodAndTheNextOnesAreOthers)
{
    if (!memory_.can(STW_MEMORY_CAN_FORGET)) GTEST_SKIP() << "it is told of no stream's end";
    for (int round = 0; round < 100; ++round) {
        EXPECT_EQ(ops().check_stream(memory_.get(), STW_STREAM_LEGACY, nullptr), STW_OK);
        const uint64_t last = mark(STW_STREAM_LEGACY);
        ASSERT_EQ(ops().forget_stream(memory_.get(), STW_STREAM_LEGACY), STW_OK);
        EXPECT_EQ(ops().copies_after(memory_.get(), last, STW_COPIES_IN | STW_COPIES_OUT), STW_OK);
        EXPECT_EQ(ops().wait(memory_.get(), last), STW_OK);
    }
}

TEST_P(StreamsConformance, MemoryOfTheHostIsNoneOfTheDevice)
{
    if (!memory_.can(STW_MEMORY_COPIES_OTHERS)) GTEST_SKIP() << "it copies no memory of programs";
    const Buffer data(kMiB);
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    EXPECT_EQ(ops().check_memory(memory_.get(), data.data(), kMiB, &error), STW_ERROR_INVALID);
    EXPECT_STRNE(error.sentence, "");
    EXPECT_EQ(ops().check_memory(memory_.get(), memory_.block(0), kMiB, &error), STW_OK);
}

TEST_P(StreamsConformance, ACopyThatWasStartedIsThereBehindItsMark)
{
    Buffer data(kMiB);
    Buffer back(kMiB);
    for (uint8_t round = 1; round < 100; ++round) {
        uint64_t in = 0;
        uint64_t out = 0;
        data.fill(round);
        ASSERT_EQ(ops().copy_start(memory_.get(), memory_.block(0), data.data(), kMiB, &in),
                  STW_OK);
        ASSERT_EQ(ops().copies_after(memory_.get(), in, STW_COPIES_OUT), STW_OK);
        ASSERT_EQ(ops().copy_start(memory_.get(), back.data(), memory_.block(0), kMiB, &out),
                  STW_OK);
        ASSERT_EQ(ops().wait(memory_.get(), out), STW_OK);
        EXPECT_TRUE(back.holds(round));
        EXPECT_EQ(ops().wait(memory_.get(), in), STW_OK);
    }
}

// Of a device that shares it: neither side needs a copy to see what the other one did.
TEST_P(StreamsConformance, WhatTheCpuDoesInSharedMemoryCopiesSee)
{
    if (!memory_.can(STW_MEMORY_HOST_ACCESS)) GTEST_SKIP() << "not the CPU's memory";
    Buffer data(kMiB);
    fill_pattern(memory_.block(0), kMiB, 7);
    ASSERT_EQ(ops().copy(memory_.get(), data.data(), memory_.block(0), kMiB), STW_OK);
    EXPECT_TRUE(data.holds(7));
    data.fill(8);
    ASSERT_EQ(ops().copy(memory_.get(), memory_.block(0), data.data(), kMiB), STW_OK);
    EXPECT_TRUE(has_pattern(memory_.block(0), kMiB, 8));
    ASSERT_EQ(ops().zero(memory_.get(), memory_.block(0), kMiB), STW_OK);
    EXPECT_EQ(memory_.block(0)[kMiB - 1], 0);
}

TEST_P(StreamsConformance, HostMemoryIsPinnedOnceAndAgainAfterwards)
{
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    Buffer data(kMiB);
    for (int round = 0; round < 2; ++round) {
        ASSERT_EQ(ops().pin_host(memory_.get(), data.data(), kMiB, &error), STW_OK)
            << error.sentence;
        data.fill(static_cast<uint8_t>(5 + round));
        ASSERT_EQ(ops().copy(memory_.get(), memory_.block(1), data.data(), kMiB), STW_OK);
        Buffer back(kMiB);
        ASSERT_EQ(ops().copy(memory_.get(), back.data(), memory_.block(1), kMiB), STW_OK);
        EXPECT_TRUE(back.holds(static_cast<uint8_t>(5 + round)));
        ops().unpin_host(memory_.get(), data.data(), kMiB);
    }
}

// One mark is behind all of them, whether the host's memory is registered or not.
TEST_P(StreamsConformance, CopiesThatWereStartedTogetherAreThereBehindTheirMark)
{
    if (!memory_.can(STW_MEMORY_CAN_BATCH)) GTEST_SKIP() << "copies are started one by one";
    constexpr uint64_t kPiece = 4096 + 64;
    constexpr uint32_t kPieces = 200;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    Buffer data(kMiB);
    Buffer back(kMiB);
    for (uint8_t round = 1; round <= 4; ++round) {
        data.fill(round);
        back.fill(0);
        std::vector<stw_memory_copy> up;
        std::vector<stw_memory_copy> down;
        for (uint64_t i = 0; i < kPieces; ++i) {
            uint8_t *there = memory_.block(0) + i * kPiece;
            up.push_back({there, data.data() + i * kPiece, kPiece});
            down.push_back({back.data() + i * kPiece, there, kPiece});
        }
        if (round == 3) {
            for (Buffer *buffer : {&data, &back})
                ASSERT_EQ(ops().pin_host(memory_.get(), buffer->data(), kMiB, &error), STW_OK)
                    << error.sentence;
        }
        uint64_t in = 0;
        uint64_t out = 0;
        ASSERT_EQ(ops().copies_start(memory_.get(), up.data(), kPieces, &in), STW_OK);
        ASSERT_EQ(ops().copies_after(memory_.get(), in, STW_COPIES_OUT), STW_OK);
        ASSERT_EQ(ops().copies_start(memory_.get(), down.data(), kPieces, &out), STW_OK);
        ASSERT_EQ(ops().wait(memory_.get(), out), STW_OK);
        EXPECT_EQ(std::memcmp(back.data(), data.data(), kPieces * kPiece), 0) << int{round};
        EXPECT_EQ(ops().wait(memory_.get(), in), STW_OK);
    }
    for (Buffer *buffer : {&data, &back}) ops().unpin_host(memory_.get(), buffer->data(), kMiB);
}

TEST_P(StreamsConformance, CopiesOfBothDirectionsAreNotStartedTogether)
{
    if (!memory_.can(STW_MEMORY_CAN_BATCH)) GTEST_SKIP() << "copies are started one by one";
    Buffer data(kMiB);
    uint64_t mark = 0;
    const stw_memory_copy copies[] = {{memory_.block(0), data.data(), 64},
                                      {data.data() + 64, memory_.block(1), 64}};
    EXPECT_EQ(ops().copies_start(memory_.get(), copies, 2, &mark), STW_ERROR_INVALID);
    EXPECT_EQ(ops().copies_start(memory_.get(), copies, 0, &mark), STW_ERROR_INVALID);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamsConformance);
INSTANTIATE_TEST_SUITE_P(Drivers, StreamsConformance, testing::ValuesIn(memory_cases()),
                         [](const auto &info) { return info.param.label; });

}  // namespace
}  // namespace conformance
