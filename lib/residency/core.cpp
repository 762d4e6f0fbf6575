// SPDX-License-Identifier: Apache-2.0
// The events of the core that need several of its parts.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <utility>

namespace stepwell::residency {

Core::Core(Config config)
    : Queries(std::move(config)),
      victims_(places_, blocks_, packs_, gates_, recency_, order_),
      evictions_(places_, blocks_, packs_, addresses_, gates_, order_, transfers_, occupancy_,
                 victims_),
      write_back_(places_, blocks_, packs_, addresses_, gates_, recency_, order_, transfers_,
                  occupancy_, victims_, evictions_),
      outlook_(places_, tensors_, blocks_, packs_, gates_, recency_, transfers_),
      runs_(places_, blocks_, packs_, gates_, recency_, order_, transfers_, occupancy_, victims_,
            evictions_, outlook_),
      reservation_(places_, blocks_, packs_, promises_, addresses_, gates_, order_, transfers_,
                   occupancy_, victims_, evictions_, outlook_, runs_),
      fills_(places_, tensors_, blocks_, packs_, addresses_, transfers_, occupancy_),
      runner_(places_, tensors_, blocks_, packs_, addresses_, gates_, recency_, order_, occupancy_,
              locks_, fetches_, victims_, write_back_, outlook_, reservation_, fills_),
      lifetimes_(places_, tensors_, blocks_, packs_, promises_, gates_, recency_, order_,
                 occupancy_, fetches_, write_back_, runner_),
      deadlocks_(tensors_, blocks_, packs_, gates_, recency_, transfers_, fetches_)
{
}

Core::~Core() = default;

std::string Core::check() const
{
    std::string broken = Queries::check();
    return broken.empty() ? victims_.check() : broken;
}

FetchId Core::fetch(const FetchAsked &asked, Commands &out)
{
    const FetchId id = fetches_.next_id();
    Status wrong = locks_.check_request(asked);
    if (!wrong.ok()) {
        out.refused.push_back({id, std::move(wrong)});
        return id;
    }
    fetches_.add(id, asked);
    runner_.advance(out);
    return id;
}

void Core::cancel(FetchId id, Status why, Commands &out)
{
    if (!fetches_.has(id)) return;
    runner_.refuse(id, std::move(why), out);
    runner_.advance(out);
}

void Core::release(const Release &release, Commands &out)
{
    Tensor &tensor = tensors_[release.tensor];
    const BlockRange range = packs_.blocks_of(tensor, release.byte_begin, release.byte_count);
    const BlockId first = packs_[tensor.pack].first;
    const bool internal = release.internal || release.claim != 0;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        Replica &here = blocks_.replica(block, release.place);
        if (internal) {
            blocks_.let_go(block, release.place);
        } else {
            STW_ASSERT(here.pins > 0);
            --here.pins;
        }
        if (release.far) {
            Pack &pack = packs_[tensor.pack];
            const bool alone = pack.tensors.size() == 1;
            // The update of each small tensor in a shared block changes the block again.
            const bool others = pack.claimed > (tensor.claims.empty() ? 0u : 1u);
            if (others) pack.clean_late = true;
            // A copy to one of them says nothing about the others.
            if (alone || others || !internal) recency_.cool(block, release.place);
            if (alone) write_back_.clean_soon(block, release.place);
        } else if (release.near) {
            recency_.heat(block, release.place);
        }
    }
    const Request request{release.tensor, release.access, release.place, release.byte_begin,
                          release.byte_count};
    locks_.unlock(request, release.place, release.claim);
    STW_ASSERT(!release.beside_readers || tensor.touched > 0);
    tensor.touched -= release.beside_readers;
    if (release.access != Access::kRead) {
        end_write(release, out);
        for (uint32_t index = range.first; index < range.second; ++index)
            addresses_.protect(first + index, release.place);
    }
    write_back_.wake();
    gates_.update(release.tensor, release.place);
    addresses_.conceal(release.tensor);
    runner_.advance(out);
}

void Core::end_write(const Release &release, Commands &out)
{
    Tensor &tensor = tensors_[release.tensor];
    if (release.unshown && release.access == Access::kReadWrite) return;
    ++tensor.version;
    if (release.abandon || release.discard || release.unshown) {
        lifetimes_.drop_contents(release.tensor, out);
        return;
    }
    // A write of a part does not heal the rest.
    const bool whole = release.byte_begin == 0 && release.byte_count >= tensor.spec.bytes;
    if (!tensor.cause.ok() && !whole) return;
    packs_.set_contents(release.tensor, Contents::kValid);
    tensor.cause = Status();
}

void Core::gate_idle(TensorId id, Commands &out)
{
    for (PlaceId place = 0; place < places_.count(); ++place) gates_.update(id, place);
    addresses_.conceal(id);
    runner_.advance(out);
}

void Core::touch(TensorId id, PlaceId place)
{
    const Tensor &tensor = tensors_[id];
    if (!tensor.alive) return;
    const BlockRange range = packs_.blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        Replica &here = blocks_.replica(block, place);
        occupancy_.note_use(block, place);
        if (here.listed) recency_.heat(block, place);
    }
    order_.look_at_plan(tensor.pack);
}

void Core::release_hint(TensorId id, PlaceId place, bool far, Commands &out)
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = packs_.blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        if (!blocks_.replica(block, place).listed) continue;
        if (far) {
            recency_.cool(block, place);
            if (packs_[tensor.pack].tensors.size() == 1) write_back_.clean_soon(block, place);
        } else {
            recency_.heat(block, place);
        }
    }
    runner_.advance(out);
}

ClaimId Core::claim(ClaimKind kind)
{
    next_claim_ += kClaimKinds;
    return next_claim_ + static_cast<ClaimId>(kind);
}

void Core::claim_tensor(ClaimId claim, TensorId id)
{
    Tensor &tensor = tensors_[id];
    tensor.claims.push_back(claim);
    packs_[tensor.pack].claimed += tensor.claims.size() == 1;
    if (!is_exclusive(claim)) return;
    tensor.passed = false;
    for (PlaceId place = 0; place < places_.count(); ++place) gates_.close(id, place);
    addresses_.conceal(id);
}

void Core::lend(ClaimId claim, TensorId id, Commands &out)
{
    STW_ASSERT(tensors_[id].claim() == claim && tensors_[id].claim_users == 0);
    tensors_[id].stage = ClaimStage::kLent;
    runner_.advance(out);
}

bool Core::lend_once(TensorId id, FetchId fetch, Commands &out)
{
    if (tensors_[id].claim_users > 0) return locks_.waits_for_claim(fetches_.find(fetch), id);
    const ClaimStage before = std::exchange(tensors_[id].stage, ClaimStage::kLent);
    runner_.advance(out);
    const bool barred = locks_.waits_for_claim(fetches_.find(fetch), id);
    if (tensors_[id].stage == ClaimStage::kLent) tensors_[id].stage = before;
    return barred;
}

void Core::hold_touches(ClaimId claim, TensorId id)
{
    Tensor &tensor = tensors_[id];
    if (tensor.claim() != claim) return;  // it has ended meanwhile
    tensor.holds_touches = true;
    tensor.passed = false;
    addresses_.conceal(id);
}

void Core::empty_tensor(TensorId id, Commands &out)
{
    ++tensors_[id].version;
    lifetimes_.drop_contents(id, out);
}

void Core::unclaim_tensor(ClaimId claim, TensorId id, bool empties, Commands &out)
{
    Tensor &tensor = tensors_[id];
    const auto mine = std::find(tensor.claims.begin(), tensor.claims.end(), claim);
    STW_ASSERT(mine != tensor.claims.end());
    const bool held = mine == tensor.claims.begin();
    STW_ASSERT(!held || tensor.claim_users == 0);
    if (held) tensor.older = kNone;
    if (held) tensor.stage = ClaimStage::kNext;
    if (held) tensor.holds_touches = false;
    if (held && empties && tensor.readers == 0 && !tensor.writer) empty_tensor(id, out);
    tensor.claims.erase(mine);
    if (tensor.claims.empty()) write_back_.end_claims(packs_[tensor.pack]);
    // A view in a gate may have ended after the claim came, and what it covered is still mapped.
    addresses_.conceal(id);
    for (PlaceId place = 0; place < places_.count(); ++place) gates_.update(id, place);
    runner_.advance(out);
}

void Core::transfer_done(TransferId id, const Status &status, Commands &out, bool more)
{
    const bool known = transfers_.find(id) != nullptr;
    STW_ASSERT(known);
    if (!known) return;
    const Flight flight = transfers_.finish(id);
    const BlockId id_block = flight.transfer.block;
    Block &block = blocks_[id_block];
    if (!flight.ordered) occupancy_.settle_target(flight, status.ok(), out);
    if (flight.ordered && !status.ok()) occupancy_.unsettle_target(flight, status, out);
    occupancy_.settle_source(flight, status.ok(), out);
    if (!status.ok() && flight.writes_back && flight.epoch == block.epoch) {
        block.write_failed = true;
        // Every tensor with bytes in the block is reported.
        for (const TensorId at : packs_[block.pack].tensors) {
            if (tensors_[at].contents != Contents::kEmpty) out.errors.push_back({at, status});
        }
    }
    // A read from nvme leaves the bytes there: there is nothing more to write back than before.
    const PlaceId from = flight.transfer.from;
    if (!status.ok() || from == kNoPlace || !places_.is_nvme(from)) write_back_.wake();
    runner_.wake_waiters(id_block, status.ok() ? nullptr : &flight, status, out);
    Pack &pack = packs_[block.pack];
    if (!pack.shared && !pack.tensors.empty()) addresses_.conceal(pack.tensors.front());
    if (pack.dead) {
        bool in_flight = false;
        for (BlockId at = pack.first; at < pack.first + pack.blocks; ++at) {
            in_flight |= blocks_[at].transfers > 0;
        }
        if (!in_flight) lifetimes_.free_pack(block.pack, out);
    }
    for (PlaceId place = 0; place < places_.count(); ++place)
        victims_.note_evictable(id_block, place);
    if (!more) runner_.advance_queue(out);
}

void Core::transfer_ordered(TransferId id, Commands &out)
{
    Flight *found = transfers_.find(id);
    if (!found || found->ordered) return;
    Flight &flight = *found;
    const Transfer &transfer = flight.transfer;
    STW_ASSERT(transfer.kind == TransferKind::kMove);
    flight.ordered = true;
    occupancy_.settle_target(flight, true, out);
    runner_.wake_waiters(transfer.block, nullptr, {}, out);
    runner_.advance(out);
}

void Core::tick(Instant now, Commands &out)
{
    while (fetches_.has_due(now)) {
        const FetchId id = fetches_.first_due();
        const Fetch &fetch = fetches_.at(id);
        const char *what = fetch.lacks == Lacks::kLocks  ? "a conflicting view or update"
                           : fetch.lacks == Lacks::kRoom ? "room"
                                                         : "its transfers";
        const TensorId tensor = fetch.asked.requests.front().tensor;
        Status status = Status::error(
            STW_ERROR_TIMEOUT,
            "the fetch of %s (%zu request%s) timed out while it waited for %s%s; %zu "
            "transfers are in flight and %zu fetches wait",
            tensor_text(tensors_[tensor].spec.name).c_str(), fetch.asked.requests.size(),
            plural(fetch.asked.requests.size()), what, locks_.describe_conflict(fetch).c_str(),
            transfers_.flights().size(), fetches_.queue().size());
        status.mutable_detail().tensor = tensors_[tensor].spec.name;
        runner_.refuse(id, std::move(status), out);
    }
    runner_.advance(out);
}

void Core::list_blocks(TensorId id, PlaceId place, std::vector<BlockId> *blocks) const
{
    const Tensor &tensor = tensors_[id];
    if (tensor.older != kNone && places_.is_nvme(place)) return;  // to be kept
    const BlockRange range = packs_.blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    for (BlockId block = first + range.first; block < first + range.second; ++block)
        if (blocks_.replica(block, place).slot != kNoSlot) blocks->push_back(block);
}

// A block that was given up and taken by another tensor meanwhile is evicted in its place.
void Core::evict(std::vector<BlockId> *blocks, PlaceId place, Commands &out)
{
    order_.begin_event();
    std::erase_if(*blocks, [&](BlockId block) {
        const Replica &there = blocks_.replica(block, place);
        if (there.slot != kNoSlot) evictions_.start(block, place, out);
        return there.slot == kNoSlot;
    });
    runner_.advance(out);
}

uint64_t Core::evict(TensorId id, PlaceId place, Commands &out)
{
    std::vector<BlockId> blocks;
    list_blocks(id, place, &blocks);
    evict(&blocks, place, out);
    return blocks.size();
}

uint64_t Core::write_back_all(Commands &out)
{
    const PlaceId last = places_.last();
    if (!places_.is_nvme(last) || !places_.exists(last)) return 0;
    const uint64_t left = write_back_.queue_all();
    runner_.advance(out);
    return left;
}

void Core::forgive(Commands &out)
{
    for (BlockId id = 0; id < blocks_.size(); ++id) {
        if (!std::exchange(blocks_[id].write_failed, false)) continue;
        for (PlaceId place = 0; place < places_.count(); ++place)
            victims_.note_evictable(id, place);
    }
    for (TensorId id = 0; id < tensors_.size(); ++id) {
        Tensor &tensor = tensors_[id];
        if (tensor.contents == Contents::kValid) tensor.cause = Status();
    }
    write_back_.wake();
    runner_.advance(out);
}

uint64_t Core::shrink(PlaceId place, uint32_t blocks, Commands &out)
{
    Arena &arena = places_.arena(place);
    if (!places_.is_shrinking(place)) places_.begin_shrink(place, blocks);
    recency_.wake_all();
    STW_ASSERT(arena.budget() == blocks);
    const Fetch nobody;
    order_.begin_event();
    while (!places_.is_nvme(place) && arena.too_many() > occupancy_.coming(place)) {
        const BlockId victim = victims_.pick(place, nobody);
        if (victim == kNone || !evictions_.start(victim, place, out)) break;
    }
    runner_.advance(out);
    return arena.too_many();
}

void Core::set_budget(PlaceId place, uint32_t blocks, Commands &out)
{
    places_.set_budget(place, blocks);
    lifetimes_.settle(promises_.move_farther(place), out);
    packs_.note_homes_changed();
    recency_.wake_all();
    write_back_.wake();
    runner_.advance(out);
}

}  // namespace stepwell::residency
