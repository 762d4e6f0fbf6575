// SPDX-License-Identifier: Apache-2.0
// A runtime on the module cuda and the double, with blocks that the device can place at addresses,
// and streams whose kernels say what they found.
#pragma once

#include "tests/cuda/double/control.h"
#include "tests/cuda/program_calls.h"

#include <stepwell/stepwell.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
int cuMemGetInfo_v2(size_t *free_out, size_t *total_out);
}

namespace stepwell {

class MappingRig : public testing::Test {
protected:
    static constexpr uint64_t kBlock = uint64_t{2} << 20;
    static constexpr uint64_t kElements = kBlock / 4;  // of a block
    static constexpr uint64_t kSecond = 1'000'000'000;
    static constexpr size_t kStreams = 3;

    // What a kernel found, and what it leaves behind in each element.
    struct Kernel {
        uint64_t address = 0;
        uint64_t elements = 0;
        bool writes = false;
        uint32_t expected = 0;
        uint32_t sets = 0;
        int wrong = 0;

        static void run(void *user, stw_double_alias_of alias)
        {
            auto &kernel = *static_cast<Kernel *>(user);
            auto *data = static_cast<uint32_t *>(alias(kernel.address));
            for (uint64_t i = 0; i < kernel.elements; ++i) {
                if (data[i] != kernel.expected) ++kernel.wrong;
                if (kernel.writes) data[i] = kernel.sets;
            }
        }
    };

    void SetUp() override
    {
        char directory[] = "/tmp/stepwell-cuda-XXXXXX";
        directory_ = mkdtemp(directory);
        module_ = directory_ + "/libstepwell-cuda.so";
        // A copy of the module where only its own user may write.
        std::filesystem::copy_file(TEST_CUDA_MODULE, module_);
        std::filesystem::permissions(module_, std::filesystem::perms(0644));
    }
    void TearDown() override
    {
        if (runtime_ != nullptr) {
            EXPECT_EQ(stw_runtime_close(runtime_, 0, 0), STW_OK) << stw_last_error();
        }
        for (void *stream : streams_)
            if (stream != nullptr) cuStreamDestroy_v2(stream);
        if (context_ != nullptr) cuDevicePrimaryCtxRelease_v2(0);
        char text[4096] = "";
        EXPECT_EQ(stw_double_take_violations(text, sizeof text), 0u) << text;
        EXPECT_EQ(stw_double_leaks(text, sizeof text), 0u) << text;
        EXPECT_EQ(wrong(), 0);
        std::filesystem::remove_all(directory_);
    }
    void open(const std::string &options, uint32_t device_blocks, uint32_t host_blocks,
              uint64_t block_bytes = kBlock)
    {
        ASSERT_EQ(stw_double_reset(options.c_str()), 0);
        ASSERT_EQ(cuInit(0), 0);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), 0);
        ASSERT_EQ(cuCtxSetCurrent(context_), 0);
        for (void *&stream : streams_) ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
        free_before_ = free_bytes();
        stw_device_options device = STW_DEVICE_OPTIONS_INIT;
        stw_runtime_options runtime = STW_RUNTIME_OPTIONS_INIT;
        device.driver = module_.c_str();
        device.driver_options = device_options_.c_str();
        device.budget_bytes = device_blocks * block_bytes;
        runtime.devices = &device, runtime.device_count = 1;
        runtime.host_bytes = host_blocks * block_bytes;
        runtime.block_bytes = static_cast<uint32_t>(block_bytes);
        runtime.timeout_ns = 60 * kSecond;
        ASSERT_EQ(stw_runtime_open(&runtime, &runtime_), STW_OK) << stw_last_error();
    }
    static uint64_t free_bytes()
    {
        size_t free = 0;
        size_t total = 0;
        EXPECT_EQ(cuMemGetInfo_v2(&free, &total), 0);
        return free;
    }
    // Of the device, by the library.
    uint64_t taken_blocks() const { return (free_before_ - free_bytes()) / kBlock; }

    stw_tensor *make(const char *name, uint64_t elements, uint32_t flags = 0)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.name = name;
        spec.flags = flags;
        spec.dtype = STW_I32;
        spec.role = STW_ROLE_PARAM;
        spec.dimensions = 1;
        spec.shape[0] = elements;
        stw_tensor *tensor = nullptr;
        EXPECT_EQ(stw_tensor_create(runtime_, &spec, 1, &tensor), STW_OK) << stw_last_error();
        if (tensor == nullptr) return nullptr;
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
    void enqueue(const stw_view &view, void *stream, uint32_t expected, uint32_t sets, bool writes)
    {
        const auto address = reinterpret_cast<uint64_t>(view.pointer);
        kernels_.push_back(
            std::make_unique<Kernel>(Kernel{address, view.bytes / 4, writes, expected, sets, 0}));
        std::vector<stw_double_range> ranges = {{address, view.bytes, 0, 0}};
        if (writes) ranges.push_back({address, view.bytes, 1, 0});
        ASSERT_EQ(stw_double_consume(stream, writes ? "writer" : "reader", ranges.data(),
                                     static_cast<uint32_t>(ranges.size()), Kernel::run,
                                     kernels_.back().get()),
                  0);
    }
    // A fetch, a kernel that checks and sets, and a release, all on the stream.
    void use(stw_tensor *tensor, void *stream, uint32_t expected, uint32_t sets, bool writes)
    {
        stw_view view;
        ASSERT_EQ(fetch(tensor, writes ? STW_READ_WRITE : STW_READ, stream, &view), STW_OK)
            << stw_last_error();
        enqueue(view, stream, expected, sets, writes);
        ASSERT_EQ(stw_release(&view, 1, stream, 0), STW_OK) << stw_last_error();
    }
    stw_status set_budget(uint64_t blocks, uint64_t timeout_ns = 0)
    {
        return stw_tier_set_budget(runtime_, STW_TIER_DEVICE, 0, blocks * kBlock, timeout_ns);
    }
    stw_tensor *make_fixed(const char *name, uint64_t elements)
    {
        return make(name, elements, STW_TENSOR_FIXED_ADDRESS);
    }
    static uint64_t address_of(stw_tensor *tensor)
    {
        void *address = nullptr;
        uint64_t bytes = 0;
        EXPECT_EQ(stw_tensor_address(tensor, 0, &address, &bytes), STW_OK) << stw_last_error();
        return reinterpret_cast<uint64_t>(address);
    }
    // Tensors of these sizes, all but each fourth with an address for life, read and written on all
    // streams. `each` is called behind each of the rounds, with the tensor of it.
    template <class Each>
    void use_many(const std::vector<uint64_t> &sizes, uint64_t seed, int rounds, Each &&each)
    {
        std::mt19937_64 random(seed);
        std::vector<stw_tensor *> tensors;
        std::vector<uint64_t> addresses;
        std::vector<uint32_t> values(sizes.size());
        for (size_t i = 0; i < sizes.size(); ++i) {
            const std::string name = "t" + std::to_string(i);
            tensors.push_back(i % 4 == 3 ? make(name.c_str(), sizes[i])
                                         : make_fixed(name.c_str(), sizes[i]));
            addresses.push_back(i % 4 == 3 ? 0 : address_of(tensors[i]));
        }
        uint32_t written = 0;
        for (int i = 0; i < rounds; ++i) {
            const size_t at = random() % sizes.size();
            const bool writes = random() % 3 == 0;
            void *stream = streams_[random() % kStreams];
            stw_view view;
            ASSERT_EQ(fetch(tensors[at], writes ? STW_READ_WRITE : STW_READ, stream, &view), STW_OK)
                << stw_last_error();
            if (addresses[at] != 0) {
                EXPECT_EQ(reinterpret_cast<uint64_t>(view.pointer), addresses[at]);
                EXPECT_EQ(address_of(tensors[at]), addresses[at]);
            }
            enqueue(view, stream, values[at], written + 1, writes);
            if (writes) values[at] = ++written;
            ASSERT_EQ(stw_release(&view, 1, stream, 0), STW_OK) << stw_last_error();
            each(i, random, tensors[at], sizes[at], values[at]);
            if (HasFatalFailure()) return;
        }
        for (size_t i = 0; i < sizes.size(); ++i) expect_all(tensors[i], sizes[i], values[i]);
        // What was used a moment ago goes without waiting, and its range ends behind that.
        for (stw_tensor *tensor : tensors) EXPECT_EQ(stw_tensor_destroy(&tensor, 1), STW_OK);
        end_streams();
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
    void end_streams()
    {
        for (void *stream : streams_) EXPECT_EQ(cuStreamSynchronize(stream), 0);
    }

    std::string directory_;
    std::string module_;
    std::string device_options_;
    uint64_t free_before_ = 0;
    void *context_ = nullptr;
    void *streams_[kStreams] = {};
    stw_runtime *runtime_ = nullptr;
    std::vector<std::unique_ptr<Kernel>> kernels_;
};

}  // namespace stepwell
