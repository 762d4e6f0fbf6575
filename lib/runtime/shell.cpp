// SPDX-License-Identifier: Apache-2.0
// The shell's core: one lock, events in, commands out. Commands are appended to the engine's queues
// under the lock, so that their order is the core's; answers wake their waiters; callbacks run
// after the lock is gone.
#include "lib/runtime/planning.h"
#include "lib/runtime/ranks.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/snapshot.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <utility>

namespace stepwell {

using residency::PlaceId;

char *Runtime::pointer_of(PlaceId place, residency::Slot slot,
                          const residency::Transfer &transfer) const
{
    const memory::Tier &at = tiers_[place];
    if (!at.maps || !is_at_address(place, transfer.block))
        return at.base + static_cast<uint64_t>(slot) * block_bytes_;
    return static_cast<char *>(pack_addresses_[transfer.pack].at[place]) + transfer.pack_offset;
}

// Of a place that maps. Where the block is not guarded a transfer brings it there.
bool Runtime::is_at_address(PlaceId place, residency::BlockId block) const
{
    return !dispatch_.core.guards(block, place) || dispatch_.core.is_mapped(block, place);
}

transfer::Job Runtime::job_of(const residency::Transfer &transfer) const
{
    transfer::Job job;
    job.transfer = transfer;
    const auto is_memory = [this](PlaceId place) {
        return place != residency::kNoPlace && !tiers_.is_nvme(place);
    };
    if (is_memory(transfer.from)) {
        job.from_memory = transfer.from;
        job.from_pointer = pointer_of(transfer.from, transfer.from_slot, transfer);
    }
    if (is_memory(transfer.to)) {
        job.to_memory = transfer.to;
        job.to_pointer = pointer_of(transfer.to, transfer.to_slot, transfer);
        if (tiers_[transfer.to].maps && !dispatch_.core.guards(transfer.block, transfer.to))
            job.map_block = transfer.to_slot;
        if (tiers_[transfer.to].shows && transfer.pack < pack_addresses_.size()) {
            job.shown = pack_addresses_[transfer.pack].shown[transfer.to].get();
            job.shown_block = static_cast<uint32_t>(transfer.pack_offset / block_bytes_);
        }
    }
    return job;
}

void Runtime::forget(residency::BlockId block)
{
    if (engine_->store()) engine_->store()->forget(block);
}

void Runtime::pack_freed(residency::PackId pack)
{
    release_pack(pack);
}

// The only commands of tensors that were never used, carried out without an allocation.
void Runtime::forget_unused(const Commands &out)
{
    for (const residency::BlockId block : out.forgets) forget(block);
    for (const residency::PackId pack : out.freed_packs) release_pack(pack);
}

// What the engine refuses (it is closed, or a maximum is reached) ends as a failed transfer.
void Runtime::submit(std::vector<residency::Transfer> &transfers, Commands &out)
{
    std::vector<transfer::Job> jobs;
    jobs.reserve(transfers.size());
    for (const residency::Transfer &transfer : transfers) {
        jobs.push_back(job_of(transfer));
        stw_tensor *handle = handles_.at(transfer.tensor);
        if (handle && !tiers_.is_nvme(transfer.to)) handle->notes.moved = true;
    }
    const Status status = engine_->submit(jobs.data(), static_cast<uint32_t>(jobs.size()));
    if (status.ok()) return;
    for (const residency::Transfer &transfer : transfers) {
        dispatch_.core.transfer_done(transfer.id, status, dispatch_.now(), out);
    }
}

void Runtime::promote(residency::TransferId transfer)
{
    engine_->promote(transfer);
}

void Runtime::failed(const residency::BackgroundError &error)
{
    errors_.add(error.tensor, error.status);
}

bool Runtime::granted(residency::Granted &granted, residency::Instant, Commands &)
{
    return end_hint(granted.fetch, Status());
}

bool Runtime::refused(residency::Refused &refused, residency::Instant, Commands &out)
{
    return ask_privately(refused, out) || end_hint(refused.fetch, refused.status);
}

void Runtime::answered(Waiter &waiter)
{
    if (waiter.status.ok() && (waiter.plan.flags & STW_FETCH_TRY)) note_fetch(waiter.plan);
    if (waiter.asynchronous) tell_end(waiter);
}

void Runtime::after_round(residency::Instant, Commands &out)
{
    if (ranks_.body) pump_wholes(out);
    note_departures();
}

void Runtime::before_unlock()
{
    if (plan_due_) look_ahead();
    if (!sleepers_.empty()) break_deadlocks();
}

void Runtime::unlocked()
{
    if (ranks_news_.exchange(false)) tell_ranks();  // who wakes needs the lock
    if (touches_give_way_.exchange(false) || dispatch_.has_stuck()) release_touches();
}

residency::Instant Runtime::due() const
{
    return std::min(stats_due_ns_, plan_wake_);
}

void Runtime::on_timer(residency::Instant now)
{
    if (now >= stats_due_ns_) publish_stats();
}

void Runtime::on_timer_locked(residency::Instant now)
{
    plan_due_ |= plan_wake_ <= now;
}

void Runtime::interrupted(residency::Instant at)
{
    for (Snapshot *work : snapshots_) work->whole->cv.notify_all();
    if (pipeline_) pipeline_->interrupt(at);
}

void Runtime::engine_done(void *user, transfer::Completion *list, uint32_t n)
{
    static_cast<Runtime *>(user)->end_transfers(list, n);
}

void Runtime::end_transfers(const transfer::Completion *list, uint32_t n)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        const residency::Instant time = dispatch_.now();
        for (uint32_t i = 0; i < n; ++i) core.transfer_done(list[i].id, list[i].status, time, out);
        constexpr residency::Instant kSampleNs = 10'000'000;
        if (time - sampled_ns_ >= kSampleNs) sample_tiers(time);
        plan_due_ = true;
    });
}

void Runtime::engine_span(void *user, const transfer::Span &span)
{
    auto *runtime = static_cast<Runtime *>(user);
    observe::Span out;
    out.start_ns = span.start_ns;
    out.end_ns = span.end_ns;
    out.kind = observe::SpanKind::kTransfer;
    out.lane = static_cast<uint16_t>(span.link);
    out.detail = span.memory < runtime->tiers_.host() ? span.memory : 0;
    out.id = observe::transfer_id(span.block, span.tensor);
    out.bytes = span.bytes;
    runtime->timeline_->record(out);
}

void Runtime::drain_hits()
{
    const residency::Instant since = std::exchange(drained_ns_, dispatch_.now());
    views_.drain_hits([&](const ViewTable::Heard &heard) {
        dispatch_.mutex().assume_held();
        stw_tensor *handle = handles_.at(heard.tensor);
        const bool planned = plans_ && handle && heard.phase != 0;
        const auto phase = static_cast<uint32_t>(heard.phase - 1);
        if (heard.ended) {
            if (planned) trace_.ended(phase, heard.tensor, heard.place);
            return;
        }
        if (planned) trace_.hit(phase, heard.tensor, heard.place, handle->bytes);
        if (planned) planned_.access(schedule::Lane::kProgram, heard.tensor);
        dispatch_.core.touch(heard.tensor, heard.place);
        note_access(heard.tensor);
        ++hits_;
        if (handle && handle->notes.moved) note_use(*handle, since, heard.thread);
    });
}

// Under the lock. The first use of what was moved, for the timeline: between `begin` and now.
void Runtime::note_use(stw_tensor &tensor, residency::Instant begin, uint32_t thread)
{
    tensor.notes.moved = false;
    observe::Span span;
    span.start_ns = begin;
    span.end_ns = dispatch_.now();
    span.kind = observe::SpanKind::kUse;
    span.lane = static_cast<uint16_t>(thread);
    span.id = tensor.id;
    timeline_->record(span);
}

void Runtime::note_access(residency::TensorId tensor)
{
    ++accesses_;
    if (stw_tensor *handle = handles_.at(tensor)) handle->notes.last_use = accesses_;
}

Status Runtime::drain(uint64_t timeout_ns)
{
    release_touches();
    const PlanPause pause(*this);
    const residency::Instant begin = dispatch_.now();
    const residency::Instant deadline = begin + dispatch_.timeout(timeout_ns);
    STW_TRY(drain_ranks(begin, deadline));
    if (pipeline_) STW_TRY(tell_waiting(pipeline_->drain(dispatch_.timeout(timeout_ns))));
    MutexLock lock(dispatch_.mutex());
    // Between two of its chunks a copy waits for nothing.
    while (dispatch_.core.transfers_in_flight() > 0 || dispatch_.core.waiting_fetches() > 0 ||
           !snapshots_.empty() || !ranks_idle()) {
        STW_TRY(dispatch_.interrupted_since(begin));
        if (dispatch_.wait_progress(deadline)) continue;
        Status status = Status::error(
            STW_ERROR_TIMEOUT,
            "%u transfers, %u fetches and %zu copies were still under way when the timeout of %.3f "
            "s passed",
            dispatch_.core.transfers_in_flight(), dispatch_.core.waiting_fetches(),
            snapshots_.size(), static_cast<double>(dispatch_.timeout(timeout_ns)) * 1e-9);
        lock.unlock();
        status = tell_waiting(std::move(status));
        dispatch_.log.line(STW_LOG_WARNING, "timeout", status.sentence());
        return status;
    }
    return errors_.first_locked();
}

}  // namespace stepwell
