// SPDX-License-Identifier: Apache-2.0
// Whether early updates make the program's steps shorter, by the time from verdict to verdict. What
// they gain is time in which nothing else needed the processor, memory or the drive; where all of
// these are busy, copies of older contents and gradients that are kept cost more. So the other way
// is tried now and then for a few rounds, and what is better goes on. Not thread-safe.
#pragma once

#include "lib/update/optimizer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace stepwell::update {

class EarlyTrial {
public:
    static constexpr uint32_t kFirst = 32;  // rounds up to the first trial

    // Whether updates are early in this round, and whether they are but for a trial.
    [[nodiscard]] bool goes() const { return pays_ != trying_; }
    [[nodiscard]] bool pays() const { return pays_; }

    // A verdict is known at that instant. asks: since the last one there were early steps; early:
    // some of their updates had begun.
    void end_round(uint64_t now_ns, bool asks, bool early)
    {
        const uint64_t began_ns = asks ? std::exchange(ended_ns_, now_ns) : 0;
        if (began_ns == 0 || (goes() && !early)) {
            // Nothing to compare.
            if (!asks) ended_ns_ = 0;
            begin(false, kFirst);
            return;
        }
        if (left_ <= kEarlyTrialRounds) round_.add(now_ns - began_ns);
        if (--left_ > 0) return;
        if (!trying_) {
            usual_ = round_;
            begin(true, 1 + kEarlyTrialRounds);  // the first still has to do with the rounds before
            return;
        }
        // Times vary for many reasons: only if each of one way was longer than each of the other.
        const Times &with = pays_ ? usual_ : round_;
        const Times &without = pays_ ? round_ : usual_;
        pays_ = with.least_ns <= without.most_ns;
        begin(false, kEarlyTrialBetween);
    }

private:
    struct Times {
        void add(uint64_t ns)
        {
            least_ns = std::min(least_ns, ns);
            most_ns = std::max(most_ns, ns);
        }
        uint64_t least_ns = UINT64_MAX;
        uint64_t most_ns = 0;
    };

    void begin(bool trying, uint32_t rounds)
    {
        trying_ = trying;
        left_ = rounds;
        round_ = {};
    }

    bool pays_ = true;
    bool trying_ = false;     // the other way
    uint32_t left_ = kFirst;  // rounds to go on like this
    uint64_t ended_ns_ = 0;   // the last round; 0: none with early steps
    Times round_;             // of the last of these
    Times usual_;             // before the trial
};

}  // namespace stepwell::update
