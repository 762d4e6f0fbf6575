// SPDX-License-Identifier: Apache-2.0
// A runtime on the module cuda and the double, with blocks that the device can place at addresses.
#pragma once

#include "tests/cuda/runtime_rig.h"

#include <random>

extern "C" {
int cuMemGetInfo_v2(size_t *free_out, size_t *total_out);
}

namespace stepwell {

class MappingRig : public CudaRuntime {
protected:
    static constexpr uint64_t kBlock = uint64_t{2} << 20;
    static constexpr uint64_t kElements = kBlock / 4;  // of a block

    void TearDown() override
    {
        CudaRuntime::TearDown();
        EXPECT_EQ(wrong(), 0);
    }
    void open(const std::string &options, uint32_t device_blocks, uint32_t host_blocks,
              uint64_t block_bytes = kBlock)
    {
        start(options);
        if (HasFatalFailure()) return;
        free_before_ = free_bytes();
        stw_device_options device = STW_DEVICE_OPTIONS_INIT;
        stw_runtime_options runtime = STW_RUNTIME_OPTIONS_INIT;
        device.driver = module_.path().c_str();
        device.driver_options = driver_options_;
        device.budget_bytes = device_blocks * block_bytes;
        runtime.devices = &device, runtime.device_count = 1;
        runtime.host_bytes = host_blocks * block_bytes;
        runtime.block_bytes = static_cast<uint32_t>(block_bytes);
        runtime.timeout_ns = 60 * kSecond;
        ASSERT_OK(stw_runtime_open(&runtime, &runtime_));
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
        EXPECT_OK(stw_tensor_address(tensor, 0, &address, &bytes));
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
            ASSERT_OK(fetch(tensors[at], writes ? STW_READ_WRITE : STW_READ, stream, &view));
            if (addresses[at] != 0) {
                EXPECT_EQ(reinterpret_cast<uint64_t>(view.pointer), addresses[at]);
                EXPECT_EQ(address_of(tensors[at]), addresses[at]);
            }
            enqueue(view, stream, values[at], written + 1, writes);
            if (writes) values[at] = ++written;
            ASSERT_OK(stw_release(&view, 1, stream, 0));
            each(i, random, tensors[at], sizes[at], values[at]);
            if (HasFatalFailure()) return;
        }
        for (size_t i = 0; i < sizes.size(); ++i) expect_all(tensors[i], sizes[i], values[i]);
        // What was used a moment ago goes without waiting, and its range ends behind that.
        for (stw_tensor *tensor : tensors) EXPECT_OK(stw_tensor_destroy(&tensor, 1));
        end_streams();
    }

    uint64_t free_before_ = 0;
};

}  // namespace stepwell
