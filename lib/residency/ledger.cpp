// SPDX-License-Identifier: Apache-2.0
#include "lib/residency/ledger.h"

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
    if (whole.pinned() || (!whole.old && !whole.leaves_last)) return false;
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
    whole.old = whole.leaves_last = false;
    whole.ahead = false;
}

}  // namespace stepwell::residency
