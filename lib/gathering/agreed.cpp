// SPDX-License-Identifier: Apache-2.0
#include "lib/gathering/agreed.h"

#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::gathering {

using residency::FetchAsked;
using residency::kFetchWaitRoom;
using residency::Release;
using residency::Request;

namespace {

unsigned long long number(uint64_t value)
{
    return value;
}

}  // namespace

WholeGathers::WholeGathers(Core &core, PlaceId place, uint64_t budget_blocks, uint64_t bucket_bytes,
                           uint32_t ahead_max)
    : core_(core),
      place_(place),
      ledger_(budget_blocks, bucket_bytes, ahead_max, core.block_bytes())
{
}

Result<WholeId> WholeGathers::add(std::string name, const WholeTensors &tensors)
{
    Result<WholeId> id =
        ledger_.add(std::move(name), core_.pack_blocks(tensors.whole), tensors.whole_bytes);
    if (id.ok()) {
        tensors_.push_back(tensors);
        last_gather_.push_back(0);
        lost_.push_back(false);
        hollow_.push_back(false);
        partial_.push_back(false);
        failed_.emplace_back();
        keeps_.emplace_back();
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
                             Commands &out, bool absent)
{
    STW_ASSERT(!absent || access == Access::kRead);
    const uint64_t call_number = ++call_number_;
    WholeDecision decision = ledger_.fetch(wholes, access);
    note(call_number, decision, wholes);
    if (!decision.status.ok()) {
        commands_.refused.push_back({call_number, std::move(decision.status), false, false});
        return call_number;
    }
    for (const WholeId whole : decision.drops) drop(whole, out);
    Call &call = calls_[call_number];
    call.wholes = wholes;
    call.access = access;
    call.owner = owner;
    call.absent = absent;
    for (size_t i = 0; i < wholes.size(); i++) {
        if (decision.needs[i] == WholeNeed::kGather) {
            queue_gather(decision.gathers[i], wholes[i], absent);
        }
        // A hit may be on a whole whose collective is still under way.
        const GatherId gather = last_gather_[wholes[i]];
        if (gather != 0) call.waits.push_back(gather);
    }
    if (!absent) call.lacks = lacks_bytes(wholes);
    if (call.waits.empty()) ask_views(call_number, out);
    for (size_t i = 0; i < decision.ahead.size(); i++) {
        queue_gather(decision.ahead_gathers[i], decision.ahead[i], false);
    }
    ask_next(out);
    return call_number;
}

void WholeGathers::queue_gather(GatherId gather, WholeId whole, bool absent)
{
    last_gather_[whole] = gather;
    hollow_[whole] = absent;
    partial_[whole] = false;
    failed_[whole] = {};
    const auto mine = std::find_if(queue_.rbegin(), queue_.rend(),
                                   [gather](const Gather &at) { return at.id == gather; });
    if (mine == queue_.rend()) queue_.push_back({gather, {}, core_.claim(), 0, absent});
    Gather &bucket = mine == queue_.rend() ? queue_.back() : *mine;
    bucket.wholes.push_back(whole);
    core_.claim_tensor(bucket.claim, tensors_[whole].shard);
    core_.claim_tensor(bucket.claim, tensors_[whole].whole);
}

void WholeGathers::note(uint64_t call, const WholeDecision &decision,
                        const std::vector<WholeId> &wholes)
{
    if (!writes_down_) return;
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
    if (writes_down_) decisions_ += format_text("drop %u\n", whole);
    const bool hollow = hollow_[whole];
    hollow_[whole] = partial_[whole] = false;
    failed_[whole] = {};
    if (lost_[whole]) return;
    if (last_gather_[whole] != 0) {
        leaving_.insert({last_gather_[whole], whole});
        last_gather_[whole] = 0;
        return;
    }
    if (hollow) return;
    if (keeps_[whole].open > 0) {
        leaving_kept_.insert({keeps_[whole].behind, whole});
        return;
    }
    // No view and no fetch is open: pins of the ledger span both.
    const Status status = core_.discard(tensors_[whole].whole, out);
    STW_ASSERT(status.ok());
}

void WholeGathers::ask_next(Commands &out)
{
    while (!queue_.empty() && queue_.front().absent) start_front({}, {});
    if (queue_.empty() || queue_.front().fetch != 0) return;
    // Its room may be that of a whole which is dropped and still being gathered. To wait for that
    // in the core's queue would keep the shard of that very gather waiting behind.
    if (!leaving_.empty() && leaving_.begin()->first < queue_.front().id) return;
    if (!leaving_kept_.empty() && leaving_kept_.begin()->first < queue_.front().id) return;
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
    queue_.front().fetch = core_.fetch(asked, out);
}

void WholeGathers::start_front(const Status &status, const std::vector<Grant> &grants)
{
    const Gather &front = queue_.front();
    StartGather start;
    start.gather = front.id;
    start.claim = front.claim;
    start.wholes = front.wholes;
    start.status = status;
    start.absent = front.absent;
    if (status.ok()) start.grants = grants;
    commands_.starts.push_back(start);
    running_[front.id] = std::move(start);
    queue_.pop_front();
}

bool WholeGathers::granted(Granted &granted, Commands &out)
{
    if (!queue_.empty() && queue_.front().fetch == granted.fetch) {
        start_front({}, granted.grants);
        ask_next(out);
        return true;
    }
    const auto view = views_.find(granted.fetch);
    if (view == views_.end()) return false;
    commands_.granted.push_back({view->second, granted.grants});
    calls_.erase(view->second);
    views_.erase(view);
    return true;
}

bool WholeGathers::refused(Refused &refused, Commands &out)
{
    if (!queue_.empty() && queue_.front().fetch == refused.fetch) {
        start_front(refused.status, {});
        ask_next(out);
        return true;
    }
    const auto view = views_.find(refused.fetch);
    if (view == views_.end()) return false;
    commands_.refused.push_back({view->second, refused.status, true, true});
    calls_.erase(view->second);
    views_.erase(view);
    return true;
}

void WholeGathers::gather_done(GatherId gather, const Status &status, bool some_absent,
                               Commands &out)
{
    const auto found = running_.find(gather);
    STW_ASSERT(found != running_.end());
    const StartGather start = std::move(found->second);
    running_.erase(found);
    for (const WholeId whole : start.wholes) {
        const WholeTensors &tensors = tensors_[whole];
        if (start.status.ok() && !start.absent) {
            Release release;
            release.tensor = tensors.whole;
            release.access = Access::kWrite;
            release.place = place_;
            release.byte_count = tensors.whole_bytes;
            release.claim = start.claim;
            release.abandon = !status.ok();
            core_.release(release, out);
        }
        const bool leaves = leaving_.erase({gather, whole}) > 0;
        core_.unclaim_tensor(start.claim, tensors.whole, leaves, out);
        core_.unclaim_tensor(start.claim, tensors.shard, false, out);
        // The ledger still has it, as on all ranks; who asks for it is told, until a call drops it.
        if (!status.ok() && !leaves) core_.fail(tensors.whole, status);
        if (last_gather_[whole] != gather) continue;
        last_gather_[whole] = 0;
        partial_[whole] = some_absent;
        failed_[whole] = status;
    }
    gather_over(gather, out);
    ask_next(out);
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
        commands_.refused.push_back({call->first, status, true, true});
        call = calls_.erase(call);
    }
}

void WholeGathers::gather_over(GatherId gather, Commands &out)
{
    for (auto at = calls_.begin(); at != calls_.end();) {
        const uint64_t call_number = at->first;
        std::vector<GatherId> &waits = (at++)->second.waits;  // who is answered at once is gone
        const size_t before = waits.size();
        waits.erase(std::remove(waits.begin(), waits.end(), gather), waits.end());
        if (before > 0 && waits.empty()) ask_views(call_number, out);
    }
}

// Of a rank that was absent, has the view open and asks for the bytes now: others have them, and no
// collective comes.
Status WholeGathers::lacks_bytes(const std::vector<WholeId> &wholes) const
{
    for (const WholeId whole : wholes) {
        if (!hollow_[whole]) continue;
        return Status::error(STW_ERROR_INVALID,
                             "tensor \"%s\" was fetched without its bytes, and that view is open: "
                             "no other rank sends them again; release it first",
                             ledger_.name(whole).c_str());
    }
    return {};
}

void WholeGathers::ask_views(uint64_t call_number, Commands &out)
{
    const Call &call = calls_[call_number];
    const auto failed = std::find_if(call.wholes.begin(), call.wholes.end(),
                                     [this](WholeId whole) { return !failed_[whole].ok(); });
    if (failed != call.wholes.end()) {
        commands_.refused.push_back({call_number, failed_[*failed], true, true});
        calls_.erase(call_number);
        return;
    }
    if (call.absent || !call.lacks.ok()) {
        if (call.absent) commands_.granted.push_back({call_number, {}});
        if (!call.absent) commands_.refused.push_back({call_number, call.lacks, true, false});
        calls_.erase(call_number);
        return;
    }
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
    views_[core_.fetch(asked, out)] = call_number;
}

bool WholeGathers::gathering(WholeId whole) const
{
    return last_gather_[whole] != 0 ||
           std::any_of(leaving_.begin(), leaving_.end(),
                       [whole](const auto &at) { return at.second == whole; });
}

StartGather WholeGathers::queued(GatherId gather) const
{
    StartGather asked;
    // One that needs no memory is started in the call, if no other one stands before it.
    if (const auto started = running_.find(gather); started != running_.end()) {
        asked.gather = gather;
        asked.claim = started->second.claim;
        asked.wholes = started->second.wholes;
        return asked;
    }
    const auto found = std::find_if(queue_.begin(), queue_.end(),
                                    [gather](const Gather &at) { return at.id == gather; });
    STW_ASSERT(found != queue_.end());
    asked.gather = gather;
    asked.claim = found->claim;
    asked.wholes = found->wholes;
    return asked;
}

void WholeGathers::release(WholeId whole, Access access, const Grant *grant, Commands &out,
                           WholeEnd end)
{
    if (end == WholeEnd::kSpoilt) ledger_.spoil(whole);
    if (partial_[whole]) ledger_.leave_last(whole);
    const WholeTensors &tensors = tensors_[whole];
    if (grant && grant->by_gate && access == Access::kRead) {
        if (core_.gate(tensors.whole, place_).unpin()) core_.gate_idle(tensors.whole, out);
    } else if (grant) {
        Release release;
        release.tensor = tensors.whole;
        release.access = access;
        release.place = place_;
        release.byte_count = tensors.whole_bytes;
        release.abandon = end == WholeEnd::kSpoilt;
        core_.release(release, out);
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

void WholeGathers::keep(WholeId whole)
{
    // One that was dropped and written again is there again: it leaves once, behind the last.
    leaving_kept_.erase({keeps_[whole].behind, whole});
    ++keeps_[whole].open;
    keeps_[whole].behind = ledger_.last_gather();
}

void WholeGathers::keep_over(WholeId whole, ClaimId claim, Commands &out)
{
    --keeps_[whole].open;
    const bool leaves =
        keeps_[whole].open == 0 && leaving_kept_.erase({keeps_[whole].behind, whole}) > 0;
    core_.unclaim_tensor(claim, tensors_[whole].whole, leaves, out);
    ask_next(out);
}

WholeCommands WholeGathers::pump()
{
    WholeCommands commands = std::move(commands_);
    commands_ = {};
    return commands;
}

}  // namespace stepwell::gathering
