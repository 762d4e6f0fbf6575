// SPDX-License-Identifier: Apache-2.0
// Claims about slots that sets keep: what is not written over, when a slot is free again, and how
// the blocks of another process are found in them. Over storage in memory, and a disk with names.
#include "lib/store/store.h"

#include "tests/generations/disk.h"
#include "tests/unit/transfer/fake_storage.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

namespace stepwell::store {
namespace {

using generations::Disk;
using stepwell::testing::fake_services;
using stepwell::testing::FakeStorage;

constexpr uint64_t kKeptBlock = 4096;
using Bytes = std::vector<uint8_t>;
using Slot = std::pair<uint32_t, uint32_t>;  // path and number

StoreOptions options_of(uint64_t blocks)
{
    StoreOptions options;
    options.services = fake_services();
    options.name = "store";
    options.block_bytes = kKeptBlock;
    options.blocks = blocks;
    return options;
}

std::unique_ptr<Store> take(Result<std::unique_ptr<Store>> store)
{
    EXPECT_TRUE(store.ok()) << store.status().sentence();
    return store.ok() ? store.take() : nullptr;
}

// Scratch: keeping is the same there, as nothing of it needs a name.
std::unique_ptr<Store> open_scratch(FakeStorage &storage, uint64_t blocks)
{
    StoreOptions options = options_of(blocks);
    options.paths.push_back({&FakeStorage::ops(), "/disk0", storage.options(), 0, nullptr, 0});
    return take(Store::open(options));
}

std::unique_ptr<Store> open_named(std::vector<Disk> &disks, uint64_t blocks, Stay stay)
{
    StoreOptions options = options_of(blocks);
    options.stay = stay;
    for (Disk &disk : disks) {
        const std::string name = "/disk" + std::to_string(options.paths.size());
        options.paths.push_back({&Disk::ops(), name, disk.options(), 0, nullptr, 0});
    }
    return take(Store::open(options));
}

int64_t move_kept(Store &store, const Placement &place, void *data, uint32_t kind)
{
    stw_io io{1, data, place.offset, kKeptBlock, kind, 0};
    uint32_t accepted = 0;
    stw_io_done done{};
    EXPECT_EQ(store.ops(place.path).submit(store.storage(place.path), &io, 1, &accepted), STW_OK);
    EXPECT_EQ(store.ops(place.path).poll(store.storage(place.path), &done, 1, 0), 1u);
    return done.result;
}

// All of the block is `value`.
Placement write(Store &store, BlockId block, uint8_t value)
{
    Result<Placement> place = store.begin_write(block, kKeptBlock);
    EXPECT_TRUE(place.ok()) << place.status().sentence();
    if (!place.ok()) return {};
    Bytes bytes(kKeptBlock, value);
    store.seal(place.value(), bytes.data());
    EXPECT_EQ(move_kept(store, place.value(), bytes.data(), STW_IO_WRITE), int64_t{kKeptBlock});
    store.end_write(place.value(), true);
    return place.value();
}

Placement keep(Store &store, BlockId block, uint32_t set)
{
    Result<Placement> place = store.keep(block, set);
    EXPECT_TRUE(place.ok()) << place.status().sentence();
    return place.ok() ? place.value() : Placement();
}

// Whether what lies there is `value` throughout, and sums to what the placement says.
bool has(Store &store, const Placement &place, uint8_t value)
{
    Bytes bytes(kKeptBlock);
    if (move_kept(store, place, bytes.data(), STW_IO_READ) != int64_t{kKeptBlock}) return false;
    return bytes == Bytes(kKeptBlock, value) && store.sum(place, bytes.data()) == place.sum;
}

Slot slot_of(const Placement &place)
{
    return {place.path, place.slot};
}

TEST(Keep, AKeptSlotIsNotWrittenOver)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 4);
    ASSERT_NE(store, nullptr);
    const Placement first = write(*store, 1, 11);
    const Placement kept = keep(*store, 1, 0);
    EXPECT_EQ(slot_of(kept), slot_of(first));
    EXPECT_EQ(kept.sum, first.sum);
    EXPECT_EQ(kept.offset, first.offset);
    const Placement second = write(*store, 1, 12);
    EXPECT_NE(slot_of(second), slot_of(kept));
    EXPECT_TRUE(has(*store, kept, 11));
    Result<Placement> now = store->begin_read(1);
    ASSERT_TRUE(now.ok());
    EXPECT_TRUE(has(*store, now.value(), 12));
    store->end_read(now.value());
}

TEST(Keep, ABlockMovesOnceAndIsThenWrittenInPlace)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 4);
    ASSERT_NE(store, nullptr);
    write(*store, 1, 11);
    keep(*store, 1, 0);
    const Placement second = write(*store, 1, 12);
    EXPECT_EQ(slot_of(write(*store, 1, 13)), slot_of(second));
    EXPECT_EQ(store->used_slots(), 2u);
}

TEST(Keep, ADroppedSlotIsWrittenInPlaceAgain)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 4);
    ASSERT_NE(store, nullptr);
    const Placement first = write(*store, 1, 11);
    keep(*store, 1, 0);
    store->drop(0);
    EXPECT_TRUE(store->holds(1)) << "the block is there, kept or not";
    EXPECT_EQ(slot_of(write(*store, 1, 12)), slot_of(first));
    EXPECT_EQ(store->used_slots(), 1u);
}

TEST(Keep, DroppingASetFreesWhatNobodyElseNeeds)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 4);
    ASSERT_NE(store, nullptr);
    for (BlockId block = 0; block < 2; ++block) {
        write(*store, block, 11);
        keep(*store, block, 3);
    }
    const Placement again = write(*store, 0, 12);
    EXPECT_EQ(store->used_slots(), 3u);
    store->drop(2);
    EXPECT_EQ(store->used_slots(), 3u) << "another set's slots are none of its";
    store->drop(3);
    EXPECT_EQ(store->used_slots(), 2u) << "the block that was written again left one";
    EXPECT_TRUE(has(*store, again, 12));
    EXPECT_TRUE(store->holds(1));
    store->drop(3);
    EXPECT_EQ(store->used_slots(), 2u) << "a slot is given back once";
}

TEST(Keep, AForgottenBlockFreesItsSlotOnlyAtTheDrop)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 1);
    ASSERT_NE(store, nullptr);
    write(*store, 1, 11);
    const Placement kept = keep(*store, 1, 0);
    store->forget(1);
    EXPECT_FALSE(store->holds(1));
    EXPECT_EQ(store->used_slots(), 1u);
    EXPECT_EQ(store->begin_write(2, kKeptBlock).status().code(), STW_ERROR_BUDGET);
    EXPECT_TRUE(has(*store, kept, 11));
    store->drop(0);
    EXPECT_EQ(store->used_slots(), 0u);
    EXPECT_EQ(slot_of(write(*store, 2, 12)), slot_of(kept));
}

// With its sum and with what keeps it.
TEST(Keep, ABlockHandsItsSlotToAnother)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 2);
    ASSERT_NE(store, nullptr);
    write(*store, 1, 11);
    const Placement kept = keep(*store, 1, 0);
    store->hand_over(1, 7);
    EXPECT_FALSE(store->holds(1));
    const Result<Placement> found = store->begin_read(7);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(slot_of(found.value()), slot_of(kept));
    EXPECT_TRUE(has(*store, found.value(), 11));
    store->end_read(found.value());
    EXPECT_NE(slot_of(write(*store, 1, 12)), slot_of(kept));
    store->forget(7);
    EXPECT_EQ(store->used_slots(), 2u);
    store->drop(0);
    EXPECT_EQ(store->used_slots(), 1u);
}

TEST(Keep, TwoSetsKeepOneSlot)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 4);
    ASSERT_NE(store, nullptr);
    write(*store, 1, 11);
    const Placement kept = keep(*store, 1, 0);
    EXPECT_EQ(slot_of(keep(*store, 1, kKeepsMax - 1)), slot_of(kept));
    EXPECT_EQ(store->used_slots(), 1u);
    store->forget(1);
    store->drop(0);
    EXPECT_EQ(store->used_slots(), 1u);
    for (BlockId block = 2; block < 5; ++block) {
        EXPECT_NE(slot_of(write(*store, block, 12)), slot_of(kept));
    }
    EXPECT_TRUE(has(*store, kept, 11));
    store->drop(kKeepsMax - 1);
    EXPECT_EQ(slot_of(write(*store, 5, 13)), slot_of(kept));
}

TEST(Keep, ABlockThatIsNotWrittenCannotBeKept)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 4);
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->keep(1, 0).status().code(), STW_ERROR_INTERNAL) << "never written";
    EXPECT_EQ(store->keep(100, 0).status().code(), STW_ERROR_INTERNAL) << "no such number yet";
    Result<Placement> writing = store->begin_write(1, kKeptBlock);
    ASSERT_TRUE(writing.ok());
    EXPECT_EQ(store->keep(1, 0).status().code(), STW_ERROR_INTERNAL) << "being written";
    store->end_write(writing.value(), false);
    Result<Placement> failed = store->keep(1, 0);
    EXPECT_EQ(failed.status().code(), STW_ERROR_INTERNAL) << "its write failed";
    EXPECT_NE(std::strstr(failed.status().sentence(), "no complete write"), nullptr);
    write(*store, 1, 11);
    store->forget(1);
    EXPECT_EQ(store->keep(1, 0).status().code(), STW_ERROR_INTERNAL) << "forgotten";
    EXPECT_EQ(store->used_slots(), 0u) << "a refusal keeps nothing";
}

TEST(Keep, ADroppedSlotIsFreeOnlyWhenItsReaderEnds)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 1);
    ASSERT_NE(store, nullptr);
    write(*store, 1, 11);
    keep(*store, 1, 0);
    Result<Placement> reading = store->begin_read(1);
    ASSERT_TRUE(reading.ok());
    store->forget(1);
    store->drop(0);
    EXPECT_EQ(store->begin_write(2, kKeptBlock).status().code(), STW_ERROR_BUDGET);
    store->end_read(reading.value());
    EXPECT_EQ(store->used_slots(), 0u);
    write(*store, 2, 12);
}

TEST(Keep, AWriteThatFailsLosesTheBlockAndNotWhatIsKept)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 4);
    ASSERT_NE(store, nullptr);
    write(*store, 1, 11);
    const Placement kept = keep(*store, 1, 0);
    Result<Placement> again = store->begin_write(1, kKeptBlock);
    ASSERT_TRUE(again.ok());
    store->end_write(again.value(), false);
    EXPECT_FALSE(store->holds(1));
    EXPECT_TRUE(has(*store, kept, 11));
    EXPECT_EQ(store->used_slots(), 2u);
    store->forget(1);
    EXPECT_EQ(store->used_slots(), 1u);
}

TEST(Keep, AFullStoreSaysThatSomeOfItIsKept)
{
    std::vector<Disk> disks{Disk(1)};
    auto store = open_named(disks, 2, Stay::kCreate);
    ASSERT_NE(store, nullptr);
    for (BlockId block = 0; block < 2; ++block) {
        write(*store, block, 11);
        keep(*store, block, 0);
    }
    Result<Placement> more = store->begin_write(1, kKeptBlock);
    ASSERT_EQ(more.status().code(), STW_ERROR_BUDGET);
    const char *sentence = more.status().sentence();
    EXPECT_NE(std::strstr(sentence, "8192 bytes = 8192 bytes in use or kept"), nullptr) << sentence;
    EXPECT_NE(std::strstr(sentence, "kept for generations"), nullptr) << sentence;
    Result<Placement> still = store->begin_read(1);
    ASSERT_TRUE(still.ok()) << "a refused write changes nothing";
    EXPECT_TRUE(has(*store, still.value(), 11));
    store->end_read(still.value());
    store->drop(0);
    write(*store, 1, 12);
}

TEST(Keep, AFullScratchStoreSaysNothingOfGenerations)
{
    FakeStorage disk;
    auto store = open_scratch(disk, 1);
    ASSERT_NE(store, nullptr);
    write(*store, 0, 11);
    Result<Placement> more = store->begin_write(1, kKeptBlock);
    ASSERT_EQ(more.status().code(), STW_ERROR_BUDGET);
    EXPECT_EQ(std::strstr(more.status().sentence(), "generation"), nullptr);
}

// A slot's owner by the model; what the store does beside it must agree at each step.
struct Model {
    std::map<BlockId, Slot> now;
    std::map<Slot, std::pair<Placement, uint8_t>> kept[3];
    std::map<BlockId, uint8_t> values;

    [[nodiscard]] uint64_t used() const
    {
        std::set<Slot> slots;
        for (const auto &[block, slot] : now) slots.insert(slot);
        for (const auto &set : kept) {
            for (const auto &[slot, place] : set) slots.insert(slot);
        }
        return slots.size();
    }
};

void step(Store &store, Model &model, std::mt19937 &random)
{
    const BlockId block = random() % 5;
    const uint32_t set = random() % 3;
    const uint32_t what = random() % 8;
    if (what < 4) {
        const auto value = static_cast<uint8_t>(random() % 256);
        model.now[block] = slot_of(write(store, block, value));
        model.values[block] = value;
    } else if (what < 6) {
        Result<Placement> place = store.keep(block, set);
        ASSERT_EQ(place.ok(), model.now.count(block) > 0);
        if (place.ok())
            model.kept[set][slot_of(place.value())] = {place.value(), model.values[block]};
    } else if (what == 6) {
        store.forget(block);
        model.now.erase(block);
    } else {
        store.drop(set);
        model.kept[set].clear();
    }
}

// There are slots for a write at each step, so that a write without one means that slots were lost.
TEST(Keep, NoSlotIsLostOrWrittenOverInAnyOrderOfCalls)
{
    for (uint32_t seed = 1; seed <= 20; ++seed) {
        std::vector<Disk> disks{Disk(1), Disk(2)};
        auto store = open_named(disks, 5 * 60, Stay::kCreate);
        ASSERT_NE(store, nullptr);
        std::mt19937 random(seed);
        Model model;
        for (int i = 0; i < 60; ++i) {
            step(*store, model, random);
            ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
            ASSERT_EQ(store->used_slots(), model.used()) << "seed " << seed << ", step " << i;
        }
        for (const auto &set : model.kept) {
            for (const auto &[slot, content] : set) {
                EXPECT_TRUE(has(*store, content.first, content.second)) << "seed " << seed;
            }
        }
    }
}

// ---------------------------------------------------------------------------- another process ----

// What a manifest would say of one slot.
Placement entry(uint32_t path, uint32_t slot)
{
    Placement place;
    place.path = path;
    place.slot = slot;
    place.sealed_as = 7;
    place.generation = 3;
    place.bytes = kKeptBlock;
    place.sum = 99;
    return place;
}

TEST(Keep, LoadRefusesASlotThatIsNotThere)
{
    std::vector<Disk> disks{Disk(1), Disk(2)};
    auto store = open_named(disks, 5, Stay::kCreate);  // 3 and 2
    ASSERT_NE(store, nullptr);
    EXPECT_TRUE(store->load(entry(0, 2), 0).ok());
    EXPECT_TRUE(store->load(entry(1, 1), 0).ok());
    for (const Placement &place : {entry(0, 3), entry(1, 2), entry(2, 0), entry(0, UINT32_MAX),
                                   entry(UINT32_MAX, UINT32_MAX)}) {
        const Status status = store->load(place, 0);
        EXPECT_EQ(status.code(), STW_ERROR_FORMAT) << place.path << ", " << place.slot;
        EXPECT_NE(std::strstr(status.sentence(), "A manifest names slot"), nullptr)
            << status.sentence();
        EXPECT_EQ(store->adopt(1, place).code(), STW_ERROR_FORMAT);
    }
    store->loaded();
    EXPECT_EQ(store->used_slots(), 2u);
}

TEST(Keep, LoadRefusesTwoContentsInOneSlot)
{
    std::vector<Disk> disks{Disk(1)};
    auto store = open_named(disks, 4, Stay::kCreate);
    ASSERT_NE(store, nullptr);
    ASSERT_TRUE(store->load(entry(0, 1), 0).ok());
    EXPECT_TRUE(store->load(entry(0, 1), 0).ok()) << "tensors share a block";
    EXPECT_TRUE(store->load(entry(0, 1), 1).ok()) << "generations share a block";
    const auto code = [&](auto change) {
        Placement other = entry(0, 1);
        change(other);
        return store->load(other, 1).code();
    };
    EXPECT_EQ(code([](Placement &p) { ++p.sum; }), STW_ERROR_FORMAT);
    EXPECT_EQ(code([](Placement &p) { ++p.sealed_as; }), STW_ERROR_FORMAT);
    EXPECT_EQ(code([](Placement &p) { ++p.generation; }), STW_ERROR_FORMAT);
    EXPECT_EQ(code([](Placement &p) { --p.bytes; }), STW_ERROR_FORMAT);
    store->loaded();
    store->drop(0);
    EXPECT_EQ(store->used_slots(), 1u) << "the second set has it still";
    store->drop(1);
    EXPECT_EQ(store->used_slots(), 0u);
}

TEST(Keep, LoadRefusesBytesThatNoBlockHas)
{
    std::vector<Disk> disks{Disk(1)};
    auto store = open_named(disks, 4, Stay::kCreate);
    ASSERT_NE(store, nullptr);
    for (const uint64_t bytes : {UINT64_C(0), kKeptBlock + 1, UINT64_C(1) << 32}) {
        Placement place = entry(0, 1);
        place.bytes = bytes;
        EXPECT_EQ(store->load(place, 0).code(), STW_ERROR_FORMAT) << bytes;
    }
    store->loaded();
    EXPECT_EQ(store->used_slots(), 0u) << "a refusal keeps nothing";
}

TEST(Keep, LoadedFreesAllThatNothingKeepsAndNothingElse)
{
    std::vector<Disk> disks{Disk(1), Disk(2)};
    auto store = open_named(disks, 6, Stay::kCreate);
    ASSERT_NE(store, nullptr);
    const std::set<Slot> kept{{0, 0}, {1, 2}};
    for (const auto &[path, slot] : kept) ASSERT_TRUE(store->load(entry(path, slot), 0).ok());
    store->loaded();
    EXPECT_EQ(store->path_stats(0).used_slots, 1u);
    EXPECT_EQ(store->path_stats(1).used_slots, 1u);
    std::set<Slot> given;
    for (BlockId block = 0; block < 4; ++block) given.insert(slot_of(write(*store, block, 1)));
    EXPECT_EQ(given.size(), 4u);
    for (const Slot &slot : kept) EXPECT_EQ(given.count(slot), 0u);
    EXPECT_EQ(store->begin_write(4, kKeptBlock).status().code(), STW_ERROR_BUDGET);
    store->drop(0);
    EXPECT_EQ(kept.count(slot_of(write(*store, 4, 1))), 1u);
}

TEST(Keep, AdoptFindsTheBytesUnderTheNumberTheyWereSealedWith)
{
    std::vector<Disk> disks{Disk(1)};
    auto store = open_named(disks, 4, Stay::kCreate);
    ASSERT_NE(store, nullptr);
    write(*store, 0, 10);
    write(*store, 3, 11);
    const Placement kept = keep(*store, 3, 0);
    ASSERT_TRUE(store->flush().ok());
    store.reset();
    disks[0].restart(true);
    store = open_named(disks, 4, Stay::kOpen);
    ASSERT_NE(store, nullptr);
    ASSERT_TRUE(store->load(kept, 0).ok());
    store->loaded();
    EXPECT_FALSE(store->holds(900));
    ASSERT_TRUE(store->adopt(900, kept).ok());
    EXPECT_TRUE(store->holds(900));
    EXPECT_FALSE(store->holds(3)) << "the old number says nothing in this process";
    Result<Placement> place = store->begin_read(900);
    ASSERT_TRUE(place.ok());
    EXPECT_EQ(place.value().sealed_as, 3u);
    EXPECT_TRUE(has(*store, place.value(), 11));
    Placement renamed = place.value();
    renamed.sealed_as = 900;
    EXPECT_FALSE(has(*store, renamed, 11)) << "the new number is not what was sealed";
    store->end_read(place.value());
}

TEST(Keep, AnAdoptedBlockIsWrittenElsewhereAndThenUnderItsNewNumber)
{
    std::vector<Disk> disks{Disk(1)};
    auto store = open_named(disks, 4, Stay::kCreate);
    ASSERT_NE(store, nullptr);
    ASSERT_TRUE(store->load(entry(0, 1), 0).ok());
    store->loaded();
    ASSERT_TRUE(store->adopt(50, entry(0, 1)).ok());
    EXPECT_EQ(slot_of(keep(*store, 50, 1)), Slot(0, 1)) << "the next generation keeps it as well";
    const Placement written = write(*store, 50, 12);
    EXPECT_NE(slot_of(written), Slot(0, 1));
    EXPECT_EQ(written.sealed_as, 50u);
    EXPECT_EQ(store->used_slots(), 2u);
    store->drop(0);
    EXPECT_EQ(store->used_slots(), 2u);
    store->drop(1);
    EXPECT_EQ(store->used_slots(), 1u);
}

TEST(Keep, WhatIsAdoptedOrKeptNoMoreIsNotAdopted)
{
    std::vector<Disk> disks{Disk(1)};
    auto store = open_named(disks, 4, Stay::kCreate);
    ASSERT_NE(store, nullptr);
    ASSERT_TRUE(store->load(entry(0, 1), 0).ok());
    store->loaded();
    ASSERT_TRUE(store->adopt(50, entry(0, 1)).ok());
    Status status = store->adopt(51, entry(0, 1));
    EXPECT_EQ(status.code(), STW_ERROR_EXISTS);
    EXPECT_NE(std::strstr(status.sentence(), "another block's"), nullptr) << status.sentence();
    EXPECT_FALSE(store->holds(51));
    store->forget(50);
    EXPECT_TRUE(store->adopt(51, entry(0, 1)).ok()) << "kept, and nobody's again";
    store->forget(51);
    store->drop(0);
    status = store->adopt(52, entry(0, 1));
    EXPECT_EQ(status.code(), STW_ERROR_EXISTS);
    EXPECT_NE(std::strstr(status.sentence(), "kept no more"), nullptr) << status.sentence();
    EXPECT_FALSE(store->holds(52));
    EXPECT_EQ(store->used_slots(), 0u);
}

// ------------------------------------------------------------------------------------ flushes ----

TEST(Keep, AFlushSavesTheBlocksOfAllPaths)
{
    std::vector<Disk> disks{Disk(1), Disk(2)};
    auto store = open_named(disks, 64, Stay::kCreate);
    ASSERT_NE(store, nullptr);
    std::vector<Placement> kept;
    for (BlockId block = 0; block < 32; ++block) {
        write(*store, block, static_cast<uint8_t>(block));
        kept.push_back(keep(*store, block, 0));
    }
    ASSERT_TRUE(store->flush().ok());
    store.reset();
    for (Disk &disk : disks) disk.restart(true);
    store = open_named(disks, 64, Stay::kOpen);
    ASSERT_NE(store, nullptr);
    for (BlockId block = 0; block < 32; ++block) {
        EXPECT_TRUE(has(*store, kept[block], static_cast<uint8_t>(block))) << block;
    }
}

TEST(Keep, AFlushThatFailsOnAnyPathIsSync)
{
    for (uint32_t bad = 0; bad < 2; ++bad) {
        std::vector<Disk> disks{Disk(1), Disk(2)};
        auto store = open_named(disks, 4, Stay::kCreate);
        ASSERT_NE(store, nullptr);
        disks[bad].fail_flush_one_in = 1;
        const Status status = store->flush();
        EXPECT_EQ(status.code(), STW_ERROR_SYNC);
        const std::string path = "/disk" + std::to_string(bad);
        EXPECT_NE(std::strstr(status.sentence(), path.c_str()), nullptr) << status.sentence();
        disks[bad].fail_flush_one_in = 0;
        EXPECT_TRUE(store->flush().ok());
    }
}

}  // namespace
}  // namespace stepwell::store
