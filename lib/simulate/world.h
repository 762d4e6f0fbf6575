// SPDX-License-Identifier: Apache-2.0
// World: ranks in virtual time. Each has a core and a ledger, the same code as in the runtime,
// that decide where bytes are and what is gathered when; their commands are carried out on shared
// links, and the lanes of its program wait for their answers. Collectives take the time given by
// the machine, and begin when all of their ranks have called. Pure; one thread. The same input
// gives the same results.
#pragma once

#include "lib/residency/core.h"
#include "lib/schedule/trace/trace.h"
#include "lib/simulate/program.h"
#include "lib/simulate/shared_links.h"

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

namespace stepwell::simulate {

struct WorldOptions {
    bool folded = true;            // one rank represents all
    std::vector<double> slowness;  // of computations, by rank; missing: 1
};

struct StepResult {
    Instant step_ns = 0;
    std::array<Instant, kCauses> stall_ns = {};
    uint64_t gathers = 0;
    std::vector<double> link_bytes;  // of rank 0 over each link of the machine
};

struct RankResult {
    std::vector<StepResult> steps;
    uint64_t peak_blocks[kSimulatedPlaces] = {};
};

class World {
public:
    World(const Machine &machine, const Layout &layout, const Program &program,
          const WorldOptions &options);
    ~World();

    // Fails if a core refuses something, or the program cannot go on.
    Status run();
    [[nodiscard]] const RankResult &result(uint32_t rank) const;
    [[nodiscard]] uint64_t events() const { return events_; }

private:
    struct Rank;
    struct View;
    struct Collective;

    Status fill(Rank &rank);
    Status fill_tensor(Rank &rank, TensorId tensor);
    Status advance(Rank &rank);
    Status advance_lane(Rank &rank, LaneId lane, bool *moved);
    Status advance_updates(Rank &rank, bool *moved);
    [[nodiscard]] OpId next_of(Rank &rank, LaneId lane) const;
    void end_drain(Rank &rank);
    [[nodiscard]] bool may_start(const Rank &rank, const Op &op) const;
    Status start(Rank &rank, OpId id);
    Status fetch(Rank &rank, OpId id);
    Status release(Rank &rank, const Op &op);
    void answer(Rank &rank, const residency::Granted &granted);

    // ahead.cpp
    void take_bandwidths(Rank &rank);
    Status look_ahead(Rank &rank);
    bool end_hint(Rank &rank, residency::FetchId fetch, const Status &status);

    // collectives.cpp
    Status add_wholes(Rank &rank);
    void begin_gather(Rank &rank, OpId id);
    void let_go(Rank &rank, uint32_t tile);
    void begin_sum(Rank &rank, const Op &op);
    void call_update(Rank &rank, OpId id);
    Status pump_gathers(Rank &rank);
    void prepare(Rank &rank, Collective &work, std::vector<residency::Request> requests);
    [[nodiscard]] bool take_prepared(Rank &rank, const residency::Granted &granted);
    void advance_collectives(Rank &rank);
    void arrive(Rank &rank);
    void end_collective(Rank &rank);
    void blame_gather(Rank &rank, uint32_t tile, Instant begin, Instant end);

    void begin_step(Rank &rank);
    void done(Rank &rank, OpId id);
    Status execute(Rank &rank);
    void submit(Rank &rank, const std::vector<residency::Transfer> &transfers);
    void send(Rank &rank, const residency::Transfer &transfer);
    Status settle(const SharedLinks::Ended &ended);
    Status settle_all();
    [[nodiscard]] Cause cause_of(const Rank &rank, OpId fetch) const;
    void blame(Rank &rank, OpId op, Instant begin, Instant end, uint32_t depth);

    const Machine &machine_;  // as the next three, must outlive this
    const Layout &layout_;
    const Program &program_;
    const WorldOptions &options_;
    SharedLinks links_;
    uint32_t fabric_ = 0;  // a link of each rank's own, for collectives
    uint32_t clock_ = 0;   // likewise for each lane that computes: time passes on it
    [[nodiscard]] size_t storage_path(residency::BlockId block) const;
    // By storage path, which is the same for other routes.
    std::vector<std::array<std::vector<uint32_t>, kRoutes>> paths_;
    std::vector<std::unique_ptr<Rank>> ranks_;
    // Ranks that have called, by number of the collective in its group, and by group.
    std::unordered_map<uint64_t, std::vector<uint32_t>> arrived_;
    std::vector<SharedLinks::Ended> ended_;
    uint32_t group_ranks_ = 1;
    Instant now_ = 0;
    uint64_t events_ = 0;
    uint64_t timers_ = 0;  // in flight
    bool filling_ = false;
};

}  // namespace stepwell::simulate
