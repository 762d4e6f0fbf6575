// SPDX-License-Identifier: Apache-2.0
// The step is cut into parts whose bounds add up to the most. A limited number of cuts is tried,
// so that the work stays linear in the step.
#include "lib/schedule/plan/bound.h"

#include "lib/schedule/plan/fewest.h"
#include "lib/schedule/trace/uses.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::PlaceId;
using residency::TensorId;

constexpr size_t kCutsMin = 256;
constexpr size_t kWorkMax = size_t{1} << 22;  // cuts times events, with more than kCutsMin cuts

// Over all links into the place, or out of it.
double ns_of(const Machine &machine, PlaceId place, bool in, uint64_t bytes)
{
    double bytes_per_s = 0;
    for (const Link &link : machine.links) {
        const bool counts = in ? link.to == place : link.from == place;
        if (counts && link.from != link.to) bytes_per_s += link.bytes_per_s;
    }
    return bytes_per_s > 0 ? static_cast<double>(bytes) * 1e9 / bytes_per_s : 0;
}

// The largest sums over parts, from the begin of the step to each cut.
struct Sums {
    std::vector<uint64_t> in_bytes;
    std::vector<uint64_t> out_bytes;
    std::vector<double> ns;
};

class Reader {
public:
    Reader(const Step &step, const std::vector<residency::TensorSpec> &specs,
           const Machine &machine, Start start, PlaceId place);
    Sums sums();

private:
    struct Seen {
        size_t part = SIZE_MAX;  // the last part that used it
        uint64_t dirty = 0;      // written in that part and alive
    };
    struct View {
        TensorId tensor = 0;
        uint64_t begin = 0;
        uint64_t bytes = 0;
    };
    void open(size_t part);
    void take(size_t half);
    void hold(size_t half);
    [[nodiscard]] bool is_followed(const Event &event) const
    {
        return one_lane_ || event.lane == Lane::kProgram;
    }
    [[nodiscard]] uint64_t bytes_of(const Event &event) const
    {
        const uint64_t all = specs_[event.tensor].bytes;
        return event.byte_count > 0 ? event.byte_count : all - event.byte_begin;
    }

    const Step &step_;
    const std::vector<residency::TensorSpec> &specs_;
    const Machine &machine_;
    const PlaceId place_;
    const uint64_t capacity_;
    const Start start_;
    const bool one_lane_;
    std::vector<std::array<bool, kLanes>> changes_;  // by tensor: the lane writes or discards it
    std::vector<View> views_;                        // open when the present part begins
    // Of the present part.
    std::vector<Seen> seen_;
    size_t part_ = 0;
    uint64_t held_ = 0;  // by views at its begin
    uint64_t reads_ = 0;
    uint64_t dirty_ = 0;
    uint64_t compute_ns_ = 0;
};

Reader::Reader(const Step &step, const std::vector<residency::TensorSpec> &specs,
               const Machine &machine, Start start, PlaceId place)
    : step_(step),
      specs_(specs),
      machine_(machine),
      place_(place),
      capacity_(machine.config.places[place].blocks * machine.config.block_bytes),
      start_(start),
      one_lane_(std::all_of(step.begin(), step.end(),
                            [&](const Event &event) { return event.lane == step[0].lane; })),
      changes_(specs.size()),
      seen_(specs.size())
{
    for (const Event &event : step) {
        const bool writes = event.act == Act::kFetch && event.access != Access::kRead;
        if (!writes && !dies(event)) continue;
        changes_[event.tensor][static_cast<size_t>(event.lane)] = true;
    }
}

void Reader::open(size_t part)
{
    part_ = part;
    reads_ = dirty_ = compute_ns_ = held_ = 0;
    std::fill(seen_.begin(), seen_.end(), Seen{});
    for (const View &view : views_) {
        if (seen_[view.tensor].part == part_) continue;  // two views of the same bytes
        seen_[view.tensor].part = part_;
        held_ += view.bytes;
    }
    held_ = std::min(held_, capacity_);
}

// Tracks open views, whose room cannot be used for anything else.
void Reader::hold(size_t half)
{
    const Event &event = step_[half / 2];
    if (half % 2 == 0 || !is_followed(event) || event.act == Act::kDiscard) return;
    const View view{event.tensor, event.byte_begin, bytes_of(event)};
    if (event.act == Act::kFetch) {
        const PlaceId at = event.place == residency::kNoPlace ? PlaceId{0} : event.place;
        if (at == place_) views_.push_back(view);
        return;
    }
    const auto found = std::find_if(views_.begin(), views_.end(), [&](const View &held) {
        return held.tensor == view.tensor && held.begin == view.begin && held.bytes == view.bytes;
    });
    if (found != views_.end()) views_.erase(found);
}

// With two lanes only the program's is followed, and of that only tensors that the other lane does
// not change: when that lane runs is not known.
void Reader::take(size_t half)
{
    const Event &event = step_[half / 2];
    Seen &seen = seen_[event.tensor];
    if (!is_followed(event)) return;
    if (half % 2 == 0) compute_ns_ += event.compute_ns;
    if (half % 2 == 0) return;
    if (dies(event)) dirty_ -= seen.dirty;
    if (dies(event)) seen.dirty = 0;
    if (event.act != Act::kFetch) return;
    const PlaceId at = event.place == residency::kNoPlace ? PlaceId{0} : event.place;
    const bool first = seen.part == SIZE_MAX;
    seen.part = part_;
    const size_t other = 1 - static_cast<size_t>(event.lane);
    if (at != place_ || changes_[event.tensor][other]) return;
    const uint64_t bytes = bytes_of(event);
    const bool reads = event.access == Access::kRead || event.access == Access::kReadWrite;
    if (first && reads && !specs_[event.tensor].reads_zero) reads_ += bytes;
    if (event.access == Access::kRead || bytes <= seen.dirty) return;
    dirty_ += bytes - seen.dirty;
    seen.dirty = bytes;
}

Sums Reader::sums()
{
    // Each event has two halves, its compute time and then its act: views are held until the act.
    const size_t halves = 2 * step_.size();
    const size_t cuts =
        std::min(halves, std::max(kCutsMin, kWorkMax / std::max<size_t>(1, halves)));
    std::vector<size_t> at(cuts + 1);
    for (size_t i = 0; i <= cuts; ++i) at[i] = cuts > 0 ? halves * i / cuts : 0;
    const double byte_ns = ns_of(machine_, place_, true, 1);
    Sums sums;
    sums.in_bytes.assign(cuts + 1, 0);
    sums.out_bytes.assign(cuts + 1, 0);
    sums.ns.assign(cuts + 1, 0);
    for (size_t i = 0; i < cuts; ++i) {
        for (size_t half = i > 0 ? at[i - 1] : 0; half < at[i]; ++half) hold(half);
        open(i);
        const uint64_t there = i == 0 && start_ == Start::kCold ? 0 : capacity_ - held_;
        for (size_t j = i; j < cuts; ++j) {
            for (size_t half = at[j]; half < at[j + 1]; ++half) take(half);
            const uint64_t comes = reads_ > there ? reads_ - there : 0;
            const uint64_t leaves = dirty_ > capacity_ ? dirty_ - capacity_ : 0;
            const double ns = static_cast<double>(comes) * byte_ns;
            const auto compute = static_cast<double>(compute_ns_);
            sums.in_bytes[j + 1] = std::max(sums.in_bytes[j + 1], sums.in_bytes[i] + comes);
            sums.out_bytes[j + 1] = std::max(sums.out_bytes[j + 1], sums.out_bytes[i] + leaves);
            sums.ns[j + 1] = std::max(sums.ns[j + 1], sums.ns[i] + std::max(ns, compute));
        }
    }
    return sums;
}

void raise(Bound &bound, double ns, Limit limit, PlaceId place)
{
    const auto whole_ns = static_cast<uint64_t>(std::floor(ns));
    if (whole_ns <= bound.step_ns) return;
    bound.step_ns = whole_ns;
    bound.limit = limit;
    bound.place = place;
}

// The only link into or out of a place carries all of its bytes.
void assign_links(Bound &bound, const Machine &machine)
{
    bound.link_bytes.assign(machine.links.size(), 0);
    for (size_t i = 0; i < machine.links.size(); ++i) {
        const Link &link = machine.links[i];
        const auto alone = [&](bool in) {
            return std::none_of(machine.links.begin(), machine.links.end(), [&](const Link &at) {
                return &at != &link && (in ? at.to == link.to : at.from == link.from);
            });
        };
        if (alone(true)) bound.link_bytes[i] = bound.in_bytes[link.to];
        if (!alone(false)) continue;
        bound.link_bytes[i] = std::max(bound.link_bytes[i], bound.out_bytes[link.from]);
    }
}

}  // namespace

Bound bound_of(const Step &step, const std::vector<residency::TensorSpec> &specs,
               const Machine &machine, Start start, uint32_t times)
{
    Bound bound;
    std::array<uint64_t, kLanes> compute_ns{};
    for (const Event &event : step) {
        compute_ns[static_cast<size_t>(event.lane)] += event.compute_ns;
    }
    bound.compute_ns = std::max(compute_ns[0], compute_ns[1]);
    bound.step_ns = bound.compute_ns;
    const auto places = static_cast<PlaceId>(machine.config.places.size());
    bound.in_bytes.assign(places, 0);
    bound.out_bytes.assign(places, 0);
    // The farthest place has room for everything.
    for (PlaceId place = 0; place + 1 < places; ++place) {
        // Only the first step starts cold.
        const Start usual = times > 1 ? Start::kAny : start;
        const Sums sums = Reader(step, specs, machine, usual, place).sums();
        const bool cold = start == Start::kCold;
        const FewestBytes fewest = fewest_bytes(step, specs, machine, place, cold, times);
        bound.in_bytes[place] = std::max(sums.in_bytes.back(), fewest.in / times);
        bound.out_bytes[place] = std::max(sums.out_bytes.back(), fewest.out / times);
        raise(bound, sums.ns.back(), Limit::kReads, place);
        raise(bound, ns_of(machine, place, true, bound.in_bytes[place]), Limit::kReads, place);
        raise(bound, ns_of(machine, place, false, bound.out_bytes[place]), Limit::kWrites, place);
    }
    assign_links(bound, machine);
    for (uint32_t group = 0; group < machine.groups.size(); ++group) {
        double bytes = 0;
        for (size_t i = 0; i < machine.links.size(); ++i) {
            if (machine.links[i].group != group) continue;
            bytes += static_cast<double>(bound.link_bytes[i]);
        }
        raise(bound, bytes * 1e9 / machine.groups[group].bytes_per_s, Limit::kGroup,
              residency::kNoPlace);
    }
    return bound;
}

}  // namespace stepwell::schedule
