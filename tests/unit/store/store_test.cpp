// SPDX-License-Identifier: Apache-2.0
// Claims about slots, striping, sums and opening, over storage in memory.
#include "lib/store/store.h"

#include "lib/store/checksum.h"
#include "tests/unit/transfer/fake_storage.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>

namespace stepwell::store {
namespace {

using stepwell::testing::fake_services;
using stepwell::testing::FakeStorage;

constexpr uint64_t kStoreBlock = 65536;

StoreOptions options_for(std::vector<FakeStorage> &disks, uint64_t blocks)
{
    StoreOptions options;
    options.services = fake_services();
    options.block_bytes = kStoreBlock;
    options.blocks = blocks;
    options.uuid[0] = 42;
    for (FakeStorage &disk : disks) {
        options.paths.push_back({&FakeStorage::ops(),
                                 "/disk" + std::to_string(options.paths.size()), disk.options(),
                                 0});
    }
    return options;
}

std::unique_ptr<Store> open_store(std::vector<FakeStorage> &disks, uint64_t blocks)
{
    Result<std::unique_ptr<Store>> store = Store::open(options_for(disks, blocks));
    EXPECT_TRUE(store.ok()) << store.status().sentence();
    return store.ok() ? store.take() : nullptr;
}

Placement write(Store &store, BlockId block)
{
    Result<Placement> place = store.begin_write(block, kStoreBlock);
    EXPECT_TRUE(place.ok()) << place.status().sentence();
    if (!place.ok()) return {};
    store.end_write(place.value(), true);
    return place.value();
}

void feed(Store &store, uint32_t path, uint64_t bytes_per_s)
{
    store.path_begin(path, 0);
    store.path_end(path, bytes_per_s, 1'000'000'000);
}

TEST(Store, BlocksGoWhereBandwidthIsExpected)
{
    std::vector<FakeStorage> disks(2);
    auto store = open_store(disks, 80);
    ASSERT_NE(store, nullptr);
    store->expect_bandwidth(0, 300 << 20);
    store->expect_bandwidth(1, 100 << 20);
    uint32_t first = 0;
    for (BlockId block = 0; block < 40; ++block) first += write(*store, block).path == 0;
    EXPECT_EQ(first, 30u);
}

TEST(Store, CapacityIsBlocksPlusASuperblockPerPath)
{
    EXPECT_EQ(Store::path_bytes(10, kStoreBlock), kReservedBytes + 10 * kStoreBlock);
    EXPECT_EQ(Store::blocks_in(2 * kReservedBytes + 5 * kStoreBlock + 1, kStoreBlock, 2), 5u);
    EXPECT_EQ(Store::blocks_in(2 * kReservedBytes, kStoreBlock, 2), 0u);
    EXPECT_EQ(Store::blocks_in(1, kStoreBlock, 2), 0u);
    std::vector<FakeStorage> disks(3);
    auto store = open_store(disks, 10);
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->reserved_bytes(), 3 * kReservedBytes + 10 * kStoreBlock);
    EXPECT_EQ(disks[0].medium.size(), kReservedBytes + 4 * kStoreBlock);
    EXPECT_EQ(disks[2].medium.size(), kReservedBytes + 3 * kStoreBlock);
}

TEST(Store, EveryPathCarriesItsSuperblock)
{
    std::vector<FakeStorage> disks(2);
    auto store = open_store(disks, 9);
    ASSERT_NE(store, nullptr);
    for (uint32_t i = 0; i < 2; ++i) {
        Result<Superblock> found = decode(disks[i].medium.data(), disks[i].medium.size(), "/disk");
        ASSERT_TRUE(found.ok()) << found.status().sentence();
        EXPECT_EQ(found.value().uuid[0], 42);
        EXPECT_EQ(found.value().path_index, i);
        EXPECT_EQ(found.value().path_count, 2u);
        EXPECT_EQ(found.value().slots, i == 0 ? 5u : 4u);
        EXPECT_EQ(found.value().total_slots, 9u);
    }
}

TEST(Store, OpenPassesOnTheDriversSentenceAndNumbers)
{
    std::vector<FakeStorage> disks(2);
    disks[1].open_status = STW_ERROR_NO_SPACE;
    Result<std::unique_ptr<Store>> store = Store::open(options_for(disks, 8));
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), STW_ERROR_NO_SPACE);
    EXPECT_STREQ(store.status().sentence(), "/disk1 is full: 1310720 bytes.");
    EXPECT_EQ(store.status().detail()->needed_bytes, kReservedBytes + 4 * kStoreBlock);
    EXPECT_TRUE(disks[0].wait_closed()) << "what was open stays open";
}

TEST(Store, OpenFailsWhenTheSuperblockDoesNotComeBack)
{
    for (const int fault : {0, 1, 2}) {
        std::vector<FakeStorage> disks(1);
        disks[0].script = [fault](FakeStorage &disk, const stw_io &io) -> int64_t {
            if (fault == 0 && io.kind == STW_IO_WRITE) return static_cast<int64_t>(io.bytes);
            if (fault == 1 && io.kind == STW_IO_READ) return -EIO;
            if (fault == 2) return 0;
            return disk.do_io(io);
        };
        Result<std::unique_ptr<Store>> store = Store::open(options_for(disks, 8));
        ASSERT_FALSE(store.ok());
        EXPECT_EQ(store.status().code(), fault == 0 ? STW_ERROR_FORMAT : STW_ERROR_IO);
        EXPECT_NE(std::strstr(store.status().sentence(), "/disk0"), nullptr)
            << store.status().sentence();
    }
}

TEST(Store, TwoPathsOnOneMediumAreFound)
{
    std::vector<FakeStorage> disks(1);
    StoreOptions options = options_for(disks, 8);
    options.paths.push_back(options.paths[0]);
    Result<std::unique_ptr<Store>> store = Store::open(options);
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), STW_ERROR_FORMAT);
    EXPECT_NE(std::strstr(store.status().sentence(), "share one file"), nullptr);
}

TEST(Store, TooFewBlocksForThePathsIsRefusedWithTheArithmetic)
{
    std::vector<FakeStorage> disks(3);
    Result<std::unique_ptr<Store>> store = Store::open(options_for(disks, 2));
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), STW_ERROR_BUDGET);
    EXPECT_NE(std::strstr(store.status().sentence(), "2 blocks"), nullptr)
        << store.status().sentence();
}

TEST(Store, SlotsAreDisjointAndAFullStoreSaysSo)
{
    std::vector<FakeStorage> disks(2);
    auto store = open_store(disks, 7);
    ASSERT_NE(store, nullptr);
    std::map<std::pair<uint32_t, uint64_t>, BlockId> seen;
    for (BlockId block = 0; block < 7; ++block) {
        const Placement place = write(*store, block);
        EXPECT_TRUE(seen.emplace(std::pair{place.path, place.offset}, block).second);
        EXPECT_LE(place.offset + kStoreBlock, disks[place.path].medium.size());
    }
    EXPECT_EQ(store->used_slots(), 7u);
    Result<Placement> more = store->begin_write(7, kStoreBlock);
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(more.status().code(), STW_ERROR_BUDGET);
}

TEST(Store, ForgetGivesTheSlotToTheNextBlock)
{
    std::vector<FakeStorage> disks(1);
    auto store = open_store(disks, 1);
    ASSERT_NE(store, nullptr);
    const Placement first = write(*store, 5);
    store->forget(5);
    EXPECT_FALSE(store->holds(5));
    const Placement second = write(*store, 9);
    EXPECT_EQ(second.offset, first.offset);
    EXPECT_EQ(second.generation, first.generation + 1);
    EXPECT_EQ(store->begin_read(5).status().code(), STW_ERROR_INTERNAL);
}

TEST(Store, ASlotInUseIsNotReusedBeforeItsUserEnds)
{
    std::vector<FakeStorage> disks(1);
    auto store = open_store(disks, 2);
    ASSERT_NE(store, nullptr);
    write(*store, 1);
    Result<Placement> reading = store->begin_read(1);
    ASSERT_TRUE(reading.ok());
    store->forget(1);
    const Placement other = write(*store, 1);
    EXPECT_NE(other.offset, reading.value().offset);
    EXPECT_FALSE(store->begin_write(2, kStoreBlock).ok());
    store->end_read(reading.value());
    EXPECT_EQ(write(*store, 2).offset, reading.value().offset);

    Result<Placement> writing = store->begin_write(1, kStoreBlock);
    ASSERT_TRUE(writing.ok());
    store->forget(1);
    EXPECT_FALSE(store->begin_write(3, kStoreBlock).ok());
    store->end_write(writing.value(), true);
    EXPECT_FALSE(store->holds(1));
    EXPECT_EQ(write(*store, 3).offset, writing.value().offset);
}

TEST(Store, ABlockWhoseWriteFailedCannotBeRead)
{
    std::vector<FakeStorage> disks(1);
    auto store = open_store(disks, 2);
    ASSERT_NE(store, nullptr);
    write(*store, 1);
    Result<Placement> again = store->begin_write(1, kStoreBlock);
    ASSERT_TRUE(again.ok());
    EXPECT_FALSE(store->begin_read(1).ok()) << "readable while it is written";
    EXPECT_FALSE(store->begin_write(1, kStoreBlock).ok()) << "written twice at once";
    store->end_write(again.value(), false);
    EXPECT_FALSE(store->begin_read(1).ok());
    write(*store, 1);
    EXPECT_TRUE(store->holds(1));
}

TEST(Store, StripesEvenlyBeforeAnythingIsMeasured)
{
    std::vector<FakeStorage> disks(3);
    auto store = open_store(disks, 30);
    ASSERT_NE(store, nullptr);
    for (BlockId block = 0; block < 15; ++block) write(*store, block);
    for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(store->path_stats(i).used_slots, 5u);
}

TEST(Store, StripesInProportionToMeasuredBandwidth)
{
    std::vector<FakeStorage> disks(3);
    auto store = open_store(disks, 3000);
    ASSERT_NE(store, nullptr);
    feed(*store, 0, 1'000'000'000);
    feed(*store, 1, 2'000'000'000);
    feed(*store, 2, 5'000'000'000);
    for (BlockId block = 0; block < 800; ++block) {
        write(*store, block);
        if (block % 8 != 7) continue;  // in every stretch, not only in the sum
        EXPECT_NEAR(static_cast<double>(store->path_stats(0).used_slots), (block + 1) / 8.0, 1);
        EXPECT_NEAR(static_cast<double>(store->path_stats(2).used_slots), (block + 1) * 5 / 8.0, 1);
    }
}

TEST(Store, AFullPathIsPassedOverAndAPathWithoutFigureCountsAsTheMean)
{
    std::vector<FakeStorage> disks(2);
    StoreOptions options = options_for(disks, 0);
    options.paths[0].blocks = 2;
    options.paths[1].blocks = 100;
    Result<std::unique_ptr<Store>> opened = Store::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status().sentence();
    auto store = opened.take();
    feed(*store, 0, 3'000'000'000);
    for (BlockId block = 0; block < 4; ++block) write(*store, block);
    EXPECT_EQ(store->path_stats(0).used_slots, 2u);
    EXPECT_EQ(store->path_stats(1).used_slots, 2u);
    for (BlockId block = 4; block < 102; ++block) write(*store, block);
    EXPECT_EQ(store->used_slots(), 102u);
}

TEST(Store, TheSameCallsGiveTheSameSlots)
{
    std::vector<uint64_t> runs[2];
    for (auto &run : runs) {
        std::vector<FakeStorage> disks(3);
        auto store = open_store(disks, 300);
        ASSERT_NE(store, nullptr);
        for (BlockId block = 0; block < 200; ++block) {
            if (block % 50 == 10) feed(*store, block % 3, 100'000'000 * (block + 1));
            const Placement place = write(*store, block);
            run.push_back(place.path * 1'000'000ull + place.slot);
            if (block % 7 == 3) store->forget(block / 2);
        }
    }
    EXPECT_EQ(runs[0], runs[1]);
}

TEST(Store, TheSumIsBoundToStoreBlockSlotGenerationAndLength)
{
    std::vector<FakeStorage> disks(2);
    auto store = open_store(disks, 8);
    std::vector<FakeStorage> others(2);
    StoreOptions options = options_for(others, 8);
    options.uuid[0] = 43;
    Result<std::unique_ptr<Store>> other = Store::open(options);
    ASSERT_TRUE(store != nullptr && other.ok());
    std::vector<uint8_t> bytes(kStoreBlock, 7);
    Placement place = write(*store, 3);
    store->seal(place, bytes.data());
    EXPECT_EQ(store->sum(place, bytes.data()), place.sum);
    EXPECT_NE(other.value()->sum(place, bytes.data()), place.sum);
    const auto differs = [&](auto change) {
        Placement changed = place;
        change(changed);
        return store->sum(changed, bytes.data()) != place.sum;
    };
    EXPECT_TRUE(differs([](Placement &p) { ++p.sealed_as; }));
    EXPECT_TRUE(differs([](Placement &p) { ++p.slot; }));
    EXPECT_TRUE(differs([](Placement &p) { p.path ^= 1; }));
    EXPECT_TRUE(differs([](Placement &p) { ++p.generation; }));
    EXPECT_TRUE(differs([](Placement &p) { --p.bytes; }));
    bytes[kStoreBlock - 1] = 8;
    EXPECT_NE(store->sum(place, bytes.data()), place.sum);
}

TEST(Store, VectorsChangeNoSum)
{
    std::vector<uint8_t> bytes(5000);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37);
    for (uint64_t n = 0; n < bytes.size(); n = n * 5 / 4 + 1) {
        for (const uint64_t seed : {UINT64_C(0), UINT64_C(0x123456789abcdef0)}) {
            const uint64_t sum = checksum_portable(bytes.data(), n, seed);
            EXPECT_EQ(checksum(bytes.data(), n, seed), sum) << n << " bytes";
        }
    }
}

TEST(Store, TheIndexTakesAtMostFortyBytesPerBlock)
{
    std::vector<FakeStorage> disks(2);
    auto store = open_store(disks, 1000);
    ASSERT_NE(store, nullptr);
    EXPECT_LE(store->metadata_bytes(), 1000 * 40 + 2 * 4096u);
    EXPECT_GE(store->metadata_bytes(), 1000 * 24u);
}

}  // namespace
}  // namespace stepwell::store
