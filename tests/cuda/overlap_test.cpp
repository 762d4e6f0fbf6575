// SPDX-License-Identifier: Apache-2.0
// What overlaps on a device, judged by the double's virtual time and by its counts: of the module
// alone first, then of a runtime.
#include "tests/cuda/runtime_rig.h"

#include <stepwell/driver.h>

#include <dlfcn.h>

namespace stepwell {
namespace {

constexpr uint64_t kLongNs = 100'000'000;  // of a kernel: more than all copies of a test take

// The module's own table, called by one thread: so times are exact.
class CudaOverlap : public testing::Test {
protected:
    static constexpr uint64_t kMiB = uint64_t{1} << 20;

    void SetUp() override
    {
        ASSERT_EQ(stw_double_reset("seed=1"), 0);
        ASSERT_EQ(cuInit(0), 0);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), 0);
        ASSERT_EQ(cuCtxSetCurrent(context_), 0);
        ASSERT_EQ(cuStreamCreate(&stream_, 1), 0);
        void *module = dlopen(TEST_CUDA_MODULE, RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(module, nullptr) << dlerror();
        using Get = const stw_driver_module *();
        auto *get = reinterpret_cast<Get *>(dlsym(module, "stw_driver_module_get"));
        ASSERT_NE(get, nullptr);
        ops_ = get()->memory;
        stw_memory_options options{};
        options.struct_size = sizeof options;
        options.bytes = 64 * kMiB;
        options.block_bytes = 2 * kMiB;
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        ASSERT_EQ(ops_->open(nullptr, &options, &memory_, &error), STW_OK) << error.sentence;
        stw_memory_info info{};
        info.struct_size = sizeof info;
        ops_->info(memory_, &info);
        device_ = static_cast<char *>(info.base);
        host_.resize(64 * kMiB);
        ASSERT_EQ(cuMemHostRegister_v2(host_.data(), host_.size(), 0), 0);
        begin_ns_ = stw_double_settle();
    }
    void TearDown() override
    {
        if (memory_ != nullptr) ops_->close(memory_);
        EXPECT_EQ(cuMemHostUnregister(host_.data()), 0);
        EXPECT_EQ(cuStreamDestroy_v2(stream_), 0);
        EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), 0);
        char text[4096] = "";
        EXPECT_EQ(stw_double_take_violations(text, sizeof text), 0u) << text;
        EXPECT_EQ(stw_double_leaks(text, sizeof text), 0u) << text;
    }
    uint64_t start(void *to, const void *from, uint64_t bytes)
    {
        uint64_t mark = 0;
        EXPECT_EQ(ops_->copy_start(memory_, to, from, bytes, &mark), STW_OK);
        return mark;
    }

    void *context_ = nullptr;
    void *stream_ = nullptr;
    const stw_memory_ops *ops_ = nullptr;
    stw_memory *memory_ = nullptr;
    char *device_ = nullptr;
    std::vector<char> host_;
    uint64_t begin_ns_ = 0;
};

TEST_F(CudaOverlap, ADirectionThatWaitsForAStreamHoldsUpNoOther)
{
    for (const uint32_t waits : {STW_COPIES_OUT, STW_COPIES_IN}) {
        begin_ns_ = stw_double_settle();
        ASSERT_EQ(stw_double_compute(stream_, kLongNs), 0);
        uint64_t mark = 0;
        ASSERT_EQ(ops_->mark(memory_, stream_, &mark), STW_OK);
        ASSERT_EQ(ops_->copies_after(memory_, mark, waits), STW_OK);
        const uint64_t out = start(host_.data(), device_, 2 * kMiB);
        const uint64_t in = start(device_ + 2 * kMiB, host_.data() + 2 * kMiB, 2 * kMiB);
        const bool out_waits = waits == STW_COPIES_OUT;
        ASSERT_EQ(ops_->wait(memory_, out_waits ? in : out), STW_OK);
        EXPECT_LT(stw_double_time(), begin_ns_ + kLongNs);
        ASSERT_EQ(ops_->wait(memory_, out_waits ? out : in), STW_OK);
        EXPECT_GT(stw_double_time(), begin_ns_ + kLongNs);
    }
}

// What was used on a stream that does nothing at all is to leave.
class CudaHeldStream : public CudaRuntime {
protected:
    // Another tensor is fetched when the eviction has come so far.
    template <class Reached>
    void fetch_beside_eviction(const char *options, uint64_t pending, Reached &&reached)
    {
        open(options, 24, 64);
        wait_registered();
        stw_tensor *leaves = make("leaves", 8 * kBlock / 4);
        stw_tensor *comes = make("comes", 8 * kBlock / 4);
        stw_view view;
        for (stw_tensor *tensor : {leaves, comes})
            ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
        ASSERT_OK(fetch(leaves, STW_READ_WRITE, streams_[0], &view));
        stw_double_hold(streams_[0]);
        enqueue(view, streams_[0], 0, 7, true);
        while (stw_double_pending(streams_[0]) < pending)
            ASSERT_EQ(stw_double_compute(streams_[0], 1), 0);
        ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
        stw_double_calls_reset();
        std::thread evicts(
            [&] { EXPECT_OK(stw_evict(runtime_, &leaves, 1, STW_TIER_DEVICE, 0, 0)); });
        while (!reached()) std::this_thread::yield();
        EXPECT_OK(fetch(comes, STW_READ_WRITE, streams_[1], &view));
        EXPECT_EQ(stw_double_comes_after(streams_[1], streams_[0]), 0);
        EXPECT_OK(stw_release(&view, 1, streams_[1], 0));
        stw_double_let_go(streams_[0], 0);
        evicts.join();
        expect_all(leaves, 8 * kBlock / 4, 7);
    }
};

TEST_F(CudaHeldStream, AnEvictionThatWaitsForAStreamHoldsUpNoFetch)
{
    fetch_beside_eviction("seed=1", 0, [] {
        return stw_double_calls("cuMemcpyDtoHAsync_v2") +
                   stw_double_calls("cuMemcpyBatchAsync_v2") >
               0;
    });
}

// The call that marks the stream for the eviction blocks.
TEST_F(CudaHeldStream, AnEvictionThatCannotMarkAFullStreamHoldsUpNoFetch)
{
    fetch_beside_eviction("seed=1,queue=4", 4, [] { return stw_double_blocked() > 0; });
}

// A step of training: each tensor is brought, written by a kernel and taken away, on links and a
// device that all take as long. In virtual time.
TEST_F(CudaRuntime, KernelsAndBothDirectionsOverlap)
{
    constexpr uint64_t kTensors = 12, kBlocks = 16, kRounds = 3;
    constexpr uint64_t kNs = kBlocks * kBlock;  // of its copy, at 1000 MB/s
    open("seed=1,cost=up_mb_per_s:1000,cost=down_mb_per_s:1000", 4 * kBlocks, 20 * kBlocks);
    wait_registered();
    std::vector<stw_tensor *> tensors;
    for (uint64_t i = 0; i < kTensors; ++i)
        tensors.push_back(make("t" + std::to_string(i), kBlocks * kBlock / 4));
    for (stw_tensor *tensor : tensors)
        ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    const uint64_t begin = stw_double_settle();
    for (uint64_t i = 0; i < kRounds * kTensors; ++i) {
        stw_view view;
        ASSERT_OK(fetch(tensors[i % kTensors], STW_READ_WRITE, streams_[0], &view));
        ASSERT_EQ(stw_double_compute(streams_[0], kNs), 0);
        ASSERT_OK(stw_release(&view, 1, streams_[0], STW_RELEASE_FAR));
    }
    for (stw_tensor *tensor : tensors)
        ASSERT_OK(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    EXPECT_LT(stw_double_settle() - begin, kRounds * kTensors * kNs * 4 / 3);
}

// Likewise for another stream.
TEST_F(CudaRuntime, AStreamWaitsForNothingThatWasEnqueuedAfterTheRelease)
{
    open("seed=1", 24, 64);
    wait_registered();
    stw_tensor *const tensors[] = {make("first", kBlock / 4), make("second", kBlock / 4)};
    uint64_t begin = 0;
    for (stw_tensor *const tensor : tensors) {
        stw_view view;
        ASSERT_OK(fetch(tensor, STW_READ, streams_[0], &view));
        ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
        begin = stw_double_settle();
        if (tensor == tensors[1]) {
            ASSERT_EQ(stw_double_compute(streams_[0], kLongNs), 0);
        }
        ASSERT_OK(fetch(tensor, STW_READ_WRITE, streams_[1], &view));
        ASSERT_EQ(cuStreamSynchronize(streams_[1]), 0);
        ASSERT_OK(stw_release(&view, 1, streams_[1], 0));
    }
    EXPECT_LT(stw_double_time(), begin + kLongNs);
}

// A program that only enqueues is ahead of its device: a copy to where a released tensor was comes
// after that release, and not after what was enqueued until the copy began. In virtual time.
TEST_F(CudaRuntime, ACopyWaitsForNothingThatWasEnqueuedAfterTheRelease)
{
    constexpr uint64_t kBlocks = 8;
    open("seed=1", 2 * kBlocks, 8 * kBlocks);
    wait_registered();
    std::vector<stw_tensor *> tensors;
    for (uint64_t i = 0; i < 4; ++i)
        tensors.push_back(make("t" + std::to_string(i), kBlocks * kBlock / 4));
    stw_view held, view;
    ASSERT_OK(fetch(tensors[0], STW_READ, streams_[1], &held));
    // Each comes to the place of the one before it.
    for (const uint64_t i : {1, 2, 3}) {
        ASSERT_OK(fetch(tensors[i], STW_READ, streams_[0], &view));
        ASSERT_EQ(stw_double_compute(streams_[0], 1), 0);
        ASSERT_OK(stw_release(&view, 1, streams_[0], STW_RELEASE_FAR));
    }
    const uint64_t begin = stw_double_time();
    ASSERT_EQ(stw_double_compute(streams_[0], kLongNs), 0);
    ASSERT_OK(fetch(tensors[1], STW_READ, streams_[1], &view));
    ASSERT_EQ(cuStreamSynchronize(streams_[1]), 0);
    EXPECT_LT(stw_double_time(), begin + kLongNs);
    ASSERT_OK(stw_release(&view, 1, streams_[1], 0));
    ASSERT_OK(stw_release(&held, 1, streams_[1], 0));
}

}  // namespace
}  // namespace stepwell
