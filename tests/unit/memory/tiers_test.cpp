// SPDX-License-Identifier: Apache-2.0
// Claims about the tiers of a runtime: which place a request names, and which slots bytes lie in.
#include "lib/memory/tiers.h"

#include <stepwell/types.h>

#include <utility>

#include <gtest/gtest.h>

namespace stepwell::memory {
namespace {

using residency::kNoPlace;

constexpr uint64_t kTierBlock = 4096;

// A tier has memory where this is not null; nothing here calls a driver.
stw_memory *some_memory()
{
    static char byte;
    return reinterpret_cast<stw_memory *>(&byte);
}

TEST(Tiers, APlaceIsNamedByTierAndDevice)
{
    TierSet tiers(2);
    tiers.opening(1).memory = some_memory();
    tiers.opening(tiers.host()).memory = some_memory();
    tiers.opened();
    EXPECT_EQ(tiers.host(), 2);
    EXPECT_EQ(tiers.nvme(), 3);
    EXPECT_EQ(tiers[0].kind, residency::Tier::kDevice);
    EXPECT_EQ(tiers[1].device, 1u);
    EXPECT_EQ(tiers[tiers.host()].kind, residency::Tier::kHost);
    EXPECT_EQ(tiers[tiers.nvme()].kind, residency::Tier::kNvme);
    EXPECT_EQ(tiers.place_of(STW_TIER_DEVICE, 1), 1);
    EXPECT_EQ(tiers.place_of(STW_TIER_HOST, 0), tiers.host());
    // The first device has no budget, so the second one is the nearest tier.
    EXPECT_EQ(tiers.place_of(STW_TIER_DEFAULT, 0), 1);
    EXPECT_EQ(tiers.place_of(STW_TIER_DEFAULT, 1), 1);
}

TEST(Tiers, WhatIsNotThereHasNoPlace)
{
    TierSet tiers(1);
    tiers.opening(tiers.host()).memory = some_memory();
    tiers.opened();
    EXPECT_EQ(tiers.nearest(), tiers.host());
    EXPECT_EQ(tiers.place_of(STW_TIER_DEVICE, 0), kNoPlace);
    EXPECT_EQ(tiers.place_of(STW_TIER_HOST, 1), kNoPlace);
    // Numbers that are a place's in eight bits.
    EXPECT_EQ(tiers.place_of(STW_TIER_DEVICE, 256), kNoPlace);
    EXPECT_FALSE(tiers.is_device(256));
    EXPECT_EQ(tiers.place_of(STW_TIER_NVME, 0), kNoPlace);
    EXPECT_FALSE(tiers.has(tiers.nvme()));
    tiers.add_nvme();
    EXPECT_EQ(tiers.place_of(STW_TIER_NVME, 0), tiers.nvme());
    EXPECT_TRUE(tiers.has(tiers.nvme()));
}

TEST(Tiers, SlotsAreThoseThatHaveAByte)
{
    char *const base = reinterpret_cast<char *>(16 * kTierBlock);
    Tier tier;
    tier.base = base;
    tier.block_bytes = kTierBlock;
    const auto slots_of = [&](uint64_t begin, uint64_t bytes) {
        const SlotRange slots = tier.slots_of(base + begin, bytes);
        return std::pair(slots.first, slots.count);
    };
    EXPECT_EQ(slots_of(0, kTierBlock), std::pair(0u, 1u));
    EXPECT_EQ(slots_of(0, kTierBlock + 1), std::pair(0u, 2u));
    EXPECT_EQ(slots_of(kTierBlock - 1, 2), std::pair(0u, 2u));
    EXPECT_EQ(slots_of(3 * kTierBlock, 2 * kTierBlock), std::pair(3u, 2u));
    EXPECT_EQ(slots_of(5 * kTierBlock, 0), std::pair(5u, 1u));
}

TEST(Tiers, AnUpdateRunsWhereItsAlgorithmIsKnown)
{
    Tier tier;
    tier.algorithms = 1u << 3;
    EXPECT_FALSE(tier.updates_with(3));
    tier.computes = true;
    EXPECT_TRUE(tier.updates_with(3));
    EXPECT_FALSE(tier.updates_with(2));
    EXPECT_FALSE(tier.updates_with(35));
}

}  // namespace
}  // namespace stepwell::memory
