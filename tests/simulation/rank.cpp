// SPDX-License-Identifier: Apache-2.0
// One rank: its machine, the calls of the plan in its own time, and its local load.
#include "tests/simulation/ranks.h"

#include <algorithm>

namespace stepwell::simulation {
namespace {

constexpr PlaceId kDevice = 0;

Config rank_config(const RankPlan &plan, Random &random)
{
    uint32_t largest = 0;
    for (const uint32_t blocks : plan.shard_blocks) largest = std::max(largest, blocks);
    Config config;
    config.block_bytes = kBlockBytes;
    config.tensors_max = 64;
    PlaceConfig device;
    device.tier = Tier::kDevice;
    device.maps = device.cpu_access = true;
    device.whole_blocks = plan.whole_blocks;
    // The agreed part is the same on all ranks; the rest is each rank's own affair.
    device.blocks = plan.whole_blocks + largest + static_cast<uint32_t>(random.between(1, 8));
    PlaceConfig host;
    host.blocks = random.chance(50) ? static_cast<uint32_t>(random.between(2, 12)) : 0;
    host.cpu_access = true;
    PlaceConfig nvme;
    nvme.tier = Tier::kNvme;
    nvme.blocks = 200;
    config.places = {device, host, nvme};
    return config;
}

}  // namespace

Rank::Rank(uint32_t rank, const RankPlan &plan, uint64_t seed, Fabric &fabric, Journal &journal)
    : rank_(rank),
      plan_(plan),
      random_(seed),
      fabric_(fabric),
      journal_(journal),
      config_(rank_config(plan, random_)),
      machine_(config_, random_, journal),
      gathers_(machine_.core, kDevice, plan.whole_blocks, plan.bucket_bytes, plan.ahead_max)
{
    machine_.faults.stall_percent = static_cast<uint32_t>(random_.below(10));
    machine_.loop.add(gathers_);
    machine_.loop.add(*this);
    gathers_.write_down();
    create_tensors();
}

void Rank::create_tensors()
{
    for (size_t i = 0; i < plan_.shard_blocks.size(); i++) {
        TensorSpec spec;
        spec.name = format_text("p%zu", i);
        spec.bytes = plan_.shard_blocks[i] * kBlockBytes;
        spec.policy.allowed = config_.places[1].blocks > 0 ? 7 : 5;
        spec.policy.home = 2;
        WholeTensors tensors;
        tensors.shard_bytes = spec.bytes;
        tensors.shard = machine_.core.create(spec).take();
        spec.name += ".whole";
        spec.agreed = true;
        spec.bytes *= plan_.ranks;
        spec.policy.allowed = 1;
        spec.policy.home = kDevice;
        tensors.whole_bytes = spec.bytes;
        tensors.whole = machine_.core.create(spec).take();
        if (!gathers_.add(format_text("p%zu", i), tensors).ok()) journal_.fail("add refused");
        tensors_.push_back(tensors);
    }
    versions_.resize(tensors_.size());
    for (uint64_t n = random_.between(2, 10); n > 0; n--) {
        TensorSpec spec;
        spec.name = format_text("local%llu", (unsigned long long)n);
        spec.bytes = kBlockBytes;
        spec.reads_zero = true;
        spec.policy.allowed = 5;
        spec.policy.home = 2;
        local_tensors_.push_back(machine_.core.create(spec).take());
    }
}

Stamp Rank::expected(uint32_t rank, WholeId whole, uint32_t version)
{
    return (version << 12) | (whole << 4) | (rank + 1);
}

void Rank::execute()
{
    machine_.loop.run();
}

bool Rank::done() const
{
    return next_call_ == plan_.calls.size() && gathers_.idle() && shard_writes_.empty() &&
           local_fetches_.empty() && local_views_.empty() && machine_.idle() && started_.empty() &&
           reading_.empty() && verdicts_.empty() && early_.empty();
}

std::string Rank::state() const
{
    return format_text(
        "rank %u: call %zu of %zu, %zu local views, %u fetches wait, %zu collectives "
        "started, %zu shard writes, %zu read\n%s%s",
        rank_, next_call_, plan_.calls.size(), local_views_.size(), machine_.core.waiting_fetches(),
        started_.size(), shard_writes_.size(), reading_.size(),
        machine_.core.describe_waiting(16).c_str(), gathers_.decisions().c_str());
}

bool Rank::step()
{
    if (dead()) return false;
    const uint64_t kind = random_.below(10);
    if (kind < 4 && machine_.advance()) {
    } else if (kind < 6 && (advance_verdict() || finish_collective())) {
    } else if (kind < 8 && make_call()) {
    } else if (kind == 8 && next_call_ < plan_.calls.size()) {
        local_load();
    } else if (kind == 9 && !local_views_.empty()) {
        release_local();
    } else if (machine_.advance()) {
    } else if (!advance_verdict() && !finish_collective() && !make_call()) {
        if (local_views_.empty()) return false;
        release_local();
    }
    machine_.events++;
    const std::string broken = machine_.core.check();
    if (!broken.empty()) journal_.fail("rank %u: %s", rank_, broken.c_str());
    return true;
}

bool Rank::make_call()
{
    if (next_call_ == plan_.calls.size() || program_waits_ > 0) return false;
    const RankCall &call = plan_.calls[next_call_];
    switch (call.kind) {
    case RankCall::Kind::kFetch: call_fetch(call); break;
    case RankCall::Kind::kRelease:
        if (!call_release(call)) return false;
        break;
    case RankCall::Kind::kWrite:
    case RankCall::Kind::kUpdate: call_write(call); break;
    case RankCall::Kind::kEarly: call_early(call.wholes[0]); break;
    case RankCall::Kind::kVerdict: call_verdict(); break;
    }
    next_call_++;
    execute();
    return true;
}

void Rank::call_fetch(const RankCall &call)
{
    Open open;
    open.call = &call;
    open.absent = call.is_absent(rank_);
    for (const WholeId whole : call.wholes) open.versions.push_back(versions_[whole]);
    open.lacks = !open.absent && holds_empty_view(call.wholes);
    open_.push_back(open);
    const uint64_t number =
        gathers_.fetch(call.wholes, Access::kRead, 1, out_, call.is_absent(rank_));
    numbers_[number] = open_.size() - 1;
    journal_.line("rank %u fetch %zu%s", rank_, open_.size() - 1,
                  call.is_absent(rank_) ? " absent" : "");
}

// The program waits for a fetch before it releases: a release is a point in the order of calls.
bool Rank::call_release(const RankCall &call)
{
    Open &open = open_[call.fetch];
    if (!open.answered) return false;
    journal_.line("rank %u release %zu%s", rank_, call.fetch, open.refused ? " refused" : "");
    if (open.refused && !open.pinned) return true;
    open.released = true;
    if (open.refused || open.absent) {
        const WholeEnd end = open.spoils ? WholeEnd::kSpoilt : WholeEnd::kView;
        for (const WholeId whole : open.call->wholes) {
            gathers_.release(whole, Access::kRead, nullptr, out_, end);
            execute();
        }
        return true;
    }
    for (size_t i = 0; i < open.call->wholes.size(); i++) {
        const WholeId whole = open.call->wholes[i];
        check_whole(whole, open.versions[i], "when released");
        machine_.unpin(kDevice, slots(tensors_[whole].whole), false);
        gathers_.release(whole, Access::kRead, &open.grants[i], out_);
        execute();
    }
    return true;
}

// The program may write none of these before their verdict, nor update them once more.
bool Rank::awaits_verdict(WholeId whole) const
{
    return std::any_of(early_.begin(), early_.end(),
                       [whole](const ShardWrite &write) { return write.whole == whole; });
}

void Rank::call_write(const RankCall &call)
{
    const WholeId whole = call.wholes[0];
    if (awaits_verdict(whole)) return;
    const bool update = call.kind == RankCall::Kind::kUpdate;
    if (update) {
        gathers_.update(whole, out_);
    } else if (!gathers_.write(whole, out_).ok()) {
        return;  // views of the whole are open, on every rank
    }
    journal_.line("rank %u %s %u", rank_, update ? "updates" : "writes", whole);
    ShardWrite write;
    write.whole = whole;
    write.version = ++versions_[whole];
    if (update) {
        write.claim = machine_.core.claim();
        machine_.core.claim_tensor(write.claim, tensors_[whole].shard);
    } else {
        program_waits_++;
    }
    fetch_to_write(write);
}

void Rank::fetch_to_write(const ShardWrite &write)
{
    FetchAsked asked;
    asked.flags = kFetchWaitRoom;
    asked.claim = write.claim;
    Request request;
    request.tensor = tensors_[write.whole].shard;
    request.access = Access::kWrite;
    request.place = kDevice;
    request.byte_count = tensors_[write.whole].shard_bytes;
    asked.requests.push_back(request);
    shard_writes_[machine_.core.fetch(asked, out_)] = write;
}

void Rank::call_early(WholeId whole)
{
    if (awaits_verdict(whole)) return;
    gathers_.update(whole, out_);
    gathers_.set_undecided(whole, true);
    ShardWrite write;
    write.whole = whole;
    write.version = ++versions_[whole];
    write.claim = machine_.core.claim();
    machine_.core.claim_tensor(write.claim, tensors_[whole].shard);
    early_.push_back(write);
    journal_.line("rank %u updates %u before the verdict", rank_, whole);
}

void Rank::call_verdict()
{
    Verdict verdict;
    verdict.number = verdicts_called_++;
    verdict.after = gathers_.ledger().last_gather();
    verdict.writes.swap(early_);
    for (const ShardWrite &write : verdict.writes) gathers_.set_undecided(write.whole, false);
    verdicts_.push_back(std::move(verdict));
    journal_.line("rank %u calls for verdict %zu", rank_, verdicts_.back().number);
}

// True if this rank has started the first verdict, or knows it.
bool Rank::advance_verdict()
{
    if (verdicts_.empty()) return false;
    Verdict &front = verdicts_.front();
    if (!front.started) {
        if (collectives_ < front.after) return false;
        front.started = true;
        fabric_.start_verdict(front.number);
        return true;
    }
    if (!fabric_.verdict_ready(front.number)) return false;
    for (const ShardWrite &write : front.writes) fetch_to_write(write);
    verdicts_.pop_front();
    read_front();
    execute();
    return true;
}

std::vector<Slot> Rank::slots(TensorId tensor)
{
    std::vector<Slot> all;
    for (uint64_t block = 0; block < machine_.core.pack_blocks(tensor); block++) {
        all.push_back(machine_.slot_of(kDevice, machine_.core.pack_of(tensor), block));
        if (all.back() == kNoSlot) journal_.fail("rank %u: tensor %u has no slot", rank_, tensor);
        if (journal_.failed()) return {};
    }
    return all;
}

Stamp &Rank::stamp(TensorId tensor, uint64_t block, uint64_t piece)
{
    const Slot slot = machine_.slot_of(kDevice, machine_.core.pack_of(tensor), block);
    return machine_.memories.slot(kDevice, slot)[piece];
}

void Rank::write_shard(const ShardWrite &write, const Grant &grant)
{
    const WholeTensors &tensors = tensors_[write.whole];
    machine_.pin(kDevice, slots(tensors.shard), true);
    if (journal_.failed()) return;
    for (uint64_t piece = 0; piece < tensors.shard_bytes / kPieceBytes; piece++) {
        stamp(tensors.shard, piece / kPieces, piece % kPieces) =
            expected(rank_, write.whole, write.version);
    }
    machine_.unpin(kDevice, slots(tensors.shard), true);
    Release release;
    release.tensor = tensors.shard;
    release.access = Access::kWrite;
    release.place = grant.place;
    release.byte_count = tensors.shard_bytes;
    release.claim = write.claim;
    machine_.core.release(release, out_);
    if (write.claim != 0) machine_.core.unclaim_tensor(write.claim, tensors.shard, false, out_);
    if (write.claim == 0) program_waits_--;
    machine_.loop.run();
}

bool Rank::granted(Granted &granted, Commands &)
{
    if (journal_.failed()) return true;
    if (granted.fetch == shard_read_) {
        shard_read_ = 0;
        take_shard(granted.grants[0]);
        return true;
    }
    const auto write = shard_writes_.find(granted.fetch);
    if (write != shard_writes_.end()) {
        const ShardWrite was = write->second;
        shard_writes_.erase(write);
        write_shard(was, granted.grants[0]);
        return true;
    }
    const auto local = local_fetches_.find(granted.fetch);
    if (local == local_fetches_.end()) {
        journal_.fail("rank %u: an answer nobody asked for", rank_);
        return true;
    }
    local_views_.push_back({local->second, granted.grants[0]});
    local_fetches_.erase(local);
    return true;
}

bool Rank::refused(Refused &refused, Commands &)
{
    if (journal_.failed()) return true;
    if (local_fetches_.erase(refused.fetch) == 0) {
        journal_.fail("rank %u: a write of a shard is refused: %s", rank_,
                      refused.status.sentence());
    }
    return true;
}

void Rank::after_round(Instant, Commands &)
{
    while (!journal_.failed()) {
        const WholeCommands commands = gathers_.pump();
        if (commands.starts.empty() && commands.granted.empty() && commands.refused.empty()) return;
        for (const StartGather &one : commands.starts) start(one);
        for (const WholeGranted &granted : commands.granted) {
            Open &open = open_[numbers_.at(granted.call)];
            open.answered = true;
            open.grants = granted.grants;
            if (open.absent) continue;
            for (size_t i = 0; i < open.call->wholes.size() && !journal_.failed(); i++) {
                const WholeId whole = open.call->wholes[i];
                machine_.pin(kDevice, slots(tensors_[whole].whole), false);
                check_whole(whole, open.versions[i], "when granted");
            }
        }
        for (const WholeRefused &refused : commands.refused) {
            const stw_status code = refused.status.code();
            Open &open = open_[numbers_.at(refused.call)];
            const bool hurt = refused.pinned && (code == STW_ERROR_IO || code == STW_ERROR_PEER);
            const bool lacks =
                refused.pinned && !refused.spoils && code == STW_ERROR_INVALID && open.lacks;
            if (!hurt && !lacks && code != STW_ERROR_BUDGET && code != STW_ERROR_BUSY) {
                journal_.fail("rank %u: whole refused: %s", rank_, refused.status.sentence());
            }
            open.answered = open.refused = true;
            open.pinned = refused.pinned;
            open.spoils = refused.spoils;
        }
    }
}

// One of them was fetched without its bytes, and that view is open, or one that may lack them too.
bool Rank::holds_empty_view(const std::vector<WholeId> &wholes) const
{
    return std::any_of(open_.begin(), open_.end(), [&](const Open &open) {
        return (open.absent || open.lacks) && !open.released &&
               std::find_first_of(wholes.begin(), wholes.end(), open.call->wholes.begin(),
                                  open.call->wholes.end()) != wholes.end();
    });
}

void Rank::start(const StartGather &start)
{
    if (!start.status.ok()) {
        journal_.fail("rank %u: no memory for collective %llu: %s", rank_,
                      (unsigned long long)start.gather, start.status.sentence());
        return;
    }
    for (const WholeId whole : start.wholes) {
        if (start.absent) break;
        machine_.pin(kDevice, slots(tensors_[whole].whole), true);
        if (journal_.failed()) return;
    }
    reading_.push_back({start, {}});
    read_front();
}

// Collectives run one at a time: a gather after a verdict reads nothing before that is known.
void Rank::read_front()
{
    if (reading_.empty() || shard_read_ != 0) return;
    const GatherId gather = reading_.front().start.gather;
    if (verdicts_.empty() || gather <= verdicts_.front().after) read_next_shard();
}

// Under the claim of the gather, of which nothing else of this rank is pinned but the wholes.
void Rank::read_next_shard()
{
    const Reading &front = reading_.front();
    FetchAsked asked;
    asked.flags = kFetchWaitRoom | kFetchInternal;
    asked.claim = front.start.claim;
    Request request;
    request.tensor = tensors_[front.start.wholes[front.shards.size()]].shard;
    request.place = kDevice;
    request.byte_count = tensors_[front.start.wholes[front.shards.size()]].shard_bytes;
    asked.requests.push_back(request);
    shard_read_ = machine_.core.fetch(asked, out_);
    machine_.loop.run();
}

void Rank::take_shard(const Grant &grant)
{
    Reading &front = reading_.front();
    const WholeId whole = front.start.wholes[front.shards.size()];
    const WholeTensors &tensors = tensors_[whole];
    machine_.pin(kDevice, slots(tensors.shard), false);
    if (journal_.failed()) return;
    const Stamp shard = stamp(tensors.shard, 0, 0);
    for (uint64_t piece = 0; piece < tensors.shard_bytes / kPieceBytes; piece++) {
        if (stamp(tensors.shard, piece / kPieces, piece % kPieces) != shard) {
            journal_.fail("rank %u: the shard of whole %u is torn", rank_, whole);
        }
    }
    machine_.unpin(kDevice, slots(tensors.shard), false);
    Release release;
    release.tensor = tensors.shard;
    release.place = grant.place;
    release.byte_count = tensors.shard_bytes;
    release.internal = true;
    release.claim = front.start.claim;
    machine_.core.release(release, out_);
    machine_.loop.run();
    // It could as well have been the disk that failed.
    if (random_.per_million(plan_.faults_per_million)) {
        front.shards.clear();
        start_front();
        return;
    }
    front.shards.push_back(shard);
    if (front.shards.size() < front.start.wholes.size()) {
        read_next_shard();
    } else {
        start_front();
    }
}

void Rank::start_front()
{
    const Reading &front = reading_.front();
    journal_.line("rank %u starts %llu of whole %u%s", rank_,
                  (unsigned long long)front.start.gather, front.start.wholes[0],
                  front.shards.empty() ? ", and cannot" : "");
    fabric_.start(rank_, front.start, front.shards);
    started_.push_back(front.start);
    reading_.pop_front();
    read_front();
}

// Collectives of one group end in order.
bool Rank::finish_collective()
{
    if (started_.empty() || !fabric_.ready(started_.front().gather)) return false;
    const StartGather start = started_.front();
    started_.erase(started_.begin());
    collectives_++;
    if (fabric_.broken() || fabric_.failed(start.gather)) {
        for (const WholeId whole : start.wholes) {
            if (!start.absent) machine_.unpin(kDevice, slots(tensors_[whole].whole), true);
        }
        const Status status =
            Status::error(fabric_.broken() ? STW_ERROR_PEER : STW_ERROR_IO, "simulated");
        const bool partial = !fabric_.broken() && fabric_.partial(start.gather);
        gathers_.gather_done(start.gather, status, partial, out_);
        execute();
        return true;
    }
    const std::vector<std::vector<Stamp>> &shards = fabric_.shards(start.gather);
    for (size_t i = 0; i < start.wholes.size() && !start.absent; i++) {
        const WholeTensors &tensors = tensors_[start.wholes[i]];
        for (uint64_t piece = 0; piece < tensors.whole_bytes / kPieceBytes; piece++) {
            stamp(tensors.whole, piece / kPieces, piece % kPieces) =
                shards[piece * kPieceBytes / tensors.shard_bytes][i];
        }
        machine_.unpin(kDevice, slots(tensors.whole), true);
    }
    gathers_.gather_done(start.gather, {}, fabric_.partial(start.gather), out_);
    execute();
    return true;
}

void Rank::check_whole(WholeId whole, uint32_t version, const char *when)
{
    const WholeTensors &tensors = tensors_[whole];
    for (uint64_t piece = 0; piece < tensors.whole_bytes / kPieceBytes; piece++) {
        const uint32_t of = static_cast<uint32_t>(piece * kPieceBytes / tensors.shard_bytes);
        const Stamp found = stamp(tensors.whole, piece / kPieces, piece % kPieces);
        if (found == expected(of, whole, version)) continue;
        journal_.fail("rank %u: whole %u, part of rank %u: stamp %x %s, expected %x", rank_, whole,
                      of, found, when, expected(of, whole, version));
        return;
    }
}

void Rank::local_load()
{
    if (local_views_.size() + local_fetches_.size() >= 3) return;
    FetchAsked asked;
    asked.flags = random_.chance(50) ? kFetchWaitRoom : 0u;
    Request request;
    request.tensor = local_tensors_[random_.below(local_tensors_.size())];
    request.access = random_.chance(50) ? Access::kRead : Access::kReadWrite;
    request.place = kDevice;
    request.byte_count = kBlockBytes;
    asked.requests.push_back(request);
    local_fetches_[machine_.core.fetch(asked, out_)] = request;
    execute();
}

void Rank::release_local()
{
    std::swap(local_views_[random_.below(local_views_.size())], local_views_.back());
    const Local local = local_views_.back();
    local_views_.pop_back();
    if (local.grant.by_gate && local.request.access == Access::kRead) {
        const bool last = machine_.core.gate(local.request.tensor, kDevice).unpin();
        if (last || !machine_.core.stuck_fetches().empty()) {
            machine_.core.gate_idle(local.request.tensor, out_);
        }
    } else {
        Release release;
        release.tensor = local.request.tensor;
        release.access = local.request.access;
        release.place = kDevice;
        release.byte_count = local.request.byte_count;
        machine_.core.release(release, out_);
    }
    execute();
}

}  // namespace stepwell::simulation
