// SPDX-License-Identifier: Apache-2.0
// The tiers as the update pipeline sees them, on top of the core: claims, and pieces wherever the
// CPU can work on them. Called by the pipeline's threads with none of its locks held.
#include "lib/runtime/updates/tiers.h"

#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/updates/devices.h"
#include "lib/runtime/updates/piece_fetch.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/support/assert.h"
#include "lib/transfer/engine.h"

#include <algorithm>
#include <memory>

namespace stepwell {

bool may_undo(const memory::TierSet &tiers, const std::vector<uint64_t> &rooms, uint32_t n,
              uint32_t to_host)
{
    const residency::PlaceId host = tiers.host();
    bool works = false;
    for (residency::PlaceId place = 0; place <= host; ++place) {
        if (!tiers[place].cpu_access || rooms[place] == 0) continue;
        const uint32_t here = place == host || rooms[host] == 0 ? n : n - to_host;
        if (n + 1 + here > rooms[place]) return false;
        works = true;
    }
    return works;
}

uint64_t TierAccess::block_bytes() const
{
    return machine_.block_bytes;
}

residency::ClaimId TierAccess::claim(const residency::TensorId *tensors, uint32_t n)
{
    dispatch_.give_way();
    MutexLock lock(dispatch_.mutex());  // no event: a claim gives no commands
    return take_claim(residency::ClaimKind::kUpdate, tensors, n);
}

// For claims outside the pipeline, which has an order of its own. What it has before the claim goes
// first there: else updates behind the claim might take all of its window.
residency::ClaimId TierAccess::claim_alone(residency::TensorId tensor)
{
    dispatch_.give_way();
    residency::ClaimId claim = 0;
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        claim = take_claim(residency::ClaimKind::kAlone, &tensor, 1);
        machine_.pipeline->prefer(tensor);
    });
    return claim;
}

residency::ClaimId TierAccess::take_claim(residency::ClaimKind kind,
                                          const residency::TensorId *tensors, uint32_t n)
{
    recorder_.drain_hits();
    const residency::ClaimId claim = dispatch_.core.claim(kind);
    for (uint32_t i = 0; i < n; ++i) dispatch_.core.claim_tensor(claim, tensors[i]);
    return claim;
}

void TierAccess::unclaim(residency::ClaimId claim, const residency::TensorId *tensors, uint32_t n,
                         uint64_t emptied)
{
    uint64_t later = 0;  // of an update that was rejected before it fetched anything
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (uint32_t i = 0; i < n; ++i) {
            const bool empties = (emptied >> i & 1) != 0;
            if (empties && !core.is_alone(claim, tensors[i])) {
                later |= uint64_t{1} << i;
                continue;
            }
            core.unclaim_tensor(claim, tensors[i], empties, out);
            if (empties && handles_.at(tensors[i]) != nullptr)
                recorder_.note_discard(schedule::Lane::kUpdate, tensors[i]);
        }
        recorder_.plan_due = true;  // plans skip tensors that are claimed
    });
    for (uint32_t i = 0; later >> i != 0; ++i)
        if ((later >> i & 1) != 0) empty_behind(claim, tensors[i]);
}

void TierAccess::empty_behind(residency::ClaimId claim, residency::TensorId tensor)
{
    struct Emptying {
        TierAccess *owner;
        residency::ClaimId claim;
        residency::TensorId tensor;
    };
    auto *work = new Emptying{this, claim, tensor};
    {
        MutexLock lock(dispatch_.mutex());
        ++emptying;
    }
    update::Piece piece;
    piece.tensor = tensor;
    piece.access = residency::Access::kRead;
    piece.byte_count = 1;
    fetch(
        claim, &piece, 1, residency::kAnyCpuPlace, residency::Class::kDemand,
        [](void *user, const Status &status, uint64_t ticket, void *const *) {
            const std::unique_ptr<Emptying> mine(static_cast<Emptying *>(user));
            TierAccess &owner = *mine->owner;
            if (status.ok()) owner.release(ticket, 0);
            owner.dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
                core.unclaim_tensor(mine->claim, mine->tensor, true, out);
                if (owner.handles_.at(mine->tensor) != nullptr)
                    owner.recorder_.note_discard(schedule::Lane::kUpdate, mine->tensor);
                owner.recorder_.plan_due = true;
                --owner.emptying;
            });
        },
        work);
}

// The engine frees a transfer before it reports its end to the sink.
bool TierAccess::moves()
{
    return machine_.engine->jobs_in_flight() > 0;
}

void TierAccess::lend(residency::ClaimId claim, residency::TensorId tensor)
{
    dispatch_.act([&](Core &core, Commands &out)
                      STW_REQUIRES(runtime_lock) { core.lend(claim, tensor, out); });
}

void TierAccess::judge(
    const std::vector<std::pair<residency::ClaimId, residency::TensorId>> &written)
{
    if (!machine_.touches) return;
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        for (const auto &[claim, tensor] : written) core.hold_touches(claim, tensor);
    });
}

void TierAccess::fail(residency::TensorId tensor, const Status &cause)
{
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        core.fail(tensor, cause);
        errors_.add(tensor, cause);
    });
}

void TierAccess::miss(residency::TensorId tensor, const Status &cause)
{
    dispatch_.act([&](Core &core, Commands &)
                      STW_REQUIRES(runtime_lock) { core.miss(tensor, cause); });
}

void TierAccess::empty(residency::TensorId tensor)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        core.empty_tensor(tensor, out);
        errors_.forget(tensor);
    });
}

void TierAccess::versions(residency::ClaimId claim, const residency::TensorId *tensors, uint32_t n,
                          uint64_t *versions_out)
{
    MutexLock lock(dispatch_.mutex());
    for (uint32_t i = 0; i < n; ++i) {
        const residency::TensorId tensor = tensors[i];
        const bool settled = dispatch_.core.claimed_by(tensor) == claim &&
                             !dispatch_.core.in_use(tensor) &&
                             dispatch_.core.contents(tensor) == residency::Contents::kValid;
        versions_out[i] = settled ? dispatch_.core.version(tensor) : 0;
    }
}

residency::Contents TierAccess::contents(residency::TensorId tensor)
{
    MutexLock lock(dispatch_.mutex());
    return dispatch_.core.contents(tensor);
}

uint64_t TierAccess::version(residency::TensorId tensor)
{
    MutexLock lock(dispatch_.mutex());
    return dispatch_.core.version(tensor);
}

residency::TensorId TierAccess::make_older(residency::TensorId tensor, bool copied)
{
    Status refusal;
    {
        MutexLock lock(dispatch_.mutex());
        if (dispatch_.core.blocks_of(tensor).shares && !copied) return residency::kNone;
        const residency::TensorSpec &of = dispatch_.core.spec(tensor);
        residency::TensorSpec spec;
        spec.name = of.name;
        spec.bytes = of.bytes;
        spec.role = of.role;
        spec.no_packing = true;
        spec.policy = of.policy;
        Result<residency::TensorId> made = buffers_.make(spec);
        if (made.ok()) return made.value();
        refusal = std::move(made.status());
    }
    dispatch_.log.print(STW_LOG_WARNING, "update",
                        "A parameter is updated after the verdict, not before it, as there is no "
                        "room for its older contents: %s",
                        refusal.sentence());
    return residency::kNone;
}

void TierAccess::drop_older(residency::TensorId older)
{
    buffers_.drop_scratch(older);
}

// A tensor that is all at nvme leaves its older contents in the slots that they have there; of
// another one they are copied in memory, where that is the smaller part or there is free room. To
// undo the update takes a block of each older one at once, beside those of an update.
bool TierAccess::keep_older(const residency::TensorId *tensors, const residency::TensorId *older,
                            uint32_t n, uint64_t taken, update::OlderCopies *copies_out)
{
    *copies_out = {};
    const residency::PlaceId nvme = machine_.tiers.nvme();
    MutexLock lock(dispatch_.mutex());
    Core &core = dispatch_.core;
    std::vector<uint64_t> rooms;
    for (residency::PlaceId place = 0; place <= machine_.tiers.host(); ++place)
        rooms.push_back(core.budget_blocks(place));
    const auto to_host = static_cast<uint32_t>(
        std::count_if(older, older + n, [&](residency::TensorId at) STW_REQUIRES(runtime_lock) {
            return (core.spec(at).policy.allowed >> machine_.tiers.host() & 1) != 0;
        }));
    if (!may_undo(machine_.tiers, rooms, n, to_host)) return false;
    uint64_t copies = 0;
    uint64_t copied_bytes = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint64_t its_bytes = core.spec(tensors[i]).bytes;
        bytes += its_bytes;
        const bool shares = core.blocks_of(tensors[i]).shares;
        if (!shares && (core.residence(tensors[i]) >> nvme & 1) != 0) continue;
        copies |= uint64_t{1} << i;
        copied_bytes += its_bytes;
    }
    if (copied_bytes * 2 > bytes) {
        const uint64_t free_bytes = core.free_bytes(machine_.tiers.host());
        copies_out->bytes = copied_bytes;
        copies_out->free_bytes = free_bytes - std::min(free_bytes, taken);
        if (copied_bytes > copies_out->free_bytes) return false;
    }
    for (uint32_t i = 0; i < n; ++i) {
        if ((copies >> i & 1) == 0) core.keep_older(tensors[i], older[i]);
    }
    copies_out->tensors = copies;
    return true;
}

void TierAccess::fetch(residency::ClaimId claim, const update::Piece *pieces, uint32_t n,
                       residency::PlaceId place, residency::Class urgency, update::FetchDone done,
                       void *user)
{
    STW_ASSERT(n <= update::kPiecesMax);
    auto *mine = new PieceFetch();
    mine->owner = this;
    mine->claim = claim;
    mine->count = n;
    mine->done = done;
    mine->user = user;
    residency::FetchAsked asked;
    asked.claim = claim;
    // An update that was accepted must not fail because views pin the room at the moment.
    asked.flags = residency::kFetchInternal | residency::kFetchWaitRoom;
    asked.urgency = urgency;
    for (uint32_t i = 0; i < n; ++i) {
        mine->pieces[i] = pieces[i];
        asked.requests.push_back({pieces[i].tensor, pieces[i].access, place, pieces[i].byte_begin,
                                  pieces[i].byte_count});
    }
    mine->waiter.user = mine;
    mine->waiter.call = [](Waiter &waiter) {
        auto *fetch = static_cast<PieceFetch *>(waiter.user);
        const update::FetchDone tell = fetch->done;
        void *whom = fetch->user;
        if (!waiter.status.ok()) {
            const Status status = std::move(waiter.status);
            delete fetch;
            tell(whom, status, 0, nullptr);
            return;
        }
        void *pointers[update::kPiecesMax];
        {
            MutexLock lock(fetch->owner->dispatch_.mutex());
            for (uint32_t i = 0; i < fetch->count; ++i) {
                fetch->places[i] = waiter.grants[i].place;
                fetch->slots[i] = waiter.grants[i].slot;
                pointers[i] =
                    fetch->owner->addresses_.piece_pointer(waiter.grants[i], fetch->pieces[i]);
            }
        }
        tell(whom, Status(), reinterpret_cast<uint64_t>(fetch), pointers);
    };
    dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        recorder_.note_update(asked);
        dispatch_.ask(mine->waiter, asked, out);
    });
}

void TierAccess::updates_wait()
{
    MutexLock lock(dispatch_.mutex());
    sleepers_.look_again();
    dispatch_.settle();
}

void TierAccess::release(uint64_t ticket, uint64_t far_pieces)
{
    auto *mine = reinterpret_cast<PieceFetch *>(ticket);
    device_updates_.end_update(*mine);
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (uint32_t i = 0; i < mine->count; ++i) {
            residency::Release release;
            release.tensor = mine->pieces[i].tensor;
            release.access = mine->pieces[i].access;
            release.place = mine->places[i];
            release.byte_begin = mine->pieces[i].byte_begin;
            release.byte_count = mine->pieces[i].byte_count;
            release.far = (far_pieces >> i & 1) != 0;
            release.internal = true;
            release.claim = mine->claim;
            recorder_.note_update_end(release);
            core.release(release, out);
        }
    });
    delete mine;
}

uint64_t TierAccess::pack_offset(residency::TensorId tensor) const
{
    return addresses_.pack_offset(tensor);
}

}  // namespace stepwell
