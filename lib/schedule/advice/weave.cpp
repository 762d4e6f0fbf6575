// SPDX-License-Identifier: Apache-2.0
// Lanes keep their relative pace as far as their tensors allow.
#include "lib/schedule/advice/weave.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::TensorId;

bool changes(const Event &event)
{
    if (event.act == Act::kFetch) return event.access != Access::kRead;
    return event.act == Act::kDiscard || event.hint == Hint::kDiscard;
}

// Tensors that both lanes use and one changes.
std::unordered_set<TensorId> contested(const Step &step)
{
    std::unordered_map<TensorId, uint32_t> seen;  // a bit for each lane, and one for a change
    for (const Event &event : step) {
        seen[event.tensor] |= 1u << static_cast<uint32_t>(event.lane);
        if (changes(event)) seen[event.tensor] |= 1u << kLanes;
    }
    std::unordered_set<TensorId> tensors;
    for (const auto &[tensor, bits] : seen) {
        if (bits == (2u << kLanes) - 1) tensors.insert(tensor);
    }
    return tensors;
}

// By event of `lane`: how many events of `other`, in its new order, must precede it.
std::vector<size_t> needs(const Step &step, const EventList &lane, const EventList &other,
                          const std::unordered_set<TensorId> &tensors)
{
    struct Before {
        size_t event = 0;
        size_t count = 0;
    };
    std::unordered_map<TensorId, std::vector<Before>> before;  // ascending in both fields
    std::vector<Before> ranks(other.size());
    for (size_t i = 0; i < other.size(); ++i) ranks[i] = {other[i], i + 1};
    std::sort(ranks.begin(), ranks.end(),
              [](const Before &a, const Before &b) { return a.event < b.event; });
    for (const Before &rank : ranks) {
        const TensorId tensor = step[rank.event].tensor;
        if (tensors.count(tensor) == 0) continue;
        std::vector<Before> &list = before[tensor];
        const size_t most = list.empty() ? 0 : list.back().count;
        list.push_back({rank.event, std::max(most, rank.count)});
    }
    std::vector<size_t> needed(lane.size());
    for (size_t i = 0; i < lane.size(); ++i) {
        const auto found = before.find(step[lane[i]].tensor);
        if (found == before.end()) continue;
        const std::vector<Before> &list = found->second;
        const auto end =
            std::lower_bound(list.begin(), list.end(), lane[i],
                             [](const Before &a, size_t event) { return a.event < event; });
        if (end != list.begin()) needed[i] = std::prev(end)->count;
    }
    return needed;
}

}  // namespace

std::array<EventList, kLanes> lanes_of(const Step &step)
{
    std::array<EventList, kLanes> lanes;
    for (size_t i = 0; i < step.size(); ++i) {
        lanes[static_cast<size_t>(step[i].lane)].push_back(i);
    }
    return lanes;
}

std::vector<bool> cuts_of(const Step &step, const EventList &lane)
{
    std::vector<bool> cuts(lane.size());
    uint64_t open = 0;
    bool in_call = false;
    for (size_t i = 0; i < lane.size(); ++i) {
        const Event &event = step[lane[i]];
        if (event.act == Act::kFetch) {
            cuts[i] = open == 0 && !in_call;
            ++open;
        } else if (event.act == Act::kRelease && open > 0) {
            --open;
        }
        in_call = event.act == Act::kFetch && event.with_next;
    }
    return cuts;
}

std::optional<Step> weave(const Step &step, const std::array<EventList, kLanes> &lanes)
{
    const EventList &program = lanes[static_cast<size_t>(Lane::kProgram)];
    const EventList &update = lanes[static_cast<size_t>(Lane::kUpdate)];
    const std::unordered_set<TensorId> tensors = contested(step);
    const std::vector<size_t> program_needs = needs(step, program, update, tensors);
    const std::vector<size_t> update_needs = needs(step, update, program, tensors);
    std::vector<size_t> pace;  // by update event: program events before it in the step
    size_t passed = 0;
    for (const Event &event : step) {
        if (event.lane == Lane::kProgram) {
            ++passed;
        } else {
            pace.push_back(passed);
        }
    }
    Step woven;
    woven.reserve(step.size());
    size_t updated = 0;
    for (size_t i = 0; i <= program.size(); ++i) {
        const size_t needed = i < program.size() ? program_needs[i] : update.size();
        while (updated < update.size()) {
            const bool ready = update_needs[updated] <= i;
            if (updated < needed && !ready) return {};
            if (updated >= needed && (!ready || pace[updated] > i)) break;
            woven.push_back(step[update[updated++]]);
        }
        if (i < program.size()) woven.push_back(step[program[i]]);
    }
    return woven;
}

}  // namespace stepwell::schedule
