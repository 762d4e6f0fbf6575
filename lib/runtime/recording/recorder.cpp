// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/recording/recorder.h"

#include "lib/observe/timeline.h"
#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/handles/table.h"
#include "lib/runtime/handles/views.h"
#include "lib/runtime/machine/machine.h"
#include "lib/runtime/recording/phase.h"
#include "lib/schedule/lookahead/lookahead.h"
#include "lib/support/assert.h"

namespace stepwell {

using residency::PlaceId;

schedule::Hint hint_of(ReleaseHint release)
{
    if (release.discard()) return schedule::Hint::kDiscard;
    if (release.far()) return schedule::Hint::kFar;
    return release.near() ? schedule::Hint::kNear : schedule::Hint::kNone;
}

AccessRecorder::AccessRecorder(Dispatcher &dispatch, HandleTable &handles, Machine &machine,
                               ViewTable &views)
    : dispatch_(dispatch), handles_(handles), machine_(machine), views_(views)
{
}
AccessRecorder::~AccessRecorder() = default;

void AccessRecorder::drain_hits()
{
    const residency::Instant since = std::exchange(drained_ns_, dispatch_.now());
    views_.drain_hits([&](const ViewTable::Heard &heard) {
        dispatch_.mutex().assume_held();
        stw_tensor *handle = handles_.at(heard.tensor);
        const bool counts = enabled && handle && heard.phase != 0;
        const auto phase = static_cast<uint32_t>(heard.phase - 1);
        if (heard.ended) {
            if (counts) trace.ended(phase, heard.tensor, heard.place);
            return;
        }
        if (counts) trace.hit(phase, heard.tensor, heard.place, handle->bytes);
        if (counts) planned.access(schedule::Lane::kProgram, heard.tensor);
        dispatch_.core.touch(heard.tensor, heard.place);
        note_access(heard.tensor);
        ++hits_;
        if (handle && handle->notes.moved) note_use(*handle, since, heard.thread);
    });
}

// Records the first use of moved bytes on the timeline, from `begin` to now.
void AccessRecorder::note_use(stw_tensor &tensor, residency::Instant begin, uint32_t thread)
{
    tensor.notes.moved = false;
    observe::Span span;
    span.start_ns = begin;
    span.end_ns = dispatch_.now();
    span.kind = observe::SpanKind::kUse;
    span.lane = static_cast<uint16_t>(thread);
    span.id = tensor.id;
    machine_.timeline->record(span);
}

void AccessRecorder::note_access(residency::TensorId tensor)
{
    ++accesses_;
    if (stw_tensor *handle = handles_.at(tensor)) handle->notes.last_use = accesses_;
}

// The place to which shards of gathered tensors are prefetched: the host, if there is one.
PlaceId AccessRecorder::shard_place() const
{
    return machine_.tiers[machine_.tiers.host()].memory ? machine_.tiers.host()
                                                        : machine_.tiers.nearest();
}

// kNoPhase if the step has ended.
uint32_t AccessRecorder::phase_of(uint64_t step) const
{
    if (step == 0) return schedule::kNoPhase;
    const auto index = static_cast<uint32_t>((step >> 32) - 1);
    return phases[index]->step == step ? index : schedule::kNoPhase;
}

// Conversions are recorded by note_copies().
void AccessRecorder::note_fetch(const FetchPlan &plan)
{
    noted_.clear();
    for (const RequestedRange &range : plan.ranges) {
        if (is_converted(range) || range.byte_count == 0 || is_of_ranks(range)) continue;
        note_access(range.tensor->id);
        noted_.push_back({range.tensor->id, access_of(range.access), range.place, range.byte_begin,
                          range.byte_count});
    }
    note_fetched(phase_of(plan.step), schedule::Lane::kProgram, noted_);
}

// Copies hint their own pieces: there is no place to which a plan could prefetch them.
void AccessRecorder::note_copies(const FetchPlan &plan)
{
    std::vector<residency::Request> requests;
    const auto add = [&](const RequestedRange &range) STW_REQUIRES(runtime_lock) {
        if (range.byte_count == 0) return;
        note_access(range.tensor->id);
        requests.push_back({range.tensor->id, residency::Access::kRead, residency::kAnyCpuPlace,
                            range.byte_begin, range.byte_count});
    };
    for (const RequestedRange &range : plan.copied) add(range);
    for (const RequestedRange &range : plan.ranges) {
        if (is_converted(range)) add(range);
    }
    note_fetched(phase_of(plan.step), schedule::Lane::kProgram, requests);
}

// Of a gathered tensor only the shard can be prefetched, to where its copy is read. None for what
// is written or summed, which has a buffer of its own.
std::optional<residency::Request> AccessRecorder::shard_request(const RequestedRange &range) const
{
    const bool reads = range.access == STW_READ || range.access == STW_READ_WRITE;
    if (!reads || range.tensor->bytes == 0) return std::nullopt;
    return residency::Request{range.tensor->id, residency::Access::kRead, shard_place(), 0,
                              range.tensor->bytes};
}

void AccessRecorder::note_gathered(const FetchPlan &plan)
{
    std::vector<residency::Request> requests;
    for (const RequestedRange &range : plan.gathered) {
        const std::optional<residency::Request> shard = shard_request(range);
        if (!shard) continue;
        note_access(range.tensor->id);
        requests.push_back(*shard);
    }
    if (!requests.empty()) {
        note_fetched(phase_of(plan.step), schedule::Lane::kProgram, requests);
    }
}

void AccessRecorder::note_update(const residency::FetchAsked &asked)
{
    for (const residency::Request &request : asked.requests) note_access(request.tensor);
    note_fetched(phase_of(current_step()), schedule::Lane::kUpdate, asked.requests);
}

// For one call. The plan records it before the core, which asks the plan for the value of blocks.
void AccessRecorder::note_fetched(uint32_t phase, schedule::Lane lane,
                                  const std::vector<residency::Request> &requests)
{
    plan_due = true;
    if (!enabled || phase == schedule::kNoPhase) return;
    trace.fetched(phase, lane, requests.data(), requests.size(), dispatch_.now());
    for (const residency::Request &request : requests) {
        // Blocks after the tensor's end would be planned for another tensor.
        STW_ASSERT(request.byte_begin + request.byte_count <=
                   dispatch_.core.spec(request.tensor).bytes);
        planned.access(lane, request.tensor);
    }
}

void AccessRecorder::note_update_end(const residency::Release &release)
{
    if (!enabled) return;
    const residency::Request view{release.tensor, release.access, release.place, release.byte_begin,
                                  release.byte_count};
    const auto hint = release.far ? schedule::Hint::kFar : schedule::Hint::kNone;
    trace.released(phase_of(current_step()), schedule::Lane::kUpdate, view, hint, dispatch_.now());
}

void AccessRecorder::note_release(const residency::Request &view, uint64_t step, ReleaseHint hint)
{
    plan_due = true;
    if (!enabled) return;
    trace.released(phase_of(step), schedule::Lane::kProgram, view, hint_of(hint), dispatch_.now());
}

void AccessRecorder::note_discard(schedule::Lane lane, residency::TensorId tensor)
{
    if (!enabled) return;
    trace.discarded(phase_of(current_step()), lane, tensor, dispatch_.now());
}

uint64_t AccessRecorder::step_of(const stw_phase *phase) const
{
    MutexLock lock(dispatch_.mutex());
    return phases[phase->index]->step;
}

void AccessRecorder::note_reduced(stw_tensor *gradient, uint64_t step)
{
    ++gradient->notes.contributions;
    if (step == 0) return;
    Phase &phase = *phases[(step >> 32) - 1];
    if (phase.step == step) phase.reduced.push_back(gradient->id);
}

void AccessRecorder::add_stall_of(uint64_t step, observe::Stall cause, residency::TensorId tensor,
                                  residency::Instant begin, residency::Instant end)
{
    observe::Span span;
    span.start_ns = begin;
    span.end_ns = end;
    span.kind = observe::SpanKind::kStall;
    span.lane = static_cast<uint16_t>(cause);
    span.detail = owner_number();
    span.id = tensor;
    machine_.timeline->record(span);
    const stw_tensor *handle = handles_.at(tensor);
    stalls.add(handle ? handle->name : std::string_view(), cause, end - begin);
    const uint32_t phase = phase_of(step);
    if (phase == schedule::kNoPhase) return;
    phases[phase]->account.add_stall(cause, end - begin);
    trace.waited(phase, begin, end);
}

// A thread that has begun none works for another one, as the threads of a backward pass do.
uint64_t AccessRecorder::step_of_thread(uint32_t owner) const
{
    uint64_t step = 0;
    bool begins = false;
    residency::Instant begun = 0;
    for (const std::unique_ptr<Phase> &phase : phases) {
        if (owner == 0 || phase->owner != owner) continue;
        begins = true;
        if (phase->step == 0 || phase->begin_ns < begun) continue;
        step = phase->step;
        begun = phase->begin_ns;
    }
    return begins ? step : current_step();
}

uint32_t AccessRecorder::owner_number()
{
    const ThreadState *state = views_.thread_state();
    return state ? state->number : 0;
}

}  // namespace stepwell
