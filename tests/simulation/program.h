// SPDX-License-Identifier: Apache-2.0
// Program: random calls of several threads on one core, judged by the model after every event.
#pragma once

#include "lib/schedule/lookahead/lookahead.h"
#include "lib/schedule/trace/trace.h"
#include "tests/simulation/addresses.h"
#include "tests/simulation/model.h"
#include "tests/simulation/setup.h"

#include <list>

namespace stepwell::simulation {

constexpr uint32_t kPhases = 2;

// A plan that never says the same twice.
class WildPlan final : public VictimPolicy {
public:
    explicit WildPlan(Random &random) : random_(random) {}
    [[nodiscard]] uint64_t next_use(TensorId) const override { return kNever; }
    [[nodiscard]] bool plans() const override { return true; }
    [[nodiscard]] double worth(TensorId, PlaceId) const override
    {
        return static_cast<double>(random_.below(9)) - 6.0;
    }
    [[nodiscard]] double write_back_worth() const override { return write_back; }

    double write_back = 0;

private:
    Random &random_;
};

class Program final : public EventHook {
public:
    Program(const Options &options, Random &random, Journal &journal);

    void step();
    // Everything is given back and read once more; then everything is destroyed.
    void finish();
    void count(Outcome &outcome) const;

    bool granted(Granted &granted, Commands &out) override;
    bool refused(Refused &refused, Commands &out) override;

private:
    using View = std::unique_ptr<ModelView>;
    // The library's own use: goes through its tensors chunk by chunk.
    struct Claim {
        ClaimId id = 0;
        [[nodiscard]] bool reads() const { return kind_of(id) == ClaimKind::kReads; }
        std::vector<TensorId> tensors;
        uint64_t next_byte = 0;
        FetchId fetch = 0;  // outstanding
        View view;
        std::map<TensorId, uint64_t> versions;  // of what it only reads, since it first did
    };
    using Sleepers = std::map<uint64_t, FetchId>;  // by owner

    // program.cpp: what a program may do
    void act();
    void create();
    void destroy();
    void discard();
    void deliver_idle();
    void evict();
    void change_policy();
    void hint();
    void forgive();
    void pass_time();
    void fail_one();

    // budgets.cpp
    void change_budget();
    void go_on_shrinking();
    void end_shrinking(uint32_t blocks);

    // scores.cpp: a policy of the program, and a plan
    void score();
    void plan();
    void check_candidates(PlaceId place, const std::vector<Candidate> &found);

    // steps.cpp: what it did before, and what is brought ahead for it
    void mark_step();
    void note(const FetchAsked &asked);
    [[nodiscard]] TensorId expected_tensor();
    void look_ahead();
    void hint_over(FetchId id, const Status &status);
    void check_planned();

    // addresses.cpp: what is seen without a view
    [[nodiscard]] bool is_aliased(TensorId tensor, PlaceId place) const
    {
        return setup_.aliases && setup_.config.places[place].maps &&
               model_.tensors.at(tensor).spec.guarded;
    }
    void touch();
    [[nodiscard]] bool is_shown(const FetchAsked &touch, const Addresses::Table &table) const;
    [[nodiscard]] bool has_view_of(TensorId id, PlaceId place, Slot slot, bool writes) const;
    [[nodiscard]] bool is_updated(TensorId id, PlaceId place, Slot slot) const;
    void check_views_shown();
    void check_touches();
    [[nodiscard]] bool is_read_under_claim(TensorId id) const;
    void check_seen(const ModelTensor &tensor, const std::string &name, uint32_t index,
                    const Image &image);
    void check_shown(PlaceId place, Slot slot, const Addresses::Shown &shown);
    void check_addresses();

    // fetches.cpp
    void fetch();
    void ask(const FetchAsked &asked);
    Request choose_request(TensorId id, bool prefetch);
    [[nodiscard]] bool agreed_has_room(TensorId id) const;
    [[nodiscard]] Claim *claim_of(FetchId id);
    void hit();
    void cancel();

    // views.cpp
    void scribble();
    void release_one();
    void release(View view);
    void release_by_gate(const ModelView &view);
    void release_by_core(const ModelView &view);

    // owners.cpp: threads of the program, and what the shell does for them
    [[nodiscard]] uint64_t awake_owner();
    [[nodiscard]] bool awake(uint64_t owner) const { return sleepers_.count(owner) == 0; }
    [[nodiscard]] bool pick_releasable();
    void break_deadlocks();
    void check_deadlock(FetchId id, const std::vector<Held> &held);
    void answered(const FetchAsked &asked, FetchId id);

    // claims.cpp
    void claim();
    [[nodiscard]] bool may_be_kept(TensorId id) const;
    void advance_claim(Claim &claim);
    void next_tensor(Claim &claim);
    void keep_older(const Claim &claim);
    void lend(const Claim &claim);
    Request choose_piece(Claim &claim);
    void check_unchanged(Claim &claim);
    void check_read_beside(FetchId id, const FetchAsked &asked);

    // finish.cpp
    void settle();
    bool give_one_back();
    void read_everything();
    void read_back(TensorId id);
    void destroy_everything();

    [[nodiscard]] TensorId any_tensor();
    void check(const char *after);
    void execute() { machine_.loop.run(); }

    Random &random_;
    Journal &journal_;
    Setup setup_;
    const PlaceId nvme_ = static_cast<PlaceId>(setup_.config.places.size() - 1);  // if it has any
    Machine machine_;
    Model model_;
    Random address_random_;
    Addresses addresses_;
    Random plan_random_;
    Random claim_random_;
    WildPlan plan_;
    Commands &out_ = machine_.loop.out;
    const bool plans_;
    schedule::Trace trace_;
    std::vector<schedule::Lookahead> lookaheads_;  // by phase
    schedule::Lookahead *asking_ = nullptr;        // whose hint is being asked
    uint32_t phase_ = schedule::kNoPhase;          // of the open step
    uint32_t created_ = 0;
    std::map<FetchId, ModelFetch> fetches_;
    std::vector<View> views_;
    Sleepers sleepers_;
    std::list<Claim> claims_;
    std::vector<TensorId> idle_gates_;  // last pin gone, the core not told yet
    FetchId last_fetch_ = 0;
    stw_status last_refusal_ = STW_OK;
    bool reading_back_ = false;
    PlaceId shrinking_ = kNoPlace;
    uint32_t shrinks_to_ = 0;
    uint32_t shrinks_from_ = 0;
    uint64_t grants_ = 0;
    uint64_t refusals_ = 0;
    uint64_t deadlocks_ = 0;
};

}  // namespace stepwell::simulation
