// SPDX-License-Identifier: Apache-2.0
// The best that can be done with a tiny step, found by trying everything: what to evict at each
// access for the fewest bytes, and for the least time also what to ask ahead and write back when.
// Tensors are one block each; a transfer takes one tick on a link of its own for each direction.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

namespace stepwell::schedule::exhaustive {

struct Access {
    uint32_t tensor = 0;
    bool reads = true;
    bool writes = false;
    bool dies = false;    // at its release
    uint32_t ticks = 0;   // computed while it is held
    uint32_t longer = 0;  // held during so many more accesses; fewest() alone knows of that
};

struct Problem {
    uint32_t tensors = 0;
    uint32_t blocks = 0;  // of the place
    bool any_start = false;
    std::vector<Access> accesses;
};

enum State : uint8_t { kAbsent, kClean, kDirty };
constexpr uint32_t kTensorsMax = 5;
using States = std::array<uint8_t, kTensorsMax>;

inline uint32_t resident(const States &states)
{
    return static_cast<uint32_t>(std::count_if(states.begin(), states.end(),
                                               [](uint8_t state) { return state != kAbsent; }));
}

// What may be there at the beginning, if anything may: of clean tensors, as a dirty one is no help.
inline std::vector<States> starts(const Problem &problem)
{
    std::vector<States> all;
    for (uint32_t mask = 0; mask < 1u << problem.tensors; ++mask) {
        if (mask != 0 && !problem.any_start) break;
        States states{};
        for (uint32_t i = 0; i < problem.tensors; ++i) states[i] = (mask >> i) & 1;
        if (resident(states) <= problem.blocks) all.push_back(states);
    }
    return all;
}

// Held at an access, by those before it.
inline std::array<bool, kTensorsMax> held_at(const Problem &problem, size_t at)
{
    std::array<bool, kTensorsMax> held{};
    for (size_t i = 0; i < at; ++i) {
        held[problem.accesses[i].tensor] |= i + problem.accesses[i].longer >= at;
    }
    return held;
}

struct Fewest {
    uint32_t reads = UINT32_MAX;
    uint32_t writes = UINT32_MAX;
    uint32_t both = UINT32_MAX;
};

// By states, the fewest of `reads_cost` and `writes_cost` for the accesses so far.
inline uint32_t fewest(const Problem &problem, uint32_t reads_cost, uint32_t writes_cost)
{
    std::map<States, uint32_t> costs;
    for (const States &states : starts(problem)) costs[states] = 0;
    for (size_t i = 0; i < problem.accesses.size(); ++i) {
        const Access &access = problem.accesses[i];
        const std::array<bool, kTensorsMax> held = held_at(problem, i);
        std::map<States, uint32_t> next;
        const auto reach = [&](States states, uint32_t cost) {
            const bool absent = states[access.tensor] == kAbsent;
            if (absent && access.reads) cost += reads_cost;
            if (absent) states[access.tensor] = kClean;
            if (access.writes) states[access.tensor] = kDirty;
            if (access.dies) states[access.tensor] = kAbsent;
            const auto [at, added] = next.emplace(states, cost);
            if (!added) at->second = std::min(at->second, cost);
        };
        for (const auto &[states, cost] : costs) {
            if (states[access.tensor] != kAbsent || resident(states) < problem.blocks) {
                reach(states, cost);
                continue;
            }
            for (uint32_t victim = 0; victim < problem.tensors; ++victim) {
                if (states[victim] == kAbsent || held[victim]) continue;
                States left = states;
                left[victim] = kAbsent;
                reach(left, cost + (states[victim] == kDirty ? writes_cost : 0));
            }
        }
        costs.swap(next);
    }
    uint32_t least = UINT32_MAX;
    for (const auto &[states, cost] : costs) least = std::min(least, cost);
    return least;
}

inline Fewest fewest(const Problem &problem)
{
    return {fewest(problem, 1, 0), fewest(problem, 0, 1), fewest(problem, 1, 1)};
}

// A moment of a run: what is where and under way, and where the program stands.
struct Moment {
    States states{};
    uint8_t at = 0;    // access
    uint8_t held = 0;  // 1: it has its view, and so many ticks of computing left
    uint8_t ticks = 0;
    uint8_t loads = UINT8_MAX;  // tensor
    uint8_t stores = UINT8_MAX;

    [[nodiscard]] uint64_t key() const
    {
        uint64_t key = 0;
        for (const uint8_t state : states) key = key * 4 + state;
        for (const uint8_t part : {at, held, ticks, loads, stores}) key = key * 256 + part;
        return key;
    }
};

class Search {
public:
    explicit Search(const Problem &problem) : problem_(problem) {}

    // Ticks from the beginning to the last release.
    uint32_t least_ticks()
    {
        for (const States &states : starts(problem_)) {
            Moment moment;
            moment.states = states;
            push(moment, 0, true);
        }
        while (!queue_.empty()) {
            const auto [moment, ticks] = queue_.front();
            queue_.pop_front();
            if (seen_[moment.key()] != ticks) continue;
            if (moment.at == problem_.accesses.size()) return ticks;
            move(moment, ticks);
        }
        return UINT32_MAX;
    }

private:
    // The program goes on as soon as it can; waiting would not help it.
    void advance(Moment &moment) const
    {
        while (moment.at < problem_.accesses.size()) {
            const Access &access = problem_.accesses[moment.at];
            uint8_t &state = moment.states[access.tensor];
            if (moment.held == 0) {
                if (moment.loads == access.tensor) return;
                if (access.writes && moment.stores == access.tensor) return;
                if (state == kAbsent && (access.reads || used(moment) == problem_.blocks)) return;
                if (state == kAbsent) state = kClean;
                if (access.writes) state = kDirty;
                moment.held = 1;
                moment.ticks = static_cast<uint8_t>(access.ticks);
            }
            if (moment.ticks > 0) return;
            moment.held = 0;
            ++moment.at;
            if (access.dies) state = kAbsent;
        }
    }
    [[nodiscard]] uint32_t used(const Moment &moment) const
    {
        return resident(moment.states) + (moment.loads != UINT8_MAX);
    }
    void push(Moment moment, uint32_t ticks, bool free_of_time)
    {
        advance(moment);
        const auto [at, added] = seen_.emplace(moment.key(), ticks);
        if (!added && at->second <= ticks) return;
        at->second = ticks;
        if (free_of_time) {
            queue_.emplace_front(moment, ticks);
        } else {
            queue_.emplace_back(moment, ticks);
        }
    }
    void move(const Moment &moment, uint32_t ticks)
    {
        const bool holds = moment.held != 0;
        for (uint8_t tensor = 0; tensor < problem_.tensors; ++tensor) {
            const bool mine = holds && problem_.accesses[moment.at].tensor == tensor;
            const uint8_t state = moment.states[tensor];
            Moment next = moment;
            if (state == kClean && !mine && moment.stores != tensor) {
                next.states[tensor] = kAbsent;
                push(next, ticks, true);
            }
            next = moment;
            const bool room = used(moment) < problem_.blocks;
            if (state == kAbsent && moment.loads == UINT8_MAX && room) {
                next.loads = tensor;
                push(next, ticks, true);
            }
            next = moment;
            if (state == kDirty && !mine && moment.stores == UINT8_MAX) {
                next.stores = tensor;
                push(next, ticks, true);
            }
        }
        Moment next = moment;
        if (next.loads != UINT8_MAX) next.states[next.loads] = kClean;
        if (next.stores != UINT8_MAX) next.states[next.stores] = kClean;
        next.loads = next.stores = UINT8_MAX;
        if (next.ticks > 0) --next.ticks;
        push(next, ticks + 1, false);
    }

    const Problem &problem_;
    std::unordered_map<uint64_t, uint32_t> seen_;
    std::deque<std::pair<Moment, uint32_t>> queue_;
};

}  // namespace stepwell::schedule::exhaustive
