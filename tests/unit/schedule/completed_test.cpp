// SPDX-License-Identifier: Apache-2.0
// What a recording leaves out, put back: a replay has to be able to go through the step again and
// again, and it costs what the program's step costs.
#include "lib/schedule/trace/completed.h"
#include "lib/schedule/trace/uses.h"
#include "tests/unit/schedule/replay_fixture.h"

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::TensorId;

Event fetch_of(TensorId tensor, Access access = Access::kRead, uint64_t compute_ns = 0)
{
    Event event;
    event.tensor = tensor;
    event.access = access;
    event.place = kDevice;
    event.byte_count = kBlock;
    event.compute_ns = compute_ns;
    return event;
}

Event release_of(TensorId tensor, Access access = Access::kRead, uint64_t compute_ns = 0)
{
    Event event = fetch_of(tensor, access, compute_ns);
    event.act = Act::kRelease;
    return event;
}

Event discard_of(TensorId tensor, Lane lane = Lane::kProgram)
{
    Event event;
    event.act = Act::kDiscard;
    event.lane = lane;
    event.tensor = tensor;
    return event;
}

// "f0 r0 d1": what happens to which tensor, in order.
std::string order(const Step &step)
{
    std::string words;
    for (const Event &event : step) {
        words += words.empty() ? "" : " ";
        words += event.act == Act::kFetch ? 'f' : event.act == Act::kRelease ? 'r' : 'd';
        words += std::to_string(event.tensor);
        if (event.hint == Hint::kDiscard) words += 'x';
    }
    return words;
}

uint64_t compute_of(const Step &step)
{
    uint64_t compute_ns = 0;
    for (const Event &event : step) compute_ns += event.compute_ns;
    return compute_ns;
}

std::string delayed(Step step, uint32_t budget_blocks)
{
    residency::Config config;
    config.block_bytes = kBlock;
    config.places.resize(kDevice + 1);
    config.places[kDevice].blocks = budget_blocks;
    const uint64_t compute_ns = compute_of(step);
    delay_releases(step, 1u << kDevice, config);
    EXPECT_EQ(compute_of(step), compute_ns);
    return order(step);
}

TEST(DelayedReleases, ComeAfterTheNextCall)
{
    const Step step = {fetch_of(0),   release_of(0, Access::kRead, 5), fetch_of(1),
                       release_of(1), fetch_of(2, Access::kRead, 7),   release_of(2)};
    EXPECT_EQ(delayed(step, 2), "f0 f1 r0 f2 r1 r2");
    EXPECT_EQ(delayed(step, 1), "f0 r0 f1 r1 f2 r2");
    Step elsewhere = step;
    delay_releases(elsewhere, 0, residency::Config());
    EXPECT_EQ(order(elsewhere), order(step));
}

TEST(DelayedReleases, LeaveRoomForWholeBlocks)
{
    Step step = {fetch_of(0), release_of(0), fetch_of(1), release_of(1)};
    for (Event &event : step) event.byte_count = kBlock + 1;
    EXPECT_EQ(delayed(step, 4), "f0 f1 r0 r1");
    EXPECT_EQ(delayed(step, 3), "f0 r0 f1 r1");
}

TEST(DelayedReleases, LetTheNextUserOfTheTensorGoOn)
{
    Event first = fetch_of(1);
    first.with_next = true;
    EXPECT_EQ(delayed({fetch_of(0), release_of(0), first, fetch_of(0, Access::kWrite),
                       release_of(1), release_of(0, Access::kWrite), discard_of(0)},
                      8),
              "f0 r0 f1 f0 r0 d0 r1");
    Event update = fetch_of(0, Access::kReadWrite);
    update.lane = Lane::kUpdate;
    EXPECT_EQ(delayed({fetch_of(0), release_of(0), update, fetch_of(1), release_of(1)}, 8),
              "f0 r0 f0 f1 r1");
}

class CompletedTest : public ReplayTest {
protected:
    // Twice, as what is left behind by the first must do for the second.
    void expect_replays(const Step &step, const std::vector<uint32_t> &blocks)
    {
        open(machine_of(4), blocks);
        (void)run(step);
        (void)run(step);
    }
};

TEST_F(CompletedTest, AViewEndsBehindTheComputingAndBeforeTheNextCall)
{
    const Step step = completed(
        {fetch_of(0), fetch_of(1, Access::kRead, 100), fetch_of(2, Access::kRead, 200)}, kBlock);
    EXPECT_EQ(order(step), "f0 r0 f1 r1 f2 r2");
    EXPECT_EQ(step[1].compute_ns, 100u);
    EXPECT_EQ(step[2].compute_ns, 0u);
    EXPECT_EQ(step[3].compute_ns, 200u);
    expect_replays(step, {1, 1, 1});
}

TEST_F(CompletedTest, ViewsOfOneCallEndTogether)
{
    Step recorded = {fetch_of(0), fetch_of(1), fetch_of(2, Access::kRead, 50)};
    recorded[0].with_next = true;
    const Step step = completed(recorded, kBlock);
    EXPECT_EQ(order(step), "f0 f1 r0 r1 f2 r2");
    EXPECT_EQ(step[2].compute_ns, 50u);
    expect_replays(step, {1, 1, 1});
}

TEST_F(CompletedTest, AViewWhoseEndWasSeenIsHeldUntilThen)
{
    const Step step = completed({fetch_of(0, Access::kReadWrite), fetch_of(1, Access::kRead, 10),
                                 fetch_of(2), release_of(0, Access::kReadWrite, 20)},
                                kBlock);
    EXPECT_EQ(order(step), "f0 f1 r1 f2 r0 r2");
    EXPECT_EQ(compute_of(step), 30u);
    expect_replays(step, {1, 1, 1});
}

TEST_F(CompletedTest, AnEndPastTheLockIsOfTheOldestViewAndHasItsBytes)
{
    Event first = fetch_of(0);
    first.byte_begin = 64;
    first.byte_count = 32;
    Event end = release_of(0, Access::kRead, 7);
    end.byte_count = 0;
    const Step step = completed({first, fetch_of(0), end, fetch_of(1), end}, 1 << 20);
    EXPECT_EQ(order(step), "f0 f0 r0 f1 r0 r1");
    EXPECT_EQ(step[2].byte_begin, 64u);
    EXPECT_EQ(step[2].byte_count, 32u);
    EXPECT_EQ(step[2].compute_ns, 7u);
}

// The update was asked while the program had the tensor, and got it when that was over.
TEST_F(CompletedTest, AViewEndsBeforeTheOtherLanesFetchThatHasWaitedForIt)
{
    Event update = fetch_of(0, Access::kReadWrite);
    update.lane = Lane::kUpdate;
    Event done = release_of(0, Access::kReadWrite);
    done.lane = Lane::kUpdate;
    const Step step = completed(
        {fetch_of(0), update, release_of(0, Access::kRead, 6), fetch_of(1), done}, 1 << 20);
    EXPECT_EQ(order(step), "f0 r0 f0 f1 r0 r1");
    EXPECT_EQ(step[1].lane, Lane::kProgram);
    EXPECT_EQ(step[1].compute_ns, 6u);
}

TEST_F(CompletedTest, PiecesOfAnUpdateFollowEachOther)
{
    Event piece = fetch_of(0, Access::kReadWrite);
    piece.lane = Lane::kUpdate;
    Event done = release_of(0, Access::kReadWrite, 3);
    done.lane = Lane::kUpdate;
    const Step step = completed({piece, piece, done, done}, kBlock);
    EXPECT_EQ(order(step), "f0 r0 f0 r0");
    EXPECT_EQ(compute_of(step), 6u);
    expect_replays(step, {1});
}

TEST_F(CompletedTest, AReleaseWithoutAFetchIsLeftOutAndItsTimeIsNot)
{
    const Step step =
        completed({release_of(3, Access::kRead, 70), fetch_of(0), release_of(0)}, kBlock);
    EXPECT_EQ(order(step), "f0 r0");
    EXPECT_EQ(step[0].compute_ns, 70u);
}

TEST_F(CompletedTest, LanesEndTheirOwnViewsAndADiscardEndsThoseOfItsTensor)
{
    Step recorded = {fetch_of(1, Access::kWrite),
                     release_of(1, Access::kWrite),
                     fetch_of(0),
                     fetch_of(1),
                     fetch_of(2),
                     discard_of(1, Lane::kUpdate)};
    recorded[3].lane = Lane::kUpdate;
    const Step step = completed(recorded, kBlock);
    EXPECT_EQ(order(step), "f1 r1 f0 f1 r0 f2 r1 d1 r2");
    expect_replays(step, {1, 1, 1});
}

TEST_F(CompletedTest, WhatIsReadAfterADiscardWasWrittenUnseen)
{
    const Step unseen = completed({fetch_of(0), release_of(0), discard_of(0)}, kBlock);
    EXPECT_EQ(order(unseen), "f0 r0");
    expect_replays(unseen, {1});
    const Step seen = completed(
        {fetch_of(0, Access::kWrite), release_of(0, Access::kWrite), discard_of(0)}, kBlock);
    EXPECT_EQ(order(seen), "f0 r0 d0");
    expect_replays(seen, {1});
}

TEST_F(CompletedTest, TheFirstSumIsAWriteAndTheOthersAddToIt)
{
    const Step step = completed({fetch_of(0, Access::kWriteEmpty), release_of(0, Access::kWrite),
                                 fetch_of(0, Access::kWriteEmpty), release_of(0, Access::kWrite),
                                 discard_of(0, Lane::kUpdate)},
                                kBlock);
    EXPECT_EQ(step[0].access, Access::kWrite);
    EXPECT_EQ(step[2].access, Access::kReadWrite);
    expect_replays(step, {1});
    // Without a discard the sum of the last step is still there.
    const Step kept =
        completed({fetch_of(0, Access::kWriteEmpty), release_of(0, Access::kWrite)}, kBlock);
    EXPECT_EQ(kept[0].access, Access::kReadWrite);
    expect_replays(kept, {1});
}

TEST_F(CompletedTest, AnUpdateThatWaitsForAViewComesBehindIt)
{
    // Asked for while the program has the bytes: of 0 it says when it is through, of 1 it does not.
    Step recorded = {fetch_of(0, Access::kReadWrite),   fetch_of(2, Access::kReadWrite),
                     fetch_of(0, Access::kReadWrite),   fetch_of(1, Access::kReadWrite),
                     release_of(0, Access::kReadWrite), fetch_of(1),
                     fetch_of(1, Access::kReadWrite)};
    for (const size_t i : {1, 2, 3, 6}) recorded[i].lane = Lane::kUpdate;
    recorded[2].with_next = true;
    const Step step = completed(recorded, kBlock);
    EXPECT_EQ(order(step), "f0 f2 r0 r2 f0 f1 r1 f1 r0 r1 f1 r1");
    expect_replays(step, {1, 1, 1});
}

TEST_F(CompletedTest, ASumByABufferIsOneOfTheProgramsOwn)
{
    // 0 is asked for by the program, 1 comes from memory of its own; 2 is a buffer.
    Step step = {fetch_of(0, Access::kWriteEmpty),
                 fetch_of(0, Access::kReadWrite),
                 fetch_of(2),
                 fetch_of(1, Access::kReadWrite),
                 fetch_of(2),
                 fetch_of(1, Access::kReadWrite)};
    for (size_t i = 1; i < step.size(); ++i) step[i].lane = Lane::kUpdate;
    step[1].with_next = step[3].with_next = true;
    fold_sums(step, {false, false, true});
    EXPECT_EQ(order(step), "f0 f1 f1");
    EXPECT_EQ(step[1].lane, Lane::kProgram);
    EXPECT_FALSE(step[1].with_next);
    EXPECT_EQ(step[2].lane, Lane::kUpdate) << "an update, by no buffer";
}

TEST_F(CompletedTest, ACopyThatIsLargerThanTheRoomGoesPieceByPiece)
{
    Event copy = fetch_of(0, Access::kRead, 40);
    copy.place = residency::kAnyCpuPlace;
    copy.byte_begin = 10;
    copy.byte_count = 20 * kBlock;
    const Step step = completed({copy, fetch_of(1)}, 8 * kBlock);
    EXPECT_EQ(order(step), "f0 r0 f0 r0 f0 r0 f1 r1");
    EXPECT_EQ(step[4].byte_begin, 10 + 16 * kBlock);
    EXPECT_EQ(step[4].byte_count, 4 * kBlock);
    EXPECT_EQ(compute_of(step), 40u);
    open(machine_of(10), {21, 1});
    (void)run(step);
}

}  // namespace
}  // namespace stepwell::schedule
