// SPDX-License-Identifier: Apache-2.0
// Fetch, as the program sees it: hits without the lock, everything else through the core; what a
// granted range became as a view.
#include "lib/runtime/runtime.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cstring>

namespace stepwell {

using residency::PlaceId;

namespace {

residency::Access access_of(uint32_t access)
{
    switch (access) {
    case STW_WRITE: return residency::Access::kWrite;
    case STW_READ_WRITE: return residency::Access::kReadWrite;
    case STW_REDUCE: return residency::Access::kWriteEmpty;
    default: return residency::Access::kRead;
    }
}

}  // namespace

// What a wait that begins now is put down to.
observe::Stall Runtime::cause_of(const Waiter &waiter) const
{
    if (core_.waits_for_locks(waiter.fetch)) return observe::Stall::kUpdate;
    return core_.waits_for_room(waiter.fetch) ? observe::Stall::kRoom : observe::Stall::kNvme;
}

PlaceId Runtime::place_of(uint32_t tier, uint32_t device) const
{
    PlaceId place = residency::kNoPlace;
    if (tier == STW_TIER_DEFAULT) return nearest_place_;
    if (tier == STW_TIER_DEVICE && device < host_place_) place = static_cast<PlaceId>(device);
    if (tier == STW_TIER_HOST) place = host_place_;
    if (tier == STW_TIER_NVME) return engine_->store() ? nvme_place_ : residency::kNoPlace;
    if (place == residency::kNoPlace || !places_[place].memory) return residency::kNoPlace;
    return place;
}

uint32_t Runtime::owner_number()
{
    const ThreadState *state = views_.thread_state();
    return state ? state->number : 0;
}

// A hit never waits: where the core is busy, it does not hear of this one.
void Runtime::push_after_drain(ThreadState &state, residency::TensorId tensor, PlaceId place)
{
    if (!mutex_.try_lock()) return;
    drain_hits();
    mutex_.unlock();
    (void)ViewTable::push_hit(state, tensor, place);
}

bool Runtime::fetch_hit(const Range &range, uint64_t step, stw_view *view_out)
{
    ThreadState *state = views_.thread_state();
    if (!state || errors_.load(std::memory_order_relaxed) != 0) return false;
    const uint32_t index = views_.take_slot(state);
    if (index == residency::kNone) return false;
    residency::Door &door = range.tensor->doors[range.place];
    if (!door.gate.try_pin()) {
        views_.give_slot(state, index);
        return false;
    }
    if (!ViewTable::push_hit(*state, range.tensor->id, range.place)) {
        push_after_drain(*state, range.tensor->id, range.place);
    }
    const Place &place = places_[range.place];
    char *begin = place.maps ? static_cast<char *>(range.tensor->addresses[range.place])
                             : place.base + door.offset.load(std::memory_order_relaxed);
    ViewSlot &view = views_.slot(index);
    view.tensor = range.tensor;
    view.byte_begin = range.byte_begin;
    view.byte_count = range.byte_count;
    view.step = step;
    view.owner = state->number;
    view.scratch = residency::kNone;
    view.access = STW_READ;
    view.place = range.place;
    view.by_gate = 1;
    describe_view(range, place, begin + range.byte_begin, views_.open(index), view_out);
    return true;
}

void Runtime::describe_view(const Range &range, const Place &place, void *pointer, uint64_t cookie,
                            stw_view *view_out)
{
    view_out->pointer = pointer;
    view_out->bytes = range.byte_count;
    view_out->element_begin = range.element_begin;
    view_out->element_count = range.element_count;
    view_out->tensor = range.tensor;
    view_out->cookie = cookie;
    view_out->access = range.access;
    view_out->scope = range.scope;
    view_out->tier = static_cast<uint32_t>(place.tier);
    view_out->device = place.device;
}

residency::FetchAsked Runtime::asked_of(const Waiter &waiter, uint32_t owner) const
{
    residency::FetchAsked asked;
    asked.owner = owner;
    asked.priority = waiter.plan.priority;
    asked.deadline = waiter.deadline;
    if (waiter.plan.flags & STW_FETCH_TRY) asked.flags |= residency::kFetchTry;
    if (waiter.plan.flags & STW_FETCH_WAIT_ROOM) asked.flags |= residency::kFetchWaitRoom;
    for (const Range &range : waiter.plan.ranges) {
        if (range.scratch != residency::kNone) {
            asked.requests.push_back(
                {range.scratch, residency::Access::kWrite, range.place, 0, range.byte_count});
        } else {
            asked.requests.push_back({range.tensor->id, access_of(range.access), range.place,
                                      range.byte_begin, range.byte_count});
        }
    }
    return asked;
}

// Would the fetch wait for a view that its own thread or step holds?
bool Runtime::waits_for_itself(const Waiter &waiter, uint32_t owner, std::string *tensor_out)
{
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        const ViewSlot &view = views_.slot(index);
        const bool own = (owner != 0 && view.owner == owner) ||
                         (waiter.plan.step != 0 && view.step == waiter.plan.step);
        if (!own || view.scratch != residency::kNone) continue;
        for (const Range &range : waiter.plan.ranges) {
            if (range.scratch != residency::kNone) continue;
            const bool writes = view.access != STW_READ || range.access != STW_READ;
            const bool claimed = core_.claimed_by(range.tensor->id) != 0;
            const bool same = range.tensor == view.tensor && (writes || claimed);
            const bool beside = core_.pack_of(range.tensor->id) == core_.pack_of(view.tensor->id) &&
                                view.place != range.place && writes;
            if (!same && !beside) continue;
            *tensor_out = view.tensor->name;
            return true;
        }
    }
    return false;
}

// A reduce adds in place when the gradient is empty and nobody uses it; else into a buffer of its
// own. Decided by the order of calls: by contents and open views, not by who is faster.
Status Runtime::prepare_reduces(FetchPlan &plan)
{
    for (Range &range : plan.ranges) {
        if (range.access != STW_REDUCE || range.scratch != residency::kNone) continue;
        if (range.byte_count == 0) continue;
        bool in_use;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            in_use = core_.in_use(range.tensor->id);
        }
        // In place only what begins as zeros throughout.
        const bool whole = range.byte_count == range.tensor->bytes;
        if (in_use || !whole) STW_TRY(make_scratch(range));
    }
    return {};
}

Status Runtime::make_scratch(Range &range)
{
    residency::TensorSpec spec;
    spec.name = range.tensor->name;
    spec.bytes = range.byte_count;
    spec.role = STW_ROLE_GRAD;
    spec.no_packing = true;
    spec.policy = default_policy(STW_ROLE_GRAD);
    Status status;
    act([&](Core &core, Commands &) {
        Result<residency::TensorId> made = core.create(spec);
        if (!made.ok()) {
            status = std::move(made.status());
            return;
        }
        range.scratch = made.value();
        status = address_pack(range.scratch, nullptr);
    });
    return status;
}

void Runtime::drop_scratch(residency::TensorId scratch)
{
    act([&](Core &core, Commands &out) {
        const Status status = core.destroy(scratch, out);
        STW_ASSERT(status.ok());
    });
}

// A tensor is fetched only where its policy lets it be.
Status Runtime::check_places(const FetchPlan &plan) const
{
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Range &range : plan.ranges) {
        const uint32_t allowed = core_.spec(range.tensor->id).policy.allowed;
        if (allowed & (1u << range.place)) continue;
        return Status::error(STW_ERROR_INVALID,
                             "tensor '%s' cannot be fetched at tier %u: its policy's allowed_tiers "
                             "leave that tier out",
                             range.tensor->name.c_str(),
                             static_cast<uint32_t>(places_[range.place].tier));
    }
    return {};
}

// Asks the core. BUSY at once where the answer could only come from the asker.
Status Runtime::start_fetch(Waiter &waiter)
{
    STW_TRY(check_places(waiter.plan));
    Status prepared = prepare_reduces(waiter.plan);
    if (!prepared.ok()) {
        for (Range &range : waiter.plan.ranges) {
            if (range.scratch != residency::kNone) drop_scratch(range.scratch);
            range.scratch = residency::kNone;
        }
        return prepared;
    }
    const uint32_t owner = owner_number();
    waiter.begin = now();
    waiter.deadline = waiter.begin + timeout(waiter.plan.timeout_ns);
    act([&](Core &core, Commands &out) {
        drain_hits();
        waiter.fetch = core.fetch(asked_of(waiter, owner), now(), out);
        waiters_[waiter.fetch] = &waiter;
        if (!core.is_waiting(waiter.fetch)) return;
        waiter.cause = cause_of(waiter);
        std::string name;
        if (waiter.cause == observe::Stall::kUpdate && waits_for_itself(waiter, owner, &name)) {
            core.cancel(waiter.fetch,
                        Status::error(STW_ERROR_BUSY,
                                      "the fetch would wait for a view of tensor '%s' that the "
                                      "same thread or step holds; release that view first",
                                      name.c_str()),
                        out);
        }
        for (const Range &range : waiter.plan.ranges) {
            if (range.scratch == residency::kNone && core.claimed_by(range.tensor->id) != 0) {
                pipeline_->prefer(range.tensor->id);
            }
        }
    });
    return {};
}

// The views of threads that wait. Threads that are awake open and close theirs meanwhile.
std::vector<residency::Held> Runtime::held_by_sleepers()
{
    std::vector<residency::Held> held;
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        const ViewSlot &view = views_.slot(index);
        const uint32_t owner = view.owner;
        const bool sleeps =
            std::any_of(sleepers_.begin(), sleepers_.end(),
                        [owner](const residency::Sleeper &at) { return at.owner == owner; });
        if (!sleeps || views_.hands_over(owner)) continue;
        residency::Held at;
        at.owner = owner;
        at.tensor = view.scratch;
        at.place = view.place;
        at.byte_count = view.byte_count;
        at.writes = view.access != STW_READ;
        if (at.tensor == residency::kNone) {
            at.tensor = view.tensor->id;
            at.byte_begin = view.byte_begin;
        }
        held.push_back(at);
    }
    return held;
}

// Asked whenever something has changed and somebody sleeps.
void Runtime::break_deadlocks(std::vector<Waiter *> &calls)
{
    for (;;) {
        const bool blocked = std::any_of(
            sleepers_.begin(), sleepers_.end(),
            [this](const residency::Sleeper &sleeper) { return core_.is_blocked(sleeper.fetch); });
        if (!blocked) return;
        const residency::FetchId fetch = core_.find_deadlock(
            held_by_sleepers(), sleepers_, pipeline_ ? pipeline_->blocked_chunks() : 0);
        if (fetch == 0) return;
        constexpr uint32_t kLinesMax = 16;
        if (log_.wants(STW_LOG_INFO)) {
            log_lines_.push_back(
                {STW_LOG_INFO, "deadlock", "Waiting:\n" + core_.describe_waiting(kLinesMax)});
            log_lines_.push_back(
                {STW_LOG_INFO, "deadlock", "Open views:\n" + describe_views(kLinesMax)});
        }
        Commands out;
        core_.cancel(fetch, core_.deadlock_refusal(fetch), out);
        execute(out, calls);
    }
}

// Until the answer or the deadline. Others know that this thread gives nothing back meanwhile.
void Runtime::sleep_on(Waiter &waiter, std::unique_lock<std::mutex> &lock,
                       residency::Instant deadline, bool until_answered)
{
    if (waiter.done) return;
    const residency::Sleeper sleeper{owner_number(), waiter.fetch};
    if (until_answered && sleeper.owner != 0) sleepers_.push_back(sleeper);  // 0: not known who
    std::vector<Waiter *> calls;
    break_deadlocks(calls);
    if (!calls.empty() || !log_lines_.empty()) {
        std::vector<LogLine> lines;
        lines.swap(log_lines_);
        lock.unlock();
        call_out(calls, lines);
        lock.lock();
    }
    while (!waiter.done) {
        const residency::Instant time = now();
        if (time >= deadline) break;
        const uint64_t left = std::min<uint64_t>(deadline - time, 3600ull * 1000000000);
        waiter.cv.wait_for(lock, std::chrono::nanoseconds(left));
    }
    const auto mine = std::find_if(sleepers_.begin(), sleepers_.end(), [&](const auto &at) {
        return at.owner == sleeper.owner && at.fetch == sleeper.fetch;
    });
    if (mine != sleepers_.end()) sleepers_.erase(mine);
}

void Runtime::await(Waiter &waiter)
{
    std::unique_lock<std::mutex> lock(mutex_);
    if (waiter.done) return;
    const residency::Instant begin = now();
    while (!waiter.done) {
        sleep_on(waiter, lock, waiter.deadline, true);
        if (waiter.done) break;
        lock.unlock();
        act([&](Core &core, Commands &out) { core.tick(now(), out); });
        lock.lock();
    }
    const std::vector<Range> &ranges = waiter.plan.ranges;
    const residency::TensorId first = ranges.empty() ? 0 : ranges.front().tensor->id;
    add_stall_of(waiter.plan.step, waiter.cause, first, begin, now());
}

Status Runtime::fetch(FetchPlan plan, stw_view *views_out)
{
    for (const Range &range : plan.ranges) STW_TRY(sticky_error(range.tensor->id));
    Waiter waiter;
    waiter.plan = std::move(plan);
    STW_TRY(start_fetch(waiter));
    await(waiter);
    while (retry_as_private(waiter)) {
        STW_TRY(start_fetch(waiter));
        await(waiter);
    }
    return finish_fetch(waiter, views_out);
}

// In-place reduction was refused, since there are contents to keep: take a private buffer.
bool Runtime::retry_as_private(Waiter &waiter)
{
    if (waiter.status.code() != STW_ERROR_EXISTS) return false;
    bool again = false;
    for (Range &range : waiter.plan.ranges) {
        if (range.access != STW_REDUCE || range.scratch != residency::kNone) continue;
        waiter.status = make_scratch(range);
        if (!waiter.status.ok()) return false;
        again = true;
    }
    waiter.done = false;
    waiter.grants.clear();
    return again;
}

Status Runtime::finish_fetch(Waiter &waiter, stw_view *views_out)
{
    Status status = std::move(waiter.status);
    if (status.ok()) status = fill_views(waiter, views_out);
    if (status.ok()) return status;
    if (status.code() == STW_ERROR_BUDGET) count_pinning_views(status.mutable_detail());
    log_timeout(status);
    for (Range &range : waiter.plan.ranges) {
        if (range.scratch != residency::kNone) drop_scratch(range.scratch);
    }
    return status;
}

// The core knows pins, not who made them.
void Runtime::count_pinning_views(ErrorDetail &detail)
{
    if (detail.pinned_bytes == 0) return;
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        const Place &at = places_[views_.slot(index).place];
        const bool there = static_cast<uint32_t>(at.tier) == detail.tier;
        detail.pinned_views += there && at.device == detail.device;
    }
}

void *Runtime::view_pointer(const Range &range, const residency::Grant &grant) const
{
    const Place &at = places_[grant.place];
    if (!at.maps) {
        return at.base + static_cast<uint64_t>(grant.slot) * block_bytes_ + grant.slot_offset;
    }
    if (range.scratch == residency::kNone) {
        return static_cast<char *>(range.tensor->addresses[grant.place]) + range.byte_begin;
    }
    return pack_addresses_[core_.pack_of(range.scratch)][grant.place];
}

Status Runtime::fill_views(Waiter &waiter, stw_view *views_out)
{
    const std::vector<Range> &ranges = waiter.plan.ranges;
    ThreadState *state = views_.thread_state();
    std::vector<uint32_t> slots;
    for (size_t i = 0; i < ranges.size(); ++i) {
        const uint32_t slot = views_.take_slot(state);
        if (slot == residency::kNone) break;
        slots.push_back(slot);
    }
    if (slots.size() < ranges.size()) {
        for (const uint32_t slot : slots) views_.give_slot(state, slot);
        undo_grants(waiter.plan, waiter.grants);
        return Status::error(STW_ERROR_LIMIT,
                             "%u views are open, as many as views_max allows; release some, or "
                             "raise views_max when opening the runtime",
                             views_.open_views());
    }
    for (size_t i = 0; i < ranges.size(); ++i) {
        const Range &range = ranges[i];
        const residency::Grant &grant = waiter.grants[i];
        ViewSlot &view = views_.slot(slots[i]);
        view.tensor = range.tensor;
        view.byte_begin = range.byte_begin;
        view.byte_count = range.byte_count;
        view.step = waiter.plan.step;
        const bool stays = state && (waiter.plan.flags & STW_FETCH_HAND_OVER) == 0;
        view.owner = stays ? state->number : 0;
        view.scratch = range.scratch;
        view.access = static_cast<uint8_t>(range.access);
        view.place = grant.place;
        view.by_gate = grant.by_gate;
        void *pointer = nullptr;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            pointer = range.byte_count > 0 ? view_pointer(range, grant) : nullptr;
        }
        const Place &at = places_[grant.place];
        if (range.access == STW_REDUCE && pointer) {
            at.ops->zero(at.memory, pointer, range.byte_count);
        }
        describe_view(range, at, pointer, views_.open(slots[i]), &views_out[i]);
    }
    return {};
}

// The pins of a granted fetch that becomes no view: contents stay what they were.
void Runtime::undo_grants(const FetchPlan &plan, const std::vector<residency::Grant> &grants)
{
    act([&](Core &core, Commands &out) {
        for (size_t i = 0; i < grants.size(); ++i) {
            const Range &range = plan.ranges[i];
            const bool scratch = range.scratch != residency::kNone;
            const residency::TensorId tensor = scratch ? range.scratch : range.tensor->id;
            if (grants[i].by_gate) {
                if (core.gate(tensor, grants[i].place).unpin()) core.gate_idle(tensor, now(), out);
                continue;
            }
            residency::Release release;
            release.tensor = tensor;
            release.access = scratch ? residency::Access::kWrite : access_of(range.access);
            release.place = grants[i].place;
            release.byte_begin = scratch ? 0 : range.byte_begin;
            release.byte_count = range.byte_count;
            release.abandon = range.access == STW_WRITE || range.access == STW_REDUCE;
            core.release(release, now(), out);
        }
    });
}

Status Runtime::fits(const std::vector<Range> &ranges)
{
    std::vector<residency::Request> requests;
    for (const Range &range : ranges) {
        requests.push_back({range.tensor->id, access_of(range.access), range.place,
                            range.byte_begin, range.byte_count});
    }
    std::lock_guard<std::mutex> lock(mutex_);
    return core_.fits(requests);
}

Status Runtime::prefetch(const std::vector<Range> &ranges)
{
    constexpr uint32_t kHintsMax = 1024;  // waiting at once; more are dropped, which hints allow
    act([&](Core &core, Commands &out) {
        drain_hits();
        for (const Range &range : ranges) {
            if (core.waiting_fetches() >= kHintsMax) return;
            residency::FetchAsked asked;
            asked.flags = residency::kFetchPrefetch;
            asked.urgency = residency::Class::kHint;
            asked.requests.push_back({range.tensor->id, residency::Access::kRead, range.place,
                                      range.byte_begin, range.byte_count});
            core.fetch(asked, now(), out);
        }
    });
    return {};
}

Status Runtime::evict(stw_tensor *const *tensors, uint32_t n, PlaceId place, uint64_t timeout_ns)
{
    const residency::Instant deadline = now() + timeout(timeout_ns);
    std::vector<stw_tensor *> wanted(tensors, tensors + n);
    for (;;) {
        uint64_t left = 0;
        uint64_t seen = 0;
        bool moves = false;
        std::string stays;
        act([&](Core &core, Commands &out) {
            drain_hits();
            if (n == 0) {
                wanted.clear();
                for (stw_tensor *at = first_tensor_; at; at = at->next) wanted.push_back(at);
            }
            for (stw_tensor *tensor : wanted) {
                const uint64_t blocks = core.evict(tensor->id, place, out);
                if (blocks > 0) stays = tensor->name;
                left += blocks;
            }
            moves = core.transfers_in_flight() > 0 || pipeline_->stats().jobs > 0;
            seen = progress_made_ + 1;  // this call's own counts
        });
        if (left == 0) return {};
        if (!moves) {
            return Status::error(STW_ERROR_BUSY,
                                 "%llu blocks cannot leave the tier; tensor '%s' has open views "
                                 "there, or no other tier may take it",
                                 static_cast<unsigned long long>(left), stays.c_str());
        }
        std::unique_lock<std::mutex> lock(mutex_);
        while (progress_made_ == seen) {
            if (wait_progress(lock, deadline)) continue;
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
