// SPDX-License-Identifier: Apache-2.0
// Owners: the threads of the program. One that sleeps on a fetch gives nothing back before it is
// answered; after every event the core is asked, as the shell asks it, whether some of them wait
// for each other.
#include "tests/simulation/program.h"

#include <algorithm>

namespace stepwell::simulation {
namespace {

constexpr uint64_t kOwners = 4;

}  // namespace

// One of those that may call; 0 when all sleep.
uint64_t Program::awake_owner()
{
    const uint64_t first = random_.below(kOwners);
    for (uint64_t i = 0; i < kOwners; i++) {
        const uint64_t owner = 1 + (first + i) % kOwners;
        if (awake(owner)) return owner;
    }
    return 0;
}

// Puts a view that somebody can give back last in the list; false when there is none.
bool Program::pick_releasable()
{
    if (views_.empty()) return false;
    const uint64_t first = random_.below(views_.size());
    for (size_t i = 0; i < views_.size(); i++) {
        View &view = views_[(first + i) % views_.size()];
        if (!awake(view->owner)) continue;
        std::swap(view, views_.back());
        return true;
    }
    return false;
}

void Program::answered(const FetchAsked &asked, FetchId id)
{
    const bool prefetch = (asked.flags & kFetchPrefetch) != 0;
    for (const Request &request : asked.requests) {
        ModelTensor &tensor = model_.tensors[request.tensor];
        --(prefetch ? tensor.hints : tensor.fetches);
    }
    const auto found = sleepers_.find(asked.owner);
    if (found != sleepers_.end() && found->second == id) sleepers_.erase(found);
}

void Program::break_deadlocks()
{
    while (!journal_.failed() && !sleepers_.empty()) {
        std::vector<Held> held;
        for (const View &view : views_) {
            const Request &at = view->request;
            if (view->owner == 0) continue;
            held.push_back({view->owner, at.tensor, at.place, at.byte_begin, at.byte_count,
                            at.access != Access::kRead});
        }
        std::vector<Sleeper> sleepers;
        for (const auto &[owner, fetch] : sleepers_) sleepers.push_back({owner, fetch});
        const FetchId id = machine_.core.find_deadlock(held, sleepers);
        if (id == 0) return;
        check_deadlock(id, held);
        if (journal_.failed()) return;
        deadlocks_++;
        const Status why = machine_.core.deadlock_refusal(id);
        journal_.line("deadlock: fetch %llu gives way", (unsigned long long)id);
        fetches_.at(id).cancelled = why;
        machine_.core.cancel(id, Status(why), out_);
        execute();
    }
}

// It must be a fetch that somebody sleeps on. Where it lacks room, that must be with those that
// sleep, and nothing on its way.
void Program::check_deadlock(FetchId id, const std::vector<Held> &held)
{
    const auto found = fetches_.find(id);
    if (found == fetches_.end()) {
        journal_.fail("fetch %llu is to give way but was answered", (unsigned long long)id);
        return;
    }
    const FetchAsked &asked = found->second.asked;
    const bool sleeps = !awake(asked.owner) && sleepers_.at(asked.owner) == id;
    if (!sleeps) {
        journal_.fail("fetch %llu gives way, its owner %llu is awake", (unsigned long long)id,
                      (unsigned long long)asked.owner);
    }
    if (!machine_.core.waits_for_room(id)) return;
    if (!machine_.idle()) {
        journal_.fail("fetch %llu gives way while transfers may bring its room",
                      (unsigned long long)id);
    }
    for (const Request &request : asked.requests) {
        for (const View &view : views_) {
            const bool there = view->request.place == request.place;
            if (!there || (view->owner != 0 && !awake(view->owner))) continue;
            // What somebody who sleeps has too would stay all the same.
            const PackId pack = model_.tensors[view->request.tensor].pack;
            const bool stays = std::any_of(held.begin(), held.end(), [&](const Held &other) {
                return !awake(other.owner) && other.place == request.place &&
                       model_.tensors[other.tensor].pack == pack;
            });
            if (stays) continue;
            journal_.fail("fetch %llu gives way while an awake owner has room at place %u",
                          (unsigned long long)id, request.place);
        }
    }
}

}  // namespace stepwell::simulation
