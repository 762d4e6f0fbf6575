// SPDX-License-Identifier: Apache-2.0
// Threads of the program that wait for a fetch: the cause of the wait, whether only the asking
// thread could end it, and which fetch is refused when sleepers wait for each other.
#include "lib/runtime/views/sleepers.h"

#include "lib/observe/nvtx.h"
#include "lib/residency/core.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/transfer/engine.h"
#include "lib/update/pipeline.h"

#include <algorithm>

namespace stepwell {

namespace {

// The one that it waits for now.
residency::FetchId fetch_of(const Waiter &waiter)
{
    const bool copies = waiter.fetch == 0 && waiter.snapshot;
    return copies ? waiter.snapshot->chunk.fetch : waiter.fetch;
}

}  // namespace

// The stall cause of a wait that begins now.
observe::Stall Sleepers::cause_of(const Waiter &waiter) const
{
    if (dispatch_.core.waits_for_locks(waiter.fetch)) return observe::Stall::kUpdate;
    if (dispatch_.core.waits_for_room(waiter.fetch)) return observe::Stall::kRoom;
    return dispatch_.core.waits_for_nvme(waiter.fetch) ? observe::Stall::kNvme
                                                       : observe::Stall::kHostDevice;
}

// What was updated before its verdict; not what the verdict has rejected, from its call on.
bool Sleepers::reads_lent(uint32_t flags, const stw_tensor *tensor) const
{
    return (flags & STW_FETCH_SPECULATED) != 0 && !machine_.pipeline->undoes(tensor->id);
}

// A claim that only reads ends beside the view of a thread that touches, and one that comes after
// it, and waits for the view, lets the touch pass.
bool Sleepers::goes_ahead(const Waiter &waiter, residency::TensorId tensor) const
{
    return is_touch(waiter.plan) &&
           (dispatch_.core.claim_stage(tensor) == residency::ClaimStage::kNext ||
            !residency::is_exclusive(dispatch_.core.claimed_by(tensor)));
}

// True if the fetch would wait for a view of its own thread or step. One that a touch keeps ends by
// itself.
bool Sleepers::waits_for_itself(const Waiter &waiter, std::string *tensor_out)
{
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        const ViewSlot &view = views_.slot(index);
        const bool own = (waiter.owner != 0 && view.owner == waiter.owner) ||
                         (waiter.plan.step != 0 && view.step == waiter.plan.step);
        if (!own || view.scratch != residency::kNone || view.touched) continue;
        for (const RequestedRange &range : waiter.plan.ranges) {
            if (range.scratch != residency::kNone) continue;
            const bool beside = is_touch(waiter.plan) && view.place == range.place;
            const bool writes = view.access != STW_READ || (range.access != STW_READ && !beside);
            const residency::ClaimStage stage = dispatch_.core.claim_stage(range.tensor->id);
            const bool lent = stage == residency::ClaimStage::kLent &&
                              reads_lent(waiter.plan.flags, range.tensor);
            const bool claimed =
                !lent && !goes_ahead(waiter, range.tensor->id) &&
                dispatch_.core.is_barred(range.tensor->id, residency::Access::kRead);
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

std::vector<const stw_tensor *> Sleepers::viewed_by(uint32_t owner) const
{
    std::vector<const stw_tensor *> viewed;
    for (uint32_t index = 0; owner != 0 && index < views_.slots_used(); ++index) {
        const ViewSlot &view = views_.slot(index);
        if (view.owner != owner || !views_.is_open(index) || view.touched) continue;
        if (view.scratch == residency::kNone) viewed.push_back(view.tensor);
    }
    return viewed;
}

// True if the asking thread or step holds a view of the tensor.
bool Sleepers::has_own_view(const Waiter &waiter, const stw_tensor *tensor) const
{
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        const ViewSlot &view = views_.slot(index);
        if (!views_.is_open(index) || view.tensor != tensor || view.touched) continue;
        const bool own = (waiter.owner != 0 && view.owner == waiter.owner) ||
                         (waiter.plan.step != 0 && view.step == waiter.plan.step);
        if (own && view.scratch == residency::kNone) return true;
    }
    return false;
}

// The views of sleeping threads. Threads that are awake open and close theirs meanwhile.
std::vector<residency::Held> Sleepers::held_by_sleepers()
{
    std::vector<residency::Held> held;
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        const ViewSlot &view = views_.slot(index);
        const uint32_t owner = view.owner;
        const bool sleeps =
            std::any_of(asleep_.begin(), asleep_.end(),
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

void Sleepers::look_again()
{
    before_unlock();
    for (const residency::Sleeper &sleeper : asleep_) {
        if (Waiter *waiter = dispatch_.find(sleeper.fetch)) waiter->cv.notify_all();
    }
}

void Sleepers::before_unlock()
{
    if (asleep_.empty()) return;
    break_deadlocks();
    // The tensor of an access without a view is lent for a moment alone, and a claim that has ended
    // may have been before an update that waits for its verdict: these threads look again.
    for (const residency::Sleeper &sleeper : asleep_) {
        Waiter *const waiter = dispatch_.find(sleeper.fetch);
        if (!waiter) continue;
        const bool early = (waiter->plan.flags & STW_FETCH_SPECULATED) != 0;
        if ((early || is_touch(waiter->plan)) && !own_verdict(*waiter).ok())
            waiter->cv.notify_all();
    }
}

// Called whenever something has changed while threads sleep.
void Sleepers::break_deadlocks()
{
    // Collectives release by themselves what they hold once other ranks call.
    if (work_ && !work_->is_idle()) return;
    for (;;) {
        const bool blocked =
            std::any_of(asleep_.begin(), asleep_.end(),
                        [this](const residency::Sleeper &sleeper) STW_REQUIRES(runtime_lock) {
                            return dispatch_.core.is_blocked(sleeper.fetch);
                        });
        if (!blocked) return;
        const residency::FetchId fetch = dispatch_.core.find_deadlock(
            held_by_sleepers(), asleep_,
            machine_.pipeline ? machine_.pipeline->blocked_chunks() : 0);
        if (fetch == 0) return;
        constexpr uint32_t kLinesMax = 16;
        if (dispatch_.log.wants(STW_LOG_INFO)) {
            dispatch_.say(STW_LOG_INFO, "deadlock",
                          "Waiting: " + dispatch_.core.describe_waiting(kLinesMax));
            dispatch_.say(STW_LOG_INFO, "deadlock", "Open views: " + describe_views(kLinesMax));
        }
        dispatch_.core.cancel(fetch, dispatch_.core.deadlock_refusal(fetch), dispatch_.loop.out);
        dispatch_.loop.run();
        if (work_) work_->notify();  // act() may not be the caller
    }
}

Status Sleepers::own_verdict(const Waiter &waiter) const
{
    if (!machine_.pipeline) return {};
    const residency::TensorId tensor = dispatch_.core.waits_for(fetch_of(waiter));
    if (tensor == residency::kNone) return {};
    const bool early = (waiter.plan.flags & STW_FETCH_SPECULATED) != 0;
    // A commit has it, and the update is behind.
    if (early && dispatch_.core.claim_is_used(tensor)) return {};
    const std::optional<uint32_t> thread = machine_.pipeline->verdict_from(tensor, early);
    const uint32_t owner = waiter.owner != 0 ? waiter.owner : recorder_.owner_number();
    if (!thread || *thread == 0 || *thread != owner) return {};
    return Status::error(STW_ERROR_BUSY,
                         "%s would be waited for until the verdict of a speculative update, which "
                         "this thread is to give: take a step without STW_UPDATE_SPECULATE first, "
                         "or one with STW_UPDATE_REJECT",
                         tensor_text(dispatch_.core.spec(tensor).name).c_str());
}

// Until the answer or the deadline. Until then other threads know that this one releases nothing.
void Sleepers::sleep_on(Waiter &waiter, residency::Instant deadline, bool until_answered)
{
    if (waiter.done) return;
    if (machine_.touches && machine_.touches->any() &&
        dispatch_.core.waits_for_locks(waiter.fetch)) {
        {
            const MutexUnlock unlocked(dispatch_.mutex());
            dispatch_.give_way();
        }
        if (waiter.done) return;
    }
    const residency::Instant begin = dispatch_.now();
    const residency::Sleeper sleeper{recorder_.owner_number(), fetch_of(waiter)};
    if (until_answered && sleeper.owner != 0) asleep_.push_back(sleeper);  // 0: unknown thread
    break_deadlocks();
    dispatch_.settle();
    while (!waiter.done) {
        const residency::Instant time = dispatch_.now();
        if (time >= deadline || begin <= dispatch_.interrupted_at()) break;
        if (!own_verdict(waiter).ok()) break;
        if (works_here() && work_->work_one()) continue;  // the wait may be for a sum over ranks
        // If this thread executes collectives, it must also notice their condition.
        const uint64_t longest = works_here() ? 1'000'000 : 3600ull * 1000000000;
        (void)waiter.cv.wait_until(dispatch_.mutex(), std::min(deadline, time + longest));
    }
    // The sleeper's fetch may be another by now, see sleep_follows(). A thread sleeps only once.
    const auto mine = std::find_if(asleep_.begin(), asleep_.end(),
                                   [&](const auto &at) { return at.owner == sleeper.owner; });
    if (mine != asleep_.end()) asleep_.erase(mine);
}

void Sleepers::await(Waiter &waiter, residency::TensorId tensor)
{
    MutexLock lock(dispatch_.mutex());
    if (waiter.done) return;
    const residency::Instant begin = dispatch_.now();
    const observe::NvtxRange range(observe::NvtxKind::kFetch);
    while (!waiter.done) {
        sleep_on(waiter, waiter.deadline, true);
        if (waiter.done) break;
        if (Status own = own_verdict(waiter); !own.ok()) {
            // An access without a view reads what is there: an update that waits for the verdict
            // has nothing out.
            const bool touches = is_touch(waiter.plan);
            const bool barred =
                !touches || dispatch_.core.lend_once(tensor, waiter.fetch, dispatch_.loop.out);
            if (barred) dispatch_.core.cancel(waiter.fetch, std::move(own), dispatch_.loop.out);
            dispatch_.loop.run();
            if (!barred) await_others(waiter);
            continue;
        }
        const MutexUnlock unlocked(dispatch_.mutex());
        dispatch_.act([&](Core &core, Commands &out)
                          STW_REQUIRES(runtime_lock) { core.tick(dispatch_.now(), out); });
    }
    recorder_.add_stall_of(waiter.plan.step, waiter.cause, tensor, begin, dispatch_.now());
}

// An access that passes the update and waits for what ends by itself: room, or another tensor in
// its block.
void Sleepers::await_others(Waiter &waiter)
{
    constexpr uint64_t kLookNs = 1'000'000;
    dispatch_.settle();
    if (waiter.done) return;
    (void)waiter.cv.wait_until(dispatch_.mutex(),
                               std::min(waiter.deadline, dispatch_.now() + kLookNs));
    if (dispatch_.now() < waiter.deadline) return;
    const MutexUnlock unlocked(dispatch_.mutex());
    dispatch_.act([&](Core &core, Commands &out)
                      STW_REQUIRES(runtime_lock) { core.tick(dispatch_.now(), out); });
}

std::string Sleepers::describe_views(uint32_t lines_max)
{
    std::string text;
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        if (lines_max-- == 0) return text + "; ...";
        const ViewSlot &view = views_.slot(index);
        const uint32_t owner = view.owner;
        const bool sleeps = std::any_of(asleep_.begin(), asleep_.end(),
                                        [&](const auto &at) { return at.owner == owner; });
        text += format_text("%s%s to %s, of thread %u%s%s", text.empty() ? "" : "; ",
                            tensor_text(view.tensor->name).c_str(),
                            view.access == STW_READ ? "read" : "write", owner,
                            view.exported ? ", exported to DLPack" : "",
                            sleeps ? ", which waits itself" : "");
    }
    return text;
}

// Adds to the timeout of an update what it waits for, and the views and transfers in the way.
Status Sleepers::tell_waiting(Status status)
{
    constexpr uint32_t kEach = 4;
    if (status.code() != STW_ERROR_TIMEOUT) return status;
    const std::string transfers = machine_.engine->describe_in_flight(kEach);
    MutexLock lock(dispatch_.mutex());
    std::string &sentence = status.mutable_detail().sentence;
    const auto add = [&](const char *what, const std::string &text) {
        if (!text.empty()) sentence += format_text("; %s: %s", what, text.c_str());
    };
    add("in flight", transfers);
    add("waiting", dispatch_.core.describe_waiting(kEach));
    add("open views", describe_views(kEach));
    return status;
}

// Logs what was in the way when a timeout passed. Transfers that devices have not completed are a
// warning, as that concerns the machine; views of the program are for information.
void Sleepers::log_timeout(const Status &status)
{
    constexpr uint32_t kLinesMax = 16;
    if (status.code() != STW_ERROR_TIMEOUT) return;
    std::string waiting;
    std::string views;
    {
        MutexLock lock(dispatch_.mutex());
        waiting = dispatch_.core.describe_waiting(kLinesMax);
        views = describe_views(kLinesMax);
    }
    const bool device = machine_.engine->jobs_in_flight() > 0;
    const uint32_t level = device ? STW_LOG_WARNING : STW_LOG_INFO;
    dispatch_.log.print(level, "timeout", "%s In flight: %s", status.sentence(),
                        machine_.engine->describe_in_flight(kLinesMax).c_str());
    if (!waiting.empty()) dispatch_.log.print(level, "timeout", "Waiting: %s", waiting.c_str());
    if (!views.empty()) dispatch_.log.print(level, "timeout", "Open views: %s", views.c_str());
}

// A claim waits for open views of the tensor; it would wait for the caller's own for ever.
Status Sleepers::self_wait(stw_tensor *tensor, residency::Access access, uint32_t owner,
                           uint32_t flags)
{
    Waiter waiter;
    waiter.plan.flags = flags;
    RequestedRange range;
    range.tensor = tensor;
    range.access = access == residency::Access::kRead ? STW_READ : STW_WRITE;
    range.place = machine_.tiers.nearest();
    waiter.plan.ranges.push_back(range);
    waiter.owner = owner;
    std::string name;
    MutexLock lock(dispatch_.mutex());
    if (!waits_for_itself(waiter, &name)) return {};
    return Status::error(STW_ERROR_BUSY,
                         "the call would wait for a view of %s that this thread holds; "
                         "release that view first",
                         tensor_text(name).c_str());
}

// A thread that sleeps for a fetch of several stages sleeps for the next one.
void Sleepers::sleep_follows(residency::FetchId before, residency::FetchId after)
{
    if (before == 0) return;
    for (residency::Sleeper &sleeper : asleep_) {
        if (sleeper.fetch == before) sleeper.fetch = after;
    }
}

}  // namespace stepwell
