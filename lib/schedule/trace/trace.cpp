// SPDX-License-Identifier: Apache-2.0
// Recording, at a bounded cost for each event; the forecast is in phase_trace.cpp.
#include "lib/schedule/trace/trace.h"

#include <algorithm>
#include <utility>

namespace stepwell::schedule {
namespace {

constexpr size_t kBetweenMax = 16384;  // events kept for the next step, which may never come

}  // namespace

using residency::Instant;
using residency::TensorId;

uint64_t Trace::metadata_bytes() const
{
    uint64_t bytes = kept_bytes_ + between_.size() * Learned::kEventBytesMax;
    for (const std::unique_ptr<PhaseTrace> &phase : phases_) {
        if (phase) bytes += phase->recording.size() * Learned::kEventBytesMax;
    }
    return bytes;
}

PhaseTrace *Trace::open_phase(uint32_t phase)
{
    if (phase >= phases_.size() || !phases_[phase] || !phases_[phase]->is_open()) return nullptr;
    return phases_[phase].get();
}

PhaseTrace &Trace::make_phase(uint32_t phase)
{
    if (phase >= phases_.size()) {
        phases_.resize(phase + 1);
        clocks_.resize(phase + 1);
    }
    if (!phases_[phase]) {
        phases_[phase] = std::make_unique<PhaseTrace>();
        kept_bytes_ += phases_[phase]->bytes();
    }
    return *phases_[phase];
}

bool Trace::begin_step(uint32_t phase, Instant now)
{
    PhaseTrace &mine = make_phase(phase);
    if (open_ == 0 && ended_ != kNoPhase) phases_[ended_]->set_next(&mine);
    ++open_;
    clocks_[phase] = {now, {}};
    const bool known = mine.begin(now);
    for (const Event &event : between_) {
        if (has_room(mine)) mine.recording.push_back(event);
    }
    between_.clear();
    return known;
}

void Trace::end_step(uint32_t phase, Instant now, bool learn)
{
    PhaseTrace *mine = open_phase(phase);
    if (!mine) return;
    (void)compute_until(phase, now);
    if (learn) {
        const uint64_t others = metadata_bytes() - mine->recording.size() * Learned::kEventBytesMax;
        const uint64_t before = mine->bytes();
        mine->learn(limit_ - std::min(limit_, others));
        kept_bytes_ = kept_bytes_ - before + mine->bytes();
    }
    mine->end();
    --open_;
    ended_ = phase;
}

bool Trace::declare(uint32_t phase, Step step)
{
    const uint64_t more = step.size() * Learned::kEventBytesMax + sizeof(Learned);
    if (!step.empty() && metadata_bytes() + more > limit_) return false;
    PhaseTrace &mine = make_phase(phase);
    kept_bytes_ -= mine.bytes();
    if (step.empty()) {
        mine.forget_declared();
    } else {
        mine.declare(std::move(step));
    }
    kept_bytes_ += mine.bytes();
    return true;
}

// Distributes the time since the program's last timed event as compute time: a share to each of its
// hits since, and the returned one to the present event.
uint64_t Trace::compute_until(uint32_t phase, Instant now)
{
    Clock &clock = clocks_[phase];
    Step &events = phases_[phase]->recording;
    const uint64_t gap = now > clock.last_ns ? now - clock.last_ns : 0;
    const uint64_t share = gap / (clock.untimed.size() + 1);
    for (const size_t hit : clock.untimed) events[hit].compute_ns = share;
    const uint64_t rest = gap - share * clock.untimed.size();
    clock.last_ns = std::max(now, clock.last_ns);
    clock.untimed.clear();
    return rest;
}

// Drops old patterns before new events are left out.
bool Trace::has_room(PhaseTrace &phase)
{
    while (metadata_bytes() + Learned::kEventBytesMax > limit_) {
        const uint64_t before = phase.bytes();
        if (!phase.drop_oldest()) return false;
        kept_bytes_ = kept_bytes_ - before + phase.bytes();
    }
    return true;
}

void Trace::fetched(uint32_t phase, Lane lane, const residency::Request *requests, size_t n,
                    Instant now)
{
    PhaseTrace *mine = open_phase(phase);
    if (!mine || n == 0) return;
    uint64_t compute = lane == Lane::kProgram ? compute_until(phase, now) : 0;
    for (size_t i = 0; i < n; ++i) {
        mine->follow(lane, requests[i].tensor, now);
        if (!has_room(*mine)) continue;
        Event event;
        event.lane = lane;
        event.access = requests[i].access;
        event.place = requests[i].place;
        event.with_next = i + 1 < n;
        event.tensor = requests[i].tensor;
        event.byte_begin = requests[i].byte_begin;
        event.byte_count = requests[i].byte_count;
        event.compute_ns = std::exchange(compute, 0);
        mine->recording.push_back(event);
    }
}

// A repeated hit on the last fetch adds nothing, whether that view has ended or not. Threads leave
// out most of these already.
bool Trace::is_again(const Step &events, TensorId tensor, residency::PlaceId place)
{
    constexpr size_t kLookedAt = 64;
    const size_t oldest = events.size() - std::min(events.size(), kLookedAt);
    for (size_t i = events.size(); i > oldest; --i) {
        const Event &event = events[i - 1];
        if (event.act != Act::kFetch || event.lane != Lane::kProgram) continue;
        return event.tensor == tensor && event.place == place;
    }
    return false;
}

void Trace::hit(uint32_t phase, TensorId tensor, residency::PlaceId place, uint64_t bytes)
{
    PhaseTrace *mine = open_phase(phase);
    if (!mine) return;
    if (is_again(mine->recording, tensor, place)) return;
    Event event;
    event.place = place;
    event.tensor = tensor;
    event.byte_count = bytes;
    const Event *expected = mine->expected(Lane::kProgram);
    if (expected && expected->tensor == tensor && expected->place == place) {
        event.access = expected->access;
        event.byte_begin = expected->byte_begin;
        event.byte_count = expected->byte_count;
    }
    mine->follow(Lane::kProgram, tensor, clocks_[phase].last_ns);
    if (!has_room(*mine)) return;
    clocks_[phase].untimed.push_back(mine->recording.size());
    mine->recording.push_back(event);
}

void Trace::released(uint32_t phase, Lane lane, const residency::Request &view, Hint hint,
                     Instant now)
{
    Event event;
    event.act = Act::kRelease;
    event.lane = lane;
    event.access = view.access;
    event.hint = hint;
    event.place = view.place;
    event.tensor = view.tensor;
    event.byte_begin = view.byte_begin;
    event.byte_count = view.byte_count;
    record(phase, event, now);
}

// For events with a time, other than fetches. Only the program's lane computes.
void Trace::record(uint32_t phase, Event event, Instant now)
{
    PhaseTrace *mine = open_phase(phase);
    if (!mine) return;
    if (event.lane == Lane::kProgram) event.compute_ns = compute_until(phase, now);
    if (!has_room(*mine)) return;
    mine->recording.push_back(event);
}

void Trace::ended(uint32_t phase, TensorId tensor, residency::PlaceId place)
{
    PhaseTrace *mine = open_phase(phase);
    if (!mine || !has_room(*mine)) return;
    Event event;
    event.act = Act::kRelease;
    event.place = place;
    event.tensor = tensor;
    clocks_[phase].untimed.push_back(mine->recording.size());
    mine->recording.push_back(event);
}

void Trace::discarded(uint32_t phase, Lane lane, TensorId tensor, Instant now)
{
    Event event;
    event.act = Act::kDiscard;
    event.lane = lane;
    event.tensor = tensor;
    if (open_ > 0) {
        record(phase, event, now);
    } else if (ended_ != kNoPhase && between_.size() < kBetweenMax &&
               metadata_bytes() + Learned::kEventBytesMax <= limit_) {
        between_.push_back(event);
    }
}

void Trace::waited(uint32_t phase, Instant begin, Instant end)
{
    if (!open_phase(phase) || end <= begin) return;
    Clock &clock = clocks_[phase];
    const Instant from = std::max(begin, clock.last_ns);
    if (end > from) clock.last_ns += end - from;
}

uint64_t Trace::next_use(TensorId tensor) const
{
    uint64_t nearest = residency::kNever;
    if (open_ == 0) {
        const PhaseTrace *ended = ended_ == kNoPhase ? nullptr : phases_[ended_].get();
        if (!ended) return nearest;
        const PhaseTrace *next = ended->next() ? ended->next() : ended;
        return next->distance(tensor);
    }
    for (const std::unique_ptr<PhaseTrace> &phase : phases_) {
        if (phase && phase->is_open()) nearest = std::min(nearest, phase->distance(tensor));
    }
    return nearest;
}

std::vector<uint32_t> Trace::current() const
{
    std::vector<uint32_t> current;
    for (uint32_t i = 0; i < phases(); ++i) {
        if (is_current(i)) current.push_back(i);
    }
    return current;
}

bool Trace::is_current(uint32_t phase) const
{
    const PhaseTrace *asked = this->phase(phase);
    if (!asked || open_ > 0 || ended_ == kNoPhase) return asked && asked->is_open();
    const PhaseTrace *next = phases_[ended_]->next();
    return asked == (next ? next : phases_[ended_].get());
}

uint32_t Trace::phase_after(uint32_t phase) const
{
    const PhaseTrace *next = phases_[phase]->next();
    for (uint32_t i = 0; next && i < phases_.size(); ++i) {
        if (phases_[i].get() == next) return i;
    }
    return phase;
}

std::vector<Trace::Turn> Trace::round(uint32_t phase) const
{
    const PhaseTrace *first = this->phase(phase);
    if (!first) return {};
    const Learned *way = first->last() ? first->last() : first->coming();
    if (!way) return {};
    std::vector<Turn> round = {{phase, way}};
    while (round.size() <= kRoundMax) {
        const Turn last = round.back();
        const uint32_t next = phase_after(last.phase);
        if (next != last.phase) {
            way = phases_[next]->coming();
        } else if (last.way->followed_by) {
            way = last.way->followed_by;
        }
        const bool closes = next == phase && (next != last.phase || way == round.front().way);
        if (closes) return round;
        if (!way) break;
        round.push_back({next, way});
    }
    return {round.front()};
}

}  // namespace stepwell::schedule
