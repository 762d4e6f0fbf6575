// SPDX-License-Identifier: Apache-2.0
// What the runtime does with what it has learned: tells the trace what the program does, and asks
// the core for the prefetches and early write-backs that a phase's lookahead proposes. Under the
// lock, after an event that can have changed the answer.
#include "lib/runtime/planning.h"

#include "lib/runtime/phases.h"
#include "lib/runtime/snapshot.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <utility>

namespace stepwell {
namespace {

using residency::Instant;
using residency::PlaceId;

constexpr uint32_t kHintsMax = 64;       // asked in one go
constexpr Instant kRestNs = 16'000'000;  // between looks while no step is open

schedule::Hint hint_of(uint32_t release_flags)
{
    if (release_flags & STW_RELEASE_DISCARD) return schedule::Hint::kDiscard;
    if (release_flags & STW_RELEASE_FAR) return schedule::Hint::kFar;
    return (release_flags & STW_RELEASE_NEAR) ? schedule::Hint::kNear : schedule::Hint::kNone;
}

}  // namespace

Runtime::PlanPause::PlanPause(Runtime &runtime) : runtime_(runtime)
{
    runtime_.begin_pause();
}

Runtime::PlanPause::~PlanPause()
{
    runtime_.end_pause();
}

void Runtime::begin_pause()
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        ++plan_pauses_;
        // Those that wait for somebody's view would be waited for with it.
        for (const std::unique_ptr<Phase> &phase : phases_) {
            if (!phase->lookahead) continue;
            for (const residency::FetchId fetch : phase->lookahead->fetches()) {
                if (core.is_blocked(fetch)) core.cancel(fetch, cancelled(), out);
            }
        }
    });
}

void Runtime::end_pause()
{
    MutexLock lock(dispatch_.mutex());
    --plan_pauses_;
    plan_due_ = true;
}

// Of a step that is still open.
uint32_t Runtime::phase_of(uint64_t step) const
{
    if (step == 0) return schedule::kNoPhase;
    const auto index = static_cast<uint32_t>((step >> 32) - 1);
    return phases_[index]->step == step ? index : schedule::kNoPhase;
}

// ------------------------------------------------------------------------ what the program does --

// What is converted was noted with the copies, see note_copies().
void Runtime::note_fetch(const FetchPlan &plan)
{
    std::vector<residency::Request> requests;
    for (const Range &range : plan.ranges) {
        if (is_converted(range) || range.byte_count == 0 || is_of_ranks(range)) continue;
        note_access(range.tensor->id);
        requests.push_back({range.tensor->id, access_of(range.access), range.place,
                            range.byte_begin, range.byte_count});
    }
    note_fetched(phase_of(plan.step), schedule::Lane::kProgram, requests);
}

// They bring their own hints, piece by piece: there is no place that a plan would bring them to.
void Runtime::note_copies(const FetchPlan &plan)
{
    std::vector<residency::Request> requests;
    const auto add = [&](const Range &range) STW_REQUIRES(runtime_lock) {
        if (range.byte_count == 0) return;
        note_access(range.tensor->id);
        requests.push_back({range.tensor->id, residency::Access::kRead, residency::kAnyCpuPlace,
                            range.byte_begin, range.byte_count});
    };
    for (const Range &range : plan.copied) add(range);
    for (const Range &range : plan.ranges) {
        if (is_converted(range)) add(range);
    }
    note_fetched(phase_of(plan.step), schedule::Lane::kProgram, requests);
}

// Of the whole the shard is what can be brought ahead, to where its copy will find it. Nothing for
// what is written or summed: that has a buffer of its own.
std::optional<residency::Request> Runtime::shard_request(const Range &range) const
{
    const bool reads = range.access == STW_READ || range.access == STW_READ_WRITE;
    if (!reads || range.tensor->bytes == 0) return std::nullopt;
    return residency::Request{range.tensor->id, residency::Access::kRead, shard_place(), 0,
                              range.tensor->bytes};
}

void Runtime::note_gathered(const FetchPlan &plan)
{
    std::vector<residency::Request> requests;
    for (const Range &range : plan.gathered) {
        const std::optional<residency::Request> shard = shard_request(range);
        if (!shard) continue;
        note_access(range.tensor->id);
        requests.push_back(*shard);
    }
    if (!requests.empty()) {
        note_fetched(phase_of(plan.step), schedule::Lane::kProgram, requests);
    }
}

void Runtime::note_update(const residency::FetchAsked &asked)
{
    for (const residency::Request &request : asked.requests) note_access(request.tensor);
    note_fetched(phase_of(current_step()), schedule::Lane::kUpdate, asked.requests);
}

// One call. The plan hears of it before the core does, which asks it what is worth what then.
void Runtime::note_fetched(uint32_t phase, schedule::Lane lane,
                           const std::vector<residency::Request> &requests)
{
    plan_due_ = true;
    if (!plans_ || phase == schedule::kNoPhase) return;
    trace_.fetched(phase, lane, requests.data(), requests.size(), dispatch_.now());
    for (const residency::Request &request : requests) {
        // Blocks behind it would be planned for another tensor, or for none.
        STW_ASSERT(request.byte_begin + request.byte_count <=
                   dispatch_.core.spec(request.tensor).bytes);
        planned_.access(lane, request.tensor);
    }
}

void Runtime::note_update_end(const residency::Release &release)
{
    if (!plans_) return;
    const residency::Request view{release.tensor, release.access, release.place, release.byte_begin,
                                  release.byte_count};
    const auto hint = release.far ? schedule::Hint::kFar : schedule::Hint::kNone;
    trace_.released(phase_of(current_step()), schedule::Lane::kUpdate, view, hint, dispatch_.now());
}

void Runtime::note_release(const residency::Request &view, uint64_t step, uint32_t flags)
{
    plan_due_ = true;
    if (!plans_) return;
    trace_.released(phase_of(step), schedule::Lane::kProgram, view, hint_of(flags),
                    dispatch_.now());
}

void Runtime::note_discard(schedule::Lane lane, residency::TensorId tensor)
{
    if (!plans_) return;
    trace_.discarded(phase_of(current_step()), lane, tensor, dispatch_.now());
}

// --------------------------------------------------------------------------------- what follows --

// Under the lock, after the commands of the event are on their way: demand goes first.
void Runtime::look_ahead()
{
    plan_due_ = false;
    plan_wake_ = residency::kNever;
    if (!plans_ || dispatch_.is_closing() || plan_pauses_ > 0) return;
    drain_hits();
    for (const uint32_t phase : trace_.current()) look_ahead_in(phase);
    plan_due_ = false;  // hints that were answered at once are no news
    dispatch_.arm_timer(plan_wake_);
}

void Runtime::look_ahead_in(uint32_t index)
{
    Phase &phase = *phases_[index];
    const schedule::PhaseTrace &forecast = *trace_.phase(index);
    if (!phase.handle || !forecast.has_forecast() || !make_lookahead(phase)) return;
    schedule::Lookahead &lookahead = *phase.lookahead;
    const Instant time = dispatch_.now();
    for (uint32_t i = 0; i < kHintsMax; ++i) {
        const std::optional<residency::FetchAsked> asked =
            lookahead.next(dispatch_.core, forecast, time);
        if (!asked) break;
        lookahead.asked(dispatch_.core.fetch(*asked, time, dispatch_.loop.out));
        dispatch_.loop.run();
    }
    // Between steps nothing goes on that nobody hears of: what is to be tried again can wait.
    const Instant wake = lookahead.wake();
    const bool rests = phase.step == 0 && wake != residency::kNever;
    plan_wake_ = std::min(plan_wake_, rests ? std::max(wake, time + kRestNs) : wake);
    for (PlaceId place = 0; place <= tiers_.host(); ++place) {
        const uint64_t horizon = lookahead.horizon(place);
        if (horizon == residency::kNever) continue;
        if (dispatch_.core.clean_ahead(place, horizon, dispatch_.loop.out) > 0)
            dispatch_.loop.run();
    }
}

// False where metadata_bytes has no room for it: then the phase is not prefetched for.
bool Runtime::make_lookahead(Phase &phase)
{
    if (phase.lookahead) return true;
    const uint64_t needed = schedule::Lookahead::metadata_bytes_max();
    if (metadata_taken() + needed > metadata_budget_) return false;
    phase.lookahead = std::make_unique<schedule::Lookahead>(tiers_.host(), tiers_.nvme());
    lookahead_bytes_ += needed;
    take_bandwidths(bandwidths_);
    return true;
}

// A hint was answered; those of the program and of copies are nobody's concern.
bool Runtime::end_hint(residency::FetchId fetch, const Status &status)
{
    const bool no_room = status.code() == STW_ERROR_BUDGET || status.code() == STW_ERROR_BUSY;
    const auto end = status.ok() ? schedule::Lookahead::End::kThere
                     : no_room   ? schedule::Lookahead::End::kNoRoom
                                 : schedule::Lookahead::End::kFailed;
    for (const std::unique_ptr<Phase> &phase : phases_) {
        if (!phase->lookahead || !phase->lookahead->ended(fetch, end)) continue;
        plan_due_ = true;
        return true;
    }
    return false;
}

// What is known of the disks and of copies is what plans are made with until transfers know better.
void Runtime::expect_bandwidths(const profile::Tuning &tuning)
{
    using transfer::Link;
    const auto expect = [this](Link link, PlaceId memory, uint64_t bytes_per_s) {
        if (bytes_per_s > 0) engine_->expect_bandwidth(link, memory, bytes_per_s);
    };
    for (PlaceId place = 0; place <= tiers_.host(); ++place) {
        const memory::Tier &at = tiers_[place];
        if (!at.memory) continue;
        const bool host = tiers_.is_host(place);
        if (host || at.storage_reaches()) {
            expect(host ? Link::kNvmeToHost : Link::kNvmeToDevice, place,
                   tuning.read_bytes_per_s());
            expect(host ? Link::kHostToNvme : Link::kDeviceToNvme, place,
                   tuning.write_bytes_per_s());
        }
        if (!host && !at.cpu_access) {
            expect(Link::kHostToDevice, place, tuning.host_copy_bytes_per_s());
            expect(Link::kDeviceToHost, place, tuning.host_copy_bytes_per_s());
        }
    }
}

void Runtime::take_bandwidths(const std::vector<observe::LinkTotal> &links)
{
    uint64_t speeds[residency::kPlacesMax][residency::kPlacesMax] = {};
    for (const observe::LinkTotal &link : links) {
        const auto device = static_cast<PlaceId>(link.device);
        switch (link.link) {
        case STW_LINK_NVME_TO_HOST: speeds[tiers_.nvme()][tiers_.host()] = link.bytes_per_s; break;
        case STW_LINK_HOST_TO_DEVICE: speeds[tiers_.host()][device] = link.bytes_per_s; break;
        case STW_LINK_NVME_TO_DEVICE: speeds[tiers_.nvme()][device] = link.bytes_per_s; break;
        default: break;
        }
    }
    for (const std::unique_ptr<Phase> &phase : phases_) {
        if (!phase->lookahead) continue;
        for (PlaceId to = 0; to < tiers_.host(); ++to) {
            // Across a ring it is two hops, and the slower one counts.
            const uint64_t hops =
                std::min(speeds[tiers_.nvme()][tiers_.host()], speeds[tiers_.host()][to]);
            const uint64_t direct = speeds[tiers_.nvme()][to];
            phase->lookahead->set_bandwidth(tiers_.nvme(), to, direct ? direct : hops);
            phase->lookahead->set_bandwidth(tiers_.host(), to, speeds[tiers_.host()][to]);
        }
        phase->lookahead->set_bandwidth(tiers_.nvme(), tiers_.host(),
                                        speeds[tiers_.nvme()][tiers_.host()]);
    }
    if (&links != &bandwidths_) bandwidths_ = links;
}

void Runtime::plan_now()
{
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) { plan_due_ = true; });
}

// ------------------------------------------------------------------------------- declared steps --

Status Runtime::declare_step(stw_phase *phase, std::vector<DeclaredUse> uses)
{
    FetchPlan plan;
    for (const DeclaredUse &use : uses) plan.ranges.push_back(use.range);
    STW_TRY(check_places(plan));
    // Of what lies over several ranks the shards are what a step moves here.
    std::erase_if(uses, [&](DeclaredUse &use) {
        if (!is_of_ranks(use.range)) return false;
        const std::optional<residency::Request> shard = shard_request(use.range);
        if (!shard) return true;
        use.range.access = STW_READ;
        use.range.place = shard->place;
        use.range.byte_begin = 0;
        use.range.byte_count = shard->byte_count;
        return false;
    });
    schedule::Step step;
    step.reserve(2 * uses.size());
    for (size_t begin = 0, end = 0; begin < uses.size(); begin = end) {
        uint64_t compute_ns = 0;
        for (end = begin; end < uses.size() && uses[end].call == uses[begin].call; ++end) {
            compute_ns = std::max(compute_ns, uses[end].compute_ns);
        }
        for (const schedule::Act act : {schedule::Act::kFetch, schedule::Act::kRelease}) {
            for (size_t i = begin; i < end; ++i) {
                const Range &range = uses[i].range;
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
                    event.hint = hint_of(uses[i].release_flags);
                    event.compute_ns = std::exchange(compute_ns, 0);
                }
                step.push_back(event);
            }
        }
    }
    const uint64_t events = step.size();
    const std::vector<observe::LinkTotal> links = link_totals();
    MutexLock lock(dispatch_.mutex());
    const uint32_t index = phase->index;
    const Phase &mine = *phases_[index];
    if (mine.step != 0) {
        return Status::error(STW_ERROR_BUSY,
                             "phase '%s' has an open step; declare the next ones before or after "
                             "it",
                             mine.name.c_str());
    }
    if (!plans_ || trace_.declare(index, std::move(step))) {
        lock.unlock();
        ask_plan(index, links);
        return {};
    }
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "the declared step of phase '%s' is too long: %s needed; its part of metadata_bytes %s; "
        "declare fewer entries, or raise metadata_bytes when opening the runtime",
        mine.name.c_str(), bytes_text(events * schedule::Learned::kEventBytesMax).c_str(),
        sum_text({{trace_.limit(), "kept for the order of accesses"}}).c_str());
    status.mutable_detail().needed_bytes = events * schedule::Learned::kEventBytesMax;
    status.mutable_detail().free_bytes = trace_.limit();
    return status;
}

}  // namespace stepwell
