// SPDX-License-Identifier: Apache-2.0
// Streams of the program that record graphs, and that are destroyed: what must wait for their work
// does, what need not goes on, and nothing of ours makes a graph invalid.
#include "tests/cuda/runtime_rig.h"

#include <atomic>

namespace stepwell {
namespace {

class CudaStreams : public CudaRuntime {
protected:
    // Late work of the stream in the tensor.
    void write(stw_tensor *tensor, void *stream, uint32_t from, uint32_t to)
    {
        stw_view view;
        ASSERT_OK(fetch(tensor, STW_READ_WRITE, stream, &view));
        enqueue(view, stream, from, to, true);
        ASSERT_OK(stw_release(&view, 1, stream, 0));
    }
    void read(stw_tensor *tensor, void *stream, uint32_t value)
    {
        stw_view view;
        ASSERT_OK(fetch(tensor, STW_READ, stream, &view));
        enqueue(view, stream, value, 0, false);
        ASSERT_OK(stw_release(&view, 1, stream, 0));
    }
};

TEST_F(CudaStreams, WhatMeetsAGraphThatIsRecordedIsTriedAgainAndOthersGoOn)
{
    open("delay_us=100,seed=1", 8, 40);
    wait_registered();
    stw_tensor *used = make("used", 40000);
    stw_tensor *other = make("other", 40000);
    ASSERT_OK(stw_evict(runtime_, nullptr, 0, STW_TIER_DEVICE, 0, 0));
    write(used, streams_[0], 0, 5);
    stw_double_capture(streams_[0], 1);
    stw_double_calls_reset();
    std::atomic<bool> over{false};
    std::thread evicts([&] {
        EXPECT_OK(stw_evict(runtime_, &used, 1, STW_TIER_DEVICE, 0, 0));
        over.store(true);
    });
    // It was tried several times.
    while (stw_double_calls("cuStreamIsCapturing") < 10 && !over.load()) std::this_thread::yield();
    EXPECT_FALSE(over.load());
    write(other, streams_[1], 0, 6);  // others go on
    read(other, streams_[2], 6);
    stw_double_capture(streams_[0], 0);
    evicts.join();
    expect_all(used, 40000, 5);
    expect_all(other, 40000, 6);
    write(used, streams_[2], 5, 7);
    expect_all(used, 40000, 7);
    EXPECT_EQ(wrong(), 0);
    EXPECT_EQ(log(), "");
}

TEST_F(CudaStreams, WhatWaitsForAGraphSaysSoWhenItsTimeIsOver)
{
    open("delay_us=100,seed=1", 8, 40);
    wait_registered();
    stw_tensor *tensor = make("t", 40000);
    write(tensor, streams_[0], 0, 5);
    stw_double_capture(streams_[0], 1);
    EXPECT_EQ(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, kSecond / 20), STW_ERROR_TIMEOUT);
    EXPECT_NE(log().find("until a stream has recorded its graph"), std::string::npos) << log();
    stw_double_capture(streams_[0], 0);
    expect_all(tensor, 40000, 5);
    EXPECT_EQ(wrong(), 0);
}

// A thread of the program's fetches from open to close while another one records.
TEST_F(CudaStreams, AGraphIsRecordedBesideEverythingThatGoesOn)
{
    ASSERT_EQ(stw_double_hold_calls("cuMemHostRegister_v2", 1), 0);
    open("delay_us=100,seed=7", 8, 40);
    stw_double_capture(streams_[2], 1);
    ASSERT_EQ(stw_double_hold_calls("cuMemHostRegister_v2", 0), 0);
    std::thread fetches([&] {
        std::vector<stw_tensor *> tensors;
        for (const char *name : {"a", "b", "c", "d"}) tensors.push_back(make(name, 40000));
        std::vector<uint32_t> values(tensors.size());
        for (uint32_t i = 1; i <= 40; ++i) {
            const size_t at = i * 7 % tensors.size();
            write(tensors[at], streams_[i % 2], values[at], i);
            values[at] = i;
            if (i % 8 == 0) {
                EXPECT_OK(stw_evict(runtime_, nullptr, 0, STW_TIER_DEVICE, 0, 0));
            }
        }
        for (size_t i = 0; i < tensors.size(); ++i) expect_all(tensors[i], 40000, values[i]);
    });
    fetches.join();
    wait_registered();
    EXPECT_EQ(stw_double_violations(), 0u);
    stw_double_capture(streams_[2], 0);
    EXPECT_EQ(wrong(), 0);
    EXPECT_EQ(log(), "");
}

TEST_F(CudaStreams, AProgramMayUseAndForgetMoreStreamsThanAreKnownAtOnce)
{
    open("delay_us=100,seed=3", 8, 40);
    wait_registered();
    stw_tensor *tensor = make("t", 40000);
    for (uint32_t i = 0; i < 100; ++i) {
        void *stream = nullptr;
        ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
        write(tensor, stream, i, i + 1);
        ASSERT_OK(stw_stream_forget(runtime_, stream));
        ASSERT_EQ(cuStreamDestroy_v2(stream), 0);  // its work goes on, and the next has its handle
        if (HasFatalFailure()) return;
    }
    EXPECT_EQ(stw_double_calls("cuCtxSynchronize"), 0u);
    expect_all(tensor, 40000, 100);
    EXPECT_EQ(wrong(), 0);
    for (void *stream : {STW_STREAM_HOST, STW_STREAM_SYNCED, STW_STREAM_LEGACY})
        EXPECT_OK(stw_stream_forget(runtime_, stream));
}

// The streams of all threads have one handle, and this thread's is not taken for theirs.
TEST_F(CudaStreams, AThreadForgetsItsOwnStream)
{
    open("delay_us=100,seed=3", 8, 40);
    wait_registered();
    stw_tensor *tensor = make("t", 40000);
    stw_double_calls_reset();
    for (uint32_t i = 0; i < 140; i += 2) {
        write(tensor, STW_STREAM_PER_THREAD, i, i + 1);
        std::thread thread([&] {
            ASSERT_EQ(cuCtxSetCurrent(context_), 0);
            write(tensor, STW_STREAM_PER_THREAD, i + 1, i + 2);
            EXPECT_OK(stw_stream_forget(runtime_, STW_STREAM_PER_THREAD));
        });
        thread.join();
        if (HasFatalFailure()) return;
    }
    EXPECT_EQ(stw_double_calls("cuCtxSynchronize"), 0u);
    expect_all(tensor, 40000, 140);
    EXPECT_EQ(wrong(), 0);
}

TEST_F(CudaStreams, AStreamThatRecordsAGraphIsNotForgotten)
{
    open("seed=1", 8, 40);
    wait_registered();
    stw_tensor *tensor = make("t", 40000);
    write(tensor, streams_[0], 0, 1);
    stw_double_capture(streams_[0], 1);
    EXPECT_EQ(stw_stream_forget(runtime_, streams_[0]), STW_ERROR_BUSY);
    EXPECT_NE(std::string(stw_last_error()).find("records a graph"), std::string::npos)
        << stw_last_error();
    stw_double_capture(streams_[0], 0);
    EXPECT_OK(stw_stream_forget(runtime_, streams_[0]));
    expect_all(tensor, 40000, 1);
}

// Nobody said that it was destroyed, and the next one has its handle: that one is idle.
TEST_F(CudaStreams, ABlockIsNotOverwrittenUnderWorkOfAStreamThatWasDestroyed)
{
    open("delay_us=300,seed=1", 8, 40);
    wait_registered();
    stw_tensor *tensor = make("t", 40000);
    write(tensor, streams_[0], 0, 1);
    ASSERT_EQ(cuStreamDestroy_v2(streams_[0]), 0);
    void *const handle = streams_[0];
    ASSERT_EQ(cuStreamCreate(&streams_[0], 1), 0);
    ASSERT_EQ(streams_[0], handle);
    expect_all(tensor, 40000, 1);
    EXPECT_EQ(wrong(), 0);
}

TEST_F(CudaStreams, TheDriversErrorIsInTheSentenceAndOnceInTheLog)
{
    open("seed=1", 8, 40);
    wait_registered();
    stw_tensor *tensor = make("t", 16000);
    write(tensor, streams_[0], 0, 1);
    ASSERT_EQ(stw_double_fail("cuMemcpyDtoHAsync_v2", 0, 999), 0);
    std::vector<uint32_t> bytes(16000);
    for (int i = 0; i < 2; ++i) {
        EXPECT_NE(stw_tensor_read(tensor, bytes.data(), nullptr), STW_OK);
        EXPECT_NE(std::string(stw_last_error())
                      .find("cuMemcpyDtoHAsync_v2 returned CUDA_ERROR_UNKNOWN (999"),
                  std::string::npos)
            << stw_last_error();
    }
    const std::string said = log();
    const size_t first = said.find("cuMemcpyDtoHAsync_v2 returned CUDA_ERROR_UNKNOWN");
    EXPECT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find("Of this call and error", said.find("Of this call and error") + 1),
              std::string::npos)
        << said;
}

}  // namespace
}  // namespace stepwell
