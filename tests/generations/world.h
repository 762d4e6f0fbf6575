// SPDX-License-Identifier: Apache-2.0
// Ranks that commit generations of their stores, crash at any request, and reopen: real stores,
// manifests and votes over simulated disks, against a model of what each generation holds. A seed
// is a run.
#pragma once

#include "lib/collective/commit.h"
#include "lib/store/generations.h"
#include "lib/store/store.h"
#include "tests/generations/disk.h"

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace stepwell::generations {

struct Options {
    uint64_t seed = 1;
    uint32_t ranks_min = 1;
    uint32_t ranks_max = 64;
    uint32_t rounds = 12;  // of work, a commit, and perhaps a crash
    bool verbose = false;
};

// What a rank's blocks hold: a number for each, 0: nothing was written.
using Contents = std::vector<uint64_t>;

struct Rank {
    std::unique_ptr<Disk> disks[2];
    std::unique_ptr<store::Store> store;
    std::unique_ptr<store::Generations> generations;
    std::unique_ptr<collective::Commit> commit;
    uint32_t first = 0;  // block 0's number in this process
    Contents now;
    std::map<store::GenerationId, Contents> committed;  // by attempt: what it was to hold
    bool stopped = false;                               // in this attempt: it says nothing more
};

class World {
public:
    explicit World(const Options &options);
    // "": all held; else what did not, in a sentence.
    std::string run();
    [[nodiscard]] uint64_t commits() const { return commits_; }
    [[nodiscard]] uint64_t crashes() const { return crashes_; }
    [[nodiscard]] uint64_t doubts() const { return doubts_; }

private:
    store::StoreOptions store_options(Rank &rank, store::Stay stay) const;
    store::GenerationsOptions generations_options(Rank &rank, store::Stay stay) const;
    void make_ranks();
    void fail(const std::string &what);
    void check(const Status &status, const char *what);
    void work(Rank &rank);
    bool write(Rank &rank, uint32_t block, uint64_t value);
    void read(Rank &rank, uint32_t block, uint64_t value, const char *when);
    Result<store::Manifest> keep_blocks(Rank &rank);
    void commit();
    bool exchange(std::vector<collective::Record> *records);
    [[nodiscard]] Status agree(const std::vector<collective::Record> &records, uint32_t rank,
                               bool heard) const;
    bool stops(const Rank &rank);
    void close_commit(Rank &rank, const Status &agreed, bool heard);
    void plan_faults();
    void reopen();
    void open_stores();
    void restore(Rank &rank, const store::GenerationId &id,
                 const std::vector<store::GenerationId> &resumable);
    void note(const char *format, ...) __attribute__((format(printf, 2, 3)));
    uint64_t draw(uint64_t below) { return random_() % below; }

    const Options options_;
    std::mt19937_64 random_;
    uint32_t blocks_ = 0;  // of each rank
    uint32_t kept_ = 2;
    uint32_t paths_ = 1;
    std::vector<Rank> ranks_;
    uint64_t values_ = 0;    // given out so far
    uint64_t promised_ = 0;  // the newest number that a commit has reported
    bool troubled_ = false;  // somebody failed, crashed or is undecided: all reopen
    bool power_ = false;     // in this round ranks may stop, and messages be lost
    uint64_t commits_ = 0;
    uint64_t crashes_ = 0;
    uint64_t doubts_ = 0;
    std::string failure_;
};

}  // namespace stepwell::generations
