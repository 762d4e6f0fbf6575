// SPDX-License-Identifier: Apache-2.0
// How many calls a runtime makes for copies of usual blocks, and what they leave of the link.
#include "tests/cuda/mapping_rig.h"

#include <thread>

namespace stepwell {
namespace {

class CudaCopies : public MappingRig {
protected:
    static constexpr uint32_t kTensorBlocks = 16;

    void open_registered()
    {
        open("seed=1,cost=wake_ns:0", 24, 40);
        if (HasFatalFailure()) return;
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        do {
            std::this_thread::yield();
            ASSERT_OK(stw_tier_stats_get(runtime_, STW_TIER_HOST, 0, &stats));
        } while (stats.registering_bytes > 0);
        ASSERT_EQ(stats.refused_slabs, 0u);
    }
    static uint64_t copy_calls()
    {
        return stw_double_calls("cuMemcpyHtoDAsync_v2") + stw_double_calls("cuMemcpyDtoHAsync_v2") +
               stw_double_calls("cuMemcpyBatchAsync_v2");
    }
    // At most so much longer than the bytes alone, and so many calls.
    void expect_full_link(int engine, uint64_t bytes, uint64_t mb_per_s)
    {
        stw_double_engine totals = {};
        ASSERT_EQ(stw_double_engine_totals(0, engine, &totals), 0);
        EXPECT_EQ(totals.bytes - before_.bytes, bytes);
        const uint64_t ns = bytes * 1000 / mb_per_s;
        EXPECT_LT(stw_double_settle() - begin_ns_, ns + ns / 33);
        EXPECT_LE(copy_calls(), 4u);
        EXPECT_LE(stw_double_calls("cuEventRecord"), 6u);
    }
    void begin(int engine)
    {
        end_streams();
        stw_double_calls_reset();
        ASSERT_EQ(stw_double_engine_totals(0, engine, &before_), 0);
        begin_ns_ = stw_double_settle();
    }

    stw_double_engine before_ = {};
    uint64_t begin_ns_ = 0;
};

TEST_F(CudaCopies, ALargeTensorComesAndGoesInFewCalls)
{
    open_registered();
    stw_tensor *tensor = make("t", kTensorBlocks * kElements);
    ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    begin(STW_DOUBLE_UP);
    stw_view view;
    ASSERT_OK(fetch(tensor, STW_READ_WRITE, streams_[0], &view));
    ASSERT_EQ(cuStreamSynchronize(streams_[0]), 0);
    expect_full_link(STW_DOUBLE_UP, kTensorBlocks * kBlock, 54'800);
    enqueue(view, streams_[0], 0, 5, true);
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    begin(STW_DOUBLE_DOWN);
    ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    expect_full_link(STW_DOUBLE_DOWN, kTensorBlocks * kBlock, 46'800);
    expect_all(tensor, kTensorBlocks * kElements, 5);
}

}  // namespace
}  // namespace stepwell
