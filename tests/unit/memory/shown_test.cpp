// SPDX-License-Identifier: Apache-2.0
// What a tensor's own address costs, by the calls of a driver that does nothing.
#include "lib/memory/shown.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace stepwell::memory {
namespace {

constexpr uint64_t kShownBytes = 2 << 20;

stw_memory_ops counting_ops()
{
    stw_memory_ops made{};
    made.reserve_shown = [](stw_memory *, uint64_t, void **address_out) -> stw_status {
        *address_out = reinterpret_cast<void *>(uint64_t{1} << 40);
        return STW_OK;
    };
    made.show = [](stw_memory *memory, uint32_t, uint32_t, void *, const uint64_t *,
                   uint32_t) -> stw_status {
        ++*reinterpret_cast<uint32_t *>(memory);
        return STW_OK;
    };
    made.release_shown = [](stw_memory *, void *, uint64_t, const uint64_t *,
                            uint32_t) -> stw_status { return STW_OK; };
    return made;
}

class AShownTensor : public testing::Test {
protected:
    uint32_t calls = 0;
    const stw_memory_ops ops = counting_ops();
    stw_memory *const memory = reinterpret_cast<stw_memory *>(&calls);
    DeviceStreams streams{&ops, memory, 16, "device 0"};
    ShownTotals totals;
};

// Two threads that find a tensor elsewhere both ask for it.
TEST_F(AShownTensor, IsMappedAndCountedOnceWhereTwoAskForIt)
{
    ShownTensor shown(&ops, memory, &streams, nullptr, kShownBytes, false, &totals);
    ASSERT_EQ(shown.reserve(3), STW_OK);
    for (int thread = 0; thread < 2; ++thread) {
        ASSERT_TRUE(shown.show(0, {4, 3}).ok());
        EXPECT_EQ(calls, 1u);
        EXPECT_EQ(totals.bytes, 3 * kShownBytes);
    }
    ASSERT_TRUE(shown.show(1, {9, 1}).ok());
    EXPECT_EQ(totals.bytes, 4 * kShownBytes);
    EXPECT_TRUE(shown.shows(0, {4, 1}));
}

TEST_F(AShownTensor, IsSeenInOneRunWhereHandlesHaveSeveralBlocks)
{
    ShownTensor shown(&ops, memory, &streams, nullptr, kShownBytes, true, &totals);
    ASSERT_EQ(shown.reserve(3), STW_OK);
    ASSERT_TRUE(shown.show(0, {4, 3}).ok());
    ASSERT_TRUE(shown.show(1, {9, 1}).ok());
    EXPECT_TRUE(shown.shows(1, {9, 1}));
    EXPECT_FALSE(shown.shows(0, {4, 1}));
    EXPECT_FALSE(shown.shows(2, {6, 1}));
}

}  // namespace
}  // namespace stepwell::memory
