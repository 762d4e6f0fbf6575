// SPDX-License-Identifier: Apache-2.0
// What is proposed for prefetching, on a real core whose transfers a test ends by hand.
#include "lib/schedule/lookahead/lookahead.h"
#include "tests/unit/residency/core_fixture.h"
#include "tests/unit/schedule/time.h"

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::Commands;
using residency::FetchAsked;
using residency::FetchId;
using residency::Instant;
using residency::kBlock;
using residency::kDevice;
using residency::kHost;
using residency::kNever;
using residency::kNvme;
using residency::PlaceId;
using residency::TensorId;

constexpr uint64_t kBytesPerS = kBlock * 1000;  // a block takes 1 ms

// A list of uses, and the policy that knows it.
class Listed final : public Forecast, public residency::VictimPolicy {
public:
    [[nodiscard]] uint64_t turn() const override { return turns; }
    [[nodiscard]] uint64_t passed() const override { return over; }
    [[nodiscard]] Instant passed_at() const override { return at; }
    [[nodiscard]] std::optional<Expected> ahead(uint64_t fetches) const override
    {
        if (over + fetches >= uses.size()) return {};
        Expected use = uses[over + fetches];
        use.distance = fetches;
        return use;
    }
    [[nodiscard]] uint64_t next_use(TensorId tensor) const override
    {
        for (uint64_t i = over; i < uses.size(); ++i) {
            if (uses[i].request.tensor == tensor) return i - over;
        }
        return kNever;
    }
    std::vector<Expected> uses;
    uint64_t turns = 1;
    uint64_t over = 0;
    Instant at = 0;
};

class LookaheadTest : public residency::CoreTest {
protected:
    void open_listed(uint32_t device, uint32_t host, uint32_t nvme)
    {
        open(device, host, nvme);
        core_->set_victim_policy(&list_);
        for (const PlaceId to : {kDevice, kHost}) {
            lookahead_.set_bandwidth(kNvme, to, kBytesPerS);
            lookahead_.set_bandwidth(kHost, to, kBytesPerS);
        }
    }
    // For a new tensor that is written after 50 ms, of which it costs so many; its room is made.
    TensorId plan_room(Instant cost_ns)
    {
        const TensorId fresh = create("fresh", kBlock);
        fill(create("old", 2 * kBlock));
        now_ = list_.at = kMs;
        expect(fresh, 50 * kMs, Access::kWrite);
        EXPECT_EQ(plan(), "");
        EXPECT_EQ(lookahead_.wake(), kMs + 50 * kMs - cost_ns - kMs);
        now_ = lookahead_.wake();
        EXPECT_EQ(plan(), "fresh@0 ");
        finish_hints();
        return fresh;
    }
    TensorId stored(const char *name, uint64_t blocks = 1)
    {
        const TensorId tensor = create(name, blocks * kBlock);
        fill(tensor);
        evict(tensor);
        Commands out;
        core_->evict(tensor, kHost, out);
        take(out);
        finish_all();
        EXPECT_FALSE(resident(tensor, kHost));
        return tensor;
    }
    void expect(TensorId tensor, uint64_t compute_ns = 0, Access access = Access::kRead)
    {
        list_.uses.push_back({all_of(tensor, access), compute_ns, 0});
    }
    // A device that is full of one tensor, where another one comes next.
    std::pair<TensorId, TensorId> open_for_large()
    {
        open_listed(32, 0, 96);
        const TensorId large = stored("large", 24);
        const TensorId old = create("old", 32 * kBlock);
        fill(old);
        expect(large);
        return {large, old};
    }
    std::vector<TensorId> store(size_t n)
    {
        std::vector<TensorId> all;
        for (size_t i = 0; i < n; ++i) all.push_back(stored(("t" + std::to_string(i)).c_str()));
        return all;
    }
    // Asks the core for all that is proposed; "tensor@place" of each.
    std::string plan()
    {
        std::string text;
        while (const std::optional<FetchAsked> asked = lookahead_.next(*core_, list_, now_)) {
            const residency::Request &request = asked->requests.at(0);
            text += core_->spec(request.tensor).name + "@" + std::to_string(request.place) + " ";
            Commands out;
            const FetchId id = core_->fetch(*asked, out);
            lookahead_.asked(id);
            hints_.push_back(id);
            take(out);
            tell();
        }
        return text;
    }
    void tell()
    {
        for (const FetchId id : hints_) {
            if (granted(id)) lookahead_.ended(id, Lookahead::End::kThere);
            if (refusal(id) != STW_OK) lookahead_.ended(id, Lookahead::End::kNoRoom);
        }
    }
    void finish_hints()
    {
        finish_all();
        tell();
    }
    void use_next()
    {
        const FetchId id = ask({list_.uses[list_.over].request});
        ++list_.over;
        finish_all();
        release(id);
    }

    Listed list_;
    Lookahead lookahead_{kHost, kNvme};
    std::vector<FetchId> hints_;
};

TEST_F(LookaheadTest, TheNearestUsesComeFirstAndOnlyAsManyAsHaveRoomBesideEachOther)
{
    open_listed(8, 0, 16);
    for (const TensorId tensor : store(10)) expect(tensor);
    EXPECT_EQ(plan(), "t0@0 t1@0 t2@0 t3@0 t4@0 t5@0 t6@0 ");  // an eighth stays free
    EXPECT_EQ(lookahead_.horizon(kDevice), 7u);
    finish_hints();
    EXPECT_EQ(plan(), "");
    use_next();
    EXPECT_EQ(plan(), "t7@0 ");
    finish_hints();
    EXPECT_TRUE(resident(list_.uses[1].request.tensor, kDevice));
}

// Neither near nor far, and what is sure behind it comes all the same.
TEST_F(LookaheadTest, WhatIsNotSureIsNotProposed)
{
    open_listed(4, 8, 32);
    const std::vector<TensorId> all = store(10);
    for (const TensorId tensor : all) expect(tensor);
    for (const size_t i : {0u, 2u, 3u, 7u}) list_.uses[i].unsure = true;
    EXPECT_EQ(plan(), "t1@0 t4@0 t5@0 t6@0 t8@1 t9@1 ");
    finish_hints();
    EXPECT_EQ(plan(), "");
}

TEST_F(LookaheadTest, WhatIsThereOrUnderWayIsNotProposed)
{
    open_listed(8, 0, 16);
    const std::vector<TensorId> all = store(3);
    for (const TensorId tensor : all) expect(tensor);
    ask(all[0], Access::kRead);
    finish_all();
    ask(all[1], Access::kRead);
    EXPECT_EQ(plan(), "t2@0 ");
    EXPECT_EQ(lookahead_.horizon(kDevice), kNever);
}

TEST_F(LookaheadTest, BehindTheNearOnesTheDiskIsReadIntoTheHostTier)
{
    open_listed(2, 4, 16);
    for (const TensorId tensor : store(7)) expect(tensor);
    EXPECT_EQ(plan(), "t0@0 t1@0 t2@1 t3@1 t4@1 t5@1 ");
    EXPECT_EQ(lookahead_.horizon(kDevice), 6u);  // the disk alone has room for the last one
    finish_hints();
    use_next();
    // From the host, in the room of what has been used. The last one is asked for in vain: nothing
    // leaves the host for it that is used before.
    EXPECT_EQ(plan(), "t2@0 t6@1 ");
    ASSERT_FALSE(transfers_.empty());
    EXPECT_EQ(transfers_[0].from, kHost);
    finish_hints();
    EXPECT_TRUE(resident(list_.uses[2].request.tensor, kDevice));
    for (size_t i = 3; i < 6; ++i) EXPECT_TRUE(resident(list_.uses[i].request.tensor, kHost));
}

// They work where the bytes are and the processor can: in the host tier, of what is on the disk.
TEST_F(LookaheadTest, WhatUpdatesBeginWithIsReadIntoTheHostTierBehindTheProgramsUses)
{
    open_listed(4, 4, 16);
    const std::vector<TensorId> all = store(6);
    for (size_t i = 0; i < 6; ++i) {
        expect(all[i], 0, i == 0 ? Access::kRead : Access::kReadWrite);
        if (i == 0) continue;
        list_.uses[i].update = true;
        list_.uses[i].request.place = residency::kAnyCpuPlace;
    }
    ask(all[2], Access::kRead);  // on the device, whose bytes the processor reaches
    finish_all();
    EXPECT_EQ(plan(), "t0@0 t1@1 t3@1 t4@1 t5@1 ");
    finish_hints();
    EXPECT_FALSE(resident(all[2], kHost));
    EXPECT_TRUE(resident(all[1], kHost));
}

TEST_F(LookaheadTest, WhatUpdatesBeginWithIsReadAgainWhereItHasLeftBefore)
{
    open_listed(4, 4, 16);
    const std::vector<TensorId> all = store(2);
    for (size_t i = 0; i < 2; ++i) {
        expect(all[i], 0, Access::kReadWrite);
        list_.uses[i].update = true;
        list_.uses[i].request.place = residency::kAnyCpuPlace;
    }
    const FetchId view = ask(all[0], Access::kRead);  // on the device
    finish_all();
    EXPECT_EQ(plan(), "t1@1 ");
    finish_hints();
    release(view);
    for (int times = 0; times < 2; ++times) {
        evict(all[0]);
        Commands out;
        core_->evict(all[0], kHost, out);
        take(out);
        finish_all();
        EXPECT_EQ(plan(), "t0@1 ");
        finish_hints();
    }
}

TEST_F(LookaheadTest, OfWhatUpdatesBeginWithOnlyAsMuchIsReadAsHasRoom)
{
    open_listed(2, 2, 32);
    const std::vector<TensorId> all = store(7);
    for (size_t i = 0; i < 7; ++i) {
        expect(all[i], 0, Access::kReadWrite);
        list_.uses[i].update = i >= 3;
        if (i >= 3) list_.uses[i].request.place = residency::kAnyCpuPlace;
    }
    EXPECT_EQ(plan(), "t0@0 t1@0 t2@1 t3@1 ");
    EXPECT_EQ(lookahead_.horizon(kHost), 4u);
}

TEST_F(LookaheadTest, WritesTakeRoomAndNeedNoBytes)
{
    open_listed(3, 0, 16);
    const std::vector<TensorId> all = store(4);
    expect(all[0], 0, Access::kWrite);
    expect(all[1], 0, Access::kWriteEmpty);
    expect(all[2], 0, Access::kReadWrite);
    expect(all[3]);
    EXPECT_EQ(plan(), "t2@0 ");
    EXPECT_EQ(lookahead_.horizon(kDevice), 3u);
}

// It costs what has to leave for it, as late as is safe, and is there when it is asked for.
TEST_F(LookaheadTest, RoomIsMadeBeforeAWriteToATensorWithoutContents)
{
    open_listed(2, 0, 16);
    const TensorId fresh = plan_room(2 * kMs);
    EXPECT_EQ(plan(), "");
    EXPECT_TRUE(granted(ask(fresh, Access::kWrite))) << "at once";
}

TEST_F(LookaheadTest, RoomCostsWhatTheNextTierTakes)
{
    open_listed(2, 4, 16);
    lookahead_.set_bandwidth(kHost, kDevice, 2 * kBytesPerS);
    plan_room(kMs);
}

TEST_F(LookaheadTest, ATensorThatIsUsedAgainTakesItsRoomOnce)
{
    open_listed(3, 0, 16);
    const std::vector<TensorId> all = store(3);
    for (const size_t i : {0, 1, 0, 2, 1, 0}) expect(all[i]);
    EXPECT_EQ(plan(), "t0@0 t1@0 t2@0 ");
    EXPECT_EQ(lookahead_.horizon(kDevice), kNever);
}

TEST_F(LookaheadTest, WhereSomethingHasToLeaveItStartsAsLateAsIsSafe)
{
    open_listed(2, 0, 16);
    const TensorId wanted = stored("wanted");
    const TensorId old = create("old", 2 * kBlock);
    fill(old);
    now_ = 1'000'000;
    list_.at = now_;
    expect(wanted, 50'000'000);
    // Twice the millisecond that it takes, and one for the start itself.
    EXPECT_EQ(plan(), "");
    EXPECT_EQ(lookahead_.wake(), 1'000'000u + 50'000'000u - 2'000'000u - 1'000'000u);
    EXPECT_TRUE(resident(old, kDevice));
    now_ = lookahead_.wake();
    EXPECT_EQ(plan(), "wanted@0 ");
}

// A start that comes no nearer would be looked at in each nanosecond.
TEST_F(LookaheadTest, BetweenTwoLooksAtAStartSomeTimePasses)
{
    open_listed(2, 0, 16);
    const TensorId wanted = stored("wanted");
    fill(create("old", 2 * kBlock));
    now_ = list_.at = kMs;
    expect(wanted, 50 * kMs);
    EXPECT_EQ(plan(), "");
    now_ = lookahead_.wake() - 1;
    EXPECT_EQ(plan(), "");
    EXPECT_EQ(lookahead_.wake(), now_ + kMs / 4);
}

TEST_F(LookaheadTest, AQueueOfUsesStartsAsEarlyAsItsLastOneAsks)
{
    open_listed(8, 0, 32);
    std::vector<TensorId> all = store(4);
    const TensorId old = create("old", 8 * kBlock);
    fill(old);
    now_ = list_.at = 1'000'000;
    for (const TensorId tensor : all) expect(tensor, tensor == all[0] ? 20'000'000 : 0);
    EXPECT_EQ(plan(), "");
    EXPECT_EQ(lookahead_.wake(), 21'000'000u - 2 * 4 * 1'000'000u - 1'000'000u);
}

// It cannot come yet, but when it can the link must not have rested before.
TEST_F(LookaheadTest, WhatIsUsedBehindAllThatHasRoomWantsTheLinkAsWell)
{
    open_listed(4, 0, 32);
    std::vector<TensorId> all = store(16);
    const TensorId old = create("old", 4 * kBlock);
    fill(old);
    now_ = list_.at = 1'000'000;
    for (const TensorId tensor : all) expect(tensor, tensor == all[0] ? 20'000'000 : 0);
    EXPECT_EQ(plan(), "");
    // The sixteen of them take as many milliseconds, with an eighth for what is not foreseen.
    EXPECT_EQ(lookahead_.wake(), 21'000'000u - 18 * 1'000'000u - 1'000'000u);
}

TEST_F(LookaheadTest, WithoutGapsEverythingIsDueAndFreeRoomNeedsNoHurry)
{
    open_listed(4, 0, 32);
    std::vector<TensorId> all = store(2);
    now_ = list_.at = 1'000'000;
    expect(all[0], 3'600'000'000'000);
    EXPECT_EQ(plan(), "t0@0 ");  // an hour away, into free room
    const TensorId old = create("old", 3 * kBlock);
    finish_hints();
    fill(old);
    expect(all[1]);
    list_.over = 1;
    ++list_.turns;
    EXPECT_EQ(plan(), "t1@0 ");  // due now
}

TEST_F(LookaheadTest, AnotherTurnIsLookedAtFromItsBeginning)
{
    open_listed(2, 0, 16);
    std::vector<TensorId> all = store(6);
    for (size_t i = 0; i < 3; ++i) expect(all[i]);
    EXPECT_EQ(plan(), "t0@0 t1@0 ");
    finish_hints();
    list_.uses.clear();
    for (size_t i = 3; i < 6; ++i) expect(all[i]);
    ++list_.turns;
    EXPECT_EQ(plan(), "t3@0 ");
    finish_hints();
    EXPECT_EQ(plan(), "t4@0 ");
}

TEST_F(LookaheadTest, WhatFoundNoRoomIsProposedAgainWhenTheProgramHasGoneOn)
{
    open_listed(2, 0, 16);
    std::vector<TensorId> all = store(4);
    for (const TensorId tensor : all) expect(tensor);
    const FetchId view = ask({all_of(all[0], Access::kRead), all_of(all[1], Access::kRead)});
    finish_all();
    list_.over = 2;
    EXPECT_EQ(plan(), "t2@0 ");  // refused: views pin all there is
    EXPECT_EQ(lookahead_.in_flight(), 0u);
    EXPECT_EQ(plan(), "");
    EXPECT_GT(lookahead_.wake(), now_);
    release(view);
    now_ = lookahead_.wake();
    EXPECT_EQ(plan(), "t2@0 ");
    finish_hints();
    EXPECT_EQ(plan(), "t3@0 ");
}

TEST_F(LookaheadTest, OfWhatWasRefusedComesWhatHasRoomByThen)
{
    open_listed(8, 0, 32);
    const TensorId wanted = stored("wanted", 4);
    const TensorId clean = stored("clean", 2);
    const TensorId used = stored("used", 6);
    const FetchId before = ask({all_of(clean, Access::kRead)});
    const FetchId view = ask({all_of(used, Access::kRead)});
    finish_all();
    release(before);
    expect(wanted);
    // The clean one leaves for it, and as many blocks of it come; it is not tried a third time.
    EXPECT_EQ(plan(), "wanted@0 wanted@0 ");
    EXPECT_EQ(lookahead_.in_flight(), 1u);
    EXPECT_EQ(core_->used_blocks(kDevice), 8u);
    finish_hints();
    release(view);
    now_ = std::max(now_, lookahead_.wake());
    while (!plan().empty()) finish_hints();
    EXPECT_TRUE(resident(wanted, kDevice));
}

// A program at rest that leaves no room must not be asked about it 2,000 times a second.
TEST_F(LookaheadTest, WhatFindsNoRoomAgainAndAgainIsProposedMoreAndMoreSeldom)
{
    open_listed(2, 0, 16);
    const std::vector<TensorId> all = store(4);
    for (const TensorId tensor : all) expect(tensor);
    const FetchId view = ask({all_of(all[0], Access::kRead), all_of(all[1], Access::kRead)});
    finish_all();
    list_.over = 2;
    const Instant begin = now_;
    uint32_t proposed = 0;
    while (now_ < begin + 1'000'000'000) {
        EXPECT_EQ(plan(), "t2@0 ");
        ++proposed;
        ASSERT_GT(lookahead_.wake(), now_);
        ASSERT_NE(lookahead_.wake(), kNever);
        now_ = lookahead_.wake();
    }
    EXPECT_LT(proposed, 80u);
    list_.over = 3;  // the program goes on, and so it begins anew
    EXPECT_EQ(plan(), "t3@0 ");
    EXPECT_EQ(lookahead_.wake(), now_ + 500'000);
    release(view);
}

TEST_F(LookaheadTest, WhatIsAheadOfItsUseTakesNoMoreThanItsShareOfWhatHasToLeave)
{
    open_listed(16, 0, 64);
    for (const TensorId tensor : store(16)) expect(tensor);
    const TensorId old = create("old", 16 * kBlock);
    fill(old);
    EXPECT_EQ(plan(), "t0@0 t1@0 t2@0 t3@0 ");  // a quarter flies, so that the link is busy
    finish_hints();
    EXPECT_EQ(plan(), "t4@0 t5@0 t6@0 t7@0 ");
    finish_hints();
    EXPECT_EQ(plan(), "t8@0 t9@0 t10@0 t11@0 ");
    finish_hints();
    EXPECT_EQ(plan(), "t12@0 ");  // and three quarters of the place are ahead
    finish_hints();
    EXPECT_EQ(plan(), "");
    use_next();
    EXPECT_EQ(plan(), "t13@0 ");
}

TEST_F(LookaheadTest, ALargeTensorTakesTheRoomOfOthersPieceByPiece)
{
    const TensorId large = open_for_large().first;
    const uint64_t before = core_->evictions(kDevice);
    EXPECT_EQ(plan(), "large@0 large@0 ");  // of 6 and 4 blocks, that the link does not rest
    finish_hints();
    EXPECT_EQ(core_->evictions(kDevice), before + 10);
    EXPECT_FALSE(resident(large, kDevice));
    while (!plan().empty()) finish_hints();
    EXPECT_TRUE(resident(large, kDevice));
    EXPECT_EQ(core_->evictions(kDevice), before + 24);
}

TEST_F(LookaheadTest, APieceThatFoundNoRoomIsProposedAgain)
{
    const auto [large, old] = open_for_large();
    const FetchId view = ask({all_of(old, Access::kRead)});
    EXPECT_EQ(plan(), "large@0 ");
    EXPECT_EQ(lookahead_.in_flight(), 0u);
    release(view);
    now_ = lookahead_.wake();
    while (!plan().empty()) finish_hints();
    EXPECT_TRUE(resident(large, kDevice));
}

TEST_F(LookaheadTest, ALargeTensorTakesFreeRoomAtOnce)
{
    open_listed(32, 0, 96);
    expect(stored("large", 24));
    EXPECT_EQ(plan(), "large@0 ");
    finish_hints();
    EXPECT_EQ(plan(), "");
}

TEST_F(LookaheadTest, WhenAPieceFailedTheOthersAreLeftToTheDemand)
{
    const TensorId large = open_for_large().first;
    EXPECT_EQ(plan(), "large@0 large@0 ");
    lookahead_.ended(hints_[0], Lookahead::End::kFailed);
    finish_hints();
    now_ += 1'000'000'000;
    EXPECT_EQ(plan(), "");
    EXPECT_FALSE(resident(large, kDevice));
}

TEST_F(LookaheadTest, WhatFailedIsLeftToTheDemand)
{
    open_listed(2, 0, 16);
    expect(stored("t0"));
    EXPECT_EQ(plan(), "t0@0 ");
    finish_next(failure());
    lookahead_.ended(hints_[0], Lookahead::End::kFailed);
    now_ += 1'000'000'000;
    EXPECT_EQ(plan(), "");
}

TEST_F(LookaheadTest, WhatAnUpdateHasOrNobodyHasAnyMoreIsPassedBy)
{
    open_listed(4, 0, 16);
    std::vector<TensorId> all = store(3);
    for (const TensorId tensor : all) expect(tensor);
    const residency::ClaimId claim = core_->claim();
    core_->claim_tensor(claim, all[0]);
    Commands out;
    ASSERT_TRUE(core_->destroy(all[1], out).ok());
    EXPECT_EQ(plan(), "t2@0 ");
    core_->unclaim_tensor(claim, all[0], false, out);
    EXPECT_EQ(plan(), "t0@0 ");
}

TEST_F(LookaheadTest, NoMoreIsUnderWayThanTheLinksMoveInAMoment)
{
    open_listed(64, 0, 128);
    for (const TensorId tensor : store(40)) expect(tensor);
    plan();
    EXPECT_EQ(lookahead_.in_flight(), 20u);  // of 1 ms each
    finish_next();
    tell();
    EXPECT_EQ(plan(), "t20@0 ");
}

TEST_F(LookaheadTest, WhatHasLeftSinceItCameNearIsBroughtAgain)
{
    open_listed(8, 0, 16);
    const std::vector<TensorId> all = store(3);
    for (const TensorId tensor : all) expect(tensor);
    EXPECT_EQ(plan(), "t0@0 t1@0 t2@0 ");
    finish_hints();
    EXPECT_EQ(plan(), "");
    evict(all[1]);
    EXPECT_FALSE(resident(all[1], kDevice));
    EXPECT_EQ(plan(), "t1@0 ");
    EXPECT_EQ(plan(), "");  // it is under way
}

// As often as a transfer ends, say: such looks do not make the next one later.
TEST_F(LookaheadTest, HitsAreLookedAfterUntilTheNextFetchIsLate)
{
    open_listed(8, 0, 32);
    for (const TensorId tensor : store(12)) expect(tensor, 40 * kMs);
    plan();
    finish_hints();
    now_ = 100 * kMs;
    list_.at = now_;
    ++list_.over;
    plan();
    EXPECT_EQ(lookahead_.wake(), 105 * kMs);  // an eighth of the gap
    for (now_ += kMs; now_ < 105 * kMs; now_ += kMs) plan();
    EXPECT_EQ(lookahead_.wake(), 105 * kMs);
    now_ = 105 * kMs;
    plan();
    EXPECT_EQ(lookahead_.wake(), 110 * kMs);
    now_ = 145 * kMs;
    plan();
    EXPECT_EQ(lookahead_.wake(), 155 * kMs);  // it is late
    ++list_.over;
    plan();
    EXPECT_EQ(lookahead_.wake(), 150 * kMs);
}

}  // namespace
}  // namespace stepwell::schedule
