// SPDX-License-Identifier: Apache-2.0
// Sharded tensors whose wholes and sums are on a device: what comes there, in which order with the
// work of the program's streams, and what becomes of a rank whose peer is gone.
#include "tests/nccl/ranks_rig.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>

namespace stepwell {
namespace {

using Does = Kernel::Does;

std::function<float(uint64_t)> values(uint32_t salt)
{
    return [salt](uint64_t i) { return static_cast<float>((i * 7 + salt * 1000003) % 65521); };
}

std::string seed_of(const Rank &rank, uint32_t seed)
{
    return "delay_us=200,seed=" + std::to_string(seed * 16 + rank.rank + 1);
}

// Of a tensor with an address for life; where it is refused, none is made.
stw_status make_fixed(Rank &rank, const char *name, uint32_t partition)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = name;
    spec.flags = STW_TENSOR_FIXED_ADDRESS;
    spec.dtype = STW_F32;
    spec.role = STW_ROLE_PARAM;
    spec.partition = partition;
    spec.dimensions = 1;
    spec.shape[0] = 1000;
    stw_tensor *tensor = nullptr;
    const stw_status status = stw_tensor_create(rank.runtime, &spec, 1, &tensor);
    EXPECT_EQ(tensor != nullptr, status == STW_OK);
    return status;
}

// More of them than fit beside each other, so that slots come to others while streams still work.
TEST_P(Ranks, WholesAreWhatTheRanksWrote)
{
    run(GetParam(), [](Rank &rank) {
        rank.open(seed_of(rank, 1), 24, 72);
        if (testing::Test::HasFailure()) return;
        const uint64_t sizes[] = {150'001, 16'384, 300'000, 77, 1, 3, 40'000, 511};
        std::vector<stw_tensor *> tensors;
        for (const uint64_t size : sizes)
            tensors.push_back(
                rank.make("t" + std::to_string(tensors.size()), size, STW_ROLE_PARAM));
        for (uint32_t round = 0; round < 3; ++round) {
            for (uint32_t i = 0; i < tensors.size(); ++i)
                rank.use(tensors[i], STW_WRITE, STW_SHARD, rank.streams[round % 2], Does::kSet,
                         values(i + round));
            for (uint32_t i = 0; i < tensors.size(); ++i)
                rank.use(tensors[i], STW_READ, STW_WHOLE, rank.streams[(i + round) % 2],
                         Does::kCompare, values(i + round));
        }
        // Written as a whole: each rank keeps its slice, and all see it. The next one wants its
        // room before that is over.
        rank.use(tensors[0], STW_WRITE, STW_WHOLE, rank.streams[0], Does::kSet, values(90));
        rank.use(tensors[2], STW_READ, STW_WHOLE, rank.streams[1], Does::kCompare, values(4));
        rank.use(tensors[0], STW_READ, STW_WHOLE, rank.streams[1], Does::kCompare, values(90));
        rank.end();
    });
}

TEST_P(Ranks, GradientsAreSummedInTheOrderOfRanks)
{
    run(GetParam(), [](Rank &rank) {
        rank.open(seed_of(rank, 2), 24, 64);
        if (testing::Test::HasFailure()) return;
        const auto part = [](uint32_t of, uint64_t i) {
            return 0.1f * static_cast<float>(of + 1) + 1e-5f * static_cast<float>(i % 1000);
        };
        const auto sum = [&](uint64_t i) {
            float total = 0;
            for (uint32_t of = 0; of < rank.size; ++of)
                total = of == 0 ? part(0, i) + part(0, i) : total + (part(of, i) + part(of, i));
            return total;
        };
        std::vector<stw_tensor *> gradients;
        for (const uint64_t size : {200'003, 1'000, 3, 1, 777, 32'768, 5'000})
            gradients.push_back(rank.make("g" + std::to_string(gradients.size()),
                                          static_cast<uint64_t>(size), STW_ROLE_GRAD));
        gradients.push_back(rank.make("all", 999, STW_ROLE_GRAD, STW_PARTITION_REPLICATED));
        const auto mine = [&](uint64_t i) { return part(rank.rank, i); };
        for (const uint32_t flags : {uint32_t{STW_RELEASE_MORE}, 0u})
            for (stw_tensor *gradient : gradients)
                rank.use(gradient, STW_REDUCE, STW_WHOLE, rank.streams[flags == 0], Does::kAdd,
                         mine, flags);
        for (stw_tensor *gradient : gradients)
            rank.use(gradient, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare, sum);
        rank.end();
    });
}

TEST_P(Ranks, OneThatIsGoneIsToldToTheOthersInTime)
{
    run(GetParam(), [](Rank &rank) {
        rank.timeout_ns = 2 * kSecond;
        rank.open(seed_of(rank, 3), 24, 24);
        if (testing::Test::HasFailure()) return;
        stw_tensor *tensor = rank.make("t", 100'000, STW_ROLE_PARAM);
        rank.use(tensor, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, values(1));
        rank.use(tensor, STW_READ, STW_WHOLE, rank.streams[0], Does::kCompare, values(1));
        stw_tensor *other = rank.make("u", 100'000, STW_ROLE_PARAM);
        rank.use(other, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, values(2));
        if (rank.rank == rank.size - 1) _exit(kGone);
        stw_view view = {};
        EXPECT_EQ(rank.try_fetch(other, STW_READ, STW_WHOLE, rank.streams[0], &view),
                  STW_ERROR_PEER);
        // What is its own is there.
        rank.use(other, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare, values(2));
        rank.end();
    });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Ranks, testing::Values(2u, 3u, 4u));

TEST_F(Ranks, AGroupOfAnotherDeviceIsRefused)
{
    run(2, [](Rank &rank) {
        rank.begin("devices=2");
        EXPECT_EQ(rank.try_open(24, kBucketBlocks + 48, 1), STW_ERROR_INVALID);
        for (const char *part : {"another device", "options.device_ordinal 1"})
            EXPECT_NE(std::strstr(stw_last_error(), part), nullptr) << stw_last_error();
        rank.end();
    });
}

// NCCL would wait for ranks that never come, or fail with words about sockets.
TEST_F(Ranks, AnIdMakesOneGroup)
{
    run(2, [](Rank &rank) {
        rank.begin("");
        stw_group *second = nullptr;
        const auto refused = [&] {
            EXPECT_EQ(rank.join(rank.rank, rank.size, 0, &second), STW_ERROR_BUSY);
            EXPECT_NE(std::strstr(stw_last_error(), "options.unique_id has made a group"), nullptr)
                << stw_last_error();
        };
        refused();
        rank.end();
        refused();
        EXPECT_EQ(second, nullptr);
    });
}

// A process sees all devices of its machine, as most launchers leave it.
TEST_F(Ranks, EachRankHasTheDeviceThatItNames)
{
    run(2, [](Rank &rank) {
        rank.program_device = rank.group_device = static_cast<int32_t>(rank.rank);
        rank.begin("devices=2");
        ASSERT_OK(rank.try_open(24, kBucketBlocks + 72, rank.group_device));
        stw_tensor *tensor = rank.make("t", 100'000, STW_ROLE_PARAM);
        rank.use(tensor, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, values(1));
        rank.use(tensor, STW_READ, STW_WHOLE, rank.streams[1], Does::kCompare, values(1));
        rank.end();
    });
}

TEST_F(Ranks, ADeviceThatIsNotThereIsRefused)
{
    run(1, [](Rank &rank) {
        rank.begin_alone("devices=2");
        rank.group_device = 2;
        EXPECT_EQ(rank.join(), STW_ERROR_UNSUPPORTED);
        EXPECT_NE(std::strstr(stw_last_error(), "2 devices to this process and none of ordinal 2"),
                  nullptr)
            << stw_last_error();
        EXPECT_EQ(rank.group, nullptr);
    });
}

// The other one is ended while it waits to join, and nothing of the group stays behind.
TEST_F(Ranks, OneThatNeverJoinsLeavesNoMemory)
{
    const auto segments = [] {
        std::set<std::string> names;
        for (const auto &entry : std::filesystem::directory_iterator("/dev/shm")) {
            const std::string name = entry.path().filename();
            if (name.starts_with("stepwell-nccl-")) names.insert(name);
        }
        return names;
    };
    const std::set<std::string> before = segments();
    run(2, [&](Rank &rank) {
        if (rank.rank == 1) _exit(kGone);
        ASSERT_EQ(stw_double_reset(""), 0);
        ASSERT_EQ(cuInit(0), 0);
        void *context = nullptr;
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), 0);
        ASSERT_EQ(cuCtxSetCurrent(context), 0);
        std::signal(SIGALRM, [](int) { _exit(kGone); });
        alarm(1);
        rank.join();
        FAIL() << "there was nobody to join";
    });
    EXPECT_EQ(segments(), before);
}

// What is gathered lies in memory that NCCL knows, which is never shown elsewhere.
TEST_F(Ranks, AShardedTensorHasNoFixedAddress)
{
    run(2, [](Rank &rank) {
        rank.open(seed_of(rank, 4), 8, 24);
        if (testing::Test::HasFailure()) return;
        EXPECT_EQ(make_fixed(rank, "split", STW_PARTITION_SHARDED), STW_ERROR_INVALID);
        for (const char *part : {"'split'", "fixed address", "sharded over ranks"})
            EXPECT_NE(std::strstr(stw_last_error(), part), nullptr) << stw_last_error();
        rank.end();
    });
}

// A tensor is gathered; how many of its collectives were in memory that NCCL knew.
uint64_t gathers_in_registered(Rank &rank)
{
    stw_tensor *tensor = rank.make("t", 100'000, STW_ROLE_PARAM);
    rank.use(tensor, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, values(1));
    rank.use(tensor, STW_READ, STW_WHOLE, rank.streams[1], Does::kCompare, values(1));
    return stw_nccl_double_in_registered();
}

// The double refuses memory of several handles, which is reached at wrong addresses.
TEST_F(Ranks, MemoryIsRegisteredWhereThatIsAskedForInOneHandle)
{
    for (const std::string arena : {"", "arena=permanent", "arena=registered"}) {
        for (const uint64_t block : {uint64_t{STW_BLOCK_64K}, uint64_t{STW_BLOCK_2M}}) {
            SCOPED_TRACE(arena + " in blocks of " + std::to_string(block));
            run(2, [&](Rank &rank) {
                const bool asked = arena == "arena=registered";
                rank.block_bytes = block;
                rank.device_options = arena;
                rank.begin(seed_of(rank, 5));
                ASSERT_OK(rank.try_open((uint64_t{8} << 20) / block, (uint64_t{40} << 20) / block));
                EXPECT_EQ(gathers_in_registered(rank) > 0, asked);
                EXPECT_EQ(stw_nccl_double_calls("ncclCommRegister"), asked ? 1u : 0u);
                if (asked && block == STW_BLOCK_2M) {
                    EXPECT_EQ(stw_double_calls("cuMemCreate"), 1u);
                    EXPECT_EQ(make_fixed(rank, "fixed", STW_PARTITION_LOCAL), STW_ERROR_INVALID);
                    EXPECT_NE(std::strstr(stw_last_error(), "registered with the group"), nullptr)
                        << stw_last_error();
                }
                rank.end();
            });
        }
    }
}

// NCCL refuses it on one of them, is too old there, or one is not asked to: then none has it.
TEST_F(Ranks, MemoryIsRegisteredOnAllRanksOrOnNone)
{
    for (const std::string what : {"fail=ncclCommRegister:0:3", "version=22105", ""}) {
        SCOPED_TRACE(what);
        run(3, [&](Rank &rank) {
            const bool differs = rank.rank == 1;
            if (differs) {
                ASSERT_EQ(setenv("STW_NCCL_DOUBLE", what.c_str(), 1), 0);
            }
            if (!differs || !what.empty()) rank.device_options = "arena=registered";
            rank.open(seed_of(rank, 6), 8, 24);
            if (testing::Test::HasFailure()) return;
            EXPECT_EQ(gathers_in_registered(rank), 0u);
            EXPECT_EQ(stw_nccl_double_calls("ncclCommDeregister"), differs ? 0u : 1u);
            rank.end();
        });
    }
}

TEST_F(Ranks, ATierOfTheCpuIsRefused)
{
    run(2, [](Rank &rank) {
        rank.begin("");
        EXPECT_EQ(rank.try_open(8, 0), STW_ERROR_UNSUPPORTED);
        EXPECT_NE(std::strstr(stw_last_error(), "a device with streams"), nullptr)
            << stw_last_error();
        rank.end();
    });
}

}  // namespace
}  // namespace stepwell
