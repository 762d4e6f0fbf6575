// SPDX-License-Identifier: Apache-2.0
// What a rank hears when NCCL fails it, when NCCL finds a process gone, and when its device breaks:
// a typed error on each rank, in time, and nothing left behind.
#include "tests/nccl/ranks_rig.h"

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace stepwell {
namespace {

using Does = Kernel::Does;

class DeviceFailures : public Ranks {};

float value(uint64_t i)
{
    return static_cast<float>(i % 65521);
}

// Before the first call of NCCL in this process.
void choose(const std::string &options)
{
    ASSERT_EQ(setenv("STW_NCCL_DOUBLE", options.c_str(), 1), 0);
}

void expect_said(std::initializer_list<const char *> parts)
{
    for (const char *part : parts)
        EXPECT_NE(std::strstr(stw_last_error(), part), nullptr) << part << ": " << stw_last_error();
}

stw_tensor *written(Rank &rank, const char *name, uint64_t elements)
{
    stw_tensor *tensor = rank.make(name, elements, STW_ROLE_PARAM);
    rank.use(tensor, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, value);
    return tensor;
}

// Long before the timeout, as NCCL tells it of a transport that sees a connection close.
void expect_peer_at_once(Rank &rank)
{
    choose("notices=1");
    rank.open("", 24, 48);
    if (testing::Test::HasFailure()) return;
    stw_tensor *tensor = written(rank, "t", 100'000);
    rank.use(tensor, STW_READ, STW_WHOLE, rank.streams[0], Does::kCompare, value);
    stw_tensor *other = written(rank, "u", 100'000);
    // The one that is waited for first, so that nothing is left of it.
    if (rank.rank == 0) _exit(kGone);
    const auto begin = std::chrono::steady_clock::now();
    stw_view view = {};
    EXPECT_EQ(rank.try_fetch(other, STW_READ, STW_WHOLE, rank.streams[0], &view), STW_ERROR_PEER);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    expect_said({"NCCL failed", "remote process exited", "a process of the group is gone"});
    rank.use(other, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare, value);
}

TEST_F(DeviceFailures, AProcessThatNcclFindsGoneIsToldAtOnce)
{
    run(2, [](Rank &rank) {
        expect_peer_at_once(rank);
        rank.end();
    });
}

TEST_F(DeviceFailures, AProcessThatALentCommunicatorFindsGoneIsToldAtOnce)
{
    run(2, [](Rank &rank) {
        rank.lends = true;
        expect_peer_at_once(rank);
        EXPECT_EQ(ncclCommAbort(rank.communicator), drivers::kNcclSuccess);
        rank.communicator = nullptr;
        rank.end();
    });
}

TEST_F(DeviceFailures, AGroupThatNcclRefusesSaysWhy)
{
    run(1, [](Rank &rank) {
        choose("fail=ncclCommInitRankConfig:1:2");
        rank.begin_alone("");
        EXPECT_EQ(rank.join(), STW_ERROR_PEER);
        expect_said({"NCCL refused rank 0", "unhandled system error"});
        EXPECT_EQ(rank.group, nullptr);
        // That was one time.
        ASSERT_OK(rank.join());
        rank.end();
    });
}

TEST_F(DeviceFailures, ADriverThatRefusesMemorySaysItsErrorByName)
{
    run(1, [](Rank &rank) {
        rank.begin_alone("");
        ASSERT_EQ(stw_double_fail("cuMemAlloc_v2", 1, 2), 0);
        EXPECT_EQ(rank.join(), STW_ERROR_MEMORY);
        expect_said({"CUDA_ERROR_OUT_OF_MEMORY (2, out of memory)"});
        ASSERT_OK(rank.join());
        rank.end();
    });
}

TEST_F(DeviceFailures, ACollectiveThatNcclRefusesEndsTheGroup)
{
    run(2, [](Rank &rank) {
        choose("fail=ncclReduceScatter:1:3");
        rank.open("", 24, 64);
        if (testing::Test::HasFailure()) return;
        stw_tensor *tensor = written(rank, "t", 100'000);
        stw_tensor *gradient = rank.make("g", 100'000, STW_ROLE_GRAD);
        rank.use(gradient, STW_REDUCE, STW_WHOLE, rank.streams[0], Does::kAdd, value);
        stw_view view = {};
        // Nobody waits for a sum, so who asks for it is told.
        EXPECT_EQ(rank.try_fetch(gradient, STW_READ, STW_SHARD, rank.streams[0], &view),
                  STW_ERROR_INTERNAL);
        expect_said({"NCCL failed", "internal error"});
        EXPECT_EQ(rank.try_fetch(tensor, STW_READ, STW_WHOLE, rank.streams[0], &view),
                  STW_ERROR_INTERNAL);
        rank.use(tensor, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare, value);
        rank.end(STW_ERROR_INTERNAL);
    });
}

// At whatever place it comes: while ranks join, agree, gather or end.
TEST_F(DeviceFailures, AnErrorAtAnyPlaceIsTypedAndLeavesNothing)
{
    for (const int place : {1, 3, 5, 8, 12, 17, 23, 30, 40, 60, 90}) {
        SCOPED_TRACE(place);
        run(2, [place](Rank &rank) {
            choose("fail=ncclCommGetAsyncError:" + std::to_string(place) + ":6");
            rank.timeout_ns = 5 * kSecond;
            rank.begin_alone("");
            stw_status status = rank.join();
            if (status == STW_OK) status = rank.try_open(24, kBucketBlocks + 72);
            stw_view view = {};
            for (int i = 0; i < 8 && status == STW_OK; ++i) {
                stw_tensor *tensor = written(rank, ("t" + std::to_string(i)).c_str(), 20'000);
                status = rank.try_fetch(tensor, STW_READ, STW_WHOLE, rank.streams[0], &view);
                if (status != STW_OK) break;
                rank.work_on(view, rank.streams[0], Does::kCompare, value);
                EXPECT_OK(stw_release(&view, 1, rank.streams[0], 0));
            }
            EXPECT_TRUE(status == STW_OK || status == STW_ERROR_PEER) << stw_last_error();
            rank.end();
        });
    }
}

// A kernel of the program's touched what it must not. Its own rank says so, the other one that
// nobody came; what is farther than the device is still there.
TEST_F(DeviceFailures, ADeviceThatIsLostIsToldOnAllRanks)
{
    run(2, [](Rank &rank) {
        rank.timeout_ns = 2 * kSecond;
        rank.open("", 24, 48);
        if (testing::Test::HasFailure()) return;
        stw_tensor *tensor = written(rank, "t", 100'000);
        rank.use(tensor, STW_READ, STW_WHOLE, rank.streams[0], Does::kCompare, value);
        stw_tensor *safe = written(rank, "safe", 100'000);
        ASSERT_OK(stw_evict(rank.runtime, &safe, 1, STW_TIER_DEVICE, 0, 0));
        for (void *stream : rank.streams) ASSERT_EQ(cuStreamSynchronize(stream), 0);
        const bool breaks = rank.rank == 0;
        if (breaks) stw_double_break(0, 700);
        stw_view view = {};
        EXPECT_EQ(rank.try_fetch(safe, STW_READ, STW_WHOLE, rank.streams[0], &view),
                  breaks ? STW_ERROR_DEVICE : STW_ERROR_PEER)
            << stw_last_error();
        if (!breaks) {
            rank.use(safe, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare, value);
            rank.end();
            return;
        }
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        request.tensor = safe;
        request.scope = STW_SHARD;
        request.tier = STW_TIER_HOST;
        ASSERT_OK(stw_fetch(rank.runtime, nullptr, &request, 1, &view));
        const auto *floats = static_cast<const float *>(view.pointer);
        for (uint64_t i = 0; i < view.element_count; ++i)
            ASSERT_EQ(floats[i], value(view.element_begin + i));
        EXPECT_OK(stw_release(&view, 1, STW_STREAM_HOST, 0));
        EXPECT_OK(stw_runtime_close(rank.runtime, 0, 0));
        EXPECT_OK(stw_group_destroy(rank.group));
        EXPECT_EQ(stw_nccl_double_leaks(), 0u);
    });
}

}  // namespace
}  // namespace stepwell
