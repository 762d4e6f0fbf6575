// SPDX-License-Identifier: Apache-2.0
// Ranks that do not all do the same with a device's tensors: some need no bytes, some call in
// another order, some have another shape.
#include "tests/nccl/ranks_rig.h"

#include <cstring>

namespace stepwell {
namespace {

using Does = Kernel::Does;

class DeviceOrder : public Ranks {};

std::function<float(uint64_t)> values(uint32_t salt)
{
    return [salt](uint64_t i) { return static_cast<float>((i * 7 + salt * 1009) % 65521); };
}

stw_tensor *written(Rank &rank, const char *name, uint64_t elements, uint32_t salt)
{
    stw_tensor *tensor = rank.make(name, elements, STW_ROLE_PARAM);
    rank.use(tensor, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, values(salt));
    return tensor;
}

void expect_served(Rank &rank, stw_tensor *tensor, uint32_t salt, bool absent)
{
    void *stream = rank.streams[1];
    stw_view view = {};
    ASSERT_OK(
        rank.try_fetch(tensor, STW_READ, STW_WHOLE, stream, &view, absent ? STW_FETCH_ABSENT : 0));
    EXPECT_EQ(view.pointer == nullptr, absent);
    EXPECT_EQ(view.element_count == 0, absent);
    if (!absent) rank.work_on(view, stream, Does::kCompare, values(salt));
    EXPECT_OK(stw_release(&view, 1, stream, 0));
}

void expect_order(Rank &rank, stw_status status, std::initializer_list<const char *> parts)
{
    EXPECT_EQ(status, STW_ERROR_ORDER) << "rank " << rank.rank;
    for (const char *part : parts)
        EXPECT_NE(std::strstr(stw_last_error(), part), nullptr) << stw_last_error();
}

// In one collective with others, alone in the bucket, and too large for it.
TEST_P(DeviceOrder, AnAbsentRankServesTheOthers)
{
    run(GetParam(), [](Rank &rank) {
        rank.open("memory=512M", 192, 128);
        if (testing::Test::HasFailure()) return;
        uint32_t salt = 0;
        for (const uint64_t size : {100, 100'003, 2'500'000}) {
            stw_tensor *tensor = written(rank, "w", static_cast<uint64_t>(size), ++salt);
            for (uint32_t turn = 0; turn < rank.size; ++turn) {
                expect_served(rank, tensor, salt, rank.rank == turn);
                expect_served(rank, tensor, salt, rank.rank != turn);
                expect_served(rank, tensor, salt, false);
                rank.use(tensor, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, values(++salt));
            }
            expect_served(rank, tensor, salt, true);
            for (void *stream : rank.streams) ASSERT_EQ(cuStreamSynchronize(stream), 0);
            ASSERT_OK(stw_tensor_destroy(&tensor, 1));
        }
        rank.end();
    });
}

INSTANTIATE_TEST_SUITE_P(Sizes, DeviceOrder, testing::Values(2u, 3u));

TEST_F(DeviceOrder, RanksThatFetchInAnotherOrderAreTold)
{
    run(2, [](Rank &rank) {
        rank.open("", 24, 48);
        if (testing::Test::HasFailure()) return;
        stw_tensor *first = written(rank, "first", 20'000, 1);
        stw_tensor *second = written(rank, "second", 20'000, 2);
        stw_view view = {};
        stw_tensor *mine = rank.rank == 1 ? second : first;
        for (stw_tensor *tensor : {mine, first})
            expect_order(rank, rank.try_fetch(tensor, STW_READ, STW_WHOLE, rank.streams[0], &view),
                         {"'first'", "'second'", "rank 0", "rank 1"});
        rank.use(first, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare, values(1));
        rank.end();
    });
}

// Nobody waits for a sum, so who asks for it is told.
TEST_F(DeviceOrder, RanksThatSumInAnotherOrderAreTold)
{
    run(2, [](Rank &rank) {
        rank.open("", 24, 64);
        if (testing::Test::HasFailure()) return;
        stw_tensor *first = rank.make("first", 600'000, STW_ROLE_GRAD);
        stw_tensor *second = rank.make("second", 600'000, STW_ROLE_GRAD);
        rank.use(rank.rank == 1 ? second : first, STW_REDUCE, STW_WHOLE, rank.streams[0],
                 Does::kAdd, values(1));
        stw_view view = {};
        expect_order(rank,
                     rank.try_fetch(rank.rank == 1 ? second : first, STW_READ, STW_SHARD,
                                    rank.streams[0], &view),
                     {"'first'", "'second'", "rank 0", "rank 1"});
        rank.end(STW_ERROR_ORDER);
    });
}

// By a thread that does not take part; groups are made and used meanwhile.
TEST_F(DeviceOrder, CollectivesGoOnWhileAGraphIsRecorded)
{
    run(2, [](Rank &rank) {
        rank.begin_alone("");
        if (testing::Test::HasFailure()) return;
        void *recorded = nullptr;
        ASSERT_EQ(cuStreamCreate(&recorded, 1), 0);
        stw_double_capture(recorded, 1);
        ASSERT_OK(rank.join());
        ASSERT_OK(rank.try_open(24, kBucketBlocks + 24 + 48));
        stw_tensor *tensor = written(rank, "w", 20'000, 1);
        rank.use(tensor, STW_READ, STW_WHOLE, rank.streams[1], Does::kCompare, values(1));
        EXPECT_EQ(stw_double_violations(), 0u);
        stw_double_capture(recorded, 0);
        EXPECT_EQ(cuStreamDestroy_v2(recorded), 0);
        rank.end();
    });
}

TEST_F(DeviceOrder, ATensorOfAnotherShapeIsNamed)
{
    run(2, [](Rank &rank) {
        rank.open("", 24, 48);
        if (testing::Test::HasFailure()) return;
        stw_tensor *tensor = written(rank, "w", rank.rank == 1 ? 20'001 : 20'000, 1);
        stw_tensor *good = written(rank, "good", 20'000, 2);
        stw_view view = {};
        EXPECT_EQ(rank.try_fetch(tensor, STW_READ, STW_WHOLE, rank.streams[0], &view),
                  STW_ERROR_MISMATCH);
        for (const char *part : {"'w'", "[20000]", "[20001]"})
            EXPECT_NE(std::strstr(stw_last_error(), part), nullptr) << stw_last_error();
        // Nothing was begun, so the group goes on.
        rank.use(good, STW_READ, STW_WHOLE, rank.streams[1], Does::kCompare, values(2));
        rank.end();
    });
}

}  // namespace
}  // namespace stepwell
