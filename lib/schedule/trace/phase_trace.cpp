// SPDX-License-Identifier: Apache-2.0
// The position of a step among the known access patterns: one comparison while it goes as
// expected, a search for the last few accesses when it does not.
#include "lib/schedule/trace/phase_trace.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::kNever;
using residency::TensorId;

constexpr size_t kWaysMax = 8;        // of a phase; the one not seen for longest is dropped
constexpr size_t kLengthsMax = 3;     // patterns that differ only in byte ranges
constexpr size_t kWaysOfData = 4;     // this many, none of them usual: they depend on data
constexpr size_t kNearSkip = 2;       // fetches that may be skipped without more evidence
constexpr size_t kSkipMax = 256;      // fetches that may be skipped if nothing else matches
constexpr size_t kUsesSearched = 64;  // of a tensor, in each pattern
constexpr float kForget = 1.0F / 16;  // a habit averages over about 16 steps
constexpr float kSure = 0.75F;        // share of steps, in a phase that varies

}  // namespace

bool PhaseTrace::begin(residency::Instant now)
{
    open_ = true;
    passed_at_ = now;
    recording.clear();
    return following_ != nullptr;
}

void PhaseTrace::end()
{
    open_ = false;
    recording = {};
    restart(predict());
}

// Starts with a new order, at its begin.
void PhaseTrace::restart(const Learned *learned)
{
    following_ = learned;
    cursors_ = {};
    ++turn_;
    passed_ = 0;
}

// The pattern that followed the last step's; else the most frequent, and of equals the latest.
const Learned *PhaseTrace::predict() const
{
    if (last_ && last_->followed_by) return last_->followed_by;
    const Learned *best = nullptr;
    for (const std::unique_ptr<Learned> &way : learned_) {
        const auto rank = [](const Learned &of) { return std::tuple(of.seen, of.last_seen); };
        if (!best || rank(*way) > rank(*best)) best = way.get();
    }
    return best;
}

void PhaseTrace::learn(uint64_t bytes_max)
{
    ++steps_;
    auto step = std::make_unique<Learned>(std::move(recording));
    recording = {};
    if (step->fetches() == 0) return;
    const uint64_t before = bytes();
    note_habits(*step, bytes_max / 8);
    bytes_max -= std::min(bytes_max, bytes() - before);
    Learned *known = find_known(*step);
    if (known) {
        known->renew(std::move(*step));
    } else {
        while (learned_.size() >= kWaysMax && retire_oldest()) continue;
        if (step->bytes() > bytes_max) {
            last_ = nullptr;
            varies_ = finds_varying();
            return;
        }
        learned_.push_back(std::move(step));
        known = learned_.back().get();
    }
    ++known->seen;
    known->last_seen = steps_;
    for (const std::unique_ptr<Learned> &way : learned_) {
        if (way.get() == last_) way->note_followed_by(known);
    }
    last_ = known;
    varies_ = finds_varying();
    if (!varies_) forget_past();
}

Learned *PhaseTrace::find_known(const Learned &step)
{
    for (const std::unique_ptr<Learned> &way : learned_) {
        if (way->goes_like(step)) return way.get();
    }
    return mix_lengths(step);
}

// A few alternating lengths are separate patterns. Of many, the next one is not known but its
// tensors are: they become one pattern.
Learned *PhaseTrace::mix_lengths(const Learned &step)
{
    Learned *mixed = nullptr;
    size_t lengths = 0;
    for (const std::unique_ptr<Learned> &way : learned_) {
        if (way->declared || !way->goes_through(step)) continue;
        ++lengths;
        if (!mixed || way->last_seen > mixed->last_seen) mixed = way.get();
    }
    if (lengths < kLengthsMax) return nullptr;
    mixed->mix_lengths();
    for (size_t i = learned_.size(); i-- > 0;) {
        const Learned *way = learned_[i].get();
        if (way == mixed || way->declared || !way->goes_through(step)) continue;
        mixed->seen += way->seen;
        if (following_ == way) following_ = mixed;
        if (last_ == way) last_ = mixed;
        forget(i);
    }
    return mixed;
}

// If the phase varies, the events are kept, for plans.
bool PhaseTrace::retire_oldest()
{
    const size_t oldest = find_oldest();
    if (oldest == learned_.size()) return false;
    Step events;
    if (varies_) events = learned_[oldest]->take_events();
    forget(oldest);
    if (!varies_) return true;
    past_bytes_ += events.capacity() * sizeof(Event);
    past_.push_back(std::move(events));
    while (past_.size() > kSeenMax - kWaysMax) drop_past();
    return true;
}

void PhaseTrace::drop_past()
{
    past_bytes_ -= past_.front().capacity() * sizeof(Event);
    past_.erase(past_.begin());
}

void PhaseTrace::forget_past()
{
    past_ = {};
    past_bytes_ = 0;
}

std::vector<const Step *> PhaseTrace::seen() const
{
    std::vector<const Learned *> ways;
    for (const std::unique_ptr<Learned> &way : learned_) ways.push_back(way.get());
    std::sort(ways.begin(), ways.end(), [](const Learned *one, const Learned *other) {
        return one->last_seen < other->last_seen;
    });
    std::vector<const Step *> seen;
    for (const Step &step : past_) seen.push_back(&step);
    for (const Learned *way : ways) seen.push_back(&way->events());
    return seen;
}

bool PhaseTrace::drop_oldest()
{
    if (!past_.empty()) {
        drop_past();
        return true;
    }
    const size_t oldest = find_oldest();
    if (oldest == learned_.size()) return false;
    forget(oldest);
    return true;
}

// The index of the oldest pattern that may be dropped; their number if none may.
size_t PhaseTrace::find_oldest() const
{
    size_t oldest = learned_.size();
    for (size_t i = 0; i < learned_.size(); ++i) {
        if (learned_[i].get() == following_ || learned_[i].get() == last_) continue;
        if (learned_[i]->declared) continue;
        if (oldest == learned_.size() || learned_[i]->last_seen < learned_[oldest]->last_seen) {
            oldest = i;
        }
    }
    return oldest;
}

void PhaseTrace::forget(size_t gone)
{
    for (const std::unique_ptr<Learned> &way : learned_) {
        if (way->followed_by == learned_[gone].get()) way->followed_by = nullptr;
    }
    learned_.erase(learned_.begin() + static_cast<std::ptrdiff_t>(gone));
}

void PhaseTrace::declare(Step step)
{
    forget_declared();
    auto way = std::make_unique<Learned>(std::move(step));
    way->declared = true;
    last_ = nullptr;  // so that predict() chooses it
    const Learned *declared = way.get();
    learned_.push_back(std::move(way));
    restart(declared);
}

void PhaseTrace::forget_declared()
{
    for (size_t i = 0; i < learned_.size(); ++i) {
        if (!learned_[i]->declared) continue;
        for (const std::unique_ptr<Learned> &way : learned_) {
            if (way->followed_by == learned_[i].get()) way->followed_by = nullptr;
        }
        if (last_ == learned_[i].get()) last_ = nullptr;
        learned_.erase(learned_.begin() + static_cast<std::ptrdiff_t>(i));
        restart(predict());
        return;
    }
}

void PhaseTrace::note_habits(const Learned &step, uint64_t bytes_max)
{
    const float weight = std::max(kForget, 1.0F / static_cast<float>(steps_));
    TensorId last = 0;
    for (uint32_t number = 0; number < step.fetches(); ++number) {
        last = std::max(last, step.fetch(number).tensor);
    }
    const size_t entries = std::min<size_t>(size_t{last} + 1, bytes_max / sizeof(Habit));
    if (entries > habits_.size()) {
        habits_.reserve(entries);
        habits_.resize(entries);
    }
    for (Habit &habit : habits_) habit.rate *= 1 - weight;
    for (uint32_t number = step.fetches(); number-- > 0;) {
        const TensorId tensor = step.fetch(number).tensor;
        if (tensor >= habits_.size()) continue;
        if (step.uses(tensor).front().number != number) continue;
        habits_[tensor].rate += weight;
        habits_[tensor].position = number;
    }
}

const Event *PhaseTrace::expected(Lane lane) const
{
    if (!following_) return nullptr;
    const std::vector<uint32_t> &order = following_->order(lane);
    const size_t at = cursors_[static_cast<size_t>(lane)].at;
    return at < order.size() ? &following_->fetch(order[at]) : nullptr;
}

void PhaseTrace::follow(Lane lane, TensorId tensor, residency::Instant now)
{
    Cursor &cursor = cursors_[static_cast<size_t>(lane)];
    if (following_ && step_on(lane, tensor)) {
        if (lane == Lane::kProgram) passed_at_ = now;
    } else if (following_) {
        ++deviations_;
    }
    cursor.recent[cursor.seen++ % kRecent] = tensor;
}

// False: no certain match, and the position stays.
bool PhaseTrace::step_on(Lane lane, TensorId tensor)
{
    Cursor &cursor = cursors_[static_cast<size_t>(lane)];
    const std::vector<uint32_t> &order = following_->order(lane);
    const size_t guess = std::exchange(cursor.guess, SIZE_MAX);
    const Event *next = expected(lane);
    if (next && next->tensor == tensor) {
        ++cursor.at;
        passed_ += lane == Lane::kProgram;
        return true;
    }
    size_t to = SIZE_MAX;
    if (guess < order.size() && following_->fetch(order[guess]).tensor == tensor) to = guess;
    if (to == SIZE_MAX) to = skip_to(lane, tensor, kNearSkip);
    if (to != SIZE_MAX) {
        jump(lane, following_, to + 1);
        return true;
    }
    const Found found = find(lane, tensor);
    if (found.matched > 0) {
        jump(lane, found.learned, found.at + 1);
        return true;
    }
    // Many fetches were skipped, or this one is out of order: the next access decides.
    to = skip_to(lane, tensor, kSkipMax);
    if (to != SIZE_MAX) cursor.guess = to + 1;
    return false;
}

// In the program's lane, forward means skipped fetches, anything else a new order.
void PhaseTrace::jump(Lane lane, const Learned *learned, size_t at)
{
    Cursor &cursor = cursors_[static_cast<size_t>(lane)];
    if (learned != following_) {
        for (Cursor &other : cursors_) other.guess = SIZE_MAX;
        // The other lane is at about the same number.
        const uint32_t number = learned->order(lane)[at - 1];
        for (size_t i = 0; i < kLanes; ++i) {
            const std::vector<uint32_t> &order = learned->order(static_cast<Lane>(i));
            cursors_[i].at = static_cast<size_t>(
                std::upper_bound(order.begin(), order.end(), number) - order.begin());
        }
    }
    const bool forwards = learned == following_ && at > cursor.at;
    following_ = learned;
    if (lane == Lane::kProgram && forwards) passed_ += at - cursor.at;
    cursor.at = at;
    if (forwards || lane != Lane::kProgram) return;
    ++turn_;
    passed_ = 0;
}

// Index of the next use in the lane, at most that many fetches ahead; SIZE_MAX: none.
size_t PhaseTrace::skip_to(Lane lane, TensorId tensor, size_t most) const
{
    const size_t from = cursors_[static_cast<size_t>(lane)].at;
    for (const Learned::Use &use : following_->uses(tensor, base(lane))) {
        if (following_->fetch(use.number).lane != lane) continue;
        const size_t index = following_->index_in_lane(use.number);
        return index - from <= most ? index : SIZE_MAX;
    }
    return SIZE_MAX;
}

// The number of accesses just before this one that also precede the given fetch.
size_t PhaseTrace::matched(const Learned &learned, Lane lane, size_t index) const
{
    const Cursor &cursor = cursors_[static_cast<size_t>(lane)];
    const std::vector<uint32_t> &order = learned.order(lane);
    size_t count = 0;
    while (count < std::min({kRecent, cursor.seen, index})) {
        const TensorId recent = cursor.recent[(cursor.seen - 1 - count) % kRecent];
        if (learned.fetch(order[index - 1 - count]).tensor != recent) break;
        ++count;
    }
    return count;
}

// The best match of the last accesses; of equals in the current pattern, then the nearest ahead.
PhaseTrace::Found PhaseTrace::find(Lane lane, TensorId tensor) const
{
    Found best;
    std::tuple<size_t, bool, bool, size_t> best_rank{};
    const size_t at = cursors_[static_cast<size_t>(lane)].at;
    for (const std::unique_ptr<Learned> &way : learned_) {
        if (lane != Lane::kProgram && way.get() != following_) continue;  // the program decides
        size_t searched = 0;
        for (const Learned::Use &use : way->uses(tensor)) {
            if (way->fetch(use.number).lane != lane) continue;
            if (++searched > kUsesSearched) break;
            const size_t index = way->index_in_lane(use.number);
            const size_t far = index > at ? index - at : at - index;
            const std::tuple rank(matched(*way, lane, index), way.get() == following_, index >= at,
                                  SIZE_MAX - far);
            if (best.learned && rank <= best_rank) continue;
            best = {way.get(), index, std::get<0>(rank)};
            best_rank = rank;
        }
    }
    return best;
}

uint64_t PhaseTrace::base(Lane lane) const
{
    const std::vector<uint32_t> &order = following_->order(lane);
    const size_t at = cursors_[static_cast<size_t>(lane)].at;
    return at < order.size() ? order[at] : following_->fetches();
}

const Learned *PhaseTrace::coming() const
{
    if (!open_) return following_;
    return following_ && following_->followed_by ? following_->followed_by : predict();
}

bool PhaseTrace::finds_varying() const
{
    uint64_t most = 0;
    uint64_t sum = 0;
    for (const std::unique_ptr<Learned> &way : learned_) {
        most = std::max(most, way->seen);
        sum += way->seen;
    }
    return learned_.size() >= kWaysOfData && 2 * most <= sum;
}

uint64_t PhaseTrace::first_use(TensorId tensor) const
{
    const Learned *way = coming();
    if (!way) return kNever;
    const Learned::UsesOf uses = way->uses(tensor);
    return uses.empty() ? kNever : uses.front().number;
}

uint64_t PhaseTrace::distance(TensorId tensor) const
{
    if (!following_) return kNever;
    const std::array<uint64_t, kLanes> bases{base(Lane::kProgram), base(Lane::kUpdate)};
    const uint64_t here = bases[0];
    const uint64_t length = following_->fetches();
    uint64_t distance = kNever;
    for (const Learned::Use &use : following_->uses(tensor, std::min(bases[0], bases[1]))) {
        const uint64_t from = bases[static_cast<size_t>(following_->fetch(use.number).lane)];
        if (use.number < from) continue;
        // If a lane lags behind, all that it has left is due.
        distance = use.number >= here ? use.number - here : use.number - from;
        break;
    }
    const PhaseTrace *after = next_ ? next_ : this;
    if (distance == kNever) {
        const uint64_t first = after->first_use(tensor);
        const Learned::UsesOf uses = following_->uses(tensor);
        if (first != kNever) {
            distance = length - here + first;
        } else if (after != this && !uses.empty()) {
            const uint64_t between = after->following_ ? after->following_->fetches() : 0;
            distance = length - here + between + uses.front().number;
        }
    }
    const Habit habit = tensor < habits_.size() ? habits_[tensor] : Habit{};
    if (habit.rate <= 0) return distance;
    if (distance == kNever) {
        distance = habit.position >= here ? habit.position - here : length - here + habit.position;
    }
    // A tensor that only some steps use comes that many steps later, on average.
    const float waits = std::max(1 / habit.rate - 1, 0.0F);
    return distance + static_cast<uint64_t>(waits * static_cast<float>(length));
}

std::optional<Expected> PhaseTrace::ahead(uint64_t fetches) const
{
    if (!following_) return {};
    const PhaseTrace *phase = this;
    const auto of = [&phase](const Learned &way, uint32_t number, uint64_t before) {
        const Event &event = way.fetch(number);
        Expected expected;
        expected.unsure = phase->varies_ && phase->rate(event.tensor) < kSure;
        expected.update = event.lane == Lane::kUpdate;
        expected.distance = before + number;
        if (expected.update) {
            expected.request = way.update_request(number);
            return expected;
        }
        expected.request = {event.tensor, event.access, event.place, event.byte_begin,
                            event.byte_count};
        expected.compute_ns = way.compute_before(number);
        return expected;
    };
    const uint64_t here = base(Lane::kProgram);
    const std::vector<uint32_t> &order = following_->order(Lane::kProgram);
    const size_t left = order.size() - cursors_[0].at;
    if (fetches < left) return of(*following_, order[cursors_[0].at + fetches], 0 - here);
    fetches -= left;
    const std::vector<uint32_t> &closing = following_->closing();
    if (fetches < closing.size()) return of(*following_, closing[fetches], 0 - here);
    fetches -= closing.size();
    if (next_) phase = next_;
    const Learned *way = phase->coming();
    if (!way || fetches >= way->opening().size()) return {};
    return of(*way, way->opening()[fetches], following_->fetches() - here);
}

uint64_t PhaseTrace::bytes() const
{
    uint64_t bytes = sizeof *this + habits_.capacity() * sizeof(Habit) + past_bytes_ +
                     past_.capacity() * sizeof(Step);
    for (const std::unique_ptr<Learned> &way : learned_) bytes += way->bytes();
    return bytes;
}

}  // namespace stepwell::schedule
