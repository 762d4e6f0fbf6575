// SPDX-License-Identifier: Apache-2.0
// Claims about the ranges of free block numbers, and about what the core's tables take.
#include "lib/residency/block_ids.h"

#include "tests/unit/residency/core_fixture.h"

#include <random>
#include <vector>

namespace stepwell::residency {
namespace {

TEST(BlockIds, SplitsTheSmallestThatFitsAndJoinsWhatTouches)
{
    BlockIds ids;
    EXPECT_FALSE(ids.has(1));
    ids.give(0, 10);
    ids.give(20, 4);
    EXPECT_EQ(ids.take(3), 20u);
    EXPECT_EQ(ids.take(3), 0u);
    EXPECT_FALSE(ids.has(8));
    ids.give(0, 3);
    EXPECT_EQ(ids.take(10), 0u);
    ids.give(4, 6);
    ids.give(0, 2);
    ids.give(2, 2);  // between two: one range of all
    EXPECT_TRUE(ids.has(10));
    EXPECT_EQ(ids.take(11), kNone);
}

TEST(BlockIds, NeverGivesANumberTwice)
{
    std::mt19937 random(7);
    BlockIds ids;
    ids.give(0, 1000);
    std::vector<bool> taken(1000);
    std::vector<std::pair<BlockId, uint32_t>> held;
    for (int i = 0; i < 20000; ++i) {
        if (random() % 2 && !held.empty()) {
            std::swap(held[random() % held.size()], held.back());
            const auto [first, blocks] = held.back();
            held.pop_back();
            for (BlockId at = first; at < first + blocks; ++at) taken[at] = false;
            ids.give(first, blocks);
            continue;
        }
        const uint32_t blocks = 1 + random() % 40;
        const BlockId first = ids.take(blocks);
        if (first == kNone) continue;
        for (BlockId at = first; at < first + blocks; ++at) {
            ASSERT_FALSE(taken[at]) << at;
            taken[at] = true;
        }
        held.emplace_back(first, blocks);
    }
    for (const auto &[first, blocks] : held) ids.give(first, blocks);
    EXPECT_EQ(ids.take(1000), 0u);
}

class Metadata : public CoreTest {};

TEST_F(Metadata, GrowsByNoMoreThanWasForetold)
{
    open(8, 8, 4096);
    std::mt19937 random(11);
    std::vector<TensorId> live;
    for (int i = 0; i < 3000; ++i) {
        if (live.size() > 60) {
            std::swap(live[random() % live.size()], live.back());
            Commands out;
            ASSERT_TRUE(core_->destroy(live.back(), out).ok());
            live.pop_back();
        }
        const TensorSpec wanted = spec("", 1 + random() % (60 * kBlock));
        const uint64_t before = core_->metadata_bytes();
        const uint64_t growth = core_->metadata_growth(wanted);
        live.push_back(create(wanted));
        EXPECT_LE(core_->metadata_bytes(), before + growth);
    }
    EXPECT_LE(core_->metadata_bytes(), core_->metadata_bytes_max());
    // Sixty tensors of at most sixty blocks: their numbers are used again, whatever their lengths.
    EXPECT_LT(core_->block_ids(), 2 * 60 * 60u);
}

}  // namespace
}  // namespace stepwell::residency
