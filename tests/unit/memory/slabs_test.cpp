// SPDX-License-Identifier: Apache-2.0
// Slabs against a model: pieces never overlap, what is given back is found again, and what is no
// piece is refused.
#include "lib/memory/slabs.h"

#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stepwell::memory {
namespace {

constexpr uint64_t kPage = Slabs::kPageBytes;

TEST(Slabs, PiecesAreRoundedUpToSlotsAndPagesAndNoFurther)
{
    Slabs slabs(16 * kPage);
    ASSERT_NE(slabs.take(1, 1), Slabs::kNowhere);
    EXPECT_EQ(slabs.used_bytes(), 64u);
    ASSERT_NE(slabs.take(1025, 1), Slabs::kNowhere);
    EXPECT_EQ(slabs.used_bytes(), 64u + 2048);
    ASSERT_NE(slabs.take(2049, 1), Slabs::kNowhere);
    EXPECT_EQ(slabs.used_bytes(), 64u + 2048 + kPage);
    ASSERT_NE(slabs.take(5 * kPage - 3, 1), Slabs::kNowhere);  // and not eight
    EXPECT_EQ(slabs.used_bytes(), 64u + 2048 + 6 * kPage);
    EXPECT_EQ(slabs.pieces(), 4u);
    EXPECT_EQ(slabs.largest_bytes(), (16 - 2 - 6) * kPage);
}

TEST(Slabs, TheWholeRangeIsOnePieceAgainWhenAllIsGivenBack)
{
    Slabs slabs(64 * kPage);
    std::vector<uint64_t> pieces;
    for (uint64_t bytes = 1;; bytes = bytes * 3 % 9000 + 1) {
        const uint64_t offset = slabs.take(bytes, 1);
        if (offset == Slabs::kNowhere) break;
        pieces.push_back(offset);
    }
    EXPECT_EQ(slabs.take(64 * kPage, 1), Slabs::kNowhere);
    for (size_t i = 0; i < pieces.size(); i += 2) EXPECT_TRUE(slabs.give(pieces[i]));
    for (size_t i = 1; i < pieces.size(); i += 2) EXPECT_TRUE(slabs.give(pieces[i]));
    EXPECT_EQ(slabs.used_bytes(), 0u);
    EXPECT_EQ(slabs.pieces(), 0u);
    EXPECT_EQ(slabs.take(64 * kPage, 1), 0u);
}

TEST(Slabs, WhatIsNoPieceIsRefused)
{
    Slabs slabs(16 * kPage);
    const uint64_t small = slabs.take(100, 1);
    const uint64_t large = slabs.take(3 * kPage, 1);
    EXPECT_FALSE(slabs.give(small + 64));   // inside
    EXPECT_FALSE(slabs.give(small + 128));  // a free slot beside it
    EXPECT_FALSE(slabs.give(large + kPage));
    EXPECT_FALSE(slabs.give(large + 64));
    EXPECT_FALSE(slabs.give(15 * kPage));
    EXPECT_FALSE(slabs.give(16 * kPage));
    EXPECT_FALSE(slabs.give(UINT64_MAX));
    EXPECT_TRUE(slabs.give(small));
    EXPECT_FALSE(slabs.give(small));
    EXPECT_TRUE(slabs.give(large));
    EXPECT_FALSE(slabs.give(large));
}

TEST(Slabs, WhatCannotFitIsRefusedWhateverItsSize)
{
    Slabs slabs(4 * kPage);
    EXPECT_EQ(slabs.take(4 * kPage + 1, 1), Slabs::kNowhere);
    EXPECT_EQ(slabs.take(UINT64_MAX, 1), Slabs::kNowhere);
    EXPECT_EQ(slabs.take(UINT64_MAX - 4095, 4096), Slabs::kNowhere);
    EXPECT_EQ(Slabs(0).take(1, 1), Slabs::kNowhere);
    EXPECT_EQ(slabs.take(4 * kPage, 1), 0u);
    EXPECT_EQ(slabs.take(1, 1), Slabs::kNowhere);
}

// As simple as it can be: the pieces there are.
class Model {
public:
    explicit Model(uint64_t pages) : bytes_(pages * kPage), slabs_(bytes_) {}

    void take(uint64_t bytes, uint64_t align)
    {
        const uint64_t offset = slabs_.take(bytes, align);
        if (offset == Slabs::kNowhere) {
            // A run of that many pages, aligned anywhere, would have been found.
            const uint64_t needed = std::max(bytes, align) + align + kPage;
            EXPECT_LT(slabs_.largest_bytes(), needed) << bytes << " aligned to " << align;
            return;
        }
        EXPECT_EQ(offset % align, 0u);
        EXPECT_EQ(offset % Slabs::kSlotBytesMin, 0u);
        EXPECT_LE(offset + bytes, bytes_);
        const auto after = pieces_.lower_bound(offset);
        if (after != pieces_.end()) {
            EXPECT_LE(offset + bytes, after->first);
        }
        if (after != pieces_.begin()) {
            const auto before = std::prev(after);
            EXPECT_LE(before->first + before->second, offset);
        }
        pieces_[offset] = bytes;
    }
    void give(uint64_t which)
    {
        if (pieces_.empty()) return;
        const auto at = std::next(pieces_.begin(), static_cast<long>(which % pieces_.size()));
        EXPECT_TRUE(slabs_.give(at->first));
        EXPECT_FALSE(slabs_.give(at->first));
        pieces_.erase(at);
    }
    void give_nonsense(uint64_t offset)
    {
        if (pieces_.count(offset) > 0) return;
        EXPECT_FALSE(slabs_.give(offset)) << offset;
    }
    void check() const
    {
        uint64_t asked = 0;
        for (const auto &[offset, bytes] : pieces_) asked += bytes;
        EXPECT_EQ(slabs_.pieces(), pieces_.size());
        EXPECT_GE(slabs_.used_bytes(), asked);
        EXPECT_LE(slabs_.used_bytes(), bytes_);
    }
    void finish()
    {
        while (!pieces_.empty()) give(0);
        EXPECT_EQ(slabs_.used_bytes(), 0u);
        EXPECT_EQ(slabs_.largest_bytes(), bytes_);
    }

private:
    uint64_t bytes_;
    Slabs slabs_;
    std::map<uint64_t, uint64_t> pieces_;
};

TEST(Slabs, RandomPiecesNeverOverlapAndNoneIsLost)
{
    const char *text = std::getenv("STW_SEED");
    const uint64_t first = text ? std::strtoull(text, nullptr, 10) : 1;
    const uint64_t last = text ? first : 40;
    for (uint64_t seed = first; seed <= last && !testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE("STW_SEED=" + std::to_string(seed));
        std::mt19937_64 random(seed);
        const uint64_t pages = 1 + random() % 300;
        Model model(pages);
        for (int i = 0; i < 2000; ++i) {
            const uint64_t kind = random() % 100;
            if (kind < 52) {
                const uint64_t most = kind < 30 ? 3000 : kind < 48 ? 12 * kPage : pages * kPage;
                model.take(1 + random() % most, uint64_t{1} << random() % (kind % 4 ? 8 : 17));
            } else if (kind < 95) {
                model.give(random());
            } else {
                model.give_nonsense(random() % (pages * kPage + kPage) / 32 * 32);
            }
            model.check();
        }
        model.finish();
    }
}

}  // namespace
}  // namespace stepwell::memory
