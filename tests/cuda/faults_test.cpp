// SPDX-License-Identifier: Apache-2.0
// What goes wrong with a device in the middle: streams that are not its own, that were destroyed or
// record a graph, a device that is lost or full, a fork. The caller hears of it by status and
// sentence, what is farther than the device stays, and everything ends.
#include "tests/cuda/runtime_rig.h"

#include <sys/wait.h>
#include <unistd.h>

namespace stepwell {
namespace {

class CudaFaults : public CudaRuntime {
protected:
    stw_status fetch_at(uint32_t device, stw_tensor *tensor, void *stream, stw_view *view)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        options.stream = stream;
        request.tensor = tensor;
        request.access = STW_READ;
        request.tier = STW_TIER_DEVICE;
        request.device = device;
        return stw_fetch(runtime_, &options, &request, 1, view);
    }
    void bring_to_host(stw_tensor *tensor)
    {
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        stw_view view;
        request.tensor = tensor;
        request.access = STW_READ;
        request.tier = STW_TIER_HOST;
        ASSERT_OK(stw_fetch(runtime_, nullptr, &request, 1, &view));
        ASSERT_OK(stw_release(&view, 1, nullptr, 0));
    }
    // What a lost context had is gone with it.
    void forget_device()
    {
        // It is closed, whatever it has to say of the device.
        const stw_status status = stw_runtime_close(std::exchange(runtime_, nullptr), 0, 0);
        EXPECT_TRUE(status == STW_OK || status == STW_ERROR_DEVICE) << stw_last_error();
        std::memset(streams_, 0, sizeof streams_);
        context_ = nullptr;
        stw_double_reset("seed=1");
    }
    static bool said(const char *words)
    {
        return std::string(stw_last_error()).find(words) != std::string::npos;
    }
};

TEST_F(CudaFaults, AStreamOfTheOtherDeviceIsRefused)
{
    device_count_ = 2;
    open("devices=2,seed=1", 8, 24);
    stw_tensor *tensor = make("t", 20000);
    void *context = nullptr;
    void *other = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 1), 0);
    ASSERT_EQ(cuCtxSetCurrent(context), 0);
    ASSERT_EQ(cuStreamCreate(&other, 1), 0);
    ASSERT_EQ(cuCtxSetCurrent(context_), 0);
    stw_view view;
    EXPECT_EQ(fetch_at(0, tensor, other, &view), STW_ERROR_INVALID);
    EXPECT_TRUE(said("of that device")) << stw_last_error();
    EXPECT_EQ(fetch_at(1, tensor, streams_[0], &view), STW_ERROR_INVALID);
    // Each with its own it works, one after the other.
    for (uint32_t device = 0; device < 2; ++device) {
        void *stream = device == 0 ? streams_[0] : other;
        ASSERT_OK(fetch_at(device, tensor, stream, &view));
        enqueue(view, stream, 0, 0, false);
        EXPECT_EQ(stw_release(&view, 1, device == 0 ? other : streams_[0], 0), STW_ERROR_INVALID);
        EXPECT_OK(stw_release(&view, 1, stream, 0));
        EXPECT_EQ(cuStreamSynchronize(stream), 0);
    }
    EXPECT_EQ(wrong(), 0);
    EXPECT_OK(stw_runtime_close(std::exchange(runtime_, nullptr), 0, 0));
    EXPECT_EQ(cuStreamDestroy_v2(other), 0);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), 0);
}

TEST_F(CudaFaults, BytesGoFromOneDeviceToTheOtherBehindTheWorkOfBoth)
{
    device_count_ = 2;
    open("devices=2,delay_us=200,seed=4", 8, 24);
    stw_tensor *tensor = make("t", 40000);
    stw_view view;
    ASSERT_OK(fetch(tensor, STW_READ_WRITE, streams_[0], &view));
    enqueue(view, streams_[0], 0, 7, true);
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    ASSERT_OK(fetch_at(1, tensor, STW_STREAM_SYNCED, &view));
    const auto *bytes =
        static_cast<const uint32_t *>(stw_double_alias(reinterpret_cast<uint64_t>(view.pointer)));
    for (uint64_t i = 0; i < 40000; ++i) ASSERT_EQ(bytes[i], 7u) << i;
    ASSERT_OK(stw_release(&view, 1, STW_STREAM_SYNCED, 0));
    expect_all(tensor, 40000, 7);
    EXPECT_EQ(wrong(), 0);
}

// Its work goes on for all that, and what comes next comes behind it.
TEST_F(CudaFaults, ADestroyedStreamIsWaitedForOnce)
{
    open("delay_us=300,seed=2", 8, 24);
    stw_tensor *tensor = make("t", 40000);
    stw_view view;
    ASSERT_OK(fetch(tensor, STW_READ_WRITE, streams_[1], &view));
    enqueue(view, streams_[1], 0, 9, true);
    ASSERT_OK(stw_release(&view, 1, streams_[1], 0));
    ASSERT_EQ(cuStreamDestroy_v2(std::exchange(streams_[1], nullptr)), 0);
    expect_all(tensor, 40000, 9);
    EXPECT_EQ(wrong(), 0);
    // That the module asked for a mark on it is all that the double has to say.
    char text[1024] = "";
    const uint32_t count = stw_double_violations();
    for (uint32_t i = 0; i < count; ++i)
        EXPECT_EQ(stw_double_violation(i, text, sizeof text), STW_DOUBLE_DEAD_HANDLE) << text;
    EXPECT_EQ(stw_double_take_violations(nullptr, 0), count);
}

// A release is behind the work that was enqueued before it, and nothing else: what the caller
// enqueues afterwards on the address of a view that ended writes where nobody looks.
TEST_F(CudaFaults, WorkThatComesBehindItsReleaseIsNotSaved)
{
    open("seed=1", 8, 24);
    wait_registered();
    stw_tensor *tensor = make("t", 20000);
    stw_view view;
    ASSERT_OK(fetch(tensor, STW_READ_WRITE, streams_[0], &view));
    const stw_view before = view;
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    enqueue(before, streams_[0], 0, 5, true);
    EXPECT_EQ(cuStreamSynchronize(streams_[0]), 0);
    expect_all(tensor, 20000, 0);
    ASSERT_OK(fetch(tensor, STW_READ, streams_[1], &view));
    enqueue(view, streams_[1], 0, 0, false);
    ASSERT_OK(stw_release(&view, 1, streams_[1], 0));
    EXPECT_EQ(cuStreamSynchronize(streams_[1]), 0);
    EXPECT_EQ(kernels_.back()->wrong, 0);
}

TEST_F(CudaFaults, ADeviceThatIsLostWhileItComputesLeavesTheFartherTiers)
{
    for (const int code : {700, 719, 214}) {
        SCOPED_TRACE(testing::Message() << "error " << code);
        open("delay_us=200,seed=6", 8, 40);
        if (HasFatalFailure()) return;
        std::vector<stw_tensor *> tensors;
        for (int i = 0; i < 6; ++i) tensors.push_back(make("t" + std::to_string(i), 30000));
        ASSERT_OK(stw_evict(runtime_, tensors.data(), 6, STW_TIER_DEVICE, 0, 0));
        stw_view view;
        stw_status status = STW_OK;
        for (int step = 0; step < 40 && status == STW_OK; ++step) {
            if (step == 3) stw_double_break(0, code);
            status = fetch(tensors[static_cast<size_t>(step) % 6], STW_READ, streams_[0], &view);
            if (status != STW_OK) break;
            EXPECT_OK(stw_release(&view, 1, streams_[0], 0));
        }
        EXPECT_EQ(status, STW_ERROR_DEVICE) << stw_last_error();
        // Copies that were ordered before the device was lost fail behind their fetches.
        (void)stw_evict(runtime_, tensors.data(), 6, STW_TIER_DEVICE, 0, 0);
        ASSERT_OK(stw_runtime_clear_error(runtime_));
        for (stw_tensor *tensor : tensors) expect_all(tensor, 30000, 0);
        forget_device();
        kernels_.clear();
    }
}

TEST_F(CudaFaults, ADeviceThatIsFullInTheMiddleFailsWhatNeedsItAndNoMore)
{
    open("seed=1", 8, 24);
    wait_registered();
    stw_tensor *tensor = make("t", 20000);
    ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    ASSERT_EQ(stw_double_fail("cuMemcpyHtoDAsync_v2", 1, 2), 0);
    ASSERT_EQ(stw_double_fail("cuMemcpyBatchAsync_v2", 1, 2), 0);
    stw_double_calls_reset();
    stw_view view;
    stw_status status = STW_ERROR_MEMORY;
    for (int tries = 0; status == STW_ERROR_MEMORY && tries < 5; ++tries)
        status = fetch(tensor, STW_READ, streams_[0], &view);
    ASSERT_OK(status);
    // What failed came again, at the fetch's next try or from a tier behind.
    EXPECT_GE(stw_double_calls("cuMemcpyBatchAsync_v2") + stw_double_calls("cuMemcpyHtoDAsync_v2"),
              2u);
    enqueue(view, streams_[0], 0, 0, false);
    EXPECT_OK(stw_release(&view, 1, streams_[0], 0));
    EXPECT_EQ(cuStreamSynchronize(streams_[0]), 0);
    EXPECT_EQ(wrong(), 0);
}

// Nothing of CUDA works in a child, and it must not be tried.
TEST_F(CudaFaults, AForkedChildIsToldAndCallsNothing)
{
    open("seed=1", 8, 24);
    wait_registered();
    stw_tensor *tensor = make("t", 20000);
    stw_view held;
    ASSERT_OK(fetch(tensor, STW_READ, streams_[0], &held));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        stw_view view;
        uint32_t bytes[8];
        int failed = 0;
        failed += fetch(tensor, STW_READ, streams_[0], &view) != STW_ERROR_FORKED;
        failed += stw_release(&held, 1, streams_[0], 0) != STW_ERROR_FORKED;
        failed += stw_tensor_read(tensor, bytes, nullptr) != STW_ERROR_FORKED;
        failed += stw_runtime_close(runtime_, 0, 0) != STW_ERROR_FORKED;
        _exit(failed);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_OK(stw_release(&held, 1, streams_[0], 0));
    expect_all(tensor, 20000, 0);
}

TEST_F(CudaFaults, ADriverOlderThanCuda11IsNamedWithItsVersion)
{
    ASSERT_EQ(stw_double_reset("driver=10020"), 0);
    EXPECT_EQ(try_open(8, 24), STW_ERROR_UNSUPPORTED);
    EXPECT_TRUE(said("10.2")) << stw_last_error();
    ASSERT_EQ(stw_double_reset("seed=1"), 0);
}

TEST_F(CudaFaults, AStreamThatRecordsAGraphIsRefusedWhereSomethingWouldBeOrdered)
{
    open("delay_us=100,seed=1", 8, 24);
    wait_registered();
    stw_tensor *tensor = make("t", 20000);
    stw_view view;
    stw_double_capture(streams_[1], 1);
    EXPECT_EQ(fetch(tensor, STW_READ, streams_[1], &view), STW_ERROR_INVALID);
    EXPECT_TRUE(said("records a graph")) << stw_last_error();
    // One that is known: what orders nothing calls nothing, what does is refused.
    ASSERT_OK(fetch(tensor, STW_READ_WRITE, streams_[0], &view));
    enqueue(view, streams_[0], 0, 3, true);
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    stw_double_capture(streams_[0], 1);
    stw_double_calls_reset();
    ASSERT_OK(fetch(tensor, STW_READ, streams_[0], &view));
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    EXPECT_EQ(stw_double_calls(nullptr), 0u);
    EXPECT_EQ(fetch(tensor, STW_READ, streams_[2], &view), STW_ERROR_BUSY);
    EXPECT_TRUE(said("records a graph")) << stw_last_error();
    // When the capture is over, all is as before.
    stw_double_capture(streams_[0], 0);
    stw_double_capture(streams_[1], 0);
    ASSERT_OK(fetch(tensor, STW_READ, streams_[1], &view));
    enqueue(view, streams_[1], 3, 0, false);
    ASSERT_OK(stw_release(&view, 1, streams_[1], 0));
    EXPECT_EQ(cuStreamSynchronize(streams_[1]), 0);
    EXPECT_EQ(wrong(), 0);
    expect_all(tensor, 20000, 3);
}

// One mark, one call: and where the driver has no such call, many.
TEST_F(CudaFaults, SmallCopiesThatWaitTogetherAreStartedTogether)
{
    struct Case {
        const char *options;
        const char *call;
        uint64_t refused = 0;  // by the driver that has it
    };
    const Case cases[] = {{"seed=1,driver=13000", "cuMemcpyBatchAsync_v2"},
                          {"seed=1,driver=12080", "cuMemcpyBatchAsync"},
                          {"seed=1,driver=12040", nullptr},
                          {"seed=1,attribute=91:0", nullptr},
                          {"seed=1,batch_max=1", nullptr, 1},
                          {"seed=1,fail=cuMemcpyBatchAsync_v2:0:801", nullptr, 1}};
    for (const Case &each : cases) {
        SCOPED_TRACE(each.options);
        open(each.options, 16, 48);
        if (HasFatalFailure()) return;
        wait_registered();
        // Of a block each, and every second of them: side by side they would be one copy.
        std::vector<stw_tensor *> tensors;
        for (int i = 0; i < 24; ++i) tensors.push_back(make("t" + std::to_string(i), 16384));
        for (stw_tensor *tensor : tensors) bring_to_host(tensor);
        ASSERT_OK(stw_evict(runtime_, tensors.data(), 24, STW_TIER_DEVICE, 0, 0));
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        stw_fetch_request requests[12];
        stw_view views[12];
        options.stream = streams_[0];
        for (size_t i = 0; i < 12; ++i) {
            requests[i] = STW_FETCH_REQUEST_INIT;
            requests[i].tensor = tensors[2 * i];
            requests[i].access = STW_READ;
        }
        stw_double_calls_reset();
        ASSERT_OK(stw_fetch(runtime_, &options, requests, 12, views));
        for (const stw_view &view : views) enqueue(view, streams_[0], 0, 0, false);
        ASSERT_OK(stw_release(views, 12, streams_[0], 0));
        EXPECT_EQ(cuStreamSynchronize(streams_[0]), 0);
        const uint64_t alone = stw_double_calls("cuMemcpyHtoDAsync_v2");
        if (each.call != nullptr) {
            EXPECT_GT(stw_double_calls(each.call), 0u);
            EXPECT_LT(alone + stw_double_calls(each.call), 12u);
        } else {
            EXPECT_EQ(alone, 12u);
            EXPECT_EQ(stw_double_calls("cuMemcpyBatchAsync_v2"), each.refused);
        }
        EXPECT_EQ(wrong(), 0);
        for (stw_tensor *tensor : tensors) expect_all(tensor, 16384, 0);
        start_over();
    }
}

}  // namespace
}  // namespace stepwell
