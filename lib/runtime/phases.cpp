// SPDX-License-Identifier: Apache-2.0
// Phases and their steps: what belongs to a step, what it cost, and how a failed one is undone.
#include "lib/runtime/phases.h"
#include "lib/runtime/runtime.h"
#include "lib/support/assert.h"
#include "lib/support/growth.h"

#include <algorithm>
#include <cstring>

namespace stepwell {

// A step's number: the phase in the upper half, its count in the lower; 0 is no step.
Status Runtime::create_phase(const char *name, stw_phase **phase_out)
{
    auto body = std::make_unique<Phase>();
    body->name = name ? name : "";
    MutexLock lock(dispatch_.mutex());
    grow_to_hold(phases_, phases_.size() + 1);
    stw_phase *phase = phase_pool.take();
    if (!phase) return Status::error(STW_ERROR_LIMIT, "no handle is left for another phase");
    phase->runtime = handle_;
    phase->index = static_cast<uint32_t>(phases_.size());
    body->handle = phase;
    phases_.push_back(std::move(body));
    *phase_out = phase;
    return {};
}

Status Runtime::destroy_phase(stw_phase *phase)
{
    MutexLock lock(dispatch_.mutex());
    if (phases_[phase->index]->step != 0) {
        return Status::error(STW_ERROR_BUSY, "phase '%s' has an open step; end or abort it first",
                             phases_[phase->index]->name.c_str());
    }
    phases_[phase->index]->handle = nullptr;
    phase_pool.give(phase);
    return {};
}

uint64_t Runtime::step_of(const stw_phase *phase) const
{
    MutexLock lock(dispatch_.mutex());
    return phases_[phase->index]->step;
}

Status Runtime::begin_step(stw_phase *phase)
{
    release_touches();
    const std::vector<observe::LinkTotal> links = link_totals();
    MutexLock lock(dispatch_.mutex());
    Phase &mine = *phases_[phase->index];
    if (mine.step != 0) {
        return Status::error(STW_ERROR_BUSY, "phase '%s' has an open step; end or abort it first",
                             mine.name.c_str());
    }
    drain_hits();
    if (plans_) follow_plan(phase->index);
    mine.step = ((phase->index + 1ull) << 32) | ++mine.count;
    mine.begin_ns = dispatch_.now();
    mine.planned = plans_ && trace_.begin_step(phase->index, mine.begin_ns);
    take_bandwidths(links);
    mine.account.begin(mine.begin_ns, links);
    mine.reduced.clear();
    current_step_.store(mine.step, std::memory_order_relaxed);
    ask_policy();
    lock.unlock();
    plan_now();
    return {};
}

Status Runtime::end_step(stw_phase *phase, stw_step_stats *stats_out)
{
    release_touches();
    const std::vector<observe::LinkTotal> links = link_totals();
    MutexLock lock(dispatch_.mutex());
    const uint32_t index = phase->index;
    Phase &mine = *phases_[index];
    if (mine.step == 0) {
        return Status::error(STW_ERROR_INVALID, "phase '%s' has no open step", mine.name.c_str());
    }
    drain_hits();
    const residency::Instant time = dispatch_.now();
    stw_step_stats stats{};
    stats.struct_size = sizeof stats;
    const observe::StepBound bound = mine.account.end(time, links, &stats);
    stats.planned = mine.planned;
    stats.least_ns =
        mine.turn.least_ns == 0
            ? 0
            : schedule::bound_with(mine.turn.least_ns, mine.turn.compute_ns, bound.compute_ns);
    stats.step = mine.count;
    mine.totals.add(stats, bound);
    steps_.add({phase->index, mine.begin_ns, time, stats, bound, mine.way});
    if (plans_) trace_.end_step(phase->index, time, true);
    take_bandwidths(links);
    observe::Span span;
    span.start_ns = mine.begin_ns;
    span.end_ns = time;
    span.kind = observe::SpanKind::kStep;
    span.lane = static_cast<uint16_t>(phase->index);
    span.id = mine.count;
    timeline_->record(span);
    close_step(mine);
    if (stats_out) {
        stats.struct_size = std::min<uint32_t>(stats_out->struct_size, sizeof stats);
        std::memcpy(stats_out, &stats, stats.struct_size);
    }
    sample_tiers(time);
    ask_policy();
    Status error = errors_.first_locked();
    lock.unlock();
    ask_plan(index, links);
    plan_now();
    return error;
}

// Bytes in use per tier, a point of the timeline's counters.
void Runtime::sample_tiers(residency::Instant time)
{
    sampled_ns_ = time;
    for (residency::PlaceId place = 0; place <= tiers_.nvme(); ++place) {
        observe::Span sample;
        sample.start_ns = sample.end_ns = time;
        sample.kind = observe::SpanKind::kTierBytes;
        sample.lane = static_cast<uint16_t>(tiers_[place].kind);
        sample.detail = tiers_[place].device;
        sample.bytes = dispatch_.core.used_blocks(place) * block_bytes_;
        if (tiers_.is_host(place)) sample.bytes += kept_bytes();
        timeline_->record(sample);
    }
}

// The step fetched last, if another is open, is the one that fetches without a phase belong to.
void Runtime::close_step(Phase &phase)
{
    const uint64_t ended = phase.step;
    phase.step = 0;
    if (current_step_.load(std::memory_order_relaxed) != ended) return;
    uint64_t newest = 0;
    residency::Instant begun = 0;
    for (const std::unique_ptr<Phase> &other : phases_) {
        if (other->step == 0 || other->begin_ns < begun) continue;
        newest = other->step;
        begun = other->begin_ns;
    }
    current_step_.store(newest, std::memory_order_relaxed);
}

void Runtime::note_reduced(stw_tensor *gradient, uint64_t step)
{
    ++gradient->notes.contributions;
    if (step == 0) return;
    Phase &phase = *phases_[(step >> 32) - 1];
    if (phase.step == step) phase.reduced.push_back(gradient->id);
}

// Views end as abandoned, sums of the step go, nothing is learned from it. An exported view is in
// the hands of a consumer that cannot be told.
Status Runtime::abort_step(stw_phase *phase, void *stream)
{
    release_touches();
    uint64_t step = 0;
    {
        MutexLock lock(dispatch_.mutex());
        step = phases_[phase->index]->step;
        if (step == 0) {
            return Status::error(STW_ERROR_INVALID, "phase '%s' has no open step",
                                 phases_[phase->index]->name.c_str());
        }
    }
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        ViewSlot &slot = views_.slot(index);
        const uint64_t serial = slot.serial.load(std::memory_order_acquire);
        if ((serial & 1) == 0 || slot.step != step || slot.exported) continue;
        memory::DeviceStreams::Id id = 0;
        if (tiers_[slot.place].streams) STW_TRY(stream_id(slot.place, stream, &id));
        if (views_.close((serial << 24) | index) == residency::kNone) continue;
        (void)end_view(index, slot, id, STW_RELEASE_ABANDON);
    }
    std::vector<residency::TensorId> reduced;
    {
        MutexLock lock(dispatch_.mutex());
        Phase &mine = *phases_[phase->index];
        reduced.swap(mine.reduced);
        if (plans_) trace_.end_step(phase->index, dispatch_.now(), false);
        ++mine.aborted;
        close_step(mine);
    }
    std::sort(reduced.begin(), reduced.end());
    reduced.erase(std::unique(reduced.begin(), reduced.end()), reduced.end());
    dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        for (const residency::TensorId tensor : reduced) drop_partial(tensor, out);
    });
    for (const residency::TensorId tensor : reduced) empty_behind(tensor);
    return {};
}

// A claim that gives the tensor back empty as soon as it is served: sums under way end before it.
void Runtime::empty_behind(residency::TensorId tensor)
{
    struct Emptying {
        Runtime *runtime;
        residency::ClaimId claim;
        residency::TensorId tensor;
    };
    auto *work = new Emptying{this, claim_alone(tensor), tensor};
    update::Piece piece;
    piece.tensor = tensor;
    piece.access = residency::Access::kRead;
    piece.byte_count = 1;
    fetch(
        work->claim, &piece, 1, residency::kAnyCpuPlace, residency::Class::kDemand,
        [](void *user, const Status &status, uint64_t ticket, void *const *) {
            auto *mine = static_cast<Emptying *>(user);
            if (status.ok()) mine->runtime->release(ticket, 0);
            mine->runtime->unclaim(mine->claim, &mine->tensor, 1, mine->tensor);
            delete mine;
        },
        work);
}

void Runtime::add_stall_of(uint64_t step, observe::Stall cause, residency::TensorId tensor,
                           residency::Instant begin, residency::Instant end)
{
    observe::Span span;
    span.start_ns = begin;
    span.end_ns = end;
    span.kind = observe::SpanKind::kStall;
    span.lane = static_cast<uint16_t>(cause);
    span.detail = owner_number();
    span.id = tensor;
    timeline_->record(span);
    const stw_tensor *handle = handles_.at(tensor);
    stalls_.add(handle ? handle->name : std::string_view(), cause, end - begin);
    const uint32_t phase = phase_of(step);
    if (phase == schedule::kNoPhase) return;
    phases_[phase]->account.add_stall(cause, end - begin);
    trace_.waited(phase, begin, end);
}

}  // namespace stepwell
