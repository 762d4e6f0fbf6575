// SPDX-License-Identifier: Apache-2.0
// Tensors that every actor reads and writes through views. The model beside a tensor is read and
// written only while a view of it is held: readers share, a writer is alone.
#include "actor.h"

#include <algorithm>

namespace stress {
namespace {

uint64_t segment_begin(const Shared &tensor, uint32_t segment)
{
    return tensor.elements * segment / kSegments;
}

// Calls body(segment, begin, end) for the part of each segment that the view shows.
template <class Body> void each_segment(const Shared &tensor, const stw_view &view, Body &&body)
{
    const uint64_t view_end = view.element_begin + view.element_count;
    for (uint32_t segment = 0; segment < kSegments; ++segment) {
        const uint64_t begin = std::max(segment_begin(tensor, segment), view.element_begin);
        const uint64_t end = std::min(segment_begin(tensor, segment + 1), view_end);
        if (begin < end) body(segment, begin - view.element_begin, end - view.element_begin);
    }
}

bool is_whole(const Shared &tensor, const stw_view &view)
{
    return view.element_count == tensor.elements;
}

// What a fetch with these flags may answer at any time.
bool is_refusal(stw_status status, uint32_t flags)
{
    if (status == STW_ERROR_BUSY) return (flags & STW_FETCH_TRY) != 0;
    return status == STW_ERROR_BUDGET && (flags & STW_FETCH_WAIT_ROOM) == 0;
}

}  // namespace

// Some tensors in the order of their numbers, from `first`: the order in which nested fetches ask,
// so that actors that wait for each other's views wait in one direction.
uint32_t Actor::choose(Claim *claims, uint32_t count_max, uint32_t first)
{
    const auto count = static_cast<uint32_t>(world_.shared.size());
    const uint32_t tier = a_tier();
    uint32_t n = 0;
    const uint64_t wanted = 1 + random(count_max);
    for (uint32_t i = first; i < count && n < wanted; ++i) {
        if (random(count - i) >= wanted - n) continue;
        Claim &claim = claims[n++];
        claim = Claim();
        claim.tensor = world_.shared[i];
        claim.request.tensor = claim.tensor->tensor;
        claim.request.tier = tier;
        const uint64_t access = random(10);
        claim.request.access = access < 6 ? STW_READ : access < 8 ? STW_READ_WRITE : STW_WRITE;
        if (chance(30)) range(claim);
    }
    return n;
}

// A few whole segments. What was abandoned may be empty, and a blind write of a part would hide it.
void Actor::range(Claim &claim)
{
    const Shared &tensor = *claim.tensor;
    if (tensor.elements < kSegments) return;
    if (claim.request.access == STW_WRITE && !tensor.steady) return;
    if (claim.request.access == STW_WRITE && (tensor.empties.load() & 1)) return;
    const auto from = static_cast<uint32_t>(random(kSegments));
    const auto to = static_cast<uint32_t>(from + 1 + random(kSegments - from));
    claim.request.element_begin = segment_begin(tensor, from);
    claim.request.element_count = segment_begin(tensor, to) - claim.request.element_begin;
}

bool Actor::fetch(Claim *claims, uint32_t n, uint32_t flags)
{
    stw_fetch_request requests[4] = {};
    stw_view views[4];
    uint64_t empties[4] = {};
    for (uint32_t i = 0; i < n; ++i) {
        requests[i] = claims[i].request;
        empties[i] = claims[i].tensor->empties.load();
    }
    const stw_fetch_options with = options(flags);
    const stw_status status = stw_fetch(world_.runtime, &with, requests, n, views);
    bool may_be_empty = false;
    Shared *empty = nullptr;
    for (uint32_t i = 0; i < n; ++i) {
        if ((empties[i] & 1) == 0 && claims[i].tensor->empties.load() == empties[i]) continue;
        may_be_empty = true;
        empty = claims[i].tensor;
    }
    if (is_refusal(status, flags)) return false;
    if (!accept("fetch", status, may_be_empty)) {
        if (status == STW_ERROR_EMPTY && flags == STW_FETCH_WAIT_ROOM) repair(*empty);
        return false;
    }
    for (uint32_t i = 0; i < n; ++i) claims[i].view = views[i];
    return true;
}

// An abandoned write left nothing: write all of it.
void Actor::repair(Shared &tensor)
{
    Claim claim;
    claim.tensor = &tensor;
    claim.request.tensor = tensor.tensor;
    claim.request.access = STW_WRITE;
    if (!fetch(&claim, 1, STW_FETCH_WAIT_ROOM | STW_FETCH_TRY)) return;
    write(claim);
    give_back(&claim, 1);
    world_.counters.repaired.fetch_add(1);
}

bool Actor::fetch_async(Claim *claims, uint32_t n, uint32_t flags)
{
    stw_fetch_request requests[4] = {};
    stw_view views[4];
    bool may_be_empty = false;
    // A granted write that nobody collects counts as abandoned: it would empty a steady tensor.
    const bool leaves = chance(20);
    for (uint32_t i = 0; i < n; ++i) {
        requests[i] = claims[i].request;
        if (leaves) requests[i].access = claims[i].tensor->steady ? STW_READ_WRITE : STW_READ;
        may_be_empty |= !claims[i].tensor->steady || (claims[i].tensor->empties.load() & 1);
    }
    const stw_fetch_options with = options(flags);
    stw_operation *operation = nullptr;
    const stw_status asked = stw_fetch_async(world_.runtime, &with, requests, n, &operation);
    if (!accept("fetch_async", asked, may_be_empty)) return false;
    const bool cancels = chance(30);
    if (cancels) accept("cancel", stw_operation_cancel(operation), false);
    stw_status status = STW_PENDING;
    while (status == STW_PENDING && !leaves)
        status = again([&] { return stw_operation_wait(operation, kWaitNs); });
    bool granted = false;
    if (!leaves && status == STW_OK) {
        status = stw_fetch_collect(operation, STW_STREAM_HOST, views, n);
        granted = accept("collect", status, may_be_empty);
    } else if (status == STW_ERROR_CANCELLED && cancels) {
        world_.counters.cancelled.fetch_add(1);
    } else if (!leaves && !is_refusal(status, flags)) {
        accept("wait", status, may_be_empty);
    }
    if (stw_operation_free(operation) < 0) world_.fail("free: %s", stw_last_error());
    for (uint32_t i = 0; granted && i < n; ++i) claims[i].view = views[i];
    return granted;
}

void Actor::verify(const Shared &tensor, const stw_view &view, const char *when)
{
    const auto *elements = static_cast<const float *>(view.pointer);
    each_segment(tensor, view, [&](uint32_t segment, uint64_t begin, uint64_t end) {
        const float expected = tensor.values[segment];
        for (uint64_t i = begin; i < end; ++i) {
            if (elements[i] == expected) continue;
            world_.fail("actor %u, %s: '%s'[%llu] is %g, not %g (access %u, tier %u, view of "
                        "[%llu, +%llu) of %llu, segment %u from %llu)",
                        number_, when, tensor.name.c_str(),
                        static_cast<unsigned long long>(view.element_begin + i),
                        static_cast<double>(elements[i]), static_cast<double>(expected),
                        view.access, view.tier, static_cast<unsigned long long>(view.element_begin),
                        static_cast<unsigned long long>(view.element_count),
                        static_cast<unsigned long long>(tensor.elements), segment,
                        static_cast<unsigned long long>(segment_begin(tensor, segment)));
        }
    });
}

// Bytes first; the model follows when the view is given back, unless it is abandoned.
void Actor::write(Claim &claim)
{
    auto *elements = static_cast<float *>(claim.view.pointer);
    each_segment(*claim.tensor, claim.view, [&](uint32_t segment, uint64_t begin, uint64_t end) {
        const float value = claim.tensor->values[segment] + 1;
        std::fill(elements + begin, elements + end, value);
    });
}

void Actor::use(Claim &claim)
{
    world_.counters.views.fetch_add(1);
    // What was abandoned may have no contents; a view to write into shows any bytes then.
    const bool unknown = claim.view.access != STW_READ && (claim.tensor->empties.load() & 1);
    if (claim.view.access != STW_WRITE && !unknown) verify(*claim.tensor, claim.view, "at fetch");
    if (claim.view.access != STW_READ) write(claim);
}

void Actor::give_back(Claim *claims, uint32_t n)
{
    const uint32_t hints[] = {0, 0, STW_RELEASE_FAR, STW_RELEASE_NEAR};
    for (uint32_t i = 0; i < n; ++i) {
        Claim &claim = claims[i];
        Shared &tensor = *claim.tensor;
        uint32_t flags = hints[random(4)];
        const bool writes = claim.view.access != STW_READ;
        if (!writes) verify(tensor, claim.view, "at release");
        const bool completes = is_whole(tensor, claim.view) || (tensor.empties.load() & 1) == 0;
        if (writes && !tensor.steady && (!completes || chance(20))) {
            flags = STW_RELEASE_ABANDON;
            if ((tensor.empties.load() & 1) == 0) tensor.empties.fetch_add(1);
        } else if (writes) {
            each_segment(tensor, claim.view, [&](uint32_t segment, uint64_t, uint64_t) {
                tensor.values[segment] += 1;
            });
            if (tensor.empties.load() & 1) tensor.empties.fetch_add(1);
        }
        accept("release", stw_release(&claim.view, 1, STW_STREAM_HOST, flags), false);
    }
}

void Actor::share_operation()
{
    Claim claims[3];
    const uint32_t n = choose(claims, 3, 0);
    const uint64_t how = random(10);
    uint32_t flags = how < 7 ? STW_FETCH_WAIT_ROOM : how < 8 ? STW_FETCH_TRY : 0;
    const bool leaves = world_.features.holds_more && chance(7);
    if (leaves) flags |= STW_FETCH_HAND_OVER;
    const bool granted = chance(15) ? fetch_async(claims, n, flags) : fetch(claims, n, flags);
    if (!granted) return;
    for (uint32_t i = 0; i < n; ++i) use(claims[i]);
    if (world_.features.holds_more && !leaves && chance(30)) nested(claims, n);
    if (leaves && claims[0].view.access == STW_READ) {
        world_.leave_parcel({claims[0].view, claims[0].tensor});
        give_back(claims + 1, n - 1);
        return;
    }
    if (claims[0].view.access == STW_READ && chance(10)) {
        Claim second = claims[0];
        if (accept("share", stw_view_share(&claims[0].view, &second.view), false)) {
            give_back(claims, n);
            give_back(&second, 1);
            return;
        }
    }
    give_back(claims, n);
}

// A second fetch while views are held, of tensors with larger numbers. Not of small ones: a write
// waits for views of its block's other tensors at another tier, which no order of tensors foresees.
void Actor::nested(Claim *claims, uint32_t n)
{
    const auto *last = std::find(world_.shared.data(), world_.shared.data() + world_.shared.size(),
                                 claims[n - 1].tensor);
    Claim more[2];
    const auto after = static_cast<uint32_t>(last - world_.shared.data()) + 1;
    const uint32_t first = std::max(after, kSharedSmall);
    const uint32_t count = choose(more, 2, first);
    if (count == 0) return;
    const uint32_t flags[] = {0, STW_FETCH_TRY, STW_FETCH_WAIT_ROOM};
    if (!fetch(more, count, flags[random(3)])) return;
    for (uint32_t i = 0; i < count; ++i) use(more[i]);
    give_back(more, count);
}

void Actor::open_parcel(const World::Parcel &parcel)
{
    Claim claim;
    claim.tensor = parcel.tensor;
    claim.view = parcel.view;
    give_back(&claim, 1);
}

}  // namespace stress
