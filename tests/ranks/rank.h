// SPDX-License-Identifier: Apache-2.0
// Rank: the shell of one rank in virtual time, around the real core, trace, lookahead and policies.
// It does what lib/runtime does with them: carries out commands, tells the core what happened, asks
// ahead, breaks deadlocks, changes budgets. Its lanes are the program, its updates, a loader that
// does everything else. After each event the model and the memories must agree with the core.
#pragma once

#include "lib/residency/command_loop.h"
#include "lib/schedule/lookahead/lookahead.h"
#include "lib/schedule/plan/choose.h"
#include "lib/schedule/trace/trace.h"
#include "tests/ranks/model.h"
#include "tests/ranks/world.h"

#include <deque>
#include <memory>

namespace stepwell::ranks {

class Rank final : CommandSink, EventHook {
public:
    Rank(World &world, uint32_t number, uint64_t seed);

    void start();
    // Events of the world.
    void transfer_ends(TransferId id);
    void wake(Wake what, uint64_t number);
    void collective_over(Collective::Lane lane, bool right);
    void change_budget();
    void forgive();
    void cancel_some();
    // As far as everything goes now; checks.
    void go_on();

    // The end of a run.
    [[nodiscard]] bool is_through() const;
    [[nodiscard]] std::string describe() const;
    void begin_finish();
    [[nodiscard]] bool write_back();  // true: nothing is left to be written
    void read_back(bool *done);       // one more tensor
    void destroy_all();
    void check_empty();
    void check_all();
    [[nodiscard]] uint64_t told() const { return told_; }
    Sent *flight_of(TransferId id);

private:
    enum class Who : uint8_t { kProgram, kUpdate, kLoader, kHint, kPlan, kReadBack };
    enum class State : uint8_t { kReady, kComputes, kFetches, kMeets, kWaits, kDone };
    struct Pending : Asked {
        Who who = Who::kHint;
    };
    struct Handle {
        std::vector<View> views;
    };
    struct Job {  // an update
        ClaimId claim = 0;
        std::vector<TensorId> tensors;  // claimed; the last one is under way
        const Op *op = nullptr;
        uint64_t next_byte = 0;
        bool met = false;  // the other ranks, where it has to
        bool claimed = false;
    };

    // rank.cpp: the shell
    void execute() { loop_.run(); }
    [[nodiscard]] Instant now() const override { return world_.now(); }
    void forget(const residency::Forget &forget) override;
    void swap_memory(std::vector<Swap> &swaps) override;
    void pack_freed(PackId pack) override;
    void submit(std::vector<Transfer> &transfers, Commands &out) override;
    void promote(TransferId id) override;
    void failed(const BackgroundError &error) override { failed_.push_back(error.tensor); }
    void begin_transfer(const Transfer &transfer);
    [[nodiscard]] std::vector<TensorId> hurt_by(const Sent &flight) const;
    bool granted(Granted &granted, Commands &out) override;
    bool refused(Refused &refused, Commands &out) override;
    void answered(Pending &pending, const Status &status);
    Pending take_pending(FetchId id);
    void check_now();
    void create(uint32_t index);

    // calls.cpp: what lanes ask of the core
    FetchId ask(Who who, FetchAsked asked);
    bool try_hit(const Request *requests, size_t n, std::vector<View> *views);
    FetchAsked new_asked();
    void keep_memory(FetchAsked &asked);
    void give_back(const View &view, schedule::Hint hint);
    bool discard(TensorId id);
    void destroy(uint32_t index);
    void cancel(FetchId id, Status why);
    [[nodiscard]] TensorId id_of(uint32_t index) const { return ids_[index]; }
    [[nodiscard]] Request request_of(const Use &use) const;

    // lanes.cpp: the program and the updates
    bool advance_program();
    void perform(const Op &op);
    void fetch(const Op &op);
    void begin_update(const Op &op);
    void claim(Job &job);
    bool advance_updates();
    void ask_chunk(Job &job);
    void end_chunk();
    void next_tensor(Job &job, bool completes);
    void fail_tensor(TensorId id, const Status &why);
    void begin_step(const Op &op);
    void end_step(const Op &op);
    void choose_policy();

    // loader.cpp
    void load();
    void arm_loader(Instant gap);
    [[nodiscard]] size_t count_asked(Who who) const;
    void load_fetch();
    void load_hint();
    void load_hit();
    void load_release();
    void load_advice();
    void load_evict();
    void load_cancel();
    void load_remake();
    void load_scores();
    [[nodiscard]] uint32_t any_tensor();

    // planning.cpp
    void look_ahead();
    void look_ahead_in(uint32_t phase);
    bool break_deadlock();  // false: there is none
    void end_hint(FetchId id, const Status &status);
    void note(const FetchAsked &asked, schedule::Lane lane);
    void pause_plan();

    // budgets.cpp
    void go_on_shrinking();
    void end_shrinking(bool good);
    void grow(PlaceId place, uint32_t blocks);

    World &world_;
    const uint32_t number_;
    const Setup &setup_;
    Journal &journal_;
    Random random_;
    Memory memory_;
    Core core_;
    Model model_;
    CommandLoop loop_{*this};
    Commands &out_ = loop_.out;
    std::vector<TensorId> failed_;  // as the last event told
    // Kept for their memory.
    std::vector<Held> held_;
    std::vector<Sleeper> sleepers_;
    std::vector<View> views_;
    std::vector<std::vector<Request>> spare_requests_;

    std::vector<Sent> flights_;  // few at a time
    std::vector<Pending> pending_;
    std::vector<TensorId> ids_;  // by place in the setup; kNone: not alive
    Stamp stamp_ = 0;
    FetchId last_fetch_ = 0;

    // Plans.
    schedule::Trace trace_;
    std::vector<schedule::Lookahead> lookaheads_;
    std::unique_ptr<schedule::Policy> policy_;
    std::unique_ptr<schedule::Uses> uses_;
    uint32_t phase_ = schedule::kNoPhase;
    bool looks_ahead_ = false;
    bool plan_due_ = false;
    Instant plan_wake_ = kNever;

    // The program.
    size_t cursor_ = 0;
    State program_ = State::kWaits;  // for its first event
    Instant since_ = 0;
    FetchId program_fetch_ = 0;
    std::vector<Handle> handles_;

    // Updates.
    std::deque<Job> jobs_;
    State update_ = State::kReady;
    View chunk_;

    // The loader.
    std::vector<View> loaded_;
    FetchId loader_sleeps_ = 0;
    uint64_t loads_ = 0;
    bool loader_armed_ = false;
    bool loader_done_ = false;

    // Budgets.
    std::array<uint32_t, kPlaces> budget_{};  // in force
    PlaceId shrinking_ = kNoPlace;
    uint32_t shrinks_to_ = 0;
    uint64_t shrink_number_ = 0;

    uint32_t read_back_ = 0;
    uint64_t told_ = 0;       // events, to the core
    uint64_t looked_at_ = 0;  // of these, when all was last looked at
    uint64_t unchecked_ = 0;
    bool finishing_ = false;
};

}  // namespace stepwell::ranks
