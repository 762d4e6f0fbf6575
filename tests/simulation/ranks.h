// SPDX-License-Identifier: Apache-2.0
// Ranks: several cores that make the same calls on gathered tensors, each in its own time, with its
// own delays and its own local load. What is agreed must come out the same on all of them.
#pragma once

#include "lib/gathering/agreed.h"
#include "tests/simulation/machine.h"
#include "tests/simulation/simulation.h"

#include <deque>
#include <memory>

namespace stepwell::simulation {

using namespace gathering;

// One call of the program that all ranks run.
struct RankCall {
    // kEarly: an update that ends with the next kVerdict, which is a collective.
    enum class Kind { kFetch, kRelease, kWrite, kUpdate, kEarly, kVerdict };
    Kind kind = Kind::kFetch;
    std::vector<WholeId> wholes;
    size_t fetch = 0;     // of a release: which fetch call, by its number among fetches
    uint64_t absent = 0;  // of a fetch: the ranks that want no bytes, a bit each

    [[nodiscard]] bool is_absent(uint32_t rank) const { return (absent >> rank & 1) != 0; }
};

struct RankPlan {
    uint32_t ranks = 2;
    uint32_t whole_blocks = 0;           // agreed
    uint64_t bucket_bytes = 0;           // agreed
    uint32_t ahead_max = 0;              // agreed
    std::vector<uint32_t> shard_blocks;  // of each tensor; its whole is as many times larger
    std::vector<RankCall> calls;
    uint32_t faults_per_million = 0;  // of shards that a rank is to read for a gather
    std::vector<uint32_t> slow;       // ranks that get one turn of 20
    uint32_t dies = UINT32_MAX;       // this rank, before its call
    size_t dies_at = 0;
};

// What the ranks exchange: a collective runs once every rank has started it, in order.
class Fabric {
public:
    Fabric(uint32_t ranks, Journal &journal) : started_(ranks), journal_(journal) {}
    // Fewer shards than wholes: the rank cannot take part.
    void start(uint32_t rank, const StartGather &gather, const std::vector<Stamp> &shards);
    [[nodiscard]] bool ready(GatherId gather) const;
    // Every rank came; which of them could not read its shard, if one could not.
    [[nodiscard]] bool failed(GatherId gather) const { return gathers_.at(gather).failed; }
    // Some rank takes no bytes.
    [[nodiscard]] bool partial(GatherId gather) const { return gathers_.at(gather).partial; }
    void start_verdict(size_t verdict) { ++verdicts_[verdict]; }
    [[nodiscard]] bool verdict_ready(size_t verdict) const
    {
        return broken_ || verdicts_.at(verdict) == started_.size();
    }
    // A rank is gone: nothing is ready any more, and all are told.
    void break_down() { broken_ = true; }
    [[nodiscard]] bool broken() const { return broken_; }
    // By rank, each rank's in the order of the wholes.
    [[nodiscard]] const std::vector<std::vector<Stamp>> &shards(GatherId gather) const
    {
        return gathers_.at(gather).shards;
    }

private:
    struct Collective {
        std::vector<WholeId> wholes;
        std::vector<std::vector<Stamp>> shards;
        uint32_t arrived = 0;
        bool failed = false;
        bool partial = false;
    };
    bool broken_ = false;
    std::vector<GatherId> started_;  // the last one of each rank
    std::map<GatherId, Collective> gathers_;
    std::map<size_t, size_t> verdicts_;  // by number, the ranks that started it
    Journal &journal_;
};

class Rank final : public EventHook {
public:
    Rank(uint32_t rank, const RankPlan &plan, uint64_t seed, Fabric &fabric, Journal &journal);

    // One thing: something in the machine, a finished collective, a local call, or the next call of
    // the plan when it may be made. False when there was nothing to do.
    bool step();
    [[nodiscard]] bool done() const;
    [[nodiscard]] size_t progress() const { return next_call_ + collectives_; }
    [[nodiscard]] bool dead() const { return rank_ == plan_.dies && next_call_ >= plan_.dies_at; }
    [[nodiscard]] const std::string &decisions() const { return gathers_.decisions(); }
    [[nodiscard]] uint64_t events() const { return machine_.events; }
    [[nodiscard]] uint64_t transfers() const { return machine_.transfers; }
    [[nodiscard]] std::string state() const;

    bool granted(Granted &granted, Commands &out) override;
    bool refused(Refused &refused, Commands &out) override;
    void after_round(Instant now, Commands &out) override;

private:
    // A fetch of wholes, by its number in the plan.
    struct Open {
        const RankCall *call = nullptr;
        bool answered = false;
        bool refused = false;
        bool pinned = false;  // though refused
        bool spoils = false;
        bool absent = false;
        bool released = false;
        bool lacks = false;              // may lack bytes that this rank fetched without
        std::vector<uint32_t> versions;  // of the wholes when the call was made
        std::vector<Grant> grants;
    };
    // A write of the shard: by the program, which waits for it, or by an update behind the call.
    struct ShardWrite {
        WholeId whole = 0;
        uint32_t version = 0;
        ClaimId claim = 0;
        bool granted = false;
    };
    struct Local {
        Request request;
        Grant grant;
    };
    // Of the updates before it, after the gathers that were called for before it.
    struct Verdict {
        size_t number = 0;
        GatherId after = 0;
        bool started = false;
        std::vector<ShardWrite> writes;
    };
    // A gather whose own shards are being read, one after the other.
    struct Reading {
        StartGather start;
        std::vector<Stamp> shards;
    };

    void create_tensors();
    bool make_call();
    void call_fetch(const RankCall &call);
    bool call_release(const RankCall &call);
    void call_write(const RankCall &call);
    [[nodiscard]] bool awaits_verdict(WholeId whole) const;
    void call_early(WholeId whole);
    void call_verdict();
    bool advance_verdict();
    void fetch_to_write(const ShardWrite &write);
    void write_shard(const ShardWrite &write, const Grant &grant);
    void start(const StartGather &start);
    void read_front();
    void read_next_shard();
    void take_shard(const Grant &grant);
    void start_front();

    bool finish_collective();
    void check_whole(WholeId whole, uint32_t version, const char *when);
    void local_load();
    void release_local();
    Stamp &stamp(TensorId tensor, uint64_t block, uint64_t piece);
    [[nodiscard]] bool holds_empty_view(const std::vector<WholeId> &wholes) const;
    std::vector<Slot> slots(TensorId tensor);
    [[nodiscard]] static Stamp expected(uint32_t rank, WholeId whole, uint32_t version);
    void execute();

    uint32_t rank_;
    const RankPlan &plan_;
    Random random_;
    Fabric &fabric_;
    Journal &journal_;
    Config config_;
    Machine machine_;
    WholeGathers gathers_;
    Commands &out_ = machine_.loop.out;
    std::vector<WholeTensors> tensors_;
    std::vector<uint32_t> versions_;
    size_t next_call_ = 0;
    size_t collectives_ = 0;  // that ended
    std::vector<Open> open_;
    std::map<uint64_t, size_t> numbers_;  // the call of WholeGathers, to the fetch's number
    std::deque<Reading> reading_;         // the front one reads
    FetchId shard_read_ = 0;              // 0: none is being read
    std::vector<StartGather> started_;
    std::map<FetchId, ShardWrite> shard_writes_;
    std::vector<ShardWrite> early_;  // that no verdict was called for
    std::deque<Verdict> verdicts_;
    size_t verdicts_called_ = 0;
    uint32_t program_waits_ = 0;  // for writes of its own
    std::vector<TensorId> local_tensors_;
    std::map<FetchId, Request> local_fetches_;
    std::vector<Local> local_views_;
};

}  // namespace stepwell::simulation
