// SPDX-License-Identifier: Apache-2.0
// Claims about disks that the engine shares with others: what it asks before it sends a request.
#include "tests/unit/transfer/rig.h"

namespace stepwell::testing {
namespace {

// Lets through what fits in a number of bytes, and remembers what was asked.
class FakeShare {
public:
    void options(RigOptions &rig)
    {
        rig.share_user = this;
        rig.may_send = [](void *self, uint32_t path, uint64_t bytes) {
            return static_cast<FakeShare *>(self)->asked(path, bytes);
        };
        rig.rests = [](void *self, uint32_t path) { static_cast<FakeShare *>(self)->rest(path); };
    }
    void allow(uint64_t bytes)
    {
        MutexLock lock(mutex_);
        left_ = bytes;
        refusals_ = 0;
        rests_ = 0;
        granted_[0] = granted_[1] = 0;
    }
    // Of the paths since allow().
    uint64_t granted(uint32_t path)
    {
        MutexLock lock(mutex_);
        return granted_[path];
    }
    uint64_t rested_after()
    {
        MutexLock lock(mutex_);
        return rested_after_;
    }
    bool wait_refusals(uint64_t n)
    {
        return wait([&]() STW_NO_THREAD_ANALYSIS { return refusals_ >= n; });
    }
    bool wait_rest()
    {
        return wait([&]() STW_NO_THREAD_ANALYSIS { return rests_ > 0; });
    }

private:
    bool asked(uint32_t path, uint64_t bytes)
    {
        MutexLock lock(mutex_);
        changed_.notify_all();
        if (bytes > left_) {
            ++refusals_;
            return false;
        }
        left_ -= bytes;
        granted_[path] += bytes;
        return true;
    }
    void rest(uint32_t path)
    {
        MutexLock lock(mutex_);
        // Only the first time: the thread says it at each turn.
        if (rests_ == 0) rested_after_ = granted_[path];
        if (granted_[path] > 0) ++rests_;
        changed_.notify_all();
    }
    template <class Ready> bool wait(Ready ready)
    {
        const uint64_t until_ns = wait_clock_ns() + kPatienceNs;
        MutexLock lock(mutex_);
        while (!ready()) {
            if (!changed_.wait_until(mutex_, until_ns)) return ready();
        }
        return true;
    }

    Mutex mutex_;
    Condition changed_;
    uint64_t left_ STW_GUARDED_BY(mutex_) = UINT64_MAX;
    uint64_t refusals_ STW_GUARDED_BY(mutex_) = 0;
    uint64_t rests_ STW_GUARDED_BY(mutex_) = 0;
    uint64_t granted_[2] STW_GUARDED_BY(mutex_) = {0, 0};
    uint64_t rested_after_ STW_GUARDED_BY(mutex_) = 0;
};

// Blocks 0..n-1 are in the store.
struct FilledDisks {
    explicit FilledDisks(RigOptions options, uint32_t n = 8)
    {
        share.options(options);
        rig = std::make_unique<Rig>(options);
        std::vector<Job> jobs;
        for (uint32_t block = 0; block < n; ++block) {
            rig->fill(kHost, block, 100 + block);
            jobs.push_back(rig->write(block, kHost, block));
        }
        rig->submit(jobs);
        EXPECT_TRUE(rig->wait_all(n));
        EXPECT_TRUE(share.wait_rest());
        for (FakeStorage &disk : rig->disks) disk.with_lock([&] { disk.log.clear(); });
    }
    void read_all(uint32_t n = 8)
    {
        std::vector<Job> jobs;
        for (uint32_t i = 0; i < n; ++i) jobs.push_back(rig->read(i, kDevice, i));
        rig->submit(jobs);
    }
    size_t logged()
    {
        return disk().with_lock([&] { return disk().log.size(); });
    }
    FakeStorage &disk() { return rig->disks[0]; }

    FakeShare share;
    std::unique_ptr<Rig> rig;
};

TEST(EngineShare, NoRequestGoesBeforeItMay)
{
    FilledDisks at({.io_bytes = kBlock / 4});
    at.share.allow(kBlock / 4 * 5);
    at.read_all();
    // It goes on asking, and sends nothing meanwhile.
    ASSERT_TRUE(at.share.wait_refusals(20));
    EXPECT_EQ(at.logged(), 5u);
    EXPECT_EQ(at.share.granted(0), kBlock / 4 * 5);
    at.share.allow(UINT64_MAX);
    ASSERT_TRUE(at.rig->wait_all(8 + 8));
    EXPECT_EQ(at.logged(), 32u);
    for (uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(at.rig->holds(kDevice, i, 100 + i));
}

TEST(EngineShare, EachByteIsAskedForOnceWhateverIsSentAgain)
{
    FilledDisks at({.depth = 4, .io_bytes = kBlock / 4});
    at.disk().with_lock([&] {
        at.disk().script = [turn = 0](FakeStorage &disk, const stw_io &io) mutable {
            ++turn;
            if (turn % 5 == 0) return int64_t{-EAGAIN};
            if (turn % 7 != 0 || io.bytes <= 512) return disk.do_io(io);
            stw_io part = io;
            part.bytes = 512;
            return disk.do_io(part);
        };
    });
    at.share.allow(UINT64_MAX);
    at.read_all();
    ASSERT_TRUE(at.rig->wait_all(8 + 8));
    EXPECT_GT(at.logged(), 32u);
    EXPECT_EQ(at.share.granted(0), 8 * kBlock);
}

TEST(EngineShare, APathRestsOnlyWhenNothingIsLeftToSend)
{
    // One read at a time: the path's own queue is full at each turn, and still more is to come.
    FilledDisks at({.depth = 16, .reads = {kBlock, 1}});
    at.share.allow(UINT64_MAX);
    at.read_all();
    ASSERT_TRUE(at.rig->wait_all(8 + 8));
    ASSERT_TRUE(at.share.wait_rest());
    EXPECT_EQ(at.share.rested_after(), 8 * kBlock);
}

TEST(EngineShare, EachPathAsksForItself)
{
    FilledDisks at({.paths = 2});
    at.share.allow(UINT64_MAX);
    at.read_all();
    ASSERT_TRUE(at.rig->wait_all(8 + 8));
    EXPECT_EQ(at.share.granted(0) + at.share.granted(1), 8 * kBlock);
    EXPECT_EQ(at.share.granted(0), 4 * kBlock);
}

TEST(EngineShare, AnEngineThatClosesAsksNobody)
{
    FilledDisks at({});
    at.share.allow(0);
    at.read_all();
    ASSERT_TRUE(at.share.wait_refusals(1));
    at.rig->close();
    EXPECT_EQ(at.share.granted(0), 0u);
    EXPECT_GT(at.logged(), 0u);  // what was begun ended
    EXPECT_TRUE(at.rig->wait_all(8 + 8));
}

}  // namespace
}  // namespace stepwell::testing
