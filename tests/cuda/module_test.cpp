// SPDX-License-Identifier: Apache-2.0
// The module cuda by its table alone, on the double: what a runtime does not bring about at will.
#include "tests/cuda/double/control.h"
#include "tests/cuda/program_calls.h"

#include <stepwell/driver.h>
#include <stepwell/types.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace stepwell {
namespace {

class CudaModule : public testing::Test {
protected:
    static constexpr uint64_t kBytes = uint64_t{2} << 20;  // of a block

    void SetUp() override
    {
        void *handle = dlopen(TEST_CUDA_MODULE, RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(handle, nullptr) << dlerror();
        const auto get = reinterpret_cast<decltype(&stw_driver_module_get)>(
            dlsym(handle, "stw_driver_module_get"));
        ASSERT_NE(get, nullptr);
        ops_ = get()->memory;
    }
    void open(const char *options)
    {
        ASSERT_EQ(stw_double_reset(options), 0);
        ASSERT_EQ(cuInit(0), 0);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), 0);
        ASSERT_EQ(cuCtxSetCurrent(context_), 0);
        stw_memory_options asked = {};
        asked.struct_size = sizeof asked;
        asked.bytes = 8 * kBytes;
        asked.block_bytes = kBytes;
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        ASSERT_EQ(ops_->open(nullptr, &asked, &memory_, &error), STW_OK) << error.sentence;
        stw_memory_info info = {};
        info.struct_size = sizeof info;
        ops_->info(memory_, &info);
        base_ = static_cast<char *>(info.base);
        host_.resize(kBytes);
    }
    void TearDown() override
    {
        if (memory_ != nullptr) {
            EXPECT_EQ(ops_->close(memory_), STW_OK);
        }
        if (context_ != nullptr) {
            EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), 0);
        }
        char text[4096] = "";
        EXPECT_EQ(stw_double_take_violations(text, sizeof text), 0u) << text;
        EXPECT_EQ(stw_double_leaks(text, sizeof text), 0u) << text;
    }
    std::string why() const
    {
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        ops_->why(memory_, &error);
        return error.sentence;
    }
    // In the order of their making: what is written to the device, what is read from there.
    static std::vector<void *> copy_streams()
    {
        std::vector<void *> streams(2);
        EXPECT_EQ(stw_double_streams(streams.data(), 2), 2u);
        return streams;
    }

    const stw_memory_ops *ops_ = nullptr;
    stw_memory *memory_ = nullptr;
    void *context_ = nullptr;
    char *base_ = nullptr;
    std::vector<char> host_;
};

// Marks of copies stand for older ones when there are many; what waits for all that was begun must
// not wait for what was begun later.
TEST_F(CudaModule, MemoryGoesBackThoughCopiesGoOnAndOn)
{
    open("seed=1");
    ASSERT_EQ(ops_->pin_host(memory_, host_.data(), kBytes, nullptr), STW_OK);
    const std::vector<void *> streams = copy_streams();
    uint64_t mark = 0;
    stw_double_hold(streams[0]);
    ASSERT_EQ(ops_->copy_start(memory_, base_, host_.data(), kBytes, &mark), STW_OK);
    ASSERT_EQ(stw_double_hold_calls("cuEventQuery", 1), 0);
    std::thread gives([&] { EXPECT_EQ(ops_->give_back(memory_, 7, 1), STW_OK); });
    const auto records = [] { return stw_double_calls("cuEventRecord"); };
    while (records() < 3) std::this_thread::yield();
    for (int i = 0; i < 40; ++i) {
        ASSERT_EQ(ops_->copy_start(memory_, base_, host_.data(), kBytes, &mark), STW_OK);
    }
    // The first copy ends, its mark, and what give_back recorded; 40 go on being late.
    stw_double_let_go(streams[0], 3);
    while (stw_double_pending(streams[0]) > 80) std::this_thread::yield();
    ASSERT_EQ(stw_double_hold_calls("cuEventQuery", 0), 0);
    gives.join();
    EXPECT_EQ(stw_double_pending(streams[0]), 80u);
    stw_double_let_go(streams[0], 0);
    EXPECT_EQ(ops_->wait(memory_, mark), STW_OK);
    ops_->unpin_host(memory_, host_.data(), kBytes);
}

TEST_F(CudaModule, AContextThatIsNotPushedIsNotPopped)
{
    open("seed=1");
    ASSERT_EQ(stw_double_fail("cuCtxPushCurrent_v2", 1, 201), 0);
    uint64_t mark = 0;
    stw_double_calls_reset();
    EXPECT_EQ(ops_->mark(memory_, STW_STREAM_LEGACY, &mark), STW_ERROR_DEVICE);
    EXPECT_EQ(stw_double_calls("cuCtxPopCurrent_v2"), 0u);
    EXPECT_EQ(stw_double_calls("cuEventRecord"), 0u);
    EXPECT_NE(why().find("cuCtxPushCurrent_v2 returned CUDA_ERROR_INVALID_CONTEXT (201"),
              std::string::npos)
        << why();
    EXPECT_EQ(ops_->mark(memory_, STW_STREAM_LEGACY, &mark), STW_OK);
}

TEST_F(CudaModule, AMarkOfAStreamThatRecordsAGraphIsMadeWhenThatIsOver)
{
    open("seed=1,delay_us=100");
    void *stream = nullptr;
    void *other = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
    ASSERT_EQ(cuStreamCreate(&other, 1), 0);
    ASSERT_EQ(ops_->check_stream(memory_, stream, nullptr), STW_OK);
    stw_double_capture(stream, 1);
    uint64_t mark = 0;
    EXPECT_EQ(ops_->mark(memory_, stream, &mark), STW_OK);
    EXPECT_EQ(ops_->copies_after(memory_, mark, STW_COPIES_IN | STW_COPIES_OUT), STW_ERROR_BUSY);
    EXPECT_EQ(ops_->stream_after(memory_, other, mark), STW_ERROR_BUSY);
    EXPECT_EQ(ops_->stream_after(memory_, stream, mark), STW_ERROR_INVALID);
    EXPECT_EQ(ops_->wait(memory_, mark), STW_ERROR_BUSY);
    EXPECT_EQ(ops_->forget_stream(memory_, stream), STW_ERROR_BUSY);
    stw_driver_error failure = STW_DRIVER_ERROR_INIT;
    EXPECT_EQ(ops_->next_failure(memory_, &failure), 0u) << failure.sentence;
    stw_double_capture(stream, 0);
    EXPECT_EQ(ops_->copies_after(memory_, mark, STW_COPIES_IN | STW_COPIES_OUT), STW_OK);
    EXPECT_EQ(ops_->stream_after(memory_, other, mark), STW_OK);
    EXPECT_EQ(ops_->wait(memory_, mark), STW_OK);
    EXPECT_EQ(cuStreamDestroy_v2(stream), 0);
    EXPECT_EQ(cuStreamDestroy_v2(other), 0);
}

// All that the module does at any time, while another thread of the program records.
TEST_F(CudaModule, NothingOfItBreaksAGraphThatAnotherThreadRecords)
{
    open("seed=1,delay_us=100");
    void *recorded = nullptr;
    void *stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&recorded, 1), 0);
    ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
    stw_double_capture(recorded, 1);
    stw_memory *second = nullptr;
    std::thread others([&] {
        uint64_t mark = 0;
        EXPECT_EQ(ops_->pin_host(memory_, host_.data(), kBytes, nullptr), STW_OK);
        EXPECT_EQ(ops_->check_stream(memory_, stream, nullptr), STW_OK);
        EXPECT_EQ(ops_->mark(memory_, stream, &mark), STW_OK);
        EXPECT_EQ(ops_->copies_after(memory_, mark, STW_COPIES_IN | STW_COPIES_OUT), STW_OK);
        EXPECT_EQ(ops_->copy(memory_, base_, host_.data(), kBytes), STW_OK);
        EXPECT_EQ(ops_->zero(memory_, base_, kBytes), STW_OK);
        EXPECT_EQ(ops_->give_back(memory_, 3, 2), STW_OK);
        EXPECT_EQ(ops_->take_back(memory_, 3, 2, nullptr), STW_OK);
        void *address = nullptr;
        EXPECT_EQ(ops_->reserve_alias(memory_, 2 * kBytes, &address), STW_OK);
        EXPECT_EQ(ops_->map_alias(memory_, 0, 2, address, &mark, 1), STW_OK);
        EXPECT_EQ(ops_->map_alias(memory_, 4, 2, address, &mark, 1), STW_OK);
        EXPECT_EQ(ops_->release_alias(memory_, address, 2 * kBytes, &mark, 1), STW_OK);
        EXPECT_EQ(ops_->forget_stream(memory_, stream), STW_OK);
        ops_->unpin_host(memory_, host_.data(), kBytes);
        stw_memory_options asked = {};
        asked.struct_size = sizeof asked;
        asked.bytes = asked.block_bytes = kBytes;
        ASSERT_EQ(ops_->open(nullptr, &asked, &second, nullptr), STW_OK);
    });
    others.join();
    EXPECT_EQ(stw_double_violations(), 0u);
    stw_double_capture(recorded, 0);
    EXPECT_EQ(ops_->close(second), STW_OK);
    EXPECT_EQ(cuStreamDestroy_v2(stream), 0);
    EXPECT_EQ(cuStreamDestroy_v2(recorded), 0);
}

// A mark on the handle would be on another, idle stream.
TEST_F(CudaModule, AStreamWithTheHandleOfADestroyedOneIsNotTakenForIt)
{
    open("seed=1");
    void *first = nullptr;
    void *second = nullptr;
    ASSERT_EQ(cuStreamCreate(&first, 1), 0);
    ASSERT_EQ(ops_->check_stream(memory_, first, nullptr), STW_OK);
    static const stw_double_range nothing = {};
    std::atomic<bool> ran{false};
    const auto run = [](void *user, stw_double_alias_of) {
        static_cast<std::atomic<bool> *>(user)->store(true);
    };
    stw_double_hold(first);
    ASSERT_EQ(stw_double_consume(first, "late", &nothing, 0, run, &ran), 0);
    ASSERT_EQ(cuStreamDestroy_v2(first), 0);
    ASSERT_EQ(cuStreamCreate(&second, 1), 0);
    ASSERT_EQ(second, first);
    std::atomic<bool> marked{false};
    std::thread lets([&] {
        while (stw_double_calls("cuCtxSynchronize") == 0 && !marked.load())
            std::this_thread::yield();
        EXPECT_FALSE(ran.load());
        stw_double_hold_all(0);
    });
    uint64_t mark = 0;
    EXPECT_EQ(ops_->mark(memory_, second, &mark), STW_OK);
    EXPECT_TRUE(ran.load());
    marked.store(true);
    lets.join();
    // Once: from now on the handle means the other one.
    EXPECT_EQ(ops_->mark(memory_, second, &mark), STW_OK);
    EXPECT_EQ(stw_double_calls("cuCtxSynchronize"), 1u);
    EXPECT_EQ(cuStreamDestroy_v2(second), 0);
}

TEST_F(CudaModule, OneThatWasForgottenIsWaitedForByItsMarksAlone)
{
    open("seed=1");
    void *first = nullptr;
    void *second = nullptr;
    ASSERT_EQ(cuStreamCreate(&first, 1), 0);
    ASSERT_EQ(ops_->check_stream(memory_, first, nullptr), STW_OK);
    uint64_t old = 0;
    uint64_t mark = 0;
    stw_double_hold(first);
    ASSERT_EQ(ops_->mark(memory_, first, &old), STW_OK);
    ASSERT_EQ(ops_->forget_stream(memory_, first), STW_OK);
    ASSERT_EQ(cuStreamDestroy_v2(first), 0);
    ASSERT_EQ(cuStreamCreate(&second, 1), 0);
    ASSERT_EQ(second, first);
    ASSERT_EQ(ops_->check_stream(memory_, second, nullptr), STW_OK);
    ASSERT_EQ(ops_->mark(memory_, second, &mark), STW_OK);
    EXPECT_NE(mark >> 48, old >> 48);  // its work has not passed, so its marks are its own still
    EXPECT_EQ(ops_->wait(memory_, mark), STW_OK);
    EXPECT_EQ(stw_double_calls("cuCtxSynchronize"), 0u);
    stw_double_hold_all(0);
    EXPECT_EQ(ops_->wait(memory_, old), STW_OK);
    EXPECT_EQ(cuStreamDestroy_v2(second), 0);
}

TEST_F(CudaModule, TheFirstOfEachCallAndErrorIsGivenOutByName)
{
    open("seed=1");
    ASSERT_EQ(ops_->pin_host(memory_, host_.data(), kBytes, nullptr), STW_OK);
    uint64_t mark = 0;
    stw_driver_error failure = STW_DRIVER_ERROR_INIT;
    for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(stw_double_fail("cuMemcpyHtoDAsync_v2", 1, 999), 0);
        EXPECT_EQ(ops_->copy_start(memory_, base_, host_.data(), kBytes, &mark), STW_ERROR_DEVICE);
        EXPECT_EQ(why(), "cuMemcpyHtoDAsync_v2 returned CUDA_ERROR_UNKNOWN (999, unknown error)");
    }
    EXPECT_EQ(ops_->next_failure(memory_, &failure), 1u);
    EXPECT_EQ(std::string(failure.sentence), why());
    EXPECT_EQ(ops_->next_failure(memory_, &failure), 0u);
    ASSERT_EQ(stw_double_fail("cuEventRecord", 1, 999), 0);
    EXPECT_EQ(ops_->copy_start(memory_, base_, host_.data(), kBytes, &mark), STW_ERROR_DEVICE);
    EXPECT_EQ(ops_->next_failure(memory_, &failure), 1u);
    EXPECT_NE(std::string(failure.sentence).find("cuEventRecord"), std::string::npos);
    ops_->unpin_host(memory_, host_.data(), kBytes);
}

}  // namespace
}  // namespace stepwell
