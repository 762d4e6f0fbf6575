// SPDX-License-Identifier: Apache-2.0
// Reverses the optimizer's part: the updates of the library beside the program, else the pieces of
// the program that change parameters. Pieces that share a tensor form one visit and keep their
// order; passes that do different things, as a norm before the update, stay in sequence.
#include "lib/schedule/advice/reorder.h"
#include "lib/schedule/advice/weave.h"

#include <stepwell/types.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::TensorId;
using residency::TensorSpec;

// The events of a lane from one cut to the next.
struct Piece {
    size_t begin = 0;
    size_t end = 0;
    uint32_t roles = 0;  // a bit for each role that it uses; 0: not part of an update
};

// Merges pieces that share tensors into visits.
class Visits {
public:
    size_t find(TensorId tensor)
    {
        auto [at, made] = parent_.try_emplace(tensor, tensor);
        if (made || at->second == tensor) return at->second;
        const TensorId root = static_cast<TensorId>(find(at->second));
        parent_[tensor] = root;
        return root;
    }
    void join(TensorId a, TensorId b)
    {
        const auto root = static_cast<TensorId>(find(a));
        parent_[root] = static_cast<TensorId>(find(b));
    }

private:
    std::unordered_map<TensorId, TensorId> parent_;
};

// Fetches of a tensor in the step.
struct Count {
    uint32_t reads = 0;
    uint32_t changes = 0;
};

std::vector<Count> count_fetches(const Step &step, size_t tensors)
{
    std::vector<Count> counts(tensors);
    for (const Event &event : step) {
        if (event.act != Act::kFetch) continue;
        Count &count = counts[event.tensor];
        ++(event.access == Access::kRead ? count.reads : count.changes);
    }
    return counts;
}

bool is_parameter(const TensorSpec &spec, const Count &count)
{
    if (spec.role == STW_ROLE_PARAM) return true;
    return spec.role == STW_ROLE_OTHER && count.changes == 1 && count.reads > 0;
}

// The program's own pieces; those without changes to what an optimizer changes have no roles.
std::vector<Piece> pieces_of(const std::vector<TensorSpec> &specs, const Step &step,
                             const std::vector<Count> &counts, const EventList &lane)
{
    const std::vector<bool> cuts = cuts_of(step, lane);
    std::vector<Piece> pieces;
    bool updates = false;
    const auto end_piece = [&](size_t at) {
        if (pieces.empty()) return;
        pieces.back().end = at;
        if (!updates) pieces.back().roles = 0;
    };
    for (size_t i = 0; i < lane.size(); ++i) {
        const Event &event = step[lane[i]];
        if (cuts[i]) {
            end_piece(i);
            pieces.push_back({i, i, 0});
            updates = event.lane == Lane::kUpdate;
        }
        if (event.act != Act::kFetch || pieces.empty()) continue;
        const TensorSpec &spec = specs[event.tensor];
        pieces.back().roles |= 1u << std::min<uint32_t>(spec.role, 31);
        const bool optimized =
            spec.role == STW_ROLE_OPTIMIZER_STATE || is_parameter(spec, counts[event.tensor]);
        updates |= optimized && event.access == Access::kReadWrite;
    }
    end_piece(lane.size());
    return pieces;
}

// A backward pass that updates as it goes is not an optimizer: the model determines its order. It
// reads each parameter once, in the forward; with an optimizer after it, the backward has read it
// too.
bool may_turn(const std::vector<TensorSpec> &specs, const Step &step,
              const std::vector<Count> &counts, const EventList &lane, const Piece &first,
              const Piece &last)
{
    if (step[lane[first.begin]].lane == Lane::kUpdate) return true;
    int64_t read_twice = 0;
    for (size_t i = first.begin; i < last.end; ++i) {
        const Event &event = step[lane[i]];
        const Count &count = counts[event.tensor];
        if (event.act != Act::kFetch || event.access == Access::kRead) continue;
        if (is_parameter(specs[event.tensor], count)) read_twice += count.reads > 1 ? 1 : -1;
    }
    return read_twice >= 0;
}

// Reverses the visits in the pieces [begin, end). Returns their number.
uint32_t reverse(const Step &step, const std::vector<Piece> &pieces, size_t begin, size_t end,
                 EventList *lane)
{
    Visits visits;
    for (size_t i = begin; i < end; ++i) {
        const Event &first = step[(*lane)[pieces[i].begin]];
        for (size_t at = pieces[i].begin; at < pieces[i].end; ++at) {
            const Event &event = step[(*lane)[at]];
            if (event.act == Act::kFetch) visits.join(event.tensor, first.tensor);
        }
    }
    std::vector<EventList> lists;
    std::map<size_t, size_t> list_of;  // by number of the visit
    const auto list = [&](TensorId tensor) -> EventList & {
        const auto [at, made] = list_of.try_emplace(visits.find(tensor), lists.size());
        if (made) lists.emplace_back();
        return lists[at->second];
    };
    // Discards follow the visit that used the tensor, as they may come within another one.
    EventList deaths;
    for (size_t i = begin; i < end; ++i) {
        for (size_t at = pieces[i].begin; at < pieces[i].end; ++at) {
            const size_t event = (*lane)[at];
            if (step[event].act == Act::kDiscard) {
                deaths.push_back(event);
            } else {
                list(step[event].tensor).push_back(event);
            }
        }
    }
    for (const size_t event : deaths) list(step[event].tensor).push_back(event);
    size_t at = pieces[begin].begin;
    for (auto visit = lists.rbegin(); visit != lists.rend(); ++visit) {
        std::copy(visit->begin(), visit->end(), lane->begin() + static_cast<std::ptrdiff_t>(at));
        at += visit->size();
    }
    return static_cast<uint32_t>(lists.size());
}

// The number of visits in the largest pass whose order was changed; 0: none.
uint32_t reverse_passes(const std::vector<TensorSpec> &specs, const Step &step, EventList *lane)
{
    const std::vector<Count> counts = count_fetches(step, specs.size());
    const std::vector<Piece> pieces = pieces_of(specs, step, counts, *lane);
    const EventList before = *lane;
    uint32_t most = 0;
    for (size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
        for (end = begin + 1; end < pieces.size() && pieces[end].roles == pieces[begin].roles;) {
            ++end;
        }
        if (pieces[begin].roles == 0 || end - begin < 2) continue;
        if (!may_turn(specs, step, counts, before, pieces[begin], pieces[end - 1])) continue;
        most = std::max(most, reverse(step, pieces, begin, end, lane));
    }
    return *lane == before ? 0 : most;
}

}  // namespace

std::optional<Order> reverse_update(const std::vector<TensorSpec> &specs, const Step &step)
{
    for (const Lane which : {Lane::kUpdate, Lane::kProgram}) {
        std::array<EventList, kLanes> lanes = lanes_of(step);
        const uint32_t visits = reverse_passes(specs, step, &lanes[static_cast<size_t>(which)]);
        if (visits < 2) continue;
        std::optional<Step> woven = weave(step, lanes);
        if (!woven) return {};
        return Order{std::move(*woven), specs, visits, 1};
    }
    return {};
}

}  // namespace stepwell::schedule
