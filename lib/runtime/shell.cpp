// SPDX-License-Identifier: Apache-2.0
// The shell's core: one lock, events in, commands out. Commands are appended to the engine's queues
// under the lock, so that their order is the core's; answers wake their waiters; callbacks run
// after the lock is gone.
#include "lib/runtime/planning.h"
#include "lib/runtime/ranks.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/snapshot.h"
#include "lib/support/assert.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

namespace stepwell {

using residency::PlaceId;

residency::Instant Runtime::now() const
{
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

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
    return !core_.guards(block, place) || core_.is_mapped(block, place);
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
        if (tiers_[transfer.to].maps && !core_.guards(transfer.block, transfer.to))
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
        stw_tensor *handle = handle_of(transfer.tensor);
        if (handle && !tiers_.is_nvme(transfer.to)) handle->notes.with(mutex_).moved = true;
    }
    const Status status = engine_->submit(jobs.data(), static_cast<uint32_t>(jobs.size()));
    if (status.ok()) return;
    for (const residency::Transfer &transfer : transfers) {
        core_.transfer_done(transfer.id, status, now(), out);
    }
}

void Runtime::promote(residency::TransferId transfer)
{
    engine_->promote(transfer);
}

void Runtime::failed(const residency::BackgroundError &error)
{
    background(error.tensor, error.status);
}

bool Runtime::granted(residency::Granted &granted, residency::Instant, Commands &)
{
    return answer(granted.fetch, Status(), granted.grants);
}

bool Runtime::refused(residency::Refused &refused, residency::Instant, Commands &out)
{
    std::vector<residency::Grant> none;
    return ask_privately(refused, out) || answer(refused.fetch, refused.status, none);
}

void Runtime::after_round(residency::Instant now, Commands &out)
{
    if (ranks_.body) pump_wholes(out);
    note_departures();
    ++progress_made_;
    progress_.notify_all();
    const auto stuck = static_cast<uint32_t>(core_.stuck_fetches().size());
    // A view that ended without the lock, between the core's look and stuck_, told nobody.
    if (stuck > stuck_.exchange(stuck)) core_.tick(now, out);
}

void Runtime::call_out(const std::vector<Waiter *> &calls, const std::vector<LogLine> &lines)
{
    for (const LogLine &line : lines) log_.line(line.level, line.topic, line.text.c_str());
    for (Waiter *waiter : calls) waiter->call(*waiter);
}

// False: neither a waiter's nor a hint of a plan.
bool Runtime::answer(residency::FetchId fetch, const Status &status,
                     std::vector<residency::Grant> &grants)
{
    const auto found = waiters_.find(fetch);
    if (found == waiters_.end()) return end_hint(fetch, status);
    Waiter &waiter = *found->second;
    waiters_.erase(found);
    waiter.status = status;
    waiter.grants = std::move(grants);
    waiter.done.with(mutex_) = true;
    if (waiter.status.ok() && (waiter.plan.flags & STW_FETCH_TRY)) note_fetch(waiter.plan);
    if (waiter.asynchronous) tell_end(waiter);
    if (waiter.call) {
        calls_.push_back(&waiter);
    } else {
        waiter.cv.notify_all();
    }
    return true;
}

void Runtime::engine_done(void *user, transfer::Completion *list, uint32_t n)
{
    static_cast<Runtime *>(user)->end_transfers(list, n);
}

void Runtime::end_transfers(const transfer::Completion *list, uint32_t n)
{
    act([&](Core &core, Commands &out) STW_REQUIRES(mutex_) {
        const residency::Instant time = now();
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

// Sticks to the tensor until cleared; the first one also to the runtime.
void Runtime::background(residency::TensorId tensor, const Status &status)
{
    Status named = status;
    if (handle_of(tensor)) {
        ErrorDetail &detail = named.mutable_detail();
        detail.tensor = handles_[tensor]->name;
        detail.sentence = format_text("work in the background on %s failed: %s",
                                      tensor_text(detail.tensor).c_str(), detail.sentence.c_str());
    }
    log_lines_.push_back({STW_LOG_ERROR, "background", named.sentence()});
    if (first_error_.ok()) first_error_ = named;
    tensor_errors_.try_emplace(tensor, std::move(named));
    errors_.fetch_add(1, std::memory_order_relaxed);
}

void Runtime::drain_hits()
{
    const residency::Instant since = std::exchange(drained_ns_, now());
    views_.drain_hits([&](const ViewTable::Heard &heard) {
        mutex_.assume_held();
        stw_tensor *handle = handle_of(heard.tensor);
        const bool planned = plans_ && handle && heard.phase != 0;
        const auto phase = static_cast<uint32_t>(heard.phase - 1);
        if (heard.ended) {
            if (planned) trace_.ended(phase, heard.tensor, heard.place);
            return;
        }
        if (planned) trace_.hit(phase, heard.tensor, heard.place, handle->bytes);
        if (planned) planned_.access(schedule::Lane::kProgram, heard.tensor);
        core_.touch(heard.tensor, heard.place);
        note_access(heard.tensor);
        ++hits_;
        if (handle && handle->notes.with(mutex_).moved) note_use(*handle, since, heard.thread);
    });
}

// Under the lock. The first use of what was moved, for the timeline: between `begin` and now.
void Runtime::note_use(stw_tensor &tensor, residency::Instant begin, uint32_t thread)
{
    tensor.notes.with(mutex_).moved = false;
    observe::Span span;
    span.start_ns = begin;
    span.end_ns = now();
    span.kind = observe::SpanKind::kUse;
    span.lane = static_cast<uint16_t>(thread);
    span.id = tensor.id;
    timeline_->record(span);
}

void Runtime::note_access(residency::TensorId tensor)
{
    ++accesses_;
    if (stw_tensor *handle = handle_of(tensor)) handle->notes.with(mutex_).last_use = accesses_;
}

bool Runtime::wait_progress(residency::Instant deadline)
{
    const residency::Instant time = now();
    if (time >= deadline) return false;
    (void)progress_.wait_until(mutex_,
                               std::min<uint64_t>(deadline, time + 3600ull * 1000000000ull));
    return true;
}

// Deadlines of fetches nobody sleeps on, and interrupts, which come from signal handlers.
void Runtime::run_timer()
{
    for (;;) {
        residency::Instant target;
        {
            MutexLock lock(mutex_);
            if (closing_) return;
            target = timer_target_ = std::min({core_.next_deadline(), stats_due_ns_, plan_wake_});
        }
        const residency::Instant time = now();
        const uint64_t left = target > time ? target - time : 0;
        const timespec wait{static_cast<time_t>(left / 1000000000),
                            static_cast<long>(left % 1000000000)};
        pollfd waiting{timer_fd_, POLLIN, 0};
        if (::ppoll(&waiting, 1, target == residency::kNever ? nullptr : &wait, nullptr) > 0) {
            uint64_t count = 0;
            if (::read(timer_fd_, &count, sizeof count) < 0) continue;
        }
        if (now() >= stats_due_ns_) publish_stats();
        act([this](Core &core, Commands &out) STW_REQUIRES(mutex_) {
            core.tick(now(), out);
            plan_due_ |= plan_wake_ <= now();
            // What began to wait after the call is none of its business.
            const residency::Instant interrupted = interrupted_ns_.exchange(0);
            if (interrupted == 0) return;
            interrupted_at_ = std::max(interrupted_at_, interrupted);
            progress_.notify_all();
            std::vector<residency::FetchId> waiting_fetches;
            for (const auto &[fetch, waiter] : waiters_) {
                if (waiter->asynchronous) waiter->cv.notify_all();
                if (waiter->call || waiter->asynchronous) continue;
                if (waiter->begin <= interrupted) waiting_fetches.push_back(fetch);
            }
            for (Snapshot *work : snapshots_) work->whole->cv.notify_all();
            for (const residency::FetchId fetch : waiting_fetches) {
                core.cancel(fetch,
                            Status::error(STW_ERROR_INTERRUPTED,
                                          "the wait was ended by stw_runtime_interrupt"),
                            out);
            }
            if (pipeline_) pipeline_->interrupt(interrupted);
        });
    }
}

// Under the lock.
Status Runtime::interrupted_since(residency::Instant begin) const
{
    if (begin > interrupted_at_) return {};
    return Status::error(
        STW_ERROR_INTERRUPTED,
        "the wait was ended by stw_runtime_interrupt; what was waited for goes on");
}

void Runtime::arm_timer(residency::Instant deadline)
{
    if (deadline >= timer_target_) return;
    timer_target_ = deadline;
    const uint64_t one = 1;
    (void)!::write(timer_fd_, &one, sizeof one);
}

void Runtime::interrupt()
{
    interrupted_ns_.store(now());
    const uint64_t one = 1;
    (void)!::write(timer_fd_, &one, sizeof one);
}

Status Runtime::background_error()
{
    MutexLock lock(mutex_);
    return first_error_;
}

void Runtime::clear_error()
{
    MutexLock lock(mutex_);
    first_error_ = Status();
    tensor_errors_.clear();
    errors_.store(0, std::memory_order_relaxed);
    core_.forgive();
}

Status Runtime::sticky_error(residency::TensorId tensor)
{
    if (errors_.load(std::memory_order_relaxed) == 0) return {};
    MutexLock lock(mutex_);
    const auto found = tensor_errors_.find(tensor);
    return found == tensor_errors_.end() ? Status() : found->second;
}

Status Runtime::drain(uint64_t timeout_ns)
{
    release_touches();
    const PlanPause pause(*this);
    const residency::Instant begin = now();
    const residency::Instant deadline = begin + timeout(timeout_ns);
    STW_TRY(drain_ranks(begin, deadline));
    if (pipeline_) STW_TRY(tell_waiting(pipeline_->drain(timeout(timeout_ns))));
    MutexLock lock(mutex_);
    // Between two of its chunks a copy waits for nothing.
    while (core_.transfers_in_flight() > 0 || core_.waiting_fetches() > 0 || !snapshots_.empty() ||
           !ranks_idle()) {
        STW_TRY(interrupted_since(begin));
        if (wait_progress(deadline)) continue;
        Status status = Status::error(
            STW_ERROR_TIMEOUT,
            "%u transfers, %u fetches and %zu copies were still under way when the timeout of %.3f "
            "s passed",
            core_.transfers_in_flight(), core_.waiting_fetches(), snapshots_.size(),
            static_cast<double>(timeout(timeout_ns)) * 1e-9);
        lock.unlock();
        status = tell_waiting(std::move(status));
        log_.line(STW_LOG_WARNING, "timeout", status.sentence());
        return status;
    }
    return first_error_;
}

}  // namespace stepwell
