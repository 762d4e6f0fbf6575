// SPDX-License-Identifier: Apache-2.0
// WholeLedger decides by the order of calls; WholeGathers follows with fetches on the core. The
// ledger is never told that something completed: completions come at another time on every rank.
#include "lib/residency/agreed.h"

#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::residency {
namespace {

bool contains(const std::vector<WholeId> &wholes, WholeId whole)
{
    return std::find(wholes.begin(), wholes.end(), whole) != wholes.end();
}

// A whole of at most one part in so many of a bucket is small.
constexpr uint64_t kSmallShare = 32;

unsigned long long number(uint64_t value)
{
    return value;
}

}  // namespace

// ---- WholeLedger -------------------------------------------------------------------------------

Result<WholeId> WholeLedger::add(std::string name, uint32_t blocks, uint64_t bytes)
{
    if (blocks > budget_blocks_) {
        return Status::error(STW_ERROR_BUDGET,
                             "tensor \"%s\": gathered it takes %u blocks, the agreed part of the "
                             "device budget is %llu; raise it, or fetch the tensor by ranges",
                             name.c_str(), blocks, number(budget_blocks_));
    }
    Whole whole;
    whole.name = std::move(name);
    whole.blocks = blocks;
    whole.bytes = bytes;
    wholes_.push_back(std::move(whole));
    return static_cast<WholeId>(wholes_.size() - 1);
}

Status WholeLedger::remove(WholeId id)
{
    Whole &whole = wholes_[id];
    if (whole.pinned()) {
        return Status::error(STW_ERROR_BUSY, "tensor \"%s\" has open views of its gathered whole",
                             whole.name.c_str());
    }
    drop(whole);
    whole.removed = true;
    return {};
}

Status WholeLedger::conflict(const std::vector<WholeId> &wholes, Access access) const
{
    for (size_t i = 0; i < wholes.size(); i++) {
        const WholeId id = wholes[i];
        if (id >= wholes_.size() || wholes_[id].removed) {
            return Status::error(STW_ERROR_INVALID, "there is no gathered tensor %u", id);
        }
        const Whole &whole = wholes_[id];
        const bool twice = std::count(wholes.begin(), wholes.end(), id) > 1;
        const bool write = access != Access::kRead;
        if (whole.writer || (write && (whole.readers > 0 || twice))) {
            return Status::error(STW_ERROR_BUSY,
                                 "tensor \"%s\" has open views of its gathered whole that exclude "
                                 "this one; release them first",
                                 whole.name.c_str());
        }
        if (whole.old && whole.pinned()) {
            return Status::error(STW_ERROR_BUSY,
                                 "tensor \"%s\" was updated while views of its gathered whole were "
                                 "open; release them first",
                                 whole.name.c_str());
        }
    }
    return {};
}

Status WholeLedger::make_room(const std::vector<WholeId> &asked, uint64_t needed_blocks,
                              std::vector<WholeId> &drops) const
{
    std::vector<WholeId> candidates;
    uint64_t kept_blocks = 0;  // what no drop can free
    for (WholeId id = 0; id < wholes_.size(); id++) {
        const Whole &whole = wholes_[id];
        if (!whole.present) continue;
        if (whole.pinned() || contains(asked, id)) {
            kept_blocks += whole.blocks;
        } else {
            candidates.push_back(id);
        }
    }
    if (needed_blocks + kept_blocks > budget_blocks_) {
        return Status::error(
            STW_ERROR_BUDGET,
            "gathering \"%s\" and what is fetched with it takes %llu blocks; the "
            "agreed part of the device budget is %llu, %llu of them pinned by open "
            "views",
            wholes_[asked[0]].name.c_str(), number(needed_blocks), number(budget_blocks_),
            number(kept_blocks));
    }
    // Call numbers differ, so the order is total and the same on all ranks.
    std::sort(candidates.begin(), candidates.end(), [this](WholeId a, WholeId b) {
        return wholes_[a].used_at != wholes_[b].used_at ? wholes_[a].used_at < wholes_[b].used_at
                                                        : a < b;
    });
    uint64_t used = used_blocks_;
    for (const WholeId id : candidates) {
        if (used + needed_blocks <= budget_blocks_) break;
        used -= wholes_[id].blocks;
        drops.push_back(id);
    }
    return {};
}

WholeDecision WholeLedger::fetch(const std::vector<WholeId> &wholes, Access access)
{
    WholeDecision decision;
    decision.status = conflict(wholes, access);
    if (!decision.status.ok()) return decision;

    std::vector<WholeId> absent;
    uint64_t needed_blocks = 0;
    for (const WholeId id : wholes) {
        const bool fetched = !wholes_[id].present && !contains(absent, id);
        decision.needs.push_back(!fetched                   ? WholeNeed::kHit
                                 : access == Access::kWrite ? WholeNeed::kFill
                                                            : WholeNeed::kGather);
        if (!fetched) continue;
        absent.push_back(id);
        needed_blocks += wholes_[id].blocks;
    }
    if (needed_blocks > 0) {
        decision.status = make_room(wholes, needed_blocks, decision.drops);
        if (!decision.status.ok()) {
            decision.needs.clear();
            return decision;
        }
    }
    for (const WholeId id : decision.drops) drop(wholes_[id]);
    for (const WholeId id : absent) {
        wholes_[id].present = true;
        used_blocks_ += wholes_[id].blocks;
    }
    calls_++;
    for (size_t i = 0; i < wholes.size(); i++) {
        Whole &whole = wholes_[wholes[i]];
        whole.used_at = calls_;
        whole.ahead = false;
        if (access == Access::kRead) {
            whole.readers++;
        } else {
            whole.writer = true;
        }
    }
    assign_gathers(wholes, decision);
    if (access == Access::kRead && ahead_max_ > 0) {
        learn(wholes);
        look_ahead(decision);
    }
    return decision;
}

void WholeLedger::learn(const std::vector<WholeId> &asked)
{
    for (const WholeId id : asked) {
        if (before_last_ != kNone) follows_[place_of(before_last_, last_)] = id;
        before_last_ = last_;
        last_ = id;
    }
}

// What followed the last time will follow again: it is gathered while the program works on what it
// has. A function of the calls, so all ranks foresee the same, rightly or not.
void WholeLedger::look_ahead(WholeDecision &decision)
{
    std::vector<WholeId> foreseen;
    std::vector<uint64_t> places;
    WholeId before = before_last_;
    WholeId last = last_;
    while (foreseen.size() < ahead_max_) {
        const uint64_t place = place_of(before, last);
        const auto next = follows_.find(place);
        if (next == follows_.end() || barred_.count(place) > 0) break;
        foreseen.push_back(next->second);
        places.push_back(place);
        before = last;
        last = next->second;
    }
    for (size_t i = 0; i < foreseen.size(); i++) {
        if (!gather_ahead(foreseen[i], places[i], foreseen, decision)) break;
    }
}

// Never for something that is foreseen itself. False: there is no room to look further.
bool WholeLedger::gather_ahead(WholeId id, uint64_t after, const std::vector<WholeId> &foreseen,
                               WholeDecision &decision)
{
    Whole &whole = wholes_[id];
    if (whole.present) return true;
    if (whole.removed) return false;
    std::vector<WholeId> drops;
    if (!make_room(foreseen, whole.blocks, drops).ok()) return false;
    for (const WholeId leaves : drops) {
        drop(wholes_[leaves]);
        decision.drops.push_back(leaves);
    }
    whole.present = whole.ahead = true;
    whole.ahead_after = after;
    whole.used_at = calls_;
    used_blocks_ += whole.blocks;
    decision.ahead.push_back(id);
    decision.ahead_gathers.push_back(++gathers_);
    return true;
}

// It was gathered in vain, since its shards change before it is fetched; so it would be next time.
void WholeLedger::bar(const Whole &whole)
{
    if (whole.present && whole.ahead) barred_.insert(whole.ahead_after);
}

// Small ones of one call go into a bucket together, which costs one collective; a large one has its
// own and closes no bucket, since matrices and vectors alternate in a model.
void WholeLedger::assign_gathers(const std::vector<WholeId> &asked, WholeDecision &decision)
{
    GatherId bucket = 0;
    uint64_t room_bytes = 0;
    for (size_t i = 0; i < asked.size(); i++) {
        GatherId gather = 0;
        if (decision.needs[i] == WholeNeed::kGather) {
            const uint64_t bytes = wholes_[asked[i]].bytes;
            const bool small = bucket_bytes_ > 0 && bytes <= bucket_bytes_ / kSmallShare;
            if (small && bucket != 0 && bytes <= room_bytes) {
                gather = bucket;
                room_bytes -= bytes;
            } else {
                gather = ++gathers_;
                if (small) bucket = gather;
                if (small) room_bytes = bucket_bytes_ - bytes;
            }
        }
        decision.gathers.push_back(gather);
    }
}

bool WholeLedger::release(WholeId id, Access access)
{
    Whole &whole = wholes_[id];
    if (access == Access::kRead) {
        STW_ASSERT(whole.readers > 0);
        whole.readers--;
    } else {
        STW_ASSERT(whole.writer);
        whole.writer = false;
    }
    if (whole.pinned() || !whole.old) return false;
    drop(whole);
    return true;
}

Status WholeLedger::write(WholeId id, bool &dropped)
{
    Whole &whole = wholes_[id];
    dropped = false;
    if (whole.pinned()) {
        return Status::error(STW_ERROR_BUSY, "tensor \"%s\" has open views of its gathered whole",
                             whole.name.c_str());
    }
    dropped = whole.present;
    bar(whole);
    drop(whole);
    return {};
}

void WholeLedger::update(WholeId id, bool &dropped)
{
    Whole &whole = wholes_[id];
    dropped = false;
    if (!whole.present) return;
    if (whole.pinned()) {
        whole.old = true;
        return;
    }
    dropped = true;
    bar(whole);
    drop(whole);
}

void WholeLedger::drop(Whole &whole)
{
    if (whole.present) used_blocks_ -= whole.blocks;
    whole.present = false;
    whole.old = false;
    whole.ahead = false;
}

// ---- WholeGathers ------------------------------------------------------------------------------

Result<WholeId> WholeGathers::add(std::string name, const WholeTensors &tensors)
{
    Result<WholeId> id =
        ledger_.add(std::move(name), core_.pack_blocks(tensors.whole), tensors.whole_bytes);
    if (id.ok()) {
        tensors_.push_back(tensors);
        last_gather_.push_back(0);
        lost_.push_back(false);
    }
    return id;
}

Status WholeGathers::remove(WholeId whole, Commands &out)
{
    const bool there = ledger_.present(whole);
    STW_TRY(ledger_.remove(whole));
    if (there) drop(whole, out);
    return {};
}

uint64_t WholeGathers::fetch(const std::vector<WholeId> &wholes, Access access, uint64_t owner,
                             Instant now, Commands &out)
{
    const uint64_t call_number = ++call_number_;
    WholeDecision decision = ledger_.fetch(wholes, access);
    note(call_number, decision, wholes);
    if (!decision.status.ok()) {
        commands_.refused.push_back({call_number, std::move(decision.status), false});
        return call_number;
    }
    for (const WholeId whole : decision.drops) drop(whole, out);
    Call &call = calls_[call_number];
    call.wholes = wholes;
    call.access = access;
    call.owner = owner;
    for (size_t i = 0; i < wholes.size(); i++) {
        if (decision.needs[i] == WholeNeed::kGather) {
            queue_gather(decision.gathers[i], wholes[i]);
        }
        // A hit may be on a whole whose collective is still under way.
        const GatherId gather = last_gather_[wholes[i]];
        if (gather != 0) call.waits.push_back(gather);
    }
    if (call.waits.empty()) ask_views(call_number, now, out);
    for (size_t i = 0; i < decision.ahead.size(); i++) {
        queue_gather(decision.ahead_gathers[i], decision.ahead[i]);
    }
    ask_next(now, out);
    return call_number;
}

void WholeGathers::queue_gather(GatherId gather, WholeId whole)
{
    last_gather_[whole] = gather;
    const auto mine = std::find_if(queue_.rbegin(), queue_.rend(),
                                   [gather](const Gather &at) { return at.id == gather; });
    if (mine == queue_.rend()) queue_.push_back({gather, {}, core_.claim(), 0});
    Gather &bucket = mine == queue_.rend() ? queue_.back() : *mine;
    bucket.wholes.push_back(whole);
    core_.claim_tensor(bucket.claim, tensors_[whole].shard);
    core_.claim_tensor(bucket.claim, tensors_[whole].whole);
}

void WholeGathers::note(uint64_t call, const WholeDecision &decision,
                        const std::vector<WholeId> &wholes)
{
    decisions_ += format_text("call %llu:", number(call));
    for (const WholeId whole : decision.drops) decisions_ += format_text(" drop %u", whole);
    for (size_t i = 0; i < decision.needs.size(); i++) {
        static const char *const kWords[] = {"hit", "gather", "fill"};
        decisions_ += format_text(" %s %u", kWords[static_cast<int>(decision.needs[i])], wholes[i]);
        if (decision.gathers[i] != 0) {
            decisions_ += format_text(" as %llu", number(decision.gathers[i]));
        }
    }
    for (size_t i = 0; i < decision.ahead.size(); i++) {
        decisions_ +=
            format_text(" ahead %u as %llu", decision.ahead[i], number(decision.ahead_gathers[i]));
    }
    if (!decision.status.ok()) decisions_ += format_text(" refused %d", decision.status.code());
    decisions_ += '\n';
}

void WholeGathers::drop(WholeId whole, Commands &out)
{
    decisions_ += format_text("drop %u\n", whole);
    if (lost_[whole]) return;
    if (last_gather_[whole] != 0) {
        leaving_.insert({last_gather_[whole], whole});
        last_gather_[whole] = 0;
        return;
    }
    // No view and no fetch is open: pins of the ledger span both.
    const Status status = core_.discard(tensors_[whole].whole, out);
    STW_ASSERT(status.ok());
}

void WholeGathers::ask_next(Instant now, Commands &out)
{
    if (queue_.empty() || queue_.front().fetch != 0) return;
    // Its room may be that of a whole which is dropped and still being gathered. To wait for that in
    // the core's queue would keep the shard of that very gather waiting behind.
    if (!leaving_.empty() && leaving_.begin()->first < queue_.front().id) return;
    FetchAsked asked;
    asked.flags = kFetchWaitRoom;  // this rank's views must not decide
    asked.claim = queue_.front().claim;
    for (const WholeId whole : queue_.front().wholes) {
        Request request;
        request.tensor = tensors_[whole].whole;
        request.access = Access::kWrite;
        request.place = place_;
        request.byte_count = tensors_[whole].whole_bytes;
        asked.requests.push_back(request);
    }
    queue_.front().fetch = core_.fetch(asked, now, out);
}

void WholeGathers::start_front(const Status &status, const std::vector<Grant> &grants)
{
    const Gather &front = queue_.front();
    StartGather start;
    start.gather = front.id;
    start.claim = front.claim;
    start.wholes = front.wholes;
    start.status = status;
    if (status.ok()) start.grants = grants;
    commands_.starts.push_back(start);
    running_[front.id] = std::move(start);
    queue_.pop_front();
}

bool WholeGathers::on_granted(const Granted &granted, Instant now, Commands &out)
{
    if (!queue_.empty() && queue_.front().fetch == granted.fetch) {
        start_front({}, granted.grants);
        ask_next(now, out);
        return true;
    }
    const auto view = views_.find(granted.fetch);
    if (view == views_.end()) return false;
    commands_.granted.push_back({view->second, granted.grants});
    calls_.erase(view->second);
    views_.erase(view);
    return true;
}

bool WholeGathers::on_refused(const Refused &refused, Instant now, Commands &out)
{
    if (!queue_.empty() && queue_.front().fetch == refused.fetch) {
        start_front(refused.status, {});
        ask_next(now, out);
        return true;
    }
    const auto view = views_.find(refused.fetch);
    if (view == views_.end()) return false;
    commands_.refused.push_back({view->second, refused.status, true});
    calls_.erase(view->second);
    views_.erase(view);
    return true;
}

void WholeGathers::gather_done(GatherId gather, const Status &status, Instant now, Commands &out)
{
    const auto found = running_.find(gather);
    STW_ASSERT(found != running_.end());
    const StartGather start = std::move(found->second);
    running_.erase(found);
    for (const WholeId whole : start.wholes) {
        const WholeTensors &tensors = tensors_[whole];
        if (start.status.ok()) {
            Release release;
            release.tensor = tensors.whole;
            release.access = Access::kWrite;
            release.place = place_;
            release.byte_count = tensors.whole_bytes;
            release.claim = start.claim;
            release.abandon = !status.ok();
            core_.release(release, now, out);
        }
        const bool leaves = leaving_.erase({gather, whole}) > 0;
        core_.unclaim_tensor(start.claim, tensors.whole, leaves, out);
        core_.unclaim_tensor(start.claim, tensors.shard, false, out);
        // The ledger still has it, as on all ranks; who asks for it is told, until a call drops it.
        if (!status.ok() && !leaves) core_.fail(tensors.whole, status);
        if (last_gather_[whole] == gather) last_gather_[whole] = 0;
    }
    gather_over(gather, now, out);
    ask_next(now, out);
}

void WholeGathers::lose(GatherId gather, const Status &status)
{
    const auto found = running_.find(gather);
    STW_ASSERT(found != running_.end());
    for (const WholeId whole : found->second.wholes) lost_[whole] = true;
    running_.erase(found);
    for (auto call = calls_.begin(); call != calls_.end();) {
        const std::vector<GatherId> &waits = call->second.waits;
        if (std::find(waits.begin(), waits.end(), gather) == waits.end()) {
            ++call;
            continue;
        }
        commands_.refused.push_back({call->first, status, true});
        call = calls_.erase(call);
    }
}

void WholeGathers::gather_over(GatherId gather, Instant now, Commands &out)
{
    for (auto &[call_number, call] : calls_) {
        const size_t before = call.waits.size();
        call.waits.erase(std::remove(call.waits.begin(), call.waits.end(), gather),
                         call.waits.end());
        if (before > 0 && call.waits.empty()) ask_views(call_number, now, out);
    }
}

void WholeGathers::ask_views(uint64_t call_number, Instant now, Commands &out)
{
    const Call &call = calls_[call_number];
    FetchAsked asked;
    asked.flags = kFetchWaitRoom;
    asked.owner = call.owner;
    for (const WholeId whole : call.wholes) {
        Request request;
        request.tensor = tensors_[whole].whole;
        request.access = call.access;
        request.place = place_;
        request.byte_count = tensors_[whole].whole_bytes;
        asked.requests.push_back(request);
    }
    views_[core_.fetch(asked, now, out)] = call_number;
}

bool WholeGathers::gathering(WholeId whole) const
{
    return last_gather_[whole] != 0 ||
           std::any_of(leaving_.begin(), leaving_.end(),
                       [whole](const auto &at) { return at.second == whole; });
}

StartGather WholeGathers::queued(GatherId gather) const
{
    const auto found = std::find_if(queue_.begin(), queue_.end(),
                                    [gather](const Gather &at) { return at.id == gather; });
    STW_ASSERT(found != queue_.end());
    StartGather asked;
    asked.gather = gather;
    asked.claim = found->claim;
    asked.wholes = found->wholes;
    return asked;
}

void WholeGathers::release(WholeId whole, Access access, const Grant *grant, Instant now,
                           Commands &out, bool abandon)
{
    if (!grant || abandon) ledger_.spoil(whole);
    const WholeTensors &tensors = tensors_[whole];
    if (grant && grant->by_gate && access == Access::kRead) {
        if (core_.gate(tensors.whole, place_).unpin()) core_.gate_idle(tensors.whole, now, out);
    } else if (grant) {
        Release release;
        release.tensor = tensors.whole;
        release.access = access;
        release.place = place_;
        release.byte_count = tensors.whole_bytes;
        release.abandon = abandon;
        core_.release(release, now, out);
    }
    if (ledger_.release(whole, access)) drop(whole, out);
}

Status WholeGathers::write(WholeId whole, Commands &out)
{
    bool dropped = false;
    STW_TRY(ledger_.write(whole, dropped));
    if (dropped) drop(whole, out);
    return {};
}

void WholeGathers::update(WholeId whole, Commands &out)
{
    bool dropped = false;
    ledger_.update(whole, dropped);
    if (dropped) drop(whole, out);
}

WholeCommands WholeGathers::pump()
{
    WholeCommands commands = std::move(commands_);
    commands_ = {};
    return commands;
}

}  // namespace stepwell::residency
