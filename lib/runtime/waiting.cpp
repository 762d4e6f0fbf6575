// SPDX-License-Identifier: Apache-2.0
// Threads of the program that wait for a fetch: what the wait is put down to, whether it could only
// end by the asker itself, and who gives way when sleepers wait for each other.
#include "lib/observe/nvtx.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/snapshot.h"

#include <algorithm>

namespace stepwell {

// What a wait that begins now is put down to.
observe::Stall Runtime::cause_of(const Waiter &waiter) const
{
    if (dispatch_.core.waits_for_locks(waiter.fetch)) return observe::Stall::kUpdate;
    if (dispatch_.core.waits_for_room(waiter.fetch)) return observe::Stall::kRoom;
    return dispatch_.core.waits_for_nvme(waiter.fetch) ? observe::Stall::kNvme
                                                       : observe::Stall::kHostDevice;
}

// Would the fetch wait for a view that its own thread or step holds?
bool Runtime::waits_for_itself(const Waiter &waiter, std::string *tensor_out)
{
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        const ViewSlot &view = views_.slot(index);
        const bool own = (waiter.owner != 0 && view.owner == waiter.owner) ||
                         (waiter.plan.step != 0 && view.step == waiter.plan.step);
        if (!own || view.scratch != residency::kNone) continue;
        for (const Range &range : waiter.plan.ranges) {
            if (range.scratch != residency::kNone) continue;
            const bool beside = waiter.plan.beside_readers && view.place == range.place;
            const bool writes = view.access != STW_READ || (range.access != STW_READ && !beside);
            const bool claimed = dispatch_.core.claimed_by(range.tensor->id) != 0;
            const bool same = range.tensor == view.tensor && (writes || claimed);
            const bool elsewhere = dispatch_.core.pack_of(range.tensor->id) ==
                                       dispatch_.core.pack_of(view.tensor->id) &&
                                   view.place != range.place && writes;
            if (!same && !elsewhere) continue;
            *tensor_out = view.tensor->name;
            return true;
        }
    }
    return false;
}

// Does the thread or step that asks hold a view of it?
bool Runtime::has_own_view(const Waiter &waiter, const stw_tensor *tensor) const
{
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        const ViewSlot &view = views_.slot(index);
        if (!views_.is_open(index) || view.tensor != tensor) continue;
        const bool own = (waiter.owner != 0 && view.owner == waiter.owner) ||
                         (waiter.plan.step != 0 && view.step == waiter.plan.step);
        if (own && view.scratch == residency::kNone) return true;
    }
    return false;
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
        } else {
            at.byte_count = buffer_bytes(view);
        }
        held.push_back(at);
    }
    return held;
}

// Asked whenever something has changed and somebody sleeps.
void Runtime::break_deadlocks()
{
    // What a collective has it gives back by itself, when the other ranks come.
    if (!ranks_idle()) return;
    for (;;) {
        const bool blocked =
            std::any_of(sleepers_.begin(), sleepers_.end(),
                        [this](const residency::Sleeper &sleeper) STW_REQUIRES(runtime_lock) {
                            return dispatch_.core.is_blocked(sleeper.fetch);
                        });
        if (!blocked) return;
        const residency::FetchId fetch = dispatch_.core.find_deadlock(
            held_by_sleepers(), sleepers_, pipeline_ ? pipeline_->blocked_chunks() : 0);
        if (fetch == 0) return;
        constexpr uint32_t kLinesMax = 16;
        if (dispatch_.log.wants(STW_LOG_INFO)) {
            dispatch_.say(STW_LOG_INFO, "deadlock",
                          "Waiting: " + dispatch_.core.describe_waiting(kLinesMax));
            dispatch_.say(STW_LOG_INFO, "deadlock", "Open views: " + describe_views(kLinesMax));
        }
        dispatch_.core.cancel(fetch, dispatch_.core.deadlock_refusal(fetch), dispatch_.loop.out);
        dispatch_.loop.run();
        if (ranks_news_.exchange(false)) tell_ranks();  // this is not always act()'s
    }
}

// Until the answer or the deadline. Others know that this thread gives nothing back meanwhile.
void Runtime::sleep_on(Waiter &waiter, residency::Instant deadline, bool until_answered)
{
    if (waiter.done) return;
    if (touches_ && touches_->any() && dispatch_.core.waits_for_locks(waiter.fetch)) {
        {
            const MutexUnlock unlocked(dispatch_.mutex());
            release_touches();
        }
        if (waiter.done) return;
    }
    const residency::Instant begin = dispatch_.now();
    const bool copies = waiter.fetch == 0 && waiter.snapshot;
    const residency::Sleeper sleeper{owner_number(),
                                     copies ? waiter.snapshot->chunk.fetch : waiter.fetch};
    if (until_answered && sleeper.owner != 0) sleepers_.push_back(sleeper);  // 0: not known who
    break_deadlocks();
    if (const Dispatcher::Deferred deferred = dispatch_.take_deferred(); !deferred.empty()) {
        const MutexUnlock unlocked(dispatch_.mutex());
        dispatch_.call_out(deferred);
    }
    while (!waiter.done) {
        const residency::Instant time = dispatch_.now();
        if (time >= deadline || begin <= dispatch_.interrupted_at()) break;
        if (works_here() && work_one()) continue;  // what it waits for may be a sum over ranks
        // Where collectives are this thread's own affair, either of two may wake it.
        const uint64_t longest = works_here() ? 1'000'000 : 3600ull * 1000000000;
        (void)waiter.cv.wait_until(dispatch_.mutex(), std::min(deadline, time + longest));
    }
    // What it sleeps for may be another fetch by now, see sleep_follows(). A thread sleeps once.
    const auto mine = std::find_if(sleepers_.begin(), sleepers_.end(),
                                   [&](const auto &at) { return at.owner == sleeper.owner; });
    if (mine != sleepers_.end()) sleepers_.erase(mine);
}

void Runtime::await(Waiter &waiter, residency::TensorId tensor)
{
    MutexLock lock(dispatch_.mutex());
    if (waiter.done) return;
    const residency::Instant begin = dispatch_.now();
    const observe::NvtxRange range(observe::NvtxKind::kFetch);
    while (!waiter.done) {
        sleep_on(waiter, waiter.deadline, true);
        if (waiter.done) break;
        const MutexUnlock unlocked(dispatch_.mutex());
        dispatch_.act([&](Core &core, Commands &out)
                          STW_REQUIRES(runtime_lock) { core.tick(dispatch_.now(), out); });
    }
    add_stall_of(waiter.plan.step, waiter.cause, tensor, begin, dispatch_.now());
}

}  // namespace stepwell
