// SPDX-License-Identifier: Apache-2.0
// Spans are listed in one pass over the events, and given up in a second one. Tensors whose cost
// is not known are left out: those used in parts, and those that another lane changes.
#include "lib/schedule/plan/fewest.h"

#include "lib/schedule/trace/uses.h"

#include <algorithm>
#include <map>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::PlaceId;
using residency::TensorId;

bool reads(const Event &event)
{
    return event.access == Access::kRead || event.access == Access::kReadWrite;
}

PlaceId place_of(const Event &event)
{
    return event.place == residency::kNoPlace ? PlaceId{0} : event.place;
}

// Bytes that should stay from one event to another, and bytes that are held in any case.
class Spans {
public:
    // `at` never decreases.
    void hold(size_t at, int64_t bytes) { holds_.push_back({at, bytes}); }
    void add(size_t begin, size_t end, uint64_t bytes) { spans_.push_back({begin, end, bytes}); }
    // Returns the fewest bytes that must be given up.
    uint64_t give_up(uint64_t capacity);

private:
    struct Hold {
        size_t at = 0;
        int64_t bytes = 0;
    };
    struct Span {
        size_t begin = 0;
        size_t end = 0;
        uint64_t bytes = 0;
    };
    uint64_t trim(uint64_t capacity);

    std::vector<Hold> holds_;
    std::vector<Span> spans_;
    std::map<size_t, uint64_t> staying_;  // bytes, by the end of their span
    uint64_t staying_bytes_ = 0;
    int64_t held_bytes_ = 0;
};

uint64_t Spans::trim(uint64_t capacity)
{
    const uint64_t held = static_cast<uint64_t>(held_bytes_);
    const uint64_t room = capacity > held ? capacity - held : 0;
    uint64_t lost = 0;
    while (staying_bytes_ > room) {
        const auto last = std::prev(staying_.end());
        const uint64_t bytes = std::min(staying_bytes_ - room, last->second);
        last->second -= bytes;
        staying_bytes_ -= bytes;
        lost += bytes;
        if (last->second == 0) staying_.erase(last);
    }
    return lost;
}

// Bytes increase only where something begins, so only those events are examined.
uint64_t Spans::give_up(uint64_t capacity)
{
    std::stable_sort(spans_.begin(), spans_.end(),
                     [](const Span &one, const Span &other) { return one.begin < other.begin; });
    uint64_t lost = 0;
    size_t span = 0;
    size_t hold = 0;
    while (span < spans_.size() || hold < holds_.size()) {
        const size_t next_span = span < spans_.size() ? spans_[span].begin : SIZE_MAX;
        const size_t next_hold = hold < holds_.size() ? holds_[hold].at : SIZE_MAX;
        const size_t now = std::min(next_span, next_hold);
        while (!staying_.empty() && staying_.begin()->first <= now) {
            staying_bytes_ -= staying_.begin()->second;
            staying_.erase(staying_.begin());
        }
        for (; hold < holds_.size() && holds_[hold].at == now; ++hold) {
            held_bytes_ += holds_[hold].bytes;
        }
        for (; span < spans_.size() && spans_[span].begin == now; ++span) {
            if (spans_[span].end <= now) continue;
            staying_[spans_[span].end] += spans_[span].bytes;
            staying_bytes_ += spans_[span].bytes;
        }
        lost += trim(capacity);
    }
    return lost;
}

class Lister {
public:
    Lister(const Step &step, const std::vector<residency::TensorSpec> &specs, PlaceId place,
           bool cold);
    void take(const Event &event, size_t at);
    void end(size_t at);
    [[nodiscard]] Spans &in() { return in_; }
    [[nodiscard]] Spans &out() { return out_; }
    [[nodiscard]] uint64_t cold_bytes() const { return cold_bytes_; }

private:
    struct State {
        bool left_out = false;
        uint32_t open = 0;  // open views
        bool dead = false;
        bool writing = false;  // by one of the open views
        bool dirty = false;    // since `written`, and not open for writing
        bool held = false;     // its room is counted in out_
        bool used = false;
        size_t released = 0;
        size_t written = 0;
    };
    void leave_out(const Step &step);
    void fetch(State &state, const Event &event, size_t at);
    void release(State &state, const Event &event, size_t at);
    void end_dirty(State &state, uint64_t bytes, size_t at);
    [[nodiscard]] bool is_followed(const Event &event) const
    {
        return one_lane_ || event.lane == Lane::kProgram;
    }

    const std::vector<residency::TensorSpec> &specs_;
    const PlaceId place_;
    const bool cold_;
    const bool one_lane_;
    std::vector<State> states_;
    Spans in_;
    Spans out_;
    uint64_t cold_bytes_ = 0;  // first reads after a cold start
};

Lister::Lister(const Step &step, const std::vector<residency::TensorSpec> &specs, PlaceId place,
               bool cold)
    : specs_(specs),
      place_(place),
      cold_(cold),
      one_lane_(std::all_of(step.begin(), step.end(),
                            [&](const Event &event) { return event.lane == step[0].lane; })),
      states_(specs.size())
{
    leave_out(step);
}

void Lister::leave_out(const Step &step)
{
    for (const Event &event : step) {
        State &state = states_[event.tensor];
        const bool writes = event.act == Act::kFetch && event.access != Access::kRead;
        if (!is_followed(event)) {
            state.left_out |= writes || dies(event);
            continue;
        }
        const uint64_t all = specs_[event.tensor].bytes;
        const bool whole =
            event.byte_begin == 0 && (event.byte_count == 0 || event.byte_count == all);
        state.left_out |= !whole && event.act != Act::kDiscard;
    }
}

// What was written there has stayed until now, or has left.
void Lister::end_dirty(State &state, uint64_t bytes, size_t at)
{
    if (std::exchange(state.dirty, false)) out_.add(state.written, at, bytes);
}

void Lister::fetch(State &state, const Event &event, size_t at)
{
    const TensorId tensor = event.tensor;
    const uint64_t bytes = specs_[tensor].bytes;
    const bool writes = event.access != Access::kRead;
    if (writes) end_dirty(state, bytes, at);
    if (place_of(event) != place_) {
        state.dead &= !writes;
        return;
    }
    const bool comes = reads(event) && !specs_[tensor].reads_zero && !state.dead;
    if (state.open == 0 && comes && (state.used || !cold_)) in_.add(state.released, at, bytes);
    if (state.open == 0 && comes && !state.used && cold_) cold_bytes_ += bytes;
    if (state.open == 0) in_.hold(at, static_cast<int64_t>(bytes));
    if (!state.dirty && !std::exchange(state.held, true)) {
        out_.hold(at, static_cast<int64_t>(bytes));
    }
    ++state.open;
    state.used = true;
    state.writing |= writes;
    state.dead = false;
}

void Lister::release(State &state, const Event &event, size_t at)
{
    const uint64_t bytes = specs_[event.tensor].bytes;
    if (place_of(event) != place_ || state.open == 0 || --state.open > 0) return;
    in_.hold(at, -static_cast<int64_t>(bytes));
    if (std::exchange(state.held, false)) out_.hold(at, -static_cast<int64_t>(bytes));
    state.released = at;
    if (!std::exchange(state.writing, false)) return;
    state.dirty = true;
    state.written = at;
}

void Lister::take(const Event &event, size_t at)
{
    State &state = states_[event.tensor];
    if (!is_followed(event) || state.left_out) return;
    if (event.act == Act::kFetch) fetch(state, event, at);
    if (event.act == Act::kRelease) release(state, event, at);
    if (!dies(event)) return;
    end_dirty(state, specs_[event.tensor].bytes, at);
    state.dead = true;
}

// Bytes that are still dirty are not known to leave.
void Lister::end(size_t at)
{
    for (TensorId tensor = 0; tensor < states_.size(); ++tensor) {
        end_dirty(states_[tensor], specs_[tensor].bytes, at);
    }
}

}  // namespace

FewestBytes fewest_bytes(const Step &step, const std::vector<residency::TensorSpec> &specs,
                         const Machine &machine, PlaceId place, bool cold, uint32_t times)
{
    Lister lister(step, specs, place, cold);
    size_t at = 0;
    for (uint32_t time = 0; time < times; ++time) {
        for (const Event &event : step) lister.take(event, ++at);
    }
    lister.end(at + 1);
    const uint64_t capacity = machine.config.places[place].blocks * machine.config.block_bytes;
    const uint64_t in = lister.in().give_up(capacity) + lister.cold_bytes();
    return {in, lister.out().give_up(capacity)};
}

}  // namespace stepwell::schedule
