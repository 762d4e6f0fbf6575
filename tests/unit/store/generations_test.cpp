// SPDX-License-Identifier: Apache-2.0
// Claims about the generations of one store over a disk that can lose its power: what is found
// again, how many are kept, and when no more are taken.
#include "lib/store/generations.h"

#include "tests/generations/disk.h"
#include "tests/unit/transfer/fake_storage.h"

#include <gtest/gtest.h>

#include <cstring>

namespace stepwell::store {
namespace {

using generations::Disk;
using stepwell::testing::fake_services;

constexpr uint64_t kBlock = 4096;
constexpr uint32_t kBlocks = 3;  // of the program
constexpr uint64_t kSlots = 16;
using Bytes = std::vector<uint8_t>;
using Ids = std::vector<GenerationId>;

// A process with a store on one disk, and another after it.
struct Machine {
    explicit Machine(uint32_t kept = 2, uint64_t seed = 1) : kept(kept), disk(seed) {}

    uint32_t kept;
    Disk disk;
    std::unique_ptr<Store> store;
    std::unique_ptr<Generations> generations;
    uint32_t set = 0;

    Result<std::unique_ptr<Store>> open_store(Stay stay)
    {
        StoreOptions options;
        options.services = fake_services();
        options.stay = stay;
        options.name = "store";
        options.block_bytes = kBlock;
        options.blocks = kSlots;
        options.paths.push_back({&Disk::ops(), "/disk0", disk.options(), 0, nullptr, 0});
        return Store::open(options);
    }

    Result<std::unique_ptr<Generations>> open_generations(Stay stay)
    {
        GenerationsOptions options;
        options.services = fake_services();
        options.stay = stay;
        options.name = "generations";
        options.driver_options = disk.options();
        options.kept = kept;
        return Generations::open(options, *store);
    }

    void open(Stay stay)
    {
        auto opened = open_store(stay);
        ASSERT_TRUE(opened.ok()) << opened.status().sentence();
        store = opened.take();
        auto made = open_generations(stay);
        ASSERT_TRUE(made.ok()) << made.status().sentence();
        generations = made.take();
    }

    void end(bool lost)
    {
        generations.reset();
        store.reset();
        disk.fail_one_in = disk.fail_flush_one_in = 0;
        disk.restart(lost);
    }

    void reopen(bool lost)
    {
        end(lost);
        open(Stay::kOpen);
    }
};

int64_t move(Store &store, const Placement &place, void *data, uint32_t kind)
{
    stw_io io{1, data, place.offset, kBlock, kind, 0};
    uint32_t accepted = 0;
    stw_io_done done{};
    (void)store.ops(0).submit(store.storage(0), &io, 1, &accepted);
    (void)store.ops(0).poll(store.storage(0), &done, 1, 0);
    return done.result;
}

// All blocks of the program are `value` throughout.
void write_all(Machine &machine, uint8_t value)
{
    for (BlockId block = 0; block < kBlocks; ++block) {
        Result<Placement> place = machine.store->begin_write(block, kBlock);
        ASSERT_TRUE(place.ok()) << place.status().sentence();
        Bytes bytes(kBlock, value);
        machine.store->seal(place.value(), bytes.data());
        ASSERT_EQ(move(*machine.store, place.value(), bytes.data(), STW_IO_WRITE), int64_t{kBlock});
        machine.store->end_write(place.value(), true);
    }
}

// Whether a manifest's blocks are there, all `value`.
bool has(Machine &machine, const Manifest &manifest, uint8_t value)
{
    bool all = manifest.blocks.size() == kBlocks;
    for (Placement place : manifest.blocks) {
        place.offset = kReservedBytes + place.slot * kBlock;
        Bytes bytes(kBlock);
        all &= move(*machine.store, place, bytes.data(), STW_IO_READ) == int64_t{kBlock};
        all &= bytes == Bytes(kBlock, value);
        all &= machine.store->sum(place, bytes.data()) == place.sum;
    }
    return all;
}

// Begins the next one and keeps the blocks as they are. Its token is ten times its number.
Manifest begin(Machine &machine)
{
    Manifest manifest;
    Result<uint32_t> set = machine.generations->begin();
    EXPECT_TRUE(set.ok()) << set.status().sentence();
    if (!set.ok()) return manifest;
    machine.set = set.value();
    const uint64_t number = machine.generations->next_number();
    manifest.id = {number, number * 10};
    manifest.label = "at " + std::to_string(number);
    manifest.metadata = "step";
    manifest.time_unix_ns = 5;
    StoredTensor tensor;
    tensor.name = "t";
    tensor.bytes = kBlocks * kBlock;
    for (BlockId block = 0; block < kBlocks; ++block) {
        Result<Placement> place = machine.store->keep(block, set.value());
        EXPECT_TRUE(place.ok()) << place.status().sentence();
        if (place.ok()) manifest.blocks.push_back(place.value());
        tensor.blocks.push_back(block);
    }
    manifest.tensors.push_back(tensor);
    return manifest;
}

void commit(Machine &machine, uint8_t value)
{
    write_all(machine, value);
    const Status prepared = machine.generations->prepare(begin(machine));
    ASSERT_TRUE(prepared.ok()) << prepared.sentence();
    machine.generations->commit();
}

// What a group of this rank alone can resume.
Ids resumable_of(const Machine &machine)
{
    return resumable({machine.generations->found()}, machine.kept);
}

Manifest resume(Machine &machine, const GenerationId &id)
{
    Result<Manifest> manifest = machine.generations->resume(id, resumable_of(machine));
    EXPECT_TRUE(manifest.ok()) << manifest.status().sentence();
    if (!manifest.ok()) return {};
    for (BlockId block = 0; block < manifest.value().blocks.size(); ++block) {
        const Status adopted = machine.store->adopt(block, manifest.value().blocks[block]);
        EXPECT_TRUE(adopted.ok()) << adopted.sentence();
    }
    return manifest.take();
}

Ids known(const Generations &generations)
{
    Ids ids;
    for (const GenerationInfo &info : generations.infos()) ids.push_back(info.id);
    return ids;
}

bool says(const Status &status, const char *words)
{
    return std::strstr(status.sentence(), words) != nullptr;
}

// ------------------------------------------------------------------------ what is found again ----

TEST(Generations, WhatWasCommittedIsFoundAndResumed)
{
    for (const bool lost : {false, true}) {
        Machine machine;
        machine.open(Stay::kCreate);
        EXPECT_EQ(machine.generations->found(), Ids());
        commit(machine, 11);
        machine.reopen(lost);
        ASSERT_EQ(machine.generations->found(), (Ids{{1, 10}}));
        EXPECT_EQ(known(*machine.generations), Ids()) << "not before it is resumed";
        const Manifest manifest = resume(machine, {1, 10});
        EXPECT_EQ(manifest.label, "at 1");
        EXPECT_TRUE(has(machine, manifest, 11));
        EXPECT_EQ(machine.store->used_slots(), uint64_t{kBlocks});
        ASSERT_EQ(known(*machine.generations), (Ids{{1, 10}}));
        const GenerationInfo &info = machine.generations->infos()[0];
        EXPECT_EQ(info.time_unix_ns, 5u);
        EXPECT_EQ(info.tensors, 1u);
        EXPECT_EQ(info.bytes, kBlocks * kBlock);
        EXPECT_EQ(info.label, "at 1");
        EXPECT_EQ(info.metadata, "step");
    }
}

TEST(Generations, NumbersGrowOverProcessesToo)
{
    Machine machine;
    machine.open(Stay::kCreate);
    EXPECT_EQ(machine.generations->next_number(), 1u);
    for (uint8_t i = 1; i <= 3; ++i) commit(machine, i);
    EXPECT_EQ(machine.generations->next_number(), 4u);
    machine.reopen(true);
    resume(machine, {3, 30});
    EXPECT_EQ(machine.generations->next_number(), 4u);
    commit(machine, 4);
    EXPECT_EQ(known(*machine.generations), (Ids{{4, 40}, {3, 30}}));
}

TEST(Generations, AsManyAsAreKeptAreThereAndNoMore)
{
    for (uint32_t kept = 1; kept <= 3; ++kept) {
        Machine machine(kept);
        machine.open(Stay::kCreate);
        EXPECT_EQ(machine.generations->kept_max(), kept);
        Ids wanted;
        for (uint32_t i = 1; i <= 6; ++i) {
            commit(machine, static_cast<uint8_t>(i));
            wanted.insert(wanted.begin(), {i, i * 10});
            if (wanted.size() > kept) wanted.pop_back();
            EXPECT_EQ(known(*machine.generations), wanted);
            EXPECT_EQ(machine.store->used_slots(), wanted.size() * kBlocks)
                << "the blocks are those of the newest";
        }
        machine.reopen(true);
        EXPECT_EQ(resumable_of(machine), wanted);
        EXPECT_LE(machine.generations->found().size(), kept + 1)
            << "one more where the newest was not committed by all";
        EXPECT_TRUE(has(machine, resume(machine, wanted[0]), 6));
        EXPECT_EQ(known(*machine.generations), wanted);
    }
}

TEST(Generations, AnOlderOneIsResumedWithItsBytesAndTheNewerIsGone)
{
    Machine machine(3);
    machine.open(Stay::kCreate);
    for (uint8_t i = 1; i <= 3; ++i) commit(machine, i);
    machine.reopen(true);
    EXPECT_TRUE(has(machine, resume(machine, {2, 20}), 2));
    EXPECT_EQ(known(*machine.generations), (Ids{{2, 20}, {1, 10}}));
    EXPECT_EQ(machine.store->used_slots(), 2 * uint64_t{kBlocks});
    EXPECT_EQ(machine.generations->next_number(), 3u);
    machine.reopen(true);
    EXPECT_EQ(machine.generations->found(), (Ids{{2, 20}, {1, 10}}));
}

TEST(Generations, TheOlderOnesKeepTheirSlotsAfterAResume)
{
    Machine machine;
    machine.open(Stay::kCreate);
    commit(machine, 1);
    commit(machine, 2);
    machine.reopen(true);
    EXPECT_TRUE(has(machine, resume(machine, {2, 20}), 2));
    for (uint8_t i = 0; i < 8; ++i) write_all(machine, 100 + i);
    machine.reopen(false);
    EXPECT_TRUE(has(machine, resume(machine, {1, 10}), 1));
}

TEST(Generations, WhatNotAllRanksHaveIsErasedByAResume)
{
    Machine machine(3);
    machine.open(Stay::kCreate);
    for (uint8_t i = 1; i <= 3; ++i) commit(machine, i);
    machine.reopen(true);
    const Ids common{{2, 20}};
    ASSERT_TRUE(machine.generations->resume({2, 20}, common).ok());
    EXPECT_EQ(known(*machine.generations), common);
    EXPECT_EQ(machine.store->used_slots(), uint64_t{kBlocks});
    machine.reopen(true);
    EXPECT_EQ(machine.generations->found(), common);
}

TEST(Generations, AManifestOfSlotsThatAreNotThereIsNotResumed)
{
    Machine machine;
    machine.open(Stay::kCreate);
    write_all(machine, 1);
    Manifest manifest = begin(machine);
    manifest.blocks[1].slot = kSlots;
    ASSERT_TRUE(machine.generations->prepare(manifest).ok());
    machine.generations->commit();
    machine.reopen(false);
    ASSERT_EQ(machine.generations->found(), (Ids{{1, 10}}));
    const Result<Manifest> found = machine.generations->resume({1, 10}, {{1, 10}});
    EXPECT_FALSE(found.ok());
}

TEST(Generations, OnlyWhatAllRanksHaveIsResumableAndAsManyAsAreKept)
{
    const Ids four{{4, 1}, {3, 1}, {2, 1}, {1, 1}};
    EXPECT_EQ(resumable({four}, 2), (Ids{{4, 1}, {3, 1}}));
    EXPECT_EQ(resumable({four}, 7), four);
    EXPECT_EQ(resumable({four, {{3, 1}, {2, 1}}}, 2), (Ids{{3, 1}, {2, 1}}));
    EXPECT_EQ(resumable({{{3, 1}, {2, 1}}, four}, 1), (Ids{{3, 1}}));
    EXPECT_EQ(resumable({four, {{4, 1}, {2, 1}}, {{3, 1}, {2, 1}}}, 2), (Ids{{2, 1}}));
    EXPECT_EQ(resumable({four, {{4, 2}, {3, 1}}}, 2), (Ids{{3, 1}})) << "another attempt at 4";
    EXPECT_EQ(resumable({four, {}}, 2), Ids());
    EXPECT_EQ(resumable({{}, four}, 2), Ids());
    EXPECT_EQ(resumable({{}}, 2), Ids());
}

// --------------------------------------------------------------------------------- power cuts ----

// A manifest of so many sectors that no power cut leaves all of them.
Manifest begin_large(Machine &machine)
{
    Manifest manifest = begin(machine);
    manifest.metadata.assign(200 * generations::kSectorBytes, 'm');
    return manifest;
}

TEST(Generations, ARegionHalfWrittenByAPowerCutIsNotFound)
{
    // The blocks' flush, the manifest, its flush.
    for (uint32_t at = 1; at <= 3; ++at) {
        for (uint64_t seed = 1; seed <= 8; ++seed) {
            Machine machine(2, seed);
            machine.open(Stay::kCreate);
            commit(machine, 1);
            write_all(machine, 2);
            Manifest manifest = begin_large(machine);
            machine.disk.cut_after(at);
            EXPECT_FALSE(machine.generations->prepare(manifest).ok());
            ASSERT_TRUE(machine.disk.is_off());
            machine.reopen(true);
            ASSERT_EQ(machine.generations->found(), (Ids{{1, 10}})) << at << ", seed " << seed;
            EXPECT_TRUE(has(machine, resume(machine, {1, 10}), 1));
            commit(machine, 3);
        }
    }
}

TEST(Generations, AManifestThatIsFoundHasItsBlocksWheneverThePowerGoes)
{
    uint32_t found = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        Machine machine(2, seed);
        machine.open(Stay::kCreate);
        commit(machine, 1);
        write_all(machine, 2);
        const Manifest manifest = begin(machine);
        machine.disk.cut_after(1 + seed % 3);
        EXPECT_FALSE(machine.generations->prepare(manifest).ok());
        machine.reopen(true);
        const Ids ids = machine.generations->found();
        ASSERT_FALSE(ids.empty());
        found += ids[0].number == 2;
        EXPECT_TRUE(has(machine, resume(machine, ids[0]), static_cast<uint8_t>(ids[0].number)))
            << "seed " << seed;
    }
    EXPECT_GT(found, 0u) << "some were whole, though nobody was told so";
    EXPECT_LT(found, 40u);
}

TEST(Generations, WhatIsPreparedIsThereAfterAPowerCut)
{
    Machine machine;
    machine.open(Stay::kCreate);
    commit(machine, 1);
    write_all(machine, 2);
    ASSERT_TRUE(machine.generations->prepare(begin_large(machine)).ok());
    machine.reopen(true);
    ASSERT_EQ(machine.generations->found(), (Ids{{2, 20}, {1, 10}}));
    EXPECT_TRUE(has(machine, resume(machine, {2, 20}), 2));
}

// ------------------------------------------------------------------------- attempts that fail ----

TEST(Generations, ARefusedOneIsGoneAndTheNextAttemptHasItsNumber)
{
    for (const bool lost : {false, true}) {
        Machine machine;
        machine.open(Stay::kCreate);
        commit(machine, 1);
        write_all(machine, 2);
        ASSERT_TRUE(machine.generations->prepare(begin(machine)).ok());
        ASSERT_TRUE(machine.generations->refuse().ok());
        EXPECT_TRUE(machine.generations->stuck().ok());
        EXPECT_EQ(known(*machine.generations), (Ids{{1, 10}}));
        EXPECT_EQ(machine.generations->next_number(), 2u);
        write_all(machine, 3);
        EXPECT_EQ(machine.store->used_slots(), 2 * uint64_t{kBlocks}) << "its slots are free";
        Manifest again = begin(machine);
        again.id.token = 21;
        if (lost) {
            machine.reopen(true);
            EXPECT_EQ(machine.generations->found(), (Ids{{1, 10}}));
            continue;
        }
        ASSERT_TRUE(machine.generations->prepare(again).ok());
        machine.generations->commit();
        machine.reopen(true);
        ASSERT_EQ(machine.generations->found(), (Ids{{2, 21}, {1, 10}}));
        EXPECT_TRUE(has(machine, resume(machine, {2, 21}), 3));
    }
}

TEST(Generations, ARefusalBeforeAnythingIsWrittenAsksNothingOfTheDisk)
{
    Machine machine;
    machine.open(Stay::kCreate);
    write_all(machine, 1);
    begin(machine);
    const uint64_t before = machine.disk.requests();
    machine.disk.fail_one_in = machine.disk.fail_flush_one_in = 1;
    EXPECT_TRUE(machine.generations->refuse().ok());
    EXPECT_EQ(machine.disk.requests(), before);
    machine.disk.fail_one_in = machine.disk.fail_flush_one_in = 0;
    commit(machine, 2);
    EXPECT_EQ(machine.store->used_slots(), uint64_t{kBlocks});
}

TEST(Generations, WhatCannotBeErasedKeepsItsSlotsAndNoMoreAreTaken)
{
    Machine machine;
    machine.open(Stay::kCreate);
    commit(machine, 1);
    write_all(machine, 2);
    ASSERT_TRUE(machine.generations->prepare(begin(machine)).ok());
    machine.disk.fail_one_in = 1;
    EXPECT_EQ(machine.generations->refuse().code(), STW_ERROR_IO);
    machine.disk.fail_one_in = 0;
    EXPECT_EQ(machine.generations->begin().status().code(), STW_ERROR_IO);
    write_all(machine, 3);
    EXPECT_EQ(machine.store->used_slots(), 3 * uint64_t{kBlocks});
    machine.reopen(false);
    ASSERT_EQ(machine.generations->found(), (Ids{{2, 20}, {1, 10}}));
    EXPECT_TRUE(has(machine, resume(machine, {2, 20}), 2)) << "it is whole, as it was refused";
}

TEST(Generations, AManifestThatCannotBeWrittenIsAnErrorOfThatAttemptOnly)
{
    Machine machine;
    machine.open(Stay::kCreate);
    commit(machine, 1);
    write_all(machine, 2);
    const Manifest manifest = begin(machine);
    machine.disk.fail_one_in = 1;
    EXPECT_EQ(machine.generations->prepare(manifest).code(), STW_ERROR_IO);
    machine.disk.fail_one_in = 0;
    EXPECT_TRUE(machine.generations->refuse().ok());
    commit(machine, 3);
    EXPECT_EQ(known(*machine.generations), (Ids{{2, 20}, {1, 10}}));
}

TEST(Generations, DoubtMakesBeginSayWhyAndAllStay)
{
    Machine machine(3);
    machine.open(Stay::kCreate);
    commit(machine, 1);
    commit(machine, 2);
    write_all(machine, 3);
    ASSERT_TRUE(machine.generations->prepare(begin(machine)).ok());
    machine.generations->doubt(Status::error(STW_ERROR_PEER, "rank 3 is gone"));
    const Result<uint32_t> set = machine.generations->begin();
    ASSERT_FALSE(set.ok());
    const Status &why = machine.generations->stuck();
    EXPECT_EQ(why.code(), STW_ERROR_PEER);
    EXPECT_TRUE(says(why, "generation 3 is undecided")) << why.sentence();
    EXPECT_TRUE(says(why, "rank 3 is gone")) << why.sentence();
    EXPECT_EQ(known(*machine.generations), (Ids{{2, 20}, {1, 10}}));
    write_all(machine, 4);
    EXPECT_EQ(machine.store->used_slots(), 4 * uint64_t{kBlocks}) << "all, and what is new";
    machine.reopen(true);
    EXPECT_EQ(machine.generations->found(), (Ids{{3, 30}, {2, 20}, {1, 10}}));
    EXPECT_TRUE(has(machine, resume(machine, {3, 30}), 3));
    EXPECT_TRUE(machine.generations->begin().ok());
}

// Those who have heard the vote have dropped it by now.
TEST(Generations, DoubtGivesUpTheOldestWhereACommitWouldHave)
{
    Machine machine;
    machine.open(Stay::kCreate);
    commit(machine, 1);
    commit(machine, 2);
    write_all(machine, 3);
    ASSERT_TRUE(machine.generations->prepare(begin(machine)).ok());
    machine.generations->doubt(Status::error(STW_ERROR_PEER, "rank 3 is gone"));
    EXPECT_EQ(known(*machine.generations), (Ids{{2, 20}}));
    EXPECT_EQ(machine.store->used_slots(), 2 * uint64_t{kBlocks});
    machine.reopen(true);
    EXPECT_EQ(machine.generations->found(), (Ids{{3, 30}, {2, 20}}));
}

TEST(Generations, DoubtLeavesTheOneBeforeWhereOnlyOneIsKept)
{
    Machine machine(1);
    machine.open(Stay::kCreate);
    commit(machine, 1);
    write_all(machine, 2);
    ASSERT_TRUE(machine.generations->prepare(begin(machine)).ok());
    machine.generations->doubt(Status::error(STW_ERROR_PEER, "rank 3 is gone"));
    EXPECT_EQ(known(*machine.generations), (Ids{{1, 10}}));
    write_all(machine, 3);
    machine.reopen(true);
    ASSERT_EQ(machine.generations->found(), (Ids{{2, 20}, {1, 10}}));
    // The other rank never prepared it.
    const Ids common = resumable({machine.generations->found(), {{1, 10}}}, 1);
    ASSERT_EQ(common, (Ids{{1, 10}}));
    Result<Manifest> manifest = machine.generations->resume({1, 10}, common);
    ASSERT_TRUE(manifest.ok()) << manifest.status().sentence();
    EXPECT_TRUE(has(machine, manifest.value(), 1));
}

TEST(Generations, AFlushThatFailsIsSyncAndSticks)
{
    Machine machine;
    machine.open(Stay::kCreate);
    commit(machine, 1);
    write_all(machine, 2);
    const Manifest manifest = begin(machine);
    machine.disk.fail_flush_one_in = 1;
    const Status status = machine.generations->prepare(manifest);
    EXPECT_EQ(status.code(), STW_ERROR_SYNC);
    EXPECT_TRUE(says(status, "'/disk0/store' could not be flushed")) << status.sentence();
    machine.disk.fail_flush_one_in = 0;
    EXPECT_TRUE(machine.generations->refuse().ok()) << "nothing of it was written";
    EXPECT_EQ(machine.generations->stuck().code(), STW_ERROR_SYNC);
    EXPECT_EQ(machine.generations->begin().status().code(), STW_ERROR_SYNC);
    machine.reopen(true);
    EXPECT_EQ(machine.generations->found(), (Ids{{1, 10}}));
    EXPECT_TRUE(has(machine, resume(machine, {1, 10}), 1));
    commit(machine, 3);
}

// The blocks' flush or the manifest's, as the seed has it. After the latter nobody knows what is on
// the disk: its slots stay.
TEST(Generations, AFailedFlushOfTheManifestKeepsItsSlots)
{
    uint32_t of_manifest = 0;
    for (uint64_t seed = 1; seed <= 24; ++seed) {
        Machine machine(2, seed);
        machine.open(Stay::kCreate);
        write_all(machine, 1);
        const Manifest manifest = begin(machine);
        machine.disk.fail_flush_one_in = 2;
        const Status status = machine.generations->prepare(manifest);
        machine.disk.fail_flush_one_in = 0;
        if (status.ok() || !says(status, "'/disk0/generations' could not be flushed")) continue;
        ++of_manifest;
        EXPECT_EQ(status.code(), STW_ERROR_SYNC);
        EXPECT_EQ(machine.generations->refuse().code(), STW_ERROR_SYNC) << "it is not erased";
        EXPECT_EQ(machine.generations->begin().status().code(), STW_ERROR_SYNC);
        write_all(machine, 2);
        EXPECT_EQ(machine.store->used_slots(), 2 * uint64_t{kBlocks});
        machine.reopen(true);
        const Ids ids = machine.generations->found();
        if (ids.empty()) continue;
        EXPECT_TRUE(has(machine, resume(machine, ids[0]), 1)) << "seed " << seed;
    }
    EXPECT_GT(of_manifest, 0u);
}

TEST(Generations, AManifestLargerThanItsRegionIsLimit)
{
    Machine machine;
    machine.open(Stay::kCreate);
    write_all(machine, 1);
    Manifest manifest = begin(machine);
    const uint64_t most = machine.generations->manifest_bytes_max();
    EXPECT_EQ(most, Generations::region_bytes(kSlots));
    manifest.metadata.clear();
    manifest.region = 0;
    const uint64_t others = encode(manifest, machine.store->uuid()).size();
    manifest.metadata.assign(most - others + 1, 'm');
    const uint64_t before = machine.disk.requests();
    const Status status = machine.generations->prepare(manifest);
    EXPECT_EQ(status.code(), STW_ERROR_LIMIT);
    EXPECT_TRUE(says(status, "The manifest of generation 1 takes")) << status.sentence();
    EXPECT_EQ(machine.disk.requests(), before) << "nothing of it is written";
    EXPECT_TRUE(machine.generations->refuse().ok());
    manifest = begin(machine);
    manifest.metadata.assign(most - others, 'm');
    ASSERT_TRUE(machine.generations->prepare(manifest).ok());
    machine.generations->commit();
    machine.reopen(true);
    ASSERT_EQ(machine.generations->found(), (Ids{{1, 10}}));
    EXPECT_EQ(resume(machine, {1, 10}).metadata, manifest.metadata) << "one that just fits";
}

// ----------------------------------------------------------------------------------- the file ----

TEST(Generations, OpeningWithAnotherNumberKeptIsMismatch)
{
    for (const uint32_t kept : {1u, 3u}) {
        Machine machine(2);
        machine.open(Stay::kCreate);
        machine.generations.reset();
        machine.kept = kept;
        const Status status = std::move(machine.open_generations(Stay::kOpen).status());
        EXPECT_EQ(status.code(), STW_ERROR_MISMATCH);
        const std::string first =
            format_text("The generations in '/disk0' ('generations') are not %u: ", kept);
        const std::string sentence = status.sentence();
        EXPECT_EQ(sentence.compare(0, first.size(), first), 0) << sentence;
        EXPECT_TRUE(says(status, "Give generations_kept as the store was made with."));
    }
}

TEST(Generations, ThoseOfAStoreThatWasOverwrittenAreNotFound)
{
    Machine machine;
    machine.open(Stay::kCreate);
    commit(machine, 1);
    machine.end(false);
    auto replaced = machine.open_store(Stay::kReplace);
    ASSERT_TRUE(replaced.ok()) << replaced.status().sentence();
    machine.store = replaced.take();
    const Status status = std::move(machine.open_generations(Stay::kOpen).status());
    EXPECT_EQ(status.code(), STW_ERROR_NOT_FOUND);
    EXPECT_TRUE(says(status, "a store that was overwritten since")) << status.sentence();
    auto made = machine.open_generations(Stay::kReplace);
    ASSERT_TRUE(made.ok()) << made.status().sentence();
    machine.generations = made.take();
    commit(machine, 2);
    EXPECT_EQ(known(*machine.generations), (Ids{{1, 10}}));
}

TEST(Generations, OnesThatAreThereAreNotMadeAnewUnlessReplaced)
{
    Machine machine;
    machine.open(Stay::kCreate);
    commit(machine, 1);
    machine.generations.reset();
    EXPECT_EQ(machine.open_generations(Stay::kCreate).status().code(), STW_ERROR_EXISTS);
    auto made = machine.open_generations(Stay::kOpen);
    ASSERT_TRUE(made.ok()) << made.status().sentence();
    EXPECT_EQ(made.value()->found(), (Ids{{1, 10}}));
}

// One request for bytes of the file of generations, which no one else has open. `access` as of the
// driver.
void access_file(Machine &machine, uint64_t offset, Bytes &bytes, uint32_t kind, uint32_t access)
{
    stw_storage_options options{};
    options.struct_size = sizeof options;
    options.path = "/disk0";
    options.bytes = Generations::file_bytes(kSlots, machine.kept);
    const std::string disk = machine.disk.options();
    options.options = disk.c_str();
    options.name = "generations";
    options.name_access = access;
    stw_storage *storage = nullptr;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    ASSERT_EQ(Disk::ops().open(fake_services(), &options, &storage, &error), STW_OK);
    const stw_io io{1, bytes.data(), offset, bytes.size(), kind, 0};
    uint32_t accepted = 0;
    ASSERT_EQ(Disk::ops().submit(storage, &io, 1, &accepted), STW_OK);
    ASSERT_EQ(Disk::ops().close(storage, 0), STW_OK);
}

void plant(Machine &machine, uint64_t offset, Bytes bytes, uint32_t access)
{
    access_file(machine, offset, bytes, STW_IO_WRITE, access);
}

uint64_t offset_of(const Machine &machine, uint32_t region)
{
    const uint64_t regions = machine.kept + 1 - region;
    return Generations::file_bytes(kSlots, machine.kept) -
           regions * Generations::region_bytes(kSlots);
}

void plant_manifest(Machine &machine, uint32_t region, const GenerationId &id, const Ids &kept)
{
    Manifest manifest;
    manifest.id = id;
    manifest.kept = kept;
    plant(machine, offset_of(machine, region), encode(manifest, machine.store->uuid()),
          STW_STORAGE_NAME_OPEN);
}

void commit_three_more(Machine &machine)
{
    for (uint8_t value = 101; value <= 103; ++value) commit(machine, value);
    const GenerationId newest = machine.generations->infos().front().id;
    machine.reopen(true);
    EXPECT_TRUE(has(machine, resume(machine, newest), 103));
}

// A drive that writes into the place of another leaves two whole manifests of one generation.
TEST(Generations, AManifestThatLiesInThePlaceOfAnotherIsDamagedAndTheRestGoesOn)
{
    for (uint32_t pair = 0; pair < 9; ++pair) {
        const uint32_t from = pair / 3;
        const uint32_t to = pair % 3;
        if (from == to) continue;
        Machine machine;
        machine.open(Stay::kCreate);
        for (uint8_t value = 1; value <= 3; ++value) commit(machine, value);
        machine.generations.reset();
        Bytes bytes(4096);
        access_file(machine, offset_of(machine, from), bytes, STW_IO_READ, STW_STORAGE_NAME_OPEN);
        plant(machine, offset_of(machine, to), bytes, STW_STORAGE_NAME_OPEN);
        machine.reopen(false);
        const std::string why = "/disk0/generations' is damaged or foreign: it was written for "
                                "region " +
                                std::to_string(from) + ", and lies in region " + std::to_string(to);
        EXPECT_NE(machine.generations->damage().find(why), std::string::npos)
            << from << " over " << to << ": " << machine.generations->damage();
        const Ids left = resumable_of(machine);
        const uint64_t newest = to == 2 ? 2 : 3;
        ASSERT_FALSE(left.empty());
        EXPECT_EQ(left.front(), (GenerationId{newest, newest * 10}));
        EXPECT_TRUE(has(machine, resume(machine, left.front()), static_cast<uint8_t>(newest)));
        commit_three_more(machine);
    }
}

TEST(Generations, OfTwoManifestsOfOneGenerationThatDoNotSayTheirRegionOneCounts)
{
    Machine machine;
    machine.open(Stay::kCreate);
    machine.generations.reset();
    plant_manifest(machine, 0, {4, 40}, {{3, 30}});
    plant_manifest(machine, 1, {3, 30}, {});
    plant_manifest(machine, 2, {4, 40}, {{3, 30}});
    machine.reopen(false);
    EXPECT_NE(machine.generations->damage().find("generation 4"), std::string::npos)
        << machine.generations->damage();
    ASSERT_EQ(machine.generations->found(), (Ids{{4, 40}, {3, 30}}));
    (void)resume(machine, {4, 40});
    commit_three_more(machine);
}

// It was dropped before the newest was written, and its slots may be others' by now.
TEST(Generations, WhatTheNewestDoesNotListIsNotLookedForAndIsErased)
{
    Machine machine(3);
    machine.open(Stay::kCreate);
    machine.generations.reset();
    plant_manifest(machine, 0, {4, 40}, {});
    plant_manifest(machine, 1, {5, 50}, {{3, 30}, {2, 20}});
    plant_manifest(machine, 2, {3, 30}, {});
    plant_manifest(machine, 3, {2, 21}, {});
    machine.reopen(false);
    ASSERT_EQ(machine.generations->found(), (Ids{{5, 50}, {3, 30}})) << "another attempt at 2";
    ASSERT_TRUE(machine.generations->resume({3, 30}, {{5, 50}, {3, 30}}).ok());
    machine.reopen(true);
    EXPECT_EQ(machine.generations->found(), (Ids{{3, 30}}));
}

TEST(Generations, AFileThatIsMissingUnfinishedOrForeignIsSaidToBe)
{
    Machine missing;
    missing.store = missing.open_store(Stay::kCreate).take();
    EXPECT_EQ(missing.open_generations(Stay::kOpen).status().code(), STW_ERROR_NOT_FOUND);

    Machine unfinished;
    unfinished.store = unfinished.open_store(Stay::kCreate).take();
    plant(unfinished, 0, Bytes(4096, 0), STW_STORAGE_NAME_CREATE);
    Status status = std::move(unfinished.open_generations(Stay::kOpen).status());
    EXPECT_EQ(status.code(), STW_ERROR_NOT_FOUND);
    EXPECT_TRUE(says(status, "made and never finished")) << status.sentence();

    Machine foreign;
    foreign.store = foreign.open_store(Stay::kCreate).take();
    plant(foreign, 0, Bytes(4096, 'x'), STW_STORAGE_NAME_CREATE);
    status = std::move(foreign.open_generations(Stay::kOpen).status());
    EXPECT_EQ(status.code(), STW_ERROR_FORMAT);
    EXPECT_TRUE(says(status, "'/disk0/generations' is damaged")) << status.sentence();
}

TEST(Generations, TheFileHasARegionForEachThatIsKeptAndOneMore)
{
    Machine machine;
    machine.open(Stay::kCreate);
    const uint64_t region = Generations::region_bytes(kSlots);
    EXPECT_EQ(machine.generations->bytes(), Generations::file_bytes(kSlots, 2));
    EXPECT_EQ(Generations::file_bytes(kSlots, 3) - Generations::file_bytes(kSlots, 2), region);
    EXPECT_GE(region, kMetadataBytesMax + kSlots * 28);
}

}  // namespace
}  // namespace stepwell::store
