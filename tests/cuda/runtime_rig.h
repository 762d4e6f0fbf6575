// SPDX-License-Identifier: Apache-2.0
// A runtime over the module cuda and the double of CUDA's driver, for tests: streams whose work is
// late, kernels that say what they found, and what the double saw when a test ends.
#pragma once

#include "tests/cuda/double/control.h"
#include "tests/cuda/program_calls.h"
#include "tests/support/expect.h"

#include <stepwell/stepwell.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
int cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *base);
int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
}

namespace stepwell {

inline constexpr uint64_t kBlock = STW_BLOCK_64K;
inline constexpr uint64_t kSecond = 1'000'000'000;

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

inline void run_kernel(void *user, stw_double_alias_of alias)
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
    void start(const std::string &options)
    {
        ASSERT_EQ(stw_double_reset(options.c_str()), 0);
        ASSERT_EQ(cuInit(0), 0);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), 0);
        ASSERT_EQ(cuCtxSetCurrent(context_), 0);
        for (void *&stream : streams_) ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
    }
    void open(const std::string &options, uint32_t device_blocks, uint32_t host_blocks)
    {
        start(options);
        if (HasFatalFailure()) return;
        ASSERT_OK(try_open(device_blocks, host_blocks));
    }
    stw_status try_open(uint32_t device_blocks, uint32_t host_blocks)
    {
        stw_device_options devices[2];
        stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
        stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
        for (int32_t i = 0; i < 2; ++i) {
            devices[i] = STW_DEVICE_OPTIONS_INIT;
            devices[i].driver = module_.path().c_str();
            devices[i].budget_bytes = device_blocks * kBlock;
            devices[i].ordinal = i;
            devices[i].driver_options = driver_options_;
        }
        nvme.path = module_.directory().c_str();
        nvme.budget_bytes = 512 * kBlock;
        nvme.driver = "posix";
        options.devices = devices, options.device_count = device_count_;
        options.nvme = &nvme, options.nvme_count = 1;
        options.host_bytes = host_blocks * kBlock;
        options.block_bytes = STW_BLOCK_64K;
        options.timeout_ns = 60 * kSecond;
        options.host_scratch_bytes = scratch_bytes_;
        options.log = [](void *user, uint32_t, const char *, const char *line) {
            auto *test = static_cast<CudaRuntime *>(user);
            const std::lock_guard<std::mutex> lock(test->log_mutex_);
            test->log_ += std::string(line) + "\n";
        };
        options.log_user = this;
        return stw_runtime_open(&options, &runtime_);
    }
    std::string log()
    {
        const std::lock_guard<std::mutex> lock(log_mutex_);
        return log_;
    }
    stw_tier_stats host_stats() const
    {
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        EXPECT_OK(stw_tier_stats_get(runtime_, STW_TIER_HOST, 0, &stats));
        return stats;
    }
    // Nothing of the host tier waits to be registered any more.
    void wait_registered() const
    {
        while (host_stats().registering_bytes > 0) std::this_thread::yield();
    }
    void TearDown() override
    {
        if (runtime_ != nullptr) {
            EXPECT_OK(stw_runtime_close(runtime_, 0, 0));
        }
        for (void *stream : streams_)
            if (stream != nullptr) cuStreamDestroy_v2(stream);
        if (context_ != nullptr) cuDevicePrimaryCtxRelease_v2(0);
        expect_clean();
    }
    void start_over()
    {
        TearDown();
        runtime_ = nullptr, context_ = nullptr;
        std::memset(streams_, 0, sizeof streams_);
        kernels_.clear();
    }
    static void expect_clean()
    {
        char text[4096] = "";
        EXPECT_EQ(stw_double_take_violations(text, sizeof text), 0u) << text;
        EXPECT_EQ(stw_double_leaks(text, sizeof text), 0u) << text;
    }

    // Without contents.
    stw_tensor *create(const std::string &name, uint64_t elements, uint32_t dtype, uint32_t role,
                       uint32_t flags = 0)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.name = name.c_str();
        spec.flags = flags;
        spec.dtype = dtype;
        spec.role = role;
        spec.dimensions = 1;
        spec.shape[0] = elements;
        stw_tensor *tensor = nullptr;
        EXPECT_OK(stw_tensor_create(runtime_, &spec, 1, &tensor));
        return tensor;
    }
    stw_tensor *make(const std::string &name, uint64_t elements, uint32_t flags = 0)
    {
        stw_tensor *tensor = create(name, elements, STW_I32, STW_ROLE_PARAM, flags);
        if (tensor == nullptr) return nullptr;
        const std::vector<uint32_t> zeros(elements);
        EXPECT_OK(stw_tensor_write(tensor, zeros.data(), nullptr));
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
    // A fetch, a kernel that checks and sets, and a release, all on the stream.
    void use(stw_tensor *tensor, void *stream, uint32_t expected, uint32_t sets, bool writes)
    {
        stw_view view;
        ASSERT_OK(fetch(tensor, writes ? STW_READ_WRITE : STW_READ, stream, &view));
        enqueue(view, stream, expected, sets, writes);
        ASSERT_OK(stw_release(&view, 1, stream, 0));
    }
    void end_streams()
    {
        for (void *stream : streams_) EXPECT_EQ(cuStreamSynchronize(stream), 0);
        EXPECT_EQ(wrong(), 0);
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
        ASSERT_OK(stw_tensor_read(tensor, read.data(), nullptr));
        for (const uint32_t element : read) ASSERT_EQ(element, value);
    }

    static constexpr size_t kStreams = 3;
    uint32_t device_count_ = 1;
    uint64_t scratch_bytes_ = 0;
    const char *driver_options_ = nullptr;
    std::mutex log_mutex_;
    std::string log_;
    Module module_;
    void *context_ = nullptr;
    void *streams_[kStreams] = {};
    stw_runtime *runtime_ = nullptr;
    std::vector<std::unique_ptr<Kernel>> kernels_;
};

}  // namespace stepwell
