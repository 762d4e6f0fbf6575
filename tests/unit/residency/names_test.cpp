// SPDX-License-Identifier: Apache-2.0
// Which tensor an error names, where a block or its cause belongs to several.
#include "tests/unit/residency/core_fixture.h"

namespace stepwell::residency {
namespace {

TEST_F(CoreTest, AFailedReadNamesTheTensorThatWasAskedForInItsBlock)
{
    open(4, 0, 16);
    create("beside", 100);  // first of the block, and nobody's
    const TensorId small = create("small", 100);
    const TensorId large = create("large", 2 * kBlock);
    ASSERT_EQ(core_->pack_of(small), core_->pack_of(0));
    for (const TensorId tensor : {small, large}) fill(tensor);
    const auto hurt = [&](TensorId fails) {
        Commands out;
        for (const TensorId tensor : {small, large}) core_->evict(tensor, kDevice, out);
        take(out);
        finish_all();
        const FetchId id = ask({all_of(large, Access::kRead), all_of(small, Access::kRead)});
        while (!transfers_.empty()) {
            const bool here = transfers_.front().pack == core_->pack_of(fails);
            finish_next(here ? failure() : Status());
        }
        EXPECT_EQ(refusal(id), STW_ERROR_IO);
        EXPECT_STREQ(refused_[id].sentence(), ("tensor '" + core_->spec(fails).name +
                                               "' cannot be fetched: the test's disk failed")
                                                  .c_str());
        return refused_[id].detail()->tensor;
    };
    EXPECT_EQ(hurt(small), "small");
    EXPECT_EQ(hurt(large), "large");
}

TEST_F(CoreTest, WhatAnUpdateCouldNotCompleteIsRefusedByItsOwnName)
{
    open(4, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    core_->fail(a, failure());
    const FetchId id = ask(a, Access::kRead);
    EXPECT_EQ(refusal(id), STW_ERROR_IO);
    EXPECT_STREQ(refused_[id].sentence(),
                 "tensor 'a' was not written to its end: the test's disk failed");
    EXPECT_EQ(refused_[id].detail()->tensor, "a");
}

}  // namespace
}  // namespace stepwell::residency
