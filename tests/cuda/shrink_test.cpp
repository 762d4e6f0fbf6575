// SPDX-License-Identifier: Apache-2.0
// A device's budget that changes while its tensors are used: the memory is back at the driver when
// the call returns, nothing is unmapped under work that is late, and contents stay.
#include "tests/cuda/mapping_rig.h"

#include <random>
#include <thread>

namespace stepwell {
namespace {

class CudaShrink : public MappingRig {};

TEST_F(CudaShrink, MemoryGoesBackToTheDriverAndComesAgain)
{
    open("seed=1", 16, 40);
    EXPECT_EQ(taken_blocks(), 16u);
    stw_tensor *tensor = make("t", 6 * kElements);
    use(tensor, streams_[0], 0, 7, true);
    ASSERT_OK(set_budget(8));
    EXPECT_EQ(taken_blocks(), 8u);
    use(tensor, streams_[1], 7, 8, true);
    ASSERT_OK(set_budget(0));
    EXPECT_EQ(taken_blocks(), 0u);
    expect_all(tensor, 6 * kElements, 8);
    ASSERT_OK(set_budget(16));
    EXPECT_EQ(taken_blocks(), 16u);
    use(tensor, streams_[2], 8, 9, true);
    expect_all(tensor, 6 * kElements, 9);
    end_streams();
}

// A release does not wait, so the kernel may not have begun when its block is nobody's any more.
TEST_F(CudaShrink, MemoryDoesNotGoUnderWorkThatIsLate)
{
    open("seed=1", 8, 24);
    stw_tensor *tensor = make("t", 4 * kElements);
    use(tensor, streams_[0], 0, 0, false);
    end_streams();
    stw_double_hold(streams_[0]);
    use(tensor, streams_[0], 0, 0, false);
    EXPECT_EQ(set_budget(0, kSecond / 20), STW_ERROR_TIMEOUT);
    EXPECT_EQ(taken_blocks(), 8u);
    stw_tier_stats stats{};
    stats.struct_size = sizeof stats;
    ASSERT_OK(stw_tier_stats_get(runtime_, STW_TIER_DEVICE, 0, &stats));
    EXPECT_EQ(stats.budget_bytes, 8 * kBlock);
    std::thread other([&] { EXPECT_OK(set_budget(0)); });
    stw_double_let_go(streams_[0], 0);
    other.join();
    EXPECT_EQ(taken_blocks(), 0u);
    end_streams();
}

// What was done there before is to be waited for, and can be marked when the capture is over.
TEST_F(CudaShrink, MemoryUnderAGraphThatIsRecordedGoesBackAfterThat)
{
    open("seed=1", 8, 24);
    stw_tensor *tensor = make("t", 4 * kElements);
    use(tensor, streams_[0], 0, 0, false);
    ASSERT_OK(stw_tensor_destroy(&tensor, 1));
    stw_double_capture(streams_[0], 1);
    EXPECT_EQ(set_budget(0, kSecond / 20), STW_ERROR_TIMEOUT);
    EXPECT_EQ(taken_blocks(), 8u);
    stw_double_calls_reset();
    std::thread other([&] { EXPECT_OK(set_budget(0)); });
    while (stw_double_calls("cuStreamIsCapturing") < 3) std::this_thread::yield();
    stw_double_capture(streams_[0], 0);
    other.join();
    EXPECT_EQ(taken_blocks(), 0u);
    end_streams();
}

// Runs of slots need memory where others have it: it moves, and no more than the budget is taken.
TEST_F(CudaShrink, ProgramsOfSeveralStreamsGoOnWhileTheBudgetChanges)
{
    const std::vector<uint64_t> sizes = {3 * kElements, 2 * kElements, 100,           kElements,
                                         kElements / 2, 4 * kElements, 2 * kElements, kElements};
    for (uint64_t seed = 1; seed <= 4; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        open("delay_us=300,seed=" + std::to_string(seed), 12, 48);
        if (HasFatalFailure()) return;
        std::mt19937_64 random(seed);
        std::vector<stw_tensor *> tensors;
        std::vector<uint32_t> values(sizes.size());
        for (size_t i = 0; i < sizes.size(); ++i)
            tensors.push_back(make(("t" + std::to_string(i)).c_str(), sizes[i]));
        uint32_t written = 0;
        for (int i = 0; i < 60; ++i) {
            const size_t tensor = random() % sizes.size();
            const bool writes = random() % 3 == 0;
            use(tensors[tensor], streams_[random() % kStreams], values[tensor], written + 1,
                writes);
            if (HasFatalFailure()) return;
            if (writes) values[tensor] = ++written;
            if (i % 10 != 9) continue;
            const uint64_t blocks = 5 + random() % 8;
            ASSERT_OK(set_budget(blocks));
            EXPECT_EQ(taken_blocks(), blocks);
        }
        EXPECT_OK(set_budget(5));
        for (int i = 0; i < 30; ++i) {
            const size_t tensor = random() % sizes.size();
            use(tensors[tensor], streams_[random() % kStreams], values[tensor], 0, false);
            if (HasFatalFailure()) return;
            EXPECT_LE(taken_blocks(), 5u);
        }
        for (size_t i = 0; i < sizes.size(); ++i) expect_all(tensors[i], sizes[i], values[i]);
        end_streams();
        EXPECT_EQ(wrong(), 0);
        start_over();
    }
}

TEST_F(CudaShrink, WhatAnotherProgramHasTakenMeanwhileIsToldByTheGrowth)
{
    open("seed=1", 8, 24);
    stw_tensor *tensor = make("t", 4 * kElements);
    use(tensor, streams_[0], 0, 3, true);
    ASSERT_OK(set_budget(4));
    stw_double_fail("cuMemCreate", 3, 2);
    EXPECT_EQ(set_budget(8), STW_ERROR_MEMORY);
    EXPECT_NE(std::string(stw_last_error()).find("to take back"), std::string::npos)
        << stw_last_error();
    EXPECT_EQ(taken_blocks(), 4u);
    use(tensor, streams_[1], 3, 4, true);
    ASSERT_OK(set_budget(8));
    EXPECT_EQ(taken_blocks(), 8u);
    use(tensor, streams_[2], 4, 4, false);
    end_streams();
}

TEST_F(CudaShrink, ADeviceThatPlacesNoMemoryKeepsItsBudget)
{
    open("attribute=102:0", 8, 24);
    EXPECT_EQ(set_budget(4), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(stw_last_error()).find("virtual memory management"), std::string::npos)
        << stw_last_error();
    EXPECT_EQ(taken_blocks(), 8u);
    use(make("t", 3 * kElements), streams_[0], 0, 1, true);
    end_streams();
}

TEST_F(CudaShrink, ALostDeviceIsToldAndEverythingEnds)
{
    open("seed=1", 8, 24);
    stw_tensor *tensor = make("t", 4 * kElements);
    use(tensor, streams_[0], 0, 0, false);
    end_streams();
    // What the library has not seen the end of when the device goes is an error of its tensor, and
    // sticks to that.
    ASSERT_OK(stw_runtime_drain(runtime_, 0));
    stw_double_break(0, 700);
    EXPECT_EQ(set_budget(2), STW_ERROR_DEVICE);
    expect_all(tensor, 4 * kElements, 0);
    EXPECT_OK(stw_runtime_close(std::exchange(runtime_, nullptr), 0, 0));
    for (void *&stream : streams_) stream = nullptr;
    context_ = nullptr;
    stw_double_reset("seed=1");
}

}  // namespace
}  // namespace stepwell
