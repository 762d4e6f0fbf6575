// SPDX-License-Identifier: Apache-2.0
// The core by example: one claim each. What holds for all programs is in tests/simulation.
#include "tests/unit/residency/core_fixture.h"

#include <gmock/gmock.h>

namespace stepwell::residency {
namespace {

using testing::HasSubstr;

// ---- packing and promises ----------------------------------------------------------------------

TEST_F(CoreTest, SmallTensorsAlikeShareABlock)
{
    open(4, 4, 16);
    const TensorId a = create("a", 1000);
    const TensorId b = create("b", 1000);
    TensorSpec other = spec("c", 1000);
    other.role = 7;
    const TensorId c = create(other);
    EXPECT_EQ(core_->pack_of(a), core_->pack_of(b));
    EXPECT_NE(core_->pack_of(a), core_->pack_of(c));
    EXPECT_EQ(core_->pack_offset(b), 1024u);  // aligned to 256
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 2u);
}

TEST_F(CoreTest, WhatDoesNotFitTheBlockStartsANewOne)
{
    open(4, 4, 16);
    const TensorId a = create("a", 3000);
    const TensorId b = create("b", 3000);
    EXPECT_NE(core_->pack_of(a), core_->pack_of(b));
    EXPECT_EQ(core_->pack_offset(b), 0u);
}

TEST_F(CoreTest, WritingOneTensorOfABlockKeepsItsNeighbour)
{
    open(4, 4, 16);
    const TensorId a = create("a", 1000);
    const TensorId b = create("b", 1000);
    fill(a);
    fill(b, kHost);
    // b's write moved the block, with a in it.
    EXPECT_TRUE(resident(a, kHost));
    EXPECT_FALSE(resident(a, kDevice));
}

TEST_F(CoreTest, CreateIsRefusedWhenNoTierCanPromiseRoom)
{
    open(4, 4, 6);
    create("a", 5 * kBlock);
    TensorSpec far = spec("b", 2 * kBlock);
    far.policy.allowed = 1u << kNvme;
    far.policy.home = kNvme;
    Result<TensorId> b = core_->create(far);
    ASSERT_FALSE(b.ok());
    EXPECT_EQ(b.status().code(), STW_ERROR_BUDGET);
    EXPECT_THAT(b.status().sentence(), HasSubstr("the nvme tier cannot promise room"));
    EXPECT_EQ(b.status().detail()->needed_bytes, 2 * kBlock);
    EXPECT_EQ(b.status().detail()->free_bytes, 1 * kBlock);
    EXPECT_TRUE(core_->create(spec("c", kBlock)).ok());
    // The farthest is full: each nearer tier takes some, and keeps room for what comes by.
    create("d", 3 * kBlock);
    EXPECT_EQ(core_->usage(kHost).promised_blocks, 3u);
    create("e", kBlock);
    EXPECT_EQ(core_->usage(kDevice).promised_blocks, 1u);
    Result<TensorId> f = core_->create(spec("f", kBlock));
    ASSERT_FALSE(f.ok());
    EXPECT_THAT(f.status().sentence(), HasSubstr("device 0 has 12.0 KiB left, 12.0 KiB of it for "
                                                 "tensors of other tiers; the host tier has"));
}

TEST_F(CoreTest, WhatIsPinnedToItsHomeIsPromisedThereToo)
{
    open(4, 4, 16);
    TensorSpec pinned = spec("a", 3 * kBlock);
    pinned.policy.retention = Retention::kPin;
    create(pinned);
    pinned.name = "b";
    EXPECT_EQ(core_->create(pinned).status().code(), STW_ERROR_BUDGET);
    EXPECT_EQ(core_->usage(kDevice).promised_blocks, 3u);
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 3u);
}

TEST_F(CoreTest, APromiseIsGivenBackByDestroy)
{
    open(4, 0, 4);
    const TensorId a = create("a", 4 * kBlock);
    Commands out;
    EXPECT_TRUE(core_->destroy(a, out).ok());
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 0u);
    EXPECT_TRUE(core_->create(spec("b", 4 * kBlock)).ok());
}

TEST_F(CoreTest, WhatIsKeptIsNotDestroyedBetweenTwoFetches)
{
    open(4, 0, 4);
    const TensorId a = create_filled("a", kBlock);
    Commands out;
    core_->keep(a);
    release(ask(a, Access::kRead));
    EXPECT_EQ(core_->destroy(a, out).code(), STW_ERROR_BUSY);
    core_->let_go(a);
    EXPECT_TRUE(core_->destroy(a, out).ok());
}

// ---- room --------------------------------------------------------------------------------------

TEST_F(CoreTest, PrivateBuffersCountBesideTensors)
{
    open(4, 0, 16);
    const TensorId a = create("a", 3 * kBlock);
    const Request pins{a, Access::kRead, kDevice, 0, 3 * kBlock};
    const Request buffer{a, Access::kRead, kDevice, 0, kBlock};
    const Request larger{a, Access::kRead, kDevice, 0, kBlock + 1};
    EXPECT_TRUE(core_->fits({pins, pins}, {buffer}).ok());
    const Status refused = core_->fits({pins}, {larger});
    EXPECT_EQ(refused.code(), STW_ERROR_BUDGET);
    EXPECT_EQ(refused.detail()->needed_bytes, 5 * kBlock);
    EXPECT_EQ(core_->fits({}, {buffer, buffer, buffer, larger}).code(), STW_ERROR_BUDGET);
    EXPECT_TRUE(core_->fits({}, {{a, Access::kRead, kNvme, 0, 5 * kBlock}}).ok());
}

TEST_F(CoreTest, AFetchTakesRoomForAllOrNothing)
{
    open(4, 0, 16);
    const TensorId a = create("a", 3 * kBlock);
    const TensorId b = create("b", 2 * kBlock);
    const TensorId c = create_filled("c", 2 * kBlock);
    const FetchId held = ask(c, Access::kRead);
    const FetchId both =
        ask({all_of(a, Access::kWrite), all_of(b, Access::kWrite)}, kFetchWaitRoom);
    EXPECT_EQ(refusal(both), STW_ERROR_BUDGET);  // five blocks never fit
    const FetchId one = ask({all_of(a, Access::kWrite)}, kFetchWaitRoom);
    EXPECT_FALSE(granted(one));
    EXPECT_EQ(core_->usage(kDevice).used_blocks, 2u);  // nothing was taken in advance
    release(held);
    finish_all();
    EXPECT_TRUE(granted(one));
}

TEST_F(CoreTest, TheRefusalSaysTheArithmetic)
{
    open(4, 0, 16);
    const TensorId a = create_filled("a", 3 * kBlock);
    const TensorId b = create("weights", 2 * kBlock);
    ask(a, Access::kRead);
    const FetchId id = ask(b, Access::kWrite);
    ASSERT_EQ(refusal(id), STW_ERROR_BUDGET);
    const Status &status = refused_[id];
    EXPECT_THAT(status.sentence(), HasSubstr("tensor 'weights'"));
    EXPECT_THAT(status.sentence(), HasSubstr("8192 bytes needed"));
    EXPECT_THAT(status.sentence(), HasSubstr("budget 16.0 KiB"));
    EXPECT_THAT(status.sentence(), HasSubstr("+ 4096 bytes free or its own"));
    EXPECT_THAT(status.sentence(), HasSubstr("= 12.0 KiB pinned by open views"));
    EXPECT_EQ(status.detail()->needed_bytes, 2 * kBlock);
    EXPECT_EQ(status.detail()->pinned_bytes, 3 * kBlock);
}

TEST_F(CoreTest, AFetchStuckOnViewsIsKnownAndGoesOnWhenTheyEnd)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", 2 * kBlock);
    const TensorId b = create("b", kBlock);
    const FetchId held = ask(a, Access::kRead);
    const FetchId waits = ask({all_of(b, Access::kWrite)}, kFetchWaitRoom);
    EXPECT_EQ(core_->stuck_fetches(), std::vector<FetchId>{waits});
    release(held);
    finish_all();
    EXPECT_TRUE(granted(waits));
    EXPECT_TRUE(core_->stuck_fetches().empty());
}

// ---- prefetch, TRY, time -----------------------------------------------------------------------

TEST_F(CoreTest, APrefetchNeverEvictsWhatIsPinned)
{
    open(2, 0, 16);
    const TensorId a = create("a", 2 * kBlock);
    const TensorId b = create_filled("b", kBlock);
    fill(a);
    ask(a, Access::kRead);
    const FetchId hint = ask({all_of(b, Access::kRead)}, kFetchPrefetch);
    finish_all();
    EXPECT_FALSE(granted(hint));
    EXPECT_TRUE(resident(a, kDevice));
    EXPECT_FALSE(resident(b, kDevice));
}

TEST_F(CoreTest, APrefetchBringsTheBytesAndPinsNothing)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    evict(a);
    ASSERT_FALSE(resident(a, kDevice));
    const FetchId hint = ask({all_of(a, Access::kRead)}, kFetchPrefetch);
    finish_all();
    ASSERT_TRUE(granted(hint));
    EXPECT_TRUE(granted_[hint].grants.empty());
    EXPECT_TRUE(resident(a, kDevice));
    EXPECT_EQ(core_->usage(kDevice).pinned_blocks, 0u);
}

TEST_F(CoreTest, ADemandPromotesThePrefetchThatIsUnderWay)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    evict(a);
    ask({all_of(a, Access::kRead)}, kFetchPrefetch);
    ASSERT_EQ(transfers_.size(), 1u);
    EXPECT_EQ(transfers_[0].urgency, Class::kHint);
    const FetchId demand = ask(a, Access::kRead);
    EXPECT_EQ(transfers_.size(), 1u);  // joined, not read twice
    EXPECT_EQ(promotes_, std::vector<TransferId>{transfers_[0].id});
    finish_all();
    EXPECT_TRUE(granted(demand));
}

// It waits for the hint's lock, not for its bytes; a link that is busy with what is more urgent
// than a hint would keep it waiting for as long as that goes on.
TEST_F(CoreTest, AWriterPromotesThePrefetchThatIsInItsWay)
{
    open(4, 0, 16);
    const TensorId a = create("a", 2 * kBlock);
    const TensorId b = create("b", kBlock);
    for (const TensorId tensor : {a, b}) fill(tensor), evict(tensor);
    ask({all_of(b, Access::kRead)}, kFetchPrefetch);
    ask({all_of(a, Access::kRead)}, kFetchPrefetch);
    ASSERT_EQ(transfers_.size(), 3u);
    const FetchId second = ask({all_of(a, Access::kWrite)}, kFetchPrefetch);
    EXPECT_TRUE(promotes_.empty());  // nobody waits for a hint
    const FetchId writer = ask(a, Access::kWrite);
    EXPECT_FALSE(granted(writer));
    EXPECT_EQ(promotes_, (std::vector<TransferId>{transfers_[1].id, transfers_[2].id}));
    ask(a, Access::kWrite);
    EXPECT_EQ(promotes_.size(), 2u);  // once
    finish_all();
    EXPECT_TRUE(granted(writer));
    (void)second;
}

TEST_F(CoreTest, AWriterBesideReadersWaitsForThoseAtOtherPlacesAndForWriters)
{
    open(8, 8, 16);
    const TensorId tensor = create_filled("t", 2 * kBlock);
    const auto beside = [&] {
        return ask({all_of(tensor, Access::kReadWrite)}, kFetchBesideReaders);
    };
    const FetchId reader = ask(tensor, Access::kRead);
    ASSERT_TRUE(granted(reader));
    const FetchId far = ask(tensor, Access::kRead, kHost);
    finish_all();
    ASSERT_TRUE(granted(far));
    const FetchId early = beside();
    EXPECT_FALSE(granted(early)) << "a copy at the host is read";
    release(far);
    finish_all();
    EXPECT_TRUE(granted(early));
    const FetchId second = beside();
    EXPECT_FALSE(granted(second)) << "there is a writer";
    const FetchId plain = ask(tensor, Access::kRead);
    EXPECT_FALSE(granted(plain));
    EXPECT_TRUE(core_->is_awaited(tensor, early));
    EXPECT_TRUE(core_->is_awaited(tensor, second));
    EXPECT_FALSE(core_->is_awaited(tensor, core_->last_fetch()));
    release(early);
    finish_all();
    ASSERT_TRUE(granted(second));
    release(second);
    EXPECT_TRUE(granted(plain));
    EXPECT_FALSE(core_->is_awaited(tensor, early)) << "nobody waits any more";
    release(plain);
    release(reader);
}

TEST_F(CoreTest, TryIsBusyInsteadOfAnyWait)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const FetchId writer = ask(a, Access::kReadWrite);
    const FetchId conflict = ask({all_of(a, Access::kRead)}, kFetchTry);
    EXPECT_EQ(refusal(conflict), STW_ERROR_BUSY);
    EXPECT_THAT(refused_[conflict].sentence(), HasSubstr("tensor 'a'"));
    release(writer);
    EXPECT_TRUE(granted(ask({all_of(a, Access::kRead)}, kFetchTry)));
    const TensorId b = create("b", kBlock);
    fill(b, kDevice);
    evict(b);
    EXPECT_EQ(refusal(ask({all_of(b, Access::kRead)}, kFetchTry)), STW_ERROR_BUSY);
}

TEST_F(CoreTest, ATimeoutUndoesTheFetch)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    evict(a);
    const FetchId late = ask({all_of(a, Access::kRead)}, 0, 100);
    EXPECT_EQ(core_->next_deadline(), 100u);
    now_ = 100;
    Commands out;
    core_->tick(now_, out);
    take(out);
    EXPECT_EQ(refusal(late), STW_ERROR_TIMEOUT);
    EXPECT_EQ(core_->next_deadline(), kNever);
    finish_all();
    EXPECT_TRUE(core_->destroy(a, out).ok());  // no hold was left behind
    take(out);
    EXPECT_EQ(core_->usage(kDevice).used_blocks, 0u);
}

TEST_F(CoreTest, OfWhatIsFrozenOneCopyIsPromised)
{
    open(2, 0, 16, true, 3);
    TensorSpec wanted = spec("large", 4 * kBlock);
    wanted.durable = true;
    const TensorId large = create(wanted);
    wanted.name = "small", wanted.bytes = 100;
    const TensorId small = create(wanted);
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 15u);
    EXPECT_TRUE(core_->freeze(large, true).ok());
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 7u);
    EXPECT_TRUE(core_->freeze(small, true).ok());  // its block may have neighbours to be written
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 7u);
    const TensorId other = create("other", 2 * kBlock);
    EXPECT_EQ(core_->freeze(large, false).code(), STW_ERROR_BUDGET);
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 9u);
    EXPECT_EQ(core_->check(), "");
    Commands out;
    EXPECT_TRUE(core_->destroy(other, out).ok());
    EXPECT_TRUE(core_->freeze(large, false).ok());
    EXPECT_EQ(core_->usage(kNvme).promised_blocks, 15u);
    EXPECT_EQ(core_->check(), "");
}

// ---- faults ------------------------------------------------------------------------------------

TEST_F(CoreTest, AFailedWriteBackKeepsTheBytesAndIsReported)
{
    open(1, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create("b", kBlock);
    const FetchId next = ask(b, Access::kWrite);
    ASSERT_EQ(transfers_.size(), 1u);
    EXPECT_EQ(transfers_[0].to, kNvme);
    finish_next(failure());
    ASSERT_EQ(errors_.size(), 1u);
    EXPECT_EQ(errors_[0].tensor, a);
    EXPECT_EQ(errors_[0].status.code(), STW_ERROR_IO);
    EXPECT_TRUE(resident(a, kDevice));
    EXPECT_EQ(refusal(next), STW_ERROR_BUDGET);
    EXPECT_THAT(refused_[next].sentence(), HasSubstr("write-back failed"));
    forgive();
    const FetchId again = ask(b, Access::kWrite);
    finish_all();
    EXPECT_TRUE(granted(again));
    EXPECT_TRUE(resident(a, kNvme));
}

TEST_F(CoreTest, WhoWaitsForRoomGetsThatOfForgivenWrites)
{
    open(2, 0, 16);
    create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    const TensorId c = create("c", kBlock);
    const FetchId view = ask(b, Access::kRead);
    const FetchId waits = ask({all_of(c, Access::kWrite)}, kFetchWaitRoom);
    ASSERT_EQ(transfers_.size(), 1u);
    finish_next(failure());
    EXPECT_FALSE(granted(waits));
    EXPECT_EQ(refusal(waits), STW_OK) << "the view may end";
    forgive();
    finish_all();
    EXPECT_TRUE(granted(waits));
    release(view);
}

TEST_F(CoreTest, AFailedReadIsTheFetchesErrorAndTheNextOneTriesAgain)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    evict(a);
    const FetchId fails = ask(a, Access::kRead);
    finish_next(failure());
    EXPECT_EQ(refusal(fails), STW_ERROR_IO);
    EXPECT_EQ(core_->contents(a), Contents::kValid);
    const FetchId works = ask(a, Access::kRead);
    finish_all();
    EXPECT_TRUE(granted(works));
}

TEST_F(CoreTest, AFailedReadIsTriedFromAnotherReplica)
{
    open(2, 2, 16);
    const TensorId a = create("a", kBlock);
    fill(a, kHost);
    Commands out;
    core_->write_back_all(out);
    take(out);
    finish_all();
    ASSERT_TRUE(resident(a, kNvme));
    ASSERT_TRUE(resident(a, kHost));
    const FetchId id = ask(a, Access::kRead);
    ASSERT_EQ(transfers_[0].from, kHost);
    finish_next(failure());
    ASSERT_EQ(transfers_.size(), 1u);
    EXPECT_EQ(transfers_[0].from, kNvme);
    finish_all();
    EXPECT_TRUE(granted(id));
}

// ---- coherence and contents --------------------------------------------------------------------

TEST_F(CoreTest, AWriteMakesOtherReplicasStaleAtOnce)
{
    open(2, 2, 16);
    const TensorId a = create("a", kBlock);
    fill(a, kHost);
    const FetchId reader = ask(a, Access::kRead, kDevice);
    finish_all();
    release(reader);
    ASSERT_TRUE(resident(a, kHost));
    ASSERT_TRUE(resident(a, kDevice));
    const FetchId writer = ask(a, Access::kReadWrite, kDevice);
    ASSERT_TRUE(granted(writer));
    EXPECT_FALSE(resident(a, kHost));
    EXPECT_FALSE(core_->gate(a, kHost).try_pin());
    release(writer);
    EXPECT_EQ(core_->residence(a), 1u << kDevice);
}

// What the tensor was at nvme is the other one's there, block by block as they are written, and
// both have their room.
TEST_F(CoreTest, AWriteUnderAClaimLeavesOlderContents)
{
    open(4, 4, 4);
    const TensorId a = create_filled("a", 2 * kBlock);
    TensorSpec other = spec("older", 2 * kBlock);
    other.no_packing = true;
    const TensorId older = create(other);
    Commands out;
    core_->write_back_all(out);
    take(out);
    finish_all();
    ASSERT_TRUE(resident(a, kNvme));
    const ClaimId claim = core_->claim();
    core_->claim_tensor(claim, a);
    core_->claim_tensor(claim, older);
    core_->keep_older(a, older);
    core_->evict(a, kNvme, out);
    EXPECT_TRUE(out.forgets.empty()) << "it would be lost";
    FetchAsked asked;
    asked.claim = claim;
    asked.requests = {all_of(a, Access::kReadWrite)};
    asked.requests[0].byte_count = kBlock;
    const FetchId first = core_->fetch(asked, out);
    ASSERT_EQ(out.forgets.size(), 1u);
    EXPECT_EQ(out.forgets[0].block, core_->blocks_of(a).first);
    EXPECT_EQ(out.forgets[0].heir, core_->blocks_of(older).first);
    take(out);
    EXPECT_TRUE(granted(first));
    EXPECT_EQ(core_->contents(older), Contents::kValid);
    EXPECT_EQ(core_->used_blocks(kNvme), 2u);
    EXPECT_EQ(core_->block_state(core_->blocks_of(older).first, kNvme), BlockState::kValid);
    EXPECT_EQ(core_->block_state(core_->blocks_of(older).first + 1, kNvme), BlockState::kAbsent);
    Release release;
    release.tensor = a;
    release.access = Access::kReadWrite;
    release.place = kDevice;
    release.byte_count = kBlock;
    release.claim = claim;
    core_->release(release, out);
    take(out);
    update_under(claim, a, false);  // writes the first block again: that is not older
    EXPECT_EQ(core_->used_blocks(kNvme), 2u);
    core_->write_back_all(out);
    take(out);
    finish_all();
    EXPECT_EQ(core_->used_blocks(kNvme), 4u);
    EXPECT_TRUE(resident(older, kNvme));
    core_->unclaim_tensor(claim, older, true, out);
    take(out);
    EXPECT_EQ(core_->used_blocks(kNvme), 2u);
    unclaim(claim, a);
    const ClaimId next = core_->claim();
    core_->claim_tensor(next, a);
    update_under(next, a, false);
    EXPECT_EQ(core_->contents(older), Contents::kEmpty) << "it ended with the claim";
    unclaim(next, a);
}

TEST_F(CoreTest, EmptyIsAnErrorOfReadersOnly)
{
    open(2, 0, 16);
    const TensorId a = create("a", kBlock);
    EXPECT_EQ(refusal(ask(a, Access::kRead)), STW_ERROR_EMPTY);
    EXPECT_EQ(refusal(ask(a, Access::kReadWrite)), STW_ERROR_EMPTY);
    const FetchId first = ask(a, Access::kWriteEmpty);
    finish_all();
    EXPECT_TRUE(granted(first));
    release(first);
    EXPECT_EQ(refusal(ask(a, Access::kWriteEmpty)), STW_ERROR_EXISTS);
    EXPECT_TRUE(granted(ask(a, Access::kRead)));
}

TEST_F(CoreTest, AClaimKeepsLaterFetchesOut)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const ClaimId claim = core_->claim();
    core_->claim_tensor(claim, a);
    EXPECT_FALSE(core_->gate(a, kDevice).try_pin());
    const FetchId outside = ask(a, Access::kRead);
    EXPECT_FALSE(granted(outside));
    update_under(claim, a, false);
    EXPECT_FALSE(granted(outside));
    unclaim(claim, a);
    EXPECT_TRUE(granted(outside));
}

TEST_F(CoreTest, AClaimThatOnlyReadsKeepsWritersOutAndNoReaders)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const FetchId written = ask(a, Access::kReadWrite);
    const ClaimId claim = core_->claim(ClaimKind::kReads);
    core_->claim_tensor(claim, a);
    FetchAsked asked;
    asked.claim = claim;
    asked.requests = {all_of(a, Access::kRead)};
    Commands out;
    const FetchId first = core_->fetch(asked, out);
    take(out);
    EXPECT_FALSE(granted(first)) << "it is still written";
    release(written);
    EXPECT_TRUE(granted(first));
    EXPECT_TRUE(core_->gate(a, kDevice).try_pin());
    const FetchId second = core_->fetch(asked, out);
    take(out);
    EXPECT_TRUE(granted(second)) << "beside the pin";
    EXPECT_TRUE(granted(ask({all_of(a, Access::kRead)}, kFetchTry)));
    const FetchId writes = ask(a, Access::kReadWrite);
    EXPECT_FALSE(granted(writes));
    EXPECT_TRUE(core_->is_barred(a, Access::kWrite));
    EXPECT_FALSE(core_->is_barred(a, Access::kRead));
}

TEST_F(CoreTest, BehindAClaimThatOnlyReadsAnUpdateKeepsReadersOut)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const ClaimId reads = core_->claim(ClaimKind::kReads);
    const ClaimId updates = core_->claim();
    core_->claim_tensor(reads, a);
    EXPECT_TRUE(core_->gate(a, kDevice).is_open());
    core_->claim_tensor(updates, a);
    EXPECT_FALSE(core_->gate(a, kDevice).is_open());
    const FetchId later = ask(a, Access::kRead);
    EXPECT_FALSE(granted(later)) << "it is to read what the update writes";
    const FetchId update = ask_under(updates, a);
    EXPECT_FALSE(granted(update));
    unclaim(reads, a);
    EXPECT_TRUE(granted(update));
    release_under(updates, a);
    EXPECT_FALSE(granted(later));
    unclaim(updates, a);
    EXPECT_TRUE(granted(later));
}

TEST_F(CoreTest, WhatAClaimLendsIsReadUntilItWrites)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const ClaimId claim = core_->claim();
    core_->claim_tensor(claim, a);
    const auto lent = [&](Access access) { return ask({all_of(a, access)}, kFetchLent); };
    const FetchId waits = lent(Access::kRead);
    update_under(claim, a, false);
    EXPECT_FALSE(granted(waits)) << "it is not lent yet";
    Commands out;
    core_->lend(claim, a, out);
    take(out);
    EXPECT_TRUE(granted(waits));
    EXPECT_FALSE(core_->gate(a, kDevice).try_pin()) << "the others wait all the same";
    const FetchId other = ask(a, Access::kRead);
    const FetchId writes = lent(Access::kWrite);
    EXPECT_FALSE(granted(other));
    EXPECT_FALSE(granted(writes));
    const FetchId redone = ask_under(claim, a);
    EXPECT_FALSE(granted(redone)) << "a view is open";
    const FetchId late = lent(Access::kRead);
    EXPECT_FALSE(granted(late));
    release(waits);
    EXPECT_TRUE(granted(redone));
    EXPECT_FALSE(granted(late));
    release_under(claim, a);
    EXPECT_FALSE(granted(late)) << "lent once";
    unclaim(claim, a);
    EXPECT_TRUE(granted(other));
    EXPECT_TRUE(granted(late));
}

TEST_F(CoreTest, WhatAnUpdateMissedIsNotReadUntilForgivenOrWritten)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const ClaimId claim = core_->claim();
    core_->claim_tensor(claim, a);
    const FetchId waits = ask(a, Access::kRead);
    core_->miss(a, Status::error(STW_ERROR_CHECKSUM, "the gradient cannot be read"));
    unclaim(claim, a);
    EXPECT_EQ(refusal(waits), STW_ERROR_CHECKSUM);
    EXPECT_EQ(refusal(ask(a, Access::kRead)), STW_ERROR_CHECKSUM);
    EXPECT_FALSE(core_->gate(a, kDevice).try_pin());
    EXPECT_EQ(core_->contents(a), Contents::kValid);
    forgive();
    const FetchId old = ask(a, Access::kRead);
    EXPECT_TRUE(granted(old));
    release(old);
    core_->miss(a, Status::error(STW_ERROR_CHECKSUM, "the gradient cannot be read"));
    fill(a);
    EXPECT_TRUE(granted(ask(a, Access::kRead)));
}

// Else an update of a thousand small tensors would write their block a thousand times.
TEST_F(CoreTest, ASharedBlockIsWrittenBackEarlyWhenTheLastUpdateInItIsOver)
{
    open(8, 0, 16);
    const TensorId small[] = {create("a", kBlock / 4), create("b", kBlock / 4)};
    ASSERT_EQ(core_->pack_of(small[0]), core_->pack_of(small[1]));
    for (const TensorId tensor : small) fill(tensor);
    fill(create("rest", 7 * kBlock));  // where the device is not full nothing leaves early
    const ClaimId claim = core_->claim();
    for (const TensorId tensor : small) core_->claim_tensor(claim, tensor);
    finish_all();
    for (const TensorId tensor : small) update_under(claim, tensor, true);
    EXPECT_TRUE(transfers_.empty());
    unclaim(claim, small[1]);
    EXPECT_TRUE(transfers_.empty());
    unclaim(claim, small[0]);
    ASSERT_EQ(transfers_.size(), 1u);
    EXPECT_EQ(transfers_[0].to, kNvme);
}

// A sum that is about to be used up is not worth its writes, wherever it rests; all of it can be
// asked for still.
TEST_F(CoreTest, WhatIsHotIsNotWrittenBackEarlyFromAFullDevice)
{
    for (const PlaceId home : {kDevice, kNvme}) {
        open(8, 0, 16);
        fill(create("rest", 6 * kBlock));
        TensorSpec wanted = spec("hot", kBlock);
        wanted.policy.home = home;
        const TensorId hot = create(wanted);
        wanted.name = "other";
        const TensorId other = create(wanted);
        Commands out;
        core_->advise(hot, Advice::kHot, out);
        fill(hot);
        fill(other);
        for (const TensorId tensor : {hot, other}) release(ask(tensor, Access::kRead), true);
        finish_all();
        EXPECT_TRUE(resident(other, kNvme)) << home;
        EXPECT_FALSE(resident(hot, kNvme)) << home;
        core_->write_back_all(out);
        take(out);
        finish_all();
        EXPECT_TRUE(resident(hot, kNvme)) << home;
    }
}

// ---- refusals, hits ----------------------------------------------------------------------------

TEST_F(CoreTest, ARefusalTellsTheSumOfAllThatWasAsked)
{
    open(0, 8, 64);
    std::vector<Request> all;
    for (const char *name : {"a", "b", "c"}) {
        all.push_back(all_of(create(name, 4 * kBlock), Access::kWrite, kHost));
    }
    const FetchId id = ask(all);
    ASSERT_EQ(refusal(id), STW_ERROR_BUDGET);
    EXPECT_EQ(refused_[id].detail()->needed_bytes, 12 * kBlock);
    EXPECT_EQ(refused_[id].detail()->free_bytes, 8 * kBlock);
}

TEST_F(CoreTest, ARefusalCountsWhatIsThereAlready)
{
    open(4, 0, 16);
    const TensorId held = create_filled("held", kBlock);
    const TensorId a = create_filled("a", 2 * kBlock);
    const TensorId b = create("b", 2 * kBlock);
    ask(held, Access::kRead);
    release(ask(a, Access::kRead));
    const FetchId id = ask({all_of(a, Access::kRead), all_of(b, Access::kWrite)});
    ASSERT_EQ(refusal(id), STW_ERROR_BUDGET);
    EXPECT_EQ(refused_[id].detail()->needed_bytes, 4 * kBlock);  // two of them need no transfer
    EXPECT_EQ(refused_[id].detail()->pinned_bytes, kBlock);
}

TEST_F(CoreTest, AWaitForNvmeIsToldFromOneForTheHost)
{
    for (const uint32_t host_blocks : {0u, 4u}) {
        open(4, host_blocks, 16);
        const TensorId a = create_filled("a", 2 * kBlock);
        evict(a);
        const FetchId id = ask(a, Access::kRead);
        ASSERT_TRUE(core_->is_waiting(id));
        EXPECT_EQ(core_->waits_for_nvme(id), host_blocks == 0);
        finish_all();
        EXPECT_FALSE(core_->waits_for_nvme(id));
        release(id);
    }
}

TEST_F(CoreTest, AHitPinsThroughTheGate)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const FetchId id = ask(a, Access::kRead);
    ASSERT_TRUE(granted(id));
    EXPECT_TRUE(granted_[id].grants[0].by_gate);
    EXPECT_EQ(core_->gate(a, kDevice).pins(), 1u);
    EXPECT_EQ(core_->usage(kDevice).pinned_blocks, 1u);
    const FetchId writer = ask(a, Access::kReadWrite);
    EXPECT_FALSE(granted(writer));
    EXPECT_FALSE(core_->gate(a, kDevice).try_pin());
    release(id);
    EXPECT_TRUE(granted(writer));
}

// A device across a bus and nothing else near: there is nowhere to go to.
TEST_F(CoreTest, WorkOfTheCpuIsRefusedWhereItReachesNoTier)
{
    open(2, 0, 16, false);
    const TensorId a = create("a", kBlock);
    const FetchId id = ask(a, Access::kWrite, kAnyCpuPlace);
    ASSERT_TRUE(refused_.count(id));
    EXPECT_EQ(refused_[id].code(), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(refused_[id].sentence()).find("host_bytes"), std::string::npos);
}

// Others bring back what has left: an eviction that waited for all of it to be away at once would
// end when they do.
TEST_F(CoreTest, WhatComesBackDoesNotProlongAnEviction)
{
    open(4, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    const FetchId view = ask(b, Access::kRead);
    std::vector<BlockId> left;
    core_->list_blocks(a, kDevice, &left);
    core_->list_blocks(b, kDevice, &left);
    ASSERT_EQ(left.size(), 2u);
    const auto evict_them = [&] {
        Commands out;
        core_->evict(&left, kDevice, out);
        take(out);
        finish_all();
    };
    evict_them();
    evict_them();
    EXPECT_EQ(left.size(), 1u);
    const FetchId again = ask(a, Access::kRead);
    finish_all();
    EXPECT_TRUE(granted(again));
    release(view);
    evict_them();
    evict_them();
    EXPECT_TRUE(left.empty());
    EXPECT_TRUE(resident(a, kDevice));
}

}  // namespace
}  // namespace stepwell::residency
