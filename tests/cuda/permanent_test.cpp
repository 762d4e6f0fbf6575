// SPDX-License-Identifier: Apache-2.0
// Memory of a device that never goes back: few handles, which are mapped whole wherever a tensor
// with an address of its own lies in them.
#include "tests/cuda/mapping_rig.h"

namespace stepwell {
namespace {

constexpr uint32_t kLarge = 32;  // blocks of the largest handle, 64 MiB

class CudaPermanent : public MappingRig {
protected:
    CudaPermanent() { driver_options_ = "arena=permanent"; }

    static bool said(const char *what)
    {
        return std::string(stw_last_error()).find(what) != std::string::npos;
    }
    uint64_t remapped_bytes() const
    {
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        EXPECT_OK(stw_tier_stats_get(runtime_, STW_TIER_DEVICE, 0, &stats));
        EXPECT_EQ(stats.remapped_bytes > 0, stats.remapped_ns > 0);
        return stats.remapped_bytes;
    }
    void evict(stw_tensor *tensor)
    {
        ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    }
};

TEST_F(CudaPermanent, ItsHandlesAreAsLargeAsTheyCanBe)
{
    open("seed=1", 2 * kLarge + 11, 8);
    EXPECT_EQ(stw_double_calls("cuMemCreate"), 5u);  // the others of 8, 2 and 1 blocks
    EXPECT_EQ(taken_blocks(), 2 * kLarge + 11);
}

TEST_F(CudaPermanent, ItsBudgetStays)
{
    open("seed=1", 8, 24);
    EXPECT_EQ(set_budget(6), STW_ERROR_UNSUPPORTED);
    EXPECT_TRUE(said("arena=shrinks")) << stw_last_error();
    EXPECT_EQ(taken_blocks(), 8u);
    stw_tensor *tensor = make("t", 8 * kElements);
    use(tensor, streams_[0], 0, 1, true);
    expect_all(tensor, 8 * kElements, 1);
    end_streams();
}

// 64 MiB, at all distances from the beginning of a handle.
TEST_F(CudaPermanent, ATensorIsSeenWithItsHandlesWhereverItLies)
{
    open("delay_us=100,seed=3", 2 * kLarge + 5, 200);
    stw_tensor *tensor = make_fixed("t", kLarge * kElements);
    stw_view before[4];
    uint32_t value = 0;
    for (stw_view &view : before) {
        stw_double_calls_reset();
        use(tensor, streams_[value % kStreams], value, value + 1, true);
        ++value;
        EXPECT_GE(stw_double_calls("cuMemMap"), 1u);
        EXPECT_LE(stw_double_calls("cuMemMap"), 2u);
        EXPECT_EQ(stw_double_calls("cuMemSetAccess"), 1u);
        EXPECT_LE(stw_double_calls("cuMemUnmap"), 1u);
        evict(tensor);
        // Elsewhere the next time: one block more is somebody's.
        stw_tensor *one = make(("t" + std::to_string(value)).c_str(), kElements);
        ASSERT_OK(fetch(one, STW_READ, streams_[0], &view));
    }
    for (stw_view &view : before) ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    expect_all(tensor, kLarge * kElements, value);
    EXPECT_EQ(remapped_bytes(), 4 * kLarge * kBlock);
    end_streams();
}

TEST_F(CudaPermanent, ATensorThatComesBackToItsSlotsIsNotMappedAgain)
{
    open("seed=1", kLarge, 100);
    stw_tensor *tensor = make_fixed("t", 10 * kElements);
    use(tensor, streams_[0], 0, 1, true);
    evict(tensor);
    stw_double_calls_reset();
    use(tensor, streams_[0], 1, 2, true);
    EXPECT_EQ(stw_double_calls("cuMemMap"), 0u);
    EXPECT_EQ(stw_double_calls("cuMemUnmap"), 0u);
    EXPECT_EQ(remapped_bytes(), 10 * kBlock);
    end_streams();
}

TEST_F(CudaPermanent, ViewsLieAtTheAddressOfTheTensorWhereverItsBlocksAre)
{
    const std::vector<uint64_t> sizes = {3 * kElements,  100,       20 * kElements, kElements / 2,
                                         34 * kElements, kElements, 9 * kElements,  60};
    open("delay_us=200,seed=7", 43, 120);
    use_many(sizes, 7, 150,
             [this](int i, auto &, stw_tensor *tensor, uint64_t size, uint32_t value) {
                 if (i % 30 == 29) expect_all(tensor, size, value);
             });
}

// Parts are the library's own business there: it reads and writes them, and shows none.
TEST_F(CudaPermanent, AViewOfAPartIsRefused)
{
    open("delay_us=100,seed=5", 12, 60);
    stw_tensor *tensor = make_fixed("t", 10 * kElements);
    use(tensor, streams_[0], 0, 4, true);
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    options.stream = streams_[0];
    request.tensor = tensor;
    request.access = STW_READ;
    request.element_begin = kElements;
    request.element_count = 2 * kElements;
    stw_view view;
    for (int round = 0; round < 2; ++round) {
        EXPECT_EQ(stw_fetch(runtime_, &options, &request, 1, &view), STW_ERROR_INVALID);
        EXPECT_TRUE(said("'t'") && said("arena=shrinks")) << stw_last_error();
        evict(tensor);  // and the same of one that is not resident
    }
    expect_all(tensor, 10 * kElements, 4);
    use(tensor, streams_[1], 4, 6, true);
    expect_all(tensor, 10 * kElements, 6);
    // What lies in one block is seen in parts too.
    stw_tensor *small = make_fixed("small", 1000);
    use(small, streams_[0], 0, 3, true);
    request.tensor = small;
    request.element_begin = 400;
    request.element_count = 100;
    ASSERT_OK(stw_fetch(runtime_, &options, &request, 1, &view));
    EXPECT_EQ(reinterpret_cast<uint64_t>(view.pointer), address_of(small) + 1600);
    enqueue(view, streams_[0], 3, 0, false);
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    end_streams();
}

TEST_F(CudaPermanent, AnUnknownWayIsRefused)
{
    ASSERT_EQ(stw_double_reset("seed=1"), 0);
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    device.driver = module_.path().c_str();
    device.driver_options = "arena=large";
    device.budget_bytes = 8 * kBlock;
    options.devices = &device, options.device_count = 1;
    options.host_bytes = 8 * kBlock;
    EXPECT_EQ(stw_runtime_open(&options, &runtime_), STW_ERROR_INVALID);
    EXPECT_TRUE(said("arena=shrinks|permanent|registered")) << stw_last_error();
    runtime_ = nullptr;
}

}  // namespace
}  // namespace stepwell
