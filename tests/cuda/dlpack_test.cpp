// SPDX-License-Identifier: Apache-2.0
// Views at a GPU as DLPack tensors: named as CUDA's, and ordered on the consumer's stream, which is
// another than that of the fetch.
#include "tests/cuda/runtime_rig.h"

#include "lib/api/dlpack.h"

#include <random>

namespace stepwell {
namespace {

// As a consumer sees it: the memory, and no view.
stw_view seen(const DLManagedTensorVersioned &made)
{
    stw_view view{};
    view.pointer = made.dl_tensor.data;
    view.bytes = sizeof(uint32_t);
    for (int32_t i = 0; i < made.dl_tensor.ndim; ++i)
        view.bytes *= static_cast<uint64_t>(made.dl_tensor.shape[i]);
    return view;
}

TEST_F(CudaRuntime, AnExportedViewIsOrderedOnTheStreamOfItsConsumer)
{
    const std::vector<uint64_t> sizes = {100, 16384, 3 * 16384 + 5, 40000, 16384 * 2, 7};
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        open("delay_us=300,seed=" + std::to_string(seed), 8, 24);
        if (HasFatalFailure()) return;
        std::mt19937_64 random(seed);
        std::vector<stw_tensor *> tensors;
        std::vector<uint32_t> values(sizes.size());
        for (size_t i = 0; i < sizes.size(); ++i)
            tensors.push_back(make("t" + std::to_string(i), sizes[i]));
        uint32_t written = 0;
        for (int i = 0; i < 60; ++i) {
            const size_t tensor = random() % sizes.size();
            void *const own = streams_[random() % kStreams];
            void *const consumers = streams_[random() % kStreams];
            const bool writes = random() % 3 == 0;
            stw_view view;
            DLManagedTensorVersioned *made = nullptr;
            ASSERT_OK(fetch(tensors[tensor], writes ? STW_READ_WRITE : STW_READ, own, &view));
            ASSERT_OK(stw_view_to_dlpack(&view, consumers, &made));
            EXPECT_EQ(made->dl_tensor.device.device_type, kDLCUDA);
            EXPECT_EQ(made->dl_tensor.device.device_id, 0);
            EXPECT_EQ(made->flags, writes ? 0 : kDLReadOnly);
            enqueue(seen(*made), consumers, values[tensor], writes ? written + 1 : 0, writes);
            if (writes) values[tensor] = ++written;
            made->deleter(made);
        }
        for (size_t i = 0; i < sizes.size(); ++i) expect_all(tensors[i], sizes[i], values[i]);
        for (void *stream : streams_) EXPECT_EQ(cuStreamSynchronize(stream), 0);
        EXPECT_EQ(wrong(), 0);
        start_over();
    }
}

TEST_F(CudaRuntime, AnExportNamesItsDeviceAndNeedsAStreamOfIt)
{
    device_count_ = 2;
    open("devices=2,seed=1", 8, 24);
    if (HasFatalFailure()) return;
    stw_tensor *tensor = make("t", 20000);
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    stw_view view;
    DLManagedTensorVersioned *made = nullptr;
    options.stream = STW_STREAM_SYNCED;
    request.tensor = tensor;
    request.tier = STW_TIER_DEVICE;
    request.device = 1;
    ASSERT_OK(stw_fetch(runtime_, &options, &request, 1, &view));
    EXPECT_EQ(stw_view_to_dlpack(&view, STW_STREAM_HOST, &made), STW_ERROR_INVALID);
    EXPECT_NE(std::strstr(stw_last_error(), "device 1 has streams"), nullptr) << stw_last_error();
    EXPECT_EQ(stw_view_to_dlpack(&view, streams_[0], &made), STW_ERROR_INVALID)
        << "a stream of the other device";
    ASSERT_OK(stw_view_to_dlpack(&view, STW_STREAM_LEGACY, &made));
    EXPECT_EQ(made->dl_tensor.device.device_type, kDLCUDA);
    EXPECT_EQ(made->dl_tensor.device.device_id, 1);
    made->deleter(made);
}

}  // namespace
}  // namespace stepwell
