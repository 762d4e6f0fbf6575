// SPDX-License-Identifier: Apache-2.0
// Claims about the share of a disk that each rank gets, in virtual time: alone on the counts, then
// with a disk that serves requests in the order in which they came.
#include "lib/collective/fair_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

namespace stepwell::collective {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kMs = 1'000'000;

// The counts of n ranks, with a share for each.
struct Ranks {
    explicit Ranks(uint32_t n, const FairLimits &given = {}) : limits(given), lanes(n)
    {
        for (uint32_t i = 0; i < n; ++i) shares.emplace_back(lanes.data(), n, i, limits);
    }
    [[nodiscard]] uint64_t taken(uint32_t rank) const { return lanes[rank].taken; }
    [[nodiscard]] bool wants(uint32_t rank, uint64_t now_ns) const
    {
        const uint64_t asked_ns = lanes[rank].asked_ns;
        return asked_ns != 0 && now_ns - asked_ns <= limits.lapse_ns;
    }

    const FairLimits limits;
    std::vector<FairLane> lanes;
    std::vector<FairShare> shares;
};

TEST(FairShare, WhoIsAloneIsNeverRefused)
{
    Ranks ranks(4);
    for (uint64_t i = 0; i < 1000; ++i) ASSERT_TRUE(ranks.shares[2].take(kMiB, i));
}

TEST(FairShare, NobodyIsMoreThanTheLeadAheadOfTheSlowestThatWants)
{
    Ranks ranks(2, {10, 1000});
    EXPECT_TRUE(ranks.shares[0].take(4, 1));
    EXPECT_TRUE(ranks.shares[1].take(4, 1));  // begins where the other is
    EXPECT_EQ(ranks.taken(1), 8u);
    EXPECT_TRUE(ranks.shares[1].take(6, 2));
    EXPECT_FALSE(ranks.shares[1].take(1, 2));
    EXPECT_TRUE(ranks.shares[0].take(1, 2));
    EXPECT_TRUE(ranks.shares[1].take(1, 2));
    EXPECT_FALSE(ranks.shares[1].take(1, 2));
}

TEST(FairShare, ARequestLargerThanTheLeadGoesWhenItsRankIsTheSlowest)
{
    Ranks ranks(2, {10, 1000});
    EXPECT_TRUE(ranks.shares[0].take(100, 1));
    EXPECT_TRUE(ranks.shares[1].take(100, 1));
    EXPECT_FALSE(ranks.shares[1].take(100, 2));
    EXPECT_TRUE(ranks.shares[0].take(100, 2));
    EXPECT_TRUE(ranks.shares[1].take(100, 3));
}

TEST(FairShare, WhoRestsHoldsUpNobody)
{
    Ranks ranks(2, {10, 1000});
    EXPECT_TRUE(ranks.shares[0].take(10, 1));
    EXPECT_TRUE(ranks.shares[1].take(10, 1));
    EXPECT_FALSE(ranks.shares[1].take(10, 1));
    ranks.shares[0].rest();
    for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(ranks.shares[1].take(10, 2));
}

TEST(FairShare, WhoAskedForNothingForTheLapseHoldsUpNobody)
{
    Ranks ranks(2, {10, 1000});
    EXPECT_TRUE(ranks.shares[0].take(10, 1));
    EXPECT_TRUE(ranks.shares[1].take(10, 1));
    EXPECT_FALSE(ranks.shares[1].take(10, 1001));
    EXPECT_TRUE(ranks.shares[1].take(10, 1002));
}

TEST(FairShare, WhoComesBackIsOwedNothingAndOwesNothing)
{
    Ranks ranks(2, {10, 1000});
    for (uint32_t i = 0; i < 100; ++i) EXPECT_TRUE(ranks.shares[0].take(10, 1));
    // Rank 1 was away meanwhile: it begins level, and has not the disk alone for 1000 bytes.
    EXPECT_TRUE(ranks.shares[1].take(5, 2));
    EXPECT_TRUE(ranks.shares[0].take(10, 2));
    // Rank 0 rests, rank 1 begins a count far below it on a scale of its own.
    ranks.shares[0].rest();
    ranks.lanes[1].taken = 7;
    EXPECT_TRUE(ranks.shares[1].take(1, 3));
    EXPECT_FALSE(ranks.shares[0].take(10, 4));
    EXPECT_TRUE(ranks.shares[1].take(10, 4));
    EXPECT_TRUE(ranks.shares[0].take(10, 5));
}

// Any program of asking, resting and time that passes.
TEST(FairShare, AnyProgramKeepsTheLeadAndNeverRefusesTheSlowest)
{
    for (uint32_t seed = 1; seed <= 300; ++seed) {
        std::mt19937 random(seed);
        const uint32_t n = 1 + random() % 6;
        Ranks ranks(n, {100, 50});
        uint64_t now_ns = 1;
        for (uint32_t step = 0; step < 2000; ++step) {
            const uint32_t rank = random() % n;
            now_ns += random() % 4;
            if (random() % 300 == 0) now_ns += 60;
            if (random() % 40 == 0) {
                ranks.shares[rank].rest();
                continue;
            }
            uint64_t slowest = UINT64_MAX;
            for (uint32_t i = 0; i < n; ++i) {
                if (i != rank && ranks.wants(i, now_ns)) {
                    slowest = std::min(slowest, ranks.taken(i));
                }
            }
            const bool was_slowest = slowest == UINT64_MAX || ranks.taken(rank) <= slowest;
            const bool granted = ranks.shares[rank].take(1 + random() % 100, now_ns);
            ASSERT_TRUE(granted || !was_slowest) << "seed " << seed << ", step " << step;
            for (uint32_t i = 0; i < n; ++i) {
                for (uint32_t k = 0; k < n; ++k) {
                    if (!ranks.wants(i, now_ns) || !ranks.wants(k, now_ns)) continue;
                    ASSERT_LE(ranks.taken(i), ranks.taken(k) + ranks.limits.lead_bytes)
                        << "seed " << seed << ", step " << step;
                }
            }
        }
    }
}

// --------------------------------------------------------------------------------- with a disk --

struct Client {
    uint64_t begins_ns = 0;
    uint64_t work_bytes = 1024 * kMiB;
    uint64_t request_bytes = kMiB;
    uint32_t depth = 32;
    uint64_t dies_ns = UINT64_MAX;

    uint64_t sent_bytes = 0;
    uint64_t served_bytes = 0;
    uint32_t in_flight = 0;
    uint64_t ended_ns = 0;
};

// A disk of 4 GiB/s that serves what came first first.
struct Simulation {
    explicit Simulation(std::vector<Client> given) : clients(std::move(given)) {}

    [[nodiscard]] bool runs(const Client &client) const
    {
        return now_ns >= client.begins_ns && now_ns < client.dies_ns;
    }
    [[nodiscard]] bool wants(const Client &client) const
    {
        return runs(client) && client.sent_bytes < client.work_bytes;
    }
    // One request; false when it has none to send or may not.
    bool send(uint32_t rank, bool fair)
    {
        Client &client = clients[rank];
        if (fair && runs(client) && client.sent_bytes == client.work_bytes) {
            ranks.shares[rank].rest();
        }
        if (!wants(client) || client.in_flight == client.depth) return false;
        if (fair && !ranks.shares[rank].take(client.request_bytes, now_ns)) return false;
        queue.push_back(rank);
        client.sent_bytes += client.request_bytes;
        ++client.in_flight;
        return true;
    }
    // Each sends what it can, in an order that changes.
    void send_all(bool fair, std::mt19937 &random)
    {
        std::vector<uint32_t> order;
        for (uint32_t i = 0; i < clients.size(); ++i) order.push_back(i);
        while (!order.empty()) {
            const size_t at = random() % order.size();
            if (!send(order[at], fair)) order.erase(order.begin() + static_cast<ptrdiff_t>(at));
        }
    }
    void serve()
    {
        Client &client = clients[queue.front()];
        queue.pop_front();
        now_ns += client.request_bytes * 1000 / 4295;
        client.served_bytes += client.request_bytes;
        --client.in_flight;
        if (client.served_bytes == client.work_bytes) client.ended_ns = now_ns;
    }
    // The furthest that one got before another while both wanted more: in what the disk was given.
    void look()
    {
        for (const Client &a : clients) {
            for (const Client &b : clients) {
                if (!wants(a) || !wants(b) || a.sent_bytes <= b.sent_bytes) continue;
                apart_bytes = std::max(apart_bytes, a.sent_bytes - b.sent_bytes);
            }
        }
    }
    void run(bool fair, uint32_t seed)
    {
        std::mt19937 random(seed);
        const auto works = [this](const Client &client) {
            return now_ns < client.begins_ns || wants(client);
        };
        while (!queue.empty() || std::any_of(clients.begin(), clients.end(), works)) {
            send_all(fair, random);
            look();
            if (queue.empty()) {
                now_ns += kMs / 2;
                idle_ns += kMs / 2;
            } else {
                serve();
            }
        }
    }
    // Of those that live: the time of the slowest by that of the fastest, each from its begin.
    [[nodiscard]] double slowest_by_fastest() const
    {
        double fastest = 1e30;
        double slowest = 0;
        for (const Client &client : clients) {
            if (client.dies_ns != UINT64_MAX) continue;
            const auto ns = static_cast<double>(client.ended_ns - client.begins_ns);
            fastest = std::min(fastest, ns);
            slowest = std::max(slowest, ns);
        }
        return slowest / fastest;
    }

    std::vector<Client> clients;
    Ranks ranks{static_cast<uint32_t>(clients.size())};
    std::deque<uint32_t> queue;
    uint64_t now_ns = 1;
    uint64_t idle_ns = 0;
    uint64_t apart_bytes = 0;
};

// Equal work of four ranks that ask in different ways: a greedy one, two common, a careful one.
std::vector<Client> four()
{
    std::vector<Client> clients(4);
    clients[0].depth = 128;
    clients[1].request_bytes = 2 * kMiB;
    clients[3].depth = 8;
    return clients;
}

// The lead, and the few requests that the first had sent when the last came.
constexpr uint64_t kApartMax = FairLimits{}.lead_bytes + 8 * kMiB;

TEST(SharedDisk, EqualWorkEndsTogetherWhereFirstComeFirstServedDoesNot)
{
    for (uint32_t seed = 1; seed <= 10; ++seed) {
        Simulation greedy(four());
        greedy.run(false, seed);
        EXPECT_GT(greedy.apart_bytes, 8 * kApartMax);
        EXPECT_GT(greedy.slowest_by_fastest(), 1.5);
        Simulation fair(four());
        fair.run(true, seed);
        EXPECT_LE(fair.apart_bytes, kApartMax) << "seed " << seed;
        EXPECT_LE(fair.slowest_by_fastest(), 1.1) << "seed " << seed;
        EXPECT_EQ(fair.idle_ns, 0u);
    }
}

TEST(SharedDisk, ADeadRankCostsTheOthersOneLapseAtMost)
{
    for (uint32_t seed = 1; seed <= 10; ++seed) {
        std::vector<Client> clients = four();
        clients[1].dies_ns = (20 + 30 * seed) * kMs;
        Simulation fair(clients);
        fair.run(true, seed);
        EXPECT_LE(fair.apart_bytes, kApartMax) << "seed " << seed;
        EXPECT_LE(fair.slowest_by_fastest(), 1.1) << "seed " << seed;
        EXPECT_LE(fair.idle_ns, FairLimits{}.lapse_ns + kMs);
        for (const Client &client : fair.clients) {
            EXPECT_TRUE(client.dies_ns != UINT64_MAX || client.ended_ns != 0);
        }
    }
}

TEST(SharedDisk, IsNeverIdleWhileSomebodyWantsIt)
{
    for (uint32_t seed = 1; seed <= 10; ++seed) {
        std::mt19937 random(seed);
        std::vector<Client> clients = four();
        for (Client &client : clients) {
            client.begins_ns = random() % (100 * kMs);
            client.work_bytes = (1 + random() % 300) * 2 * kMiB;
        }
        clients[random() % 4].begins_ns = 0;
        Simulation greedy(clients);
        greedy.run(false, seed);
        Simulation fair(clients);
        fair.run(true, seed);
        EXPECT_EQ(fair.idle_ns, greedy.idle_ns) << "seed " << seed;
        EXPECT_EQ(fair.now_ns, greedy.now_ns) << "seed " << seed;
    }
}

}  // namespace
}  // namespace stepwell::collective
