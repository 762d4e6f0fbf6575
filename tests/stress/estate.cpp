// SPDX-License-Identifier: Apache-2.0
// Tensors that one actor changes and all others read: write, fill, discard. A reader cannot know
// which of two moments it saw, but it must see one of them, whole.
#include "actor.h"

#include <algorithm>
#include <cstring>

namespace stress {
Owned &Actor::any_owned()
{
    const uint64_t which = random(10);
    if (which == 0) return *world_.sums[random(world_.sums.size())];
    Estate &estate = world_.estates[random(world_.actors)];
    std::vector<Owned *> &from = which < 5 ? estate.plain : estate.parameters;
    return *from[random(from.size())];
}

void Actor::settle()
{
    for (Owned *owned : mine_.plain) restore(*owned);
    for (Owned *owned : mine_.parameters) restore(*owned);
    if (number_ != 0) return;
    for (Shared *tensor : world_.shared) {
        Claim claim;
        claim.tensor = tensor;
        claim.request.tensor = tensor->tensor;
        claim.request.access = STW_WRITE;
        while (!fetch(&claim, 1, STW_FETCH_WAIT_ROOM)) {}
        write(claim);
        for (float &value : tensor->values) value += 1;
        tensor->empties.fetch_add(1);
        accept("release", stw_release(&claim.view, 1, STW_STREAM_HOST, 0), false);
    }
    for (Owned *sum : world_.sums) restore(*sum);
}

// ---------------------------------------------------------------------- the owner's own changes --

// After a failed call any element may be old or new, and after a failure behind a call nobody
// knows: such a tensor is trusted again once it has been written whole.
void Actor::commit(Owned &owned, stw_status status, uint64_t value, uint64_t distrust)
{
    if (status < 0) return;
    owned.floor.store(value);
    if (owned.empties.load() & 1) owned.empties.fetch_add(1);
    if (distrust % 2 == 0) owned.trusted.store(distrust);
}

void Actor::write_own(Owned &owned)
{
    const uint64_t distrust = world_.distrust.load();
    const uint64_t value = owned.ceiling.load() + 1;
    if (value > kValueMax) return;
    if (world_.setup.errors_allowed) owned.trusted.store(UINT64_MAX);
    owned.ceiling.store(value);
    owned.peak.store(std::max(owned.peak.load(), value));
    scratch_.assign(owned.elements, static_cast<float>(value));
    const auto write = [&] { return stw_tensor_write(owned.tensor, scratch_.data(), nullptr); };
    const stw_status status = again(write);
    accept("write", status, false);
    commit(owned, status, value, distrust);
}

void Actor::fill_own(Owned &owned)
{
    const uint64_t distrust = world_.distrust.load();
    const uint64_t value = owned.ceiling.load() + 1;
    if (value > kValueMax) return;
    if (world_.setup.errors_allowed) owned.trusted.store(UINT64_MAX);
    owned.ceiling.store(value);
    owned.peak.store(std::max(owned.peak.load(), value));
    const auto number = static_cast<double>(value);
    const stw_status status = again([&] { return stw_tensor_fill(owned.tensor, number, nullptr); });
    accept("fill", status, false);
    commit(owned, status, value, distrust);
}

// Readers' views are in the way now and then.
void Actor::discard_own(Owned &owned)
{
    if ((owned.empties.load() & 1) == 0) owned.empties.fetch_add(1);
    const stw_status status = stw_tensor_discard(&owned.tensor, 1);
    if (status != STW_ERROR_BUSY) accept("discard", status, false);
}

void Actor::restore(Owned &owned)
{
    for (uint32_t tries = 0; tries < 1000; ++tries) {
        write_own(owned);
        if (owned.floor.load() == owned.ceiling.load()) return;
    }
    if (!world_.setup.errors_allowed) world_.fail("'%s' cannot be written", owned.name.c_str());
}

void Actor::own_operation()
{
    Owned &owned = *mine_.plain[random(mine_.plain.size())];
    switch (random(11)) {
    case 0:
    case 1: discard_own(owned); break;
    case 2: freeze_own(owned); break;
    case 3:
    case 4:
    case 5:
    case 6: fill_own(owned); break;
    default: write_own(owned);
    }
}

// A frozen one is read by all, and filled by nobody.
void Actor::freeze_own(Owned &owned)
{
    if (!accept("freeze", stw_tensor_freeze(owned.tensor, 1), false)) return;
    const stw_status status = stw_tensor_fill(owned.tensor, 0, nullptr);
    if (status != STW_ERROR_INVALID)
        world_.fail("a fill of the frozen '%s': status %d", owned.name.c_str(), status);
    if (chance(50)) read_owned(owned, chance(50));
    accept("thaw", stw_tensor_freeze(owned.tensor, 0), false);
}

// ----------------------------------------------------------------------------- everyone's reads --

// slack: of its value may be rounded away.
void Actor::check_owned(const Owned &owned, const float *values, uint64_t count, uint64_t floor,
                        uint64_t distrust, float slack)
{
    const uint64_t ceiling = owned.ceiling.load();
    const float first = values[0];
    uint64_t bad = count;
    for (uint64_t i = 0; i < count && bad == count; ++i) {
        if (values[i] != first) bad = i;
    }
    const bool inside = first >= static_cast<float>(floor) * (1 - slack) &&
                        first <= static_cast<float>(ceiling) * (1 + slack);
    if (bad == count && inside) return;
    // What a failure behind a call has touched proves nothing, nor what was rewritten meanwhile.
    if (owned.trusted.load() != distrust || world_.distrust.load() != distrust) return;
    world_.fail("actor %u: '%s'[%llu] is %g beside %g at 0; it must be in [%llu, %llu]", number_,
                owned.name.c_str(), static_cast<unsigned long long>(bad % count),
                static_cast<double>(values[bad % count]), static_cast<double>(first),
                static_cast<unsigned long long>(floor), static_cast<unsigned long long>(ceiling));
}

void Actor::read_owned(Owned &owned, bool copies)
{
    const uint64_t distrust = owned.trusted.load();
    const uint64_t empties = owned.empties.load();
    const uint64_t floor = owned.floor.load();
    const auto may_be_empty = [&] { return (empties & 1) || owned.empties.load() != empties; };
    if (copies) {
        scratch_.resize(owned.elements);
        const stw_status status = stw_tensor_read(owned.tensor, scratch_.data(), nullptr);
        if (!accept("read", status, may_be_empty())) return;
        check_owned(owned, scratch_.data(), owned.elements, floor, distrust);
        return;
    }
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = owned.tensor;
    request.tier = a_tier();
    const stw_fetch_options with = options(STW_FETCH_WAIT_ROOM);
    stw_view view;
    owned.views.fetch_add(1);
    const stw_status status = stw_fetch(world_.runtime, &with, &request, 1, &view);
    if (accept("fetch of an owned tensor", status, may_be_empty())) {
        const auto *values = static_cast<const float *>(view.pointer);
        check_owned(owned, values, owned.elements, floor, distrust);
        check_owned(owned, values, owned.elements, floor, distrust);
        accept("release", stw_release(&view, 1, STW_STREAM_HOST, 0), false);
    }
    owned.views.fetch_sub(1);
}

// As an operation, cancelled now and then.
stw_status Actor::copy_behind(const stw_fetch_request *requests, uint32_t n, stw_view *views)
{
    const stw_fetch_options with = options(STW_FETCH_WAIT_ROOM);
    stw_operation *operation = nullptr;
    stw_status status = stw_fetch_async(world_.runtime, &with, requests, n, &operation);
    if (status < 0) return status;
    const bool leaves = chance(20);
    if (chance(20)) accept("cancel", stw_operation_cancel(operation), false);
    status = leaves ? STW_ERROR_CANCELLED : STW_PENDING;
    while (status == STW_PENDING) {
        status = stw_operation_wait(operation, kWaitNs);
        if (status == STW_ERROR_INTERRUPTED) status = stw_operation_poll(operation);
    }
    if (status == STW_OK) status = stw_fetch_collect(operation, STW_STREAM_HOST, views, n);
    if (stw_operation_free(operation) < 0) world_.fail("free: %s", stw_last_error());
    return status;
}

// Some in one call: in memory of this actor's, as f32 or bf16, or as a bf16 view.
void Actor::copy_owned()
{
    constexpr uint32_t kCopiesMax = 3;
    struct Copy {
        Owned *owned = nullptr;
        uint64_t distrust = 0, empties = 0, floor = 0;
        std::vector<float> wide;
        std::vector<uint16_t> half;
    } copies[kCopiesMax];
    stw_fetch_request requests[kCopiesMax] = {};
    stw_view views[kCopiesMax];
    const auto n = static_cast<uint32_t>(1 + random(kCopiesMax));
    bool takes_room = false;
    for (uint32_t i = 0; i < n; ++i) {
        Copy &copy = copies[i];
        copy.owned = &any_owned();
        copy.distrust = copy.owned->trusted.load();
        copy.empties = copy.owned->empties.load();
        copy.floor = copy.owned->floor.load();
        requests[i] = STW_FETCH_REQUEST_INIT;
        requests[i].tensor = copy.owned->tensor;
        const uint64_t kind = random(3);
        if (kind > 0) requests[i].dtype = STW_BF16;
        if (kind == 0) copy.wide.resize(copy.owned->elements), requests[i].into = copy.wide.data();
        if (kind == 1) copy.half.resize(copy.owned->elements), requests[i].into = copy.half.data();
        if (kind == 2) requests[i].tier = a_tier(), takes_room = true;
    }
    const stw_fetch_options with = options(STW_FETCH_WAIT_ROOM);
    const stw_status status = chance(40) ? copy_behind(requests, n, views)
                                         : stw_fetch(world_.runtime, &with, requests, n, views);
    bool may_be_empty = false;
    for (uint32_t i = 0; i < n; ++i) {
        may_be_empty |=
            (copies[i].empties & 1) != 0 || copies[i].owned->empties.load() != copies[i].empties;
    }
    if (status == STW_ERROR_CANCELLED) world_.counters.cancelled.fetch_add(1);
    // A converted view is promised room in the farthest tier, which others may have.
    const bool crowded = status == STW_ERROR_BUDGET && takes_room;
    if (status == STW_ERROR_CANCELLED || crowded) return;
    if (!accept("fetch of copies", status, may_be_empty)) return;
    for (uint32_t i = 0; i < n; ++i) {
        const Copy &copy = copies[i];
        scratch_ = copy.wide;
        if (requests[i].dtype == STW_BF16) {
            const auto *halves = static_cast<const uint16_t *>(views[i].pointer);
            scratch_.resize(copy.owned->elements);
            for (uint64_t k = 0; k < copy.owned->elements; ++k) {
                const uint32_t bits = static_cast<uint32_t>(halves[k]) << 16;
                std::memcpy(&scratch_[k], &bits, sizeof bits);
            }
        }
        check_owned(*copy.owned, scratch_.data(), copy.owned->elements, copy.floor, copy.distrust,
                    requests[i].dtype == STW_BF16 ? 1.0F / 256 : 0);
    }
    accept("release", stw_release(views, n, STW_STREAM_HOST, 0), false);
}

}  // namespace stress
