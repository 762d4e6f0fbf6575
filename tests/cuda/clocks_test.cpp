// SPDX-License-Identifier: Apache-2.0
// Claims about clocks and the map of accesses, against a map that keeps every byte's history whole.
#include "tests/cuda/double/order.h"

#include <random>

#include <gtest/gtest.h>

namespace stepwell::cuda_double {
namespace {

Epoch epoch(uint32_t slot, uint64_t sequence)
{
    return {slot, sequence, "test", slot, sequence};
}

TEST(Clocks, CoverWhatTheyJoined)
{
    Clock one, two;
    one.advance(3, 5);
    EXPECT_TRUE(one.covers(epoch(3, 5)));
    EXPECT_FALSE(one.covers(epoch(3, 6)));
    EXPECT_FALSE(one.covers(epoch(9, 1)));
    EXPECT_TRUE(one.covers(Epoch{})) << "nothing came before everything";
    two.advance(9, 1);
    two.join(one);
    one.advance(3, 4);
    EXPECT_TRUE(one.covers(epoch(3, 5))) << "no clock goes back";
    EXPECT_TRUE(two.covers(epoch(3, 5)));
    EXPECT_FALSE(one.covers(epoch(9, 1)));
}

TEST(AccessMap, NeighboursOfOneHistoryAreOneCell)
{
    AccessMap map;
    Clock clock;
    clock.advance(0, 1);
    for (uint64_t at = 0; at < 1000; at += 10) map.record({at, at + 10}, true, epoch(0, 1), clock);
    EXPECT_EQ(map.cells(), 1u);
    for (uint64_t at = 0; at < 1000; at += 10) map.record({at, at + 10}, false, epoch(1, 1), clock);
    EXPECT_EQ(map.cells(), 1u);
}

TEST(AccessMap, WhatTheHostKnowsIsForgotten)
{
    AccessMap map;
    Clock clock;
    clock.advance(0, 1);
    map.record({0, 10}, true, epoch(0, 1), clock);
    map.record({20, 30}, true, epoch(1, 1), {});
    map.settle(clock);
    EXPECT_EQ(map.cells(), 1u);
    EXPECT_TRUE(map.conflicts({0, 10}, true, {}, {}).empty());
    EXPECT_EQ(map.conflicts({0, 25}, true, {}, {}).size(), 1u);
    map.forget({0, 100});
    EXPECT_EQ(map.cells(), 0u);
}

// Every access of every byte: who conflicts with whom, without any cleverness.
class Exhaustive {
public:
    bool conflicts(Range range, bool writes, const Clock &before) const
    {
        for (uint64_t at = range.begin; at < range.end; ++at)
            for (const auto &[by, wrote] : accesses_[at])
                if ((writes || wrote) && !before.covers(by)) return true;
        return false;
    }
    void record(Range range, bool writes, const Epoch &by)
    {
        for (uint64_t at = range.begin; at < range.end; ++at) accesses_[at].push_back({by, writes});
    }

private:
    std::vector<std::pair<Epoch, bool>> accesses_[64];
};

// Random operations of a few streams, ordered now and then; those that would race are left out, as
// after a race the two may keep different histories.
void run_random_program(uint32_t seed)
{
    std::minstd_rand random(seed);
    const auto draw = [&](uint64_t n) { return random() % n; };
    AccessMap map;
    Exhaustive exhaustive;
    Clock clocks[4];
    Clock host;
    uint64_t sequences[4] = {};
    for (int step = 0; step < 400; ++step) {
        const auto slot = static_cast<uint32_t>(draw(4));
        Clock before = clocks[slot];
        before.join(host);
        if (draw(3) == 0) before.join(clocks[draw(4)]);
        const Epoch self = epoch(slot, sequences[slot] + 1);
        before.advance(slot, self.sequence);
        const uint64_t begin = draw(64);
        const Range range{begin, begin + 1 + draw(64 - begin)};
        const bool writes = draw(2) == 0;
        const bool races = exhaustive.conflicts(range, writes, before);
        ASSERT_EQ(!map.conflicts(range, writes, self, before).empty(), races)
            << "seed " << seed << " step " << step;
        if (!races) {
            exhaustive.record(range, writes, self);
            map.record(range, writes, self, before);
            clocks[slot] = before;
            ++sequences[slot];
        }
        if (draw(20) == 0) host.join(clocks[draw(4)]);
        if (draw(50) == 0) map.settle(host);
    }
}

TEST(AccessMap, FindsWhatAMapOfEveryByteFinds)
{
    for (uint32_t seed = 1; seed <= 200; ++seed) run_random_program(seed);
}

}  // namespace
}  // namespace stepwell::cuda_double
