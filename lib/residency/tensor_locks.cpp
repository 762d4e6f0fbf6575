// SPDX-License-Identifier: Apache-2.0
// Coherence: many readers or one writer per tensor, and one place at a time for a block that is
// written. Locks are taken for all requests of a fetch at once, or for none.
#include "lib/residency/tensor_locks.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

namespace stepwell::residency {

namespace {

bool is_write(const Request &request)
{
    return request.access != Access::kRead;
}

// Views that read the tensor are in its way.
bool is_alone(const Fetch &fetch, const Request &request)
{
    return is_write(request) || is_exclusive(fetch.asked.claim);
}

// The first request that would wait for an earlier one of its call; the number of requests if none
// does.
size_t first_self_wait(const std::vector<Request> &requests)
{
    const size_t none = requests.size();
    if (std::none_of(requests.begin(), requests.end(), is_write)) return none;
    const auto not_after = [](const Request &one, const Request &next) {
        return one.tensor >= next.tensor;
    };
    // In the order of their numbers, as tensors that were created together are: each once.
    if (std::adjacent_find(requests.begin(), requests.end(), not_after) == requests.end())
        return none;
    std::vector<uint32_t> order(none);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](uint32_t one, uint32_t other) {
        return std::tie(requests[one].tensor, one) < std::tie(requests[other].tensor, other);
    });
    size_t first = none;
    bool written = false;  // by an earlier request of the same tensor
    for (size_t i = 0; i < none; ++i) {
        const Request &request = requests[order[i]];
        const bool again = i > 0 && requests[order[i - 1]].tensor == request.tensor;
        if (again && (written || is_write(request))) first = std::min<size_t>(first, order[i]);
        written = is_write(request) || (again && written);
    }
    return first;
}

}  // namespace

Status TensorLocks::check_request(const FetchAsked &asked) const
{
    // One claim may ask for several parts.
    const size_t twice = asked.claim != 0 ? asked.requests.size() : first_self_wait(asked.requests);
    for (size_t i = 0; i < asked.requests.size(); ++i) {
        const Request &request = asked.requests[i];
        const Tensor &tensor = tensors_[request.tensor];
        // Blocks beyond the tensor's end are another tensor's, or nobody's.
        STW_ASSERT(request.byte_begin <= tensor.spec.bytes &&
                   request.byte_count <= tensor.spec.bytes - request.byte_begin);
        if (request.place == kAnyCpuPlace && choose_cpu_place(request) == kNoPlace) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "%s is to be worked on by the CPU, and no tier with a "
                                 "budget is memory that it works in; open the runtime with "
                                 "host_bytes",
                                 tensor_text(tensor.spec.name).c_str());
        }
        if (i != twice) continue;
        return Status::error(STW_ERROR_BUSY,
                             "%s is asked for twice in one call and at least once for "
                             "writing; it would wait for itself",
                             tensor_text(tensor.spec.name).c_str());
    }
    return {};
}

Status TensorLocks::busy_refusal(const Fetch &fetch) const
{
    const TensorId id = fetch.asked.requests[fetch.conflict].tensor;
    Status status = Status::error(STW_ERROR_BUSY,
                                  "%s: a view of it, of a tensor in the same block, or an "
                                  "update is in the way, and the fetch was told not to wait",
                                  tensor_text(tensors_[id].spec.name).c_str());
    status.mutable_detail().tensor = tensors_[id].spec.name;
    return status;
}

// Pins in gates count as readers: of this tensor at any place, and for a writer of its neighbours
// at other places too. The gates are closed before their pins are counted, so that none is added.
bool TensorLocks::gates_in_the_way(TensorId id, const Fetch &fetch, const Request &request,
                                   PlaceId place)
{
    if (!is_alone(fetch, request)) return false;
    uint32_t pins = 0;
    const Pack &pack = packs_[tensors_[id].pack];
    for (PlaceId other = 0; other < places_.count(); ++other) {
        const uint32_t own = gates_.close(id, other);
        if (!beside_readers(fetch) || other != place) pins += own;
        const bool neighbours = request.access != Access::kRead && other != place;
        if (!neighbours || !gates_.uses_gates(pack, other)) continue;
        for (const TensorId at : pack.tensors) {
            if (at != id) pins += gates_.close(at, other);
        }
    }
    return pins > 0;
}

bool TensorLocks::waits_for_claim(const Fetch &fetch, const Tensor &tensor, bool writes)
{
    if (!tensor.bars(fetch.asked.claim, writes)) return false;
    if (fetch.asked.claim != 0) return true;
    switch (tensor.stage) {
    case ClaimStage::kNext:
        // A claim that only reads waits for no view that reads, so it ends by itself.
        return (fetch.asked.flags & kFetchAhead) == 0 || !is_exclusive(tensor.claim());
    case ClaimStage::kBegun: return true;
    case ClaimStage::kLent:
        return writes || (fetch.asked.flags & kFetchLent) == 0 ||
               (beside_readers(fetch) && tensor.holds_touches);
    }
    return true;
}

bool TensorLocks::waits_for_claim(const Fetch *fetch, TensorId id) const
{
    if (!fetch || fetch->phase != Phase::kWait) return false;
    return std::any_of(
        fetch->asked.requests.begin(), fetch->asked.requests.end(), [&](const Request &request) {
            return request.tensor == id && waits_for_claim(*fetch, tensors_[id], is_write(request));
        });
}

bool TensorLocks::conflicts_with(const Fetch &fetch, const Request &request, PlaceId place)
{
    Tensor &tensor = tensors_[request.tensor];
    const ClaimId claim = fetch.asked.claim;
    const bool writes = is_write(request);
    if (claim != 0 && tensor.claim() == claim && tensor.stage == ClaimStage::kLent)
        tensor.stage = ClaimStage::kBegun;
    if (waits_for_claim(fetch, tensor, writes) || tensor.writer) return true;
    if (is_alone(fetch, request) && tensor.readers > 0 && !beside_readers(fetch)) return true;
    if (gates_in_the_way(request.tensor, fetch, request, place)) return true;
    const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
    const BlockId first = packs_[tensor.pack].first;
    for (uint32_t index = range.first; index < range.second; ++index) {
        if (blocks_.block_in_the_way(blocks_[first + index], first + index, writes, place))
            return true;
    }
    return false;
}

PlaceId TensorLocks::choose_cpu_place(const Request &request) const
{
    const Tensor &tensor = tensors_[request.tensor];
    const BlockId block = packs_[tensor.pack].first +
                          packs_.blocks_of(tensor, request.byte_begin, request.byte_count).first;
    const uint32_t allowed = packs_[tensor.pack].key.policy.allowed;
    PlaceId resident = kNoPlace;
    PlaceId best = kNoPlace;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (places_.is_nvme(place) || !places_.exists(place) || !places_[place].cpu_access)
            continue;
        const Replica &here = blocks_.replica(block, place);
        if (here.marks > 0 && blocks_[block].writers > 0) return place;
        if (resident == kNoPlace && !here.doomed && (here.valid || here.filling)) resident = place;
        // Prefers a place with a budget, then one that the policy allows, then the host.
        const auto rank = [&](PlaceId at) {
            const bool host = places_[at].tier == Tier::kHost;
            return std::tuple(places_.is_open(at), (allowed & (1u << at)) != 0, host);
        };
        if (best == kNoPlace || rank(place) > rank(best)) best = place;
    }
    return resident != kNoPlace ? resident : best;
}

// Checked once the locks are free: the previous holder may have written the contents.
Status TensorLocks::readable(const Fetch &fetch) const
{
    for (const Request &request : fetch.asked.requests) {
        const Tensor &tensor = tensors_[request.tensor];
        if (request.access == Access::kWrite) continue;
        if (request.access == Access::kWriteEmpty) {
            if (tensor.contents == Contents::kEmpty) continue;
            return Status::error(STW_ERROR_EXISTS, "%s has contents",
                                 tensor_text(tensor.spec.name).c_str());
        }
        if (!tensor.cause.ok()) return tensor.cause;
        // The library itself may fill an empty tensor piece by piece.
        const bool fills = request.access == Access::kReadWrite &&
                           (fetch.asked.claim != 0 || (fetch.asked.flags & kFetchInternal) != 0);
        if (tensor.contents == Contents::kEmpty && !fills) {
            Status status = Status::error(STW_ERROR_EMPTY,
                                          "%s is empty: it was never written, or was "
                                          "discarded; write it first, or create it with "
                                          "STW_TENSOR_ZERO",
                                          tensor_text(tensor.spec.name).c_str());
            status.mutable_detail().tensor = tensor.spec.name;
            return status;
        }
    }
    return {};
}

bool TensorLocks::may_lock(Fetch &fetch)
{
    const std::vector<Request> &requests = fetch.asked.requests;
    fetch.places.resize(requests.size());
    bool chosen = false;
    for (size_t i = 0; i < requests.size(); ++i) {
        const bool any = requests[i].place == kAnyCpuPlace;
        fetch.places[i] = any ? choose_cpu_place(requests[i]) : requests[i].place;
        chosen |= any;
    }
    for (size_t i = 0; chosen && i < requests.size(); ++i) {
        if (requests[i].place == kAnyCpuPlace) follow_neighbour(fetch, i);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
        fetch.conflict = i;
        if (conflicts_with(fetch, requests[i], fetch.places[i])) return false;
    }
    return true;
}

// If the core may choose, tensors that share a block are fetched to the same place.
void TensorLocks::follow_neighbour(Fetch &fetch, size_t index)
{
    const std::vector<Request> &requests = fetch.asked.requests;
    for (size_t i = 0; i < requests.size(); ++i) {
        const bool shares =
            tensors_[requests[i].tensor].pack == tensors_[requests[index].tensor].pack;
        const bool leads = requests[i].place != kAnyCpuPlace || i < index;
        if (i == index || !shares || !leads) continue;
        if (!places_[fetch.places[i]].cpu_access) continue;
        fetch.places[index] = fetch.places[i];
        return;
    }
}

// Refuses a call that wants to write a shared block at one place and use it at another.
Status TensorLocks::conflict_within(const Fetch &fetch) const
{
    const std::vector<Request> &requests = fetch.asked.requests;
    const auto elsewhere = [&](PlaceId place) { return place != fetch.places[0]; };
    if (std::none_of(fetch.places.begin(), fetch.places.end(), elsewhere)) return {};
    for (size_t i = 1; i < requests.size(); ++i) {
        const Tensor &one = tensors_[requests[i].tensor];
        const BlockRange range =
            packs_.blocks_of(one, requests[i].byte_begin, requests[i].byte_count);
        for (size_t j = 0; j < i; ++j) {
            const Tensor &other = tensors_[requests[j].tensor];
            if (other.pack != one.pack || fetch.places[i] == fetch.places[j]) continue;
            if (requests[i].access == Access::kRead && requests[j].access == Access::kRead)
                continue;
            const BlockRange second =
                packs_.blocks_of(other, requests[j].byte_begin, requests[j].byte_count);
            if (range.second <= second.first || second.second <= range.first) continue;
            return Status::error(STW_ERROR_BUSY,
                                 "%s and %s share a block and are asked for at two "
                                 "places in one call, at least one of them for writing; ask for "
                                 "both at one place, or in two calls",
                                 tensor_text(other.spec.name).c_str(),
                                 tensor_text(one.spec.name).c_str());
        }
    }
    return {};
}

bool TensorLocks::was_claimed_since(const Fetch &fetch) const
{
    if (!beside_readers(fetch)) return false;
    const Tensor &tensor = tensors_[fetch.asked.requests.front().tensor];
    return tensor.last_claim() != fetch.last_claim || tensor.holds_touches;
}

// Room is of no use any more: the tensor is written, or an update has it.
bool TensorLocks::is_overtaken(const Fetch &fetch) const
{
    const Request &request = fetch.asked.requests[fetch.conflict];
    return is_hint(fetch) && is_write(request) && !tensors_[request.tensor].hinted;
}

void TensorLocks::lock(Fetch &fetch)
{
    fetch.last_claim = tensors_[fetch.asked.requests.front().tensor].last_claim();
    for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
        const Request &request = fetch.asked.requests[i];
        Tensor &tensor = tensors_[request.tensor];
        const bool writes = request.access != Access::kRead;
        packs_[tensor.pack].writing += fetch.asked.claim != 0 || writes;
        if (fetch.asked.claim != 0) {
            STW_ASSERT(tensor.claim() == fetch.asked.claim);
            STW_ASSERT(!writes || is_exclusive(fetch.asked.claim));
            ++tensor.claim_users;
            tensor.stage = ClaimStage::kBegun;
        } else if (writes) {
            tensor.writer = true;
            tensor.hinted = is_hint(fetch);
        } else {
            ++tensor.readers;
        }
        if (writes) {
            for (PlaceId place = 0; place < places_.count(); ++place)
                gates_.close(request.tensor, place);
        }
        const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
        const BlockId first = packs_[tensor.pack].first;
        for (BlockId block = first + range.first; block < first + range.second; ++block) {
            ++blocks_.replica(block, fetch.places[i]).marks;
            if (!writes) continue;
            ++blocks_[block].writers;
            blocks_[block].writer_place = fetch.places[i];
        }
    }
}

void TensorLocks::unlock(const Request &request, PlaceId place, ClaimId claim)
{
    Tensor &tensor = tensors_[request.tensor];
    const bool writes = request.access != Access::kRead;
    packs_[tensor.pack].writing -= claim != 0 || writes;
    if (claim != 0) {
        STW_ASSERT(tensor.claim_users > 0);
        --tensor.claim_users;
    } else if (writes) {
        STW_ASSERT(tensor.writer);
        tensor.writer = tensor.hinted = false;
    } else {
        STW_ASSERT(tensor.readers > 0);
        --tensor.readers;
    }
    const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
    const BlockId first = packs_[tensor.pack].first;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        STW_ASSERT(blocks_.replica(block, place).marks > 0);
        --blocks_.replica(block, place).marks;
        if (writes) --blocks_[block].writers;
    }
}

// What keeps the fetch from its locks; empty if nothing does.
std::string TensorLocks::describe_conflict(const Fetch &fetch) const
{
    if (fetch.lacks != Lacks::kLocks || fetch.places.empty()) return "";
    const Request &request = fetch.asked.requests[fetch.conflict];
    const Tensor &tensor = tensors_[request.tensor];
    uint32_t pins = 0;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (!places_.is_nvme(place) && places_.exists(place))
            pins += tensors_.door(request.tensor, place).gate.pins();
    }
    std::string text = format_text(" (%s: ", tensor_text(tensor.spec.name).c_str());
    if (tensor.bars(fetch.asked.claim, is_write(request))) {
        text += format_text("%zu updates, sums, copies or commits have it or are next; ",
                            tensor.claims.size());
    }
    if (tensor.writer) text += "a view to write it is open; ";
    if (tensor.readers + pins > 0) {
        text += format_text("%u views to read it are open; ", tensor.readers + pins);
    }
    const PlaceId place = fetch.places[fetch.conflict];
    const BlockRange range = packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
    for (uint32_t index = range.first; index < range.second; ++index) {
        const BlockId block = packs_[tensor.pack].first + index;
        const bool writes = request.access != Access::kRead;
        if (!blocks_.block_in_the_way(blocks_[block], block, writes, place)) continue;
        text += "a tensor in the same block is in use at another tier; ";
        break;
    }
    text.resize(text.size() - 2);
    return text + ")";
}

}  // namespace stepwell::residency
