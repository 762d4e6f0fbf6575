// SPDX-License-Identifier: Apache-2.0
// Groups over a communicator that the program made and keeps: what it may say of it, what the group
// leaves of it, and what becomes of a group whose communicator is gone.
#include "tests/nccl/ranks_rig.h"

#include <cstring>

extern "C" {
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                  stepwell::drivers::ncclComm_t comm, void *stream);
int ncclCommGetAsyncError(stepwell::drivers::ncclComm_t comm, int *result);
}

namespace stepwell {
namespace {

using namespace drivers;
using Does = Kernel::Does;

class LentCommunicator : public Ranks {};

float value(uint64_t i)
{
    return static_cast<float>(i % 65521);
}

void expect_said(std::initializer_list<const char *> parts)
{
    for (const char *part : parts)
        EXPECT_NE(std::strstr(stw_last_error(), part), nullptr) << part << ": " << stw_last_error();
}

// The program's own collective: 1 + 2 + ...
void expect_sum_of_ranks(const Rank &rank)
{
    Kernel mine = {.does = Does::kSet, .values = {static_cast<float>(rank.rank + 1)}};
    Kernel sum = {.does = Does::kCompare,
                  .values = {static_cast<float>(rank.size * (rank.size + 1)) / 2}};
    unsigned long long memory = 0;
    ASSERT_EQ(cuMemAlloc_v2(&memory, sizeof(float)), 0);
    mine.address = sum.address = memory;
    const stw_double_range writes = {memory, sizeof(float), 1, 0};
    const stw_double_range reads = {memory, sizeof(float), 0, 0};
    void *stream = rank.streams[0];
    ASSERT_EQ(stw_double_consume(stream, "writer", &writes, 1, run_kernel, &mine), 0);
    auto *data = reinterpret_cast<void *>(memory);
    int result = ncclAllReduce(data, data, 1, kNcclFloat32, kNcclSum, rank.communicator, stream);
    while (result == kNcclInProgress)
        ASSERT_EQ(ncclCommGetAsyncError(rank.communicator, &result), kNcclSuccess);
    ASSERT_EQ(result, kNcclSuccess);
    ASSERT_EQ(stw_double_consume(stream, "reader", &reads, 1, run_kernel, &sum), 0);
    ASSERT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_EQ(sum.wrong, 0);
    EXPECT_EQ(cuMemFree_v2(memory), 0);
}

TEST_P(LentCommunicator, GathersAndSumsAndStaysTheProgramsOwn)
{
    run(GetParam(), [](Rank &rank) {
        rank.lends = true;
        rank.device_options = "arena=registered";
        rank.open("", 24, 48);
        if (testing::Test::HasFailure()) return;
        stw_tensor *param = rank.make("p", 100'001, STW_ROLE_PARAM);
        rank.use(param, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, value);
        rank.use(param, STW_READ, STW_WHOLE, rank.streams[1], Does::kCompare, value);
        stw_tensor *gradient = rank.make("g", 50'003, STW_ROLE_GRAD);
        const auto sum = [&](uint64_t i) { return static_cast<float>(rank.size) * value(i); };
        rank.use(gradient, STW_REDUCE, STW_WHOLE, rank.streams[0], Does::kAdd, value);
        rank.use(gradient, STW_READ, STW_SHARD, rank.streams[1], Does::kCompare, sum);
        EXPECT_GT(stw_nccl_double_in_registered(), 0u);
        for (void *stream : rank.streams) ASSERT_EQ(cuStreamSynchronize(stream), 0);
        ASSERT_OK(stw_runtime_close(rank.runtime, 0, 0));
        rank.runtime = nullptr;
        ASSERT_OK(stw_group_destroy(rank.group));
        expect_sum_of_ranks(rank);
        // And another group can be made over it, one at a time.
        ASSERT_OK(rank.join());
        stw_group *second = nullptr;
        EXPECT_EQ(rank.join(rank.rank, rank.size, 0, &second), STW_ERROR_BUSY);
        EXPECT_NE(std::strstr(stw_last_error(), "options.nccl_comm is lent to another group"),
                  nullptr)
            << stw_last_error();
        rank.end();
        EXPECT_EQ(stw_nccl_double_calls("ncclCommInitRankConfig"), 1u);
        EXPECT_EQ(stw_nccl_double_calls("ncclCommFinalize"), 0u);
        EXPECT_EQ(stw_nccl_double_calls("ncclCommAbort"), 0u);
    });
}

INSTANTIATE_TEST_SUITE_P(Sizes, LentCommunicator, testing::Values(2u, 3u));

// Such a one tells neither rank nor device before all have joined.
TEST_F(LentCommunicator, OneThatIsStillBeingMadeIsWaitedFor)
{
    run(2, [](Rank &rank) {
        rank.begin_alone("");
        rank.make_communicator(false);
        ASSERT_OK(rank.join());
        uint32_t number = 9, size = 9;
        EXPECT_OK(stw_group_rank(rank.group, &number, &size));
        EXPECT_EQ(number, rank.rank);
        EXPECT_EQ(size, rank.size);
        rank.end();
    });
}

TEST_F(LentCommunicator, OneThatIsNeverMadeTimesOut)
{
    run(2, [](Rank &rank) {
        if (rank.rank == 1) _exit(kGone);
        rank.begin_alone("");
        rank.make_communicator(false);
        rank.timeout_ns = 1'000'000;
        EXPECT_EQ(rank.join(), STW_ERROR_TIMEOUT);
        expect_said({"that the program lent", "was not made within"});
        EXPECT_EQ(stw_nccl_double_calls("ncclCommAbort"), 0u);
        EXPECT_EQ(ncclCommAbort(rank.communicator), kNcclSuccess);
    });
}

TEST_F(LentCommunicator, WhatTheProgramSaysOfItIsWhatItIs)
{
    run(2, [](Rank &rank) {
        rank.begin_alone("");
        rank.make_communicator(true);
        stw_group_options options = STW_GROUP_OPTIONS_INIT;
        const std::string module = rank.module();
        options.driver = STW_GROUP_NCCL;
        options.nccl_comm = rank.communicator;
        options.module = module.c_str();
        options.rank = 1 - rank.rank;
        options.size = 2;
        const std::string is = "is rank " + std::to_string(rank.rank) + " of 2";
        EXPECT_EQ(stw_group_create(&options, &rank.group), STW_ERROR_INVALID);
        expect_said({is.c_str(), rank.rank == 0 ? "say rank 1 of 2" : "say rank 0 of 2"});
        options.rank = rank.rank;
        options.size = 3;
        EXPECT_EQ(stw_group_create(&options, &rank.group), STW_ERROR_INVALID);
        expect_said({is.c_str(), "of 3; say what it is"});
        options.size = 2;
        options.device_ordinal = 1;
        EXPECT_EQ(stw_group_create(&options, &rank.group), STW_ERROR_INVALID);
        expect_said({"is on device 0, and the options say 1"});
        EXPECT_EQ(rank.group, nullptr);
        options.device_ordinal = 0;
        // Nothing said is nothing wrong, and what was refused has done no harm.
        options.rank = options.size = 0;
        ASSERT_OK(stw_group_create(&options, &rank.group));
        uint32_t number = 9, size = 9;
        EXPECT_OK(stw_group_rank(rank.group, &number, &size));
        EXPECT_EQ(number, rank.rank);
        EXPECT_EQ(size, 2u);
        rank.end();
    });
}

TEST_F(LentCommunicator, OneThatIsGoneIsRefused)
{
    run(1, [](Rank &rank) {
        for (const bool aborts : {false, true}) {
            rank.begin_alone("");
            rank.make_communicator(true);
            ASSERT_EQ(aborts ? ncclCommAbort(rank.communicator)
                             : ncclCommDestroy(rank.communicator),
                      kNcclSuccess);
            EXPECT_EQ(rank.join(), STW_ERROR_INVALID);
            expect_said({"cannot be used", "neither destroyed nor aborted"});
        }
    });
}

// As a watchdog of a framework does it.
TEST_F(LentCommunicator, OneThatIsAbortedUnderTheGroupIsTold)
{
    run(2, [](Rank &rank) {
        rank.lends = true;
        rank.open("", 24, 48);
        if (testing::Test::HasFailure()) return;
        stw_tensor *tensor = rank.make("t", 100'000, STW_ROLE_PARAM);
        rank.use(tensor, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, value);
        rank.use(tensor, STW_READ, STW_WHOLE, rank.streams[0], Does::kCompare, value);
        stw_tensor *other = rank.make("u", 100'000, STW_ROLE_PARAM);
        rank.use(other, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, value);
        ASSERT_EQ(ncclCommAbort(rank.communicator), kNcclSuccess);
        rank.communicator = nullptr;
        stw_view view = {};
        for (int again = 0; again < 2; ++again) {
            EXPECT_EQ(rank.try_fetch(other, STW_READ, STW_WHOLE, rank.streams[0], &view),
                      STW_ERROR_CLOSED);
            expect_said({"destroyed or aborted under the group"});
        }
        rank.use(other, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare, value);
        rank.end();
    });
}

// It is for the program to end what is in flight: the group gives up, and touches it no more.
TEST_F(LentCommunicator, ARankThatIsGoneIsToldAndTheCommunicatorIsLeftToTheProgram)
{
    run(2, [](Rank &rank) {
        rank.lends = true;
        rank.gives_up = true;
        rank.timeout_ns = kSecond;
        rank.open("", 24, 48);
        if (testing::Test::HasFailure()) return;
        stw_tensor *tensor = rank.make("t", 100'000, STW_ROLE_PARAM);
        rank.use(tensor, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, value);
        if (rank.rank == 1) _exit(kGone);
        stw_view view = {};
        EXPECT_EQ(rank.try_fetch(tensor, STW_READ, STW_WHOLE, rank.streams[0], &view),
                  STW_ERROR_PEER);
        rank.use(tensor, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare, value);
        EXPECT_EQ(stw_nccl_double_calls("ncclCommAbort"), 0u);
        ASSERT_EQ(ncclCommAbort(rank.communicator), kNcclSuccess);
        rank.communicator = nullptr;
        stw_double_drain();
        const uint64_t asked = stw_nccl_double_calls("ncclCommGetAsyncError");
        rank.end();
        EXPECT_EQ(stw_nccl_double_calls("ncclCommGetAsyncError"), asked);
    });
}

}  // namespace
}  // namespace stepwell
