// SPDX-License-Identifier: Apache-2.0
// The runtime over the module cuda and the double of CUDA's driver: programs of several streams
// whose work is late, in a device that holds a part of their tensors. The double sees each access
// that is not ordered behind the one before it; the bytes tell the rest.
#include "tests/cuda/runtime_rig.h"

#include <random>

namespace stepwell {
namespace {

// Tensors three times what the device holds, small and large, read and written on several streams.
TEST_F(CudaRuntime, BytesAndOrderAreRightWhateverIsLate)
{
    const std::vector<uint64_t> sizes = {100, 16384, 3 * 16384 + 5, 40000, 16384 * 2, 7, 50000, 60};
    for (uint64_t seed = 1; seed <= 12; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        // A queue that is full makes calls wait, whatever we hold meanwhile.
        open("delay_us=300,seed=" + std::to_string(seed) + (seed % 3 == 0 ? ",queue=4" : ""), 8,
             24);
        if (HasFatalFailure()) return;
        const bool registered = seed % 2 == 0;
        if (registered) wait_registered();
        std::mt19937_64 random(seed);
        std::vector<stw_tensor *> tensors;
        std::vector<uint32_t> values(sizes.size());
        for (size_t i = 0; i < sizes.size(); ++i)
            tensors.push_back(make("t" + std::to_string(i), sizes[i]));
        uint32_t written = 0;
        for (int i = 0; i < 60; ++i) {
            const size_t tensor = random() % sizes.size();
            const size_t stream = random() % kStreams;
            const bool writes = random() % 3 == 0;
            stw_view view;
            const uint32_t access = writes ? STW_READ_WRITE : STW_READ;
            ASSERT_OK(fetch(tensors[tensor], access, streams_[stream], &view));
            enqueue(view, streams_[stream], values[tensor], writes ? written + 1 : 0, writes);
            if (writes) values[tensor] = ++written;
            ASSERT_OK(stw_release(&view, 1, streams_[stream], 0));
        }
        for (size_t i = 0; i < sizes.size(); ++i) expect_all(tensors[i], sizes[i], values[i]);
        for (void *stream : streams_) EXPECT_EQ(cuStreamSynchronize(stream), 0);
        EXPECT_EQ(wrong(), 0);
        if (registered) {
            EXPECT_EQ(stw_double_pageable_copies(), 0u);
            EXPECT_EQ(stw_double_implicit_waits(), 0u);  // of what runs again and again
        }
        start_over();
    }
}

// The device does nothing at all while it is fetched: what the host has is granted when its copy is
// enqueued, and the consumer's work stands behind that.
TEST_F(CudaRuntime, AFetchDoesNotWaitForItsCopy)
{
    open("seed=1", 8, 24);
    wait_registered();
    stw_tensor *tensor = make("t", 20000);
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    stw_view view;
    request.tensor = tensor;
    request.access = STW_READ;
    request.tier = STW_TIER_HOST;
    ASSERT_OK(stw_fetch(runtime_, nullptr, &request, 1, &view));
    ASSERT_OK(stw_release(&view, 1, nullptr, 0));
    ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    stw_double_drain();
    stw_double_hold_all(1);
    ASSERT_OK(fetch(tensor, STW_READ, streams_[0], &view));
    EXPECT_GT(stw_double_pending(nullptr), 0u);
    enqueue(view, streams_[0], 0, 0, false);
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    stw_double_hold_all(0);
    EXPECT_EQ(cuStreamSynchronize(streams_[0]), 0);
    EXPECT_EQ(wrong(), 0);
}

TEST_F(CudaRuntime, AHitOnTheSameStreamCallsNothing)
{
    open("seed=1", 8, 24);
    wait_registered();
    stw_tensor *tensor = make("t", 20000);
    stw_view view;
    ASSERT_OK(fetch(tensor, STW_READ_WRITE, streams_[0], &view));
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request several[3];
    stw_view views[3];
    options.stream = streams_[0];
    for (stw_fetch_request &request : several) {
        request = STW_FETCH_REQUEST_INIT;
        request.tensor = tensor;
        request.access = STW_READ;
    }
    stw_double_calls_reset();
    for (int i = 0; i < 100; ++i) {
        ASSERT_OK(fetch(tensor, STW_READ, streams_[0], &view));
        ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
        ASSERT_OK(stw_fetch(runtime_, &options, several, 3, views));
        ASSERT_OK(stw_release(views, 3, streams_[0], 0));
    }
    EXPECT_EQ(stw_double_calls(nullptr), 0u);
}

TEST_F(CudaRuntime, NoMemoryAtOpenSaysHowMuchThereIs)
{
    open("memory=4M", 8, 24);
    stw_runtime *first = std::exchange(runtime_, nullptr);
    EXPECT_EQ(try_open(128, 24), STW_ERROR_MEMORY);
    EXPECT_NE(std::string(stw_last_error()).find("another program's"), std::string::npos)
        << stw_last_error();
    runtime_ = first;
}

TEST_F(CudaRuntime, WhatIsAbsentIsToldAtOpen)
{
    for (const char *options : {"devices=0", "driver=10020", "busy=1"}) {
        ASSERT_EQ(stw_double_reset(options), 0);
        EXPECT_LT(try_open(8, 24), STW_OK) << options;
        EXPECT_EQ(runtime_, nullptr);
        EXPECT_NE(std::string(stw_last_error()), "") << options;
    }
    ASSERT_EQ(stw_double_reset("devices=1"), 0);
}

// A kernel of the program's touched what it must not: the context is lost for good. What is farther
// is still there to be saved, and everything ends.
TEST_F(CudaRuntime, AfterALostDeviceTheFartherTiersCanBeRead)
{
    open("seed=1", 8, 24);
    stw_tensor *lost = make("lost", 20000);
    stw_tensor *safe = make("safe", 30000);
    stw_view view;
    ASSERT_OK(stw_evict(runtime_, &safe, 1, STW_TIER_DEVICE, 0, 0));
    ASSERT_OK(fetch(lost, STW_READ_WRITE, streams_[0], &view));
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    stw_double_break(0, 700);
    std::vector<uint32_t> bytes(30000, 1);
    EXPECT_EQ(stw_tensor_read(lost, bytes.data(), nullptr), STW_ERROR_DEVICE);
    EXPECT_EQ(fetch(safe, STW_READ, streams_[0], &view), STW_ERROR_DEVICE);
    ASSERT_OK(stw_tensor_read(safe, bytes.data(), nullptr));
    for (const uint32_t element : bytes) ASSERT_EQ(element, 0u);
    EXPECT_OK(stw_runtime_close(std::exchange(runtime_, nullptr), 0, 0));
    std::memset(streams_, 0, sizeof streams_);
    context_ = nullptr;
    stw_double_reset("seed=1");
}

}  // namespace
}  // namespace stepwell
