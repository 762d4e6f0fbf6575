// SPDX-License-Identifier: Apache-2.0
// Deadlocks: threads of the program that wait for each other's views. A waiting fetch holds
// nothing, and the library's own views end by themselves, so only views of sleeping threads can be
// part of a deadlock. Found by reduction: every thread that can proceed is assumed to release all
// its views, repeatedly; those that remain wait forever. If it is undecided whether a thread can
// proceed, it is assumed to: the next event asks again.
#include "lib/residency/deadlocks.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

namespace stepwell::residency {

// The view has to end before the fetch can have its locks.
bool Deadlocks::conflicts_with_view(const Fetch &fetch, const Held &view) const
{
    const Tensor &held = tensors_[view.tensor];
    for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
        const Request &request = fetch.asked.requests[i];
        const bool writes = request.access != Access::kRead || view.writes;
        const bool beside = beside_readers(fetch) && !view.writes && fetch.places[i] == view.place;
        if (request.tensor == view.tensor && !beside && (writes || is_exclusive(fetch.asked.claim)))
            return true;
        const Tensor &wanted = tensors_[request.tensor];
        if (wanted.pack != held.pack || !writes || fetch.places[i] == view.place) continue;
        const BlockRange mine = packs_.blocks_of(wanted, request.byte_begin, request.byte_count);
        const BlockRange other = packs_.blocks_of(held, view.byte_begin, view.byte_count);
        if (mine.first < other.second && other.first < mine.second) return true;
    }
    return false;
}

bool Deadlocks::lacks_room_of(const Fetch &fetch, const Held &view)
{
    return fetch.lacks == Lacks::kRoom &&
           std::find(fetch.places.begin(), fetch.places.end(), view.place) != fetch.places.end();
}

void Deadlocks::note_wait(ClaimId claim, TensorId tensor)
{
    if (tensor == kNone) {
        waits_.erase(claim);
    } else {
        waits_[claim] = tensor;
    }
}

// The claim will hold the tensor: all earlier claims end, and no sleeping thread writes it.
bool Deadlocks::comes_to(ClaimId claim, TensorId tensor, const Knot &knot) const
{
    for (const Held &view : knot.views) {
        if (view.tensor == tensor && view.writes) return false;
    }
    for (const ClaimId earlier : tensors_[tensor].claims) {
        if (earlier == claim) break;
        if (!claim_moves(earlier, knot)) return false;
    }
    return true;
}

// The claim will end: no fetch under it is tied. Without a fetch, a commit waits for all of its
// tensors or works, a copy is working on a piece, and an update gets its turn later, unless all
// that the updates do is wait for fetches that are tied.
bool Deadlocks::claim_moves(ClaimId claim, const Knot &knot) const
{
    const auto waits = waits_.find(claim);
    if (waits != waits_.end() && !comes_to(claim, waits->second, knot)) return false;
    uint32_t updates_tied = 0;
    for (const Fetch *fetch : knot.tied) {
        if (fetch->asked.claim == claim) return false;
        updates_tied +=
            fetch->asked.claim != 0 && kind_of(fetch->asked.claim) == ClaimKind::kUpdate;
    }
    return kind_of(claim) != ClaimKind::kUpdate || updates_tied == 0 ||
           updates_tied != knot.updates_waiting;
}

bool Deadlocks::locks_may_come(const Fetch &fetch, const Knot &knot) const
{
    for (const Held &view : knot.views) {
        if (conflicts_with_view(fetch, view)) return false;
    }
    for (const Request &request : fetch.asked.requests) {
        const Tensor &tensor = tensors_[request.tensor];
        if (!tensor.bars(fetch.asked.claim, request.access != Access::kRead)) continue;
        const bool ahead = (fetch.asked.flags & kFetchAhead) != 0;
        for (const ClaimId claim : tensor.claims) {
            const bool begun = claim == tensor.claim() && tensor.stage != ClaimStage::kNext;
            if (claim == fetch.asked.claim || (ahead && is_exclusive(claim) && !begun)) break;
            if (!claim_moves(claim, knot)) return false;
        }
    }
    return true;
}

// Something is in use there that no tied thread holds: it will be released, or become known.
bool Deadlocks::has_somebody_else(PlaceId place, const Knot &knot) const
{
    std::unordered_set<BlockId> tied;
    for (const Held &view : knot.views) {
        if (view.place != place) continue;
        const Tensor &tensor = tensors_[view.tensor];
        // A pin in a gate pins the whole tensor, whatever the range.
        const BlockRange range = packs_.blocks_of(tensor, 0, tensor.spec.bytes);
        for (uint32_t index = range.first; index < range.second; ++index) {
            tied.insert(packs_[tensor.pack].first + index);
        }
    }
    for (BlockId block = recency_.coldest(place); block != kNone;
         block = blocks_.replica(block, place).hotter) {
        if (tied.count(block) > 0) continue;
        if (blocks_.replica(block, place).holds > 0 || gates_.is_pinned(block, place)) return true;
    }
    return false;
}

bool Deadlocks::room_may_come(const Fetch &fetch, const Knot &knot) const
{
    if (!transfers_.empty()) return true;
    // Served in order: an earlier fetch that proceeds changes what is free.
    for (const auto &[key, earlier] : fetches_.queue()) {
        if (earlier == &fetch) break;
        const bool hint = (earlier->asked.flags & kFetchPrefetch) != 0;
        if (!hint && !knot.has(earlier->id)) return true;
    }
    for (const PlaceId place : fetch.places) {
        if (has_somebody_else(place, knot)) return true;
    }
    return false;
}

// Repeats until no other fetch or thread can proceed.
void Deadlocks::loosen(Knot &knot) const
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < knot.tied.size();) {
            const Fetch &fetch = *knot.tied[i];
            const bool moves = fetch.lacks == Lacks::kRoom ? room_may_come(fetch, knot)
                                                           : locks_may_come(fetch, knot);
            if (moves) {
                knot.tied.erase(knot.tied.begin() + static_cast<std::ptrdiff_t>(i));
                changed = true;
            } else {
                ++i;
            }
        }
        const auto awake = [&](const Sleeper &sleeper) { return !knot.has(sleeper.fetch); };
        const auto first = std::remove_if(knot.sleepers.begin(), knot.sleepers.end(), awake);
        changed |= first != knot.sleepers.end();
        knot.sleepers.erase(first, knot.sleepers.end());
        const auto given = [&](const Held &view) { return !knot.has_owner(view.owner); };
        const auto free = std::remove_if(knot.views.begin(), knot.views.end(), given);
        changed |= free != knot.views.end();
        knot.views.erase(free, knot.views.end());
    }
}

FetchId Deadlocks::find(const std::vector<Held> &held, const std::vector<Sleeper> &sleepers,
                        uint32_t updates_waiting) const
{
    // The common case needs no search: for every sleeping thread the transfers are under way, or it
    // waits for room while something moves.
    const bool all_move = std::all_of(sleepers.begin(), sleepers.end(), [&](const Sleeper &at) {
        const Fetch *fetch = fetches_.find(at.fetch);
        if (!fetch || fetch->phase != Phase::kWait) return true;
        return fetch->lacks == Lacks::kRoom && !transfers_.empty();
    });
    if (all_move) return 0;
    Knot &knot = knot_;
    knot.updates_waiting = updates_waiting;
    knot.views = held;
    knot.sleepers = sleepers;
    knot.tied.clear();
    for (const auto &[key, fetch] : fetches_.queue()) {
        if ((fetch->asked.flags & kFetchPrefetch) == 0) knot.tied.push_back(fetch);
    }
    loosen(knot);
    // The youngest fetch whose thread holds what another one waits for. If there is none, a block
    // that cannot leave (its write-back failed) is in the way: then one that lacks room. A copy and
    // a fetch for a touch give way only if no other fetch can, an update never.
    const auto in_the_way = [&](const Sleeper &sleeper) {
        return std::any_of(knot.views.begin(), knot.views.end(), [&](const Held &view) {
            return view.owner == sleeper.owner &&
                   std::any_of(knot.tied.begin(), knot.tied.end(), [&](const Fetch *fetch) {
                       return conflicts_with_view(*fetch, view) || lacks_room_of(*fetch, view);
                   });
        });
    };
    std::tuple<bool, bool, bool, FetchId> chosen{};
    for (const Sleeper &sleeper : knot.sleepers) {
        const Fetch &fetch = fetches_.at(sleeper.fetch);
        const bool last = (fetch.asked.flags & (kFetchInternal | kFetchBesideReaders)) != 0;
        const bool room = fetch.lacks == Lacks::kRoom;
        chosen = std::max(chosen, {in_the_way(sleeper), !last, room, sleeper.fetch});
    }
    return std::get<FetchId>(chosen);
}

Status Deadlocks::refusal(FetchId id) const
{
    const Fetch &fetch = fetches_.at(id);
    const std::string &name = tensors_[fetch.asked.requests.front().tensor].spec.name;
    const bool room = fetch.lacks == Lacks::kRoom;
    const bool failed = std::any_of(blocks_.begin(), blocks_.end(),
                                    [](const Block &block) { return block.write_failed; });
    Status status = Status::error(
        room ? STW_ERROR_BUDGET : STW_ERROR_BUSY,
        "the fetch of %s (%zu request%s) waits for %s that only threads can give back "
        "that "
        "wait themselves%s; this fetch, the youngest of theirs, gives way: release the views of "
        "its thread and fetch again",
        tensor_text(name).c_str(), fetch.asked.requests.size(), plural(fetch.asked.requests.size()),
        room ? "room" : "views",
        failed ? " (some blocks stay because their write-back failed: clear that error)" : "");
    status.mutable_detail().tensor = name;
    return status;
}

}  // namespace stepwell::residency
