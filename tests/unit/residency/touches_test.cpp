// SPDX-License-Identifier: Apache-2.0
// What is seen at an address without a view once the tensor is claimed: nothing that the claim is
// about to change.
#include "lib/residency/aliases.h"
#include "tests/unit/residency/core_fixture.h"

namespace stepwell::residency {
namespace {

class TouchesTest : public CoreTest, private Aliases {
protected:
    void SetUp() override { begin(0); }
    void begin(uint32_t host_blocks)
    {
        open(4, host_blocks, 16);
        core_->set_aliases(this);
        TensorSpec wanted = spec("a", kBlock);
        wanted.guarded = true;
        a_ = create_filled(wanted);
    }
    bool show(PlaceId place, Slot slot, PackId, uint32_t, bool) override
    {
        shown_.insert({place, slot});
        return true;
    }
    void hide(PlaceId place, Slot slot) override { shown_.erase({place, slot}); }
    [[nodiscard]] bool is_shown() const { return !shown_.empty(); }
    FetchId touch() { return ask({all_of(a_, Access::kRead)}, kFetchBesideReaders | kFetchLent); }
    ClaimId claim()
    {
        const ClaimId claim = core_->claim();
        core_->claim_tensor(claim, a_);
        return claim;
    }
    void lend(ClaimId claim)
    {
        Commands out;
        core_->lend(claim, a_, out);
        take(out);
    }

    TensorId a_ = kNone;
    std::set<std::pair<PlaceId, Slot>> shown_;
};

TEST_F(TouchesTest, AClaimHidesWhatTouchesSee)
{
    const FetchId touched = touch();
    ASSERT_TRUE(granted(touched));
    EXPECT_TRUE(is_shown());
    claim();
    EXPECT_FALSE(is_shown());
    EXPECT_FALSE(core_->is_exposed(a_, false));
    release(touched);
}

TEST_F(TouchesTest, AClaimHidesNothingThatTheProgramViews)
{
    const FetchId view = ask(a_, Access::kRead);
    claim();
    EXPECT_TRUE(is_shown());
    EXPECT_TRUE(core_->is_exposed(a_, false));
    EXPECT_FALSE(core_->is_exposed(a_, true)) << "the end of the view conceals it";
    release(view);
    EXPECT_FALSE(is_shown());
    EXPECT_FALSE(core_->is_exposed(a_, false));
}

TEST_F(TouchesTest, WhatATransferReadsIsExposedBeyondTheViewBesideIt)
{
    begin(4);
    const FetchId view = ask(a_, Access::kRead);
    ask({all_of(a_, Access::kRead, kHost)}, kFetchPrefetch);
    claim();
    EXPECT_TRUE(core_->is_exposed(a_, true));
    release(view);
    EXPECT_TRUE(is_shown());
    finish_all();
    EXPECT_FALSE(is_shown());
    EXPECT_FALSE(core_->is_exposed(a_, false));
}

// Room for one of its two blocks. A write waits until the block is shown for writing.
TEST_F(TouchesTest, ATouchIsMadeOnceAViewShowsItsBlock)
{
    TensorSpec wanted = spec("two", 2 * kBlock);
    wanted.guarded = true;
    const TensorId two = create_filled(wanted);
    const TensorId most = create_filled(spec("most", 3 * kBlock));
    evict(two);
    const BlockId first = core_->blocks_of(two).first;
    const auto touch_of = [&](BlockId block, Access access) {
        return ask({all_of(two, access)}, kFetchBesideReaders | kFetchWaitRoom, kNever, block);
    };
    const auto is_made = [&](FetchId touched) {
        return refused_.count(touched) > 0 && refused_[touched].code() == STW_ERROR_EXISTS;
    };
    const FetchId rest = ask(most, Access::kRead);
    const FetchId elsewhere = touch_of(first + 1, Access::kRead);
    const FetchId reads = touch_of(first, Access::kRead);
    const FetchId writes = touch_of(first, Access::kReadWrite);
    Request half = all_of(two, Access::kRead);
    half.byte_count = kBlock;
    const FetchId reader = ask({half});
    finish_all();
    ASSERT_TRUE(granted(reader));
    EXPECT_TRUE(is_made(reads));
    EXPECT_FALSE(is_made(writes));
    release(reader);
    half.access = Access::kReadWrite;
    const FetchId writer = ask({half});
    ASSERT_TRUE(granted(writer));
    EXPECT_TRUE(is_made(writes));
    release(writer);
    EXPECT_FALSE(is_made(elsewhere));
    release(rest);
    finish_all();
    ASSERT_TRUE(granted(elsewhere));
    release(elsewhere);
}

// A thread whose view the access waits for may need more room before it can end that view.
TEST_F(TouchesTest, ATouchThatWaitsForViewsBarsTouchesAlone)
{
    const TensorId most = create_filled(spec("most", 3 * kBlock));
    const TensorId two = create_filled(spec("two", 2 * kBlock));
    const TensorId last = create_filled(spec("last", kBlock));
    for (const TensorId tensor : {two, last}) evict(tensor);
    const FetchId view = ask(most, Access::kRead);
    const uint32_t touches = kFetchBesideReaders | kFetchWaitRoom;
    const FetchId wide = ask({all_of(two, Access::kRead)}, touches);
    const FetchId narrow = ask({all_of(last, Access::kRead)}, touches);
    finish_all();
    EXPECT_FALSE(granted(wide));
    EXPECT_FALSE(granted(narrow)) << "it would keep room from the one before it";
    const FetchId program = ask(last, Access::kRead);
    finish_all();
    EXPECT_TRUE(granted(program));
    for (const FetchId own : {program, view}) release(own);
    finish_all();
    EXPECT_TRUE(granted(wide));
    EXPECT_TRUE(granted(narrow));
    for (const FetchId touched : {wide, narrow}) release(touched);
}

TEST_F(TouchesTest, AClaimHidesWhatWasStillBroughtForATouch)
{
    evict(a_);
    const FetchId touched = touch();
    EXPECT_FALSE(granted(touched));
    claim();
    finish_all();
    EXPECT_TRUE(granted(touched));
    EXPECT_FALSE(is_shown());
    release(touched);
}

TEST_F(TouchesTest, WhatIsLentIsSeenUntilTheVerdictIsAskedFor)
{
    const ClaimId updates = claim();
    update_under(updates, a_, false);
    lend(updates);
    const FetchId first = touch();
    ASSERT_TRUE(granted(first));
    EXPECT_TRUE(is_shown());
    core_->hold_touches(updates, a_);
    EXPECT_FALSE(is_shown());
    const FetchId second = touch();
    EXPECT_FALSE(granted(second));
    const FetchId speculated = ask({all_of(a_, Access::kRead)}, kFetchLent);
    EXPECT_TRUE(granted(speculated)) << "the program is told if it has to read again";
    for (const FetchId view : {first, speculated}) release(view);
    unclaim(updates, a_);
    EXPECT_TRUE(granted(second));
    EXPECT_TRUE(is_shown());
}

TEST_F(TouchesTest, WhatIsLentBeforeItsVerdictIsAskedForIsHeldAsWell)
{
    const ClaimId updates = claim();
    const FetchId update = ask_under(updates, a_);
    ASSERT_TRUE(granted(update));
    core_->hold_touches(updates, a_);
    release_under(updates, a_);
    lend(updates);
    EXPECT_FALSE(granted(touch()));
}

TEST_F(TouchesTest, WhatIsLentOnceIsSeenWhenItHasCome)
{
    evict(a_);
    claim();
    const FetchId touched = touch();
    Commands out;
    EXPECT_FALSE(core_->lend_once(a_, touched, out));
    take(out);
    finish_all();
    EXPECT_TRUE(granted(touched));
    EXPECT_TRUE(is_shown());
    release(touched);
    EXPECT_FALSE(is_shown());
}

}  // namespace
}  // namespace stepwell::residency
