// SPDX-License-Identifier: Apache-2.0
// A fetch from question to answer: locks and room for all of it, both at once or neither; then its
// transfers, then pins. Waiting fetches are served in order; one that waits for room at a place
// keeps later ones from taking room there.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::residency {
namespace {

constexpr size_t kSpareTargetsMax = 256;  // more memory than for so many is not kept

QueueKey key_of(const Fetch &fetch)
{
    return {static_cast<uint8_t>(fetch.asked.urgency), fetch.asked.priority, fetch.id};
}

}  // namespace

Status Core::check_request(const FetchAsked &asked) const
{
    for (size_t i = 0; i < asked.requests.size(); ++i) {
        const Request &request = asked.requests[i];
        const Tensor &tensor = tensors_[request.tensor];
        // The blocks behind it are another tensor's, or nobody's.
        STW_ASSERT(request.byte_begin <= tensor.spec.bytes &&
                   request.byte_count <= tensor.spec.bytes - request.byte_begin);
        if (request.place == kAnyCpuPlace && choose_cpu_place(request) == kNoPlace) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "%s is to be worked on by the CPU, and no tier with a "
                                 "budget is memory that it works in; open the runtime with "
                                 "host_bytes",
                                 tensor_text(tensor.spec.name).c_str());
        }
        for (size_t j = 0; j < i; ++j) {
            const Request &other = asked.requests[j];
            if (other.tensor != request.tensor || asked.claim != 0) continue;
            if (other.access == Access::kRead && request.access == Access::kRead) continue;
            return Status::error(STW_ERROR_BUSY,
                                 "%s is asked for twice in one call and at least once for "
                                 "writing; it would wait for itself",
                                 tensor_text(tensor.spec.name).c_str());
        }
    }
    return {};
}

// In the memory of one that is over, where there is such.
Fetch &Core::new_fetch(FetchId id)
{
    if (spare_fetches_.empty()) {
        Fetch &fetch = fetches_[id];
        fetch.id = id;
        return fetch;
    }
    Fetches::node_type node = std::move(spare_fetches_.back());
    spare_fetches_.pop_back();
    node.key() = id;
    node.mapped().begin_anew(id);
    return fetches_.insert(std::move(node)).position->second;
}

void Core::enqueue(Fetch &fetch)
{
    const Queued mine{key_of(fetch), &fetch};
    queue_.insert(std::upper_bound(queue_.begin(), queue_.end(), mine), mine);
}

void Core::dequeue(const Fetch &fetch)
{
    const auto mine =
        std::lower_bound(queue_.begin(), queue_.end(), Queued{key_of(fetch), nullptr});
    if (mine != queue_.end() && mine->fetch == &fetch) queue_.erase(mine);
}

FetchId Core::fetch(const FetchAsked &asked, Instant now, Commands &out)
{
    const FetchId id = next_fetch_++;
    Status wrong = check_request(asked);
    if (!wrong.ok()) {
        out.refused.push_back({id, std::move(wrong)});
        return id;
    }
    Fetch &fetch = new_fetch(id);
    fetch.asked = asked;
    for (const Request &request : asked.requests) {
        ++tensors_[request.tensor].fetches;
        if (request.access != Access::kRead) ++tensors_[request.tensor].waiting;
    }
    enqueue(fetch);
    if (asked.deadline != kNever) deadlines_[{asked.deadline, id}] = true;
    advance(out);
    (void)now;
    return id;
}

// One pass over those that wait, again while answers change what others may have.
void Core::advance(Commands &out)
{
    if (!advancing_) barren_ = {};
    advance_queue(out);
}

void Core::advance_queue(Commands &out)
{
    if (advancing_) return;
    advancing_ = true;
    ++event_;
    bool again = true;
    while (again) {
        again = false;
        Blocked blocked{};
        for (size_t at = 0; at < queue_.size();) {
            const Queued now = queue_[at];
            again |= step(*now.fetch, blocked, out);
            // One that was answered, or has all it needs, has left the queue.
            if (at < queue_.size() && queue_[at].key.id == now.key.id) {
                ++at;
            } else {
                const auto next = std::upper_bound(queue_.begin(), queue_.end(), now);
                at = static_cast<size_t>(next - queue_.begin());
            }
        }
    }
    pump_write_back(out);
    advancing_ = false;
}

// Takes the fetch as far as it goes; true when it was answered, so that others may go on.
bool Core::step(Fetch &fetch, Blocked &blocked, Commands &out)
{
    const FetchId id = fetch.id;
    const bool tries = (fetch.asked.flags & kFetchTry) != 0;
    if (fetch.phase != Phase::kWait) return false;
    fetch.stuck = false;
    fetch.lacks = Lacks::kLocks;
    if (!may_lock(fetch)) {
        hurry_hints(fetch, out);
        if (!tries) return false;
        refuse(id, busy_refusal(fetch), out);
        return true;
    }
    Status wrong = conflict_within(fetch);
    if (wrong.ok()) wrong = readable(fetch);
    if (!wrong.ok()) {
        refuse(id, std::move(wrong), out);
        return true;
    }
    fetch.lacks = Lacks::kRoom;
    build_targets(fetch);
    const Room room = reserve(fetch, blocked, out);
    if (room == Room::kComing && !tries) return false;
    if (room == Room::kStuck && (fetch.asked.flags & kFetchWaitRoom)) {
        fetch.stuck = true;
        return false;
    }
    if (room != Room::kTaken) {
        refuse(id,
               room == Room::kComing
                   ? Status::error(STW_ERROR_BUSY, "the bytes are not resident and free at once")
                   : budget_refusal(fetch, fetch.short_place, fetch.short_blocks),
               out);
        return true;
    }
    const bool hint = (fetch.asked.flags & kFetchPrefetch) != 0;
    if (hint && fetch.asked.urgency != Class::kDemand) slow_hints_.push_back(id);
    may_write_back_ = true;
    lock(fetch);
    for (const Request &request : fetch.asked.requests) {
        if (request.access != Access::kRead) --tensors_[request.tensor].waiting;
    }
    fetch.lacks = Lacks::kNothing;
    fetch.phase = Phase::kFill;
    dequeue(fetch);
    fetch.pending = 0;
    for (Target &target : fetch.targets) target.started = false;
    // Blocks that move into a run go first: another target may need their bytes elsewhere, and a
    // slot that is being read cannot be left.
    for (const bool first : {true, false}) {
        for (Target &target : fetch.targets) {
            const Slot slot = replica(target.block, target.place).slot;
            const bool moves = target.wanted_slot != kNoSlot && target.wanted_slot != slot;
            if (first && !moves) continue;
            if (!first && target.started) continue;
            target.started = true;
            target.waiting = false;
            if (!satisfied(target)) wait_for(fetch, target, out);
        }
    }
    if (fetch.pending > 0 && tries) {
        refuse(id, Status::error(STW_ERROR_BUSY, "the bytes are not resident"), out);
        return true;
    }
    return fetch.pending == 0 && finish(id, out);
}

// Somebody waits for what a hint has until its bytes are there: these are as urgent now, or
// everything else that the links carry would go before them.
void Core::hurry_hints(const Fetch &fetch, Commands &out)
{
    if (fetch.asked.urgency != Class::kDemand) return;
    const PackId pack = tensors_[fetch.asked.requests[fetch.conflict].tensor].pack;
    const auto in_the_way = [&](FetchId id) {
        const std::vector<Request> &asked = fetches_.at(id).asked.requests;
        return std::any_of(asked.begin(), asked.end(), [&](const Request &request) {
            return tensors_[request.tensor].pack == pack;
        });
    };
    std::vector<TransferId> promoted;
    std::erase_if(slow_hints_, [&](FetchId id) {
        if (!in_the_way(id)) return false;
        Fetch &hint = fetches_.at(id);
        hint.asked.urgency = Class::kDemand;
        for (auto &[transfer, flight] : flights_) {
            const BlockId block = flight.transfer.block;
            const bool waits = std::any_of(hint.targets.begin(), hint.targets.end(),
                                           [&](const Target &at) { return at.block == block; });
            if (!waits || flight.transfer.urgency == Class::kDemand) continue;
            flight.transfer.urgency = Class::kDemand;
            promoted.push_back(transfer);
        }
        return true;
    });
    std::sort(promoted.begin(), promoted.end());
    out.promotes.insert(out.promotes.end(), promoted.begin(), promoted.end());
}

Status Core::busy_refusal(const Fetch &fetch) const
{
    const TensorId id = fetch.asked.requests[fetch.conflict].tensor;
    Status status = Status::error(STW_ERROR_BUSY,
                                  "%s: a view of it, of a tensor in the same block, or an "
                                  "update is in the way, and the fetch was told not to wait",
                                  tensor_text(tensors_[id].spec.name).c_str());
    status.mutable_detail().tensor = tensors_[id].spec.name;
    return status;
}

void Core::wait_for(Fetch &fetch, Target &target, Commands &out)
{
    start_fill(fetch, target, out);
    target.waiting = !satisfied(target);
    if (!target.waiting) return;
    ++fetch.pending;
    std::vector<FetchId> &waiters = blocks_[target.block].waiters;
    if (std::find(waiters.begin(), waiters.end(), fetch.id) != waiters.end()) return;
    waiters.push_back(fetch.id);
}

// Each block once, with what any of the requests needs of it.
void Core::build_targets(Fetch &fetch)
{
    if (fetch.built_for == fetch.places) return;
    fetch.built_for = fetch.places;
    fetch.targets.clear();
    size_t blocks = 0;
    for (const Request &request : fetch.asked.requests) {
        const Tensor &tensor = tensors_[request.tensor];
        const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
        blocks += range.second - range.first;
    }
    fetch.targets.reserve(blocks);
    for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
        const Request &request = fetch.asked.requests[i];
        const Tensor &tensor = tensors_[request.tensor];
        const Pack &pack = packs_[tensor.pack];
        const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
        const uint64_t begin = tensor.offset + request.byte_begin;
        const uint64_t end = begin + request.byte_count;
        for (uint32_t index = range.first; index < range.second; ++index) {
            const uint64_t block_begin = index * config_.block_bytes;
            const uint64_t block_end = std::min(block_begin + config_.block_bytes, pack.used_bytes);
            const bool covers = begin <= block_begin && end >= block_end && !pack.shared;
            Target target;
            target.block = pack.first + index;
            target.place = fetch.places[i];
            target.writes = request.access != Access::kRead;
            const bool whole_write =
                request.access == Access::kWrite || request.access == Access::kWriteEmpty;
            target.needs_bytes = !whole_write || !covers;
            target.moves = fetch.asked.claim == 0 || pack.shared;
            fetch.targets.push_back(target);
        }
    }
    std::sort(fetch.targets.begin(), fetch.targets.end(), [](const Target &a, const Target &b) {
        return a.place != b.place ? a.place < b.place : a.block < b.block;
    });
    size_t kept = 0;
    for (const Target &target : fetch.targets) {
        Target *last = kept > 0 ? &fetch.targets[kept - 1] : nullptr;
        if (last && last->place == target.place && last->block == target.block) {
            last->needs_bytes |= target.needs_bytes;
            last->writes |= target.writes;
        } else {
            fetch.targets[kept++] = target;
        }
    }
    fetch.targets.resize(kept);
}

// Everything is there: pin it and answer.
bool Core::finish(FetchId id, Commands &out)
{
    Fetch &fetch = fetches_.at(id);
    if (!fetch.error.ok()) {
        Status why = std::move(fetch.error);
        refuse(id, std::move(why), out);
        return true;
    }
    // What was ready first may be in use again: a write-back of the block into the very slot.
    for (Target &target : fetch.targets) {
        if (!satisfied(target)) wait_for(fetch, target, out);
    }
    if (fetch.pending > 0) return false;
    if (!show_targets(fetch)) {
        refuse(id,
               Status::error(STW_ERROR_LIMIT,
                             "the process has no mapping left to show tensor '%s' at its address; "
                             "raise vm.max_map_count, or use larger blocks",
                             tensors_[fetch.asked.requests.front().tensor].spec.name.c_str()),
               out);
        return true;
    }
    const bool prefetch = (fetch.asked.flags & kFetchPrefetch) != 0;
    for (const Target &target : fetch.targets) {
        Replica &here = replica(target.block, target.place);
        if (target.writes) {
            for (PlaceId other = 0; other < places(); ++other) {
                if (other != target.place) drop_replica(target.block, other, out);
            }
            here.valid = true;
            blocks_[target.block].write_failed = false;
        }
        if (!prefetch) note_use(target.block, target.place);
        heat(target.block, target.place);
    }
    for (const Request &request : fetch.asked.requests) look_at_plan(tensors_[request.tensor].pack);
    Granted granted;
    granted.fetch = id;
    if (!prefetch) {
        granted.grants.reserve(fetch.asked.requests.size());
        for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
            granted.grants.push_back(pin(fetch, i));
        }
    } else {
        for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
            unlock(fetch.asked.requests[i], fetch.places[i], fetch.asked.claim);
            update_gate(fetch.asked.requests[i].tensor, fetch.places[i]);
        }
    }
    for (const Target &target : fetch.targets) {
        --replica(target.block, target.place).holds;
        stir(target.block, target.place);
    }
    if (prefetch) conceal_asked(fetch);
    forget_fetch(fetch);
    out.granted.push_back(std::move(granted));
    return true;
}

Grant Core::pin(const Fetch &fetch, size_t index)
{
    const Request &request = fetch.asked.requests[index];
    const Tensor &tensor = tensors_[request.tensor];
    const PlaceId place = fetch.places[index];
    const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
    const BlockId first = packs_[tensor.pack].first;
    Grant grant;
    grant.place = place;
    grant.slot = replica(first + range.first, place).slot;
    grant.slot_offset = (tensor.offset + request.byte_begin) -
                        static_cast<uint64_t>(range.first) * config_.block_bytes;
    const bool internal = (fetch.asked.flags & kFetchInternal) != 0 || fetch.asked.claim != 0;
    if (request.access == Access::kRead && !internal) {
        unlock(request, place, 0);
        update_gate(request.tensor, place);
        if (gate(request.tensor, place).try_pin()) {
            grant.by_gate = true;
            return grant;
        }
        Tensor &locked = tensors_[request.tensor];
        ++locked.readers;
        for (BlockId block = first + range.first; block < first + range.second; ++block) {
            ++replica(block, place).marks;
        }
    }
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        Replica &here = replica(block, place);
        ++(internal ? here.holds : here.pins);
    }
    return grant;
}

void Core::refuse(FetchId id, Status why, Commands &out)
{
    Fetch &fetch = fetches_.at(id);
    if (fetch.phase == Phase::kWait) {
        for (const Request &request : fetch.asked.requests) {
            if (request.access != Access::kRead) --tensors_[request.tensor].waiting;
        }
    } else {
        for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
            unlock(fetch.asked.requests[i], fetch.places[i], fetch.asked.claim);
        }
        for (const Target &target : fetch.targets) {
            Replica &here = replica(target.block, target.place);
            --here.holds;
            if (target.writes) protect(target.block, target.place);
            std::vector<FetchId> &waiters = blocks_[target.block].waiters;
            waiters.erase(std::remove(waiters.begin(), waiters.end(), id), waiters.end());
            const bool idle = !here.filling && here.holds == 0 && here.pins == 0;
            const bool useless = idle && (!here.valid || is_worthless(target.block));
            if (useless) drop_replica(target.block, target.place, out);
            stir(target.block, target.place);
        }
    }
    for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
        for (PlaceId place = 0; place < places(); ++place) {
            update_gate(fetch.asked.requests[i].tensor, place);
        }
    }
    conceal_asked(fetch);
    forget_fetch(fetch);
    out.refused.push_back({id, std::move(why)});
}

void Core::forget_fetch(Fetch &fetch)
{
    if (fetch.phase == Phase::kWait) dequeue(fetch);
    if (fetch.asked.deadline != kNever) deadlines_.erase({fetch.asked.deadline, fetch.id});
    for (const Request &request : fetch.asked.requests) --tensors_[request.tensor].fetches;
    std::erase(slow_hints_, fetch.id);
    auto node = fetches_.extract(fetch.id);
    const bool small = node.mapped().targets.capacity() <= kSpareTargetsMax;
    if (small && spare_fetches_.size() < kSpareFetches) spare_fetches_.push_back(std::move(node));
}

void Core::cancel(FetchId id, Status why, Commands &out)
{
    if (fetches_.count(id) == 0) return;
    refuse(id, std::move(why), out);
    advance(out);
}

void Core::release(const Release &release, Instant, Commands &out)
{
    Tensor &tensor = tensors_[release.tensor];
    const BlockRange range = blocks_of(tensor, release.byte_begin, release.byte_count);
    const BlockId first = packs_[tensor.pack].first;
    const bool internal = release.internal || release.claim != 0;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        Replica &here = replica(block, release.place);
        uint32_t &count = internal ? here.holds : here.pins;
        STW_ASSERT(count > 0);
        --count;
        if (release.far) {
            cool(block, release.place);
            // A block that small tensors share is changed by the update of each.
            Pack &pack = packs_[tensor.pack];
            const bool others = pack.claimed > (tensor.claims.empty() ? 0u : 1u);
            if (others) pack.clean_late = true;
            if (!others) clean_soon(block, release.place);
        } else if (release.near) {
            heat(block, release.place);
        }
    }
    const Request request{release.tensor, release.access, release.place, release.byte_begin,
                          release.byte_count};
    unlock(request, release.place, release.claim);
    if (release.access != Access::kRead) {
        end_write(release, out);
        for (uint32_t index = range.first; index < range.second; ++index)
            protect(first + index, release.place);
    }
    may_write_back_ = true;
    update_gate(release.tensor, release.place);
    conceal(release.tensor);
    advance(out);
}

void Core::end_write(const Release &release, Commands &out)
{
    Tensor &tensor = tensors_[release.tensor];
    if (release.unshown && release.access == Access::kReadWrite) return;
    ++tensor.version;
    if (release.abandon || release.discard || release.unshown) {
        drop_contents(release.tensor, out);
        return;
    }
    // A part that is whole again does not heal the rest.
    const bool whole = release.byte_begin == 0 && release.byte_count >= tensor.spec.bytes;
    if (!tensor.cause.ok() && !whole) return;
    set_contents(release.tensor, Contents::kValid);
    tensor.cause = Status();
}

void Core::gate_idle(TensorId id, Instant, Commands &out)
{
    for (PlaceId place = 0; place < places(); ++place) update_gate(id, place);
    conceal(id);
    advance(out);
}

void Core::release_hint(TensorId id, PlaceId place, bool far, Instant, Commands &out)
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        if (!replica(block, place).listed) continue;
        if (far) {
            cool(block, place);
            clean_soon(block, place);
        } else {
            heat(block, place);
        }
    }
    advance(out);
}

void Core::tick(Instant now, Commands &out)
{
    while (!deadlines_.empty() && deadlines_.begin()->first.first <= now) {
        const FetchId id = deadlines_.begin()->first.second;
        const Fetch &fetch = fetches_.at(id);
        const char *what = fetch.lacks == Lacks::kLocks  ? "a conflicting view or update"
                           : fetch.lacks == Lacks::kRoom ? "room"
                                                         : "its transfers";
        const TensorId tensor = fetch.asked.requests.front().tensor;
        Status status =
            Status::error(STW_ERROR_TIMEOUT,
                          "the fetch of %s (%zu request%s) timed out while it waited for %s%s; %zu "
                          "transfers are in flight and %zu fetches wait",
                          tensor_text(tensors_[tensor].spec.name).c_str(),
                          fetch.asked.requests.size(), plural(fetch.asked.requests.size()), what,
                          describe_conflict(fetch).c_str(), flights_.size(), queue_.size());
        status.mutable_detail().tensor = tensors_[tensor].spec.name;
        refuse(id, std::move(status), out);
    }
    advance(out);
}

Instant Core::next_deadline() const
{
    return deadlines_.empty() ? kNever : deadlines_.begin()->first.first;
}

}  // namespace stepwell::residency
