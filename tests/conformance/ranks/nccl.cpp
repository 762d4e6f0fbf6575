// SPDX-License-Identifier: Apache-2.0
// The module over NCCL: what it says where there is no GPU, and collectives on those that there
// are, one rank for each, each rank a thread. Numbers are small and whole, because NCCL adds in an
// order of its own.
// usage: ranks-nccl MODULE [--ranks N] [GTEST OPTION]...
// --ranks: collectives of that many, 1 to 4, each with a device of its own. Exit status 77 where
// there are fewer, or no NCCL; the reason is the last line.
#include "drivers/nccl/libraries.h"
#include "drivers/registry.h"

#include <stepwell/types.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sched.h>

namespace conformance::ranks {
namespace {

constexpr uint64_t kWaitNs = 60'000'000'000;
constexpr int kRanksMax = 4;

const char *module_path = nullptr;
int ranks_wanted = 0;  // 0: one for each device

// Why nothing can be collected here; "" where it can.
std::string load(stepwell::drivers::Libraries *libraries_out, int *devices_out)
{
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    if (stepwell::drivers::load_libraries(libraries_out, &error) != STW_OK) return error.sentence;
    const stepwell::drivers::CudaApi &cuda = libraries_out->cuda;
    if (cuda.init(0) != 0 || cuda.device_get_count(devices_out) != 0 || *devices_out == 0)
        return "CUDA shows no device to this process";
    if (*devices_out >= ranks_wanted) return "";
    return "CUDA shows " + std::to_string(*devices_out) +
           (*devices_out == 1 ? " device" : " devices") + " to this process, and each of " +
           std::to_string(ranks_wanted) + " ranks needs one of its own";
}

// One rank: its thread, device and group. A failure is told by who asked for it.
class Rank {
public:
    Rank(const stw_collective_ops *driver, const stepwell::drivers::CudaApi &cuda, uint32_t rank,
         uint32_t size)
        : driver_(driver), cuda_(cuda), rank_(rank), size_(size)
    {
    }

    void run(const stepwell::drivers::NcclUniqueId &id)
    {
        int device = 0;
        void *context = nullptr;
        ASSERT_EQ(cuda_.device_get(&device, static_cast<int>(rank_)), 0);
        ASSERT_EQ(cuda_.context_retain(&context, device), 0);
        ASSERT_EQ(cuda_.context_push(context), 0);
        stw_collective_options options = {};
        options.struct_size = sizeof options;
        options.rank = rank_;
        options.size = size_;
        options.unique_id = &id;
        options.unique_id_bytes = sizeof id;
        options.device_ordinal = static_cast<int32_t>(rank_);
        options.timeout_ns = kWaitNs;
        ASSERT_EQ(driver_->open(nullptr, &options, &group_, &error_), STW_OK) << error_.sentence;
        exchanges();
        gathers();
        reduces();
        EXPECT_EQ(driver_->close(group_, kWaitNs), STW_OK);
        void *popped = nullptr;
        cuda_.context_pop(&popped);
        cuda_.context_release(device);
    }

private:
    stw_status wait(uint64_t work)
    {
        const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kWaitNs);
        for (;;) {
            const stw_status status = driver_->poll(group_, work, &error_);
            if (status != STW_PENDING) return status;
            if (std::chrono::steady_clock::now() > end) return STW_ERROR_TIMEOUT;
            sched_yield();
        }
    }

    // More at once than the driver has slots.
    void exchanges()
    {
        constexpr uint32_t kBytes = STW_EXCHANGE_BYTES_MAX;
        constexpr size_t kTimes = 9;
        const std::vector<char> record(kBytes, static_cast<char>('a' + rank_));
        std::vector<std::vector<char>> records(kTimes, std::vector<char>(size_t{size_} * kBytes));
        std::vector<uint64_t> works(kTimes);
        for (size_t i = 0; i < kTimes; ++i)
            ASSERT_EQ(
                driver_->exchange(group_, record.data(), records[i].data(), kBytes, &works[i]),
                STW_OK);
        for (size_t i = 0; i < kTimes; ++i) {
            ASSERT_EQ(wait(works[i]), STW_OK) << error_.sentence;
            for (uint32_t rank = 0; rank < size_; ++rank)
                EXPECT_EQ(records[i][size_t{rank} * kBytes + 17], static_cast<char>('a' + rank));
        }
    }

    void gathers()
    {
        constexpr uint64_t kBytes = 1'000'003;
        Memory whole(*this, size_ * kBytes);
        const std::vector<char> own(kBytes, static_cast<char>('a' + rank_));
        void *shard = whole.at(rank_ * kBytes);
        whole.write(rank_ * kBytes, own.data(), kBytes);
        uint64_t work = 0;
        ASSERT_EQ(driver_->all_gather(group_, shard, whole.at(0), kBytes, nullptr, &work), STW_OK);
        ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
        std::vector<char> found(size_ * kBytes);
        whole.read(found.data(), found.size());
        for (uint32_t rank = 0; rank < size_; ++rank)
            EXPECT_EQ(std::count(&found[rank * kBytes], &found[(rank + 1) * kBytes - 1] + 1,
                                 static_cast<char>('a' + rank)),
                      static_cast<long>(kBytes));
    }

    void reduces()
    {
        constexpr uint64_t kEach = 100'003;
        std::vector<float> values(size_ * kEach);
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000 + rank_);
        const float ranks = static_cast<float>(size_ * (size_ - 1)) / 2;
        const auto sum = [&](size_t i) { return static_cast<float>(i % 1000 * size_) + ranks; };
        Memory whole(*this, values.size() * sizeof(float));
        Memory shard(*this, kEach * sizeof(float));
        whole.write(0, values.data(), values.size() * sizeof(float));
        uint64_t work = 0;
        ASSERT_EQ(driver_->reduce_scatter(group_, whole.at(0), shard.at(0), kEach, STW_F32, nullptr,
                                          &work),
                  STW_OK);
        ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
        ASSERT_EQ(driver_->all_reduce(group_, whole.at(0), values.size(), STW_F32, nullptr, &work),
                  STW_OK);
        ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
        std::vector<float> found(kEach);
        shard.read(found.data(), kEach * sizeof(float));
        for (size_t i = 0; i < kEach; ++i) ASSERT_EQ(found[i], sum(rank_ * kEach + i));
        found.resize(values.size());
        whole.read(found.data(), found.size() * sizeof(float));
        for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], sum(i));
    }

    // Of the device whose context is current.
    class Memory {
    public:
        Memory(const Rank &rank, size_t bytes) : cuda_(rank.cuda_)
        {
            EXPECT_EQ(cuda_.memory_alloc(&address_, bytes), 0);
        }
        Memory(const Memory &) = delete;
        Memory &operator=(const Memory &) = delete;
        ~Memory() { cuda_.memory_free(address_); }
        void *at(size_t offset) const { return reinterpret_cast<void *>(address_ + offset); }
        // Memory that is not pinned: both are over when they return.
        void write(size_t offset, const void *from, size_t bytes)
        {
            EXPECT_EQ(cuda_.copy_to_device(address_ + offset, from, bytes, STW_STREAM_LEGACY), 0);
            synchronise();
        }
        void read(void *to, size_t bytes)
        {
            EXPECT_EQ(cuda_.copy_to_host(to, address_, bytes, STW_STREAM_LEGACY), 0);
            synchronise();
        }

    private:
        void synchronise()
        {
            void *event = nullptr;
            ASSERT_EQ(cuda_.event_create(&event, 0), 0);
            ASSERT_EQ(cuda_.event_record(event, STW_STREAM_LEGACY), 0);
            while (cuda_.event_query(event) == stepwell::drivers::kCudaNotReady) sched_yield();
            cuda_.event_destroy(event);
        }
        const stepwell::drivers::CudaApi &cuda_;
        stepwell::drivers::CudaAddress address_ = 0;
    };

    const stw_collective_ops *driver_;
    const stepwell::drivers::CudaApi &cuda_;
    const uint32_t rank_;
    const uint32_t size_;
    stw_collective *group_ = nullptr;
    stw_driver_error error_ = STW_DRIVER_ERROR_INIT;
};

class Nccl : public testing::Test {
protected:
    const stw_collective_ops *driver_ = nullptr;
    stepwell::drivers::Libraries libraries_;
    stw_driver_error error_ = STW_DRIVER_ERROR_INIT;
    int devices_ = 0;
    std::string lacks_;  // why nothing can be collected here

    void SetUp() override
    {
        ASSERT_EQ(stepwell::drivers::find_driver(module_path, &driver_, &error_), STW_OK)
            << error_.sentence;
        lacks_ = load(&libraries_, &devices_);
    }
};

TEST_F(Nccl, TheModuleLoadsAnywhereAndIsHonest)
{
    EXPECT_STREQ(driver_->name, "nccl");
    EXPECT_NE(driver_->capabilities & STW_COLLECTIVE_DEVICE, 0u);
    EXPECT_EQ(driver_->split, nullptr);
}

TEST_F(Nccl, WithoutADeviceOpenSaysWhatIsAbsent)
{
    if (lacks_.empty()) GTEST_SKIP() << "this machine has what NCCL needs";
    const char id[128] = {};
    stw_collective_options options = {};
    options.struct_size = sizeof options;
    options.size = 1;
    options.unique_id = id;
    options.unique_id_bytes = sizeof id;
    stw_collective *group = nullptr;
    error_ = STW_DRIVER_ERROR_INIT;
    EXPECT_EQ(driver_->open(nullptr, &options, &group, &error_), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::strstr(error_.sentence, "NCCL"), nullptr) << error_.sentence;
    EXPECT_EQ(group, nullptr);
    options.struct_size = 8;
    EXPECT_EQ(driver_->open(nullptr, &options, &group, &error_), STW_ERROR_INVALID);
}

TEST_F(Nccl, CollectivesOfEachDeviceGiveTheirSums)
{
    if (!lacks_.empty()) GTEST_SKIP() << lacks_;
    // The driver needs none of it: who makes the id sends it to all.
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(nccl, nullptr);
    const auto make_id = reinterpret_cast<int (*)(stepwell::drivers::NcclUniqueId *)>(
        dlsym(nccl, "ncclGetUniqueId"));
    ASSERT_NE(make_id, nullptr);
    stepwell::drivers::NcclUniqueId id = {};
    ASSERT_EQ(make_id(&id), 0);
    const int ranks = ranks_wanted != 0 ? ranks_wanted : std::min(devices_, kRanksMax);
    const auto size = static_cast<uint32_t>(ranks);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] { Rank(driver_, libraries_.cuda, rank, size).run(id); });
    for (std::thread &thread : threads) thread.join();
}

TEST_F(Nccl, AnOpenThatARankDoesNotJoinTimesOut)
{
    if (!lacks_.empty()) GTEST_SKIP() << lacks_;
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const auto make_id = reinterpret_cast<int (*)(stepwell::drivers::NcclUniqueId *)>(
        dlsym(nccl, "ncclGetUniqueId"));
    stepwell::drivers::NcclUniqueId id = {};
    ASSERT_EQ(make_id(&id), 0);
    stw_collective_options options = {};
    options.struct_size = sizeof options;
    options.size = 2;
    options.unique_id = &id;
    options.unique_id_bytes = sizeof id;
    options.timeout_ns = 1'000'000;
    stw_collective *group = nullptr;
    EXPECT_EQ(driver_->open(nullptr, &options, &group, &error_), STW_ERROR_TIMEOUT);
    EXPECT_NE(std::strstr(error_.sentence, "Not all 2 ranks"), nullptr) << error_.sentence;
}

}  // namespace
}  // namespace conformance::ranks

int main(int count, char **words)
{
    using namespace conformance::ranks;
    testing::InitGoogleTest(&count, words);
    const bool told = count == 4 && std::strcmp(words[2], "--ranks") == 0;
    if (told) ranks_wanted = std::atoi(words[3]);
    if ((count != 2 && !told) || (told && (ranks_wanted < 1 || ranks_wanted > kRanksMax))) {
        std::fprintf(stderr, "usage: ranks-nccl MODULE [--ranks 1..%d] [GTEST OPTION]...\n",
                     kRanksMax);
        return 2;
    }
    module_path = words[1];
    if (told) {
        stepwell::drivers::Libraries libraries;
        int devices = 0;
        const std::string lacks = load(&libraries, &devices);
        if (!lacks.empty()) {
            std::fprintf(stderr, "%s\n", lacks.c_str());
            return 77;
        }
    }
    return RUN_ALL_TESTS();
}
