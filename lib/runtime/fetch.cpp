// SPDX-License-Identifier: Apache-2.0
// Fetch, as the program sees it and beyond hits: what is asked of the core, what becomes of the
// answer; also hints ahead of a fetch, and evictions.
#include "lib/runtime/planning.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/snapshot.h"
#include "lib/support/assert.h"

#include <chrono>
#include <new>
#include <thread>
#include <unordered_set>

namespace stepwell {

using residency::PlaceId;

residency::Access access_of(uint32_t access)
{
    switch (access) {
    case STW_WRITE: return residency::Access::kWrite;
    case STW_READ_WRITE: return residency::Access::kReadWrite;
    case STW_REDUCE: return residency::Access::kWriteEmpty;
    default: return residency::Access::kRead;
    }
}

// Of a private buffer: what is converted in it is the only replica wanted.
residency::Access buffer_access(uint32_t access)
{
    return access == STW_READ ? residency::Access::kReadWrite : residency::Access::kWrite;
}

uint32_t Runtime::owner_number()
{
    const ThreadState *state = views_.thread_state();
    return state ? state->number : 0;
}

uint64_t view_bytes(const Range &range)
{
    if (range.dtype == 0) return range.byte_count;
    return range.element_count * (stw_dtype_bits(range.dtype) / 8);
}

uint64_t sum_bytes(const Range &range)
{
    if (range.access != STW_REDUCE) return view_bytes(range);
    const uint64_t size = stw_dtype_bits(range.dtype ? range.dtype : range.tensor->dtype) / 8;
    return sum_elements(*range.tensor, range.access, range.element_count) * size;
}

residency::FetchAsked Runtime::asked_of(const Waiter &waiter) const
{
    residency::FetchAsked asked;
    asked.owner = waiter.owner;
    asked.priority = waiter.plan.priority;
    asked.deadline = waiter.deadline;
    if (waiter.plan.flags & STW_FETCH_TRY) asked.flags |= residency::kFetchTry;
    if (waiter.plan.flags & STW_FETCH_WAIT_ROOM) asked.flags |= residency::kFetchWaitRoom;
    if (waiter.plan.beside_readers) asked.flags |= residency::kFetchBesideReaders;
    for (const Range &range : waiter.plan.ranges) {
        if (range.scratch != residency::kNone) {
            asked.requests.push_back(
                {range.scratch, buffer_access(range.access), range.place, 0, sum_bytes(range)});
        } else {
            asked.requests.push_back({range.tensor->id, access_of(range.access), range.place,
                                      range.byte_begin, range.byte_count});
        }
    }
    return asked;
}

// A reduce adds in place when the gradient is empty and nobody uses it; else into a buffer of its
// own. Decided by the order of calls: by contents and open views, not by who is faster. Of several
// in one call the first alone may be in place.
Status Runtime::prepare_reduces(FetchPlan &plan)
{
    std::unordered_set<residency::TensorId> earlier;
    for (Range &range : plan.ranges) {
        if (range.access != STW_REDUCE || range.scratch != residency::kNone) continue;
        if (range.byte_count == 0) continue;
        // In place only what begins as zeros throughout, in the tensor's dtype.
        const bool whole =
            range.byte_count == range.tensor->bytes && range.dtype == 0 && !range.tensor->sharding;
        const bool in_place = earlier.insert(range.tensor->id).second && whole;
        Status status;
        dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
            if (!in_place || core.in_use(range.tensor->id)) status = make_scratch(range);
        });
        STW_TRY(std::move(status));
    }
    return {};
}

// Under the lock.
Status Runtime::make_scratch(Range &range)
{
    Result<residency::TensorId> made = make_buffer(*range.tensor, sum_bytes(range));
    if (made.ok()) range.scratch = made.value();
    return std::move(made.status());
}

void Runtime::drop_scratch(residency::TensorId scratch)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        const Status status = core.destroy(scratch, out);
        STW_ASSERT(status.ok());
    });
}

void Runtime::drop_scratches(FetchPlan &plan)
{
    for (Range &range : plan.ranges) {
        if (range.scratch != residency::kNone) drop_scratch(range.scratch);
        range.scratch = residency::kNone;
    }
}

// A tensor is fetched only where its policy lets it be, and in parts only where they can be seen.
Status Runtime::check_places(const FetchPlan &plan) const
{
    MutexLock lock(dispatch_.mutex());
    for (const Range &range : plan.ranges) {
        const memory::Tier &at = tiers_[range.place];
        const bool part = range.byte_count != range.tensor->bytes && range.access != STW_REDUCE;
        if (part && at.shows_runs && range.tensor->shown[range.place]) {
            return Status::error(STW_ERROR_INVALID,
                                 "%s has a fixed address, and the memory of device %u is "
                                 "seen there in large pieces, so it is fetched as a whole and not "
                                 "%s of %s; arena=shrinks as an option of the device lets parts be "
                                 "fetched",
                                 tensor_text(range.tensor->name).c_str(), at.device,
                                 bytes_text(range.byte_count).c_str(),
                                 bytes_text(range.tensor->bytes).c_str());
        }
        const uint32_t allowed = dispatch_.core.spec(range.tensor->id).policy.allowed;
        if (allowed & (1u << range.place)) continue;
        return Status::error(STW_ERROR_INVALID,
                             "%s cannot be fetched at the %s tier: its policy's "
                             "allowed_tiers leave that tier out",
                             tensor_text(range.tensor->name).c_str(),
                             report::tier_name(static_cast<uint32_t>(tiers_[range.place].kind)));
    }
    return {};
}

Status Runtime::prepare_fetch(Waiter &waiter)
{
    STW_TRY(check_places(waiter.plan));
    for (const Range &range : waiter.plan.ranges) {
        STW_TRY(write_zeros(range.tensor));
        const bool writes = range.access == STW_WRITE || range.access == STW_READ_WRITE;
        if (writes) STW_TRY(change_shards(range.tensor));
    }
    return prepare_reduces(waiter.plan);
}

// Asks the core. BUSY at once where the answer could only come from the asker.
Status Runtime::start_fetch(Waiter &waiter)
{
    Status prepared = prepare_fetch(waiter);
    if (!prepared.ok()) {
        drop_scratches(waiter.plan);
        return prepared;
    }
    waiter.begin = dispatch_.now();
    if (!waiter.snapshot)
        waiter.deadline = waiter.begin + dispatch_.timeout(waiter.plan.timeout_ns);
    dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        drain_hits();
        ask(waiter, out);
    });
    return {};
}

// Under the lock. Who sleeps for what it asked before sleeps for this.
void Runtime::ask(Waiter &waiter, Commands &out)
{
    const bool copied = waiter.fetch == 0 && waiter.snapshot;
    const residency::FetchId before = copied ? waiter.snapshot->chunk.fetch : waiter.fetch;
    // Once, and as it is called; one that may not wait only if it is granted.
    if (waiter.fetch == 0 && (waiter.plan.flags & STW_FETCH_TRY) == 0) note_fetch(waiter.plan);
    if (copied) std::erase(snapshots_, waiter.snapshot.get());
    misses_ += waiter.fetch == 0;
    waiter.fetch = dispatch_.core.fetch(asked_of(waiter), dispatch_.now(), out);
    dispatch_.expect(waiter);
    sleep_follows(before, waiter.fetch);
    if (!dispatch_.core.is_waiting(waiter.fetch)) return;
    if (waiter.cancelled) dispatch_.core.cancel(waiter.fetch, cancelled(), out);
    if (!dispatch_.core.is_waiting(waiter.fetch)) return;
    waiter.cause = cause_of(waiter);
    if (touches_ && touches_->any() && dispatch_.core.waits_for_locks(waiter.fetch))
        touches_give_way_.store(true);
    std::string name;
    if (waiter.cause == observe::Stall::kUpdate && waits_for_itself(waiter, &name)) {
        dispatch_.core.cancel(waiter.fetch,
                              Status::error(STW_ERROR_BUSY,
                                            "the fetch would wait for a view of %s that the "
                                            "same thread or step holds; release that view first",
                                            tensor_text(name).c_str()),
                              out);
    }
    for (const Range &range : waiter.plan.ranges) {
        if (range.scratch == residency::kNone && dispatch_.core.claimed_by(range.tensor->id) != 0) {
            pipeline_->prefer(range.tensor->id);
        }
    }
}

Status Runtime::sticky_errors(const FetchPlan &plan)
{
    for (const Range &range : plan.ranges) STW_TRY(errors_.of(range.tensor->id));
    for (const Range &range : plan.copied) STW_TRY(errors_.of(range.tensor->id));
    for (const Range &range : plan.gathered) STW_TRY(errors_.of(range.tensor->id));
    return {};
}

// Views that faults left open give way; nobody holds them knowingly.
Status Runtime::fetch(FetchPlan plan, stw_view *views_out)
{
    if (!touches_) return fetch_once(std::move(plan), views_out);
    const residency::Instant deadline = dispatch_.now() + dispatch_.timeout(plan.timeout_ns);
    for (;;) {
        const uint64_t before = touches_->changes();
        Status status = fetch_once(FetchPlan(plan), views_out);
        const bool gone = touches_->changes() != before;
        const bool room = status.code() == STW_ERROR_BUDGET && (touches_->in_the_way() || gone);
        const bool lock = status.code() == STW_ERROR_BUSY && touches_->any();
        if ((!room && !lock) || dispatch_.now() >= deadline) return status;
        if (!touches_->any()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        release_touches();
    }
}

Status Runtime::fetch_once(FetchPlan plan, stw_view *views_out)
{
    STW_TRY(sticky_errors(plan));
    Waiter waiter;
    waiter.listener = this;
    waiter.plan = std::move(plan);
    waiter.owner = owner_number();
    if (!waiter.plan.gathered.empty()) STW_TRY(fetch_wholes(waiter));
    if (needs_copies(waiter.plan)) waiter.status = copy_out(waiter);
    if (!waiter.status.ok() || waiter.plan.ranges.empty()) return finish_fetch(waiter, views_out);
    Status started = start_fetch(waiter);
    if (!started.ok()) {
        undo_wholes(waiter);
        return started;
    }
    await(waiter, waiter.plan.ranges.front().tensor->id);
    return finish_fetch(waiter, views_out);
}

// In-place reduction is refused where there are contents to keep: then with a private buffer, for
// the same waiter. False: the refusal stands.
bool Runtime::ask_privately(residency::Refused &refused, Commands &out)
{
    Waiter *found = dispatch_.find(refused.fetch);
    if (refused.status.code() != STW_ERROR_EXISTS || !found) return false;
    Waiter &waiter = *found;
    bool again = false;
    for (Range &range : waiter.plan.ranges) {
        if (range.access != STW_REDUCE || range.scratch != residency::kNone) continue;
        Status made;
        try {
            made = make_scratch(range);
        } catch (const std::bad_alloc &) {
            made = Status::error(STW_ERROR_MEMORY, "no memory for a buffer to sum %s in",
                                 tensor_text(range.tensor->name).c_str());
        }
        if (!made.ok()) {
            refused.status = std::move(made);
            return false;
        }
        again = true;
    }
    if (!again) return false;
    dispatch_.expect_no_more(refused.fetch);
    ask(waiter, out);
    return true;
}

Status Runtime::finish_fetch(Waiter &waiter, stw_view *views_out)
{
    Status status = waiter.status;  // others may poll meanwhile
    if (status.ok()) status = fill_views(waiter, views_out);
    if (status.ok()) return status;
    if (status.code() == STW_ERROR_BUDGET) count_pinning_views(status.mutable_detail());
    log_timeout(status);
    drop_scratches(waiter.plan);
    undo_wholes(waiter);
    return status;
}

// The core knows pins, not who made them.
void Runtime::count_pinning_views(ErrorDetail &detail)
{
    if (detail.pinned_bytes == 0) return;
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        const memory::Tier &at = tiers_[views_.slot(index).place];
        const bool there = static_cast<uint32_t>(at.kind) == detail.tier;
        detail.pinned_views += there && at.device == detail.device;
    }
}

// The pins of a granted fetch that becomes no view: contents stay what they were.
void Runtime::undo_grants(const FetchPlan &plan, const std::vector<residency::Grant> &grants)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (size_t i = 0; i < grants.size(); ++i) {
            const Range &range = plan.ranges[i];
            const bool scratch = range.scratch != residency::kNone;
            const residency::TensorId tensor = scratch ? range.scratch : range.tensor->id;
            if (grants[i].by_gate) {
                if (core.gate(tensor, grants[i].place).unpin())
                    core.gate_idle(tensor, dispatch_.now(), out);
                continue;
            }
            residency::Release release;
            release.tensor = tensor;
            release.access = scratch ? buffer_access(range.access) : access_of(range.access);
            release.place = grants[i].place;
            release.byte_begin = scratch ? 0 : range.byte_begin;
            release.byte_count = scratch ? sum_bytes(range) : range.byte_count;
            release.abandon = range.access == STW_WRITE || range.access == STW_REDUCE;
            core.release(release, dispatch_.now(), out);
        }
    });
}

Status Runtime::fits(const std::vector<Range> &ranges)
{
    std::vector<residency::Request> requests;
    std::vector<residency::Request> buffers;
    std::vector<const stw_tensor *> wholes;
    requests.reserve(ranges.size());
    for (const Range &range : ranges) {
        if (range.into) continue;  // passes through, block by block
        if (is_gathered(range)) {
            wholes.push_back(range.tensor);
            continue;
        }
        const residency::Access access = access_of(range.access);
        const bool sums = range.access == STW_REDUCE && range.tensor->sharding;
        if (range.dtype != 0 || sums) {
            buffers.push_back({range.tensor->id, access, range.place, 0, sum_bytes(range)});
        } else {
            requests.push_back(
                {range.tensor->id, access, range.place, range.byte_begin, range.byte_count});
        }
    }
    MutexLock lock(dispatch_.mutex());
    STW_TRY(wholes_fit(wholes));
    if (requests.empty() && buffers.empty()) return {};
    return dispatch_.core.fits(requests, buffers);
}

Status Runtime::prefetch(const std::vector<Range> &ranges)
{
    constexpr uint32_t kHintsMax = 1024;  // waiting at once; more are dropped, which hints allow
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        drain_hits();
        for (const Range &range : ranges) {
            if (core.waiting_fetches() >= kHintsMax) return;
            residency::FetchAsked asked;
            asked.flags = residency::kFetchPrefetch;
            asked.urgency = residency::Class::kHint;
            if (is_of_ranks(range)) {
                const std::optional<residency::Request> shard = shard_request(range);
                if (!shard) continue;
                asked.requests.push_back(*shard);
                core.fetch(asked, dispatch_.now(), out);
                continue;
            }
            const bool copied = range.into || (range.dtype != 0 && range.access == STW_READ);
            asked.requests.push_back({range.tensor->id, residency::Access::kRead,
                                      copied ? residency::kAnyCpuPlace : range.place,
                                      range.byte_begin, range.byte_count});
            core.fetch(asked, dispatch_.now(), out);
        }
    });
    return {};
}

Status Runtime::evict(stw_tensor *const *tensors, uint32_t n, PlaceId place, uint64_t timeout_ns)
{
    release_touches();
    const PlanPause pause(*this);  // it might bring back what leaves
    const residency::Instant begin = dispatch_.now();
    const residency::Instant deadline = begin + dispatch_.timeout(timeout_ns);
    std::vector<stw_tensor *> wanted(tensors, tensors + n);
    for (;;) {
        uint64_t left = 0;
        uint64_t seen = 0;
        bool moves = false;
        std::string stays;
        dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
            drain_hits();
            if (n == 0) {
                wanted.clear();
                for (stw_tensor *at = handles_.first(); at; at = at->notes.next) {
                    wanted.push_back(at);
                }
            }
            for (stw_tensor *tensor : wanted) {
                const uint64_t blocks = core.evict(tensor->id, place, out);
                if (blocks > 0) stays = tensor->name;
                left += blocks;
            }
            moves = core.transfers_in_flight() > 0 || pipeline_->stats().jobs > 0;
            seen = dispatch_.progress() + 1;  // this call's own counts
        });
        if (left == 0) return {};
        if (!moves) {
            return Status::error(STW_ERROR_BUSY,
                                 "%llu blocks cannot leave the tier; %s has open views "
                                 "there, or no other tier may take it",
                                 static_cast<unsigned long long>(left), tensor_text(stays).c_str());
        }
        MutexLock lock(dispatch_.mutex());
        while (dispatch_.progress() == seen) {
            STW_TRY(dispatch_.interrupted_since(begin));
            if (dispatch_.wait_progress(deadline)) continue;
            lock.unlock();
            Status status = Status::error(
                STW_ERROR_TIMEOUT, "%llu blocks were still in the tier when the timeout passed",
                static_cast<unsigned long long>(left));
            log_timeout(status);
            return status;
        }
    }
}

}  // namespace stepwell
