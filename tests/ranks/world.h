// SPDX-License-Identifier: Apache-2.0
// World: all ranks in one virtual time, what they share (links, collectives) and the faults that
// are injected. One event at a time, the earliest first; of those at one time, the first that was
// arranged. One thread.
#pragma once

#include "tests/ranks/fabric.h"
#include "tests/ranks/memory.h"
#include "tests/ranks/setup.h"
#include "tests/ranks/wakeups.h"

#include <memory>
#include <vector>

namespace stepwell::ranks {

class Rank;

// What is wrong now, and for whom.
struct Disturbance {
    std::array<Instant, kRanksMax> stopped_until{};
    std::array<double, kRanksMax> slowness;  // of computing
    struct Disk {
        uint32_t reads_fail = 0;  // so many of the next
        uint32_t writes_fail = 0;
        bool all_reads_fail = false;
        bool all_writes_fail = false;
    };
    std::array<Disk, kRanksMax> disks;  // by instance of the link
    std::array<uint32_t, kRanksMax> copies_fail{};
    std::array<uint32_t, kRanksMax> hangs{};
};

class World {
public:
    explicit World(const Options &options);
    ~World();
    Outcome run();

    [[nodiscard]] Instant now() const { return journal.now; }
    void wake(Instant at, Wake what, uint32_t rank, uint64_t number = 0);
    void submit(uint32_t rank, Sent *flight);
    void promote(uint32_t job) { links_.promote(job); }
    // The status with which a transfer will end, where that is decided now.
    [[nodiscard]] stw_status choose_fault(uint32_t rank, const Transfer &transfer);
    void arrive(uint32_t rank, Collective::Lane lane, bool in_group, Instant takes);
    [[nodiscard]] bool program_runs() const { return running_ > 0; }
    void program_ended() { --running_; }

    const Options options;
    Random random;
    const Setup setup;
    Journal journal;
    Planted planted;
    Counts counts;
    Disturbance disturbance;

private:
    struct Heal {
        Wake what = Wake::kHeal;
        uint32_t kind = 0;
        uint32_t rank = 0;
        LinkKind link = kDiskRead;
    };

    void handle(const Wakeup &wakeup);
    void end_of_link(uint32_t job);
    void go_until_quiet();
    void fail_endless();
    void finish();

    // faults.cpp
    void begin_fault();
    void end_fault(uint64_t number);
    void heal_all();
    void slow_link();
    void fail_disk();
    void delay_rank();
    void fail_copy();

    Links links_;
    Fabric fabric_;
    std::vector<std::unique_ptr<Rank>> ranks_;
    Wakeups queue_;
    std::vector<Links::Moved> started_;
    std::vector<Heal> heals_;
    uint64_t handled_ = 0;
    uint64_t owed_ = 0;     // in the queue, without what plans wish for
    uint32_t running_ = 0;  // programs of ranks
};

}  // namespace stepwell::ranks
