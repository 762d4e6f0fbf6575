// SPDX-License-Identifier: Apache-2.0
// Memory of a device that never goes back: few handles, which are mapped whole wherever a tensor
// with an address of its own lies in them.
#include "tests/cuda/mapping_rig.h"

#include <random>

namespace stepwell {
namespace {

constexpr uint32_t kLarge = 32;  // blocks of the largest handle, 64 MiB

class CudaPermanent : public MappingRig {
protected:
    CudaPermanent() { device_options_ = "arena=permanent"; }

    stw_tensor *make_fixed(const char *name, uint64_t elements)
    {
        return make(name, elements, STW_TENSOR_FIXED_ADDRESS);
    }
    static uint64_t address_of(stw_tensor *tensor)
    {
        void *address = nullptr;
        uint64_t bytes = 0;
        EXPECT_EQ(stw_tensor_address(tensor, 0, &address, &bytes), STW_OK) << stw_last_error();
        return reinterpret_cast<uint64_t>(address);
    }
    static bool said(const char *what)
    {
        return std::string(stw_last_error()).find(what) != std::string::npos;
    }
    void evict(stw_tensor *tensor)
    {
        ASSERT_EQ(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0), STW_OK)
            << stw_last_error();
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
        ASSERT_EQ(fetch(one, STW_READ, streams_[0], &view), STW_OK) << stw_last_error();
    }
    for (stw_view &view : before) ASSERT_EQ(stw_release(&view, 1, streams_[0], 0), STW_OK);
    expect_all(tensor, kLarge * kElements, value);
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
    end_streams();
}

TEST_F(CudaPermanent, ViewsLieAtTheAddressOfTheTensorWhereverItsBlocksAre)
{
    const std::vector<uint64_t> sizes = {3 * kElements,  100,       20 * kElements, kElements / 2,
                                         34 * kElements, kElements, 9 * kElements,  60};
    std::mt19937_64 random(7);
    open("delay_us=200,seed=7", 43, 120);
    std::vector<stw_tensor *> tensors;
    std::vector<uint64_t> addresses;
    std::vector<uint32_t> values(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
        const std::string name = "t" + std::to_string(i);
        tensors.push_back(i % 4 == 3 ? make(name.c_str(), sizes[i])
                                     : make_fixed(name.c_str(), sizes[i]));
        addresses.push_back(i % 4 == 3 ? 0 : address_of(tensors[i]));
    }
    uint32_t written = 0;
    for (int i = 0; i < 150; ++i) {
        const size_t at = random() % sizes.size();
        const bool writes = random() % 3 == 0;
        void *stream = streams_[random() % kStreams];
        stw_view view;
        ASSERT_EQ(fetch(tensors[at], writes ? STW_READ_WRITE : STW_READ, stream, &view), STW_OK)
            << stw_last_error();
        if (addresses[at] != 0) {
            EXPECT_EQ(reinterpret_cast<uint64_t>(view.pointer), addresses[at]);
        }
        enqueue(view, stream, values[at], written + 1, writes);
        if (writes) values[at] = ++written;
        ASSERT_EQ(stw_release(&view, 1, stream, 0), STW_OK) << stw_last_error();
        if (i % 30 == 29) expect_all(tensors[at], sizes[at], values[at]);
    }
    for (size_t i = 0; i < sizes.size(); ++i) expect_all(tensors[i], sizes[i], values[i]);
    // What was used a moment ago goes without waiting, and its range ends behind that.
    for (stw_tensor *tensor : tensors) EXPECT_EQ(stw_tensor_destroy(&tensor, 1), STW_OK);
    end_streams();
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
    end_streams();
}

TEST_F(CudaPermanent, AnUnknownWayIsRefused)
{
    ASSERT_EQ(stw_double_reset("seed=1"), 0);
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    device.driver = module_.c_str();
    device.driver_options = "arena=large";
    device.budget_bytes = 8 * kBlock;
    options.devices = &device, options.device_count = 1;
    options.host_bytes = 8 * kBlock;
    EXPECT_EQ(stw_runtime_open(&options, &runtime_), STW_ERROR_INVALID);
    EXPECT_TRUE(said("arena=shrinks|permanent")) << stw_last_error();
    runtime_ = nullptr;
}

}  // namespace
}  // namespace stepwell
