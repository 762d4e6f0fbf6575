// SPDX-License-Identifier: Apache-2.0
// The runtime over the module cuda and the double of CUDA's driver: programs of several streams
// whose work is late, in a device that holds a part of their tensors. The double sees each access
// that is not ordered behind the one before it; the bytes tell the rest.
#include "tests/cuda/double/control.h"

#include <stepwell/stepwell.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
}

namespace stepwell {
namespace {

constexpr uint64_t kBlock = STW_BLOCK_64K;
constexpr uint64_t kSecond = 1'000'000'000;

// A copy of the module where only its own user may write.
class Module {
public:
    Module()
    {
        char directory[] = "/tmp/stepwell-cuda-XXXXXX";
        directory_ = mkdtemp(directory);
        path_ = directory_ + "/libstepwell-cuda.so";
        std::filesystem::copy_file(TEST_CUDA_MODULE, path_);
        std::filesystem::permissions(path_, std::filesystem::perms(0644));
    }
    ~Module() { std::filesystem::remove_all(directory_); }
    const std::string &path() const { return path_; }
    const std::string &directory() const { return directory_; }

private:
    std::string directory_;
    std::string path_;
};

// What a kernel does: it adds to each element what is given, and says what it found.
struct Kernel {
    uint64_t address = 0;
    uint64_t elements = 0;
    bool writes = false;
    uint32_t expected = 0;  // in each element
    uint32_t sets = 0;
    int wrong = 0;
};

void run_kernel(void *user, stw_double_alias_of alias)
{
    auto &kernel = *static_cast<Kernel *>(user);
    auto *data = static_cast<uint32_t *>(alias(kernel.address));
    for (uint64_t i = 0; i < kernel.elements; ++i) {
        if (data[i] != kernel.expected) ++kernel.wrong;
        if (kernel.writes) data[i] = kernel.sets;
    }
}

class CudaRuntime : public testing::Test {
protected:
    void open(const std::string &options, uint32_t device_blocks, uint32_t host_blocks)
    {
        ASSERT_EQ(stw_double_reset(options.c_str()), 0);
        ASSERT_EQ(cuInit(0), 0);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), 0);
        ASSERT_EQ(cuCtxSetCurrent(context_), 0);
        for (void *&stream : streams_) ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
        ASSERT_EQ(try_open(device_blocks, host_blocks), STW_OK) << stw_last_error();
    }
    stw_status try_open(uint32_t device_blocks, uint32_t host_blocks)
    {
        stw_device_options device = STW_DEVICE_OPTIONS_INIT;
        stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
        stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
        device.driver = module_.path().c_str();
        device.budget_bytes = device_blocks * kBlock;
        nvme.path = module_.directory().c_str();
        nvme.budget_bytes = 512 * kBlock;
        nvme.driver = "posix";
        options.devices = &device, options.device_count = 1;
        options.nvme = &nvme, options.nvme_count = 1;
        options.host_bytes = host_blocks * kBlock;
        options.block_bytes = STW_BLOCK_64K;
        options.timeout_ns = 60 * kSecond;
        return stw_runtime_open(&options, &runtime_);
    }
    void TearDown() override
    {
        if (runtime_ != nullptr) {
            EXPECT_EQ(stw_runtime_close(runtime_, 0, 0), STW_OK) << stw_last_error();
        }
        for (void *stream : streams_)
            if (stream != nullptr) cuStreamDestroy_v2(stream);
        if (context_ != nullptr) cuDevicePrimaryCtxRelease_v2(0);
        expect_clean();
    }
    static void expect_clean()
    {
        char text[4096] = "";
        EXPECT_EQ(stw_double_take_violations(text, sizeof text), 0u) << text;
        EXPECT_EQ(stw_double_leaks(text, sizeof text), 0u) << text;
    }

    stw_tensor *make(const std::string &name, uint64_t elements)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.name = name.c_str();
        spec.dtype = STW_I32;
        spec.role = STW_ROLE_PARAM;
        spec.dimensions = 1;
        spec.shape[0] = elements;
        stw_tensor *tensor = nullptr;
        EXPECT_EQ(stw_tensor_create(runtime_, &spec, 1, &tensor), STW_OK) << stw_last_error();
        const std::vector<uint32_t> zeros(elements);
        EXPECT_EQ(stw_tensor_write(tensor, zeros.data(), nullptr), STW_OK) << stw_last_error();
        return tensor;
    }
    stw_status fetch(stw_tensor *tensor, uint32_t access, void *stream, stw_view *view)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        options.stream = stream;
        request.tensor = tensor;
        request.access = access;
        return stw_fetch(runtime_, &options, &request, 1, view);
    }
    // Work on the bytes of a view, when the stream comes to it.
    void enqueue(const stw_view &view, void *stream, uint32_t expected, uint32_t sets, bool writes)
    {
        auto kernel = std::make_unique<Kernel>();
        kernel->address = reinterpret_cast<uint64_t>(view.pointer);
        kernel->elements = view.bytes / 4;
        kernel->writes = writes;
        kernel->expected = expected;
        kernel->sets = sets;
        const stw_double_range range = {kernel->address, view.bytes, writes ? 1u : 0u, 0};
        std::vector<stw_double_range> ranges = {range};
        if (writes) ranges.push_back({kernel->address, view.bytes, 0, 0});
        ASSERT_EQ(stw_double_consume(stream, writes ? "writer" : "reader", ranges.data(),
                                     static_cast<uint32_t>(ranges.size()), run_kernel,
                                     kernel.get()),
                  0);
        kernels_.push_back(std::move(kernel));
    }
    int wrong() const
    {
        int sum = 0;
        for (const auto &kernel : kernels_) sum += kernel->wrong;
        return sum;
    }
    void expect_all(stw_tensor *tensor, uint64_t elements, uint32_t value) const
    {
        std::vector<uint32_t> read(elements, ~value);
        ASSERT_EQ(stw_tensor_read(tensor, read.data(), nullptr), STW_OK) << stw_last_error();
        for (const uint32_t element : read) ASSERT_EQ(element, value);
    }

    static constexpr size_t kStreams = 3;
    Module module_;
    void *context_ = nullptr;
    void *streams_[kStreams] = {};
    stw_runtime *runtime_ = nullptr;
    std::vector<std::unique_ptr<Kernel>> kernels_;
};

// Tensors three times what the device holds, small and large, read and written on several streams.
TEST_F(CudaRuntime, BytesAndOrderAreRightWhateverIsLate)
{
    const std::vector<uint64_t> sizes = {100, 16384, 3 * 16384 + 5, 40000, 16384 * 2, 7, 50000, 60};
    for (uint64_t seed = 1; seed <= 12; ++seed) {
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
            const size_t stream = random() % kStreams;
            const bool writes = random() % 3 == 0;
            stw_view view;
            const uint32_t access = writes ? STW_READ_WRITE : STW_READ;
            ASSERT_EQ(fetch(tensors[tensor], access, streams_[stream], &view), STW_OK)
                << stw_last_error();
            enqueue(view, streams_[stream], values[tensor], writes ? written + 1 : 0, writes);
            if (writes) values[tensor] = ++written;
            ASSERT_EQ(stw_release(&view, 1, streams_[stream], 0), STW_OK) << stw_last_error();
        }
        for (size_t i = 0; i < sizes.size(); ++i) expect_all(tensors[i], sizes[i], values[i]);
        for (void *stream : streams_) EXPECT_EQ(cuStreamSynchronize(stream), 0);
        EXPECT_EQ(wrong(), 0);
        EXPECT_EQ(stw_double_pageable_copies(), 0u);
        TearDown();
        runtime_ = nullptr, context_ = nullptr;
        std::memset(streams_, 0, sizeof streams_);
        kernels_.clear();
    }
}

// The device does nothing at all while it is fetched: what the host has is granted when its copy is
// enqueued, and the consumer's work stands behind that.
TEST_F(CudaRuntime, AFetchDoesNotWaitForItsCopy)
{
    open("seed=1", 8, 24);
    stw_tensor *tensor = make("t", 20000);
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    stw_view view;
    request.tensor = tensor;
    request.access = STW_READ;
    request.tier = STW_TIER_HOST;
    ASSERT_EQ(stw_fetch(runtime_, nullptr, &request, 1, &view), STW_OK) << stw_last_error();
    ASSERT_EQ(stw_release(&view, 1, nullptr, 0), STW_OK);
    ASSERT_EQ(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, 0), STW_OK) << stw_last_error();
    stw_double_drain();
    stw_double_hold_all(1);
    ASSERT_EQ(fetch(tensor, STW_READ, streams_[0], &view), STW_OK) << stw_last_error();
    EXPECT_GT(stw_double_pending(nullptr), 0u);
    enqueue(view, streams_[0], 0, 0, false);
    ASSERT_EQ(stw_release(&view, 1, streams_[0], 0), STW_OK);
    stw_double_hold_all(0);
    EXPECT_EQ(cuStreamSynchronize(streams_[0]), 0);
    EXPECT_EQ(wrong(), 0);
}

TEST_F(CudaRuntime, AHitOnTheSameStreamCallsNothing)
{
    open("seed=1", 8, 24);
    stw_tensor *tensor = make("t", 20000);
    stw_view view;
    ASSERT_EQ(fetch(tensor, STW_READ_WRITE, streams_[0], &view), STW_OK) << stw_last_error();
    ASSERT_EQ(stw_release(&view, 1, streams_[0], 0), STW_OK);
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
        ASSERT_EQ(fetch(tensor, STW_READ, streams_[0], &view), STW_OK) << stw_last_error();
        ASSERT_EQ(stw_release(&view, 1, streams_[0], 0), STW_OK);
        ASSERT_EQ(stw_fetch(runtime_, &options, several, 3, views), STW_OK) << stw_last_error();
        ASSERT_EQ(stw_release(views, 3, streams_[0], 0), STW_OK);
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
    ASSERT_EQ(stw_evict(runtime_, &safe, 1, STW_TIER_DEVICE, 0, 0), STW_OK) << stw_last_error();
    ASSERT_EQ(fetch(lost, STW_READ_WRITE, streams_[0], &view), STW_OK) << stw_last_error();
    ASSERT_EQ(stw_release(&view, 1, streams_[0], 0), STW_OK);
    stw_double_break(0, 700);
    std::vector<uint32_t> bytes(30000, 1);
    EXPECT_EQ(stw_tensor_read(lost, bytes.data(), nullptr), STW_ERROR_DEVICE);
    EXPECT_EQ(fetch(safe, STW_READ, streams_[0], &view), STW_ERROR_DEVICE);
    ASSERT_EQ(stw_tensor_read(safe, bytes.data(), nullptr), STW_OK) << stw_last_error();
    for (const uint32_t element : bytes) ASSERT_EQ(element, 0u);
    EXPECT_EQ(stw_runtime_close(std::exchange(runtime_, nullptr), 0, 0), STW_OK)
        << stw_last_error();
    std::memset(streams_, 0, sizeof streams_);
    context_ = nullptr;
    stw_double_reset("seed=1");
}

}  // namespace
}  // namespace stepwell
