// SPDX-License-Identifier: Apache-2.0
// Claims about partitions, against loops over elements.
#include "lib/collective/partition.h"

#include <stepwell/types.h>

#include <gtest/gtest.h>

namespace stepwell::collective {
namespace {

Partition made(const PartitionSpec &spec)
{
    Result<Partition> result = make_partition(spec);
    EXPECT_TRUE(result.ok()) << result.status().sentence();
    return result.ok() ? result.take() : Partition{};
}

// The rank of each element, by going from one to the next.
std::vector<uint32_t> owners(const Partition &partition)
{
    std::vector<uint32_t> list;
    uint32_t rank = 0;
    uint64_t left = partition.shard_elements;
    for (uint64_t i = 0; i < partition.elements; ++i) {
        if (left == 0) {
            ++rank;
            left = partition.shard_elements;
        }
        --left;
        list.push_back(rank);
    }
    return list;
}

void expect_like_a_loop(const Partition &partition)
{
    const std::vector<uint32_t> owner = owners(partition);
    std::vector<uint64_t> counts(partition.ranks);
    for (uint64_t i = 0; i < owner.size(); ++i) {
        ASSERT_LT(owner[i], partition.ranks);
        ASSERT_EQ(partition.rank_of(i), owner[i]);
        ++counts[owner[i]];
    }
    uint64_t before = 0;
    for (uint32_t rank = 0; rank < partition.ranks; ++rank) {
        ASSERT_EQ(partition.shard(rank), (Range{before, counts[rank]}));
        before += counts[rank];
    }
    ASSERT_EQ(before, partition.elements);
}

TEST(Partition, EachElementHasOneRankAndShardsAreEqualMultiples)
{
    for (uint64_t elements = 0; elements <= 200; ++elements) {
        for (uint32_t ranks = 1; ranks <= 17; ++ranks) {
            for (const uint64_t multiple : {0u, 1u, 2u, 3u, 7u, 32u, 100u, 300u}) {
                for (const uint32_t bits : {4u, 8u, 16u, 32u}) {
                    for (const uint64_t align : {0u, 1u, 8u, 64u}) {
                        const Partition at =
                            made({elements, bits, ranks, Mode::kSharded, multiple, align});
                        SCOPED_TRACE(::testing::Message()
                                     << elements << " on " << ranks << ", multiple " << multiple
                                     << ", bits " << bits << ", align " << align);
                        ASSERT_NO_FATAL_FAILURE(expect_like_a_loop(at));
                        ASSERT_EQ(at.shard_elements % std::max<uint64_t>(multiple, 1), 0u);
                        ASSERT_EQ(at.shard_elements * bits % 8, 0u);
                        ASSERT_EQ(at.shard_bytes() % std::max<uint64_t>(align, 1), 0u);
                        ASSERT_EQ(at.whole_bytes(), at.shard_bytes() * ranks);
                    }
                }
            }
        }
    }
}

TEST(Partition, NoShorterShardWouldDo)
{
    for (uint64_t elements = 0; elements <= 200; ++elements) {
        for (uint32_t ranks = 1; ranks <= 17; ++ranks) {
            for (const uint64_t multiple : {0u, 3u, 32u}) {
                const Partition at = made({elements, 8, ranks, Mode::kSharded, multiple, 0});
                const uint64_t unit = std::max<uint64_t>(multiple, 1);
                uint64_t least = 0;
                while (least * ranks < elements) least += unit;
                ASSERT_EQ(at.shard_elements, least) << elements << " on " << ranks;
            }
        }
    }
}

TEST(Partition, PartsOfARangeAreWhatALoopFinds)
{
    for (uint64_t elements = 0; elements <= 24; ++elements) {
        for (uint32_t ranks = 1; ranks <= 6; ++ranks) {
            const Partition at = made({elements, 16, ranks, Mode::kSharded, 3, 0});
            for (uint64_t begin = 0; begin <= elements; ++begin) {
                for (uint64_t end = begin; end <= elements; ++end) {
                    for (uint32_t rank = 0; rank < ranks; ++rank) {
                        Range expected;
                        for (uint64_t i = begin; i < end; ++i) {
                            if (at.rank_of(i) != rank) continue;
                            if (expected.count++ == 0) expected.begin = i;
                        }
                        ASSERT_EQ(at.part(rank, {begin, end - begin}), expected);
                    }
                }
            }
        }
    }
}

TEST(Partition, DtypesOfWholeBytesAreCutAlike)
{
    for (uint64_t elements = 0; elements <= 300'000; elements += elements < 400 ? 1 : 9'973) {
        for (uint32_t ranks = 1; ranks <= 9; ++ranks) {
            const uint64_t narrow =
                made({elements, 8, ranks, Mode::kSharded, 0, 64}).shard_elements;
            for (const uint32_t bits : {16u, 32u, 64u}) {
                ASSERT_EQ(made({elements, bits, ranks, Mode::kSharded, 0, 64}).shard_elements,
                          narrow);
            }
        }
    }
}

TEST(Partition, LargeTensorsAreCutBetweenTheBlocksOfANorm)
{
    for (uint32_t ranks = 2; ranks <= 17; ++ranks) {
        for (uint64_t elements = ranks * uint64_t{32'768}; elements < 1'000'000;
             elements += 9'973) {
            const Partition at = made({elements, 16, ranks, Mode::kSharded, 0, 64});
            ASSERT_EQ(at.shard_elements % kCutElements, 0u) << elements << " on " << ranks;
            ASSERT_LE(at.shard_elements * ranks - elements, elements / kPaddingShare);
        }
    }
}

TEST(Partition, SmallTensorsAreNotPaddedToTheBlocksOfANorm)
{
    EXPECT_EQ(made({10'000, 32, 8, Mode::kSharded, 0, 64}).shard_elements, 1280u);
    EXPECT_EQ(made({8192, 32, 2, Mode::kSharded, 0, 64}).shard_elements, 4096u);
    // One rank has every block of it anyway.
    EXPECT_EQ(made({1'000'001, 32, 1, Mode::kSharded, 0, 0}).shard_elements, 1'000'001u);
}

TEST(Partition, ReplicatedAndLocalTensorsAreWholeOnEachRank)
{
    for (const Mode mode : {Mode::kReplicated, Mode::kLocal}) {
        const Partition at = made({100, 32, 5, mode, 0, 64});
        EXPECT_EQ(at.shard_elements, 128u);
        EXPECT_EQ(at.whole_bytes(), at.shard_bytes());
        for (uint32_t rank = 0; rank < 5; ++rank) {
            EXPECT_EQ(at.shard(rank), (Range{0, 100}));
            EXPECT_EQ(at.part(rank, {40, 10}), (Range{40, 10}));
        }
        EXPECT_EQ(at.rank_of(99), 0u);
    }
}

TEST(Partition, DefaultIsLocalForActivationsAndReplicatedForTinyOnes)
{
    EXPECT_EQ(default_mode(STW_ROLE_ACTIVATION, 1 << 30), Mode::kLocal);
    EXPECT_EQ(default_mode(STW_ROLE_CACHE, 1), Mode::kLocal);
    for (const uint32_t role :
         {STW_ROLE_OTHER, STW_ROLE_PARAM, STW_ROLE_GRAD, STW_ROLE_OPTIMIZER_STATE}) {
        EXPECT_EQ(default_mode(role, kReplicatedElementsMax), Mode::kReplicated);
        EXPECT_EQ(default_mode(role, kReplicatedElementsMax + 1), Mode::kSharded);
    }
}

TEST(Partition, SizesNearTheirLimitsAreExactOrRefused)
{
    const uint64_t large = uint64_t{1} << 46;  // bytes
    for (const uint32_t ranks : {1u, 3u, 7u, 1000u, 4095u}) {
        for (const uint32_t bits : {4u, 8u, 32u}) {
            const uint64_t elements = large / bits * 8 - 1;
            const Partition at = made({elements, bits, ranks, Mode::kSharded, 0, 4096});
            EXPECT_GE(at.shard_elements * ranks, elements);
            EXPECT_EQ(at.shard_bytes() % 4096, 0u);
            const Range last = at.shard(at.rank_of(elements - 1));
            EXPECT_EQ(last.begin + last.count, elements);
        }
    }
    const PartitionSpec refused[] = {
        {UINT64_MAX, 8, 1, Mode::kSharded, 0, 0},
        {kTensorBytesMax + 1, 8, 1, Mode::kSharded, 0, 0},
        {kTensorBytesMax / 4 + 1, 32, 1, Mode::kSharded, 0, 0},
        {1, 8, 3, Mode::kSharded, kTensorBytesMax / 2, 0},
        {1, 8, 1, Mode::kSharded, UINT64_MAX, 64},
        {1, 8, 1, Mode::kSharded, 0, UINT64_MAX},
        {1, 8, UINT32_MAX, Mode::kSharded, uint64_t{1} << 50, 0},
    };
    for (const PartitionSpec &spec : refused) {
        EXPECT_EQ(make_partition(spec).status().code(), STW_ERROR_LIMIT);
    }
    EXPECT_TRUE(make_partition({kTensorBytesMax, 8, 1, Mode::kSharded, 0, 0}).ok());
    EXPECT_EQ(make_partition({1, 8, 0, Mode::kSharded, 0, 0}).status().code(), STW_ERROR_INVALID);
    EXPECT_EQ(make_partition({1, 0, 1, Mode::kSharded, 0, 0}).status().code(), STW_ERROR_INVALID);
}

// ------------------------------------------------------------------------------- N to M ranks --

using Shards = std::vector<std::vector<uint64_t>>;

Shards filled(const Partition &partition)
{
    Shards shards(partition.ranks, std::vector<uint64_t>(partition.shard_elements, UINT64_MAX));
    for (uint32_t rank = 0; rank < partition.ranks; ++rank) {
        const Range range = partition.shard(rank);
        for (uint64_t i = 0; i < range.count; ++i) shards[rank][i] = range.begin + i;
    }
    return shards;
}

void expect_moved(const Partition &from, const Partition &to)
{
    const Shards source = filled(from);
    Shards target(to.ranks, std::vector<uint64_t>(to.shard_elements, UINT64_MAX));
    Result<std::vector<ShardCopy>> list = copies(from, to);
    ASSERT_TRUE(list.ok()) << list.status().sentence();
    for (const ShardCopy &copy : list.value()) {
        ASSERT_GT(copy.count, 0u);
        for (uint64_t i = 0; i < copy.count; ++i) {
            uint64_t &element = target.at(copy.to_rank).at(copy.to_offset + i);
            ASSERT_EQ(element, UINT64_MAX) << "written twice";
            element = source.at(copy.from_rank).at(copy.from_offset + i);
        }
    }
    ASSERT_EQ(target, filled(to));
    if (from.mode == Mode::kSharded && to.mode == Mode::kSharded) {
        ASSERT_LT(list.value().size(), from.ranks + to.ranks + uint64_t{1});
    }
}

TEST(Resharding, EachElementMovesExactlyOnceForAllPairsOfWorlds)
{
    for (const uint64_t elements : {0u, 1u, 5u, 8u, 9u, 63u, 64u, 65u, 100u, 127u, 200u}) {
        for (uint32_t n = 1; n <= 9; ++n) {
            for (uint32_t m = 1; m <= 9; ++m) {
                for (const uint64_t multiple : {0u, 1u, 4u, 5u}) {
                    for (const Mode mode : {Mode::kSharded, Mode::kReplicated}) {
                        for (const Mode to_mode : {Mode::kSharded, Mode::kReplicated}) {
                            SCOPED_TRACE(::testing::Message() << elements << " from " << n << " to "
                                                              << m << ", multiple " << multiple);
                            ASSERT_NO_FATAL_FAILURE(
                                expect_moved(made({elements, 8, n, mode, multiple, 0}),
                                             made({elements, 8, m, to_mode, multiple, 4})));
                        }
                    }
                }
            }
        }
    }
}

TEST(Resharding, OneRanksPartIsItsPartOfTheWholeList)
{
    const Partition from = made({1000, 16, 7, Mode::kSharded, 0, 0});
    const Partition to = made({1000, 16, 4, Mode::kSharded, 0, 0});
    std::vector<ShardCopy> joined;
    for (uint32_t rank = 0; rank < 4; ++rank) {
        Result<std::vector<ShardCopy>> part = copies_to(from, to, rank);
        ASSERT_TRUE(part.ok());
        for (const ShardCopy &copy : part.value()) {
            EXPECT_EQ(copy.to_rank, rank);
            joined.push_back(copy);
        }
    }
    EXPECT_EQ(joined, copies(from, to).value());
}

TEST(Resharding, DifferentTensorsAndLocalOnesOfOtherWorldsAreRefused)
{
    const Partition at = made({100, 16, 4, Mode::kSharded, 0, 0});
    EXPECT_EQ(copies(at, made({101, 16, 4, Mode::kSharded, 0, 0})).status().code(),
              STW_ERROR_MISMATCH);
    EXPECT_EQ(copies(at, made({100, 32, 4, Mode::kSharded, 0, 0})).status().code(),
              STW_ERROR_MISMATCH);
    const Partition local = made({100, 16, 4, Mode::kLocal, 0, 0});
    EXPECT_EQ(copies(local, made({100, 16, 3, Mode::kLocal, 0, 0})).status().code(),
              STW_ERROR_MISMATCH);
    EXPECT_EQ(copies(local, at).status().code(), STW_ERROR_MISMATCH);
    EXPECT_EQ(copies(local, local).value().size(), 4u);
}

}  // namespace
}  // namespace stepwell::collective
