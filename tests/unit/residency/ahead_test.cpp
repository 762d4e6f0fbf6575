// SPDX-License-Identifier: Apache-2.0
// What a plan asks of the core: hints that take no room of what is needed sooner, what a fetch
// lacks, early write-back, and what became of the blocks a plan brought.
#include "tests/unit/residency/core_fixture.h"

namespace stepwell::residency {
namespace {

// The next use of each tensor, as the test says it.
class Told final : public VictimPolicy {
public:
    [[nodiscard]] uint64_t next_use(TensorId tensor) const override
    {
        const auto found = uses.find(tensor);
        return found == uses.end() ? kNever : found->second;
    }
    std::map<TensorId, uint64_t> uses;
};

class AheadTest : public CoreTest {
protected:
    void open_told(uint32_t device, uint32_t host, uint32_t nvme)
    {
        open(device, host, nvme);
        core_->set_victim_policy(&told_);
    }
    FetchId plan(TensorId tensor, PlaceId place = kDevice)
    {
        FetchAsked asked;
        asked.requests = {all_of(tensor, Access::kRead, place)};
        asked.flags = kFetchPrefetch | kFetchPlanned;
        asked.urgency = Class::kPlanned;
        Commands out;
        const FetchId id = core_->fetch(asked, out);
        take(out);
        return id;
    }
    FetchId plan_room(TensorId tensor)
    {
        return ask({all_of(tensor, Access::kWriteEmpty)}, kFetchPrefetch);
    }
    // On nvme alone.
    TensorId stored(const char *name)
    {
        const TensorId tensor = create_filled(name, kBlock);
        evict(tensor);
        return tensor;
    }
    // The last two have the whole device; the first, on nvme, is needed between them.
    std::array<TensorId, 3> fill_with_soon_and_later()
    {
        open_told(2, 0, 16);
        const TensorId wanted = stored("wanted");
        const TensorId soon = create_filled("soon", kBlock);
        const TensorId later = create_filled("later", kBlock);
        told_.uses = {{wanted, 5}, {soon, 2}, {later, 9}};
        return {wanted, soon, later};
    }
    uint32_t clean(PlaceId place, uint64_t beyond)
    {
        Commands out;
        const uint32_t started = core_->clean_ahead(place, beyond, out);
        take(out);
        return started;
    }
    PlannedBlocks planned(PlaceId place = kDevice) { return core_->usage(place).planned; }

    Told told_;
};

TEST_F(AheadTest, RoomForAWriteIsHeldAndHasNoContents)
{
    open_told(4, 0, 16);
    const TensorId fresh = create("fresh", 2 * kBlock);
    EXPECT_EQ(core_->lack(all_of(fresh, Access::kWrite)).vacant_bytes, 2 * kBlock);
    const FetchId hint = plan_room(fresh);
    finish_all();
    EXPECT_TRUE(granted(hint));
    EXPECT_EQ(core_->free_bytes(kDevice), 2 * kBlock);
    EXPECT_EQ(core_->lack(all_of(fresh, Access::kWrite)).vacant_bytes, 0u);
    EXPECT_EQ(core_->contents(fresh), Contents::kEmpty);
    EXPECT_FALSE(resident(fresh, kDevice));
    EXPECT_EQ(refusal(ask(fresh, Access::kRead)), STW_ERROR_EMPTY);
    const FetchId write = ask(fresh, Access::kWrite);
    EXPECT_TRUE(granted(write)) << "its room is at its address already";
    EXPECT_TRUE(transfers_.empty());
    release(write);
    EXPECT_EQ(core_->contents(fresh), Contents::kValid);
    EXPECT_EQ(refusal(plan_room(fresh)), STW_ERROR_EXISTS);
}

TEST_F(AheadTest, RoomForAWriteIsTakenByWhatIsNeededSoonerAndNothingIsWritten)
{
    open_told(2, 0, 16);
    const TensorId fresh = create("fresh", 2 * kBlock);
    const TensorId other = create("other", 2 * kBlock);
    told_.uses = {{fresh, 5}, {other, 1}};
    (void)plan_room(fresh);
    finish_all();
    const FetchId write = ask(other, Access::kWrite);
    for (const Transfer &transfer : transfers_) EXPECT_NE(transfer.kind, TransferKind::kMove);
    finish_all();
    ASSERT_TRUE(granted(write));
    release(write);
    EXPECT_EQ(core_->lack(all_of(fresh, Access::kWrite)).vacant_bytes, 2 * kBlock);
    Commands out;
    EXPECT_TRUE(core_->discard(fresh, out).ok());
    take(out);
}

// Bytes of others that the room had must not be read as those of the tensor.
TEST_F(AheadTest, WhatIsNotWrittenOfRoomThatWasHeldIsZeros)
{
    open_told(2, 0, 16);
    const TensorId fresh = create("fresh", kBlock);
    (void)plan_room(fresh);
    finish_all();
    Request half = all_of(fresh, Access::kWriteEmpty);
    half.byte_count = kBlock / 2;
    (void)ask({half});
    ASSERT_EQ(transfers_.size(), 1u);
    EXPECT_EQ(transfers_.front().kind, TransferKind::kZero);
}

// A part of a block gets no zeros ahead: they would be contents.
TEST_F(AheadTest, RoomForAPartOfABlockHasNoContentsEither)
{
    open_told(2, 0, 16);
    const TensorId fresh = create("fresh", kBlock);
    Request half = all_of(fresh, Access::kWriteEmpty);
    half.byte_count = kBlock / 2;
    const FetchId hint = ask({half}, kFetchPrefetch);
    for (const Transfer &transfer : transfers_) EXPECT_EQ(transfer.kind, TransferKind::kMap);
    finish_all();
    EXPECT_TRUE(granted(hint));
    EXPECT_FALSE(resident(fresh, kDevice));
}

// Whether a sum of ranks is made in place depends on views, and not on when room was made.
TEST_F(AheadTest, ATensorIsNotInUseByTheRoomThatIsMadeForIt)
{
    open_told(2, 0, 16);
    const TensorId fresh = create("fresh", kBlock);
    const FetchId hint = plan_room(fresh);
    ASSERT_FALSE(granted(hint));
    EXPECT_FALSE(core_->in_use(fresh));
    const FetchId write = ask(fresh, Access::kWriteEmpty);
    finish_all();
    ASSERT_TRUE(granted(write));
    EXPECT_TRUE(core_->in_use(fresh));
}

// It would count as under way for as long as the view is open, and hold back others.
TEST_F(AheadTest, AHintForRoomThatItsWriteOvertakesIsOver)
{
    open_told(2, 0, 16);
    const TensorId old = create_filled("old", 2 * kBlock);
    const TensorId fresh = create("fresh", 2 * kBlock);
    told_.uses = {{fresh, 1}, {old, 5}};
    const FetchId hint = plan_room(fresh);
    ASSERT_FALSE(granted(hint));
    ASSERT_EQ(refusal(hint), STW_OK) << "waits for the eviction";
    const FetchId write = ask(fresh, Access::kWrite);
    finish_all();
    ASSERT_TRUE(granted(write));
    EXPECT_EQ(refusal(hint), STW_ERROR_EXISTS);
    EXPECT_EQ(core_->waiting_fetches(), 0u);
}

// It could not leave for what needs the room now, nor move out of its way.
TEST_F(AheadTest, NoRoomIsAskedForWhereATensorIsPinned)
{
    open_told(4, 0, 16);
    TensorSpec pinned = spec("pinned", 2 * kBlock);
    pinned.policy.home = kDevice;
    pinned.policy.retention = Retention::kPin;
    const TensorId tensor = create(pinned);
    EXPECT_EQ(core_->lack(all_of(tensor, Access::kWrite)).vacant_bytes, 0u);
}

TEST_F(AheadTest, AHintTakesNoRoomOfWhatIsNeededSooner)
{
    const auto [wanted, soon, later] = fill_with_soon_and_later();
    plan(wanted);
    finish_all();
    EXPECT_TRUE(resident(wanted, kDevice));
    EXPECT_TRUE(resident(soon, kDevice));
    EXPECT_FALSE(resident(later, kDevice));
}

TEST_F(AheadTest, AHintThatAllOthersAreNeededBeforeIsRefusedAndEvictsNothing)
{
    open_told(2, 0, 16);
    const TensorId wanted = stored("wanted");
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    told_.uses = {{wanted, 5}, {a, 2}, {b, 5}};
    const FetchId id = plan(wanted);
    finish_all();
    EXPECT_NE(refusal(id), STW_OK);
    EXPECT_TRUE(resident(a, kDevice) && resident(b, kDevice));
    // A demand is not so modest.
    const FetchId demand = ask(wanted, Access::kRead);
    finish_all();
    EXPECT_TRUE(granted(demand));
}

TEST_F(AheadTest, AHintMayTakeTheRoomOfWhatNobodyKnowsOf)
{
    open_told(1, 0, 16);
    const TensorId wanted = stored("wanted");
    create_filled("unknown", kBlock);
    told_.uses = {{wanted, 5}};
    plan(wanted);
    finish_all();
    EXPECT_TRUE(resident(wanted, kDevice));
}

// A hint that found nothing is looked at again by what changes, not at the end of each transfer.
TEST_F(AheadTest, AHintThatWaitsFindsWhatATransferLetsGo)
{
    const auto [wanted, soon, later] = fill_with_soon_and_later();
    ASSERT_EQ(clean(kDevice, 5), 1u);  // `later`, which cannot leave while it is read
    const FetchId id = plan(wanted);
    EXPECT_EQ(transfers_.size(), 1u);
    finish_all();
    EXPECT_TRUE(granted(id));
    EXPECT_TRUE(resident(wanted, kDevice) && resident(soon, kDevice));
}

TEST_F(AheadTest, AHintThatWaitsFindsWhatIsGivenBack)
{
    open_told(2, 0, 16);
    const TensorId wanted = stored("wanted");
    const TensorId held = create("held", kBlock);
    const TensorId soon = create_filled("soon", kBlock);
    const FetchId writer = ask(held, Access::kWrite);
    finish_all();
    told_.uses = {{wanted, 5}, {soon, 2}, {held, 9}};
    ASSERT_EQ(clean(kDevice, 1), 1u);  // soon: on its way while the hint looks for room
    const FetchId id = plan(wanted);
    EXPECT_EQ(transfers_.size(), 1u);
    release(writer);
    EXPECT_EQ(transfers_.size(), 2u);  // held leaves
    finish_all();
    EXPECT_TRUE(granted(id));
    EXPECT_TRUE(resident(wanted, kDevice) && resident(soon, kDevice));
}

TEST_F(AheadTest, ARunOfSlotsForAHintSparesWhatIsNeededSooner)
{
    open(4, 0, 16, false);
    core_->set_victim_policy(&told_);
    const TensorId wanted = create_filled("wanted", 3 * kBlock);
    evict(wanted);
    std::vector<TensorId> others;
    for (const char *name : {"a", "b", "c", "d"}) {
        others.push_back(create(name, kBlock));
        fill(others.back());
    }
    told_.uses = {{wanted, 5}, {others[0], 9}, {others[1], 1}, {others[2], 9}, {others[3], 9}};
    plan(wanted);
    finish_all();
    EXPECT_TRUE(resident(others[1], kDevice));
    EXPECT_FALSE(resident(wanted, kDevice));  // no three slots side by side are to be had
}

TEST_F(AheadTest, LackSaysWhatAFetchWouldMoveAndFromWhere)
{
    open(4, 4, 16);
    const TensorId a = create("a", 3 * kBlock);
    const Request whole = all_of(a, Access::kRead);
    EXPECT_FALSE(core_->lack(whole).readable);
    fill(a, kHost);
    Lack lack = core_->lack(whole);
    EXPECT_TRUE(lack.readable);
    EXPECT_EQ(lack.bytes, 3 * kBlock);
    EXPECT_EQ(lack.from[kHost], 3 * kBlock);
    EXPECT_EQ(lack.room_bytes, 3 * kBlock);
    const FetchId id = plan(a);
    EXPECT_EQ(core_->lack(whole).bytes, 0u);  // on their way
    finish_all();
    EXPECT_EQ(core_->lack(whole).bytes, 0u);
    EXPECT_TRUE(granted(id));
    const FetchId writer = ask(a, Access::kReadWrite);
    finish_all();
    EXPECT_TRUE(core_->lack(whole).busy);
    release(writer);
    Commands out;
    ASSERT_TRUE(core_->destroy(a, out).ok());
    EXPECT_FALSE(core_->lack(whole).readable);
    EXPECT_EQ(core_->lack({77, Access::kRead, kDevice, 0, 1}).room_bytes, 0u);
}

TEST_F(AheadTest, WhatAPlanBroughtIsUsedOrWastedOnce)
{
    open_told(2, 0, 16);
    const TensorId a = stored("a");
    const TensorId b = stored("b");
    const TensorId c = stored("c");
    told_.uses = {{a, 1}, {b, 2}};
    plan(a);
    plan(b);
    finish_all();
    EXPECT_EQ(planned().brought, 2u);
    const FetchId use = ask(a, Access::kRead);
    finish_all();
    release(use);
    EXPECT_EQ(planned().used, 1u);
    told_.uses = {{a, 1}};
    ask(c, Access::kRead);
    finish_all();
    EXPECT_FALSE(resident(b, kDevice));
    EXPECT_EQ(planned().brought, 2u);
    EXPECT_EQ(planned().used, 1u);
    EXPECT_EQ(planned().wasted, 1u);
}

TEST_F(AheadTest, WhatWasBroughtHalfWayIsUsedWhenItGoesOn)
{
    open_told(2, 2, 16);
    const TensorId a = create_filled("a", kBlock);
    Commands out;
    core_->write_back_all(out);
    take(out);
    finish_all();
    for (const PlaceId place : {kDevice, kHost}) {
        core_->evict(a, place, out);
        take(out);
        finish_all();
    }
    ASSERT_FALSE(resident(a, kDevice) || resident(a, kHost));
    told_.uses = {{a, 1}};
    plan(a, kHost);
    finish_all();
    EXPECT_EQ(planned(kHost).brought, 1u);
    plan(a);
    finish_all();
    EXPECT_EQ(planned(kHost).used, 1u);
    EXPECT_EQ(planned(kDevice).brought, 1u);
    EXPECT_EQ(planned(kDevice).used, 0u);
}

TEST_F(AheadTest, ADemandThatMeetsAPlansTransferUsesIt)
{
    open_told(2, 0, 16);
    const TensorId a = stored("a");
    told_.uses = {{a, 1}};
    plan(a);
    const FetchId demand = ask(a, Access::kRead);
    finish_all();
    EXPECT_TRUE(granted(demand));
    EXPECT_EQ(planned().used, 1u);
    EXPECT_EQ(promotes_.size(), 1u);
}

TEST_F(AheadTest, OnlyWhatIsNeededBeyondIsCleanedAheadAndStaysWhereItIs)
{
    open_told(8, 0, 16);
    const TensorId soon = create_filled("soon", kBlock);
    const TensorId late = create_filled("late", kBlock);
    told_.uses = {{soon, 3}, {late, 30}};
    EXPECT_EQ(clean(kDevice, kNever), 0u);
    EXPECT_EQ(clean(kDevice, 10), 1u);
    ASSERT_EQ(transfers_.size(), 1u);
    EXPECT_EQ(transfers_[0].tensor, late);
    EXPECT_EQ(transfers_[0].urgency, Class::kIdle);
    finish_all();
    EXPECT_TRUE(resident(late, kDevice) && resident(late, kNvme));
    EXPECT_FALSE(resident(soon, kNvme));
    EXPECT_EQ(clean(kDevice, 10), 0u);
}

TEST_F(AheadTest, WhatIsHotIsNotCleanedAheadHoweverFarItsNextUse)
{
    open_told(8, 0, 16);
    const TensorId late = create_filled("late", kBlock);
    told_.uses = {{late, 30}};
    Commands out;
    core_->advise(late, Advice::kHot, out);
    EXPECT_EQ(clean(kDevice, 10), 0u);
    core_->advise(late, Advice::kNormal, out);
    EXPECT_EQ(clean(kDevice, 10), 1u);
}

TEST_F(AheadTest, NothingIsCleanedAheadWhileARequestWantsTheDisk)
{
    open_told(8, 0, 16);
    const TensorId wanted = stored("wanted");
    const TensorId late = create_filled("late", kBlock);
    told_.uses = {{wanted, 1}, {late, 30}};
    plan(wanted);
    EXPECT_EQ(clean(kDevice, 10), 0u);
    finish_all();
    EXPECT_EQ(clean(kDevice, 10), 1u);
}

}  // namespace
}  // namespace stepwell::residency
