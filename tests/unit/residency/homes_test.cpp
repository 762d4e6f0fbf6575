// SPDX-License-Identifier: Apache-2.0
// Tensors at home nearer than the farthest tier, because that one is full.
#include "tests/unit/residency/core_fixture.h"

namespace stepwell::residency {
namespace {

class HomesTest : public CoreTest {
protected:
    // Four at home at nvme, then seven at the host tier and seven at the device.
    std::vector<TensorId> create_all()
    {
        const char *const names[] = {"0", "1",  "2",  "3",  "4",  "5",  "6",  "7",  "8",
                                     "9", "10", "11", "12", "13", "14", "15", "16", "17"};
        std::vector<TensorId> tensors;
        for (const char *name : names) tensors.push_back(create(name, kBlock));
        return tensors;
    }
};

// A tensor that found no room farther keeps its slots at home, wherever it is worked on, so that
// tiers full of other tensors' bytes can change places.
TEST_F(HomesTest, TensorsAtHomeNearerChangePlacesInFullTiers)
{
    open(8, 8, 4);
    const std::vector<TensorId> tensors = create_all();
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 4u);
    EXPECT_EQ(core_->usage(kHost).promised_blocks, 7u);
    EXPECT_EQ(core_->usage(kDevice).promised_blocks, 7u);
    for (uint32_t round = 0; round < 6; ++round) {
        const PlaceId place = round % 2 == 0 ? kDevice : kHost;
        for (const TensorId tensor : tensors) {
            const FetchId fetch =
                ask(tensor, round == 0 ? Access::kWrite : Access::kReadWrite, place);
            finish_all();
            ASSERT_TRUE(granted(fetch)) << round << ": " << refused_[fetch].sentence();
            release(fetch);
            finish_all();
            ASSERT_EQ(core_->check(), "");
        }
    }
    // With room farther they move there, and the slots that were kept are free.
    Commands out;
    ASSERT_TRUE(core_->destroy(tensors[0], out).ok());
    take(out);
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 4u);
    EXPECT_EQ(core_->usage(kDevice).promised_blocks + core_->usage(kHost).promised_blocks, 13u);
}

TEST_F(HomesTest, GuestsLeaveTheRoomThatIsPromised)
{
    open(8, 8, 4);
    const std::vector<TensorId> tensors = create_all();
    fill(tensors[4], kHost);
    fill(tensors[5], kHost);
    const FetchId guest = ask(tensors[4], Access::kRead);
    finish_all();
    ASSERT_TRUE(granted(guest));
    const FetchId second = ask(tensors[5], Access::kRead);
    finish_all();
    EXPECT_EQ(refusal(second), STW_ERROR_BUDGET) << "seven of eight blocks are promised";
    for (size_t i = 11; i < tensors.size(); ++i) fill(tensors[i]);
    EXPECT_EQ(core_->check(), "");
    release(guest);
}

TEST_F(HomesTest, ATensorMovesFartherOnceThereIsRoomForAllOfIt)
{
    open(8, 8, 4);
    std::vector<TensorId> far;
    for (const char *name : {"0", "1", "2", "3"}) far.push_back(create(name, kBlock));
    create("wide", 2 * kBlock);
    EXPECT_EQ(core_->usage(kHost).promised_blocks, 2u);
    Commands out;
    ASSERT_TRUE(core_->destroy(far[0], out).ok());
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 3u);
    ASSERT_TRUE(core_->destroy(far[1], out).ok());
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 4u);
    EXPECT_EQ(core_->usage(kHost).promised_blocks, 0u);
    take(out);
}

}  // namespace
}  // namespace stepwell::residency
