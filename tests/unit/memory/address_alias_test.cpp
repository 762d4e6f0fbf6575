// SPDX-License-Identifier: Apache-2.0
// What a tensor's own address costs, by the calls of a driver that does nothing.
#include "lib/memory/address_alias.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace stepwell::memory {
namespace {

constexpr uint64_t kAliasBytes = 2 << 20;

stw_memory_ops counting_ops()
{
    stw_memory_ops made{};
    made.reserve_alias = [](stw_memory *, uint64_t, void **address_out) -> stw_status {
        *address_out = reinterpret_cast<void *>(uint64_t{1} << 40);
        return STW_OK;
    };
    made.map_alias = [](stw_memory *memory, uint32_t, uint32_t, void *, const uint64_t *,
                        uint32_t) -> stw_status {
        ++*reinterpret_cast<uint32_t *>(memory);
        return STW_OK;
    };
    made.release_alias = [](stw_memory *, void *, uint64_t, const uint64_t *,
                            uint32_t) -> stw_status { return STW_OK; };
    return made;
}

class AnAddressAlias : public testing::Test {
protected:
    uint32_t calls = 0;
    const stw_memory_ops ops = counting_ops();
    stw_memory *const memory = reinterpret_cast<stw_memory *>(&calls);
    DeviceStreams streams{&ops, memory, 16, "device 0"};
    AliasTotals totals;
};

// Two threads that find a tensor elsewhere both ask for it.
TEST_F(AnAddressAlias, IsMappedAndCountedOnceWhereTwoAskForIt)
{
    AddressAlias alias(&ops, memory, &streams, nullptr, kAliasBytes, false, &totals);
    ASSERT_EQ(alias.reserve(3), STW_OK);
    for (int thread = 0; thread < 2; ++thread) {
        ASSERT_TRUE(alias.map(0, {4, 3}).ok());
        EXPECT_EQ(calls, 1u);
        EXPECT_EQ(totals.bytes, 3 * kAliasBytes);
    }
    ASSERT_TRUE(alias.map(1, {9, 1}).ok());
    EXPECT_EQ(totals.bytes, 4 * kAliasBytes);
    EXPECT_TRUE(alias.is_mapped_to(0, {4, 1}));
}

TEST_F(AnAddressAlias, IsSeenInOneRunWhereHandlesHaveSeveralBlocks)
{
    AddressAlias alias(&ops, memory, &streams, nullptr, kAliasBytes, true, &totals);
    ASSERT_EQ(alias.reserve(3), STW_OK);
    ASSERT_TRUE(alias.map(0, {4, 3}).ok());
    ASSERT_TRUE(alias.map(1, {9, 1}).ok());
    EXPECT_TRUE(alias.is_mapped_to(1, {9, 1}));
    EXPECT_FALSE(alias.is_mapped_to(0, {4, 1}));
    EXPECT_FALSE(alias.is_mapped_to(2, {6, 1}));
}

}  // namespace
}  // namespace stepwell::memory
