// SPDX-License-Identifier: Apache-2.0
// Computations and transfers share the links' event queue: a computation is time on a link of the
// rank's own. The tag of an event says what has ended.
#include "lib/simulate/rank.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stepwell::simulate {
namespace {

using residency::Access;
using residency::Commands;
using residency::Core;
using residency::Transfer;
using residency::TransferKind;

constexpr double kBytesPerSOfClock = 1e9;  // one byte is one nanosecond
constexpr uint32_t kBlameDepthMax = 24;
constexpr uint32_t kUrgencyOfTime = 3;
constexpr double kGolden = 0.6180339887498949;  // whose multiples are spread evenly

}  // namespace

World::World(const Machine &machine, const Layout &layout, const Program &program,
             const WorldOptions &options)
    : machine_(machine),
      layout_(layout),
      program_(program),
      options_(options),
      links_(machine, options.folded ? 1 : layout.ranks, options.folded)
{
    paths_.resize(std::max<size_t>(machine.path_shares.size(), 1));
    for (uint32_t storage = 0; storage < paths_.size(); ++storage)
        for (uint32_t route = 0; route < kRoutes; ++route)
            paths_[storage][route] = links_.path_of(static_cast<Route>(route), storage + 1);
    fabric_ = links_.add_own(kBytesPerSOfClock, 0);
    clock_ = links_.add_own(kBytesPerSOfClock, 0);
    for (uint32_t lane = 1; lane < kLanes; ++lane) links_.add_own(kBytesPerSOfClock, 0);
    group_ranks_ = options.folded ? 1 : layout.gather_ranks;
    for (uint32_t rank = 0; rank < (options.folded ? 1 : layout.ranks); ++rank)
        ranks_.push_back(std::make_unique<Rank>(*this, rank, layout, program));
}

World::~World() = default;

const RankResult &World::result(uint32_t rank) const
{
    return ranks_[rank]->result;
}

Status World::run()
{
    filling_ = true;
    for (auto &rank : ranks_) STW_TRY(fill(*rank));
    filling_ = false;
    for (auto &rank : ranks_) {
        if (rank->lookahead) take_bandwidths(*rank);
        STW_TRY(advance(*rank));
    }
    STW_TRY(settle_all());
    for (auto &rank : ranks_) {
        if (rank->steps == 0 || rank->lanes[0].cursor < program_.lanes[0].size()) {
            return Status::error(STW_ERROR_BUDGET,
                                 "rank %u cannot go on after %.3f s: nothing moves, and %s",
                                 rank->number, static_cast<double>(now_) / 1e9,
                                 rank->core.describe_waiting(8).c_str());
        }
        for (PlaceId place = 0; place < kSimulatedPlaces; ++place)
            rank->result.peak_blocks[place] = rank->core.usage(place).peak_blocks;
    }
    return {};
}

// Until all ranks have computed their last operation; later updates do not matter.
Status World::settle_all()
{
    links_.flush(now_);
    while (links_.in_flight() > timers_) {
        now_ = links_.next();
        ended_.clear();
        links_.take(now_, &ended_);
        const std::vector<SharedLinks::Ended> ended = std::move(ended_);
        for (const SharedLinks::Ended &end : ended) STW_TRY(settle(end));
        if (links_.next() != now_) links_.flush(now_);
        const bool over = std::all_of(ranks_.begin(), ranks_.end(), [this](const auto &rank) {
            return rank->lanes[0].cursor == program_.lanes[0].size();
        });
        if (over) return {};
    }
    return {};
}

Status World::settle(const SharedLinks::Ended &ended)
{
    Rank &rank = *ranks_[ended.rank];
    ++events_;
    if (ended.tag == kTimerTag) {
        --timers_;
        if (rank.timer_at != now_) return {};  // an earlier one was set since
        rank.timer_at = residency::kNever;
    } else if (ended.tag == kCollectiveTag) {
        end_collective(rank);
        STW_TRY(execute(rank));
    } else if ((ended.tag & kOpTag) != 0) {
        done(rank, static_cast<OpId>(ended.tag & ~kOpTag));
    } else {
        --rank.in_flight;
        rank.core.transfer_done(ended.tag, {}, rank.out);
        STW_TRY(execute(rank));
        end_drain(rank);
    }
    STW_TRY(advance(rank));
    return look_ahead(rank);
}

Status World::advance(Rank &rank)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (const LaneId lane : {LaneId::kCompute, LaneId::kSum, LaneId::kAfter, LaneId::kUpdate})
            STW_TRY(advance_lane(rank, lane, &moved));
        STW_TRY(advance_updates(rank, &moved));
    }
    return {};
}

OpId World::next_of(Rank &rank, LaneId lane) const
{
    Rank::Updates &updates = rank.updates;
    if (lane == LaneId::kUpdate && updates.working == kNoOp && !updates.arrived.empty()) {
        updates.working = updates.arrived.begin()->back() + 1;
        updates.arrived.erase(updates.arrived.begin());
    }
    if (lane == LaneId::kUpdate) return updates.working;
    const std::vector<OpId> &ops = program_.lanes[static_cast<size_t>(lane)];
    const size_t cursor = rank.lanes[static_cast<size_t>(lane)].cursor;
    return cursor < ops.size() ? ops[cursor] : kNoOp;
}

// Their fetches.
Status World::advance_updates(Rank &rank, bool *moved)
{
    auto &called = rank.updates.called;
    for (auto at = called.begin(); at != called.end();) {
        const OpId id = at->back();
        if (rank.updates.in_flight >= program_.ops[id].at_once) return {};
        if (!may_start(rank, program_.ops[id])) {
            ++at;
            continue;
        }
        at = called.erase(at);
        ++rank.updates.in_flight;
        *moved = true;
        STW_TRY(start(rank, id));
    }
    return {};
}

// All updates have ended, and are written.
void World::end_drain(Rank &rank)
{
    const bool updates = !rank.updates.called.empty() || rank.updates.in_flight > 0;
    if (rank.drains == kNoOp || rank.in_flight > 0 || updates) return;
    done(rank, std::exchange(rank.drains, kNoOp));
}

bool World::may_start(const Rank &rank, const Op &op) const
{
    return std::all_of(op.after.begin(), op.after.end(),
                       [&rank](OpId id) { return id == kNoOp || rank.ops.is_done[id]; });
}

Status World::advance_lane(Rank &rank, LaneId number, bool *moved)
{
    Rank::LaneState &lane = rank.lanes[static_cast<size_t>(number)];
    while (!lane.busy) {
        const OpId id = next_of(rank, number);
        if (id == kNoOp) return {};
        const Op &op = program_.ops[id];
        if (!lane.waits) {
            lane.waits = true;
            lane.since = now_;
        }
        if (!may_start(rank, op)) return {};
        if (number == LaneId::kCompute && now_ > lane.since) {
            const auto last = std::find_if(op.after.begin(), op.after.end(), [&](OpId after) {
                return after != kNoOp && rank.number == 0 && rank.ops.ended[after] == now_;
            });
            if (last != op.after.end()) blame(rank, *last, lane.since, now_, 0);
        }
        lane.waits = false;
        lane.busy = true;
        lane.since = now_;
        *moved = true;
        STW_TRY(start(rank, id));
    }
    return {};
}

Status World::start(Rank &rank, OpId id)
{
    const Op &op = program_.ops[id];
    OpId &last = rank.lanes[static_cast<size_t>(op.lane)].last;
    if (rank.number == 0) rank.ops.began[id] = now_;
    if (rank.number == 0) rank.ops.before[id] = last;
    last = id;
    ++events_;
    switch (op.what) {
    case What::kFetch: return fetch(rank, id);
    case What::kRelease:
        STW_TRY(release(rank, op));
        done(rank, id);
        return execute(rank);
    case What::kCompute: {
        const uint32_t clock = clock_ + static_cast<uint32_t>(op.lane);
        double slow = 1;
        if (rank.number < options_.slowness.size()) slow = options_.slowness[rank.number];
        const auto takes = static_cast<uint64_t>(static_cast<double>(op.duration_ns) * slow);
        const std::vector<uint32_t> memory = links_.memory_path();
        if (op.memory_bytes > 0 && !memory.empty())
            links_.submit(rank.number, kOpTag | id, memory, op.memory_bytes, kUrgencyOfTime, now_);
        else
            links_.submit(rank.number, kOpTag | id, {clock}, takes, kUrgencyOfTime, now_);
        return {};
    }
    case What::kGather: begin_gather(rank, id); return execute(rank);
    case What::kLetGo:
        let_go(rank, op.tile);
        done(rank, id);
        return execute(rank);
    case What::kSum:
        begin_sum(rank, op);
        done(rank, id);
        return execute(rank);
    case What::kSummed: return {};  // ended by end_collective()
    case What::kUpdate:
        call_update(rank, id);
        done(rank, id);
        return execute(rank);
    case What::kDiscard:
        STW_TRY(rank.core.discard(op.uses[0].tensor, rank.out));
        done(rank, id);
        return execute(rank);
    case What::kDrain:
        rank.drains = id;
        end_drain(rank);
        return {};
    case What::kStepBegins:
        begin_step(rank);
        done(rank, id);
        return {};
    }
    return {};
}

void World::begin_step(Rank &rank)
{
    if (rank.steps > 0) rank.trace.end_step(0, now_, true);
    rank.trace.begin_step(0, now_);
    StepResult ended = std::exchange(rank.open, {});
    ended.step_ns = now_ - std::exchange(rank.begun, now_);
    ended.gathers = rank.collectives.gathers - rank.collectives.gathers_before;
    rank.collectives.gathers_before = rank.collectives.gathers;
    if (rank.number == 0) ended.link_bytes = links_.take_use(now_);
    if (rank.steps++ > 0) rank.result.steps.push_back(std::move(ended));
}

void World::done(Rank &rank, OpId id)
{
    rank.ops.is_done[id] = true;
    if (rank.number == 0) rank.ops.ended[id] = now_;
    const Op &op = program_.ops[id];
    if (op.lane == LaneId::kUpdateFetch) {
        rank.updates.arrived.insert({op.step, op.tile, id});
        return;
    }
    Rank::LaneState &lane = rank.lanes[static_cast<size_t>(op.lane)];
    lane.busy = false;
    if (op.lane == LaneId::kUpdate)
        rank.updates.working = op.ends ? kNoOp : id + 1;
    else
        ++lane.cursor;
    if (op.ends) {
        --rank.updates.in_flight;
        end_drain(rank);
    }
    if (op.lane != LaneId::kCompute || now_ == lane.since) return;
    if (op.what != What::kCompute) rank.trace.waited(0, lane.since, now_);
    if (rank.number != 0) return;
    if (op.what == What::kGather) blame_gather(rank, op.tile, lane.since, now_);
    if (op.what == What::kFetch)
        rank.open.stall_ns[static_cast<size_t>(cause_of(rank, id))] += now_ - lane.since;
}

// A parameter whose update ends while the computation waits for it could not come earlier: its
// transfer belongs to the wait for the update.
Cause World::cause_of(const Rank &rank, OpId fetch) const
{
    const Op &op = program_.ops[fetch];
    if (op.cause != Cause::kParameters || op.after[0] == kNoOp) return op.cause;
    const bool pending = rank.ops.ended[op.after[0]] == rank.ops.began[fetch];
    return pending ? Cause::kUpdate : op.cause;
}

Status World::fetch(Rank &rank, OpId id)
{
    const Op &op = program_.ops[id];
    residency::FetchAsked asked;
    asked.flags = residency::kFetchWaitRoom;
    asked.owner = static_cast<uint64_t>(op.lane) + 1;
    for (uint8_t i = 0; i < op.use_count; ++i) {
        const Use &use = op.uses[i];
        asked.requests.push_back(
            {use.tensor, use.access, use.place, 0, layout_.specs[use.tensor].bytes});
    }
    if (op.lane == LaneId::kUpdateFetch) asked.claim = rank.tiles[op.tile].updating[op.again];
    // As in a runtime, until the program waits for it.
    const bool updates = op.lane == LaneId::kUpdateFetch;
    if (updates) asked.urgency = residency::Class::kHint;
    rank.trace.fetched(0, updates ? schedule::Lane::kUpdate : schedule::Lane::kProgram,
                       asked.requests.data(), asked.requests.size(), now_);
    rank.fetches[rank.core.fetch(asked, rank.out)] = id;
    return execute(rank);
}

Status World::release(Rank &rank, const Op &op)
{
    const residency::ClaimId claim =
        op.lane == LaneId::kUpdate ? rank.tiles[op.tile].updating[op.again] : 0;
    for (uint8_t i = 0; i < op.use_count; ++i) {
        const TensorId tensor = op.uses[i].tensor;
        std::vector<View> &views = rank.views[tensor];
        STW_ASSERT(!views.empty());
        const View view = views.front();
        views.erase(views.begin());
        const PlaceId place = view.use.place;
        bool discards = op.discard;
        if (view.by_gate) {
            rank.core.gate(tensor, place).unpin();
            rank.core.gate_idle(tensor, rank.out);
            if (op.far) rank.core.release_hint(tensor, place, true, rank.out);
        } else {
            residency::Release release;
            release.tensor = tensor;
            release.access = view.use.access;
            release.place = place;
            release.byte_count = layout_.specs[tensor].bytes;
            release.far = op.far;
            release.discard = op.discard && release.access != Access::kRead;
            release.claim = claim;
            rank.core.release(release, rank.out);
            discards = op.discard && !release.discard;
        }
        if (claim != 0) {
            rank.core.unclaim_tensor(claim, tensor, discards, rank.out);
            if (tensor == layout_.tiles[op.tile].parameter)
                rank.tiles[op.tile].arrival.updated = now_;
        } else if (discards) {
            STW_TRY(rank.core.discard(tensor, rank.out));
        }
    }
    return {};
}

Status World::execute(Rank &rank)
{
    rank.loop.run();
    return std::exchange(rank.failure, {});
}

void World::Rank::promote(residency::TransferId id)
{
    world.links_.promote(number, id, static_cast<uint32_t>(residency::Class::kDemand));
}

bool World::Rank::granted(residency::Granted &granted, Commands &)
{
    if (world.filling_) {
        filled = std::move(granted.grants);
        return true;
    }
    if (world.end_hint(*this, granted.fetch, {})) return true;
    if (!world.take_prepared(*this, granted)) world.answer(*this, granted);
    return true;
}

bool World::Rank::refused(residency::Refused &refused, Commands &)
{
    if (!world.end_hint(*this, refused.fetch, refused.status)) failure = std::move(refused.status);
    return true;
}

void World::Rank::after_round(Instant, Commands &)
{
    if (Status status = world.pump_gathers(*this); !status.ok()) failure = std::move(status);
}

void World::answer(Rank &rank, const residency::Granted &granted)
{
    const auto found = rank.fetches.find(granted.fetch);
    STW_ASSERT(found != rank.fetches.end());
    const Op &op = program_.ops[found->second];
    for (uint8_t i = 0; i < op.use_count; ++i) {
        Use use = op.uses[i];
        use.place = granted.grants[i].place;
        rank.views[use.tensor].push_back({use, granted.grants[i].by_gate});
    }
    done(rank, found->second);
    rank.fetches.erase(found);
}

// Adjacent blocks are on different paths, in the long run as many as the path's share.
size_t World::storage_path(residency::BlockId block) const
{
    const std::vector<double> &shares = machine_.path_shares;
    double at = std::fmod(block * kGolden, 1);
    size_t path = 0;
    while (path + 1 < shares.size() && at >= shares[path]) at -= shares[path++];
    return path;
}

// What moves no bytes takes no time, and all of that ends at once.
void World::submit(Rank &rank, const std::vector<Transfer> &transfers)
{
    const auto moves = [this](const Transfer &transfer) {
        return !filling_ && transfer.kind == TransferKind::kMove;
    };
    auto left = transfers.size() - std::count_if(transfers.begin(), transfers.end(), moves);
    for (const Transfer &transfer : transfers) {
        if (moves(transfer))
            send(rank, transfer);
        else
            rank.core.transfer_done(transfer.id, {}, rank.out, --left > 0);
    }
}

void World::send(Rank &rank, const Transfer &transfer)
{
    ++rank.in_flight;
    std::vector<uint32_t> path;
    const auto then = [&](Route route) {
        const std::vector<uint32_t> &more =
            paths_[storage_path(transfer.block)][static_cast<size_t>(route)];
        path.insert(path.end(), more.begin(), more.end());
    };
    if (transfer.from == kNvmePlace) then(Route::kNvmeToHost);
    if (transfer.from == kDevicePlace) then(Route::kDeviceToHost);
    if (transfer.to == kDevicePlace) then(Route::kHostToDevice);
    if (transfer.to == kNvmePlace) then(Route::kHostToNvme);
    links_.submit(rank.number, transfer.id, path, transfer.bytes,
                  static_cast<uint32_t>(transfer.urgency), now_);
}

// Charges a wait to an operation's cause; for the time before it began, to what it waited for
// itself.
void World::blame(Rank &rank, OpId id, Instant begin, Instant end, uint32_t depth)
{
    const Op &op = program_.ops[id];
    const Instant began = std::clamp(rank.ops.began[id], begin, end);
    if (began > begin && depth < kBlameDepthMax) {
        OpId late = kNoOp;
        for (const OpId after : op.after) {
            if (after == kNoOp) continue;
            if (late == kNoOp || rank.ops.ended[after] > rank.ops.ended[late]) late = after;
        }
        const OpId before = rank.ops.before[id];
        if (before != kNoOp && (late == kNoOp || rank.ops.ended[before] > rank.ops.ended[late]))
            late = before;
        if (late != kNoOp) {
            blame(rank, late, begin, began, depth + 1);
            begin = began;
        }
    }
    const Cause cause = op.cause == Cause::kNone ? Cause::kGradients : op.cause;
    rank.open.stall_ns[static_cast<size_t>(cause)] += end - begin;
}

}  // namespace stepwell::simulate
