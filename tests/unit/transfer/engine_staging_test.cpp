// SPDX-License-Identifier: Apache-2.0
// Claims about the two rings: a device that storage cannot reach.
#include "tests/unit/transfer/rig.h"

namespace stepwell::testing {
namespace {

RigOptions staged()
{
    RigOptions options;
    options.device_cpu_access = false;
    return options;
}

TEST(EngineStaging, BytesReachTheDeviceAndComeBack)
{
    Rig rig(staged());
    rig.fill(kDevice, 0, 5);
    ASSERT_TRUE(rig.run(rig.write(1, kDevice, 0)).ok());
    const Status status = rig.run(rig.read(1, kDevice, 7));
    ASSERT_TRUE(status.ok()) << status.sentence();
    EXPECT_TRUE(rig.holds(kDevice, 7, 5));
    EXPECT_EQ(rig.memories[kDevice].copies, 2u);
    EXPECT_EQ(rig.engine->link_stats(Link::kNvmeToHost, kHost).transfers, 1u);
    EXPECT_EQ(rig.engine->link_stats(Link::kHostToDevice, kDevice).transfers, 1u);
    EXPECT_EQ(rig.engine->link_stats(Link::kNvmeToDevice, kDevice).transfers, 0u);
}

TEST(EngineStaging, TwoSlotsEachCarryBothDirectionsAtOnce)
{
    RigOptions options = staged();
    options.blocks = 128;
    Rig rig(options);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 60; ++i) {
        rig.fill(kDevice, i, i);
        jobs.push_back(rig.write(i, kDevice, i));
    }
    rig.submit(jobs);
    ASSERT_TRUE(rig.wait_all(60));
    jobs.clear();
    for (uint32_t i = 0; i < 60; ++i) {
        jobs.push_back(rig.read(i, kDevice, 60 + i));
        jobs.push_back(rig.write(60 + i, kDevice, i));
    }
    rig.submit(jobs);
    ASSERT_TRUE(rig.wait_all(180));
    for (uint32_t i = 0; i < 60; ++i) EXPECT_TRUE(rig.holds(kDevice, 60 + i, i)) << i;
}

TEST(EngineStaging, SeveralBlocksAreUnderWayButNeverMoreThanTheRingHas)
{
    RigOptions options = staged();
    options.ring_blocks = 3;
    Rig rig(options);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 10; ++i) jobs.push_back(rig.write(i, kDevice, i));
    rig.submit(jobs);
    ASSERT_TRUE(rig.wait_all(10));
    FakeStorage &disk = rig.disks[0];
    disk.with_lock([&] {
        disk.by_hand = true;
        disk.in_flight_peak = 0;
    });
    jobs.clear();
    for (uint32_t i = 0; i < 10; ++i) jobs.push_back(rig.read(i, kDevice, 20 + i));
    rig.submit(jobs);
    ASSERT_TRUE(disk.wait_pending(3));
    // A read that needs no slot is not held up by those that do.
    rig.submit(rig.read(0, kHost, 0, Class::kIdle));
    ASSERT_TRUE(disk.wait_pending(4));
    EXPECT_EQ(disk.pending(), 4u);
    disk.complete(4);
    disk.with_lock([&] { disk.by_hand = false; });
    EXPECT_TRUE(rig.wait_all(21));
    EXPECT_LE(disk.with_lock([&] { return disk.in_flight_peak; }), 4u);
}

TEST(EngineStaging, ADemandTakesTheNextFreeSlot)
{
    RigOptions options = staged();
    options.depth = 8;
    Rig rig(options);
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 10; ++i) jobs.push_back(rig.write(i, kDevice, i));
    rig.submit(jobs);
    ASSERT_TRUE(rig.wait_all(10));
    FakeStorage &disk = rig.disks[0];
    std::map<uint64_t, uint32_t> block_at;
    disk.with_lock([&] {
        disk.by_hand = true;
        uint32_t block = 0;
        for (const stw_io &io : disk.log) block_at[io.offset_bytes] = block++;
        disk.log.clear();
    });
    jobs.clear();
    for (uint32_t i = 0; i < 8; ++i) jobs.push_back(rig.read(i, kDevice, 20 + i));
    rig.submit(jobs);
    ASSERT_TRUE(disk.wait_pending(2));
    rig.submit(rig.read(9, kDevice, 40, Class::kDemand));
    disk.complete(1);
    ASSERT_TRUE(disk.wait_logged(3));
    EXPECT_EQ(block_at[disk.with_lock([&] { return disk.log[2].offset_bytes; })], 9u);
    disk.complete(8);
    disk.with_lock([&] { disk.by_hand = false; });
    EXPECT_TRUE(rig.wait_all(19));
}

TEST(EngineStaging, AFailureGivesTheSlotBack)
{
    Rig rig(staged());
    FakeStorage &disk = rig.disks[0];
    ASSERT_TRUE(rig.run(rig.write(0, kDevice, 0)).ok());
    disk.with_lock(
        [&] { disk.script = [](FakeStorage &, const stw_io &) -> int64_t { return -5; }; });
    for (uint32_t i = 0; i < 8; ++i) {
        EXPECT_EQ(rig.run(rig.read(0, kDevice, 1)).code(), STW_ERROR_IO);
        EXPECT_EQ(rig.run(rig.write(1 + i, kDevice, 1)).code(), STW_ERROR_IO);
    }
    disk.with_lock([&] { disk.script = nullptr; });
    rig.memories[kDevice].status = STW_ERROR_DEVICE;
    for (uint32_t i = 0; i < 8; ++i) {
        EXPECT_EQ(rig.run(rig.read(0, kDevice, 1)).code(), STW_ERROR_DEVICE);
        EXPECT_EQ(rig.run(rig.write(1 + i, kDevice, 1)).code(), STW_ERROR_DEVICE);
    }
    rig.memories[kDevice].status = STW_OK;
    EXPECT_TRUE(rig.run(rig.read(0, kDevice, 1)).ok());
    EXPECT_TRUE(rig.run(rig.write(1, kDevice, 1)).ok());
}

TEST(EngineStaging, ADeviceBeyondStorageNeedsTwoRingsOfTwo)
{
    EngineOptions options;
    std::vector<FakeStorage> disks(1);
    store::StoreOptions store;
    store.services = fake_services();
    store.block_bytes = kBlock;
    store.blocks = 4;
    store.paths.push_back({&FakeStorage::ops(), "/disk", disks[0].options(), 0});
    Result<std::unique_ptr<store::Store>> opened = store::Store::open(store);
    ASSERT_TRUE(opened.ok());
    FakeMemory memory;
    options.services = fake_services();
    options.store = opened.take();
    options.memories.push_back({&FakeMemory::ops(), reinterpret_cast<stw_memory *>(&memory),
                                residency::Tier::kDevice, false, "device 0"});
    options.block_bytes = kBlock;
    options.staging = &memory;
    options.staging_read_blocks = 2;
    options.staging_write_blocks = 1;
    options.done = [](void *, Completion *, uint32_t) {};
    Result<std::unique_ptr<Engine>> engine = Engine::open(std::move(options));
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), STW_ERROR_INVALID);
}

}  // namespace
}  // namespace stepwell::testing
