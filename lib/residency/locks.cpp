// SPDX-License-Identifier: Apache-2.0
// Coherence: many readers or one writer per tensor, and one place at a time for a block that is
// written. Locks are taken for all requests of a fetch at once, or for none.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <tuple>

namespace stepwell::residency {

bool Core::is_used_elsewhere(BlockId block, PlaceId place) const
{
    for (PlaceId other = 0; other < places(); ++other) {
        if (other != place && replica(block, other).marks > 0) return true;
    }
    return false;
}

// Pins in gates count as readers: of this tensor anywhere; for a writer, of its neighbours at other
// places too.
// The gates are closed before they are counted: nobody slips in between.
bool Core::gates_in_the_way(TensorId id, const Fetch &fetch, const Request &request, PlaceId place)
{
    const bool alone = request.access != Access::kRead || fetch.asked.claim != 0;
    if (!alone) return false;
    uint32_t pins = 0;
    const Pack &pack = packs_[tensors_[id].pack];
    for (PlaceId other = 0; other < places(); ++other) {
        const uint32_t own = close_gate(id, other);
        if (!beside_readers(fetch) || other != place) pins += own;
        const bool neighbours = request.access != Access::kRead && other != place;
        if (!neighbours || !uses_gates(pack, other)) continue;
        for (const TensorId at : pack.tensors) {
            if (at != id) pins += close_gate(at, other);
        }
    }
    return pins > 0;
}

bool Core::conflicts_with(const Fetch &fetch, const Request &request, PlaceId place)
{
    const Tensor &tensor = tensors_[request.tensor];
    const ClaimId claim = fetch.asked.claim;
    const bool writes = request.access != Access::kRead;
    if (claim != 0 && tensor.claim() == claim) {
        if (tensor.readers > 0 || tensor.writer) return true;
    } else {
        if (tensor.claim() != 0 || tensor.writer) return true;
        if (writes && tensor.readers > 0 && !beside_readers(fetch)) return true;
    }
    if (gates_in_the_way(request.tensor, fetch, request, place)) return true;
    const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
    const BlockId first = packs_[tensor.pack].first;
    for (uint32_t index = range.first; index < range.second; ++index) {
        if (block_in_the_way(blocks_[first + index], first + index, writes, place)) return true;
    }
    return false;
}

PlaceId Core::choose_cpu_place(const Request &request) const
{
    const Tensor &tensor = tensors_[request.tensor];
    const BlockId block =
        packs_[tensor.pack].first + blocks_of(tensor, request.byte_begin, request.byte_count).first;
    const uint32_t allowed = packs_[tensor.pack].key.policy.allowed;
    PlaceId resident = kNoPlace;
    PlaceId best = kNoPlace;
    for (PlaceId place = 0; place < places(); ++place) {
        if (is_nvme(place) || !exists(place) || !config_.places[place].cpu_access) continue;
        const Replica &here = replica(block, place);
        if (here.marks > 0 && blocks_[block].writers > 0) return place;
        if (resident == kNoPlace && !here.doomed && (here.valid || here.filling)) resident = place;
        // One with a budget, then one that the policy allows, then the host before a device.
        const auto rank = [&](PlaceId at) {
            const bool host = config_.places[at].tier == Tier::kHost;
            return std::tuple(is_open(at), (allowed & (1u << at)) != 0, host);
        };
        if (best == kNoPlace || rank(place) > rank(best)) best = place;
    }
    return resident != kNoPlace ? resident : best;
}

// Contents are judged when the locks are free, since whoever had them may have written meanwhile.
Status Core::readable(const Fetch &fetch) const
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
        // The library itself may fill what is empty piece by piece.
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

bool Core::may_lock(Fetch &fetch)
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

// Where the choice is ours, tensors that share a block go to the same place.
void Core::follow_neighbour(Fetch &fetch, size_t index)
{
    const std::vector<Request> &requests = fetch.asked.requests;
    for (size_t i = 0; i < requests.size(); ++i) {
        const bool shares =
            tensors_[requests[i].tensor].pack == tensors_[requests[index].tensor].pack;
        const bool leads = requests[i].place != kAnyCpuPlace || i < index;
        if (i == index || !shares || !leads) continue;
        if (!config_.places[fetch.places[i]].cpu_access) continue;
        fetch.places[index] = fetch.places[i];
        return;
    }
}

// A block that one call wants to write here and use there, in ranges of tensors that share it.
Status Core::conflict_within(const Fetch &fetch) const
{
    const std::vector<Request> &requests = fetch.asked.requests;
    for (size_t i = 1; i < requests.size(); ++i) {
        const Tensor &one = tensors_[requests[i].tensor];
        const BlockRange range = blocks_of(one, requests[i].byte_begin, requests[i].byte_count);
        for (size_t j = 0; j < i; ++j) {
            const Tensor &other = tensors_[requests[j].tensor];
            if (other.pack != one.pack || fetch.places[i] == fetch.places[j]) continue;
            if (requests[i].access == Access::kRead && requests[j].access == Access::kRead)
                continue;
            const BlockRange second =
                blocks_of(other, requests[j].byte_begin, requests[j].byte_count);
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

void Core::lock(Fetch &fetch)
{
    for (size_t i = 0; i < fetch.asked.requests.size(); ++i) {
        const Request &request = fetch.asked.requests[i];
        Tensor &tensor = tensors_[request.tensor];
        const bool writes = request.access != Access::kRead;
        packs_[tensor.pack].writing += fetch.asked.claim != 0 || writes;
        if (fetch.asked.claim != 0) {
            STW_ASSERT(tensor.claim() == fetch.asked.claim);
            ++tensor.claim_users;
        } else if (writes) {
            tensor.writer = true;
        } else {
            ++tensor.readers;
        }
        if (writes) {
            for (PlaceId place = 0; place < places(); ++place) close_gate(request.tensor, place);
        }
        const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
        const BlockId first = packs_[tensor.pack].first;
        for (BlockId block = first + range.first; block < first + range.second; ++block) {
            ++replica(block, fetch.places[i]).marks;
            if (!writes) continue;
            ++blocks_[block].writers;
            blocks_[block].writer_place = fetch.places[i];
        }
    }
}

void Core::unlock(const Request &request, PlaceId place, ClaimId claim)
{
    Tensor &tensor = tensors_[request.tensor];
    const bool writes = request.access != Access::kRead;
    packs_[tensor.pack].writing -= claim != 0 || writes;
    if (claim != 0) {
        STW_ASSERT(tensor.claim_users > 0);
        --tensor.claim_users;
    } else if (writes) {
        STW_ASSERT(tensor.writer);
        tensor.writer = false;
    } else {
        STW_ASSERT(tensor.readers > 0);
        --tensor.readers;
    }
    const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
    const BlockId first = packs_[tensor.pack].first;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        STW_ASSERT(replica(block, place).marks > 0);
        --replica(block, place).marks;
        if (writes) --blocks_[block].writers;
    }
}

ClaimId Core::claim(bool alone)
{
    next_claim_ += 2;
    return next_claim_ | (alone ? kAloneClaim : 0);
}

void Core::claim_tensor(ClaimId claim, TensorId id)
{
    Tensor &tensor = tensors_[id];
    tensor.claims.push_back(claim);
    packs_[tensor.pack].claimed += tensor.claims.size() == 1;
    for (PlaceId place = 0; place < places(); ++place) close_gate(id, place);
    conceal(id);
}

void Core::unclaim_tensor(ClaimId claim, TensorId id, bool empties, Commands &out)
{
    Tensor &tensor = tensors_[id];
    const auto mine = std::find(tensor.claims.begin(), tensor.claims.end(), claim);
    STW_ASSERT(mine != tensor.claims.end());
    const bool held = mine == tensor.claims.begin();
    STW_ASSERT(!held || tensor.claim_users == 0);
    if (held && empties && tensor.readers == 0 && !tensor.writer) {
        ++tensor.version;
        drop_contents(id, out);
    }
    tensor.claims.erase(mine);
    if (tensor.claims.empty()) end_claims(packs_[tensor.pack]);
    conceal(id);  // what it missed, of which the last view by a gate ended after the claim came
    for (PlaceId place = 0; place < places(); ++place) update_gate(id, place);
    advance(out);
}

void Core::end_claims(Pack &pack)
{
    STW_ASSERT(pack.claimed > 0);
    if (--pack.claimed > 0 || !std::exchange(pack.clean_late, false)) return;
    for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
        for (PlaceId place = 0; place < places(); ++place) {
            if (!is_nvme(place) && replica(block, place).valid) clean_soon(block, place);
        }
    }
    may_write_back_ = true;
}

ClaimId Core::claimed_by(TensorId id) const
{
    return tensors_[id].claim();
}

bool Core::has_claims() const
{
    for (TensorId id = 0; id < tensors_.size(); ++id) {
        if (!tensors_[id].claims.empty()) return true;
    }
    return false;
}

// All of it at the place, in one run where the place does not map.
bool Core::lies_whole(TensorId id, PlaceId place) const
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    const Slot slot = replica(first + range.first, place).slot;
    for (uint32_t index = range.first; index < range.second; ++index) {
        const Replica &here = replica(first + index, place);
        const Block &block = blocks_[first + index];
        if (!here.valid || here.filling || here.doomed) return false;
        if (guards(first + index, place) && !here.mapped) return false;
        if (block.writers > 0 && block.writer_place != place) return false;
        if (!config_.places[place].maps && here.slot != slot + (index - range.first)) return false;
    }
    return true;
}

// Opens the gate when readers may pass by without the core. Only a grant or an end of exclusive use
// opens: what merely lies there is opened by the first fetch that asks.
void Core::update_gate(TensorId id, PlaceId place)
{
    const Tensor &tensor = tensors_[id];
    if (is_nvme(place) || !exists(place)) return;
    const bool free = tensor.alive && tensor.contents == Contents::kValid && tensor.cause.ok() &&
                      !tensor.writer && tensor.claim() == 0 && tensor.waiting == 0;
    if (free && lies_whole(id, place)) {
        const Grant here = location(id, place);
        door(id, place).offset.store(here.slot * config_.block_bytes + here.slot_offset,
                                     std::memory_order_relaxed);
        open_gate(id, place);
    } else {
        close_gate(id, place);
    }
}

void Core::open_gate(TensorId id, PlaceId place)
{
    Gate &it = gate(id, place);
    if (it.is_open()) return;
    note_draining(id, place, false);
    ++packs_[tensors_[id].pack].gates_open[place];
    it.open();
}

uint32_t Core::close_gate(TensorId id, PlaceId place)
{
    if (is_nvme(place) || !exists(place)) return 0;
    Gate &it = gate(id, place);
    if (it.is_open()) --packs_[tensors_[id].pack].gates_open[place];
    const uint32_t pins = it.close();
    note_draining(id, place, pins > 0);
    return pins;
}

// Only when nobody pins.
bool Core::try_close_gate(TensorId id, PlaceId place)
{
    Gate &it = gate(id, place);
    const bool was_open = it.is_open();
    if (!it.try_close_idle()) return false;
    if (was_open) --packs_[tensors_[id].pack].gates_open[place];
    note_draining(id, place, false);
    return true;
}

void Core::note_draining(TensorId id, PlaceId place, bool draining)
{
    Tensor &tensor = tensors_[id];
    const uint32_t bit = 1u << place;
    if (((tensor.draining & bit) != 0) == draining) return;
    tensor.draining ^= bit;
    uint32_t &count = packs_[tensor.pack].gates_draining[place];
    draining ? ++count : --count;
}

}  // namespace stepwell::residency
