// SPDX-License-Identifier: Apache-2.0
// Cuts: no piece crosses a block, and the pieces of a range are the range.
#include "lib/update/cuts.h"

#include <gtest/gtest.h>

#include <random>

namespace stepwell::update {
namespace {

constexpr uint64_t kBlock = 16 * 1024;

TEST(Cuts, ARunEndsWithTheFirstBlockThatEnds)
{
    const Layout layouts[] = {{1, 0, 2}, {2, 4096, 4}};
    EXPECT_EQ(common_run(layouts, 2, 0, 100000, kBlock), (kBlock - 4096) / 4);
    EXPECT_EQ(common_run(layouts, 2, 3072, 100000, kBlock), 4096u);
    EXPECT_EQ(common_run(layouts, 1, 0, 100000, kBlock), kBlock / 2);
    EXPECT_EQ(common_run(layouts, 2, 0, 7, kBlock), 7u);
}

TEST(Cuts, PiecesAreCountedAsTheyAreMade)
{
    std::mt19937_64 random(1);
    for (int i = 0; i < 1000; ++i) {
        const uint32_t bytes = random() % 2 ? 2 : 4;
        const Layout layout{1, random() % 100 * 256, bytes};
        const uint64_t element = random() % 10000;
        const uint64_t count = 1 + random() % 30000;
        Piece pieces[16];
        EXPECT_EQ(count_pieces(layout, element, count, kBlock),
                  make_pieces(layout, Access::kRead, element, count, kBlock, pieces, 16));
    }
}

TEST(Cuts, AUnitThatABlockCutsIsTakenAlone)
{
    const Layout layout{1, 256, 4};
    // 4,032 elements to the end of the block: not one whole unit.
    EXPECT_EQ(unit_run(layout, 0, 20000, 4096, kBlock), 4096u);
    EXPECT_EQ(unit_run(layout, 0, 4032, 4096, kBlock), 4032u);
    EXPECT_EQ(unit_run(layout, 0, 4033, 4096, kBlock), 4033u);
    EXPECT_EQ(unit_run({1, 0, 2}, 0, 100000, 4096, kBlock), 8192u);
    EXPECT_EQ(unit_run({1, 256, 2}, 0, 100000, 4096, kBlock), 4096u);
}

TEST(Cuts, PiecesOfARangeAreTheRange)
{
    std::mt19937_64 random(7);
    for (int round = 0; round < 1000; ++round) {
        const Layout layout{3, random() % 64 * 64, random() % 2 == 0 ? 2u : 4u};
        const uint64_t begin = random() % 20000;
        const uint64_t count = random() % 20000 + 1;
        Piece pieces[16];
        const uint32_t n = make_pieces(layout, Access::kRead, begin, count, kBlock, pieces, 16);
        uint64_t at = begin * layout.element_bytes;
        for (uint32_t i = 0; i < n; ++i) {
            ASSERT_EQ(pieces[i].byte_begin, at);
            const uint64_t first = layout.pack_offset + at;
            ASSERT_EQ(first / kBlock, (first + pieces[i].byte_count - 1) / kBlock);
            at += pieces[i].byte_count;
        }
        ASSERT_EQ(at, (begin + count) * layout.element_bytes);
    }
}

}  // namespace
}  // namespace stepwell::update
