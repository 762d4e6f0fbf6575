// SPDX-License-Identifier: Apache-2.0
// Fetches that are not hits: what is asked of the core, and how its answer becomes views. Also
// prefetches and evictions.
#include "lib/runtime/calls/fetches.h"

#include "lib/memory/driver_reason.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/copies/chunks.h"
#include "lib/runtime/copies/snapshots.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/planning/pause.h"
#include "lib/runtime/planning/prefetcher.h"
#include "lib/runtime/ranks/wholes.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/tensors/registry.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/runtime/views/hits.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/runtime/views/streams.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <new>
#include <unordered_set>

namespace stepwell {

using residency::PlaceId;

residency::FetchAsked Fetches::asked_of(const Waiter &waiter) const
{
    residency::FetchAsked asked;
    asked.owner = waiter.owner;
    asked.priority = waiter.plan.priority;
    asked.deadline = waiter.deadline;
    asked.requests.reserve(waiter.plan.ranges.size());
    if (waiter.plan.flags & STW_FETCH_TRY) asked.flags |= residency::kFetchTry;
    if (waiter.plan.flags & STW_FETCH_WAIT_ROOM) asked.flags |= residency::kFetchWaitRoom;
    const auto lent = [&](const RequestedRange &range) {
        return sleepers_.reads_lent(waiter.plan.flags, range.tensor);
    };
    if (std::all_of(waiter.plan.ranges.begin(), waiter.plan.ranges.end(), lent))
        asked.flags |= residency::kFetchLent;
    asked.touched = waiter.plan.touched;
    if (is_touch(waiter.plan)) asked.flags |= residency::kFetchBesideReaders;
    const auto viewed = [&](const RequestedRange &range) STW_REQUIRES(runtime_lock) {
        return sleepers_.has_own_view(waiter, range.tensor);
    };
    if (is_touch(waiter.plan) &&
        std::all_of(waiter.plan.ranges.begin(), waiter.plan.ranges.end(), viewed))
        asked.flags |= residency::kFetchAhead;
    for (const RequestedRange &range : waiter.plan.ranges) {
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

// A REDUCE adds in place if the gradient is empty and not in use, else into a private buffer. This
// depends on the order of calls (contents and open views), not on timing.
Status Fetches::prepare_reduces(FetchPlan &plan)
{
    std::unordered_set<residency::TensorId> earlier;
    for (RequestedRange &range : plan.ranges) {
        if (range.access != STW_REDUCE || range.scratch != residency::kNone) continue;
        if (range.byte_count == 0) continue;
        const bool in_place = earlier.insert(range.tensor->id).second && may_sum_in_place(range);
        Status status;
        dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
            if (!in_place || core.in_use(range.tensor->id)) status = buffers_.make_scratch(range);
        });
        STW_TRY(std::move(status));
    }
    return {};
}

Status Fetches::prepare_fetch(Waiter &waiter)
{
    STW_TRY(placement_.check_places(waiter.plan));
    for (const RequestedRange &range : waiter.plan.ranges) {
        STW_TRY(zeros_.write_zeros(range.tensor));
        const bool writes = range.access == STW_WRITE || range.access == STW_READ_WRITE;
        if (writes) STW_TRY(registry_.change_shards(range.tensor));
    }
    return prepare_reduces(waiter.plan);
}

// BUSY at once if the fetch would wait for a view of its own thread or step.
Status Fetches::start_fetch(Waiter &waiter)
{
    Status prepared = prepare_fetch(waiter);
    if (!prepared.ok()) {
        buffers_.drop_scratches(waiter.plan);
        return prepared;
    }
    waiter.begin = dispatch_.now();
    if (!waiter.snapshot)
        waiter.deadline = dispatch_.deadline(waiter.begin, waiter.plan.timeout_ns);
    dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        recorder_.drain_hits();
        ask(waiter, out);
    });
    return {};
}

// A thread that sleeps for an earlier fetch of this waiter sleeps for the new one.
void Fetches::ask(Waiter &waiter, Commands &out)
{
    const bool copied = waiter.fetch == 0 && waiter.snapshot;
    const residency::FetchId before = copied ? waiter.snapshot->chunk.fetch : waiter.fetch;
    // Recorded once, when called; a fetch with STW_FETCH_TRY only if it is granted.
    if (waiter.fetch == 0 && (waiter.plan.flags & STW_FETCH_TRY) == 0)
        recorder_.note_fetch(waiter.plan);
    if (copied) std::erase(snapshots_.under_way, waiter.snapshot.get());
    if (waiter.fetch == 0) recorder_.note_miss();
    dispatch_.ask(waiter, asked_of(waiter), out);
    sleepers_.sleep_follows(before, waiter.fetch);
    if (!dispatch_.core.is_waiting(waiter.fetch)) return;
    if (waiter.cancelled) dispatch_.core.cancel(waiter.fetch, cancelled(), out);
    if (!dispatch_.core.is_waiting(waiter.fetch)) return;
    if (waiter.asynchronous) dispatch_.arm_timer(waiter.deadline);  // no thread sleeps for it
    waiter.cause = sleepers_.cause_of(waiter);
    std::string name;
    if (waiter.cause == observe::Stall::kUpdate && sleepers_.waits_for_itself(waiter, &name)) {
        dispatch_.core.cancel(waiter.fetch,
                              Status::error(STW_ERROR_BUSY,
                                            "the fetch would wait for a view of %s that the "
                                            "same thread or step holds; release that view first",
                                            tensor_text(name).c_str()),
                              out);
    }
    for (const RequestedRange &range : waiter.plan.ranges) {
        if (range.scratch == residency::kNone && dispatch_.core.claimed_by(range.tensor->id) != 0) {
            machine_.pipeline->prefer(range.tensor->id);
        }
    }
}

Status Fetches::sticky_errors(const FetchPlan &plan)
{
    for (const RequestedRange &range : plan.ranges) STW_TRY(errors_.of(range.tensor->id));
    for (const RequestedRange &range : plan.copied) STW_TRY(errors_.of(range.tensor->id));
    for (const RequestedRange &range : plan.gathered) STW_TRY(errors_.of(range.tensor->id));
    return {};
}

// Repeats a fetch that views left open by faults had blocked, once they are released.
Status Fetches::fetch(FetchPlan plan, stw_view *views_out)
{
    if (!machine_.touches) return fetch_once(std::move(plan), views_out);
    Touches::Patience patience(machine_.touches.get(), dispatch_.deadline(plan.timeout_ns));
    for (;;) {
        Status status = fetch_once(FetchPlan(plan), views_out);
        const bool room = status.code() == STW_ERROR_BUDGET;
        const bool lock = status.code() == STW_ERROR_BUSY && machine_.touches->any();
        if ((!room && !lock) || !patience.clear_way()) return status;
    }
}

Status Fetches::fetch_once(FetchPlan plan, stw_view *views_out)
{
    STW_TRY(sticky_errors(plan));
    Waiter waiter;
    waiter.listener = this;
    waiter.plan = std::move(plan);
    waiter.owner = waiter.plan.owner != 0 ? waiter.plan.owner : recorder_.owner_number();
    if (!waiter.plan.gathered.empty()) STW_TRY(wholes_.fetch_wholes(waiter));
    if (needs_copies(waiter.plan)) waiter.status = snapshots_.copy_out(waiter);
    if (!waiter.status.ok() || waiter.plan.ranges.empty()) return finish_fetch(waiter, views_out);
    Status started = start_fetch(waiter);
    if (!started.ok()) {
        wholes_.undo_wholes(waiter);
        return started;
    }
    sleepers_.await(waiter, waiter.plan.ranges.front().tensor->id);
    return finish_fetch(waiter, views_out);
}

// A reduction in place is refused if there are contents to keep: asks again with a private buffer,
// for the same waiter. False: the refusal stands.
bool Fetches::ask_privately(residency::Refused &refused, Commands &out)
{
    Waiter *found = dispatch_.find(refused.fetch);
    if (refused.status.code() != STW_ERROR_EXISTS || !found) return false;
    Waiter &waiter = *found;
    bool again = false;
    for (RequestedRange &range : waiter.plan.ranges) {
        if (range.access != STW_REDUCE || range.scratch != residency::kNone) continue;
        Status made;
        try {
            made = buffers_.make_scratch(range);
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
    dispatch_.forget_waiter(refused.fetch);
    ask(waiter, out);
    return true;
}

Status Fetches::finish_fetch(Waiter &waiter, stw_view *views_out)
{
    Status status = waiter.status;  // a copy: other threads may poll meanwhile
    if (status.ok()) status = fill_views(waiter, views_out);
    if (status.ok()) return status;
    if (status.code() == STW_ERROR_BUDGET) count_pinning_views(status.mutable_detail());
    sleepers_.log_timeout(status);
    buffers_.drop_scratches(waiter.plan);
    wholes_.undo_wholes(waiter);
    return status;
}

// The core knows the number of pins but not whose they are.
void Fetches::count_pinning_views(ErrorDetail &detail)
{
    if (detail.pinned_bytes == 0) return;
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        const memory::Tier &at = machine_.tiers[views_.slot(index).place];
        const bool there = static_cast<uint32_t>(at.kind) == detail.tier;
        detail.pinned_views += there && at.device == detail.device;
    }
}

// Unpins what was granted for views that are not opened; contents are unchanged.
void Fetches::undo_grants(const FetchPlan &plan, const std::vector<residency::Grant> &grants)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (size_t i = 0; i < grants.size(); ++i) {
            const RequestedRange &range = plan.ranges[i];
            const bool scratch = range.scratch != residency::kNone;
            const residency::TensorId tensor = scratch ? range.scratch : range.tensor->id;
            if (grants[i].by_gate) {
                if (core.gate(tensor, grants[i].place).unpin()) core.gate_idle(tensor, out);
                continue;
            }
            residency::Release release;
            release.tensor = tensor;
            release.access = scratch ? buffer_access(range.access) : access_of(range.access);
            release.place = grants[i].place;
            release.byte_begin = scratch ? 0 : range.byte_begin;
            release.byte_count = scratch ? sum_bytes(range) : range.byte_count;
            release.abandon = range.access == STW_WRITE || range.access == STW_REDUCE;
            release.beside_readers = is_touch(plan);
            core.release(release, out);
        }
    });
}

Status Fetches::fits(const std::vector<RequestedRange> &ranges)
{
    std::vector<const stw_tensor *> wholes;
    std::vector<RequestedRange> own;
    for (const RequestedRange &range : ranges) {
        if (range.into) continue;
        if (is_gathered(range)) {
            wholes.push_back(range.tensor);
        } else {
            own.push_back(range);
        }
    }
    {
        MutexLock lock(dispatch_.mutex());
        STW_TRY(wholes_.wholes_fit(wholes));
    }
    return placement_.fits(own);
}

Status Fetches::prefetch(const std::vector<RequestedRange> &ranges)
{
    constexpr uint32_t kHintsMax = 1024;  // further hints are dropped
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        recorder_.drain_hits();
        for (const RequestedRange &range : ranges) {
            if (core.waiting_fetches() >= kHintsMax) return;
            residency::FetchAsked asked;
            asked.flags = residency::kFetchPrefetch;
            asked.urgency = residency::Class::kHint;
            if (is_of_ranks(range)) {
                const std::optional<residency::Request> shard = recorder_.shard_request(range);
                if (!shard) continue;
                asked.requests.push_back(*shard);
                core.fetch(asked, out);
                continue;
            }
            const bool copied = range.into || (range.dtype != 0 && range.access == STW_READ);
            asked.requests.push_back({range.tensor->id, residency::Access::kRead,
                                      copied ? residency::kAnyCpuPlace : range.place,
                                      range.byte_begin, range.byte_count});
            core.fetch(asked, out);
        }
    });
    return {};
}

// Each once, of these tensors or of all (n = 0), as of now.
void Fetches::list_blocks(stw_tensor *const *tensors, uint32_t n, PlaceId place,
                          std::vector<residency::BlockId> *blocks) const
{
    {
        MutexLock lock(dispatch_.mutex());
        const Core &core = dispatch_.core;
        for (uint32_t i = 0; i < n; ++i) core.list_blocks(tensors[i]->id, place, blocks);
        for (stw_tensor *at = n == 0 ? handles_.first() : nullptr; at; at = at->notes.next)
            core.list_blocks(at->id, place, blocks);
    }
    std::sort(blocks->begin(), blocks->end());
    blocks->erase(std::unique(blocks->begin(), blocks->end()), blocks->end());
}

std::string Fetches::name_at(residency::BlockId block) const
{
    const residency::TensorId tensor = dispatch_.core.tensor_in(block);
    return tensor == residency::kNone ? std::string() : dispatch_.core.spec(tensor).name;
}

Status Fetches::evict(stw_tensor *const *tensors, uint32_t n, PlaceId place, uint64_t timeout_ns)
{
    dispatch_.give_way();
    const PlanPause pause(prefetcher_);  // the prefetcher might bring back what is evicted
    const residency::Instant begin = dispatch_.now();
    const residency::Instant deadline = dispatch_.deadline(begin, timeout_ns);
    std::vector<residency::BlockId> left;
    list_blocks(tensors, n, place, &left);
    Touches::Patience patience(machine_.touches.get(), deadline);
    for (;;) {
        uint64_t seen = 0;
        bool moves = false;
        std::string stays;
        dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
            recorder_.drain_hits();
            core.evict(&left, place, out);
            if (!left.empty()) stays = name_at(left.back());
            moves = core.transfers_in_flight() > 0 || machine_.pipeline->stats().jobs > 0;
            seen = dispatch_.progress() + 1;  // this event counts as progress
        });
        if (left.empty()) return {};
        if (moves) patience.begin_anew();
        if (!moves && patience.clear_way()) continue;
        if (!moves) {
            return Status::error(STW_ERROR_BUSY,
                                 "%zu blocks cannot leave the tier; %s has open views "
                                 "there, or no other tier may take it",
                                 left.size(), tensor_text(stays).c_str());
        }
        MutexLock lock(dispatch_.mutex());
        while (dispatch_.progress() == seen) {
            STW_TRY(dispatch_.interrupted_since(begin));
            if (dispatch_.wait_progress(deadline)) continue;
            lock.unlock();
            Status status = Status::error(
                STW_ERROR_TIMEOUT, "%zu blocks were still in the tier when the timeout passed",
                left.size());
            sleepers_.log_timeout(status);
            return status;
        }
    }
}

// Writes the zeros that a sum starts with, behind all that is done in the slots: others of a shared
// block are used meanwhile, so that is not forgotten.
Status Fetches::start_sum(const RequestedRange &range, const residency::Grant &grant)
{
    const memory::Tier &at = machine_.tiers[grant.place];
    void *pointer = nullptr;
    {
        MutexLock lock(dispatch_.mutex());
        pointer = addresses_.arena_pointer(range, grant);
    }
    const uint64_t bytes = sum_bytes(range);
    if (at.slot_memory) STW_TRY(at.slot_memory->await(at.slots_of(pointer, bytes)));
    if (at.streams) STW_TRY(at.streams->copies_behind(at.slots_of(pointer, bytes), STW_COPIES_IN));
    const stw_status code = at.ops->zero(at.memory, pointer, bytes);
    if (code >= 0) return {};
    return Status::error(code, "the zeros that a sum into %s starts with cannot be written: %s",
                         tensor_text(range.tensor->name).c_str(),
                         memory::driver_reason(at.ops, at.memory, code).c_str());
}

Status Fetches::begin_streams(const Waiter &waiter)
{
    const FetchPlan &plan = waiter.plan;
    for (size_t i = 0; i < plan.ranges.size(); ++i) {
        const RequestedRange &range = plan.ranges[i];
        const memory::Tier &at = machine_.tiers[waiter.grants[i].place];
        if (range.byte_count == 0) continue;
        if (machine_.pins && machine_.tiers.is_host(waiter.grants[i].place))
            streams_.join_registrations(range, waiter.grants[i]);
        if (range.access == STW_REDUCE) STW_TRY(start_sum(range, waiter.grants[i]));
        if (!at.streams) continue;
        memory::DeviceStreams::Id id = 0;
        STW_TRY(streams_.stream_id(waiter.grants[i].place, plan.stream, &id));
        const void *pointer = nullptr;
        {
            MutexLock lock(dispatch_.mutex());
            pointer = addresses_.arena_pointer(range, waiter.grants[i]);
        }
        const bool writes = range.access != STW_READ;
        const memory::SlotRange slots = at.slots_of(pointer, sum_bytes(range));
        if (at.slot_memory) STW_TRY(at.slot_memory->await(slots));
        if (at.aliases) STW_TRY(streams_.show_range(range, waiter.grants[i].place, slots));
        STW_TRY(at.streams->begin(id, slots, writes));
    }
    if (is_absent(plan)) return {};
    for (size_t i = 0; i < waiter.whole.grants.size(); ++i) {
        STW_TRY(streams_.begin_whole(plan.gathered[i], waiter.whole.grants[i], plan.stream));
    }
    return {};
}

Status Fetches::share(const stw_view &view, stw_view *view_out)
{
    const uint32_t index = ViewTable::index_of(view.cookie);
    if (view.cookie == kCopyCookie) {
        return Status::error(STW_ERROR_INVALID,
                             "the view of %s is a copy in memory of the caller's, which "
                             "needs no pin: use that memory",
                             tensor_text(view.tensor->name).c_str());
    }
    const bool open = index < views_.slots_used() &&
                      views_.slot(index).serial.load() == view.cookie >> 24 &&
                      views_.is_open(index);
    if (!open || view.access != STW_READ) {
        return Status::error(STW_ERROR_INVALID,
                             open ? "only views with access STW_READ can be shared"
                                  : "the view to be shared is not open");
    }
    if (views_.slot(index).scratch != residency::kNone) {
        const Sharding *sharding = view.tensor->sharding.get();
        const bool gathered = sharding && views_.slot(index).scratch == sharding->whole;
        return Status::error(STW_ERROR_INVALID,
                             "the view of %s is %s and cannot be shared; fetch it once "
                             "more",
                             tensor_text(view.tensor->name).c_str(),
                             gathered ? "of what all ranks gathered, and counted by all of them,"
                                      : "a converted copy of its own");
    }
    const uint64_t step = views_.slot(index).step;
    RequestedRange range;
    range.tensor = view.tensor;
    range.scope = view.scope;
    range.place = views_.slot(index).place;
    range.element_begin = view.element_begin;
    range.element_count = view.element_count;
    range.byte_begin = views_.slot(index).byte_begin;
    range.byte_count = views_.slot(index).byte_count;
    if (hits_.fetch_hit(range, step, STW_STREAM_SYNCED, view_out)) return {};
    FetchPlan plan;
    plan.step = step;
    plan.stream = STW_STREAM_SYNCED;  // the holder of the first view is already ordered with it
    plan.ranges.push_back(range);
    plan.flags = STW_FETCH_TRY;
    return fetch(std::move(plan), view_out);
}

Status Fetches::take_slots(size_t wanted, std::vector<uint32_t> &slots)
{
    slots.reserve(wanted);
    ThreadState *state = views_.thread_state();
    while (slots.size() < wanted) {
        const uint32_t slot = views_.take_slot(state);
        if (slot == residency::kNone) {
            return Status::error(STW_ERROR_LIMIT,
                                 "%u views are open, as many as views_max allows; release some, or "
                                 "raise views_max when opening the runtime",
                                 views_.open_views());
        }
        slots.push_back(slot);
    }
    return {};
}

Status Fetches::fill_views(Waiter &waiter, stw_view *views_out)
{
    const FetchPlan &plan = waiter.plan;
    const size_t wanted = plan.gathered.size() + plan.ranges.size();
    std::vector<uint32_t> slots;
    Status status = take_slots(wanted, slots);
    if (status.ok()) {
        status = begin_streams(waiter);
        if (!status.ok()) machine_.tiers.log_failures(dispatch_.log);
    }
    if (!status.ok()) {
        for (const uint32_t slot : slots) views_.give_slot(views_.thread_state(), slot);
        undo_grants(plan, waiter.grants);
        wholes_.undo_wholes(waiter);
        return status;
    }
    std::vector<RequestedRange> gathered = plan.gathered;
    for (RequestedRange &range : gathered) {
        range.scratch = range.tensor->sharding->whole;
        // An empty view counts as a view of the gathered tensor, as on the other ranks.
        if (is_absent(plan)) range.element_count = range.byte_count = 0;
    }
    std::vector<Located> located;
    located.reserve(wanted);
    {
        MutexLock lock(dispatch_.mutex());
        for (size_t i = 0; i < plan.ranges.size(); ++i)
            located.push_back(locate(plan.ranges[i], waiter.grants[i], waiter));
        for (size_t i = 0; i < gathered.size(); ++i)
            located.push_back(locate(gathered[i], waiter.whole.grants[i], waiter));
    }
    for (size_t i = 0; i < plan.ranges.size(); ++i)
        open_view(slots[i], plan.ranges[i], waiter.grants[i], located[i], waiter, views_out);
    for (size_t i = 0; i < gathered.size(); ++i) {
        const size_t at = plan.ranges.size() + i;
        open_view(slots[at], gathered[i], waiter.whole.grants[i], located[at], waiter, views_out);
    }
    waiter.whole.grants.clear();
    for (RequestedRange range : plan.absent) {
        range.element_count = range.byte_count = 0;
        hits_.describe_view(range, machine_.tiers[range.place], nullptr, kCopyCookie,
                            &views_out[range.index]);
    }
    for (const RequestedRange &range : plan.copied) {
        stw_view &out = views_out[range.index];
        void *pointer = range.element_count > 0 ? range.into : nullptr;
        hits_.describe_view(range, machine_.tiers[machine_.tiers.host()], pointer, kCopyCookie,
                            &out);
        out.bytes = view_bytes(range);
    }
    return {};
}

Fetches::Located Fetches::locate(const RequestedRange &range, const residency::Grant &grant,
                                 const Waiter &waiter)
{
    Located located;
    if (range.byte_count > 0) located.pointer = addresses_.view_pointer(range, grant);
    if (located.pointer) located.there = addresses_.arena_pointer(range, grant);
    if (range.tensor->notes.moved) recorder_.note_use(*range.tensor, waiter.begin, waiter.owner);
    if (located.pointer && is_gathered(range)) {
        located.pointer = static_cast<char *>(located.pointer) + range.byte_begin;
        located.there = located.pointer;
    }
    return located;
}

void Fetches::open_view(uint32_t slot, const RequestedRange &range, const residency::Grant &grant,
                        const Located &located, const Waiter &waiter, stw_view *views_out)
{
    const ThreadState *state = views_.thread_state();
    ViewSlot &view = views_.slot(slot);
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
    view.dtype = static_cast<uint8_t>(range.dtype);
    view.absent = is_absent(waiter.plan);
    view.touched = is_touch(waiter.plan);
    const auto [pointer, there] = located;
    const memory::Tier &at = machine_.tiers[grant.place];
    if (at.streams && pointer) view.first_slot = at.slots_of(there, view_bytes(range)).first;
    stw_view &out = views_out[range.index];
    hits_.describe_view(range, at, pointer, views_.open(slot), &out);
    out.bytes = view_bytes(range);
}

bool Fetches::refused(residency::Refused &refused, Commands &out)
{
    return ask_privately(refused, out);
}

void Fetches::answered(Waiter &waiter)
{
    if (waiter.status.ok() && (waiter.plan.flags & STW_FETCH_TRY))
        recorder_.note_fetch(waiter.plan);
}

}  // namespace stepwell
