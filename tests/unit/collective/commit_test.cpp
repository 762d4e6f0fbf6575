// SPDX-License-Identifier: Apache-2.0
// Claims about one generation over several ranks: it is one on all or on none, or undecided where a
// vote was not heard; and what can be resumed is what all ranks have.
#include "lib/collective/commit.h"

#include "tests/generations/disk.h"
#include "tests/unit/transfer/fake_storage.h"

#include <gtest/gtest.h>

#include <cstring>

namespace stepwell::collective {
namespace {

using generations::Disk;
using stepwell::testing::fake_services;
using store::GenerationId;
using store::Generations;

constexpr uint64_t kBlock = 4096;
constexpr uint32_t kRanks = 2;
constexpr uint32_t kKept = 2;
using Ids = std::vector<GenerationId>;

struct Rank {
    explicit Rank(uint64_t seed) : disk(seed) {}

    Disk disk;
    std::unique_ptr<store::Store> store;
    std::unique_ptr<Generations> generations;
    std::unique_ptr<Commit> commit;

    void open(store::Stay stay)
    {
        store::StoreOptions options;
        options.services = fake_services();
        options.stay = stay;
        options.name = "store";
        options.block_bytes = kBlock;
        options.blocks = 8;
        options.paths.push_back({&Disk::ops(), "/disk", disk.options(), 0, nullptr, 0});
        auto opened = store::Store::open(options);
        ASSERT_TRUE(opened.ok()) << opened.status().sentence();
        store = opened.take();
        store::GenerationsOptions files;
        files.services = options.services;
        files.stay = stay;
        files.name = "generations";
        files.driver_options = disk.options();
        files.kept = kKept;
        auto made = Generations::open(files, *store);
        ASSERT_TRUE(made.ok()) << made.status().sentence();
        generations = made.take();
    }

    Ids ids() const
    {
        Ids ids;
        for (const store::GenerationInfo &info : generations->infos()) ids.push_back(info.id);
        return ids;
    }
};

// The processes of one job, and what they tell each other. What comes back of each call is here by
// rank.
struct Job {
    explicit Job(uint64_t token) : token(token)
    {
        for (uint32_t i = 0; i < kRanks; ++i) ranks.push_back(std::make_unique<Rank>(token + i));
        for (auto &rank : ranks) rank->open(store::Stay::kCreate);
    }

    uint64_t token;  // of rank 0's attempts; rank 1 has another
    std::vector<std::unique_ptr<Rank>> ranks;
    std::vector<Record> records;
    std::vector<Status> said;

    void reopen(bool lost)
    {
        for (auto &rank : ranks) {
            rank->commit.reset();
            rank->generations.reset();
            rank->store.reset();
            rank->disk.fail_one_in = rank->disk.fail_flush_one_in = 0;
            rank->disk.restart(lost);
            rank->open(store::Stay::kOpen);
        }
    }

    // As the group would say it of what all told.
    [[nodiscard]] Status agree(uint32_t self) const
    {
        return compare(records.data(), kRanks, self);
    }

    // `causes`: why a rank cannot take part.
    void open(std::vector<Status> causes = std::vector<Status>(kRanks))
    {
        records.assign(kRanks, Record());
        said.assign(kRanks, Status());
        for (uint32_t i = 0; i < kRanks; ++i) {
            ranks[i]->commit = std::make_unique<Commit>(*ranks[i]->generations, "store",
                                                        token + i * 1000, causes[i]);
            records[i] = ranks[i]->commit->opening();
            records[i].sequence = 1;
        }
        for (uint32_t i = 0; i < kRanks; ++i) {
            said[i] = ranks[i]->commit->opened(agree(i), records);
        }
    }

    // A block is written on each rank, and kept. `instead`: why a rank has no manifest.
    void prepare(std::vector<Status> instead = std::vector<Status>(kRanks))
    {
        for (uint32_t i = 0; i < kRanks; ++i) {
            Rank &rank = *ranks[i];
            Result<store::Placement> place = rank.store->begin_write(0, kBlock);
            ASSERT_TRUE(place.ok()) << place.status().sentence();
            rank.store->end_write(place.value(), true);
            Result<store::Placement> kept = rank.store->keep(0, rank.commit->set());
            ASSERT_TRUE(kept.ok()) << kept.status().sentence();
            store::Manifest manifest;
            manifest.blocks.push_back(kept.value());
            if (instead[i].ok()) rank.commit->prepare(manifest);
            if (!instead[i].ok()) rank.commit->prepare(instead[i]);
        }
        vote();
    }

    void vote()
    {
        for (uint32_t i = 0; i < kRanks; ++i) {
            records[i] = ranks[i]->commit->ballot();
            records[i].sequence = 2;
        }
    }

    void close(uint32_t self, bool heard = true)
    {
        const Status agreed = heard ? agree(self) : Status::error(STW_ERROR_PEER, "rank 1 is gone");
        said[self] = ranks[self]->commit->close(agreed, heard);
    }

    void close_all()
    {
        for (uint32_t i = 0; i < kRanks; ++i) close(i);
    }

    void commit_one()
    {
        open();
        prepare();
        close_all();
        for (const Status &status : said) ASSERT_TRUE(status.ok()) << status.sentence();
    }

    [[nodiscard]] std::vector<FoundGenerations> told() const
    {
        std::vector<FoundGenerations> all;
        for (const auto &rank : ranks) all.push_back(tell(rank->generations->found()));
        return all;
    }

    void resume_newest()
    {
        const Ids resumable = hear(told(), kKept);
        ASSERT_FALSE(resumable.empty());
        for (auto &rank : ranks) {
            const auto found = rank->generations->resume(resumable[0], resumable);
            ASSERT_TRUE(found.ok());
            ASSERT_TRUE(rank->store->adopt(0, found.value().blocks.at(0)).ok());
        }
    }
};

bool says(const Status &status, const char *words)
{
    return std::strstr(status.sentence(), words) != nullptr;
}

FoundGenerations found(const Ids &ids)
{
    return tell(ids);
}

// ----------------------------------------------------------------------------------- a commit ----

TEST(Commit, ItIsOneOnAllRanksAndFoundOnAll)
{
    Job job(100);
    job.commit_one();
    job.commit_one();
    const Ids both{{2, 100}, {1, 100}};
    for (const auto &rank : job.ranks) EXPECT_EQ(rank->ids(), both);
    job.reopen(true);
    EXPECT_EQ(hear(job.told(), kKept), both);
    job.resume_newest();
    job.commit_one();
    for (const auto &rank : job.ranks) EXPECT_EQ(rank->ids(), (Ids{{3, 100}, {2, 100}}));
}

TEST(Commit, TheTokenOfRank0Counts)
{
    Job job(100);
    job.open();
    EXPECT_EQ(job.records[0].counts[0], 100u);
    EXPECT_EQ(job.records[1].counts[0], 1100u) << "each tells its own";
    for (const auto &rank : job.ranks) EXPECT_EQ(rank->commit->id(), (GenerationId{1, 100}));
    job.prepare();
    EXPECT_EQ(job.records[0].spec, job.records[1].spec);
    job.close_all();
    for (const auto &rank : job.ranks) EXPECT_EQ(rank->ids(), (Ids{{1, 100}}));
}

TEST(Commit, BallotsOfTwoAttemptsDoNotAgree)
{
    Job job(100);
    Job other(500);
    for (Job *each : {&job, &other}) {
        each->open();
        each->prepare();
    }
    job.records[1] = other.records[1];
    job.close_all();
    for (uint32_t i = 0; i < kRanks; ++i) {
        EXPECT_EQ(job.said[i].code(), STW_ERROR_MISMATCH);
        EXPECT_TRUE(says(job.said[i], "generation 1 of token")) << job.said[i].sentence();
        EXPECT_EQ(job.ranks[i]->ids(), Ids());
    }
}

TEST(Commit, RanksAtDifferentNumbersBeginNone)
{
    Job ahead(100);
    ahead.commit_one();
    Job job(200);
    std::swap(job.ranks[0], ahead.ranks[0]);
    job.open();
    for (uint32_t i = 0; i < kRanks; ++i) {
        EXPECT_EQ(job.said[i].code(), STW_ERROR_MISMATCH);
        EXPECT_TRUE(says(job.said[i], "at generation 2 on rank 0 and at generation 1 on rank 1"))
            << job.said[i].sentence();
    }
}

TEST(Commit, ARankThatCannotTakePartRefusesOnBoth)
{
    Job job(100);
    job.commit_one();
    uint64_t before[kRanks];
    for (uint32_t i = 0; i < kRanks; ++i) before[i] = job.ranks[i]->disk.requests();
    job.open({Status(), Status::error(STW_ERROR_BUDGET, "a phase is open")});
    EXPECT_EQ(job.said[0].code(), STW_ERROR_BUDGET);
    EXPECT_TRUE(says(job.said[0], "rank 1 cannot take part")) << job.said[0].sentence();
    EXPECT_TRUE(says(job.said[0], "a phase is open")) << job.said[0].sentence();
    EXPECT_STREQ(job.said[1].sentence(), "a phase is open") << "its own words";
    for (uint32_t i = 0; i < kRanks; ++i) {
        EXPECT_EQ(job.ranks[i]->disk.requests(), before[i]) << "nothing is written";
        EXPECT_TRUE(job.ranks[i]->generations->stuck().ok());
    }
    job.commit_one();
    for (const auto &rank : job.ranks) EXPECT_EQ(rank->ids(), (Ids{{2, 100}, {1, 100}}));
}

TEST(Commit, AnOpeningThatIsNotHeardIsNoDoubt)
{
    Job job(100);
    const Status gone = Status::error(STW_ERROR_PEER, "rank 1 is gone");
    for (auto &rank : job.ranks) {
        rank->commit = std::make_unique<Commit>(*rank->generations, "store", 7, Status());
        EXPECT_EQ(rank->commit->opened(gone, {}).code(), STW_ERROR_PEER);
        EXPECT_TRUE(rank->generations->stuck().ok());
    }
    job.commit_one();
}

TEST(Commit, ANoLeavesTheOldGenerationOnBoth)
{
    for (uint32_t bad = 0; bad < kRanks; ++bad) {
        Job job(100);
        job.commit_one();
        job.open();
        std::vector<Status> instead(kRanks);
        instead[bad] = Status::error(STW_ERROR_IO, "block 5 was not written");
        job.prepare(instead);
        job.close_all();
        EXPECT_STREQ(job.said[bad].sentence(), "block 5 was not written");
        const Status &other = job.said[1 - bad];
        EXPECT_EQ(other.code(), STW_ERROR_IO);
        EXPECT_TRUE(says(other, format_text("rank %u cannot", bad).c_str())) << other.sentence();
        for (const auto &rank : job.ranks) {
            EXPECT_EQ(rank->ids(), (Ids{{1, 100}}));
            EXPECT_TRUE(rank->generations->stuck().ok());
            EXPECT_EQ(rank->store->used_slots(), 2u) << "what is kept, and what is new";
        }
        job.reopen(false);
        EXPECT_EQ(hear(job.told(), kKept), (Ids{{1, 100}}));
        for (const auto &rank : job.ranks) {
            EXPECT_EQ(rank->generations->found(), (Ids{{1, 100}})) << "erased where it was whole";
        }
    }
}

TEST(Commit, ADiskThatFailsOnOneRankIsANoOfAll)
{
    Job job(100);
    job.commit_one();
    job.open();
    job.ranks[1]->disk.fail_flush_one_in = 1;
    job.prepare();
    job.ranks[1]->disk.fail_flush_one_in = 0;
    job.close_all();
    for (uint32_t i = 0; i < kRanks; ++i) {
        EXPECT_EQ(job.said[i].code(), STW_ERROR_SYNC);
        EXPECT_EQ(job.ranks[i]->ids(), (Ids{{1, 100}}));
    }
    job.open();
    for (const Status &status : job.said) EXPECT_EQ(status.code(), STW_ERROR_SYNC) << "it sticks";
    EXPECT_TRUE(job.ranks[0]->generations->stuck().ok());
}

// ------------------------------------------------------------------- a vote that is not heard ----

TEST(Commit, AnUnheardVoteIsDoubt)
{
    Job job(100);
    job.commit_one();
    job.open();
    job.prepare();
    job.close(0);
    job.close(1, false);
    EXPECT_TRUE(job.said[0].ok()) << "it has heard all of them";
    EXPECT_EQ(job.said[1].code(), STW_ERROR_PEER);
    EXPECT_EQ(job.ranks[0]->ids(), (Ids{{2, 100}, {1, 100}}));
    EXPECT_EQ(job.ranks[1]->ids(), (Ids{{1, 100}}));
    const Status &stuck = job.ranks[1]->generations->stuck();
    EXPECT_TRUE(says(stuck, "generation 2 is undecided")) << stuck.sentence();
    EXPECT_TRUE(says(stuck, "rank 1 is gone")) << stuck.sentence();
    job.open();
    for (const Status &status : job.said) {
        EXPECT_FALSE(status.ok()) << "none is taken on any rank before all are opened again";
    }
    job.reopen(true);
    EXPECT_EQ(hear(job.told(), kKept), (Ids{{2, 100}, {1, 100}})) << "all had prepared";
    job.resume_newest();
    job.commit_one();
}

// Nobody can have committed what one has not prepared, whatever is heard.
TEST(Commit, AnUnheardVoteIsNoDoubtWhereItsOwnIsNo)
{
    Job job(100);
    job.commit_one();
    job.open();
    job.prepare({Status(), Status::error(STW_ERROR_IO, "block 5 was not written")});
    job.close(0, false);
    job.close(1, false);
    EXPECT_EQ(job.said[0].code(), STW_ERROR_PEER);
    EXPECT_FALSE(job.ranks[0]->generations->stuck().ok()) << "it does not know of the no";
    EXPECT_STREQ(job.said[1].sentence(), "block 5 was not written");
    EXPECT_TRUE(job.ranks[1]->generations->stuck().ok());
    job.reopen(true);
    EXPECT_EQ(job.ranks[0]->generations->found(), (Ids{{2, 100}, {1, 100}}));
    EXPECT_EQ(hear(job.told(), kKept), (Ids{{1, 100}}));
    job.resume_newest();
    for (const auto &rank : job.ranks) EXPECT_EQ(rank->ids(), (Ids{{1, 100}}));
}

TEST(Commit, AnUnheardVoteIsNoDoubtWhereItsOwnDiskFailed)
{
    Job job(100);
    job.commit_one();
    job.open();
    job.ranks[1]->disk.fail_one_in = 1;
    job.prepare();
    job.ranks[1]->disk.fail_one_in = 0;
    job.close(1, false);
    EXPECT_EQ(job.said[1].code(), STW_ERROR_IO);
    EXPECT_TRUE(job.ranks[1]->generations->stuck().ok());
    EXPECT_EQ(job.ranks[1]->store->used_slots(), 2u) << "what is kept, and what is new";
}

TEST(Commit, AllAreHeardWhereNoneIsMissing)
{
    std::vector<Record> records(3);
    EXPECT_FALSE(is_heard({}));
    EXPECT_FALSE(is_heard(records));
    for (Record &record : records) record.sequence = 4;
    EXPECT_TRUE(is_heard(records));
    records[1].status = STW_ERROR_IO;
    EXPECT_TRUE(is_heard(records)) << "whatever they say";
    records[2].sequence = 0;
    EXPECT_FALSE(is_heard(records));
}

// ------------------------------------------------------------------------ what can be resumed ----

TEST(Commit, StoresOfTwoJobsHaveNothingInCommon)
{
    Job job(100);
    Job other(500);
    for (Job *each : {&job, &other}) {
        each->commit_one();
        each->commit_one();
    }
    std::swap(job.ranks[1], other.ranks[1]);
    job.reopen(false);
    EXPECT_EQ(job.ranks[0]->generations->found(), (Ids{{2, 100}, {1, 100}}));
    EXPECT_EQ(job.ranks[1]->generations->found(), (Ids{{2, 500}, {1, 500}}));
    const Ids resumable = hear(job.told(), kKept);
    EXPECT_EQ(resumable, Ids());
    Result<GenerationId> none = choose(resumable, 0, job.told(), "store");
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.status().code(), STW_ERROR_NOT_FOUND);
    EXPECT_STREQ(none.status().sentence(),
                 "the store 'store' cannot be resumed at a generation that all ranks have: rank 0 "
                 "has 2 1, rank 1 has 2 1");
}

TEST(Commit, TheNewestIsChosenOrTheNumberThatIsAskedFor)
{
    const std::vector<FoundGenerations> ranks{found({{7, 1}, {5, 1}}), found({{7, 1}, {5, 1}})};
    const Ids both = hear(ranks, kKept);
    ASSERT_EQ(both, (Ids{{7, 1}, {5, 1}}));
    for (const auto &[number, wanted] : {std::pair{0u, both[0]}, {7u, both[0]}, {5u, both[1]}}) {
        Result<GenerationId> chosen = choose(both, number, ranks, "s");
        ASSERT_TRUE(chosen.ok()) << chosen.status().sentence();
        EXPECT_EQ(chosen.value(), wanted) << number;
    }
}

TEST(Commit, ANumberThatNotAllHaveIsNotFoundAndEachRanksAreNamed)
{
    const std::vector<FoundGenerations> ranks{found({{7, 1}, {6, 1}}), found({{6, 1}}), found({})};
    Result<GenerationId> none = choose(hear(ranks, kKept), 7, ranks, "model");
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.status().code(), STW_ERROR_NOT_FOUND);
    EXPECT_STREQ(none.status().sentence(),
                 "the store 'model' cannot be resumed at generation 7: rank 0 has 7 6, rank 1 has "
                 "6, rank 2 has none");
}

TEST(Commit, ANumberThatIsNotKeptIsNotFoundAndTheResumableOnesAreNamed)
{
    const std::vector<FoundGenerations> one{found({{4, 1}, {3, 1}, {2, 1}})};
    const std::vector<FoundGenerations> two{one[0], one[0]};
    EXPECT_STREQ(choose(hear(one, 2), 2, one, "s").status().sentence(),
                 "the store 's' cannot be resumed at generation 2: it has 4 3");
    EXPECT_STREQ(choose(hear(two, 2), 1, two, "s").status().sentence(),
                 "the store 's' cannot be resumed at generation 1: all ranks have 4 3");
}

TEST(Commit, WhatIsHeardIsInCommonNewestFirstAndAsManyAsAreKept)
{
    const FoundGenerations three = found({{4, 1}, {3, 1}, {2, 1}});
    EXPECT_EQ(hear({three, three}, 2), (Ids{{4, 1}, {3, 1}}));
    EXPECT_EQ(hear({three, found({{3, 1}, {2, 1}})}, 2), (Ids{{3, 1}, {2, 1}}));
    EXPECT_EQ(hear({three, found({})}, 2), Ids());
}

// A rank may be of another build, or its memory bad.
TEST(Commit, ACountThatIsTooLargeIsNotBelieved)
{
    Ids many;
    for (uint64_t i = 20; i > 0; --i) many.push_back({i, 1});
    FoundGenerations mine = tell(many);
    ASSERT_EQ(mine.count, store::kKeepsMax);
    EXPECT_EQ(mine.ids[0], (GenerationId{20, 1})) << "the newest are told";
    EXPECT_EQ(mine.ids[store::kKeepsMax - 1], (GenerationId{13, 1}));
    mine.count = UINT32_MAX;
    EXPECT_EQ(hear({mine}, 100).size(), size_t{store::kKeepsMax});
    EXPECT_FALSE(choose({}, 1, {mine}, "s").ok());
}

FoundGenerations rank_with(FilesThere files, std::vector<uint64_t> numbers, bool damaged = false)
{
    FoundGenerations rank;
    rank.files = static_cast<uint16_t>(files);
    rank.damaged = damaged ? 1 : 0;
    for (const uint64_t number : numbers) rank.ids[rank.count++] = {number, 7};
    return rank;
}

TEST(Commit, OnlyWhatWasNeverCommittedToIsUnused)
{
    const FoundGenerations nothing = rank_with(kNoFiles, {});
    const FoundGenerations fresh = rank_with(kAllFiles, {});
    const FoundGenerations first = rank_with(kAllFiles, {1});
    const FoundGenerations later = rank_with(kAllFiles, {2, 1});
    const FoundGenerations partial = rank_with(kSomeFiles, {});
    const FoundGenerations damaged = rank_with(kAllFiles, {}, true);
    EXPECT_TRUE(is_unused({nothing}));
    EXPECT_TRUE(is_unused({nothing, nothing}));
    EXPECT_TRUE(is_unused({fresh}));
    EXPECT_TRUE(is_unused({fresh, nothing}));
    EXPECT_TRUE(is_unused({first, fresh})) << "whoever is fresh never had the first one";
    EXPECT_FALSE(is_unused({first, first})) << "of two jobs, or one that is damaged elsewhere";
    EXPECT_FALSE(is_unused({first, nothing})) << "it may have had it";
    EXPECT_FALSE(is_unused({later, fresh}));
    EXPECT_FALSE(is_unused({partial}));
    EXPECT_FALSE(is_unused({partial, fresh}));
    EXPECT_FALSE(is_unused({damaged}));
    EXPECT_FALSE(is_unused({first, damaged}));
}

}  // namespace
}  // namespace stepwell::collective
