// SPDX-License-Identifier: Apache-2.0
// A fetch from question to answer.
#include "lib/residency/fetch_runner.h"

#include <algorithm>
#include <utility>

namespace stepwell::residency {

// A pass over the waiting fetches, repeated while an answer changes what others may have.
void FetchRunner::advance(Commands &out)
{
    if (!advancing_) order_.forget_no_victims();
    advance_queue(out);
}

void FetchRunner::advance_queue(Commands &out)
{
    if (advancing_) return;
    advancing_ = true;
    order_.begin_event();
    bool again = true;
    while (again) {
        again = false;
        Blocked blocked{};
        const std::vector<Queued> &queue = fetches_.queue();
        for (size_t at = 0; at < queue.size();) {
            const Queued now = queue[at];
            again |= step(*now.fetch, blocked, out);
            // A fetch that was answered, or has its room, has left the queue.
            if (at < queue.size() && queue[at].key.id == now.key.id) {
                ++at;
            } else {
                const auto next = std::upper_bound(queue.begin(), queue.end(), now);
                at = static_cast<size_t>(next - queue.begin());
            }
        }
    }
    write_back_.pump(out);
    advancing_ = false;
}

// Takes the fetch as far as it goes; true if it was answered, so that others may proceed.
bool FetchRunner::step(Fetch &fetch, Blocked &blocked, Commands &out)
{
    const FetchId id = fetch.id;
    const bool tries = (fetch.asked.flags & kFetchTry) != 0;
    if (fetch.phase != Phase::kWait) return false;
    fetch.stuck = false;
    fetch.lacks = Lacks::kLocks;
    if (addresses_.shows_touched(fetch)) {
        refuse(id, Status::error(STW_ERROR_EXISTS, "it is shown: the access needs no view"), out);
        return true;
    }
    if (!locks_.may_lock(fetch)) {
        fetches_.hurry_hints(fetch, out);
        const bool overtaken = locks_.is_overtaken(fetch);
        if (!tries && !overtaken) return false;
        refuse(id,
               overtaken ? Status::error(STW_ERROR_EXISTS, "it is in use: no room is needed")
                         : locks_.busy_refusal(fetch),
               out);
        return true;
    }
    Status wrong = locks_.conflict_within(fetch);
    if (wrong.ok()) wrong = locks_.readable(fetch);
    if (!wrong.ok()) {
        refuse(id, std::move(wrong), out);
        return true;
    }
    fetch.lacks = Lacks::kRoom;
    build_targets(fetch);
    const Room room = reservation_.reserve(fetch, blocked, out);
    if (room == Room::kComing && !tries) return false;
    if (room == Room::kStuck && (fetch.asked.flags & kFetchWaitRoom)) {
        fetch.stuck = true;
        return false;
    }
    if (room != Room::kTaken) {
        const bool hint = (fetch.asked.flags & kFetchPrefetch) != 0;
        refuse(id,
               room == Room::kComing
                   ? Status::error(STW_ERROR_BUSY, "the bytes are not resident and free at once")
               : hint ? Status::error(STW_ERROR_BUDGET, "there is no room for the hint")
                      : outlook_.budget_refusal(fetch, fetch.short_place, fetch.short_blocks),
               out);
        return true;
    }
    begin_fill(fetch, out);
    if (fetch.pending > 0 && tries) {
        refuse(id, Status::error(STW_ERROR_BUSY, "the bytes are not resident"), out);
        return true;
    }
    return fetch.pending == 0 && finish(id, out);
}

// It has its room: takes its locks, leaves the queue, and starts what its blocks lack.
void FetchRunner::begin_fill(Fetch &fetch, Commands &out)
{
    const bool hint = (fetch.asked.flags & kFetchPrefetch) != 0;
    if (hint && fetch.asked.urgency != Class::kDemand) fetches_.note_slow_hint(fetch.id);
    write_back_.wake();
    locks_.lock(fetch);
    for (const Request &request : fetch.asked.requests) {
        if (request.access != Access::kRead) --tensors_[request.tensor].waiting;
    }
    fetch.lacks = Lacks::kNothing;
    fetch.phase = Phase::kFill;
    fetches_.dequeue(fetch);
    fetch.pending = 0;
    for (Target &target : fetch.targets) target.started = false;
    // Blocks that move into a run start first: another target may need their bytes at another
    // place, and a block cannot leave a slot that is being read.
    for (const bool first : {true, false}) {
        for (Target &target : fetch.targets) {
            const Slot slot = blocks_.replica(target.block, target.place).slot;
            const bool moves = target.wanted_slot != kNoSlot && target.wanted_slot != slot;
            if (first && !moves) continue;
            if (!first && target.started) continue;
            target.started = true;
            target.waiting = false;
            if (!fills_.satisfied(target)) wait_for(fetch, target, out);
        }
    }
}

void FetchRunner::wait_for(Fetch &fetch, Target &target, Commands &out)
{
    fills_.start(fetch, target, out);
    target.waiting = !fills_.satisfied(target);
    if (!target.waiting) return;
    ++fetch.pending;
    std::vector<FetchId> &waiters = blocks_[target.block].waiters;
    if (std::find(waiters.begin(), waiters.end(), fetch.id) != waiters.end()) return;
    waiters.push_back(fetch.id);
}

// One target per block and place, with what all requests together need of it.
void FetchRunner::build_targets(Fetch &fetch)
{
    if (fetch.built_for == fetch.places && fetch.built_at == packs_.homes_changed()) return;
    fetch.built_for = fetch.places;
    fetch.built_at = packs_.homes_changed();
    fetch.targets.clear();
    size_t blocks = 0;
    for (const Request &request : fetch.asked.requests) {
        const Tensor &tensor = tensors_[request.tensor];
        const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
        blocks += range.second - range.first;
    }
    fetch.targets.reserve(blocks);
    for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
        const Request &request = fetch.asked.requests[i];
        const Tensor &tensor = tensors_[request.tensor];
        const Pack &pack = packs_[tensor.pack];
        const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
        const uint64_t begin = tensor.offset + request.byte_begin;
        const uint64_t end = begin + request.byte_count;
        for (uint32_t index = range.first; index < range.second; ++index) {
            const uint64_t block_begin = index * places_.block_bytes();
            const uint64_t block_end =
                std::min(block_begin + places_.block_bytes(), pack.used_bytes);
            const bool covers = begin <= block_begin && end >= block_end && !pack.shared;
            Target target;
            target.block = pack.first + index;
            target.place = fetch.places[i];
            target.writes = request.access != Access::kRead;
            const bool whole_write =
                request.access == Access::kWrite || request.access == Access::kWriteEmpty;
            target.needs_bytes = !whole_write || (!covers && !is_hint(fetch));
            target.moves = !is_exclusive(fetch.asked.claim) || pack.shared;
            fetch.targets.push_back(target);
            if (!packs_.is_guest(pack, target.place)) continue;
            Target home;
            home.block = target.block;
            home.place = pack.promised;
            home.home = true;
            fetch.targets.push_back(home);
        }
    }
    const auto before = [](const Target &a, const Target &b) {
        return a.place != b.place ? a.place < b.place : a.block < b.block;
    };
    if (!std::is_sorted(fetch.targets.begin(), fetch.targets.end(), before))
        std::sort(fetch.targets.begin(), fetch.targets.end(), before);
    size_t kept = 0;
    for (const Target &target : fetch.targets) {
        Target *last = kept > 0 ? &fetch.targets[kept - 1] : nullptr;
        if (last && last->place == target.place && last->block == target.block) {
            last->needs_bytes |= target.needs_bytes;
            last->writes |= target.writes;
            last->moves |= target.moves;
            last->home &= target.home;
        } else {
            fetch.targets[kept++] = target;
        }
    }
    fetch.targets.resize(kept);
}

// Everything has arrived: pin it and answer.
bool FetchRunner::finish(FetchId id, Commands &out)
{
    Fetch &fetch = fetches_.at(id);
    if (!fetch.error.ok()) {
        Status why = std::move(fetch.error);
        refuse(id, std::move(why), out);
        return true;
    }
    // A block that was ready early may be in use again: by a write-back into the same slot, say.
    for (Target &target : fetch.targets) {
        if (!fills_.satisfied(target)) wait_for(fetch, target, out);
    }
    if (fetch.pending > 0) return false;
    if (!addresses_.show_targets(fetch)) {
        refuse(id,
               Status::error(STW_ERROR_LIMIT,
                             "the process has no mapping left to show tensor '%s' at its address; "
                             "raise vm.max_map_count, or use larger blocks",
                             tensors_[fetch.asked.requests.front().tensor].spec.name.c_str()),
               out);
        return true;
    }
    const bool prefetch = is_hint(fetch);
    for (const Target &target : fetch.targets) {
        Replica &here = blocks_.replica(target.block, target.place);
        // A hint to write holds room, and leaves no bytes in it that another fetch could take.
        if (target.writes && !prefetch) {
            occupancy_.keep_older(target.block, out);
            here.valid = true;
            for (PlaceId other = 0; other < places_.count(); ++other) {
                if (other != target.place) occupancy_.drop(target.block, other, out);
            }
            blocks_[target.block].write_failed = false;
        }
        if (!prefetch && !target.home) occupancy_.note_use(target.block, target.place);
        recency_.heat(target.block, target.place);
    }
    for (const Request &request : fetch.asked.requests)
        order_.look_at_plan(tensors_[request.tensor].pack);
    Granted granted;
    granted.fetch = id;
    if (!prefetch) {
        granted.grants.reserve(fetch.asked.requests.size());
        for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
            granted.grants.push_back(pin(fetch, i));
        }
    } else {
        for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
            locks_.unlock(fetch.asked.requests[i], fetch.places[i], fetch.asked.claim);
            gates_.update(fetch.asked.requests[i].tensor, fetch.places[i]);
        }
    }
    for (const Target &target : fetch.targets) {
        blocks_.let_go(target.block, target.place);
        // It was kept for bytes, and has its home elsewhere since, or there are none.
        const Replica &here = blocks_.replica(target.block, target.place);
        if (target.home && !here.valid && !here.filling && here.holds == 0)
            occupancy_.drop(target.block, target.place, out);
        victims_.note_evictable(target.block, target.place);
    }
    if (prefetch) addresses_.conceal_asked(fetch);
    fetches_.forget(fetch);
    out.granted.push_back(std::move(granted));
    return true;
}

Grant FetchRunner::pin(const Fetch &fetch, size_t index)
{
    const Request &request = fetch.asked.requests[index];
    const Tensor &tensor = tensors_[request.tensor];
    const PlaceId place = fetch.places[index];
    const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
    const BlockId first = packs_[tensor.pack].first;
    Grant grant;
    grant.place = place;
    grant.slot = blocks_.replica(first + range.first, place).slot;
    grant.slot_offset = (tensor.offset + request.byte_begin) -
                        static_cast<uint64_t>(range.first) * places_.block_bytes();
    const bool internal = (fetch.asked.flags & kFetchInternal) != 0 || fetch.asked.claim != 0;
    if (beside_readers(fetch)) {
        ++tensors_[request.tensor].touched;
        tensors_[request.tensor].passed |=
            fetch.last_claim != 0 && !locks_.was_claimed_since(fetch);
    }
    if (request.access == Access::kRead && !internal && !beside_readers(fetch)) {
        locks_.unlock(request, place, 0);
        gates_.update(request.tensor, place);
        if (tensors_.gate(request.tensor, place).try_pin()) {
            grant.by_gate = true;
            return grant;
        }
        Tensor &locked = tensors_[request.tensor];
        ++locked.readers;
        for (BlockId block = first + range.first; block < first + range.second; ++block) {
            ++blocks_.replica(block, place).marks;
        }
    }
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        if (internal) {
            blocks_.hold(block, place);
        } else {
            ++blocks_.replica(block, place).pins;
        }
    }
    return grant;
}

void FetchRunner::refuse(FetchId id, Status why, Commands &out)
{
    Fetch &fetch = fetches_.at(id);
    if (fetch.phase == Phase::kWait) {
        for (const Request &request : fetch.asked.requests) {
            if (request.access != Access::kRead) --tensors_[request.tensor].waiting;
        }
    } else {
        for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
            locks_.unlock(fetch.asked.requests[i], fetch.places[i], fetch.asked.claim);
        }
        for (const Target &target : fetch.targets) {
            Replica &here = blocks_.replica(target.block, target.place);
            blocks_.let_go(target.block, target.place);
            if (target.writes) addresses_.protect(target.block, target.place);
            std::vector<FetchId> &waiters = blocks_[target.block].waiters;
            waiters.erase(std::remove(waiters.begin(), waiters.end(), id), waiters.end());
            const bool idle = !here.filling && here.holds == 0 && here.pins == 0;
            const bool useless = idle && (!here.valid || packs_.is_worthless(target.block));
            if (useless) occupancy_.drop(target.block, target.place, out);
            victims_.note_evictable(target.block, target.place);
        }
    }
    for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
        for (PlaceId place = 0; place < places_.count(); ++place) {
            gates_.update(fetch.asked.requests[i].tensor, place);
        }
    }
    addresses_.conceal_asked(fetch);
    fetches_.forget(fetch);
    out.refused.push_back({id, std::move(why)});
}

// Fetches that wait for this block look at it again: it is ready, or is read from another source,
// or the fetch fails.
void FetchRunner::wake_waiters(BlockId id, const Flight *failed, const Status &status,
                               Commands &out)
{
    std::vector<FetchId> waiters;
    waiters.swap(blocks_[id].waiters);
    for (const FetchId waiter : waiters) {
        Fetch *waiting = fetches_.find(waiter);
        if (!waiting) continue;
        Fetch &fetch = *waiting;
        bool still_waits = false;
        for (Target &target : fetch.targets) {
            if (target.block != id || !target.waiting) continue;
            const bool mine = failed && failed->transfer.to == target.place;
            if (mine) fills_.note_failure(fetch, target, *failed, status);
            if (!fills_.satisfied(target) && fetch.error.ok()) fills_.start(fetch, target, out);
            const bool hopeless = !fetch.error.ok() && !blocks_.replica(id, target.place).filling;
            target.waiting = !fills_.satisfied(target) && !hopeless;
            still_waits |= target.waiting;
            fetch.pending -= !target.waiting;
        }
        if (still_waits) blocks_[id].waiters.push_back(waiter);
        if (fetch.pending == 0) finish(waiter, out);
    }
}

}  // namespace stepwell::residency
