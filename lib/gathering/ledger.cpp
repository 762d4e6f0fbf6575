// SPDX-License-Identifier: Apache-2.0
#include "lib/gathering/ledger.h"

#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::gathering {
namespace {

// A whole of at most one part in so many of a bucket is small.
constexpr uint64_t kSmallShare = 32;

}  // namespace

Result<WholeId> WholeLedger::add(std::string name, uint32_t blocks, uint64_t bytes)
{
    if (blocks > budget_blocks_) {
        return Status::error(
            STW_ERROR_BUDGET,
            "%s cannot be gathered: %s needed; whole_bytes %s; raise it "
            "on all ranks, or fetch the tensor by ranges",
            tensor_text(name).c_str(), bytes_text(blocks * block_bytes_).c_str(),
            sum_text({{budget_blocks_ * block_bytes_, "for all that is gathered"}}).c_str());
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
    drop(id);
    whole.removed = true;
    return {};
}

Status WholeLedger::conflict(const std::vector<WholeId> &wholes, Access access)
{
    const bool write = access != Access::kRead;
    ++asks_;
    for (const WholeId id : wholes) {
        if (id >= wholes_.size() || wholes_[id].removed) {
            return Status::error(STW_ERROR_INVALID, "there is no gathered tensor %u", id);
        }
        Whole &whole = wholes_[id];
        const bool twice = is_asked(id);
        whole.asked_at = asks_;
        if (whole.undecided) {
            return Status::error(STW_ERROR_BUSY,
                                 "tensor \"%s\" was updated speculatively, and ranks decide about "
                                 "that in the order of calls; take a step without "
                                 "STW_UPDATE_SPECULATE, its verdict, before this fetch",
                                 whole.name.c_str());
        }
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

// Of those asked for that are there, and would else count as what may be dropped.
uint64_t WholeLedger::loose_of(const std::vector<WholeId> &asked) const
{
    uint64_t blocks = 0;
    std::set<WholeId> seen;
    for (const WholeId id : asked) {
        const Whole &whole = wholes_[id];
        if (whole.present && !whole.pinned() && seen.insert(id).second) blocks += whole.blocks;
    }
    return blocks;
}

Status WholeLedger::make_room(WholeId first_asked, uint64_t needed_blocks, uint64_t kept_blocks,
                              std::vector<WholeId> &drops) const
{
    kept_blocks += used_blocks_ - loose_blocks_;
    if (needed_blocks + kept_blocks > budget_blocks_) {
        const uint64_t left = budget_blocks_ - std::min(budget_blocks_, kept_blocks);
        return Status::error(
            STW_ERROR_BUDGET,
            "%s and what is fetched with it cannot be gathered: %s needed; whole_bytes "
            "%s; release views, or raise it on all ranks",
            tensor_text(wholes_[first_asked].name).c_str(),
            bytes_text(needed_blocks * block_bytes_).c_str(),
            sum_text({{kept_blocks * block_bytes_, "in use or fetched with it"},
                      {left * block_bytes_, "free or not in use"}})
                .c_str());
    }
    // Call numbers and ids: the order is total and the same on all ranks.
    uint64_t used = used_blocks_;
    for (const auto &[used_at, id] : loose_) {
        if (used + needed_blocks <= budget_blocks_) break;
        if (is_asked(id)) continue;
        used -= wholes_[id].blocks;
        drops.push_back(id);
    }
    return {};
}

void WholeLedger::take_out(WholeId id)
{
    if (loose_.erase({wholes_[id].used_at, id}) > 0) loose_blocks_ -= wholes_[id].blocks;
}

void WholeLedger::put_in(WholeId id)
{
    const Whole &whole = wholes_[id];
    if (!whole.present || whole.pinned()) return;
    if (loose_.insert({whole.used_at, id}).second) loose_blocks_ += whole.blocks;
}

WholeDecision WholeLedger::fetch(const std::vector<WholeId> &wholes, Access access)
{
    WholeDecision decision;
    decision.status = conflict(wholes, access);
    if (!decision.status.ok()) return decision;

    std::vector<WholeId> absent;
    uint64_t needed_blocks = 0;
    for (const WholeId id : wholes) {
        Whole &whole = wholes_[id];
        const bool fetched = !whole.present && !whole.counted;
        decision.needs.push_back(!fetched                   ? WholeNeed::kHit
                                 : access == Access::kWrite ? WholeNeed::kFill
                                                            : WholeNeed::kGather);
        if (!fetched) continue;
        whole.counted = true;
        absent.push_back(id);
        needed_blocks += whole.blocks;
    }
    for (const WholeId id : absent) wholes_[id].counted = false;
    if (needed_blocks > 0) {
        decision.status = make_room(wholes[0], needed_blocks, loose_of(wholes), decision.drops);
        if (!decision.status.ok()) {
            decision.needs.clear();
            return decision;
        }
    }
    for (const WholeId id : decision.drops) drop(id);
    for (const WholeId id : absent) bring(id);
    calls_++;
    for (const WholeId id : wholes) {
        Whole &whole = wholes_[id];
        take_out(id);
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
        foresight_.fetched(id, wholes_[id].changed_at >= std::max<uint64_t>(learned_at_, 1));
    }
    learned_at_ = calls_;
}

// What is foreseen is gathered while the program works on what it has.
void WholeLedger::look_ahead(WholeDecision &decision)
{
    std::vector<Foresight::Coming> coming;
    foresight_.coming(ahead_max_, coming);
    std::vector<WholeId> foreseen;
    ++asks_;
    for (const Foresight::Coming &next : coming) {
        foreseen.push_back(next.whole);
        wholes_[next.whole].asked_at = asks_;
    }
    uint64_t kept_blocks = loose_of(foreseen);
    for (const Foresight::Coming &next : coming) {
        if (!wholes_[next.whole].present && !wholes_[next.whole].undecided) {
            if (!gather_ahead(next, kept_blocks, decision)) break;
            kept_blocks += wholes_[next.whole].blocks;
        }
    }
}

// Never for something that is foreseen itself. False: there is no room to look further.
bool WholeLedger::gather_ahead(const Foresight::Coming &coming, uint64_t kept_blocks,
                               WholeDecision &decision)
{
    Whole &whole = wholes_[coming.whole];
    if (whole.removed) return false;
    std::vector<WholeId> drops;
    if (!make_room(coming.whole, whole.blocks, kept_blocks, drops).ok()) return false;
    for (const WholeId leaves : drops) {
        drop(leaves);
        decision.drops.push_back(leaves);
    }
    whole.ahead = true;
    whole.foreseen_at = coming.spot;
    whole.used_at = calls_;
    bring(coming.whole);
    put_in(coming.whole);
    decision.ahead.push_back(coming.whole);
    decision.ahead_gathers.push_back(++gathers_);
    return true;
}

// Its shards are others from now on. Gathered ahead, it was so in vain, and would be the next time.
void WholeLedger::change(WholeId id)
{
    Whole &whole = wholes_[id];
    whole.changed_at = calls_;
    if (whole.present && whole.ahead) foresight_.bar(whole.foreseen_at);
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
    put_in(id);
    if (whole.pinned() || (!whole.old && !whole.leaves_last)) return false;
    drop(id);
    return true;
}

Status WholeLedger::write(WholeId id, bool &dropped)
{
    const Whole &whole = wholes_[id];
    dropped = false;
    if (whole.pinned()) {
        return Status::error(STW_ERROR_BUSY, "tensor \"%s\" has open views of its gathered whole",
                             whole.name.c_str());
    }
    dropped = whole.present;
    change(id);
    drop(id);
    return {};
}

void WholeLedger::update(WholeId id, bool &dropped)
{
    Whole &whole = wholes_[id];
    change(id);
    dropped = whole.present && !whole.pinned();
    if (whole.present && whole.pinned()) whole.old = true;
    if (dropped) drop(id);
}

void WholeLedger::bring(WholeId id)
{
    wholes_[id].present = true;
    used_blocks_ += wholes_[id].blocks;
}

void WholeLedger::drop(WholeId id)
{
    Whole &whole = wholes_[id];
    take_out(id);
    if (whole.present) used_blocks_ -= whole.blocks;
    whole.present = false;
    whole.old = whole.leaves_last = false;
    whole.ahead = false;
}

}  // namespace stepwell::gathering
