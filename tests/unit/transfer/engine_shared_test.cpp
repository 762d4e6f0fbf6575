// SPDX-License-Identifier: Apache-2.0
// Claims about blocks that other processes read too: what the engine asks, does and believes. The
// other processes are a fake that answers as the test tells it.
#include "tests/unit/transfer/rig.h"

namespace stepwell::testing {
namespace {

using transfer::SharedKey;
using transfer::SharedRead;
using Answer = SharedRead::Answer;

class FakeOthers {
public:
    transfer::SharedReadHooks hooks()
    {
        transfer::SharedReadHooks made;
        made.user = this;
        made.look = [](void *self, const SharedKey &key, bool may_wait) {
            return of(self).look(key, may_wait);
        };
        made.copy = [](void *self, const SharedRead &, const SharedKey &key, void *data) {
            return of(self).copy(key, data);
        };
        made.let_go = [](void *self, const SharedRead &) { of(self).count(of(self).let_gos); };
        made.offer = [](void *self, const SharedRead &, const SharedKey &key, const void *data) {
            of(self).offer(key, data);
        };
        made.withdraw = [](void *self, const SharedRead &) { of(self).count(of(self).withdraws); };
        return made;
    }
    void answer(Answer with)
    {
        MutexLock lock(mutex_);
        answer_ = with;
    }
    template <class Body> auto with_lock(Body body)
    {
        MutexLock lock(mutex_);
        return body();
    }
    bool wait_looks(uint64_t n)
    {
        const uint64_t until_ns = wait_clock_ns() + kPatienceNs;
        MutexLock lock(mutex_);
        while (looks < n) {
            if (!changed_.wait_until(mutex_, until_ns)) return looks >= n;
        }
        return true;
    }

    // Under with_lock while threads run.
    std::map<uint64_t, std::vector<uint8_t>> bytes;  // what others have, by Job::shared_block
    std::map<uint64_t, SharedKey> keys;              // last asked for
    std::vector<uint64_t> offered;
    uint64_t looks = 0;
    uint64_t copies = 0;
    uint32_t let_gos = 0;
    uint32_t withdraws = 0;
    uint64_t tick_reads = 0;  // of the clock at each look: it moves a microsecond at each

private:
    static FakeOthers &of(void *self) { return *static_cast<FakeOthers *>(self); }
    SharedRead look(const SharedKey &key, bool may_wait)
    {
        MutexLock lock(mutex_);
        ++looks;
        changed_.notify_all();
        keys[key.block] = key;
        for (uint64_t i = 0; i < tick_reads; ++i) (void)fake_services()->now_ns(nullptr);
        const bool later = answer_ == Answer::kLater;
        return {later && !may_wait ? Answer::kAlone : answer_, 0, 0};
    }
    bool copy(const SharedKey &key, void *data)
    {
        MutexLock lock(mutex_);
        ++copies;
        const auto found = bytes.find(key.block);
        if (found == bytes.end()) return false;
        std::memcpy(data, found->second.data(), key.bytes);
        return true;
    }
    void offer(const SharedKey &key, const void *data)
    {
        const auto *at = static_cast<const uint8_t *>(data);
        MutexLock lock(mutex_);
        offered.push_back(key.block);
        bytes[key.block].assign(at, at + key.bytes);
    }
    void count(uint32_t &counter)
    {
        MutexLock lock(mutex_);
        ++counter;
    }

    Mutex mutex_;
    Condition changed_;
    Answer answer_ STW_GUARDED_BY(mutex_) = Answer::kAlone;
};

// Blocks 0..n-1 are in the store, and others know block i as 1000 + i.
struct Replicated {
    explicit Replicated(RigOptions options = {}, uint32_t blocks = 24)
    {
        options.shared = others.hooks();
        rig = std::make_unique<Rig>(options);
        std::vector<Job> jobs;
        for (uint32_t block = 0; block < blocks; ++block) {
            rig->fill(kHost, block, 100 + block);
            jobs.push_back(rig->write(block, kHost, block));
        }
        rig->submit(jobs);
        EXPECT_TRUE(rig->wait_all(blocks));
        done = blocks;
        rig->disks[0].with_lock([&] { rig->disks[0].log.clear(); });
    }
    Job read(uint32_t block)
    {
        Job job = rig->read(block, kDevice, block);
        job.shared_block = 1000 + block;
        return job;
    }
    void others_have(uint32_t block, uint64_t value)
    {
        rig->fill(kHost, 0, value);
        others.with_lock([&] {
            others.bytes[1000 + block].assign(rig->at(kHost, 0), rig->at(kHost, 0) + kBlock);
        });
    }
    size_t reads()
    {
        return rig->disks[0].with_lock([&] { return rig->disks[0].log.size(); });
    }
    bool holds(uint32_t block) { return rig->holds(kDevice, block, 100 + block); }
    transfer::LinkStats stats() { return rig->engine->link_stats(Link::kNvmeToDevice, kDevice); }

    FakeOthers others;
    std::unique_ptr<Rig> rig;
    uint64_t done = 0;
};

TEST(EngineShared, WhatAnotherReadIsCopiedAndNotRead)
{
    Replicated at;
    at.others.answer(Answer::kCopy);
    at.others_have(3, 103);
    EXPECT_TRUE(at.rig->run(at.read(3)).ok());
    EXPECT_TRUE(at.holds(3));
    EXPECT_EQ(at.reads(), 0u);
    EXPECT_EQ(at.stats().bytes, 0u);
    EXPECT_EQ(at.stats().shared_bytes, kBlock);
}

TEST(EngineShared, WrongBytesAreFoundAndTheOwnDiskIsRead)
{
    Replicated at;
    at.others.answer(Answer::kCopy);
    at.others_have(3, 104);
    EXPECT_TRUE(at.rig->run(at.read(3)).ok());
    EXPECT_TRUE(at.rig->run(at.read(4)).ok());  // they have none of it after all
    EXPECT_TRUE(at.holds(3) && at.holds(4));
    EXPECT_EQ(at.others.with_lock([&] { return at.others.copies; }), 2u);
    EXPECT_EQ(at.reads(), 2u);
    EXPECT_EQ(at.stats().bytes, 2 * kBlock);
    EXPECT_EQ(at.stats().shared_bytes, 0u);
    EXPECT_EQ(at.stats().retries, 0u);
}

TEST(EngineShared, WhatIsReadForOthersIsOfferedBeforeItsOwnerHasIt)
{
    Replicated at;
    at.others.answer(Answer::kRead);
    for (uint32_t block = 0; block < 24; ++block) {
        EXPECT_TRUE(at.rig->run(at.read(block)).ok());
        at.others.with_lock([&] {
            EXPECT_EQ(at.others.offered.size(), block + 1);
            EXPECT_EQ(at.others.offered.back(), 1000 + block);
            const std::vector<uint8_t> &bytes = at.others.bytes[1000 + block];
            EXPECT_EQ(std::memcmp(bytes.data(), at.rig->at(kDevice, block), kBlock), 0);
        });
    }
    EXPECT_EQ(at.reads(), 24u);
    EXPECT_EQ(at.others.withdraws, 0u);
}

TEST(EngineShared, WhatIsReadAloneIsNotOffered)
{
    Replicated at;
    EXPECT_TRUE(at.rig->run(at.read(1)).ok());
    EXPECT_TRUE(at.others.offered.empty());
    EXPECT_EQ(at.others.withdraws, 0u);
}

TEST(EngineShared, AReadThatFailsIsWithdrawn)
{
    Replicated at;
    at.others.answer(Answer::kRead);
    at.rig->disks[0].with_lock([&] {
        at.rig->disks[0].script = [](FakeStorage &, const stw_io &) { return int64_t{-EIO}; };
    });
    EXPECT_EQ(at.rig->run(at.read(1)).code(), STW_ERROR_IO);
    EXPECT_EQ(at.others.with_lock([&] { return at.others.withdraws; }), 1u);
    EXPECT_TRUE(at.others.offered.empty());
}

TEST(EngineShared, AMapThatFailsLetsTheCopyGo)
{
    Replicated at;
    at.others.answer(Answer::kCopy);
    at.others_have(3, 103);
    at.rig->memories[kDevice].status = STW_ERROR_MEMORY;
    Job job = at.read(3);
    job.map_block = 3;
    EXPECT_EQ(at.rig->run(job).code(), STW_ERROR_MEMORY);
    EXPECT_EQ(at.others.with_lock([&] { return at.others.let_gos; }), 1u);
    EXPECT_EQ(at.others.copies, 0u);
}

TEST(EngineShared, ABlockIsMappedOnceWhateverBecomesOfTheCopy)
{
    Replicated at;
    at.others.answer(Answer::kCopy);
    Job job = at.read(3);
    job.map_block = 3;
    EXPECT_TRUE(at.rig->run(job).ok());
    EXPECT_EQ(at.reads(), 1u);
    EXPECT_EQ(at.rig->memories[kDevice].maps, 1u);
}

TEST(EngineShared, OtherBlocksOvertakeWhatWaitsForOthers)
{
    Replicated at;
    at.others.answer(Answer::kLater);
    std::vector<Job> waiting;
    for (uint32_t block = 0; block < 20; ++block) waiting.push_back(at.read(block));
    at.rig->submit(waiting);
    ASSERT_TRUE(at.others.wait_looks(32));
    const Job demand = at.rig->read(21, kDevice, 21, Class::kDemand);
    EXPECT_TRUE(at.rig->run(demand).ok());
    EXPECT_TRUE(at.holds(21));
    EXPECT_EQ(at.reads(), 1u);
    // Of those that wait, no more than some were taken.
    EXPECT_EQ(at.others.with_lock([&] { return at.others.keys.size(); }), 16u);
    at.others.answer(Answer::kRead);
    ASSERT_TRUE(at.rig->wait_all(at.done + 21));
    for (uint32_t block = 0; block < 20; ++block) EXPECT_TRUE(at.holds(block));
    EXPECT_EQ(at.reads(), 21u);
}

TEST(EngineShared, WhatOthersNeverReadIsReadHere)
{
    Replicated at;
    at.others.answer(Answer::kLater);
    at.others.tick_reads = 5000;  // 5 ms a look
    EXPECT_TRUE(at.rig->run(at.read(2)).ok());
    EXPECT_TRUE(at.holds(2));
    EXPECT_GE(at.others.looks, 50u);
    EXPECT_LE(at.others.looks, 52u);
    EXPECT_EQ(at.reads(), 1u);
}

TEST(EngineShared, AnEngineThatClosesWaitsForNobody)
{
    Replicated at;
    at.others.answer(Answer::kLater);
    std::vector<Job> waiting;
    for (uint32_t block = 0; block < 8; ++block) waiting.push_back(at.read(block));
    at.rig->submit(waiting);
    ASSERT_TRUE(at.others.wait_looks(16));
    at.rig->close();
    EXPECT_TRUE(at.rig->wait_all(at.done + 8));
    for (uint32_t block = 0; block < 8; ++block) EXPECT_TRUE(at.holds(block));
}

TEST(EngineShared, WhatIsThisProcesssOwnAsksNobody)
{
    Replicated at;
    at.others.answer(Answer::kCopy);
    EXPECT_TRUE(at.rig->run(at.rig->read(1, kDevice, 1)).ok());
    at.others.answer(Answer::kRead);
    at.rig->fill(kHost, 1, 7);
    Job write = at.rig->write(1, kHost, 1);
    write.shared_block = 1001;
    EXPECT_TRUE(at.rig->run(write).ok());
    EXPECT_EQ(at.others.looks, 0u);
}

TEST(EngineShared, CopiesGoThroughTheRingsToADeviceBehindThem)
{
    Replicated at({.device_cpu_access = false});
    at.others.answer(Answer::kCopy);
    std::vector<Job> jobs;
    for (uint32_t block = 0; block < 8; ++block) {
        if (block != 5) at.others_have(block, 100 + block);
        jobs.push_back(at.read(block));
    }
    at.rig->submit(jobs);
    ASSERT_TRUE(at.rig->wait_all(at.done + 8));
    for (uint32_t block = 0; block < 8; ++block) EXPECT_TRUE(at.holds(block));
    EXPECT_EQ(at.reads(), 1u);
    EXPECT_EQ(at.rig->engine->link_stats(Link::kNvmeToHost, kHost).shared_bytes, 7 * kBlock);
}

TEST(EngineShared, TheKeyIsTheSameInStoresThatHoldTheSameBytes)
{
    Replicated one;
    Replicated two({.paths = 2});
    for (Replicated *at : {&one, &two}) {
        at->others.answer(Answer::kRead);
        EXPECT_TRUE(at->rig->run(at->read(3)).ok());
        EXPECT_TRUE(at->rig->run(at->read(4)).ok());
    }
    EXPECT_EQ(one.others.keys[1003].content, two.others.keys[1003].content);
    EXPECT_NE(one.others.keys[1003].content, one.others.keys[1004].content);
    EXPECT_EQ(one.others.keys[1003].bytes, kBlock);
}

}  // namespace
}  // namespace stepwell::testing
