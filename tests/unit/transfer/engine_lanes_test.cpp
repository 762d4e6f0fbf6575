// SPDX-License-Identifier: Apache-2.0
// Claims about copies that are enqueued on devices: which of them wait for which others, and how
// they are put together. The devices' copies are over when a test says so.
#include "tests/unit/transfer/rig.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

namespace stepwell::testing {
namespace {

// A device with a stream for each direction, whose copies are made when they are enqueued.
struct StreamDevice {
    struct Started {
        bool into = false;
        std::vector<stw_memory_copy> copies;
    };

    char *base = nullptr;
    uint64_t bytes = 0;
    Mutex mutex;
    Condition changed;
    std::vector<Started> started STW_GUARDED_BY(mutex);  // by mark, from 1
    std::set<uint64_t> held STW_GUARDED_BY(mutex);       // marks that are not passed
    bool holds_into STW_GUARDED_BY(mutex) = false;       // those to come
    bool holds_out STW_GUARDED_BY(mutex) = false;
    int in_flight STW_GUARDED_BY(mutex) = 0;
    int peak STW_GUARDED_BY(mutex) = 0;

    static StreamDevice &self(stw_memory *memory)
    {
        return *reinterpret_cast<StreamDevice *>(memory);
    }
    stw_status start(const stw_memory_copy *copies, uint32_t n, uint64_t *mark_out)
    {
        for (uint32_t i = 0; i < n; ++i)
            std::memcpy(copies[i].destination, copies[i].source, copies[i].bytes);
        MutexLock lock(mutex);
        const uint64_t at = static_cast<char *>(copies[0].destination) - base;
        started.push_back({at < bytes, {copies, copies + n}});
        *mark_out = started.size();
        if (started.back().into ? holds_into : holds_out) held.insert(*mark_out);
        peak = std::max(peak, ++in_flight);
        changed.notify_all();
        return STW_OK;
    }
    stw_status wait(uint64_t mark)
    {
        MutexLock lock(mutex);
        while (held.count(mark) != 0) changed.wait(mutex);
        --in_flight;
        return STW_OK;
    }
    void hold(bool into, bool out)
    {
        MutexLock lock(mutex);
        holds_into = into, holds_out = out;
    }
    void pass()
    {
        MutexLock lock(mutex);
        holds_into = holds_out = false;
        held.clear();
        changed.notify_all();
    }
    bool wait_started(size_t n)
    {
        const uint64_t until_ns = wait_clock_ns() + kPatienceNs;
        MutexLock lock(mutex);
        while (started.size() < n)
            if (!changed.wait_until(mutex, until_ns)) return false;
        return true;
    }
    std::vector<Started> all()
    {
        MutexLock lock(mutex);
        return started;
    }

    static const stw_memory_ops &ops()
    {
        static const stw_memory_ops table = [] {
            stw_memory_ops made{};
            made.struct_size = sizeof made;
            made.name = "streams";
            made.capabilities = STW_MEMORY_STREAMS | STW_MEMORY_CAN_BATCH;
            made.copy_start = [](stw_memory *memory, void *to, const void *from, uint64_t n,
                                 uint64_t *mark_out) -> stw_status {
                const stw_memory_copy copy{to, from, n};
                return self(memory).start(&copy, 1, mark_out);
            };
            made.copies_start = [](stw_memory *memory, const stw_memory_copy *copies, uint32_t n,
                                   uint64_t *mark_out) -> stw_status {
                return self(memory).start(copies, n, mark_out);
            };
            made.wait = [](stw_memory *memory, uint64_t mark) -> stw_status {
                return self(memory).wait(mark);
            };
            return made;
        }();
        return table;
    }
};

// Two such devices and a host, no storage.
class EngineLanes : public ::testing::Test, protected NoWork {
protected:
    static constexpr uint32_t kBlocks = 600;
    static constexpr uint32_t kHostMemory = 2;

    void SetUp() override
    {
        EngineOptions options;
        options.services = fake_services();
        options.block_bytes = kBlock;
        for (uint32_t i = 0; i < 3; ++i) arenas_[i].resize(kBlocks * kBlock);
        for (uint32_t i = 0; i < 2; ++i) {
            devices_[i].base = arenas_[i].data();
            devices_[i].bytes = arenas_[i].size();
            options.memories.push_back({&StreamDevice::ops(),
                                        reinterpret_cast<stw_memory *>(&devices_[i]),
                                        residency::Tier::kDevice, false, "device"});
        }
        options.memories.push_back({&FakeMemory::ops(), reinterpret_cast<stw_memory *>(&host_),
                                    residency::Tier::kHost, true, "host"});
        options.order = this;
        options.done = [](void *user, Completion *list, uint32_t n) {
            auto &self = *static_cast<EngineLanes *>(user);
            MutexLock lock(self.mutex_);
            for (uint32_t i = 0; i < n; ++i) {
                EXPECT_TRUE(list[i].status.ok()) << list[i].status.sentence();
                self.done_.insert(list[i].id);
            }
            self.changed_.notify_all();
        };
        options.done_user = this;
        Result<std::unique_ptr<Engine>> opened = Engine::open(std::move(options));
        ASSERT_TRUE(opened.ok()) << opened.status().sentence();
        engine_ = opened.take();
    }
    Status before(uint32_t, const void *pointer, uint64_t, bool, bool) override
    {
        if (records_ != pointer) return {};
        const uint32_t tries = ++tries_;
        while (tries == pauses_at_) std::this_thread::yield();
        return Status::error(STW_ERROR_BUSY, "A stream records a graph.");
    }
    bool waits(uint32_t, const void *pointer, uint64_t, bool, bool) override
    {
        return waits_ == pointer;
    }
    // Borders are at the blocks that it says.
    bool joined(const void *pointer) override
    {
        const char *base = arenas_[kHostMemory].data();
        const auto at = static_cast<uint64_t>(static_cast<const char *>(pointer) - base);
        return at / kBlock % border_ != 0;
    }
    void ordered(residency::TransferId) override { ++ordered_; }
    void TearDown() override
    {
        for (StreamDevice &device : devices_) device.pass();
        const Status status = engine_->close(kPatienceNs);
        EXPECT_TRUE(status.ok()) << status.sentence();
    }
    Job job(uint32_t from, uint32_t from_slot, uint32_t to, uint32_t to_slot,
            Class urgency = Class::kPlanned)
    {
        Job made;
        made.transfer.id = ++last_id_;
        made.transfer.block = static_cast<uint32_t>(last_id_);
        made.transfer.urgency = urgency;
        made.transfer.bytes = kBlock;
        made.from_memory = from;
        made.to_memory = to;
        made.from_pointer = arenas_[from].data() + from_slot * kBlock;
        made.to_pointer = arenas_[to].data() + to_slot * kBlock;
        return made;
    }
    Job in(uint32_t slot, uint32_t device = 0) { return job(kHostMemory, slot, device, slot); }
    Job out(uint32_t slot, uint32_t device = 0) { return job(device, slot, kHostMemory, slot); }
    void submit(const std::vector<Job> &jobs)
    {
        const Status status = engine_->submit(jobs.data(), static_cast<uint32_t>(jobs.size()));
        EXPECT_TRUE(status.ok()) << status.sentence();
    }
    bool wait_done(const std::vector<Job> &jobs)
    {
        const uint64_t until_ns = wait_clock_ns() + kPatienceNs;
        const auto is_done = [this](const Job &each) STW_NO_THREAD_ANALYSIS {
            return done_.count(each.transfer.id) != 0;
        };
        MutexLock lock(mutex_);
        while (!std::all_of(jobs.begin(), jobs.end(), is_done))
            if (!changed_.wait_until(mutex_, until_ns)) return false;
        return true;
    }

    std::vector<char> arenas_[3];
    StreamDevice devices_[2];
    FakeMemory host_;
    std::unique_ptr<Engine> engine_;
    std::atomic<uint32_t> ordered_{0};
    std::atomic<uint64_t> border_{1 << 20};
    std::atomic<const void *> waits_{nullptr};  // a copy from or to there, for work on a stream
    // A copy from or to there cannot be ordered yet. It was tried so often, and this try lasts.
    std::atomic<const void *> records_{nullptr};
    std::atomic<uint32_t> tries_{0};
    std::atomic<uint32_t> pauses_at_{0};
    uint64_t last_id_ = 0;
    Mutex mutex_;
    Condition changed_;
    std::set<residency::TransferId> done_ STW_GUARDED_BY(mutex_);
};

TEST_F(EngineLanes, ADirectionThatWaitsHoldsUpNoOtherAndNoOtherDevice)
{
    devices_[0].hold(false, true);
    std::vector<Job> leaving;
    for (uint32_t i = 0; i < 40; ++i) leaving.push_back(out(2 * i));
    submit(leaving);
    ASSERT_TRUE(devices_[0].wait_started(1));
    const std::vector<Job> coming = {in(101), in(103), in(1, 1), out(3, 1)};
    submit(coming);
    EXPECT_TRUE(wait_done(coming));
    Job inside = job(kHostMemory, 5, kHostMemory, 6);
    submit({inside});
    EXPECT_TRUE(wait_done({inside}));
    devices_[0].pass();
    EXPECT_TRUE(wait_done(leaving));
}

TEST_F(EngineLanes, WhatIsQueuedStartsWhileTheOldestIsUnderWay)
{
    devices_[0].hold(true, false);
    submit({in(0)});
    ASSERT_TRUE(devices_[0].wait_started(1));
    submit({in(2)});
    EXPECT_TRUE(devices_[0].wait_started(2));
    submit({in(4)});
    EXPECT_TRUE(devices_[0].wait_started(3));
}

TEST_F(EngineLanes, ADirectionHasAMaximumUnderWay)
{
    devices_[0].hold(true, false);
    std::vector<Job> all;
    for (uint32_t i = 0; i < 30; ++i) {
        all.push_back(in(2 * i));
        submit({all.back()});
        if (i < 8u) {
            EXPECT_TRUE(devices_[0].wait_started(i + 1));
        }
    }
    devices_[0].pass();
    EXPECT_TRUE(wait_done(all));
    EXPECT_EQ(ordered_, 30u);
    MutexLock lock(devices_[0].mutex);
    EXPECT_LE(devices_[0].peak, 8);
}

TEST_F(EngineLanes, BlocksThatLieSideBySideAtBothEndsAreOneCopy)
{
    std::vector<Job> jobs;
    for (uint32_t i = 64; i > 0; --i) jobs.push_back(in(i));
    for (uint32_t i = 0; i < 4; ++i) jobs.push_back(job(kHostMemory, 100 + i, 0, 100 + 2 * i));
    for (uint32_t i = 0; i < 4; ++i) jobs.push_back(job(kHostMemory, 120 + 2 * i, 0, 120 + i));
    submit(jobs);
    ASSERT_TRUE(wait_done(jobs));
    const std::vector<StreamDevice::Started> all = devices_[0].all();
    ASSERT_EQ(all.size(), 1u) << "with one mark";
    ASSERT_EQ(all[0].copies.size(), 9u);
    EXPECT_EQ(all[0].copies[0].bytes, 64 * kBlock);
    EXPECT_EQ(all[0].copies[0].source, arenas_[kHostMemory].data() + kBlock);
}

TEST_F(EngineLanes, WhatHasToWaitForAStreamIsBehindWhatNeedNot)
{
    waits_ = arenas_[0].data() + 3 * kBlock;
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 8; ++i) jobs.push_back(in(i));
    submit(jobs);
    ASSERT_TRUE(wait_done(jobs));
    const std::vector<StreamDevice::Started> all = devices_[0].all();
    ASSERT_EQ(all.size(), 2u);
    ASSERT_EQ(all[0].copies.size(), 2u);
    EXPECT_EQ(all[0].copies[0].bytes, 3 * kBlock);
    EXPECT_EQ(all[0].copies[1].bytes, 4 * kBlock);
    EXPECT_EQ(all[1].copies[0].destination, waits_);
}

TEST_F(EngineLanes, WhatIsHeldBackSaysSoWhileItIsTriedAgain)
{
    pauses_at_ = 2;
    records_ = arenas_[0].data() + 3 * kBlock;
    const std::vector<Job> jobs = {in(3)};
    submit(jobs);
    while (tries_ < 2) std::this_thread::yield();
    const std::string said = engine_->describe_in_flight(1);
    EXPECT_NE(said.find("until a stream has recorded its graph"), said.npos) << said;
    records_ = nullptr;
    pauses_at_ = 0;
    EXPECT_TRUE(wait_done(jobs));
}

TEST_F(EngineLanes, NoCopyCrossesABorderOfTheHostsMemory)
{
    border_ = 32;
    std::vector<Job> jobs;
    for (uint32_t i = 10; i < 100; ++i) jobs.push_back(out(i));
    submit(jobs);
    ASSERT_TRUE(wait_done(jobs));
    const std::vector<StreamDevice::Started> all = devices_[0].all();
    ASSERT_EQ(all.size(), 1u);
    std::vector<uint64_t> blocks;
    for (const stw_memory_copy &copy : all[0].copies) blocks.push_back(copy.bytes / kBlock);
    EXPECT_EQ(blocks, (std::vector<uint64_t>{22, 32, 32, 4}));
}

TEST_F(EngineLanes, WhatIsUrgentIsBehindTwoBatchesAtMost)
{
    devices_[0].hold(true, false);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 599; ++i) jobs.push_back(in(i));
    submit(jobs);
    ASSERT_TRUE(devices_[0].wait_started(2));
    jobs.push_back(job(kHostMemory, 599, 0, 599, Class::kDemand));
    submit({jobs.back()});
    devices_[0].pass();
    ASSERT_TRUE(wait_done(jobs));
    const std::vector<StreamDevice::Started> all = devices_[0].all();
    ASSERT_EQ(all.size(), 4u) << "and no class with another";
    uint64_t bytes[4] = {};
    for (size_t i = 0; i < 4; ++i)
        for (const stw_memory_copy &copy : all[i].copies) bytes[i] += copy.bytes;
    EXPECT_EQ(bytes[0], 256 * kBlock);
    EXPECT_EQ(bytes[1], 256 * kBlock);
    EXPECT_EQ(bytes[2], kBlock);
    EXPECT_EQ(bytes[3], 87 * kBlock);
}

}  // namespace
}  // namespace stepwell::testing
