// SPDX-License-Identifier: Apache-2.0
// Finds the micro-batches of a step: the program's fetches repeat, with the same tensors in the
// same order in each turn, apart from those that a turn writes for itself. Then runs each part for
// all turns, part after part; parts are as small as open views and dependencies allow.
#include "lib/schedule/advice/reorder.h"
#include "lib/schedule/advice/weave.h"

#include <stepwell/types.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::TensorId;
using residency::TensorSpec;

constexpr size_t kUsesApart = 16;   // of a tensor within one micro-batch, at most
constexpr size_t kUsesLooked = 64;  // of a tensor, when the length of a turn is determined
constexpr size_t kPeriodsTried = 32;

// Consecutive fetches of one tensor, and the events after them up to the next token.
struct Token {
    uint64_t key = 0;  // equal in all turns
    TensorId tensor = residency::kNone;
    size_t begin = 0;  // in the lane
    bool cut = false;
};

// The tokens [begin, begin + count x length).
struct Turns {
    size_t begin = 0;
    size_t length = 0;
    size_t count = 0;
    [[nodiscard]] size_t end() const { return begin + length * count; }
};

struct Program {
    const std::vector<TensorSpec> &specs;
    const Step &step;
    const EventList &lane;
    std::vector<Token> tokens;
    std::vector<bool> own;  // by tensor: it may be another one in each turn
    [[nodiscard]] const Event &event(size_t at) const { return step[lane[at]]; }
    [[nodiscard]] size_t begin_of(size_t token) const
    {
        return token < tokens.size() ? tokens[token].begin : lane.size();
    }
};

// Tensors that the step writes before it reads them, those fetched once, and activations.
std::vector<bool> find_own(const std::vector<TensorSpec> &specs, const Step &step)
{
    std::vector<bool> own(specs.size());
    std::vector<uint32_t> fetches(specs.size());
    for (const Event &event : step) {
        if (event.act != Act::kFetch) continue;
        if (fetches[event.tensor]++ == 0) own[event.tensor] = event.access == Access::kWrite;
    }
    for (size_t i = 0; i < specs.size(); ++i) {
        own[i] = own[i] || fetches[i] == 1 || specs[i].role == STW_ROLE_ACTIVATION;
    }
    return own;
}

uint64_t key_of(const Program &program, const Event &fetch)
{
    const bool writes = fetch.access != Access::kRead;
    if (!program.own[fetch.tensor]) return (uint64_t{fetch.tensor} << 2) | (writes ? 2 : 0) | 1;
    const TensorSpec &spec = program.specs[fetch.tensor];
    return ((spec.bytes * 64 + std::min<uint32_t>(spec.role, 63)) << 2) | (writes ? 2 : 0);
}

void find_tokens(Program &program)
{
    const std::vector<bool> cuts = cuts_of(program.step, program.lane);
    for (size_t i = 0; i < program.lane.size(); ++i) {
        const Event &event = program.event(i);
        if (event.act != Act::kFetch) continue;
        const bool again = !program.tokens.empty() && program.tokens.back().tensor == event.tensor;
        if (again) {
            program.tokens.back().key |= key_of(program, event) & 2;
        } else {
            program.tokens.push_back({key_of(program, event), event.tensor, i, cuts[i]});
        }
    }
}

// Distances between uses of tensors shared by all turns, the most frequent first.
std::vector<size_t> lengths_of(const Program &program)
{
    std::unordered_map<TensorId, std::vector<size_t>> uses;
    for (size_t i = 0; i < program.tokens.size(); ++i) {
        const TensorId tensor = program.tokens[i].tensor;
        if (!program.own[tensor]) uses[tensor].push_back(i);
    }
    std::unordered_map<size_t, size_t> counts;
    for (const auto &[tensor, at] : uses) {
        for (size_t i = 0; i < std::min(at.size(), kUsesLooked); ++i) {
            for (size_t k = i + 1; k < std::min(at.size(), i + 1 + kUsesApart); ++k) {
                ++counts[at[k] - at[i]];
            }
        }
    }
    std::vector<std::pair<size_t, size_t>> order;  // frequency, length
    order.reserve(counts.size());
    for (const auto &[length, count] : counts) order.emplace_back(count, length);
    std::sort(order.begin(), order.end(), [](const auto &a, const auto &b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    if (order.size() > kPeriodsTried) order.resize(kPeriodsTried);
    std::vector<size_t> lengths;
    lengths.reserve(order.size());
    for (const auto &[count, length] : order) lengths.push_back(length);
    return lengths;
}

bool can_part(const Program &program, const Turns &turns)
{
    for (size_t turn = 0; turn <= turns.count; ++turn) {
        const size_t at = turns.begin + turn * turns.length;
        if (at < program.tokens.size() && !program.tokens[at].cut) return false;
    }
    const auto first = program.tokens.begin() + static_cast<std::ptrdiff_t>(turns.begin);
    const auto last = first + static_cast<std::ptrdiff_t>(turns.length);
    return std::any_of(first, last, [&](const Token &token) { return !program.own[token.tensor]; });
}

// The turns of this length that cover most of the step.
Turns find_turns(const Program &program, size_t length)
{
    Turns best;
    const std::vector<Token> &tokens = program.tokens;
    size_t begin = 0;
    for (size_t i = 0; i + length <= tokens.size(); ++i) {
        const bool goes_on = i + length < tokens.size() && tokens[i].key == tokens[i + length].key;
        if (goes_on) continue;
        const size_t tokens_alike = i - begin + length;
        const size_t count = tokens_alike / length;
        for (size_t skip = 0; count >= 2 && skip <= tokens_alike % length; ++skip) {
            const Turns turns{begin + skip, length, count};
            if (count <= best.count || !can_part(program, turns)) continue;
            best = turns;
        }
        begin = i + 1;
    }
    return best;
}

Turns find_turns(const Program &program)
{
    Turns best;
    for (const size_t length : lengths_of(program)) {
        const Turns turns = find_turns(program, length);
        const size_t most = best.count * best.length;
        const size_t covered = turns.count * turns.length;
        if (covered < most || covered == 0) continue;
        if (covered > most || turns.length < best.length) best = turns;
    }
    return best;
}

// Visits the events of all turns in their order.
template <class Body> void each_event(const Program &program, const Turns &turns, Body &&body)
{
    for (size_t turn = 0; turn < turns.count; ++turn) {
        for (size_t token = 0; token < turns.length; ++token) {
            const size_t at = turns.begin + turn * turns.length + token;
            for (size_t i = program.begin_of(at); i < program.begin_of(at + 1); ++i) {
                body(turn, token, i);
            }
        }
    }
}

// Copies of tensors that each turn overwrites; the last turn uses the original.
class Copies {
public:
    Copies(const Program &program, const Turns &turns)
    {
        constexpr size_t kNoTurn = SIZE_MAX;
        struct Seen {
            size_t turn = kNoTurn;
            size_t turns = 0;
            bool anew = true;
        };
        std::unordered_map<TensorId, Seen> seen;
        each_event(program, turns, [&](size_t turn, size_t, size_t at) {
            const Event &event = program.event(at);
            Seen &mine = seen[event.tensor];
            if (event.act != Act::kFetch || mine.turn == turn) return;
            mine.turn = turn;
            ++mine.turns;
            const bool all =
                event.byte_begin == 0 &&
                (event.byte_count == 0 || event.byte_count == program.specs[event.tensor].bytes);
            mine.anew &= event.access == Access::kWrite && all;
        });
        for (const Event &event : program.step) {
            if (event.lane == Lane::kUpdate) seen.erase(event.tensor);
        }
        for (const auto &[tensor, mine] : seen) {
            if (mine.anew && mine.turns > 1) last_turn_[tensor] = mine.turn;
        }
    }
    // The tensor that this turn uses; a new one is appended to `specs`.
    TensorId in(size_t turn, TensorId tensor, std::vector<TensorSpec> *specs)
    {
        const auto last = last_turn_.find(tensor);
        if (last == last_turn_.end() || last->second == turn) return tensor;
        const auto [made, is_new] = made_.try_emplace((uint64_t{tensor} << 32) | turn,
                                                      static_cast<TensorId>(specs->size()));
        if (is_new) specs->push_back(TensorSpec((*specs)[tensor]));
        return made->second;
    }

private:
    std::unordered_map<TensorId, size_t> last_turn_;
    std::unordered_map<uint64_t, TensorId> made_;
};

// Accesses to a tensor, by whether turns may exchange their order.
enum class Kind : uint8_t { kRead, kSum, kChange };

Kind kind_of(const TensorSpec &spec, const Event &event)
{
    const bool sums = spec.role == STW_ROLE_GRAD && event.act == Act::kFetch;
    if (event.act != Act::kFetch || event.access != Access::kRead) {
        return sums ? Kind::kSum : Kind::kChange;
    }
    return Kind::kRead;
}

// Two tokens are joined in one part if a later turn's first must not run before an earlier turn's
// second.
class Joints {
public:
    explicit Joints(size_t tokens) : begins_(tokens + 1), ends_(tokens + 1) {}

    void use(TensorId tensor, Kind kind, size_t turn, size_t token)
    {
        Uses &uses = uses_[tensor];
        if (uses.turn != turn) {
            for (size_t i = 0; i < kKinds; ++i) {
                uses.before[i] = std::max(uses.before[i], uses.now[i]);
            }
            uses.turn = turn;
        }
        const auto mine = static_cast<size_t>(kind);
        for (size_t other = 0; other < kKinds; ++other) {
            const bool beside = mine == other && kind != Kind::kChange;
            if (beside || uses.before[other] <= token + 1) continue;
            ++begins_[token];
            ++ends_[uses.before[other] - 1];
        }
        uses.now[mine] = std::max(uses.now[mine], token + 1);
    }
    // By token: it is joined with the one before.
    [[nodiscard]] std::vector<bool> joined() const
    {
        std::vector<bool> joined(begins_.size() - 1);
        size_t open = 0;
        for (size_t i = 0; i < joined.size(); ++i) {
            joined[i] = open > 0;
            open = open + begins_[i] - ends_[i];
        }
        return joined;
    }

private:
    static constexpr size_t kKinds = 3;
    struct Uses {
        size_t turn = 0;
        size_t before[kKinds] = {};  // token + 1, in earlier turns
        size_t now[kKinds] = {};
    };
    std::unordered_map<TensorId, Uses> uses_;
    std::vector<size_t> begins_;
    std::vector<size_t> ends_;
};

// Joins tokens while a view is open in some turn.
void join_held(const Program &program, const Turns &turns, std::vector<bool> &joined)
{
    for (size_t token = 1; token < turns.length; ++token) {
        for (size_t turn = 0; turn < turns.count; ++turn) {
            const size_t at = turns.begin + turn * turns.length + token;
            if (!program.tokens[at].cut) joined[token] = true;
        }
    }
}

// Reorders the lane so that each part runs for all turns; returns the number of parts.
uint32_t turn_over(const Program &program, const Turns &turns, const std::vector<bool> &joined,
                   EventList *lane)
{
    uint32_t parts = 0;
    size_t to = program.begin_of(turns.begin);
    for (size_t begin = 0, end = 0; begin < turns.length; begin = end) {
        for (end = begin + 1; end < turns.length && joined[end];) ++end;
        ++parts;
        for (size_t turn = 0; turn < turns.count; ++turn) {
            const size_t first = turns.begin + turn * turns.length;
            const size_t last = program.begin_of(first + end);
            for (size_t i = program.begin_of(first + begin); i < last; ++i) {
                (*lane)[to++] = program.lane[i];
            }
        }
    }
    return parts;
}

}  // namespace

std::optional<Order> group_micro_batches(const std::vector<TensorSpec> &specs, const Step &step)
{
    std::array<EventList, kLanes> lanes = lanes_of(step);
    const EventList lane = lanes[static_cast<size_t>(Lane::kProgram)];
    Program program{specs, step, lane, {}, find_own(specs, step)};
    find_tokens(program);
    const Turns turns = find_turns(program);
    if (turns.count < 2) return {};
    Order order;
    order.specs = specs;
    order.times = static_cast<uint32_t>(turns.count);
    Step renamed = step;
    Copies copies(program, turns);
    Joints joints(turns.length);
    each_event(program, turns, [&](size_t turn, size_t token, size_t at) {
        Event &event = renamed[lane[at]];
        event.tensor = copies.in(turn, event.tensor, &order.specs);
        const bool uses = event.act != Act::kRelease || event.hint == Hint::kDiscard;
        if (uses) joints.use(event.tensor, kind_of(order.specs[event.tensor], event), turn, token);
    });
    std::vector<bool> joined = joints.joined();
    join_held(program, turns, joined);
    order.parts = turn_over(program, turns, joined, &lanes[static_cast<size_t>(Lane::kProgram)]);
    if (order.parts < 2) return {};
    std::optional<Step> woven = weave(renamed, lanes);
    if (!woven) return {};
    order.step = std::move(*woven);
    return order;
}

}  // namespace stepwell::schedule
