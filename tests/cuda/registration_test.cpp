// SPDX-License-Identifier: Apache-2.0
// The host tier registered with the device behind everybody's back: what can be used meanwhile,
// what is refused, and that nothing is registered whose memory goes.
#include "tests/cuda/runtime_rig.h"

#include <random>

namespace stepwell {
namespace {

class CudaRegistration : public CudaRuntime {
protected:
    static constexpr uint64_t kStaging = 8 * kBlock;

    void set_host_budget(uint64_t blocks)
    {
        EXPECT_OK(stw_tier_set_budget(runtime_, STW_TIER_HOST, 0, blocks * kBlock, 0));
    }
    // To the device, changed there, and back to the host tier.
    void rewrite(stw_tensor *tensor, uint32_t from, uint32_t to)
    {
        stw_view view;
        ASSERT_OK(fetch(tensor, STW_READ_WRITE, streams_[0], &view));
        enqueue(view, streams_[0], from, to, true);
        ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
        ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    }
};

TEST_F(CudaRegistration, TheTierIsUsableBeforeItIsRegistered)
{
    ASSERT_EQ(stw_double_hold_calls("cuMemHostRegister_v2", 1), 0);
    open("delay_us=100,seed=3", 8, 24);
    stw_tensor *tensor = make("t", 40000);
    rewrite(tensor, 0, 1);
    EXPECT_GT(stw_double_pageable_copies(), 0u);
    EXPECT_EQ(host_stats().registered_bytes, 0u);
    EXPECT_EQ(host_stats().registering_bytes, 24 * kBlock);
    ASSERT_EQ(stw_double_hold_calls("cuMemHostRegister_v2", 0), 0);
    wait_registered();
    EXPECT_EQ(host_stats().registered_bytes, 24 * kBlock);
    EXPECT_GT(host_stats().registered_ns, 0u);
    const uint64_t pageable = stw_double_pageable_copies();
    rewrite(tensor, 1, 2);
    EXPECT_EQ(stw_double_pageable_copies(), pageable);
    expect_all(tensor, 40000, 2);
    EXPECT_EQ(wrong(), 0);
    EXPECT_EQ(log(), "");
}

TEST_F(CudaRegistration, AClosingRuntimeDoesNotRegisterTheRest)
{
    ASSERT_EQ(stw_double_hold_calls("cuMemHostRegister_v2", 1), 0);
    open("seed=1", 8, 24);
    std::thread closing(
        [this] { EXPECT_OK(stw_runtime_close(std::exchange(runtime_, nullptr), 0, 0)); });
    ASSERT_EQ(stw_double_hold_calls("cuMemHostRegister_v2", 0), 0);
    closing.join();
    EXPECT_EQ(stw_double_calls("cuMemHostRegister_v2"), stw_double_calls("cuMemHostUnregister"));
}

// The staging memory comes first; the rest is asked for twice.
TEST_F(CudaRegistration, WhatIsRefusedIsSaidOnceAndCopiedAllTheSame)
{
    open("seed=1,fail=cuMemHostRegister_v2:2:2,fail=cuMemHostRegister_v2:3:2,"
         "fail=cuMemHostRegister_v2:4:2",
         8, 24);
    wait_registered();
    EXPECT_EQ(host_stats().registered_bytes, kStaging);
    EXPECT_EQ(host_stats().refused_slabs, 1u);
    while (log().empty()) std::this_thread::yield();  // it is said behind what is counted
    const std::string said = log();
    EXPECT_NE(said.find("524288 of 1572864 bytes of the host tier (33.3 %)"), std::string::npos)
        << said;
    EXPECT_NE(said.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << said;
    stw_tensor *tensor = make("t", 40000);
    rewrite(tensor, 0, 1);
    EXPECT_GT(stw_double_pageable_copies(), 0u);
    expect_all(tensor, 40000, 1);
    EXPECT_EQ(log(), said);
}

TEST_F(CudaRegistration, WhatIsRefusedForAMomentIsRegisteredInTheEnd)
{
    open("seed=1,fail=cuMemHostRegister_v2:2:2", 8, 24);
    wait_registered();
    EXPECT_EQ(host_stats().registered_bytes, 24 * kBlock);
    EXPECT_EQ(host_stats().refused_slabs, 0u);
    EXPECT_EQ(log(), "");
}

TEST_F(CudaRegistration, ADriverThatRegistersNoLargePiecesGetsSmallerOnes)
{
    open("seed=1,register_max=" + std::to_string(kStaging), 8, 24);
    wait_registered();
    EXPECT_EQ(host_stats().registered_bytes, 24 * kBlock);
    EXPECT_EQ(log(), "");
}

TEST_F(CudaRegistration, ScratchMemoryIsRegisteredAsOnePiece)
{
    scratch_bytes_ = 4 * kBlock;
    open("seed=1", 8, 28);
    wait_registered();
    void *piece = nullptr;
    ASSERT_OK(stw_host_alloc(runtime_, 4 * kBlock, 0, 0, &piece));
    EXPECT_EQ(cuMemHostUnregister(piece), 0);  // so one begins there
    EXPECT_EQ(cuMemHostRegister_v2(piece, 4 * kBlock, 1), 0);
    EXPECT_OK(stw_host_free(runtime_, piece));
}

TEST_F(CudaRegistration, MemoryThatGoesBackIsNotRegisteredAndComesBackSo)
{
    open("delay_us=100,seed=5", 8, 48);
    wait_registered();
    stw_tensor *tensor = make("t", 100000);
    rewrite(tensor, 0, 1);
    set_host_budget(30);
    wait_registered();
    EXPECT_EQ(host_stats().registered_bytes, 30 * kBlock);
    const uint64_t pageable = stw_double_pageable_copies();
    rewrite(tensor, 1, 2);
    EXPECT_EQ(stw_double_pageable_copies(), pageable);  // the rest is registered anew
    set_host_budget(48);
    wait_registered();
    EXPECT_EQ(host_stats().registered_bytes, 48 * kBlock);
    rewrite(tensor, 2, 3);
    expect_all(tensor, 100000, 3);
    EXPECT_EQ(wrong(), 0);
}

// The double sees what is registered no more while a copy of it may still run.
TEST_F(CudaRegistration, BudgetsChangeWhileCopiesAreUnderWay)
{
    for (uint64_t seed = 1; seed <= 4; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        open("delay_us=300,seed=" + std::to_string(seed), 8, 64);
        if (HasFatalFailure()) return;
        constexpr size_t kTensors = 10;
        std::vector<stw_tensor *> tensors;
        for (size_t i = 0; i < kTensors; ++i)
            tensors.push_back(make("t" + std::to_string(i), 40000));
        std::atomic<bool> ends{false};
        std::thread budgets([&] {
            std::mt19937_64 random(seed);
            while (!ends.load()) set_host_budget(26 + random() % 39);
        });
        std::mt19937_64 random(seed);
        std::vector<uint32_t> values(kTensors);
        for (uint32_t i = 1; i <= 60; ++i) {
            const size_t tensor = random() % kTensors;
            stw_view view;
            EXPECT_OK(fetch(tensors[tensor], STW_READ_WRITE, streams_[i % kStreams], &view));
            enqueue(view, streams_[i % kStreams], values[tensor], i, true);
            EXPECT_OK(stw_release(&view, 1, streams_[i % kStreams], 0));
            values[tensor] = i;
        }
        ends.store(true);
        budgets.join();
        for (size_t i = 0; i < kTensors; ++i) expect_all(tensors[i], 40000, values[i]);
        EXPECT_EQ(wrong(), 0);
        start_over();
    }
}

// A framework copies a view as a whole, which CUDA refuses over two registrations.
TEST_F(CudaRegistration, AViewOfTheHostTierLiesInOneRegistration)
{
    open("seed=1,fail=cuMemHostRegister_v2:2:2", 8, 40);  // so the tensors lie in two
    wait_registered();
    constexpr uint64_t kElements = 10 * kBlock / 4;
    stw_tensor *tensors[3] = {};
    for (stw_tensor *&tensor : tensors)
        tensor = make("t" + std::to_string(&tensor - tensors), kElements);
    ASSERT_OK(stw_evict(runtime_, tensors, 3, STW_TIER_DEVICE, 0, 0));
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.access = STW_READ;
    request.tier = STW_TIER_HOST;
    uint64_t memory = 0;
    ASSERT_EQ(cuMemAlloc_v2(&memory, 10 * kBlock), 0);
    for (int round = 0; round < 2; ++round) {  // a hit in the second
        for (stw_tensor *tensor : tensors) {
            stw_view view;
            request.tensor = tensor;
            ASSERT_OK(stw_fetch(runtime_, nullptr, &request, 1, &view));
            EXPECT_EQ(cuMemcpyHtoDAsync_v2(memory, view.pointer, view.bytes, streams_[0]), 0);
            EXPECT_EQ(cuStreamSynchronize(streams_[0]), 0);
            EXPECT_OK(stw_release(&view, 1, nullptr, 0));
        }
    }
    EXPECT_EQ(cuMemFree_v2(memory), 0);
    wait_registered();
    EXPECT_EQ(host_stats().registered_bytes, 40 * kBlock);
    EXPECT_EQ(log(), "");
}

TEST_F(CudaRegistration, TwoDevicesShareOneRegistration)
{
    device_count_ = 2;
    open("devices=2,seed=1", 8, 24);
    wait_registered();
    EXPECT_EQ(host_stats().registered_bytes, 24 * kBlock);
    EXPECT_EQ(stw_double_calls("cuMemHostRegister_v2"), 2u);
    EXPECT_EQ(log(), "");
}

}  // namespace
}  // namespace stepwell
