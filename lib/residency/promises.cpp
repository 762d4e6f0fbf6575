// SPDX-License-Identifier: Apache-2.0
// Promises of room: what a tensor needs in the farthest tier that it may live in, and in the home
// of what never leaves it.
#include "lib/residency/promises.h"

namespace stepwell::residency {

// What is promised at the place may be stored in no farther tier, or is pinned there.
Status Promises::may_shrink(PlaceId place, uint32_t blocks) const
{
    const uint64_t needed = uint64_t{promised_[place]} + places_.arena(place).whole_slots();
    if (blocks >= needed) return {};
    const uint64_t block = places_.block_bytes();
    const uint64_t aside = places_[place].aside_bytes;
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%s cannot shrink to %s: of its budget it needs %s; allow tensors another tier, or destroy "
        "some",
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

Status Promises::can_promise(PlaceId place, uint32_t blocks) const
{
    const uint32_t wholes = places_.arena(place).whole_slots();
    const uint32_t budget = places_.arena(place).budget() - wholes;
    const uint32_t withheld = places_.is_nvme(place) ? withheld_ : 0;
    const uint64_t taken = uint64_t{promised_[place]} + withheld;
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
                  {left * block, "left"}})
            .c_str());
    ErrorDetail &detail = status.mutable_detail();
    detail.tier = static_cast<uint32_t>(places_[place].tier);
    detail.device = places_[place].device;
    detail.needed_bytes = blocks * block;
    detail.free_bytes = left * block;
    return status;
}

// Devices are equally far: the home, or the device with most room left.
PlaceId Promises::choose_device(const Pack &pack, PlaceId last) const
{
    const Policy &policy = pack.key.policy;
    PlaceId best = kNoPlace;
    uint32_t most = 0;
    for (PlaceId place = 0; place <= last; ++place) {
        if (!places_.is_open(place) || !(policy.allowed & (1u << place))) continue;
        const uint32_t left =
            places_.arena(place).budget() - places_.arena(place).whole_slots() - promised_[place];
        if (place == policy.home && left >= pack.blocks) return place;
        if (best != kNoPlace && left <= most) continue;
        best = place;
        most = left;
    }
    return best;
}

PlaceId Promises::choose_place(const Pack &pack) const
{
    PlaceId farthest = kNoPlace;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (places_.is_open(place) && (pack.key.policy.allowed & (1u << place))) farthest = place;
    }
    if (farthest == kNoPlace || places_[farthest].tier != Tier::kDevice) return farthest;
    return choose_device(pack, farthest);
}

// The farthest tier it may live in keeps room for it, so that eviction always has somewhere to go;
// and so does the home of what never leaves it.
Status Promises::make(Pack &pack)
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
    STW_TRY(can_promise(farthest, promised_blocks(pack, farthest)));
    const bool stays = policy.retention == Retention::kPin && policy.home < places_.count() &&
                       policy.home != farthest && places_.exists(policy.home);
    if (stays) STW_TRY(can_promise(policy.home, pack.blocks));
    keep(pack, farthest, stays ? policy.home : kNoPlace);
    return {};
}

void Promises::keep(Pack &pack, PlaceId place, PlaceId home)
{
    pack.promised = place;
    pack.promised_home = home;
    if (place != kNoPlace) promised_[place] += promised_blocks(pack, place);
    if (home != kNoPlace) promised_[home] += pack.blocks;
}

// Packs that were created while the place had no budget may be stored there from now on, as far as
// its room goes.
void Promises::move_farther(PlaceId place)
{
    for (PackId id = 0; id < packs_.size(); ++id) {
        Pack &pack = packs_[id];
        if (pack.blocks == 0 || pack.agreed || pack.promised == kNoPlace) continue;
        if (pack.promised >= place || places_[place].tier == Tier::kDevice) continue;
        if (pack.pinned_home == pack.promised || pack.promised_home == place) continue;
        if (!(pack.key.policy.allowed & (1u << place))) continue;
        if (!can_promise(place, promised_blocks(pack, place)).ok()) continue;
        promised_[pack.promised] -= promised_blocks(pack, pack.promised);
        promised_[place] += promised_blocks(pack, place);
        pack.promised = place;
    }
}

void Promises::give_back(const Pack &pack)
{
    if (pack.promised != kNoPlace) promised_[pack.promised] -= promised_blocks(pack, pack.promised);
    if (pack.promised_home != kNoPlace) promised_[pack.promised_home] -= pack.blocks;
}

}  // namespace stepwell::residency
