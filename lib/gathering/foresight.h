// SPDX-License-Identifier: Apache-2.0
// What is fetched next, by what followed the last time: a step does what the one before did. A
// function of the fetches alone, in their order, so that all ranks foresee the same, rightly or
// not. Pure.
#pragma once

#include "lib/residency/types.h"

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace stepwell::gathering {

using residency::kNone;

using WholeId = uint32_t;

class Foresight {
public:
    // Where in the program a fetch comes, told by the two before it.
    using Spot = uint64_t;
    struct Coming {
        WholeId whole = kNone;
        Spot spot = 0;
    };

    // remembers_max: fetches; of a step that has more nothing is foreseen.
    explicit Foresight(size_t remembers_max = size_t{1} << 16) : remembers_max_(remembers_max) {}

    // changed: since the fetch before this one, so that it could not have been gathered by then.
    void fetched(WholeId whole, bool changed);
    // The fetches that will follow, so many at most and up to one that is known to be changed
    // first.
    void coming(uint32_t count_max, std::vector<Coming> &out) const;
    // What was foreseen there was changed before it was fetched.
    void bar(Spot spot) { barred_.insert(spot); }

private:
    static Spot spot_behind(WholeId before, WholeId last) { return uint64_t{before} << 32 | last; }
    void forget_half();
    [[nodiscard]] uint64_t end() const { return begin_ + fetches_.size(); }

    size_t remembers_max_;
    std::deque<WholeId> fetches_;
    uint64_t begin_ = 0;  // the number of the first of them
    // By spot, the number of the last fetch that came there.
    std::unordered_map<Spot, uint64_t> last_at_;
    std::unordered_set<Spot> barred_;
    // The number of the fetch that is to come, as long as the program repeats itself; else end().
    uint64_t cursor_ = 0;
    WholeId before_last_ = kNone;
    WholeId last_ = kNone;
};

}  // namespace stepwell::gathering
