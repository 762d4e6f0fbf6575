// SPDX-License-Identifier: Apache-2.0
// Fetches that are not answered, and what is asked about those that wait.
#include "lib/residency/fetch_queue.h"

#include <algorithm>
#include <utility>

namespace stepwell::residency {
namespace {

constexpr size_t kSpareTargetsMax = 1024;  // a fetch with room for more is not kept as a spare

QueueKey key_of(const Fetch &fetch)
{
    return {static_cast<uint8_t>(fetch.asked.urgency), fetch.asked.priority, fetch.id};
}

}  // namespace

FetchQueue::FetchQueue(const Places &places, TensorTable &tensors, const BlockTable &blocks,
                       TransferTable &transfers, const TensorLocks &locks)
    : places_(places), tensors_(tensors), blocks_(blocks), transfers_(transfers), locks_(locks)
{
    spare_.reserve(kSpareFetches);
}

// Reuses the memory of an answered fetch if there is one.
Fetch &FetchQueue::new_fetch(FetchId id)
{
    if (spare_.empty()) {
        Fetch &fetch = fetches_[id];
        fetch.id = id;
        return fetch;
    }
    Fetches::node_type node = std::move(spare_.back());
    spare_.pop_back();
    node.key() = id;
    node.mapped().begin_anew(id);
    return fetches_.insert(std::move(node)).position->second;
}

// It waits from now on.
void FetchQueue::add(FetchId id, const FetchAsked &asked)
{
    Fetch &fetch = new_fetch(id);
    fetch.asked = asked;
    for (const Request &request : asked.requests) {
        ++tensors_[request.tensor].fetches;
        if (request.access != Access::kRead) ++tensors_[request.tensor].waiting;
    }
    enqueue(fetch);
    if (asked.deadline != kNever) deadlines_[{asked.deadline, id}] = true;
}

Fetch *FetchQueue::find(FetchId id)
{
    const auto found = fetches_.find(id);
    return found != fetches_.end() ? &found->second : nullptr;
}

const Fetch *FetchQueue::find(FetchId id) const
{
    const auto found = fetches_.find(id);
    return found != fetches_.end() ? &found->second : nullptr;
}

void FetchQueue::enqueue(Fetch &fetch)
{
    const Queued mine{key_of(fetch), &fetch};
    queue_.insert(std::upper_bound(queue_.begin(), queue_.end(), mine), mine);
}

void FetchQueue::dequeue(const Fetch &fetch)
{
    const auto mine =
        std::lower_bound(queue_.begin(), queue_.end(), Queued{key_of(fetch), nullptr});
    if (mine != queue_.end() && mine->fetch == &fetch) queue_.erase(mine);
}

// A demand waits for the locks of a hint, which the hint keeps until its bytes have arrived: its
// transfers become as urgent, or everything else on the links would go before them.
void FetchQueue::hurry_hints(const Fetch &fetch, Commands &out)
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
        transfers_.promote(hint.targets, &promoted);
        return true;
    });
    std::sort(promoted.begin(), promoted.end());
    out.promotes.insert(out.promotes.end(), promoted.begin(), promoted.end());
}

void FetchQueue::forget(Fetch &fetch)
{
    if (fetch.phase == Phase::kWait) dequeue(fetch);
    if (fetch.asked.deadline != kNever) deadlines_.erase({fetch.asked.deadline, fetch.id});
    for (const Request &request : fetch.asked.requests) --tensors_[request.tensor].fetches;
    std::erase(slow_hints_, fetch.id);
    auto node = fetches_.extract(fetch.id);
    const bool small = node.mapped().targets.capacity() <= kSpareTargetsMax;
    if (small && spare_.size() < kSpareFetches) spare_.push_back(std::move(node));
}

Instant FetchQueue::next_deadline() const
{
    return deadlines_.empty() ? kNever : deadlines_.begin()->first.first;
}

std::vector<FetchId> FetchQueue::hints_of(TensorId tensor) const
{
    std::vector<FetchId> hints;
    for (const auto &[id, fetch] : fetches_) {
        if ((fetch.asked.flags & kFetchPrefetch) == 0) continue;
        const bool names =
            std::any_of(fetch.asked.requests.begin(), fetch.asked.requests.end(),
                        [tensor](const Request &asked) { return asked.tensor == tensor; });
        if (names) hints.push_back(id);
    }
    std::sort(hints.begin(), hints.end());
    return hints;
}

std::vector<FetchId> FetchQueue::stuck() const
{
    std::vector<FetchId> stuck;
    for (const auto &[key, fetch] : queue_) {
        if (fetch->stuck) stuck.push_back(fetch->id);
    }
    std::sort(stuck.begin(), stuck.end());
    return stuck;
}

std::vector<FetchId> FetchQueue::blocked_hints() const
{
    std::vector<FetchId> hints;
    for (const auto &[key, fetch] : queue_) {
        const bool hint = (fetch->asked.flags & kFetchPrefetch) != 0;
        if (hint && fetch->phase == Phase::kWait) hints.push_back(fetch->id);
    }
    std::sort(hints.begin(), hints.end());
    return hints;
}

bool FetchQueue::is_awaited(TensorId tensor, FetchId number) const
{
    const auto names_it = [tensor](const Request &request) { return request.tensor == tensor; };
    return std::any_of(queue_.begin(), queue_.end(), [&](const Queued &queued) {
        const FetchAsked &wanted = queued.fetch->asked;
        return queued.fetch->id > number && (wanted.flags & kFetchPrefetch) == 0 &&
               std::any_of(wanted.requests.begin(), wanted.requests.end(), names_it);
    });
}

bool FetchQueue::waits_for_locks(FetchId id) const
{
    const Fetch *fetch = find(id);
    return fetch && fetch->lacks == Lacks::kLocks;
}

TensorId FetchQueue::waits_for(FetchId id) const
{
    const Fetch *fetch = find(id);
    if (!fetch || fetch->lacks != Lacks::kLocks || fetch->places.empty()) return kNone;
    return fetch->asked.requests[fetch->conflict].tensor;
}

bool FetchQueue::waits_for_room(FetchId id) const
{
    const Fetch *fetch = find(id);
    return fetch && fetch->lacks == Lacks::kRoom;
}

bool FetchQueue::waits_for_nvme(FetchId id) const
{
    const Fetch *fetch = find(id);
    if (!fetch) return false;
    const auto moves = [&](const Target &target) {
        for (PlaceId place = 0; place < places_.count(); ++place) {
            const Replica &far = blocks_.replica(target.block, place);
            if (places_.is_nvme(place) && (far.reads > 0 || far.filling)) return true;
        }
        return false;
    };
    return std::any_of(fetch->targets.begin(), fetch->targets.end(), moves);
}

bool FetchQueue::is_blocked(FetchId id) const
{
    const Fetch *fetch = find(id);
    return fetch && fetch->phase == Phase::kWait;
}

std::string FetchQueue::describe_waiting(size_t lines_max) const
{
    std::string text;
    for (const auto &[key, waiting] : queue_) {
        if (lines_max-- == 0) return text + "; ...";
        const Fetch &fetch = *waiting;
        text += format_text("%sfetch %llu", text.empty() ? "" : "; ",
                            static_cast<unsigned long long>(fetch.id));
        for (const Request &request : fetch.asked.requests) {
            text += &request == fetch.asked.requests.data() ? " of " : ", ";
            text += tensor_text(tensors_[request.tensor].spec.name);
        }
        text += (fetch.asked.flags & kFetchPrefetch) != 0   ? ", a hint,"
                : (fetch.asked.flags & kFetchInternal) != 0 ? ", the library's own,"
                                                            : "";
        text += fetch.lacks == Lacks::kRoom ? " waits for room" : " waits for its locks";
        text += locks_.describe_conflict(fetch);
    }
    return text;
}

}  // namespace stepwell::residency
