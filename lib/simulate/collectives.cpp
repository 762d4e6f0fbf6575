// SPDX-License-Identifier: Apache-2.0
// The gathers and sums of ranks, in the order in which all of them call, one at a time: a gather
// when its ledger starts it, from slices that are fetched once there is room for the gathered
// tensor; a sum from the gradient that was computed. A runtime does the same with bytes.
#include "lib/simulate/rank.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::simulate {
namespace {

using gathering::WholeId;
using residency::Access;

constexpr uint64_t kOwner = kLanes + 1;  // owner of fetches that are not of a lane
constexpr uint32_t kUrgency = 3;         // of work that is time, not bytes

}  // namespace

Status World::add_wholes(Rank &rank)
{
    for (uint32_t number = 0; number < layout_.tiles.size(); ++number) {
        const Tile &tile = layout_.tiles[number];
        if (tile.whole == residency::kNone) continue;
        const auto bytes = [this](TensorId tensor) { return layout_.specs[tensor].bytes; };
        Result<WholeId> whole = rank.gathers.add(
            layout_.specs[tile.whole].name,
            {tile.parameter, tile.whole, bytes(tile.parameter), bytes(tile.whole)});
        if (!whole.ok()) return std::move(whole.status());
        rank.tiles[number].whole = whole.value();
        rank.tile_of.push_back(number);
    }
    return {};
}

// ----------------------------------------------------------------------- calls of the program ----

void World::begin_gather(Rank &rank, OpId id)
{
    const WholeId whole = rank.tiles[program_.ops[id].tile].whole;
    const uint64_t call = rank.gathers.fetch({whole}, Access::kRead, kOwner, rank.out);
    rank.calls[call] = id;
    while (rank.collectives.gathers < rank.gathers.ledger().last_gather()) {
        auto work = std::make_unique<Collective>();
        work->gather = ++rank.collectives.gathers;
        work->tile = rank.tile_of[rank.gathers.queued(work->gather).wholes[0]];
        rank.collectives.waiting.push_back(std::move(work));
    }
}

void World::let_go(Rank &rank, uint32_t tile)
{
    std::vector<residency::Grant> &open = rank.tiles[tile].views;
    STW_ASSERT(!open.empty());
    rank.gathers.release(rank.tiles[tile].whole, Access::kRead, &open.back(), rank.out);
    open.pop_back();
}

void World::begin_sum(Rank &rank, const Op &op)
{
    const Tile &tile = layout_.tiles[op.tile];
    auto work = std::make_unique<Collective>();
    work->tile = op.tile;
    work->claim = rank.core.claim();
    for (const TensorId tensor : {tile.gradient_whole, tile.gradient})
        rank.core.claim_tensor(work->claim, tensor);
    rank.collectives.waiting.push_back(std::move(work));
    prepare(rank, *rank.collectives.waiting.back(),
            {{tile.gradient_whole, Access::kRead, kDevicePlace, 0,
              layout_.specs[tile.gradient_whole].bytes},
             {tile.gradient, op.again ? Access::kReadWrite : Access::kWrite, kDevicePlace, 0,
              layout_.specs[tile.gradient].bytes}});
}

// From here on gathers wait for their tile's update, and earlier gathered tensors are invalid.
void World::call_update(Rank &rank, OpId id)
{
    const Op &op = program_.ops[id];
    const Tile &tile = layout_.tiles[op.tile];
    const residency::ClaimId claim = rank.core.claim();
    rank.tiles[op.tile].updating[op.again] = claim;
    for (const TensorId tensor : {tile.parameter, tile.gradient, tile.state})
        rank.core.claim_tensor(claim, tensor);
    if (op.again) rank.core.claim_tensor(claim, tile.kept);
    rank.updates.called.insert({program_.ops[id + 1].step, op.tile, id + 1});
    if (tile.whole != residency::kNone) rank.gathers.update(rank.tiles[op.tile].whole, rank.out);
}

// ------------------------------------------------------------------------------- collectives ----

Status World::pump_gathers(Rank &rank)
{
    gathering::WholeCommands commands = rank.gathers.pump();
    for (gathering::StartGather &start : commands.starts) {
        if (!start.status.ok()) return std::move(start.status);
        const auto work =
            std::find_if(rank.collectives.waiting.begin(), rank.collectives.waiting.end(),
                         [&start](const auto &at) { return at->gather == start.gather; });
        STW_ASSERT(work != rank.collectives.waiting.end());
        (*work)->start = std::move(start);
        (*work)->claim = (*work)->start.claim;
        const TensorId slice = layout_.tiles[(*work)->tile].parameter;
        prepare(rank, **work,
                {{slice, Access::kRead, kDevicePlace, 0, layout_.specs[slice].bytes}});
    }
    for (const gathering::WholeGranted &granted : commands.granted) {
        const auto call = rank.calls.find(granted.call);
        STW_ASSERT(call != rank.calls.end());
        rank.tiles[program_.ops[call->second].tile].views.push_back(granted.grants[0]);
        done(rank, call->second);
        rank.calls.erase(call);
    }
    if (!commands.refused.empty()) return std::move(commands.refused.front().status);
    advance_collectives(rank);
    return {};
}

// Fetches to the device what the collective reads and writes on this rank.
void World::prepare(Rank &rank, Collective &work, std::vector<residency::Request> requests)
{
    residency::FetchAsked asked;
    asked.requests = requests;
    asked.flags = residency::kFetchWaitRoom;
    asked.owner = kOwner;
    asked.claim = work.claim;
    rank.trace.fetched(0, schedule::Lane::kProgram, requests.data(), requests.size(), now_);
    work.requests = std::move(requests);
    work.preparing = rank.core.fetch(asked, rank.out);
}

bool World::take_prepared(Rank &rank, const residency::Granted &granted)
{
    const auto work = std::find_if(
        rank.collectives.waiting.begin(), rank.collectives.waiting.end(),
        [&granted](const auto &at) { return !at->prepared && at->preparing == granted.fetch; });
    if (work == rank.collectives.waiting.end()) return false;
    (*work)->grants = granted.grants;
    (*work)->prepared = true;
    rank.tiles[(*work)->tile].arrival.slice = now_;
    return true;
}

void World::advance_collectives(Rank &rank)
{
    if (rank.collectives.waiting.empty()) return;
    Collective &front = *rank.collectives.waiting.front();
    if (!front.prepared || front.running) return;
    front.running = true;
    arrive(rank);
}

// Ranks that hold slices of the same tensor are a group; model-parallel neighbours are in
// different groups.
void World::arrive(Rank &rank)
{
    const uint32_t groups = static_cast<uint32_t>(ranks_.size()) / group_ranks_;
    const uint64_t key = rank.collectives.begun++ * groups + rank.number % groups;
    std::vector<uint32_t> &there = arrived_[key];
    there.push_back(rank.number);
    if (there.size() < group_ranks_) return;
    for (const uint32_t member : there) {
        const Collective &work = *ranks_[member]->collectives.waiting.front();
        const std::vector<uint64_t> &takes =
            work.gather != 0 ? program_.gather_ns : program_.sum_ns;
        links_.submit(member, kCollectiveTag, {fabric_}, takes[work.tile], kUrgency, now_);
    }
    arrived_.erase(key);
}

void World::end_collective(Rank &rank)
{
    const std::unique_ptr<Collective> work = std::move(rank.collectives.waiting.front());
    rank.collectives.waiting.pop_front();
    for (size_t i = 0; i < work->requests.size(); ++i) {
        const residency::Request &request = work->requests[i];
        const residency::Grant &grant = work->grants[i];
        // A slice is evicted first; the gradient before the sum is dead.
        const bool slice = request.tensor != layout_.tiles[work->tile].gradient_whole;
        if (grant.by_gate) {
            rank.core.gate(request.tensor, grant.place).unpin();
            rank.core.gate_idle(request.tensor, rank.out);
            if (slice) rank.core.release_hint(request.tensor, grant.place, true, rank.out);
        } else {
            residency::Release release;
            release.tensor = request.tensor;
            release.access = request.access;
            release.place = grant.place;
            release.byte_count = request.byte_count;
            release.far = slice;
            release.claim = work->claim;
            rank.core.release(release, rank.out);
        }
        if (work->gather == 0)
            rank.core.unclaim_tensor(work->claim, request.tensor, !slice, rank.out);
    }
    if (work->gather != 0) {
        rank.gathers.gather_done(work->gather, {}, false, rank.out);
    } else {
        const std::vector<OpId> &sums = program_.lanes[static_cast<size_t>(LaneId::kSum)];
        done(rank, sums[rank.lanes[static_cast<size_t>(LaneId::kSum)].cursor]);
    }
}

// Splits a computation's wait for a gathered tensor: for the update of its tile, then for this
// rank's slice, then for the collective and those before it. A slice whose update was pending could
// not come earlier, so the wait for it belongs to the update.
void World::blame_gather(Rank &rank, uint32_t tile, Instant begin, Instant end)
{
    const Rank::Arrival &arrival = rank.tiles[tile].arrival;
    const Instant updated = std::clamp(arrival.updated, begin, end);
    const Instant here = std::clamp(arrival.slice, updated, end);
    const auto add = [&rank](Cause cause, Instant time) {
        rank.open.stall_ns[static_cast<size_t>(cause)] += time;
    };
    add(Cause::kUpdate, updated - begin);
    add(updated > begin ? Cause::kUpdate : Cause::kParameters, here - updated);
    add(Cause::kCollectives, end - here);
}

}  // namespace stepwell::simulate
