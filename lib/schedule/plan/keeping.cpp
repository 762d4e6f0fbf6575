// SPDX-License-Identifier: Apache-2.0
// A stay is a circular interval of the step's events, as the step repeats. A tree of maxima gives
// the room that is left throughout an interval.
#include "lib/schedule/plan/keeping.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

namespace stepwell::schedule {
namespace {

using residency::PlaceId;
using residency::TensorId;

// Range additions and range maxima.
class Load {
public:
    explicit Load(size_t events)
    {
        while (size_ < events) size_ *= 2;
        most_.resize(2 * size_);
        added_.resize(2 * size_);
    }
    // [begin, end); wraps around if end is not greater.
    void add(size_t begin, size_t end, size_t events, double bytes)
    {
        if (begin < end) {
            add(1, 0, size_, begin, end, bytes);
        } else {
            add(1, 0, size_, begin, events, bytes);
            add(1, 0, size_, 0, end, bytes);
        }
    }
    [[nodiscard]] double most(size_t begin, size_t end, size_t events) const
    {
        if (begin < end) return most(1, 0, size_, begin, end);
        return std::max(most(1, 0, size_, begin, events), most(1, 0, size_, 0, end));
    }

private:
    void add(size_t node, size_t from, size_t to, size_t begin, size_t end, double bytes)
    {
        if (begin >= to || end <= from) return;
        if (begin <= from && to <= end) {
            most_[node] += bytes;
            added_[node] += bytes;
            return;
        }
        const size_t middle = (from + to) / 2;
        add(2 * node, from, middle, begin, end, bytes);
        add(2 * node + 1, middle, to, begin, end, bytes);
        most_[node] = added_[node] + std::max(most_[2 * node], most_[2 * node + 1]);
    }
    [[nodiscard]] double most(size_t node, size_t from, size_t to, size_t begin, size_t end) const
    {
        if (begin >= to || end <= from) return 0;
        if (begin <= from && to <= end) return most_[node];
        const size_t middle = (from + to) / 2;
        return added_[node] + std::max(most(2 * node, from, middle, begin, end),
                                       most(2 * node + 1, middle, to, begin, end));
    }

    size_t size_ = 1;
    std::vector<double> most_;
    std::vector<double> added_;
};

// A tensor from one use to the next.
struct Interval {
    TensorId tensor = 0;
    uint32_t use = 0;
    size_t begin = 0;  // events
    size_t end = 0;
    double bytes = 0;
    double length = 0;
    double saves = 0;      // the read
    double saves_all = 0;  // its share of the write-back
};

bool dies_at_once(const Use &use)
{
    return use.dies && use.dies_at == use.release;
}

// What pieces of updates take of the place while they are in flight, where the CPU works in it: a
// replay has one of them at a time, the runtime as many as half of the place has room for.
uint32_t update_blocks(const Machine &machine, PlaceId place)
{
    const std::vector<residency::PlaceConfig> &places = machine.config.places;
    const auto is_host = [](const residency::PlaceConfig &at) {
        return at.tier == residency::Tier::kHost && at.blocks > 0;
    };
    const bool beside =
        !is_host(places[place]) && std::any_of(places.begin(), places.end(), is_host);
    return beside || !places[place].cpu_access ? 0 : places[place].blocks / 2;
}

// Ranks intervals by what they save over their bytes times a power of their length. Write-backs
// count in part, as all intervals between two writes must be kept to save one.
struct Ranking {
    double power = 1;
    double write_share = 1;
    bool spreads = false;  // intervals of about the same value are taken evenly over the step
    double room = 1;       // of the place; the rest is for transfers
};

constexpr std::array<Ranking, kKeepingWays> kRankings = {{{1, 1},
                                                          {1, 0.1},
                                                          {0.5, 1},
                                                          {0.5, 0.1},
                                                          {1, 3},
                                                          {2, 1},
                                                          {0.5, 0.1, true, 1},
                                                          {0.5, 0.1, true, 0.95},
                                                          {0.5, 1, true, 0.95},
                                                          {0.5, 1, true, 0.9}}};

class Planner {
public:
    Planner(const Uses &uses, const std::vector<residency::TensorSpec> &specs,
            const Machine &machine, PlaceId place)
        : uses_(uses),
          specs_(specs),
          block_(static_cast<double>(machine.config.block_bytes)),
          room_(block_ * (machine.config.places[place].blocks -
                          (uses.has_updates() ? update_blocks(machine, place) : 0))),
          place_(place)
    {
        for (TensorId tensor = 0; tensor < uses.tensors(); ++tensor) list(tensor);
    }

    [[nodiscard]] Keeping keep(const Ranking &ranking) const;

private:
    [[nodiscard]] double size_of(TensorId tensor) const
    {
        const auto bytes = static_cast<double>(specs_[tensor].bytes);
        return bytes < block_ && !specs_[tensor].no_packing ? bytes
                                                            : std::ceil(bytes / block_) * block_;
    }
    void list(TensorId tensor);
    void share_write_backs(size_t first);
    [[nodiscard]] std::vector<uint32_t> ordered(const Ranking &ranking) const;
    void spread(std::vector<std::pair<double, uint32_t>> &order) const;
    void count(Keeping &keeping) const;

    const Uses &uses_;
    const std::vector<residency::TensorSpec> &specs_;
    const double block_;
    const double room_;
    const PlaceId place_;
    std::vector<Interval> intervals_;
};

void Planner::list(TensorId tensor)
{
    const std::vector<Use> &uses = uses_.of(tensor);
    const size_t first = intervals_.size();
    for (uint32_t i = 0; i < uses.size(); ++i) {
        const Use &next = uses[(i + 1) % uses.size()];
        Interval interval;
        interval.tensor = tensor;
        interval.use = i;
        interval.begin = (uses[i].release + 1) % uses_.events();
        interval.end = uses[i].dies ? uses[i].dies_at + size_t{1} : next.fetch;
        interval.bytes = size_of(tensor);
        const size_t events = uses_.events();
        interval.length = static_cast<double>((interval.end + events - interval.begin) % events);
        if (!uses[i].dies && next.reads) interval.saves = interval.bytes;
        intervals_.push_back(interval);
    }
    share_write_backs(first);
}

// A write-back is saved only if the tensor stays until it is written again or dies: each interval
// up to then has a share of it that is as large as its share of the time.
void Planner::share_write_backs(size_t first)
{
    const size_t count = intervals_.size() - first;
    if (count == 0) return;
    const std::vector<Use> &uses = uses_.of(intervals_[first].tensor);
    for (size_t i = 0; i < count; ++i) {
        if (!uses[i].writes || dies_at_once(uses[i])) continue;
        size_t length = 1;
        double total = intervals_[first + i].length + 1;
        while (length < count && !uses[(i + length) % count].writes &&
               !uses[(i + length - 1) % count].dies) {
            total += intervals_[first + (i + length) % count].length + 1;
            ++length;
        }
        for (size_t k = 0; k < length; ++k) {
            Interval &interval = intervals_[first + (i + k) % count];
            interval.saves_all = interval.bytes * (interval.length + 1) / total;
        }
    }
}

// In the order in which they are kept; without those that save nothing.
std::vector<uint32_t> Planner::ordered(const Ranking &ranking) const
{
    std::vector<std::pair<double, uint32_t>> order;
    for (uint32_t i = 0; i < intervals_.size(); ++i) {
        const Interval &at = intervals_[i];
        const double saves = at.saves + ranking.write_share * at.saves_all;
        if (saves <= 0) continue;
        const double value = saves / (at.bytes * std::pow(at.length + 1, ranking.power));
        order.push_back({ranking.spreads ? -std::round(std::log2(value)) : -value, i});
    }
    if (ranking.spreads) spread(order);
    std::sort(order.begin(), order.end());
    std::vector<uint32_t> indexes;
    for (const auto &[minus_value, index] : order) indexes.push_back(index);
    return indexes;
}

// Among intervals of equal value any first ones are spread evenly over the step, and so are the
// rest, whose bytes are then moved throughout the step and not all at once.
void Planner::spread(std::vector<std::pair<double, uint32_t>> &order) const
{
    std::sort(order.begin(), order.end(), [&](const auto &one, const auto &other) {
        if (one.first != other.first) return one.first < other.first;
        const Interval &mine = intervals_[one.second];
        const Interval &others = intervals_[other.second];
        return std::tie(mine.end, one.second) < std::tie(others.end, other.second);
    });
    std::vector<std::tuple<double, uint32_t, uint32_t>> turned;
    for (size_t i = 0, first = 0; i < order.size(); ++i) {
        if (order[i].first != order[first].first) first = i;
        uint32_t bits = 0;  // of the index among equals, reversed
        for (uint32_t bit = 0; bit < 32; ++bit) bits = bits << 1 | ((i - first) >> bit & 1);
        turned.push_back({order[i].first, bits, order[i].second});
    }
    std::sort(turned.begin(), turned.end());
    for (size_t i = 0; i < order.size(); ++i) {
        order[i] = {static_cast<double>(i), std::get<2>(turned[i])};
    }
}

Keeping Planner::keep(const Ranking &ranking) const
{
    const size_t events = uses_.events();
    Keeping keeping;
    keeping.stays.resize(uses_.tensors());
    Load load(events);
    for (TensorId tensor = 0; tensor < uses_.tensors(); ++tensor) {
        keeping.stays[tensor].resize(uses_.of(tensor).size());
        for (const Use &use : uses_.of(tensor)) {
            if (use.place != place_) continue;
            load.add(use.fetch, use.release + size_t{1}, events, size_of(tensor));
        }
    }
    for (const uint32_t index : ordered(ranking)) {
        const Interval &at = intervals_[index];
        if (at.length == 0) {
            keeping.stays[at.tensor][at.use] = Stay::kStays;
            continue;
        }
        const double left = ranking.room * room_ - load.most(at.begin, at.end, events);
        if (left < std::min(at.bytes, block_)) continue;
        const bool all = left >= at.bytes;
        load.add(at.begin, at.end, events, all ? at.bytes : std::floor(left / block_) * block_);
        keeping.stays[at.tensor][at.use] = all ? Stay::kStays : Stay::kPart;
    }
    count(keeping);
    return keeping;
}

// Counts complete stays only; partial ones are a bonus.
void Planner::count(Keeping &keeping) const
{
    for (const Interval &at : intervals_) {
        if (keeping.stays[at.tensor][at.use] == Stay::kStays) keeping.saved_bytes += at.saves;
    }
    for (TensorId tensor = 0; tensor < uses_.tensors(); ++tensor) {
        const std::vector<Use> &uses = uses_.of(tensor);
        for (size_t i = 0; i < uses.size(); ++i) {
            if (!uses[i].writes || dies_at_once(uses[i])) continue;
            bool stays = true;
            for (size_t k = 0; k < uses.size() && stays; ++k) {
                const size_t at = (i + k) % uses.size();
                if (k > 0 && uses[at].writes) break;
                stays = keeping.stays[tensor][at] == Stay::kStays;
                if (uses[at].dies) break;
            }
            if (stays) keeping.saved_bytes += size_of(tensor);
        }
    }
}

}  // namespace

Keeping plan_keeping(const Uses &uses, const std::vector<residency::TensorSpec> &specs,
                     const Machine &machine, PlaceId place, uint32_t way)
{
    return Planner(uses, specs, machine, place).keep(kRankings[way]);
}

}  // namespace stepwell::schedule
