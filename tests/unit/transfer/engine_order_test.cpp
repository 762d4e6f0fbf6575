// SPDX-License-Identifier: Apache-2.0
// Claims about who goes first, how full the device's queue is, and what is counted.
#include "tests/unit/transfer/rig.h"

#include <algorithm>
#include <utility>

namespace stepwell::testing {
namespace {

// Blocks 0..n-1 are in the store, each with value 100 + block; from here on by hand.
struct Filled : Rig {
    Filled(const RigOptions &options, uint32_t n) : Rig(options)
    {
        std::vector<Job> jobs;
        for (uint32_t block = 0; block < n; ++block) {
            fill(kHost, block, 100 + block);
            jobs.push_back(write(block, kHost, block));
        }
        submit(jobs);
        EXPECT_TRUE(wait_all(n));
        disk().with_lock([&] {
            disk().log.clear();
            disk().in_flight_peak = 0;
            disk().by_hand = true;
        });
    }
    FakeStorage &disk() { return disks[0]; }
    std::vector<stw_io> log()
    {
        return disk().with_lock([&] { return disk().log; });
    }
    // Slots were given in order, so the offset tells the block.
    static uint32_t block_of(const stw_io &io)
    {
        return static_cast<uint32_t>((io.offset_bytes - store::kReservedBytes) / kBlock);
    }
    void by_itself()
    {
        disk().complete(UINT32_MAX);
        disk().with_lock([&] { disk().by_hand = false; });
    }
};

TEST(EngineOrder, ADemandReadOvertakesQueuedPrefetchesAndWriteBacks)
{
    Filled rig({.depth = 2}, 20);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 8; ++i) jobs.push_back(rig.read(i, kDevice, i));
    for (uint32_t i = 8; i < 16; ++i) jobs.push_back(rig.write(i, kHost, i));
    rig.submit(jobs);
    ASSERT_TRUE(rig.disk().wait_pending(2));
    rig.submit(rig.read(19, kDevice, 19, Class::kDemand));
    rig.disk().complete(1);
    ASSERT_TRUE(rig.disk().wait_logged(3));
    EXPECT_EQ(Filled::block_of(rig.log()[2]), 19u);
    rig.by_itself();
    EXPECT_TRUE(rig.wait_all(20 + 17));
}

TEST(EngineOrder, EachDirectionHasItsOwnDepthAndRequestSize)
{
    Filled rig({.depth = 16, .reads = {kBlock / 4, 6}, .writes = {kBlock / 2, 3}}, 20);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 8; ++i) jobs.push_back(rig.read(i, kDevice, i, Class::kIdle));
    for (uint32_t i = 8; i < 16; ++i) jobs.push_back(rig.write(i, kHost, i));
    rig.submit(jobs);
    ASSERT_TRUE(rig.disk().wait_pending(9));
    rig.disk().with_lock([&] { EXPECT_EQ(rig.disk().in_flight_peak, 9u); });
    uint32_t reads = 0;
    for (const stw_io &io : rig.log()) {
        reads += io.kind == STW_IO_READ;
        EXPECT_EQ(io.bytes, io.kind == STW_IO_READ ? kBlock / 4 : kBlock / 2);
    }
    EXPECT_EQ(reads, 6u);
    rig.by_itself();
    EXPECT_TRUE(rig.wait_all(20 + 16));
    rig.disk().with_lock([&] { EXPECT_LE(rig.disk().in_flight_peak, 9u); });
}

TEST(EngineOrder, RequestsOfAPathAreNeverLargerThanABlockNorDeeperThanTheDriver)
{
    Filled rig({.depth = 4, .reads = {64 * kBlock, 900}}, 8);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 8; ++i) jobs.push_back(rig.read(i, kDevice, i));
    rig.submit(jobs);
    ASSERT_TRUE(rig.disk().wait_pending(4));
    for (const stw_io &io : rig.log()) EXPECT_EQ(io.bytes, kBlock);
    rig.by_itself();
    EXPECT_TRUE(rig.wait_all(8 + 8));
    rig.disk().with_lock([&] { EXPECT_EQ(rig.disk().in_flight_peak, 4u); });
}

TEST(EngineOrder, ADemandOvertakesThePiecesOfABlockUnderWay)
{
    Filled rig({.depth = 2, .io_bytes = 4096}, 4);
    rig.submit(rig.read(0, kDevice, 0));
    ASSERT_TRUE(rig.disk().wait_pending(2));
    rig.submit(rig.read(3, kDevice, 3, Class::kDemand));
    rig.disk().complete(1);
    ASSERT_TRUE(rig.disk().wait_logged(3));
    EXPECT_EQ(Filled::block_of(rig.log()[2]), 3u);
    rig.by_itself();
    EXPECT_TRUE(rig.wait_all(6));
    EXPECT_TRUE(rig.holds(kDevice, 0, 100));
    EXPECT_TRUE(rig.holds(kDevice, 3, 103));
}

TEST(EngineOrder, PromoteMakesAQueuedJobADemand)
{
    Filled rig({.depth = 1}, 20);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 10; ++i) jobs.push_back(rig.read(i, kDevice, i, Class::kHint));
    rig.submit(jobs);
    ASSERT_TRUE(rig.disk().wait_pending(1));
    rig.engine->promote(jobs[7].transfer.id);
    rig.engine->promote(987654);  // not in flight
    rig.disk().complete(1);
    // The block that was made ready while the queue was full is not in the way either.
    ASSERT_TRUE(rig.disk().wait_logged(2));
    EXPECT_EQ(Filled::block_of(rig.log()[1]), 7u);
    rig.by_itself();
    EXPECT_TRUE(rig.wait_all(30));
}

TEST(EngineOrder, ClassesGoInOrderAndEqualsFirstComeFirstServed)
{
    Filled rig({.depth = 1}, 20);
    rig.submit(rig.read(19, kDevice, 19, Class::kDemand));
    ASSERT_TRUE(rig.disk().wait_pending(1));
    rig.submit({rig.read(0, kDevice, 0, Class::kIdle), rig.read(1, kDevice, 1, Class::kHint),
                rig.read(2, kDevice, 2, Class::kPlanned), rig.read(3, kDevice, 3, Class::kDemand),
                rig.read(4, kDevice, 4, Class::kPlanned), rig.read(5, kDevice, 5, Class::kDemand)});
    rig.by_itself();
    ASSERT_TRUE(rig.wait_all(27));
    std::vector<uint32_t> blocks;
    for (const stw_io &io : rig.log()) blocks.push_back(Filled::block_of(io));
    EXPECT_EQ(blocks, (std::vector<uint32_t>{19, 3, 5, 2, 4, 1, 0}));
}

TEST(EngineOrder, TheDevicesQueueStaysFullAcrossBlocks)
{
    Filled rig({.depth = 6, .io_bytes = kBlock / 4}, 20);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 20; ++i) jobs.push_back(rig.read(i, kDevice, i));
    rig.submit(jobs);
    for (size_t done = 0; done + 6 <= 80; ++done) {
        ASSERT_TRUE(rig.disk().wait_pending(6)) << "after " << done << " completions";
        rig.disk().complete(1);
    }
    rig.by_itself();
    ASSERT_TRUE(rig.wait_all(40));
    EXPECT_EQ(rig.disk().with_lock([&] { return rig.disk().in_flight_peak; }), 6u);
}

TEST(EngineOrder, BothDirectionsShareTheQueue)
{
    Filled rig({.depth = 8}, 40);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 20; ++i) jobs.push_back(rig.read(i, kDevice, i, Class::kPlanned));
    for (uint32_t i = 20; i < 40; ++i) jobs.push_back(rig.write(i, kHost, i, Class::kIdle));
    rig.submit(jobs);
    ASSERT_TRUE(rig.disk().wait_pending(8));
    uint32_t writes = 0;
    for (const stw_io &io : rig.log()) writes += io.kind == STW_IO_WRITE ? 1 : 0;
    EXPECT_EQ(writes, 2u) << "the less urgent direction has a quarter";
    rig.by_itself();
    EXPECT_TRUE(rig.wait_all(80));
}

TEST(EngineOrder, PathsWorkSideBySide)
{
    Rig rig({.paths = 3, .depth = 4});
    for (FakeStorage &disk : rig.disks) disk.with_lock([&] { disk.by_hand = true; });
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 12; ++i) jobs.push_back(rig.write(i, kHost, i));
    rig.submit(jobs);
    for (FakeStorage &disk : rig.disks) EXPECT_TRUE(disk.wait_pending(4));
    for (FakeStorage &disk : rig.disks) {
        disk.complete(4);
        disk.with_lock([&] { disk.by_hand = false; });
    }
    EXPECT_TRUE(rig.wait_all(12));
}

TEST(EngineOrder, AMapComesBeforeTheBytesAndNothingElseIsMoved)
{
    Filled rig({}, 2);
    rig.by_itself();
    Job read = rig.read(0, kDevice, 4);
    read.map_block = 4;
    ASSERT_TRUE(rig.run(read).ok());
    EXPECT_EQ(rig.memories[kDevice].maps, 1u);
    EXPECT_EQ(rig.memories[kDevice].copies, 0u);
    Job map = rig.job(1, kHost, 0, kDevice, 5);
    map.transfer.kind = TransferKind::kMap;
    map.map_block = 5;
    ASSERT_TRUE(rig.run(map).ok());
    EXPECT_EQ(rig.memories[kDevice].maps, 2u);
    EXPECT_EQ(*rig.at(kDevice, 5), 0xEE);
}

TEST(EngineOrder, CopiesZerosAndRelocationsDoWhatTheySay)
{
    Rig rig({});
    rig.fill(kHost, 3, 7);
    ASSERT_TRUE(rig.run(rig.job(1, kHost, 3, kDevice, 2)).ok());
    EXPECT_TRUE(rig.holds(kDevice, 2, 7));
    Job relocate = rig.job(1, kDevice, 2, kDevice, 9);
    relocate.transfer.kind = TransferKind::kRelocate;
    ASSERT_TRUE(rig.run(relocate).ok());
    EXPECT_TRUE(rig.holds(kDevice, 9, 7));
    Job zero = rig.job(1, kHost, 0, kDevice, 2);
    zero.transfer.kind = TransferKind::kZero;
    zero.from_memory = kNvme;
    zero.transfer.bytes = 100;
    ASSERT_TRUE(rig.run(zero).ok());
    EXPECT_EQ(rig.at(kDevice, 2)[99], 0);
    EXPECT_TRUE(std::memcmp(rig.at(kDevice, 2) + 100, rig.at(kHost, 3) + 100, 100) == 0);
}

TEST(EngineOrder, LinksCountBytesHopsAndTime)
{
    Filled rig({}, 4);
    rig.by_itself();
    ASSERT_TRUE(rig.run(rig.read(0, kDevice, 0)).ok());
    ASSERT_TRUE(rig.run(rig.job(0, kDevice, 0, kHost, 9)).ok());
    const auto stats = [&](Link link, uint32_t memory) {
        return rig.engine->link_stats(link, memory);
    };
    EXPECT_EQ(stats(Link::kHostToNvme, kHost).bytes, 4 * kBlock);
    EXPECT_EQ(stats(Link::kHostToNvme, kHost).transfers, 4u);
    EXPECT_EQ(stats(Link::kNvmeToDevice, kDevice).bytes, kBlock);
    EXPECT_GT(stats(Link::kNvmeToDevice, kDevice).busy_ns, 0u);
    EXPECT_EQ(stats(Link::kDeviceToHost, kDevice).transfers, 1u);
    EXPECT_EQ(stats(Link::kHostToDevice, kDevice).transfers, 0u);
}

TEST(EngineOrder, EveryHopIsASpan)
{
    struct Spans {
        Mutex mutex;
        std::vector<transfer::Span> list STW_GUARDED_BY(mutex);
    } spans;
    Rig rig({.device_cpu_access = false,
             .span =
                 [](void *user, const transfer::Span &span) {
                     auto &to = *static_cast<Spans *>(user);
                     MutexLock lock(to.mutex);
                     to.list.push_back(span);
                 },
             .span_user = &spans});
    ASSERT_TRUE(rig.run(rig.write(3, kDevice, 0)).ok());
    MutexLock lock(spans.mutex);
    ASSERT_EQ(spans.list.size(), 2u);
    EXPECT_EQ(spans.list[0].link, Link::kDeviceToHost);
    EXPECT_EQ(spans.list[1].link, Link::kHostToNvme);
    for (const transfer::Span &span : spans.list) {
        EXPECT_EQ(span.block, 3u);
        EXPECT_EQ(span.bytes, kBlock);
        EXPECT_LT(span.start_ns, span.end_ns);
    }
}

// Work on streams, in a memory that storage reaches: nothing of a block is touched before its turn.
struct Work : NoWork {
    Mutex mutex;
    Condition changed;
    bool is_over STW_GUARDED_BY(mutex) = false;
    std::vector<std::pair<const void *, bool>> asked STW_GUARDED_BY(mutex);  // and whether written
    const void *lost = nullptr;

    Status await(uint32_t memory, const void *pointer, uint64_t bytes, bool writes) override
    {
        EXPECT_EQ(memory, kDevice);
        EXPECT_EQ(bytes, kBlock);
        MutexLock lock(mutex);
        asked.emplace_back(pointer, writes);
        changed.notify_all();
        while (!is_over) changed.wait(mutex);
        if (pointer == lost) return Status::error(STW_ERROR_DEVICE, "the device is lost");
        return {};
    }
    void wait_asked()
    {
        MutexLock lock(mutex);
        while (asked.empty()) changed.wait(mutex);
    }
    void end()
    {
        MutexLock lock(mutex);
        is_over = true;
        changed.notify_all();
    }
};

TEST(EngineOrder, StorageBeginsWhenWorkOnStreamsIsOver)
{
    Work work;
    Filled rig({.device_cpu_access = false, .device_direct = true, .order = &work}, 8);
    rig.by_itself();
    rig.fill(kDevice, 5, 99);
    const uint64_t first = rig.submit(rig.read(0, kDevice, 0));
    work.wait_asked();
    const uint64_t idle = rig.submit(rig.read(1, kDevice, 1, Class::kIdle));
    const uint64_t urgent = rig.submit(rig.read(2, kDevice, 2, Class::kDemand));
    const uint64_t written = rig.submit(rig.write(40, kDevice, 5));
    // Who needs no device does not wait for it.
    EXPECT_TRUE(rig.run(rig.read(3, kHost, 9)).ok());
    EXPECT_EQ(rig.at(kDevice, 0)[0], 0xEE);
    EXPECT_EQ(rig.engine->jobs_in_flight(), 4u);
    EXPECT_NE(rig.engine->describe_in_flight(8).find("behind work on streams"), std::string::npos);
    work.end();
    for (const uint64_t id : {first, idle, urgent, written}) EXPECT_TRUE(rig.result(id).ok());
    EXPECT_EQ(std::memcmp(rig.at(kDevice, 2), rig.at(kHost, 2), kBlock), 0);
    ASSERT_TRUE(rig.run(rig.read(40, kHost, 9)).ok());
    EXPECT_TRUE(rig.holds(kHost, 9, 99));
    EXPECT_EQ(rig.engine->link_stats(Link::kNvmeToDevice, kDevice).transfers, 3u);
    EXPECT_EQ(rig.engine->link_stats(Link::kDeviceToNvme, kDevice).transfers, 1u);
    MutexLock lock(work.mutex);
    ASSERT_EQ(work.asked.size(), 4u);
    EXPECT_EQ(work.asked[1].first, rig.at(kDevice, 2));
    EXPECT_TRUE(work.asked[1].second);
    const auto out = std::find(work.asked.begin(), work.asked.end(),
                               std::pair<const void *, bool>(rig.at(kDevice, 5), false));
    EXPECT_NE(out, work.asked.end());
}

TEST(EngineOrder, WhatCannotBeOrderedIsAFailedJobAndNoRequest)
{
    Work work;
    Filled rig({.device_cpu_access = false, .device_direct = true, .order = &work}, 2);
    rig.by_itself();
    work.lost = rig.at(kDevice, 0);
    work.end();
    EXPECT_EQ(rig.run(rig.read(0, kDevice, 0)).code(), STW_ERROR_DEVICE);
    EXPECT_EQ(rig.at(kDevice, 0)[0], 0xEE);
    EXPECT_TRUE(rig.run(rig.read(0, kDevice, 1)).ok());
}

TEST(EngineOrder, AWriteThatFindsNoSlotIsAFailedJob)
{
    RigOptions options;
    options.blocks = 4;
    NoWork nothing;
    options.order = &nothing;
    Filled rig(options, 4);
    rig.by_itself();
    rig.fill(kHost, 1, 99);
    EXPECT_EQ(rig.run(rig.write(4, kHost, 1)).code(), STW_ERROR_BUDGET);
    EXPECT_TRUE(rig.run(rig.read(0, kHost, 2)).ok());
}

// What waits for its turn has not begun; what is at its turn ends.
TEST(EngineOrder, ACloseEndsWhatWaitsForWorkOnStreams)
{
    Work work;
    Filled rig({.device_cpu_access = false, .device_direct = true, .order = &work}, 4);
    rig.by_itself();
    const uint64_t first = rig.submit(rig.read(0, kDevice, 0));
    work.wait_asked();
    const uint64_t second = rig.submit(rig.read(1, kDevice, 1));
    EXPECT_EQ(rig.engine->close(1'000'000).code(), STW_ERROR_TIMEOUT);
    EXPECT_EQ(rig.result(second).code(), STW_ERROR_CLOSED);
    work.end();
    EXPECT_TRUE(rig.result(first).ok());
    rig.close();
}

TEST(EngineOrder, MoreThanTheMaximumOfJobsIsRefusedWhole)
{
    Filled rig({.depth = 1, .jobs_max = 20}, 20);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 19; ++i) jobs.push_back(rig.read(i, kDevice, i));
    rig.submit(jobs);
    const std::vector<Job> more = {rig.read(19, kDevice, 19), rig.read(19, kDevice, 20)};
    const Status status = rig.engine->submit(more.data(), 2);
    EXPECT_EQ(status.code(), STW_ERROR_LIMIT);
    EXPECT_EQ(rig.engine->jobs_in_flight(), 19u);
    rig.by_itself();
    EXPECT_TRUE(rig.wait_all(39));
}

}  // namespace
}  // namespace stepwell::testing
