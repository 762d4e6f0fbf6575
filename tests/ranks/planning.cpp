// SPDX-License-Identifier: Apache-2.0
// Plans and knots of a rank: the trace is told, the lookahead is asked, a policy is chosen, and who
// waits for what is broken, as runtime/planning.cpp and runtime/waiting.cpp do it.
#include "tests/ranks/rank.h"

#include <algorithm>

namespace stepwell::ranks {
namespace {

constexpr uint32_t kHintsMax = 64;  // asked in one go

}  // namespace

void Rank::note(const FetchAsked &asked, schedule::Lane lane)
{
    trace_.fetched(phase_, lane, asked.requests.data(), asked.requests.size(), world_.now());
    if (!policy_) return;
    for (const Request &request : asked.requests) {
        schedule::Event event;
        event.lane = lane;
        event.access = request.access;
        event.place = request.place;
        event.tensor = request.tensor;
        event.byte_begin = request.byte_begin;
        event.byte_count = request.byte_count;
        policy_->access(event);
    }
}

// The trace, recency alone, or one of those that plan.
void Rank::choose_policy()
{
    core_.set_victim_policy(nullptr);
    policy_.reset();
    const uint64_t kind = random_.below(10);
    if (kind < 3) core_.set_victim_policy(&trace_);
    if (kind < 4) return;
    std::vector<TensorSpec> specs;
    for (const TensorPlan &plan : setup_.tensors) specs.push_back(plan.spec);
    const std::vector<schedule::Candidate> known = schedule::known_candidates(specs);
    const std::vector<schedule::Candidate> online = schedule::online_candidates();
    const auto &from = random_.chance(70) ? known : online;
    const schedule::Candidate &chosen = from[random_.below(from.size())];
    uses_ = std::make_unique<schedule::Uses>(setup_.templates[phase_], specs.size());
    policy_ = schedule::make_policy(chosen, setup_.machine, specs, *uses_);
    journal_.line("rank %u: policy %s", number_, chosen.name().c_str());
    core_.set_victim_policy(policy_.get());
}

void Rank::look_ahead()
{
    plan_due_ = false;
    if (!looks_ahead_ || shrinking_ != kNoPlace || finishing_) return;
    plan_wake_ = kNever;
    for (uint32_t phase = 0; phase < trace_.phases(); ++phase) {
        if (trace_.is_current(phase)) look_ahead_in(phase);
    }
    plan_due_ = false;  // hints that were answered at once are no news
    if (plan_wake_ != kNever) {
        plan_wake_ = std::max(plan_wake_, world_.now() + 1);
        world_.wake(plan_wake_, Wake::kPlan, number_, plan_wake_);
    }
}

void Rank::look_ahead_in(uint32_t phase)
{
    const schedule::PhaseTrace *forecast = trace_.phase(phase);
    if (!forecast || !forecast->has_forecast()) return;
    schedule::Lookahead &lookahead = lookaheads_[phase];
    for (uint32_t i = 0; i < kHintsMax && !journal_.failed(); ++i) {
        std::optional<FetchAsked> asked = lookahead.next(core_, *forecast, world_.now());
        if (!asked) break;
        lookahead.asked(ask(Who::kPlan, std::move(*asked)));
        execute();
    }
    plan_wake_ = std::min(plan_wake_, lookahead.wake());
    for (PlaceId place = 0; place < kNvme; ++place) {
        const uint64_t horizon = lookahead.horizon(place);
        if (horizon == kNever || setup_.config.places[place].blocks == 0) continue;
        ++told_;
        core_.clean_ahead(place, horizon, out_);
        execute();
    }
}

void Rank::end_hint(FetchId id, const Status &status)
{
    if (world_.planted.now(Plant::kForgottenHint)) return;
    const bool no_room = status.code() == STW_ERROR_BUDGET || status.code() == STW_ERROR_BUSY;
    const auto end = status.ok() ? schedule::Lookahead::End::kThere
                     : no_room   ? schedule::Lookahead::End::kNoRoom
                                 : schedule::Lookahead::End::kFailed;
    for (schedule::Lookahead &lookahead : lookaheads_) {
        if (!lookahead.ended(id, end)) continue;
        plan_due_ = true;
        return;
    }
}

// Whoever waits until nothing moves lets no plan start anything meanwhile.
void Rank::pause_plan()
{
    for (const FetchId id : core_.blocked_hints())
        cancel(id, Status::error(STW_ERROR_CANCELLED, "the plan pauses"));
}

// Asked when somebody sleeps on a fetch that has neither locks nor room.
bool Rank::break_deadlock()
{
    const bool waits = program_ == State::kFetches;
    const bool sleeps = loader_sleeps_ != 0;
    const bool blocked =
        (waits && core_.is_blocked(program_fetch_)) || (sleeps && core_.is_blocked(loader_sleeps_));
    if (!blocked) return false;
    sleepers_.clear();
    if (waits) sleepers_.push_back({1, program_fetch_});
    if (sleeps) sleepers_.push_back({2, loader_sleeps_});
    held_.clear();
    const auto add = [&](const View &view) {
        const bool mine = std::any_of(sleepers_.begin(), sleepers_.end(),
                                      [&](const Sleeper &at) { return at.owner == view.owner; });
        if (!mine) return;
        const Request &at = view.request;
        held_.push_back(
            {view.owner, at.tensor, at.place, at.byte_begin, at.byte_count, view.writes()});
    };
    for (const Handle &handle : handles_) {
        for (const View &view : handle.views) add(view);
    }
    for (const View &view : loaded_) add(view);
    const uint32_t updates = update_ == State::kFetches ? 1 : 0;
    const FetchId id = core_.find_deadlock(held_, sleepers_, updates);
    if (id == 0) return false;
    const bool ours = id == program_fetch_ || id == loader_sleeps_;
    if (!ours) {
        journal_.fail("rank %u: fetch %llu gives way and nobody sleeps on it", number_,
                      static_cast<unsigned long long>(id));
        return false;
    }
    ++world_.counts.deadlocks;
    cancel(id, core_.deadlock_refusal(id));
    return true;
}

}  // namespace stepwell::ranks
