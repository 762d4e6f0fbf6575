// SPDX-License-Identifier: Apache-2.0
// Lanes of a replay: each takes its events in order, computes, fetches, waits and releases, like a
// thread of a program.
#include "lib/schedule/replay/replay_impl.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::FetchAsked;
using residency::PlaceId;
using residency::Request;

// The last events of a lane that used a tensor and that changed it.
struct LaneUse {
    size_t any = kNoEvent;
    size_t change = kNoEvent;
    bool writes = false;  // its open fetch writes
};

}  // namespace

// With two lanes, finds for each event the one of the other lane that it waits for.
void Replay::Impl::find_orders(const Step &step)
{
    order_.assign(step.size(), kNoEvent);
    const bool beside = std::any_of(step.begin(), step.end(), [&](const Event &event) {
        return event.lane != step.front().lane;
    });
    if (!beside) return;
    std::vector<std::array<LaneUse, kLanes>> uses(open_.size());
    for (size_t i = 0; i < step.size(); ++i) {
        const Event &event = step[i];
        LaneUse &mine = uses[event.tensor][static_cast<size_t>(event.lane)];
        const LaneUse &other = uses[event.tensor][1 - static_cast<size_t>(event.lane)];
        if (event.act == Act::kFetch) mine.writes = event.access != Access::kRead;
        const bool changes =
            mine.writes || event.act == Act::kDiscard || event.hint == Hint::kDiscard;
        order_[i] = changes ? other.any : other.change;
        mine.any = i;
        if (changes) mine.change = i;
    }
    // A call waits for everything that one of its requests waits for.
    for (const Lane lane : {Lane::kProgram, Lane::kUpdate}) {
        size_t next = kNoEvent;
        for (size_t i = step.size(); i-- > 0;) {
            if (step[i].lane != lane) continue;
            const bool goes_on = step[i].act == Act::kFetch && step[i].with_next &&
                                 next != kNoEvent && step[next].act == Act::kFetch;
            if (goes_on && order_[next] != kNoEvent) {
                order_[i] =
                    order_[i] == kNoEvent ? order_[next] : std::max(order_[i], order_[next]);
            }
            next = i;
        }
    }
}

Status Replay::Impl::run_lanes()
{
    bool moved = true;
    while (moved) {
        moved = false;
        STW_TRY(run_lane(Lane::kProgram, &moved));
        STW_TRY(run_lane(Lane::kUpdate, &moved));
    }
    return {};
}

// Runs the lane as far as it can go now.
Status Replay::Impl::run_lane(Lane number, bool *moved)
{
    LaneState &lane = lanes_[static_cast<size_t>(number)];
    while (lane.cursor < lane.events.size()) {
        const size_t position = lane.events[lane.cursor];
        if (lane.wait == Wait::kFetch) return {};
        if (lane.wait == Wait::kCompute) {
            if (lane.until > time) return {};
            lane.wait = Wait::kNothing;
            lane.computed = true;
        }
        const uint64_t compute_ns = (*step_)[position].compute_ns;
        if (!lane.computed && compute_ns > 0) {
            lane.compute_ns += compute_ns;
            lane.until = time + compute_ns;
            lane.wait = Wait::kCompute;
            return {};
        }
        lane.computed = true;
        if (!lane.goes_first && comes_after(position)) {
            if (lane.wait == Wait::kNothing) lane.since = time;
            lane.wait = Wait::kLane;
            return {};
        }
        if (lane.wait == Wait::kLane) lane.stall_ns += time - lane.since;
        lane.wait = Wait::kNothing;
        *moved = true;
        STW_TRY(perform(number));
        STW_TRY(prefetch());
    }
    return {};
}

// An event of the other lane must be done first.
bool Replay::Impl::comes_after(size_t position) const
{
    const size_t before = order_[position];
    if (before == kNoEvent) return false;
    return lanes_[static_cast<size_t>((*step_)[before].lane)].past <= before;
}

Status Replay::Impl::perform(Lane number)
{
    LaneState &lane = lanes_[static_cast<size_t>(number)];
    const Event &event = (*step_)[lane.events[lane.cursor]];
    if (recording) result_.event_begins[lane.events[lane.cursor]] = time;
    switch (event.act) {
    case Act::kFetch: return ask(number);
    case Act::kRelease: STW_TRY(release(number, event)); break;
    case Act::kDiscard: STW_TRY(discard(event)); break;
    }
    pass(number, 1);
    return execute();
}

void Replay::Impl::pass(Lane number, size_t events)
{
    LaneState &lane = lanes_[static_cast<size_t>(number)];
    for (size_t i = 0; recording && i < events; ++i) {
        result_.event_ends[lane.events[lane.cursor + i]] = time;
    }
    lane.cursor += events;
    lane.computed = false;
    lane.goes_first = false;
    lane.past = lane.cursor < lane.events.size() ? lane.events[lane.cursor] : kNoEvent;
}

Request Replay::Impl::request_of(const Event &event) const
{
    Request request;
    request.tensor = event.tensor;
    request.access = event.access;
    request.place = event.place == residency::kNoPlace ? PlaceId{0} : event.place;
    request.byte_begin = event.byte_begin;
    request.byte_count =
        event.byte_count > 0 ? event.byte_count : core.spec(event.tensor).bytes - event.byte_begin;
    return request;
}

// The core chooses again when the claims are free; this is what it would choose now.
Request Replay::Impl::settled(Request request) const
{
    if (request.place == residency::kAnyCpuPlace) request.place = core.choose_cpu_place(request);
    return request;
}

void Replay::Impl::count_read(const Request &request)
{
    if (!reads(request.access)) return;
    result_.read_bytes += request.byte_count;
    result_.hit_bytes += request.byte_count - core.missing_bytes(request);
}

Status Replay::Impl::ask(Lane number)
{
    LaneState &lane = lanes_[static_cast<size_t>(number)];
    lane.asked.clear();
    FetchAsked asked;
    for (size_t at = lane.cursor; at < lane.events.size(); ++at) {
        const Event &event = (*step_)[lane.events[at]];
        if (event.act != Act::kFetch) break;
        if (recording) result_.event_begins[lane.events[at]] = time;
        asked.requests.push_back(request_of(event));
        count_read(settled(asked.requests.back()));
        lane.asked.push_back(event);
        if (policy) policy->access(event);
        if (!event.with_next) break;
    }
    lane.since = time;
    const bool hit = number == Lane::kProgram && try_hit(asked.requests);
    note_access(number, !hit);
    if (hit) {
        pass(number, asked.requests.size());
        return {};
    }
    // Views of the other lane will end without help of this one.
    const LaneState &other = lanes_[1 - static_cast<size_t>(number)];
    if (other.cursor < other.events.size()) asked.flags |= residency::kFetchWaitRoom;
    if (number == Lane::kUpdate) asked.flags |= residency::kFetchInternal;
    lane.wait = Wait::kFetch;
    ++result_.events;
    lane.fetch = core.fetch(asked, out_);
    return execute();
}

// As in the runtime: resident tensors are pinned in their gates, without the core.
bool Replay::Impl::try_hit(const std::vector<Request> &requests)
{
    size_t pinned = 0;
    for (; pinned < requests.size(); ++pinned) {
        const Request request = settled(requests[pinned]);
        if (request.access != Access::kRead) break;
        if (!core.gate(request.tensor, request.place).try_pin()) break;
    }
    const bool hit = pinned == requests.size();
    for (size_t i = 0; i < pinned; ++i) {
        const Request request = settled(requests[i]);
        if (hit) {
            core.touch(request.tensor, request.place);
            open_[request.tensor].push_back({request, Lane::kProgram, true});
        } else {
            const bool closed = core.gate(request.tensor, request.place).unpin();
            STW_ASSERT(!closed);  // nothing has asked the core since
        }
    }
    if (!hit) return false;
    result_.events += requests.size();
    return true;
}

void Replay::Impl::grant(Lane number, const residency::Granted &granted)
{
    LaneState &lane = lanes_[static_cast<size_t>(number)];
    for (size_t i = 0; i < lane.asked.size(); ++i) {
        Request request = request_of(lane.asked[i]);
        request.place = granted.grants[i].place;
        open_[request.tensor].push_back({request, number, granted.grants[i].by_gate});
    }
    lane.stall_ns += time - lane.since;
    lane.wait = Wait::kNothing;
    pass(number, lane.asked.size());
}

Status Replay::Impl::release(Lane number, const Event &event)
{
    std::vector<View> &views = open_[event.tensor];
    const Request wanted = request_of(event);
    const auto found = std::find_if(views.begin(), views.end(), [&](const View &view) {
        return view.lane == number && view.request.byte_begin == wanted.byte_begin &&
               view.request.byte_count == wanted.byte_count;
    });
    if (found == views.end()) {
        return Status::error(STW_ERROR_INVALID,
                             "%llu bytes from %llu of %s are released without a fetch",
                             static_cast<unsigned long long>(wanted.byte_count),
                             static_cast<unsigned long long>(wanted.byte_begin),
                             tensor_text(core.spec(event.tensor).name).c_str());
    }
    const View view = *found;
    views.erase(found);
    ++result_.events;
    const bool far = event.hint == Hint::kFar;
    const bool near = event.hint == Hint::kNear;
    const PlaceId place = view.request.place;
    news_ |= !view.by_gate || event.hint != Hint::kNone;
    if (view.by_gate) {
        const bool last = core.gate(event.tensor, place).unpin();
        const bool tell = last || lanes_[0].wait == Wait::kFetch || lanes_[1].wait == Wait::kFetch;
        if (tell) core.gate_idle(event.tensor, out_);
        if (far || near) core.release_hint(event.tensor, place, far, out_);
    } else {
        residency::Release done;
        done.tensor = event.tensor;
        done.access = view.request.access;
        done.place = place;
        done.byte_begin = view.request.byte_begin;
        done.byte_count = view.request.byte_count;
        done.far = far;
        done.near = near;
        done.discard = event.hint == Hint::kDiscard && done.access != Access::kRead;
        done.internal = number == Lane::kUpdate;
        core.release(done, out_);
        if (done.discard) return {};
    }
    return event.hint == Hint::kDiscard ? core.discard(event.tensor, out_) : Status();
}

Status Replay::Impl::discard(const Event &event)
{
    ++result_.events;
    return core.discard(event.tensor, out_);
}

}  // namespace stepwell::schedule
