// SPDX-License-Identifier: Apache-2.0
// The lanes of the program and of its updates: each in its own order, as threads would.
#include "tests/ranks/rank.h"

#include <algorithm>

namespace stepwell::ranks {

constexpr Instant kMeetingNs = 20000;  // of updates

// As far as it goes; true when it moved.
bool Rank::advance_program()
{
    bool moved = false;
    while (program_ == State::kReady && !journal_.failed()) {
        if (cursor_ == setup_.program.size()) {
            program_ = State::kDone;
            journal_.line("rank %u: the program is over", number_);
            world_.program_ended();
            return true;
        }
        const Instant stopped = world_.disturbance.stopped_until[number_];
        if (stopped > world_.now()) {
            program_ = State::kWaits;
            world_.wake(stopped, Wake::kCompute, number_);
            return moved;
        }
        const Op &op = setup_.program[cursor_];
        if (op.what == What::kWaitUpdates && !jobs_.empty()) return moved;
        moved = true;
        perform(op);
        execute();
    }
    return moved;
}

void Rank::perform(const Op &op)
{
    const TensorId first = op.uses_count > 0 ? ids_[op.uses[0].tensor] : kNone;
    switch (op.what) {
    case What::kFetch: fetch(op); return;
    case What::kCompute: {
        const double takes = static_cast<double>(op.ns) * world_.disturbance.slowness[number_];
        program_ = State::kComputes;
        world_.wake(world_.now() + static_cast<Instant>(takes), Wake::kCompute, number_);
        return;
    }
    case What::kCollective:
        program_ = State::kMeets;
        since_ = world_.now();
        world_.arrive(number_, Collective::Lane::kProgram, op.in_group, op.ns);
        return;
    case What::kRelease:
        for (const View &view : handles_[op.handle].views) give_back(view, op.hint);
        handles_[op.handle].views.clear();
        break;
    case What::kBeginStep: begin_step(op); break;
    case What::kEndStep: end_step(op); break;
    case What::kUpdate: begin_update(op); break;
    case What::kWaitUpdates: break;
    case What::kCreate: create(op.uses[0].tensor); break;
    case What::kDestroy: destroy(op.uses[0].tensor); break;
    case What::kDiscard:
        if (first != kNone) discard(first);
        break;
    }
    ++cursor_;
}

void Rank::fetch(const Op &op)
{
    FetchAsked asked = new_asked();
    for (uint32_t i = 0; i < op.uses_count; ++i) {
        if (ids_[op.uses[i].tensor] == kNone) continue;
        asked.requests.push_back(request_of(op.uses[i]));
        // What is not there is made: what was lost, or has not been written yet.
        const bool readable = model_.tensors[asked.requests.back().tensor].readable();
        if (!readable && !random_.chance(10)) asked.requests.back().access = Access::kWrite;
    }
    std::vector<View> &views = handles_[op.handle].views;
    const size_t n = asked.requests.size();
    if (n == 0 || try_hit(asked.requests.data(), n, &views)) {
        for (View &view : views) view.owner = 1;
        keep_memory(asked);
        ++cursor_;
        return;
    }
    asked.owner = 1;
    asked.flags = op.waits_room ? kFetchWaitRoom : 0u;
    if (random_.chance(5)) asked.deadline = world_.now() + random_.between(100, 20000) * 1000;
    note(asked, schedule::Lane::kProgram);
    program_ = State::kFetches;
    since_ = world_.now();
    program_fetch_ = ask(Who::kProgram, std::move(asked));
}

void Rank::begin_step(const Op &op)
{
    phase_ = op.phase;
    const bool planned = trace_.begin_step(phase_, world_.now());
    journal_.line("rank %u: step of phase %u begins%s", number_, phase_,
                  planned ? ", planned" : "");
    if (random_.chance(15)) choose_policy();
    if (policy_) policy_->begin_step(setup_.templates[phase_]);
    if (random_.chance(30)) core_.replan();
    if (model_.write_failed && random_.chance(50)) forgive();
    plan_due_ = true;
}

void Rank::end_step(const Op &op)
{
    trace_.end_step(op.phase, world_.now(), random_.chance(95));
    phase_ = schedule::kNoPhase;
    plan_due_ = true;
}

// ------------------------------------------------------------------------------------- updates --

void Rank::begin_update(const Op &op)
{
    Job job;
    job.op = &op;
    job.met = !op.in_group;
    // Those that meet the other ranks claim afterwards: who waits for them must hold nothing. What
    // is asked behind one of these claims behind it.
    const bool in_turn =
        std::any_of(jobs_.begin(), jobs_.end(), [](const Job &before) { return !before.claimed; });
    if (job.met && !in_turn) claim(job);
    jobs_.push_back(std::move(job));
    ++world_.counts.updates;
}

void Rank::claim(Job &job)
{
    job.claim = core_.claim();
    job.claimed = true;
    for (uint32_t i = 0; i < job.op->uses_count; ++i) {
        const TensorId id = ids_[job.op->uses[i].tensor];
        if (id == kNone) continue;
        ++told_;
        core_.claim_tensor(job.claim, id);
        model_.tensors[id].claims.push_back({job.claim, last_fetch_});
        job.tensors.push_back(id);
        journal_.line("claim %llu of tensor %u", static_cast<unsigned long long>(job.claim), id);
    }
}

bool Rank::advance_updates()
{
    bool moved = false;
    while (update_ == State::kReady && !jobs_.empty() && !journal_.failed()) {
        moved = true;
        Job &job = jobs_.front();
        if (!job.met) {
            update_ = State::kMeets;
            world_.arrive(number_, Collective::Lane::kUpdate, false, kMeetingNs);
        } else if (!job.claimed) {
            claim(job);
        } else if (job.tensors.empty()) {
            jobs_.pop_front();
        } else if (job.next_byte >= model_.tensors[job.tensors.back()].spec.bytes) {
            next_tensor(job, true);
        } else {
            ask_chunk(job);
        }
        execute();
    }
    return moved;
}

void Rank::ask_chunk(Job &job)
{
    const TensorId id = job.tensors.back();
    const ModelTensor &tensor = model_.tensors[id];
    FetchAsked asked;
    asked.claim = job.claim;
    asked.flags = kFetchWaitRoom;
    Request request;
    request.tensor = id;
    request.place = kAnyCpuPlace;
    request.access = !tensor.readable()   ? Access::kWrite
                     : random_.chance(20) ? Access::kRead
                                          : Access::kReadWrite;
    const uint64_t at = tensor.pack_offset + job.next_byte;
    request.byte_begin = job.next_byte;
    request.byte_count =
        std::min(kBlockBytes - at % kBlockBytes, tensor.spec.bytes - job.next_byte);
    asked.requests.push_back(request);
    job.next_byte += request.byte_count;
    note(asked, schedule::Lane::kUpdate);
    update_ = State::kFetches;
    ask(Who::kUpdate, std::move(asked));
}

void Rank::end_chunk()
{
    const View chunk = chunk_;
    update_ = State::kReady;
    give_back(chunk, schedule::Hint::kNone);
}

void Rank::next_tensor(Job &job, bool completes)
{
    const TensorId id = job.tensors.back();
    job.tensors.pop_back();
    job.next_byte = 0;
    ModelTensor &tensor = model_.tensors[id];
    const bool only = tensor.claims.size() == 1 && tensor.fetches == 0;
    const bool empties = completes && job.op->empties && job.tensors.empty() && only;
    auto &claims = tensor.claims;
    claims.erase(std::find_if(claims.begin(), claims.end(),
                              [&](const auto &at) { return at.first == job.claim; }));
    ++told_;
    journal_.line("unclaim tensor %u%s", id, empties ? ", which is empty now" : "");
    core_.unclaim_tensor(job.claim, id, empties, out_);
    if (empties) model_.settle(id);
}

// As the library does with what an update could not complete.
void Rank::fail_tensor(TensorId id, const Status &why)
{
    ++told_;
    journal_.line("tensor %u fails: %d", id, why.code());
    core_.fail(id, why);
    model_.tensors[id].contents = Contents::kFailed;
    model_.tensors[id].cause = why.code();
}

// -------------------------------------------------------------------------------------- events --

void Rank::collective_over(Collective::Lane lane, bool right)
{
    ++world_.counts.collectives;
    if (!right) {
        journal_.fail("rank %u: a collective brings what is not from all of its ranks", number_);
    }
    if (lane == Collective::Lane::kProgram) {
        trace_.waited(phase_, since_, world_.now());
        program_ = State::kReady;
        ++cursor_;
        return;
    }
    update_ = State::kReady;
    jobs_.front().met = true;
}

void Rank::wake(Wake what, uint64_t number)
{
    const Instant now = world_.now();
    switch (what) {
    case Wake::kTransfer: transfer_ends(number); break;
    case Wake::kCompute:
        if (program_ == State::kComputes) ++cursor_;
        program_ = State::kReady;
        break;
    case Wake::kUpdate: end_chunk(); break;
    case Wake::kLoader: load(); break;
    case Wake::kTick:
        if (core_.next_deadline() > now || world_.planted.now(Plant::kForgottenDeadline)) break;
        ++told_;
        journal_.line("rank %u: tick", number_);
        core_.tick(now, out_);
        break;
    case Wake::kPlan:
        if (number != plan_wake_) break;
        plan_wake_ = kNever;
        plan_due_ = true;
        break;
    case Wake::kBudget:
        if (shrinking_ != kNoPlace && number == shrink_number_) end_shrinking(false);
        break;
    default: break;
    }
}

}  // namespace stepwell::ranks
