// SPDX-License-Identifier: Apache-2.0
// Who passes a claim: those that it has lent the tensor to, and those who have a view that it waits
// for.
#include "tests/unit/residency/core_fixture.h"

namespace stepwell::residency {
namespace {

TEST_F(CoreTest, WhatIsLentOnceIsLentAsBeforeAfterwards)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const ClaimId claim = core_->claim();
    core_->claim_tensor(claim, a);
    update_under(claim, a, false);
    const auto lent = [&](Access access) { return ask({all_of(a, access)}, kFetchLent); };
    Commands out;
    const FetchId waits = lent(Access::kRead);
    EXPECT_FALSE(core_->lend_once(a, waits, out));
    take(out);
    EXPECT_TRUE(granted(waits));
    const FetchId later = lent(Access::kRead);
    EXPECT_FALSE(granted(later)) << "not lent for good";
    core_->lend(claim, a, out);
    take(out);
    EXPECT_TRUE(granted(later));
    const FetchId writes = lent(Access::kWrite);
    EXPECT_TRUE(core_->lend_once(a, writes, out));
    take(out);
    EXPECT_FALSE(granted(writes));
    const FetchId reads = lent(Access::kRead);
    EXPECT_TRUE(granted(reads)) << "it is lent all the same";
    for (const FetchId view : {waits, later, reads}) release(view);
    unclaim(claim, a);
    EXPECT_TRUE(granted(writes));
}

TEST_F(CoreTest, WhoHasAViewThatAClaimWaitsForPassesTheClaim)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const auto ahead = [&] {
        return ask({all_of(a, Access::kReadWrite)}, kFetchBesideReaders | kFetchAhead);
    };
    const FetchId reader = ask(a, Access::kRead);
    const ClaimId claim = core_->claim();
    core_->claim_tensor(claim, a);
    const FetchId under = ask_under(claim, a);
    EXPECT_FALSE(granted(under)) << "the view is open";
    const FetchId stays = ask({all_of(a, Access::kReadWrite)}, kFetchBesideReaders);
    EXPECT_FALSE(granted(stays));
    const FetchId first = ahead();
    EXPECT_TRUE(granted(first));
    release(first);
    release(reader);
    ASSERT_TRUE(granted(under));
    release_under(claim, a);
    const FetchId second = ahead();
    EXPECT_FALSE(granted(second)) << "the claim has begun";
    unclaim(claim, a);
    EXPECT_TRUE(granted(stays));
    release(stays);
    EXPECT_TRUE(granted(second));
}

}  // namespace
}  // namespace stepwell::residency
