// SPDX-License-Identifier: Apache-2.0
// A runtime over a device that shares the host's memory: a drive reads into it and is written from
// it, while work on streams is late. The kernels tell who was too early.
#include "tests/cuda/runtime_rig.h"

#include <algorithm>
#include <random>

#include <sys/mman.h>

namespace stepwell {
namespace {

class CudaUnified : public CudaRuntime {
protected:
    uint64_t link_bytes(uint32_t link, uint32_t device = 0) const
    {
        stw_link_stats stats = STW_LINK_STATS_INIT;
        EXPECT_OK(stw_link_stats_get(runtime_, link, device, &stats));
        return stats.bytes;
    }
    uint32_t flags() const
    {
        stw_device_info info{};
        info.struct_size = sizeof info;
        EXPECT_OK(stw_device_info_get(runtime_, 0, &info));
        return info.flags;
    }
    // It leaves the device for the drive, whatever room the host tier has.
    stw_tensor *make_direct(const std::string &name, uint64_t elements)
    {
        stw_tensor *tensor = make(name, elements);
        stw_policy policy = STW_POLICY_INIT;
        policy.allowed_tiers = STW_ALLOW_DEVICE | STW_ALLOW_NVME;
        EXPECT_OK(stw_tensor_set_policy(tensor, &policy));
        return tensor;
    }
    // With nothing of it anywhere else.
    void move_to_drive(stw_tensor *tensor) const
    {
        for (const uint32_t tier : {STW_TIER_DEVICE, STW_TIER_HOST})
            ASSERT_OK(stw_evict(runtime_, &tensor, 1, tier, 0, 0));
    }
    stw_status fetch_for(stw_tensor *tensor, void *stream, uint64_t timeout_ns, stw_view *view)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        options.stream = stream;
        options.timeout_ns = timeout_ns;
        request.tensor = tensor;
        request.access = STW_READ;
        return stw_fetch(runtime_, &options, &request, 1, view);
    }
};

TEST_F(CudaUnified, ADriveReadsIntoTheDeviceAndIsWrittenFromIt)
{
    open("unified=1", 8, 4);
    if (HasFatalFailure()) return;
    EXPECT_NE(flags() & STW_DEVICE_UNIFIED, 0u);
    EXPECT_EQ(host_stats().staging_bytes, 0u);
    stw_tensor *tensor = make_direct("t", 3 * kBlock / 4);
    move_to_drive(tensor);
    const uint64_t by_host = link_bytes(STW_LINK_NVME_TO_HOST);
    const uint64_t written_by_host = link_bytes(STW_LINK_HOST_TO_NVME);
    use(tensor, streams_[0], 0, 5, true);
    EXPECT_EQ(link_bytes(STW_LINK_NVME_TO_DEVICE), 3 * kBlock);
    move_to_drive(tensor);
    use(tensor, streams_[1], 5, 0, false);
    EXPECT_EQ(link_bytes(STW_LINK_NVME_TO_DEVICE), 6 * kBlock);
    EXPECT_EQ(link_bytes(STW_LINK_DEVICE_TO_NVME), 3 * kBlock);
    EXPECT_EQ(link_bytes(STW_LINK_NVME_TO_HOST), by_host);
    EXPECT_EQ(link_bytes(STW_LINK_HOST_TO_NVME), written_by_host);
    EXPECT_EQ(link_bytes(STW_LINK_HOST_TO_DEVICE), 0u);
    EXPECT_EQ(link_bytes(STW_LINK_DEVICE_TO_HOST), 0u);
    end_streams();
}

// A release does not wait, so the kernel may not have begun when its block is another tensor's.
TEST_F(CudaUnified, ADriveDoesNotReadIntoWhatIsStillRead)
{
    open("unified=1", 4, 8);
    if (HasFatalFailure()) return;
    stw_tensor *first = make_direct("first", 4 * kBlock / 4);
    stw_tensor *second = make_direct("second", 4 * kBlock / 4);
    use(second, streams_[1], 0, 9, true);
    move_to_drive(second);
    move_to_drive(first);
    end_streams();
    stw_double_hold(streams_[0]);
    use(first, streams_[0], 0, 0, false);
    stw_view view;
    EXPECT_EQ(fetch_for(second, streams_[1], kSecond / 20, &view), STW_ERROR_TIMEOUT);
    stw_double_let_go(streams_[0], 0);
    use(second, streams_[1], 9, 0, false);
    end_streams();
}

TEST_F(CudaUnified, ADriveIsNotWrittenFromWhatIsStillToBeWritten)
{
    open("unified=1", 4, 8);
    if (HasFatalFailure()) return;
    stw_tensor *tensor = make_direct("t", 2 * kBlock / 4);
    move_to_drive(tensor);
    stw_double_hold(streams_[0]);
    use(tensor, streams_[0], 0, 4, true);
    EXPECT_EQ(stw_evict(runtime_, &tensor, 1, STW_TIER_DEVICE, 0, kSecond / 20), STW_ERROR_TIMEOUT);
    stw_double_let_go(streams_[0], 0);
    move_to_drive(tensor);
    use(tensor, streams_[1], 4, 0, false);
    expect_all(tensor, 2 * kBlock / 4, 4);
    end_streams();
}

// As on a device behind a bus: tensors three times what the device holds.
TEST_F(CudaUnified, BytesAndOrderAreRightWhateverIsLate)
{
    const std::vector<uint64_t> sizes = {100, 16384, 3 * 16384 + 5, 40000, 16384 * 2, 7, 50000, 60};
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        open("unified=1,delay_us=300,seed=" + std::to_string(seed), 8, seed % 2 == 0 ? 24 : 4);
        if (HasFatalFailure()) return;
        std::mt19937_64 random(seed);
        std::vector<stw_tensor *> tensors;
        std::vector<uint32_t> values(sizes.size());
        for (size_t i = 0; i < sizes.size(); ++i)
            tensors.push_back(make("t" + std::to_string(i), sizes[i]));
        uint32_t written = 0;
        for (int i = 0; i < 60; ++i) {
            const size_t tensor = random() % sizes.size();
            const bool writes = random() % 3 == 0;
            use(tensors[tensor], streams_[random() % kStreams], values[tensor], written + 1,
                writes);
            if (HasFatalFailure()) return;
            if (writes) values[tensor] = ++written;
            if (i % 10 == 9) {
                ASSERT_OK(stw_tier_set_budget(runtime_, STW_TIER_DEVICE, 0,
                                              (5 + random() % 4) * kBlock, 0));
            }
        }
        if (seed % 2 == 1) {
            EXPECT_GT(link_bytes(STW_LINK_NVME_TO_DEVICE), 0u);
        }
        for (size_t i = 0; i < sizes.size(); ++i) expect_all(tensors[i], sizes[i], values[i]);
        end_streams();
        start_over();
    }
}

// The device and the drive are all that is used then; what the CPU has to do is refused.
TEST_F(CudaUnified, ATensorOfTheDeviceNeedsNoHostTier)
{
    open("unified=1", 4, 0);
    if (HasFatalFailure()) return;
    stw_tensor *tensors[3];
    for (int i = 0; i < 3; ++i) {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        const std::string name = "t" + std::to_string(i);
        spec.name = name.c_str();
        spec.dtype = STW_I32;
        spec.dimensions = 1;
        spec.shape[0] = 3 * kBlock / 4;
        ASSERT_OK(stw_tensor_create(runtime_, &spec, 1, &tensors[i]));
    }
    for (uint32_t i = 0; i < 3; ++i) {
        stw_view view;
        ASSERT_OK(fetch(tensors[i], STW_WRITE, streams_[i], &view));
        stw_double_range range = {reinterpret_cast<uint64_t>(view.pointer), view.bytes, 1, 0};
        kernels_.push_back(std::make_unique<Kernel>());
        *kernels_.back() = {range.address, view.bytes / 4, true, 0, i + 1, 0};
        const auto set = [](void *user, stw_double_alias_of alias) {
            const auto &kernel = *static_cast<Kernel *>(user);
            std::fill_n(static_cast<uint32_t *>(alias(kernel.address)), kernel.elements,
                        kernel.sets);
        };
        ASSERT_EQ(stw_double_consume(streams_[i], "writer", &range, 1, set, kernels_.back().get()),
                  0);
        ASSERT_OK(stw_release(&view, 1, streams_[i], 0));
    }
    for (uint32_t i = 0; i < 3; ++i) use(tensors[i], streams_[0], i + 1, 0, false);
    EXPECT_GE(link_bytes(STW_LINK_DEVICE_TO_NVME), 6 * kBlock);
    std::vector<uint32_t> bytes(3 * kBlock / 4);
    EXPECT_LT(stw_tensor_read(tensors[0], bytes.data(), nullptr), STW_OK);
    end_streams();
}

// Unlike a device's own memory, that of the system goes back in any size of block.
TEST_F(CudaUnified, ASmallerBudgetGivesPagesBack)
{
    open("unified=1", 8, 8);
    if (HasFatalFailure()) return;
    stw_tensor *tensor = make("t", 4 * kBlock / 4);
    stw_view view;
    ASSERT_OK(fetch(tensor, STW_READ_WRITE, streams_[0], &view));
    enqueue(view, streams_[0], 0, 6, true);
    void *there = view.pointer;
    ASSERT_OK(stw_release(&view, 1, streams_[0], 0));
    const auto pages = [there] {
        std::vector<unsigned char> resident(4 * kBlock / 4096);
        EXPECT_EQ(mincore(there, 4 * kBlock, resident.data()), 0);
        size_t count = 0;
        for (const unsigned char page : resident) count += page & 1;
        return count;
    };
    EXPECT_EQ(pages(), 4 * kBlock / 4096);
    ASSERT_OK(stw_tier_set_budget(runtime_, STW_TIER_DEVICE, 0, 0, 0));
    EXPECT_EQ(pages(), 0u);
    ASSERT_OK(stw_tier_set_budget(runtime_, STW_TIER_DEVICE, 0, 8 * kBlock, 0));
    use(tensor, streams_[1], 6, 0, false);
    end_streams();
}

TEST_F(CudaUnified, AFixedAddressIsRefusedWithTheOptionThatHasIt)
{
    open("unified=1", 8, 8);
    if (HasFatalFailure()) return;
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = "fixed";
    spec.dtype = STW_I32;
    spec.dimensions = 1;
    spec.shape[0] = 100;
    spec.flags = STW_TENSOR_FIXED_ADDRESS;
    stw_tensor *tensor = nullptr;
    EXPECT_EQ(stw_tensor_create(runtime_, &spec, 1, &tensor), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(stw_last_error()).find("unified=off"), std::string::npos)
        << stw_last_error();
}

TEST_F(CudaUnified, OffIsADeviceAcrossABus)
{
    driver_options_ = "unified=off";
    open("unified=1", 8, 24);
    if (HasFatalFailure()) return;
    EXPECT_EQ(flags() & STW_DEVICE_UNIFIED, 0u);
    EXPECT_GT(host_stats().staging_bytes, 0u);
    stw_tensor *tensor = make("t", 3 * kBlock / 4);
    move_to_drive(tensor);
    use(tensor, streams_[0], 0, 5, true);
    EXPECT_EQ(link_bytes(STW_LINK_NVME_TO_DEVICE), 0u);
    end_streams();
}

TEST_F(CudaUnified, WhatCannotBeIsRefusedWithAReason)
{
    open("unified=0", 8, 24);
    if (HasFatalFailure()) return;
    EXPECT_EQ(flags() & STW_DEVICE_UNIFIED, 0u);
    stw_runtime *first = std::exchange(runtime_, nullptr);
    driver_options_ = "unified=on";
    EXPECT_EQ(try_open(8, 24), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(stw_last_error()).find("unified=on cannot be"), std::string::npos)
        << stw_last_error();
    for (const char *text : {"unified=perhaps", "united=on", "unified"}) {
        driver_options_ = text;
        EXPECT_EQ(try_open(8, 24), STW_ERROR_INVALID) << text;
        EXPECT_NE(std::string(stw_last_error()).find("unified=auto|on|off"), std::string::npos)
            << stw_last_error();
    }
    runtime_ = first;
}

// A device that reaches the host's memory but has memory of its own, which is or is no NUMA node.
TEST_F(CudaUnified, ADeviceWithMemoryOfItsOwnIsSharedWhereThatIsANode)
{
    open("unified=1,attribute=18:0", 8, 24);
    if (HasFatalFailure()) return;
    EXPECT_EQ(flags() & STW_DEVICE_UNIFIED, 0u);
    driver_options_ = "unified=on";
    start_over();
    open("unified=1,attribute=18:0", 8, 24);
    if (HasFatalFailure()) return;
    EXPECT_NE(flags() & STW_DEVICE_UNIFIED, 0u);
    driver_options_ = nullptr;
    start_over();
    open("unified=1,attribute=18:0,attribute=130:1,attribute=131:0", 8, 24);
    if (HasFatalFailure()) return;
    EXPECT_NE(flags() & STW_DEVICE_UNIFIED, 0u);
    use(make("t", 100), streams_[0], 0, 0, false);
    end_streams();
}

}  // namespace
}  // namespace stepwell
