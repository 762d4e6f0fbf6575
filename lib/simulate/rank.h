// SPDX-License-Identifier: Apache-2.0
// One rank of a world: its core, lanes and tensors. Private to world.cpp, collectives.cpp and
// rank.cpp.
#pragma once

#include "lib/gathering/agreed.h"
#include "lib/residency/command_loop.h"
#include "lib/schedule/lookahead/lookahead.h"
#include "lib/simulate/world.h"

#include <deque>
#include <map>
#include <set>

namespace stepwell::simulate {

struct World::View {
    Use use;
    bool by_gate = false;
};

// A gather or a sum, in the order in which all ranks called it.
struct World::Collective {
    uint32_t tile = 0;
    gathering::GatherId gather = 0;  // 0: a sum
    residency::ClaimId claim = 0;    // of a sum, from its call on: updates called later wait for it
    gathering::StartGather start;    // of a gather: memory for the gathered tensor
    residency::FetchId preparing = 0;
    std::vector<residency::Request> requests;
    std::vector<residency::Grant> grants;  // for `requests`
    bool prepared = false;
    bool running = false;
};

// Tags of events that are not transfers, whose tags count from 1.
constexpr SharedLinks::Tag kOpTag = SharedLinks::Tag{1} << 63;
constexpr SharedLinks::Tag kCollectiveTag = kOpTag - 1;  // of a rank's front collective
constexpr SharedLinks::Tag kTimerTag = kOpTag - 2;       // of a look ahead

struct World::Rank final : residency::CommandSink, residency::EventHook {
    struct LaneState {
        size_t cursor = 0;  // of operations in the program's order
        bool busy = false;  // with the operation at the cursor
        Instant since = 0;  // begin of the wait
        bool waits = false;
        OpId last = kNoOp;  // started
    };

    // By step and tile, as the next forward pass uses their parameters. Each has the operation that
    // fetches its bytes.
    using UpdateKey = std::array<uint32_t, 3>;
    struct Updates {
        std::set<UpdateKey> called;   // and not begun
        std::set<UpdateKey> arrived;  // their bytes are there
        OpId working = kNoOp;         // the next operation of the one that is worked on
        uint32_t in_flight = 0;       // begun and not over
    };

    // By operation of the program.
    struct Progress {
        std::vector<bool> is_done;
        std::vector<Instant> began;  // both of rank 0 only: for the causes of its waits
        std::vector<Instant> ended;
        std::vector<OpId> before;  // in its lane
    };

    // When the inputs of a tile's last gather had arrived.
    struct Arrival {
        Instant updated = 0;
        Instant slice = 0;
    };

    struct TileState {
        gathering::WholeId whole = 0;
        std::vector<residency::Grant> views;  // open views of the gathered tensor
        // Until its update has ended; the second is that of one made again.
        std::array<residency::ClaimId, 2> updating = {};
        Arrival arrival;
    };

    // Collectives that were called and have not ended, the oldest first.
    struct CollectiveQueue {
        std::deque<std::unique_ptr<Collective>> waiting;
        gathering::GatherId gathers = 0;         // queued so far
        gathering::GatherId gathers_before = 0;  // before the step
        uint64_t begun = 0;
    };

    Rank(World &world, uint32_t number, const Layout &layout, const Program &program);

    // For the command loop. There is no store, and memory takes no time.
    [[nodiscard]] Instant now() const override { return world.now_; }
    void forget(const residency::Forget &) override {}
    void swap_memory(std::vector<residency::Swap> &) override {}
    void pack_freed(residency::PackId) override {}
    void submit(std::vector<residency::Transfer> &transfers, residency::Commands &) override
    {
        world.submit(*this, transfers);
    }
    void promote(residency::TransferId id) override;
    void failed(const residency::BackgroundError &) override {}
    bool granted(residency::Granted &granted, residency::Commands &) override;
    bool refused(residency::Refused &refused, residency::Commands &) override;
    void after_round(Instant, residency::Commands &) override;

    World &world;  // not owned
    const uint32_t number;
    schedule::Trace trace;
    std::unique_ptr<schedule::Lookahead> lookahead;  // null: nothing is prefetched
    Instant timer_at = residency::kNever;            // latest time of the next look ahead
    std::pair<uint64_t, uint64_t> cleaned_at;        // turn and position of the forecast
    residency::Core core;
    residency::CommandLoop loop{*this};
    residency::Commands &out = loop.out;
    Status failure;                        // of a command
    std::vector<residency::Grant> filled;  // while the tensors are filled
    std::array<LaneState, kLanes> lanes;
    Updates updates;
    Progress ops;
    std::vector<std::vector<View>> views;  // by tensor
    std::unordered_map<residency::FetchId, OpId> fetches;
    gathering::WholeGathers gathers;
    std::vector<uint32_t> tile_of;   // by gathered tensor
    std::map<uint64_t, OpId> calls;  // gathers that were not answered yet
    std::vector<TileState> tiles;
    CollectiveQueue collectives;
    uint64_t in_flight = 0;
    OpId drains = kNoOp;
    uint32_t steps = 0;
    Instant begun = 0;  // of the open step
    StepResult open;    // its waits
    RankResult result;
};

}  // namespace stepwell::simulate
