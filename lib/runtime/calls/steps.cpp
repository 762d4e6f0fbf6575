// SPDX-License-Identifier: Apache-2.0
// Phases and their steps: what belongs to a step, what it cost, and how a failed one is undone.
#include "lib/runtime/calls/steps.h"

#include "lib/observe/timeline.h"
#include "lib/runtime/calls/fetches.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/optimizers/table.h"
#include "lib/runtime/planning/plans.h"
#include "lib/runtime/planning/prefetcher.h"
#include "lib/runtime/ranks/wholes.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/phase.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/updates/tiers.h"
#include "lib/runtime/victims/victims.h"
#include "lib/runtime/views/ends.h"
#include "lib/runtime/views/streams.h"
#include "lib/schedule/lookahead/lookahead.h"
#include "lib/schedule/plan/bound.h"
#include "lib/store/bandwidth.h"
#include "lib/support/assert.h"
#include "lib/support/growth.h"

#include <algorithm>
#include <cstring>

namespace stepwell {

// A step's number has the phase in the upper half and its count in the lower; 0 is no step.
Status Steps::create_phase(const char *name, stw_phase **phase_out)
{
    auto body = std::make_unique<Phase>();
    body->name = name ? name : "";
    MutexLock lock(dispatch_.mutex());
    grow_to_hold(recorder_.phases, recorder_.phases.size() + 1);
    stw_phase *phase = phase_pool.take();
    if (!phase) return Status::error(STW_ERROR_LIMIT, "no handle is left for another phase");
    phase->runtime = machine_.handle;
    phase->index = static_cast<uint32_t>(recorder_.phases.size());
    body->handle = phase;
    recorder_.phases.push_back(std::move(body));
    *phase_out = phase;
    return {};
}

Status Steps::destroy_phase(stw_phase *phase)
{
    MutexLock lock(dispatch_.mutex());
    if (recorder_.phases[phase->index]->step != 0) {
        return Status::error(STW_ERROR_BUSY, "phase '%s' has an open step; end or abort it first",
                             recorder_.phases[phase->index]->name.c_str());
    }
    recorder_.phases[phase->index]->handle = nullptr;
    phase_pool.give(phase);
    return {};
}

Status Steps::begin_step(stw_phase *phase)
{
    dispatch_.give_way();
    const std::vector<observe::LinkTotal> links = meters_.link_totals();
    MutexLock lock(dispatch_.mutex());
    Phase &mine = *recorder_.phases[phase->index];
    if (mine.step != 0) {
        return Status::error(STW_ERROR_BUSY, "phase '%s' has an open step; end or abort it first",
                             mine.name.c_str());
    }
    recorder_.drain_hits();
    if (recorder_.enabled) plans_.follow_plan(phase->index);
    mine.step = ((phase->index + 1ull) << 32) | ++mine.count;
    mine.begin_ns = dispatch_.now();
    mine.owner = recorder_.owner_number();
    mine.planned = recorder_.enabled && recorder_.trace.begin_step(phase->index, mine.begin_ns);
    plans_.take_bandwidths(links);
    mine.account.begin(mine.begin_ns, links);
    mine.reduced.clear();
    recorder_.set_current_step(mine.step);
    victims_.ask_policy();
    lock.unlock();
    prefetcher_.plan_now();
    return {};
}

Status Steps::end_step(stw_phase *phase, stw_step_stats *stats_out)
{
    dispatch_.give_way();
    const std::vector<observe::LinkTotal> links = meters_.link_totals();
    MutexLock lock(dispatch_.mutex());
    const uint32_t index = phase->index;
    Phase &mine = *recorder_.phases[index];
    if (mine.step == 0) {
        return Status::error(STW_ERROR_INVALID, "phase '%s' has no open step", mine.name.c_str());
    }
    recorder_.drain_hits();
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
    history.add({phase->index, mine.begin_ns, time, stats, bound, mine.way});
    if (recorder_.enabled) recorder_.trace.end_step(phase->index, time, true);
    plans_.take_bandwidths(links);
    observe::Span span;
    span.start_ns = mine.begin_ns;
    span.end_ns = time;
    span.kind = observe::SpanKind::kStep;
    span.lane = static_cast<uint16_t>(phase->index);
    span.id = mine.count;
    machine_.timeline->record(span);
    close_step(mine);
    if (stats_out) {
        stats.struct_size = std::min<uint32_t>(stats_out->struct_size, sizeof stats);
        std::memcpy(stats_out, &stats, stats.struct_size);
    }
    sample_tiers(time);
    victims_.ask_policy();
    Status error = errors_.first_locked();
    lock.unlock();
    plans_.ask_plan(index, links);
    prefetcher_.plan_now();
    return error;
}

// Bytes in use per tier, for the timeline's counters.
void Steps::sample_tiers(residency::Instant time)
{
    sampled_ns_ = time;
    for (residency::PlaceId place = 0; place <= machine_.tiers.nvme(); ++place) {
        observe::Span sample;
        sample.start_ns = sample.end_ns = time;
        sample.kind = observe::SpanKind::kTierBytes;
        sample.lane = static_cast<uint16_t>(machine_.tiers[place].kind);
        sample.detail = machine_.tiers[place].device;
        sample.bytes = dispatch_.core.used_blocks(place) * machine_.block_bytes;
        if (machine_.tiers.is_host(place)) sample.bytes += machine_.kept_bytes();
        machine_.timeline->record(sample);
    }
}

// Fetches without a phase belong to the open step that was begun last.
void Steps::close_step(Phase &phase)
{
    const uint64_t ended = phase.step;
    phase.step = 0;
    if (recorder_.current_step() != ended) return;
    uint64_t newest = 0;
    residency::Instant begun = 0;
    for (const std::unique_ptr<Phase> &other : recorder_.phases) {
        if (other->step == 0 || other->begin_ns < begun) continue;
        newest = other->step;
        begun = other->begin_ns;
    }
    recorder_.set_current_step(newest);
}

// Views end as abandoned, speculative updates are set back, sums of the step are dropped, and
// nothing is learned from it. Exported views stay: their consumer cannot be notified.
Status Steps::abort_step(stw_phase *phase, void *stream)
{
    dispatch_.give_way();
    uint64_t step = 0;
    {
        MutexLock lock(dispatch_.mutex());
        step = recorder_.phases[phase->index]->step;
        if (step == 0) {
            return Status::error(STW_ERROR_INVALID, "phase '%s' has no open step",
                                 recorder_.phases[phase->index]->name.c_str());
        }
    }
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        ViewSlot &slot = views_.slot(index);
        const uint64_t serial = slot.serial.load(std::memory_order_acquire);
        if ((serial & 1) == 0 || slot.step != step || slot.exported) continue;
        memory::DeviceStreams::Id id = 0;
        if (machine_.tiers[slot.place].streams)
            STW_TRY(streams_.stream_id(slot.place, stream, &id));
        if (views_.close((serial << 24) | index) == residency::kNone) continue;
        (void)ends_.end_view(index, slot, id, ReleaseHint(STW_RELEASE_ABANDON));
    }
    const Status rejected = optimizers_.reject_early();
    std::vector<residency::TensorId> reduced;
    {
        MutexLock lock(dispatch_.mutex());
        Phase &mine = *recorder_.phases[phase->index];
        reduced.swap(mine.reduced);
        if (recorder_.enabled) recorder_.trace.end_step(phase->index, dispatch_.now(), false);
        ++mine.aborted;
        close_step(mine);
    }
    std::sort(reduced.begin(), reduced.end());
    reduced.erase(std::unique(reduced.begin(), reduced.end()), reduced.end());
    dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        for (const residency::TensorId tensor : reduced) wholes_.drop_partial(tensor, out);
    });
    for (const residency::TensorId tensor : reduced)  // after the sums under way
        pieces_.empty_behind(pieces_.claim_alone(tensor), tensor);
    if (!machine_.touches || !rejected.ok()) return rejected;
    return machine_.touches->await_concealed(views_, reduced, false, dispatch_.deadline(0));
}

namespace {

// Each call of the program is a fetch of all its uses, followed by their release.
schedule::Step events_of(const std::vector<DeclaredUse> &uses)
{
    schedule::Step step;
    step.reserve(2 * uses.size());
    for (size_t begin = 0, end = 0; begin < uses.size(); begin = end) {
        uint64_t compute_ns = 0;
        for (end = begin; end < uses.size() && uses[end].call == uses[begin].call; ++end) {
            compute_ns = std::max(compute_ns, uses[end].compute_ns);
        }
        for (const schedule::Act act : {schedule::Act::kFetch, schedule::Act::kRelease}) {
            for (size_t i = begin; i < end; ++i) {
                const RequestedRange &range = uses[i].range;
                STW_ASSERT(range.byte_begin + range.byte_count <= range.tensor->bytes);
                schedule::Event event;
                event.act = act;
                event.access = access_of(range.access);
                event.place = range.place;
                event.tensor = range.tensor->id;
                event.byte_begin = range.byte_begin;
                event.byte_count = range.byte_count;
                event.with_next = act == schedule::Act::kFetch && i + 1 < end;
                if (act == schedule::Act::kRelease) {
                    event.hint = hint_of(uses[i].release);
                    event.compute_ns = std::exchange(compute_ns, 0);
                }
                step.push_back(event);
            }
        }
    }
    return step;
}

}  // namespace

Status Steps::declare_step(stw_phase *phase, std::vector<DeclaredUse> uses)
{
    FetchPlan plan;
    for (const DeclaredUse &use : uses) plan.ranges.push_back(use.range);
    STW_TRY(placement_.check_places(plan));
    // For tensors of several ranks, what a step moves here is the shard.
    std::erase_if(uses, [&](DeclaredUse &use) {
        if (!is_of_ranks(use.range)) return false;
        const std::optional<residency::Request> shard = recorder_.shard_request(use.range);
        if (!shard) return true;
        use.range.access = STW_READ;
        use.range.place = shard->place;
        use.range.byte_begin = 0;
        use.range.byte_count = shard->byte_count;
        return false;
    });
    schedule::Step step = events_of(uses);
    const uint64_t events = step.size();
    const std::vector<observe::LinkTotal> links = meters_.link_totals();
    MutexLock lock(dispatch_.mutex());
    const uint32_t index = phase->index;
    const Phase &mine = *recorder_.phases[index];
    if (mine.step != 0) {
        return Status::error(STW_ERROR_BUSY,
                             "phase '%s' has an open step; declare the next ones before or after "
                             "it",
                             mine.name.c_str());
    }
    if (!recorder_.enabled || recorder_.trace.declare(index, std::move(step))) {
        lock.unlock();
        plans_.ask_plan(index, links);
        return {};
    }
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "the declared step of phase '%s' is too long: %s needed; its part of metadata_bytes %s; "
        "declare fewer entries, or raise metadata_bytes when opening the runtime",
        mine.name.c_str(), bytes_text(events * schedule::Learned::kEventBytesMax).c_str(),
        sum_text({{recorder_.trace.limit(), "kept for the order of accesses"}}).c_str());
    status.mutable_detail().needed_bytes = events * schedule::Learned::kEventBytesMax;
    status.mutable_detail().free_bytes = recorder_.trace.limit();
    return status;
}

void Steps::after_round(residency::Instant now, Commands &)
{
    constexpr residency::Instant kSampleNs = 10'000'000;
    if (now - sampled_ns_ >= kSampleNs) sample_tiers(now);
}

}  // namespace stepwell
