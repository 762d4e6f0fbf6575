// SPDX-License-Identifier: Apache-2.0
// Promises of room: what a tensor needs in the farthest tier that has room for it, and in the home
// of what never leaves it.
#include "lib/residency/promises.h"

#include <algorithm>
#include <utility>

namespace stepwell::residency {
namespace {

constexpr uint32_t kVisitShare = 16;  // of a budget, kept from packs that could live farther

}  // namespace

// What is promised at the place may be stored in no farther tier, or is pinned there.
Status Promises::may_shrink(PlaceId place, uint32_t blocks) const
{
    const uint64_t needed = uint64_t{promised_[place]} + places_.arena(place).whole_slots();
    if (blocks >= needed) return {};
    const uint64_t block = places_.block_bytes();
    const uint64_t aside = places_[place].aside_bytes;
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%s cannot shrink to %s: of its budget it needs %s; allow tensors another tier, give a "
        "farther one more room, or destroy some",
        places_.name(place).c_str(), bytes_text(aside + blocks * block).c_str(),
        sum_text({{aside, "for staging and scratch"},
                  {places_.arena(place).whole_slots() * block, "for gathered wholes"},
                  {promised_[place] * block, "promised to tensors that may rest nowhere farther"}})
            .c_str());
    ErrorDetail &detail = status.mutable_detail();
    detail.tier = static_cast<uint32_t>(places_[place].tier);
    detail.device = places_[place].device;
    detail.needed_bytes = needed * block;
    return status;
}

// kept: of what is left, not for this tensor.
Status Promises::can_promise(PlaceId place, uint32_t blocks, uint32_t kept) const
{
    const uint32_t wholes = places_.arena(place).whole_slots();
    const uint32_t budget = places_.arena(place).budget() - wholes;
    const uint32_t withheld = places_.is_nvme(place) ? withheld_ : 0;
    const uint64_t promised = uint64_t{promised_[place]} + withheld;
    const uint64_t taken = promised + std::min<uint64_t>(kept, budget - promised);
    if (blocks + taken <= budget) return {};
    const uint64_t block = places_.block_bytes();
    const uint64_t left = taken < budget ? budget - taken : 0;
    const uint64_t aside = places_.arena(place).budget() > 0 ? places_[place].aside_bytes : 0;
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%s cannot promise room: %s needed; budget %s; raise the budget, allow another tier, or "
        "destroy what is not needed",
        places_.name(place).c_str(), bytes_text(blocks * block).c_str(),
        sum_text({{aside, "for staging and scratch"},
                  {wholes * block, "for gathered wholes"},
                  {promised_[place] * block, "promised to other tensors"},
                  {withheld * block, "kept for generations of tensors that are gone or frozen"},
                  {(taken - promised) * block, "for tensors of other tiers that are worked on"},
                  {left * block, "left"}})
            .c_str());
    ErrorDetail &detail = status.mutable_detail();
    detail.tier = static_cast<uint32_t>(places_[place].tier);
    detail.device = places_[place].device;
    detail.needed_bytes = blocks * block;
    detail.free_bytes = left * block;
    return status;
}

uint32_t Promises::left(PlaceId place) const
{
    const uint64_t taken = uint64_t{promised_[place]} + places_.arena(place).whole_slots() +
                           (places_.is_nvme(place) ? withheld_ : 0);
    const uint32_t budget = places_.arena(place).budget();
    return taken < budget ? static_cast<uint32_t>(budget - taken) : 0;
}

// Blocks that the place keeps free of promises for guests: those of the widest fetch so far or of
// the largest pack that may come whole; before the farthest place at least a share of the budget.
uint32_t Promises::kept_for_visits(PlaceId place, bool farthest) const
{
    const uint32_t share = (places_.arena(place).budget() + kVisitShare - 1) / kVisitShare;
    return std::max(farthest ? std::min(share, 1u) : share, visits_[place]);
}

// Devices are equally far: the home, or the device with most room left.
PlaceId Promises::choose_device(const Pack &pack, PlaceId last, bool beside_visits) const
{
    const Policy &policy = pack.key.policy;
    PlaceId best = kNoPlace;
    uint32_t most = 0;
    for (PlaceId place = 0; place <= last; ++place) {
        if (places_[place].tier != Tier::kDevice) break;
        if (!places_.is_open(place) || !(policy.allowed & (1u << place))) continue;
        const uint32_t kept = beside_visits ? kept_for_visits(place) : 0;
        const uint32_t room = left(place) > kept ? left(place) - kept : 0;
        if (place == policy.home && room >= pack.blocks) return place;
        if (best != kNoPlace && room <= most) continue;
        best = place;
        most = room;
    }
    return !beside_visits || most >= pack.blocks ? best : kNoPlace;
}

// A generation is read from nvme. What the library makes for a while takes no room that others are
// to move through.
bool Promises::stays_farthest(const Pack &pack) const
{
    return pack.key.durable || pack.passing || places_.config().room_farthest;
}

// A pack moves between places only if each that it may be at has room for guests.
bool Promises::has_room_to_move(const Pack &pack, PlaceId farthest) const
{
    for (PlaceId place = 0; place < places_.count(); ++place) {
        const bool visited = places_.is_open(place) && !places_.is_nvme(place) &&
                             (pack.key.policy.allowed & (1u << place)) != 0;
        if (visited && left(place) < kept_for_visits(place, place == farthest)) return false;
    }
    return true;
}

// The farthest place before `farthest` that has room beside what moves through it; of what is
// pinned its home.
PlaceId Promises::choose_nearer(const Pack &pack, PlaceId farthest) const
{
    const Policy &policy = pack.key.policy;
    if (stays_farthest(pack) || !has_room_to_move(pack, farthest)) return kNoPlace;
    if (policy.retention == Retention::kPin) {
        const bool other = policy.home < places_.count() && policy.home != farthest;
        return other && left(policy.home) >= pack.blocks ? policy.home : kNoPlace;
    }
    for (PlaceId place = farthest; place-- > 0;) {
        if (places_[place].tier == Tier::kDevice) return choose_device(pack, place, true);
        if (!places_.is_open(place) || !(policy.allowed & (1u << place))) continue;
        if (left(place) >= uint64_t{pack.blocks} + kept_for_visits(place)) return place;
    }
    return kNoPlace;
}

PlaceId Promises::choose_place(const Pack &pack) const
{
    PlaceId farthest = kNoPlace;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (places_.is_open(place) && (pack.key.policy.allowed & (1u << place))) farthest = place;
    }
    if (farthest == kNoPlace || places_[farthest].tier != Tier::kDevice) return farthest;
    return choose_device(pack, farthest, false);
}

// The refusal of the farthest place, with what the nearer ones have.
Status Promises::refusal(const Pack &pack, PlaceId farthest, uint32_t kept) const
{
    Status status = can_promise(farthest, promised_blocks(pack, farthest), kept);
    if (stays_farthest(pack) || pack.key.policy.retention == Retention::kPin) return status;
    const uint64_t block = places_.block_bytes();
    std::string nearer;
    for (PlaceId place = 0; place < farthest; ++place) {
        if (!places_.is_open(place) || !(pack.key.policy.allowed & (1u << place))) continue;
        const uint64_t moves = std::min(left(place), kept_for_visits(place));
        nearer += format_text("; %s has %s left, %s of it for tensors of other tiers",
                              places_.name(place).c_str(), bytes_text(left(place) * block).c_str(),
                              bytes_text(moves * block).c_str());
    }
    status.mutable_detail().sentence += nearer;
    return status;
}

// The farthest tier it may live in keeps room for it, so that eviction always has somewhere to go;
// and so does the home of what never leaves it. If that tier is full, a nearer one keeps the room,
// and the pack is at home there.
Status Promises::make(Pack &pack, PackId id, Nearer nearer)
{
    if (pack.agreed) return {};
    const Policy &policy = pack.key.policy;
    const PlaceId farthest = choose_place(pack);
    if (farthest == kNoPlace) {
        for (PlaceId place = 0; place < places_.count(); ++place) {
            if (places_.exists(place) && (policy.allowed & (1u << place)))
                return can_promise(place, 1);
        }
        return Status::error(STW_ERROR_INVALID,
                             "the tensor's policy allows no tier that exists; every tier it allows "
                             "has a budget of 0");
    }
    const bool stays = policy.retention == Retention::kPin && policy.home < places_.count() &&
                       policy.home != farthest && places_.exists(policy.home);
    // Where packs are at home nearer, the CPU works on them here.
    const uint32_t kept = places_.is_nvme(farthest) ? 0 : kept_for_visits(farthest, true);
    const uint64_t blocks = promised_blocks(pack, farthest);
    if (left(farthest) < blocks + kept) {
        const PlaceId at = choose_nearer(pack, farthest);
        if (at != kNoPlace && (nearer == Nearer::kAny || at == pack.promised)) {
            keep(pack, id, at, kNoPlace);
            return {};
        }
        const uint32_t held = displaced_.empty() || pack.passing ? 0 : kept;
        if (left(farthest) < blocks + held) return refusal(pack, farthest, held);
    }
    if (stays) STW_TRY(can_promise(policy.home, pack.blocks));
    keep(pack, id, farthest, stays ? policy.home : kNoPlace);
    return {};
}

void Promises::keep(Pack &pack, PackId id, PlaceId place, PlaceId home)
{
    pack.promised = place;
    pack.promised_home = home;
    if (place != kNoPlace) promised_[place] += promised_blocks(pack, place);
    if (home != kNoPlace) promised_[home] += pack.blocks;
    for (PlaceId other = 0; other < places_.count(); ++other) {
        const bool comes = other != place && (pack.key.policy.allowed & (1u << other)) != 0;
        if (comes && pack.blocks <= places_.arena(other).budget())
            expect_visits(other, pack.blocks);
    }
    if (is_displaced(pack)) displace(id, pack);
}

void Promises::displace(PackId id, const Pack &pack)
{
    displaced_.insert(id);
    at_home_[pack.promised] += pack.blocks;
}

// A farther tier may have it, and had no room.
bool Promises::is_displaced(const Pack &pack) const
{
    if (pack.promised == kNoPlace || pack.key.policy.retention == Retention::kPin) return false;
    for (PlaceId place = pack.promised; place < places_.count(); ++place) {
        const bool allowed = (pack.key.policy.allowed & (1u << place)) != 0;
        const bool farther = places_[place].tier > places_[pack.promised].tier;
        if (allowed && farther && places_.is_open(place)) return true;
    }
    return false;
}

bool Promises::may_move(const Pack &pack, PlaceId place) const
{
    if (pack.blocks == 0 || pack.agreed || pack.promised == kNoPlace) return false;
    if (pack.promised >= place || places_[place].tier == Tier::kDevice) return false;
    if (pack.pinned_home == pack.promised || pack.promised_home == place) return false;
    return places_.is_open(place) && (pack.key.policy.allowed & (1u << place)) != 0;
}

// Only where it is not at home then: its blocks have no slots there that are kept for them.
bool Promises::move(PackId id, PlaceId place)
{
    Pack &pack = packs_[id];
    const PlaceId before = std::exchange(pack.promised, place);
    const bool farthest = !is_displaced(pack);
    pack.promised = before;
    const uint32_t kept = places_.is_nvme(place) ? 0 : kept_for_visits(place, true);
    if (!farthest || left(place) < uint64_t{promised_blocks(pack, place)} + kept) return false;
    if (displaced_.erase(id) > 0) at_home_[pack.promised] -= pack.blocks;
    promised_[pack.promised] -= promised_blocks(pack, pack.promised);
    promised_[place] += promised_blocks(pack, place);
    pack.promised = place;
    return true;
}

// Packs that were created while the place had no budget, or less, may be stored there from now on,
// as far as its room goes. Those that find none are at home where they are.
std::vector<PackId> Promises::move_farther(PlaceId place)
{
    std::vector<PackId> moved;
    for (PackId id = 0; id < packs_.size(); ++id) {
        const Pack &pack = packs_[id];
        if (!may_move(pack, place)) continue;
        if (move(id, place)) {
            moved.push_back(id);
        } else if (is_displaced(pack) && displaced_.count(id) == 0) {
            displace(id, pack);
        }
    }
    return moved;
}

std::vector<PackId> Promises::refill(PlaceId place)
{
    std::vector<PackId> moved;
    const std::vector<PackId> nearer(displaced_.begin(), displaced_.end());
    for (const PackId id : nearer) {
        if (left(place) == 0) break;
        if (may_move(packs_[id], place) && move(id, place)) moved.push_back(id);
    }
    return moved;
}

void Promises::give_back(const Pack &pack, PackId id)
{
    if (displaced_.erase(id) > 0) at_home_[pack.promised] -= pack.blocks;
    if (pack.promised != kNoPlace) promised_[pack.promised] -= promised_blocks(pack, pack.promised);
    if (pack.promised_home != kNoPlace) promised_[pack.promised_home] -= pack.blocks;
}

}  // namespace stepwell::residency
