// SPDX-License-Identifier: Apache-2.0
// Who gives way when threads wait for each other's views, and that nobody does while somebody could
// still release.
#include "tests/unit/residency/core_fixture.h"

namespace stepwell::residency {
namespace {

class DeadlockTest : public CoreTest {
protected:
    static constexpr uint64_t kAnna = 1;
    static constexpr uint64_t kBo = 2;
    static constexpr uint64_t kCleo = 3;

    // A view that is granted at once.
    void hold(uint64_t owner, TensorId tensor, Access access, PlaceId place = kDevice)
    {
        const FetchId id = ask(tensor, access, place);
        finish_all();
        ASSERT_TRUE(granted(id));
        held_.push_back(
            {owner, tensor, place, 0, core_->spec(tensor).bytes, access != Access::kRead});
    }
    // Asked for and slept on.
    FetchId sleep(uint64_t owner, TensorId tensor, Access access, PlaceId place = kDevice,
                  uint32_t flags = kFetchWaitRoom)
    {
        const FetchId id = ask({all_of(tensor, access, place)}, flags);
        EXPECT_FALSE(granted(id));
        EXPECT_EQ(refusal(id), STW_OK);
        sleepers_.push_back({owner, id});
        return id;
    }
    // Anna and Bo hold half of it each; the tensor that is returned had to leave.
    TensorId fill_the_device()
    {
        open(4, 0, 32);
        const TensorId gone = create("gone", kBlock);
        const TensorId a = create("a", 2 * kBlock);
        const TensorId b = create("b", 2 * kBlock);
        for (const TensorId tensor : {gone, a, b}) fill(tensor);
        hold(kAnna, a, Access::kRead);
        hold(kBo, b, Access::kRead);
        return gone;
    }
    // An update that is asked for under a claim of its own.
    void update(TensorId tensor, ClaimId claim)
    {
        FetchAsked asked;
        asked.claim = claim;
        asked.flags = kFetchInternal | kFetchWaitRoom;
        asked.requests = {all_of(tensor, Access::kReadWrite)};
        Commands out;
        core_->fetch(asked, out);
        take(out);
    }
    FetchId found() { return core_->find_deadlock(held_, sleepers_); }

    std::vector<Held> held_;
    std::vector<Sleeper> sleepers_;
};

TEST_F(DeadlockTest, TwoThatWantToWriteWhatTheOtherReads)
{
    open(8, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    hold(kAnna, a, Access::kRead);
    hold(kBo, b, Access::kRead);
    sleep(kAnna, b, Access::kWrite);
    EXPECT_EQ(found(), 0u) << "Bo is awake";
    const FetchId younger = sleep(kBo, a, Access::kWrite);
    EXPECT_EQ(found(), younger);
    const Status why = core_->deadlock_refusal(younger);
    EXPECT_EQ(why.code(), STW_ERROR_BUSY);
    EXPECT_NE(std::string(why.sentence()).find("'a'"), std::string::npos) << why.sentence();
    Commands out;
    core_->cancel(younger, why, out);
    take(out);
    sleepers_.pop_back();
    EXPECT_EQ(found(), 0u) << "Bo can release now";
}

TEST_F(DeadlockTest, ATouchGivesWayToNobodyWhoCan)
{
    const TensorId gone = fill_the_device();
    const FetchId older = sleep(kAnna, gone, Access::kRead);
    sleep(kBo, gone, Access::kRead, kDevice, kFetchWaitRoom | kFetchBesideReaders);
    EXPECT_EQ(found(), older) << "the thread that touches has no call that could return an error";
}

TEST_F(DeadlockTest, ATouchWaitsForAClaimThatReadsAndPassesTheNext)
{
    open(8, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    hold(kAnna, a, Access::kRead);
    const ClaimId reads = core_->claim(ClaimKind::kReads);
    core_->claim_tensor(reads, a);
    FetchAsked asked;
    asked.claim = reads;
    asked.requests = {all_of(a, Access::kRead)};
    Commands out;
    const FetchId copy = core_->fetch(asked, out);
    take(out);
    ASSERT_TRUE(granted(copy));
    const ClaimId writes = core_->claim(ClaimKind::kAlone);
    core_->claim_tensor(writes, a);
    update(a, writes);
    sleep(kAnna, a, Access::kReadWrite, kDevice, kFetchBesideReaders | kFetchAhead);
    EXPECT_EQ(found(), 0u) << "what reads will end, and what writes lets her pass";
}

TEST_F(DeadlockTest, ABystanderDoesNotGiveWay)
{
    open(8, 0, 16);
    const TensorId a = create("a", kBlock);
    const TensorId b = create("b", kBlock);
    const TensorId c = create("c", kBlock);
    for (const TensorId tensor : {a, b, c}) fill(tensor);
    hold(kAnna, a, Access::kRead);
    hold(kBo, b, Access::kRead);
    hold(kCleo, c, Access::kRead);
    sleep(kAnna, b, Access::kWrite);
    const FetchId younger = sleep(kBo, a, Access::kWrite);
    sleep(kCleo, a, Access::kWrite);  // the youngest, but nobody waits for c
    EXPECT_EQ(found(), younger);
}

TEST_F(DeadlockTest, ConflictsOfTensorsThatShareABlock)
{
    open(8, 8, 16);
    const TensorId a = create("a", 100);
    const TensorId b = create("b", 100);
    const TensorId c = create("c", kBlock);
    ASSERT_EQ(core_->pack_of(a), core_->pack_of(b));
    for (const TensorId tensor : {a, b, c}) fill(tensor);
    hold(kAnna, a, Access::kRead, kDevice);
    hold(kBo, c, Access::kRead);
    const FetchId first = sleep(kBo, b, Access::kWrite, kHost);
    EXPECT_EQ(found(), 0u);
    const FetchId second = sleep(kAnna, c, Access::kWrite);
    EXPECT_EQ(found(), std::max(first, second));
}

TEST_F(DeadlockTest, RoomThatOnlySleepersPin)
{
    const TensorId c = fill_the_device();
    sleep(kAnna, c, Access::kRead);
    EXPECT_EQ(found(), 0u);
    const FetchId younger = sleep(kBo, c, Access::kRead);
    EXPECT_EQ(found(), younger);
    EXPECT_EQ(core_->deadlock_refusal(younger).code(), STW_ERROR_BUDGET);
}

TEST_F(DeadlockTest, RoomThatSomebodyElsePinsMayCome)
{
    const TensorId c = fill_the_device();
    held_.pop_back();  // a view that the shell does not see yet
    sleep(kAnna, c, Access::kRead);
    EXPECT_EQ(found(), 0u);
}

// Locks and room at once: what waits for room keeps nobody from the tensor.
TEST_F(DeadlockTest, AFetchThatWaitsForRoomHoldsNoLock)
{
    open(4, 8, 32);
    const TensorId a = create("a", 3 * kBlock);
    const TensorId b = create("b", 2 * kBlock);
    fill(b, kHost);
    fill(a);
    hold(kAnna, a, Access::kRead);
    const FetchId waits = sleep(kBo, b, Access::kReadWrite, kDevice);
    EXPECT_TRUE(core_->waits_for_room(waits));
    const FetchId reads = ask(b, Access::kRead, kHost);
    EXPECT_TRUE(granted(reads));
    release(reads);
    EXPECT_EQ(found(), 0u);
}

TEST_F(DeadlockTest, AnUpdateThatWaitsForASleeperHoldsUpItsOthers)
{
    open(8, 0, 32);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    hold(kAnna, a, Access::kRead);
    const ClaimId claim = core_->claim();
    core_->claim_tensor(claim, a);
    core_->claim_tensor(claim, b);
    update(a, claim);
    EXPECT_EQ(found(), 0u);
    const FetchId waits = sleep(kAnna, b, Access::kRead);
    EXPECT_EQ(found(), waits) << "the update never gives way";
}

// Updates do one thing after the other: what has not been asked for may never be.
TEST_F(DeadlockTest, AnUpdateWhoseTurnDoesNotCome)
{
    open(8, 0, 32);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    hold(kAnna, a, Access::kRead);
    const ClaimId first = core_->claim();
    core_->claim_tensor(first, a);
    const ClaimId second = core_->claim();
    core_->claim_tensor(second, b);
    update(a, first);
    const FetchId waits = sleep(kAnna, b, Access::kRead);
    EXPECT_EQ(found(), 0u) << "the second may be asked for any moment";
    EXPECT_EQ(core_->find_deadlock(held_, sleepers_, 1), waits);
    EXPECT_EQ(core_->find_deadlock(held_, sleepers_, 2), 0u) << "another one was answered";
}

// It waits for all its tensors before it reads one. The update of b comes after it, and Anna's
// fetch after that update: she has the room that the update of a waits for.
TEST_F(DeadlockTest, ACommitThatWaitsForAnUpdateMovesAsThatDoes)
{
    open(4, 0, 32);
    const TensorId a = create_filled("a", 2 * kBlock);
    const TensorId b = create_filled("b", kBlock);
    const TensorId c = create_filled("c", kBlock);
    const TensorId most = create_filled("most", 3 * kBlock);
    evict(c);
    hold(kAnna, most, Access::kRead);
    const ClaimId first = core_->claim();
    core_->claim_tensor(first, a);
    update(a, first);
    const ClaimId commit = core_->claim(ClaimKind::kReads);
    for (const TensorId tensor : {a, b}) core_->claim_tensor(commit, tensor);
    const ClaimId second = core_->claim();
    core_->claim_tensor(second, b);
    update(b, second);
    const FetchId waits = sleep(kAnna, c, Access::kRead);
    EXPECT_EQ(core_->find_deadlock(held_, sleepers_, 2), 0u) << "the commit may be at work";
    core_->note_wait(commit, a);
    EXPECT_EQ(core_->find_deadlock(held_, sleepers_, 2), waits);
    core_->note_wait(commit, kNone);
    EXPECT_EQ(core_->find_deadlock(held_, sleepers_, 2), 0u);
}

TEST_F(DeadlockTest, ACommitWaitsForWhoWrites)
{
    open(8, 0, 32);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    hold(kAnna, a, Access::kReadWrite);
    const ClaimId commit = core_->claim(ClaimKind::kReads);
    for (const TensorId tensor : {a, b}) core_->claim_tensor(commit, tensor);
    const FetchId waits = sleep(kAnna, b, Access::kWrite);
    EXPECT_EQ(found(), 0u);
    core_->note_wait(commit, a);
    EXPECT_EQ(found(), waits);
}

TEST_F(DeadlockTest, ACopyBetweenTwoPiecesGoesOn)
{
    open(8, 0, 32);
    const TensorId a = create_filled("a", kBlock);
    core_->claim_tensor(core_->claim(ClaimKind::kAlone), a);
    sleep(kAnna, a, Access::kRead);
    EXPECT_EQ(core_->find_deadlock(held_, sleepers_, 0), 0u);
}

}  // namespace
}  // namespace stepwell::residency
