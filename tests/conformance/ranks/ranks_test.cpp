// SPDX-License-Identifier: Apache-2.0
// What the table of a collective driver promises, whatever the engine.
#include "tests/conformance/ranks/ranks.h"

#include "tests/conformance/ranks/plain.h"

#include <stepwell/types.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <sched.h>

namespace conformance::ranks {

void Ranks::SetUp()
{
    ASSERT_EQ(open_group(&group_, &error_), STW_OK) << error_.sentence;
    stw_collective_info info = {};
    info.struct_size = sizeof info;
    driver->info(group_, &info);
    rank_ = info.rank;
    size_ = info.size;
}

void Ranks::TearDown()
{
    if (group_ == nullptr) return;
    EXPECT_EQ(driver->close(group_, kWaitNs), STW_OK);
}

stw_status Ranks::wait(stw_collective *group, uint64_t work, stw_driver_error *error_out)
{
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kWaitNs);
    for (;;) {
        const stw_status status = driver->poll(group, work, error_out);
        if (status != STW_PENDING) return status;
        if (std::chrono::steady_clock::now() > end) return STW_ERROR_TIMEOUT;
        sched_yield();
    }
}

namespace {

constexpr uint32_t kDtypes[] = {STW_F32, STW_F16, STW_BF16, STW_F64};
// None, one, fewer than ranks, odd, and more than a chunk of any driver's.
constexpr uint64_t kSizes[] = {0, 1, 3, 1023, 65'537, 700'001};

std::vector<char> bytes_of(uint32_t rank, uint64_t bytes, uint64_t seed)
{
    std::vector<char> data(bytes);
    for (uint64_t i = 0; i < bytes; ++i)
        data[i] = static_cast<char>((i * 7 + rank * 131 + seed * 31) >> (i % 5));
    return data;
}

std::vector<char> gathered(uint32_t ranks, uint64_t bytes, uint64_t seed)
{
    std::vector<char> whole;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        const std::vector<char> part = bytes_of(rank, bytes, seed);
        whole.insert(whole.end(), part.begin(), part.end());
    }
    return whole;
}

TEST_F(Ranks, InfoSaysWhoIsThere)
{
    EXPECT_LT(rank_, size_);
    stw_collective_info info = {};
    info.struct_size = offsetof(stw_collective_info, size);
    info.size = 4711;
    driver->info(group_, &info);
    EXPECT_EQ(info.rank, rank_);
    EXPECT_EQ(info.size, 4711u) << "more was written than the caller has room for";
}

TEST_F(Ranks, ExchangeGivesEveryRankAllRecords)
{
    for (const uint32_t bytes : {0u, 1u, 7u, 64u, uint32_t{STW_EXCHANGE_BYTES_MAX}}) {
        for (uint64_t round = 0; round < 20; ++round) {
            const std::vector<char> record = bytes_of(rank_, bytes, round);
            std::vector<char> records(size_t{size_} * bytes);
            uint64_t work = 0;
            ASSERT_EQ(driver->exchange(group_, record.data(), records.data(), bytes, &work),
                      STW_OK);
            ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
            ASSERT_EQ(records, gathered(size_, bytes, round)) << bytes << " bytes";
        }
    }
}

TEST_F(Ranks, ExchangeOfTooManyBytesIsRefused)
{
    uint64_t work = 0;
    std::vector<char> data(size_t{size_} * 5000);
    EXPECT_EQ(driver->exchange(group_, data.data(), data.data(), STW_EXCHANGE_BYTES_MAX + 1, &work),
              STW_ERROR_INVALID);
}

TEST_F(Ranks, PollTellsTheEndOnce)
{
    const char record = 'x';
    std::vector<char> records(size_);
    uint64_t work = 0;
    ASSERT_EQ(driver->exchange(group_, &record, records.data(), 1, &work), STW_OK);
    ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
    EXPECT_EQ(driver->poll(group_, work, &error_), STW_ERROR_INVALID);
    EXPECT_STRNE(error_.sentence, "");
}

TEST_F(Ranks, AllGatherGivesTheShardsInRankOrder)
{
    if (!has(STW_COLLECTIVE_HOST)) GTEST_SKIP() << driver->name << " takes no host memory";
    for (const uint64_t bytes : kSizes) {
        const std::vector<char> expected = gathered(size_, bytes, 3);
        for (const bool in_place : {false, true}) {
            const std::vector<char> shard = bytes_of(rank_, bytes, 3);
            std::vector<char> whole(size_ * bytes);
            char *own = whole.data() + rank_ * bytes;
            if (in_place) std::copy(shard.begin(), shard.end(), own);
            uint64_t work = 0;
            ASSERT_EQ(driver->all_gather(group_, in_place ? own : shard.data(), whole.data(), bytes,
                                         nullptr, &work),
                      STW_OK);
            ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
            ASSERT_EQ(whole, expected) << bytes << " bytes, in place: " << in_place;
        }
    }
}

TEST_F(Ranks, ReduceScatterAddsInRankOrder)
{
    if (!has(STW_COLLECTIVE_HOST)) GTEST_SKIP() << driver->name << " takes no host memory";
    for (const uint32_t dtype : kDtypes) {
        for (const uint64_t each : kSizes) {
            const std::vector<char> whole = values(dtype, rank_, each * size_, each);
            const std::vector<char> expected = sums(dtype, size_, each * size_, each);
            std::vector<char> shard(each * element_bytes(dtype));
            uint64_t work = 0;
            ASSERT_EQ(driver->reduce_scatter(group_, whole.data(), shard.data(), each, dtype,
                                             nullptr, &work),
                      STW_OK);
            ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
            ASSERT_EQ(difference(dtype, shard.data(),
                                 expected.data() + rank_ * each * element_bytes(dtype), each),
                      "")
                << "dtype " << dtype << ", " << each << " elements";
        }
    }
}

TEST_F(Ranks, AllReduceGivesTheSumToAll)
{
    if (!has(STW_COLLECTIVE_HOST)) GTEST_SKIP() << driver->name << " takes no host memory";
    for (const uint32_t dtype : kDtypes) {
        for (const uint64_t elements : kSizes) {
            std::vector<char> data = values(dtype, rank_, elements, elements + 1);
            const std::vector<char> expected = sums(dtype, size_, elements, elements + 1);
            uint64_t work = 0;
            ASSERT_EQ(driver->all_reduce(group_, data.data(), elements, dtype, nullptr, &work),
                      STW_OK);
            ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
            ASSERT_EQ(difference(dtype, data.data(), expected.data(), elements), "")
                << "dtype " << dtype << ", " << elements << " elements";
        }
    }
}

TEST_F(Ranks, SumsOfOtherDtypesAreRefused)
{
    uint64_t work = 0;
    int32_t data[64] = {};
    EXPECT_EQ(driver->all_reduce(group_, data, 1, STW_I32, nullptr, &work), STW_ERROR_INVALID);
    EXPECT_EQ(driver->reduce_scatter(group_, data, data + 32, 1, 0, nullptr, &work),
              STW_ERROR_INVALID);
}

// No rank may wait for a work because another one looks at a different one.
TEST_F(Ranks, SeveralWorksEndInWhateverOrderTheyAreAsked)
{
    if (!has(STW_COLLECTIVE_HOST)) GTEST_SKIP() << driver->name << " takes no host memory";
    constexpr uint64_t kElements = 400'003, kEach = 100'003;
    constexpr size_t kRounds = 4;
    std::vector<std::vector<char>> memory;
    memory.reserve(kRounds * 7);  // none moves
    std::vector<uint64_t> works;
    uint64_t work = 0;
    const auto started = [&](stw_status status) {
        EXPECT_EQ(status, STW_OK);
        works.push_back(work);
    };
    for (size_t round = 0; round < kRounds; ++round) {
        auto &record = memory.emplace_back(bytes_of(rank_, 100, round));
        auto &records = memory.emplace_back(size_ * size_t{100});
        started(driver->exchange(group_, record.data(), records.data(), 100, &work));
        auto &data = memory.emplace_back(values(STW_F32, rank_, kElements, round));
        started(driver->all_reduce(group_, data.data(), kElements, STW_F32, nullptr, &work));
        auto &shard = memory.emplace_back(bytes_of(rank_, kElements, round));
        auto &whole = memory.emplace_back(size_ * kElements);
        started(driver->all_gather(group_, shard.data(), whole.data(), kElements, nullptr, &work));
        auto &from = memory.emplace_back(values(STW_BF16, rank_, kEach * size_, round));
        auto &to = memory.emplace_back(kEach * 2);
        started(driver->reduce_scatter(group_, from.data(), to.data(), kEach, STW_BF16, nullptr,
                                       &work));
    }
    if (rank_ % 2 == 1) std::reverse(works.begin(), works.end());
    for (const uint64_t one : works) ASSERT_EQ(wait(one), STW_OK) << error_.sentence;
    for (size_t round = 0; round < kRounds; ++round) {
        const auto *at = &memory[round * 7];
        EXPECT_EQ(at[1], gathered(size_, 100, round));
        EXPECT_EQ(difference(STW_F32, at[2].data(), sums(STW_F32, size_, kElements, round).data(),
                             kElements),
                  "");
        EXPECT_EQ(at[4], gathered(size_, kElements, round));
        EXPECT_EQ(difference(STW_BF16, at[6].data(),
                             sums(STW_BF16, size_, kEach * size_, round).data() + rank_ * kEach * 2,
                             kEach),
                  "");
    }
}

TEST_F(Ranks, RanksThatDidNotComeAreNamed)
{
    if (!has(STW_COLLECTIVE_NAMES_MISSING)) GTEST_SKIP() << driver->name << " names none";
    const uint32_t late = size_ - 1;
    const char record = 'x';
    std::vector<char> records(size_);
    uint64_t work = 0;
    if (rank_ == late) meet();
    ASSERT_EQ(driver->exchange(group_, &record, records.data(), 1, &work), STW_OK);
    if (rank_ != late) {
        std::vector<uint32_t> ranks(size_);
        const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kWaitNs);
        while (driver->missing(group_, work, ranks.data(), size_) > 1 &&
               std::chrono::steady_clock::now() < end)
            ASSERT_EQ(driver->poll(group_, work, &error_), STW_PENDING);
        EXPECT_EQ(driver->missing(group_, work, ranks.data(), size_), 1u);
        EXPECT_EQ(ranks[0], late);
        ranks[0] = 4711;
        EXPECT_EQ(driver->missing(group_, work, ranks.data(), 0), 1u);
        EXPECT_EQ(ranks[0], 4711u) << "more was written than the caller has room for";
        EXPECT_EQ(driver->poll(group_, work, &error_), STW_PENDING);
        meet();
    }
    ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
    EXPECT_EQ(records, std::vector<char>(size_, 'x'));
}

TEST_F(Ranks, CloseOfAGroupAtWorkTimesOutAndLeavesItOpen)
{
    if (size_ == 1) GTEST_SKIP() << "one rank waits for nobody";
    const char record = 'x';
    std::vector<char> records(size_);
    uint64_t work = 0;
    if (rank_ != 0) meet();
    ASSERT_EQ(driver->exchange(group_, &record, records.data(), 1, &work), STW_OK);
    if (rank_ == 0) {
        EXPECT_EQ(driver->close(group_, 1'000'000), STW_ERROR_TIMEOUT);
        meet();
    }
    ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
}

TEST_F(Ranks, SplitMakesGroupsOfAColourInOrderOfKeys)
{
    if (!has(STW_COLLECTIVE_CAN_SPLIT)) GTEST_SKIP() << driver->name << " cannot split";
    stw_collective *part = nullptr;
    const uint32_t key = rank_ == size_ - 1 ? 0 : UINT32_MAX - rank_;  // the last one first
    ASSERT_EQ(driver->split(group_, static_cast<int32_t>(rank_ % 2), key, kWaitNs, &part, &error_),
              STW_OK)
        << error_.sentence;
    std::vector<uint32_t> expected;
    for (uint32_t rank = size_; rank-- > 0;)
        if (rank % 2 == rank_ % 2) expected.push_back(rank);
    stw_collective_info info = {};
    info.struct_size = sizeof info;
    driver->info(part, &info);
    ASSERT_EQ(info.size, expected.size());
    EXPECT_EQ(expected[info.rank], rank_);
    std::vector<uint32_t> ranks(info.size);
    uint64_t work = 0;
    ASSERT_EQ(driver->exchange(part, &rank_, ranks.data(), sizeof rank_, &work), STW_OK);
    ASSERT_EQ(wait(part, work, &error_), STW_OK) << error_.sentence;
    EXPECT_EQ(ranks, expected);
    EXPECT_EQ(driver->close(part, kWaitNs), STW_OK);
}

TEST_F(Ranks, AColourOfMinusOneIsInNoGroup)
{
    if (!has(STW_COLLECTIVE_CAN_SPLIT)) GTEST_SKIP() << driver->name << " cannot split";
    auto *untouched = reinterpret_cast<stw_collective *>(this);
    stw_collective *part = untouched;
    ASSERT_EQ(driver->split(group_, rank_ == 0 ? -1 : 5, 0, kWaitNs, &part, &error_), STW_OK)
        << error_.sentence;
    if (rank_ == 0) {
        EXPECT_EQ(part, nullptr);
    } else {
        ASSERT_NE(part, untouched);
        stw_collective_info info = {};
        info.struct_size = sizeof info;
        driver->info(part, &info);
        EXPECT_EQ(info.size, size_ - 1);
        EXPECT_EQ(info.rank, rank_ - 1);
        EXPECT_EQ(driver->close(part, kWaitNs), STW_OK);
    }
    EXPECT_EQ(driver->split(group_, -2, 0, kWaitNs, &part, &error_), STW_ERROR_INVALID);
}

TEST_F(Ranks, SplitThatARankDoesNotJoinTimesOut)
{
    if (!has(STW_COLLECTIVE_CAN_SPLIT)) GTEST_SKIP() << driver->name << " cannot split";
    if (size_ == 1) GTEST_SKIP() << "one rank waits for nobody";
    constexpr uint64_t kShortNs = 20'000'000;
    stw_collective *part = nullptr;
    // The others find one that is no longer there, and do not wait for it either.
    for (const bool mine : {rank_ == 0, rank_ != 0}) {
        if (mine) {
            EXPECT_EQ(driver->split(group_, 0, 0, kShortNs, &part, &error_), STW_ERROR_TIMEOUT);
            EXPECT_NE(std::string(error_.sentence).find("Not all"), std::string::npos);
        }
        meet();
    }
    EXPECT_EQ(part, nullptr);
    // What is left of it may never end, and leaves the group open then.
    if (rank_ != 0) {
        const stw_status status = driver->close(group_, 0);
        EXPECT_TRUE(status == STW_OK || status == STW_ERROR_TIMEOUT) << status;
        group_ = nullptr;
    }
}

}  // namespace
}  // namespace conformance::ranks
