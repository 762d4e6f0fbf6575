// SPDX-License-Identifier: Apache-2.0
// Tensors with one address for life on a device whose other tensors lie where there is room: the
// address stays, and what kernels see there is the tensor's.
#include "tests/cuda/mapping_rig.h"

#include "lib/api/dlpack.h"

#include <set>
#include <thread>

namespace stepwell {
namespace {

class CudaFixed : public MappingRig {
protected:
    stw_status create(uint32_t flags)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.name = "one";
        spec.flags = flags;
        spec.dtype = STW_I32;
        spec.dimensions = 1;
        spec.shape[0] = 100;
        stw_tensor *tensor = nullptr;
        return stw_tensor_create(runtime_, &spec, 1, &tensor);
    }
};

TEST_F(CudaFixed, ViewsLieAtTheAddressOfTheTensorWhereverItsBlocksAre)
{
    const std::vector<uint64_t> sizes = {3 * kElements, 100,       2 * kElements, kElements / 2,
                                         4 * kElements, kElements, 2 * kElements, 60};
    for (uint64_t seed = 1; seed <= 4; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        open("delay_us=300,seed=" + std::to_string(seed), 8, 40);
        if (HasFatalFailure()) return;
        use_many(sizes, seed, 80, [this](int i, auto &random, stw_tensor *, uint64_t, uint32_t) {
            if (i % 20 != 19) return;
            const uint64_t blocks = 5 + random() % 4;
            ASSERT_OK(set_budget(blocks));
            EXPECT_EQ(taken_blocks(), blocks);
        });
        EXPECT_EQ(wrong(), 0);
        start_over();
    }
}

// A range of the tensor, a first write without contents, and hits on another stream.
TEST_F(CudaFixed, PartsAndFirstWritesLieThereToo)
{
    open("delay_us=200,seed=2", 8, 24);
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = "t";
    spec.flags = STW_TENSOR_FIXED_ADDRESS;
    spec.dtype = STW_I32;
    spec.dimensions = 1;
    spec.shape[0] = 4 * kElements;
    stw_tensor *tensor = nullptr;
    ASSERT_OK(stw_tensor_create(runtime_, &spec, 1, &tensor));
    stw_view view;
    ASSERT_OK(fetch(tensor, STW_WRITE, streams_[0], &view));
    EXPECT_EQ(reinterpret_cast<uint64_t>(view.pointer), address_of(tensor));
    std::vector<stw_double_range> ranges = {
        {reinterpret_cast<uint64_t>(view.pointer), view.bytes, 1, 0}};
    const auto fill = [](void *user, stw_double_alias_of alias) {
        auto *view = static_cast<Kernel *>(user);
        auto *data = static_cast<uint32_t *>(alias(view->address));
        for (uint64_t i = 0; i < view->elements; ++i) data[i] = 5;
    };
    kernels_.push_back(std::make_unique<Kernel>());
    kernels_.back()->address = reinterpret_cast<uint64_t>(view.pointer);
    kernels_.back()->elements = view.bytes / 4;
    ASSERT_EQ(
        stw_double_consume(streams_[0], "fill", ranges.data(), 1, fill, kernels_.back().get()), 0);
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    use(tensor, streams_[1], 5, 0, false);
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    options.stream = streams_[2];
    request.tensor = tensor;
    request.access = STW_READ_WRITE;
    request.element_begin = kElements + 7;
    request.element_count = kElements;
    ASSERT_OK(stw_fetch(runtime_, &options, &request, 1, &view));
    EXPECT_EQ(reinterpret_cast<uint64_t>(view.pointer), address_of(tensor) + 4 * (kElements + 7));
    enqueue(view, streams_[2], 5, 5, true);
    ASSERT_OK(stw_release(&view, 1, streams_[2], 0));
    ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    expect_all(tensor, 4 * kElements, 5);
    end_streams();
}

// While the slots are nobody else's, a tensor that comes back is seen there already.
TEST_F(CudaFixed, ATensorThatComesBackToItsSlotsIsNotMappedAgain)
{
    open("seed=1", 8, 24);
    stw_tensor *tensor = make_fixed("t", 4 * kElements);
    use(tensor, streams_[0], 0, 1, true);
    ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    stw_double_calls_reset();
    use(tensor, streams_[0], 1, 2, true);
    EXPECT_EQ(stw_double_calls("cuMemMap"), 0u);
    EXPECT_EQ(stw_double_calls("cuMemUnmap"), 0u);
    end_streams();
}

TEST_F(CudaFixed, ATensorIsMappedAsOneRange)
{
    constexpr uint32_t kBlocks = 35;  // 70 MiB
    open("delay_us=100,seed=3", kBlocks + 5, 100);
    stw_tensor *tensor = make_fixed("t", kBlocks * kElements);
    stw_tensor *other = make("other", 5 * kElements);
    stw_double_calls_reset();
    use(tensor, streams_[0], 0, 1, true);
    EXPECT_EQ(stw_double_calls("cuMemMap"), kBlocks);
    EXPECT_EQ(stw_double_calls("cuMemSetAccess"), 1u);
    EXPECT_EQ(stw_double_calls("cuMemUnmap"), 0u);
    // It comes back to other slots, as something else has some of its own.
    ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    stw_tensor *large = make("large", (kBlocks + 5) * kElements);
    use(large, streams_[1], 0, 3, true);
    ASSERT_OK(stw_evict(runtime_, &large, 1, STW_TIER_DEVICE, 0, 0));
    stw_view view;
    ASSERT_OK(fetch(other, STW_READ, streams_[1], &view));
    stw_double_calls_reset();
    use(tensor, streams_[0], 1, 2, true);
    EXPECT_EQ(stw_double_calls("cuMemMap"), kBlocks);
    EXPECT_EQ(stw_double_calls("cuMemSetAccess"), 1u);
    EXPECT_EQ(stw_double_calls("cuMemUnmap"), 1u);
    ASSERT_OK(stw_release(&view, 1, streams_[1], 0));
    expect_all(tensor, kBlocks * kElements, 2);
    end_streams();
}

TEST_F(CudaFixed, SmallTensorsShareABlockAndItsMapping)
{
    constexpr uint32_t kTensors = 100;
    open("delay_us=100,seed=6", 4, 24);
    std::vector<stw_tensor *> tensors;
    for (uint32_t i = 0; i < kTensors; ++i) {
        const std::string name = "t" + std::to_string(i);
        // Each tenth has no address, and lies among the others.
        tensors.push_back(i % 10 == 9 ? make(name.c_str(), 1000) : make_fixed(name.c_str(), 1000));
    }
    stw_double_calls_reset();
    for (uint32_t i = 0; i < kTensors; ++i) {
        use(tensors[i], streams_[i % kStreams], 0, i + 1, true);
        if (i % 10 == 9) continue;
        EXPECT_LT(address_of(tensors[i]) - address_of(tensors[0]), kBlock);
        EXPECT_NE(address_of(tensors[i]), address_of(tensors[(i + 1) % 9]));
    }
    EXPECT_EQ(stw_double_calls("cuMemMap"), 1u);
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    ASSERT_OK(stw_tier_stats_get(runtime_, STW_TIER_DEVICE, 0, &stats));
    EXPECT_EQ(stats.used_bytes, kBlock);
    // In another slot all of them are seen with one call more.
    ASSERT_OK(stw_evict(runtime_, nullptr, 0, STW_TIER_DEVICE, 0, 0));
    stw_tensor *other = make("other", 2 * kElements);
    use(other, streams_[0], 0, 1, true);
    stw_view views[2];
    ASSERT_OK(fetch(other, STW_READ, streams_[0], &views[0]));
    stw_double_calls_reset();
    // One of them is used while others come, go and are destroyed.
    ASSERT_OK(fetch(tensors[1], STW_READ, streams_[1], &views[1]));
    stw_double_hold(streams_[1]);
    enqueue(views[1], streams_[1], 2, 0, false);
    for (uint32_t i = 2; i < kTensors; ++i) use(tensors[i], streams_[2], i + 1, i + 2, true);
    ASSERT_OK(stw_tensor_destroy(&tensors[0], 1));
    EXPECT_LE(stw_double_calls("cuMemMap"), 1u);
    stw_double_let_go(streams_[1], 0);
    ASSERT_OK(stw_release(&views[1], 1, streams_[1], 0));
    ASSERT_OK(stw_release(&views[0], 1, streams_[0], 0));
    expect_all(tensors[1], 1000, 2);
    for (uint32_t i = 2; i < kTensors; ++i) expect_all(tensors[i], 1000, i + 2);
    stw_tensor *alone = make("alone", 1000, STW_TENSOR_FIXED_ADDRESS | STW_TENSOR_OWN_BLOCKS);
    EXPECT_GE(address_of(alone) - address_of(tensors[1]), kBlock - 1000 * 4);
    end_streams();
}

// After copies have waited for a stream, each call that releases views on it makes a mark.
TEST_F(CudaFixed, ViewsThatEndInOneCallMakeOneMark)
{
    constexpr uint32_t kTensors = 20;
    open("delay_us=100,seed=9", kTensors, 2 * kTensors);
    std::vector<stw_tensor *> tensors;
    std::vector<stw_view> views(kTensors);
    for (uint32_t i = 0; i < kTensors; ++i) {
        tensors.push_back(make_fixed(("t" + std::to_string(i)).c_str(), kElements));
        use(tensors[i], streams_[0], 0, 1, true);
    }
    ASSERT_OK(stw_evict(runtime_, tensors.data(), 1, STW_TIER_DEVICE, 0, 0));
    for (uint32_t i = 0; i < kTensors; ++i) {
        ASSERT_OK(fetch(tensors[i], STW_READ, streams_[0], &views[i]));
        enqueue(views[i], streams_[0], 1, 1, false);
    }
    stw_double_calls_reset();
    ASSERT_OK(stw_release(views.data(), kTensors, streams_[0], 0));
    EXPECT_EQ(stw_double_calls("cuEventRecord"), 1u);
    ASSERT_OK(stw_evict(runtime_, nullptr, 0, STW_TIER_DEVICE, 0, 0));
    for (stw_tensor *tensor : tensors) expect_all(tensor, kElements, 1);
    end_streams();
}

// A gradient that a stream has just written is read on another one, while the zeros of a sum into
// its neighbour in the block are being enqueued.
TEST_F(CudaFixed, WhatOthersDoInTheBlockOfASumIsNotForgotten)
{
    open("delay_us=100,seed=8", 4, 24);
    const auto gradient = [this](const char *name) {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.name = name;
        spec.role = STW_ROLE_GRAD;
        spec.dtype = STW_F32;
        spec.dimensions = 1;
        spec.shape[0] = 1000;
        stw_tensor *tensor = nullptr;
        EXPECT_OK(stw_tensor_create(runtime_, &spec, 1, &tensor));
        return tensor;
    };
    stw_tensor *written = gradient("written");
    stw_tensor *summed = gradient("summed");  // it is empty, so the sum is made in its place
    ASSERT_OK(stw_tensor_fill(written, 0.0, nullptr));
    stw_view view;
    ASSERT_OK(fetch(written, STW_READ_WRITE, streams_[0], &view));
    stw_double_hold(streams_[0]);
    enqueue(view, streams_[0], 0, 7, true);
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    stw_double_calls_reset();
    ASSERT_EQ(stw_double_hold_calls("cuMemsetD8Async", 1), 0);
    std::thread sum([&] {
        stw_view zeros;
        EXPECT_OK(fetch(summed, STW_REDUCE, streams_[1], &zeros));
        EXPECT_OK(stw_release(&zeros, 1, streams_[1], 0));
    });
    // The call before the one that is held: the zeros come behind what is in the block.
    while (stw_double_calls("cuStreamWaitEvent") == 0) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    ASSERT_OK(fetch(written, STW_READ, streams_[2], &view));
    enqueue(view, streams_[2], 7, 0, false);
    ASSERT_OK(stw_release(&view, 1, streams_[2], 0));
    ASSERT_EQ(stw_double_hold_calls("cuMemsetD8Async", 0), 0);
    stw_double_let_go(streams_[0], 0);
    sum.join();
    end_streams();
    EXPECT_EQ(stw_double_violations(), 0u);
}

// A part of the tensor is used at its address while another part comes beside it.
TEST_F(CudaFixed, WhatIsUsedStaysWhereItIsSeen)
{
    open("delay_us=100,seed=4", 10, 40);
    stw_tensor *tensor = make_fixed("t", 8 * kElements);
    stw_view view;
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    options.stream = streams_[0];
    request.tensor = tensor;
    request.access = STW_READ;
    request.element_count = 2 * kElements;
    ASSERT_OK(stw_fetch(runtime_, &options, &request, 1, &view));
    stw_double_hold(streams_[0]);
    enqueue(view, streams_[0], 0, 0, false);
    use(tensor, streams_[1], 0, 0, false);
    stw_double_let_go(streams_[0], 0);
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    end_streams();
}

// Handles are used again: the address of the one before is nobody's.
TEST_F(CudaFixed, ATensorWithoutAnAddressHasNoneOfTheOneBefore)
{
    open("seed=1", 8, 24);
    std::set<stw_tensor *> before;
    stw_tensor *tensor = nullptr;
    for (int i = 0; i < 1000 && before.insert(tensor).second; ++i) {
        if (i > 0) {
            ASSERT_OK(stw_tensor_destroy(&tensor, 1));
        }
        tensor = make_fixed("t", 100);
    }
    for (int i = 0; i < 3; ++i) {
        ASSERT_OK(stw_tensor_destroy(&tensor, 1));
        tensor = make("t", kElements);
        EXPECT_EQ(before.count(tensor), 1u);
        stw_view first;
        ASSERT_OK(fetch(tensor, STW_READ, streams_[0], &first));
        const void *pointer = first.pointer;
        ASSERT_OK(stw_release(&first, 1, streams_[0], 0));
        stw_view again;
        ASSERT_OK(fetch(tensor, STW_READ, streams_[0], &again));
        EXPECT_EQ(again.pointer, pointer);
        ASSERT_OK(stw_release(&again, 1, streams_[0], 0));
    }
    end_streams();
}

// A framework keeps the array, a step fetches around its uses; another stream than the fetch's has
// the bytes through a view.
TEST_F(CudaFixed, TheAddressAndTheViewsThereAreArraysOfCudas)
{
    open("delay_us=200,seed=3", 8, 24);
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = "kept";
    spec.flags = STW_TENSOR_FIXED_ADDRESS;
    spec.dtype = STW_I32;
    spec.dimensions = 1;
    spec.shape[0] = 2 * kElements;
    stw_tensor *tensor = nullptr;
    ASSERT_OK(stw_tensor_create(runtime_, &spec, 1, &tensor));
    const std::vector<uint32_t> sevens(2 * kElements, 7);
    ASSERT_OK(stw_tensor_write(tensor, sevens.data(), nullptr));
    DLManagedTensorVersioned *kept = nullptr;
    ASSERT_OK(stw_tensor_to_dlpack(tensor, 0, &kept));
    EXPECT_EQ(kept->dl_tensor.device.device_type, kDLCUDA);
    for (int turn = 0; turn < 3; ++turn) {
        stw_view view;
        DLManagedTensorVersioned *made = nullptr;
        ASSERT_OK(fetch(tensor, STW_READ, streams_[0], &view));
        const stw_view seen = view;
        ASSERT_OK(stw_view_to_dlpack(&view, streams_[1], &made));
        EXPECT_EQ(made->dl_tensor.data, kept->dl_tensor.data);
        enqueue(seen, streams_[1], 7, 0, false);
        made->deleter(made);
        ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    }
    kept->deleter(kept);
    for (void *stream : streams_) EXPECT_EQ(cuStreamSynchronize(stream), 0);
    EXPECT_EQ(wrong(), 0);
}

TEST_F(CudaFixed, WhatHasNoFixedAddressIsRefused)
{
    open("seed=1", 8, 24);
    stw_tensor *plain = make("plain", 100);
    void *address = nullptr;
    uint64_t bytes = 0;
    EXPECT_EQ(stw_tensor_address(plain, 0, &address, &bytes), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(stw_last_error()).find("STW_TENSOR_FIXED_ADDRESS"), std::string::npos);
    EXPECT_OK(create(STW_TENSOR_FIXED_ADDRESS));
}

TEST_F(CudaFixed, ADeviceThatPlacesNoMemoryHasNone)
{
    open("attribute=102:0", 8, 24);
    EXPECT_EQ(create(STW_TENSOR_FIXED_ADDRESS), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(stw_last_error()).find("virtual memory management"), std::string::npos)
        << stw_last_error();
    EXPECT_OK(create(0));
}

// A budget that goes and comes takes the mappings along, whatever part of the tensor it was.
TEST_F(CudaFixed, MemoryThatGoesIsSeenNowhereAndComesAgain)
{
    open("delay_us=100,seed=5", 12, 40);
    stw_tensor *tensor = make_fixed("t", 9 * kElements);
    const uint64_t address = address_of(tensor);
    for (uint32_t round = 0; round < 4; ++round) {
        use(tensor, streams_[round % kStreams], round, round + 1, true);
        ASSERT_OK(set_budget(round % 2 == 0 ? 0 : 4));
        EXPECT_EQ(taken_blocks(), round % 2 == 0 ? 0U : 4U);
        EXPECT_EQ(address_of(tensor), address);
        ASSERT_OK(set_budget(12));
        EXPECT_EQ(taken_blocks(), 12u);
    }
    expect_all(tensor, 9 * kElements, 4);
    end_streams();
}

TEST_F(CudaFixed, ADeviceThatIsLostFailsTheFetchAndLeavesTheHost)
{
    open("seed=1", 12, 40);
    stw_tensor *seen = make_fixed("seen", 4 * kElements);
    stw_tensor *tensor = make_fixed("t", 6 * kElements);
    use(seen, streams_[0], 0, 0, false);
    end_streams();
    // A copy that is over, and not yet seen to be, would fail as well.
    ASSERT_OK(stw_runtime_drain(runtime_, 0));
    stw_double_break(0, 700);
    stw_view view;
    EXPECT_EQ(fetch(tensor, STW_READ, streams_[0], &view), STW_ERROR_DEVICE);
    expect_all(seen, 4 * kElements, 0);
    expect_all(tensor, 6 * kElements, 0);
    EXPECT_OK(stw_tensor_destroy(&seen, 1));
    EXPECT_OK(stw_runtime_close(std::exchange(runtime_, nullptr), 0, 0));
    for (void *&stream : streams_) stream = nullptr;
    context_ = nullptr;
    stw_double_reset("seed=1");
}

TEST_F(CudaFixed, AMappingThatFailsIsAnErrorOfTheFetch)
{
    open("seed=1", 8, 24);
    stw_tensor *tensor = make_fixed("t", 2 * kElements);
    stw_double_fail("cuMemMap", 2, 2);
    stw_view view;
    EXPECT_EQ(fetch(tensor, STW_READ, streams_[0], &view), STW_ERROR_MEMORY);
    EXPECT_NE(std::string(stw_last_error()).find("at its address"), std::string::npos)
        << stw_last_error();
    use(tensor, streams_[0], 0, 4, true);
    expect_all(tensor, 2 * kElements, 4);
    end_streams();
}

}  // namespace
}  // namespace stepwell
