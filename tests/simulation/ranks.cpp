// SPDX-License-Identifier: Apache-2.0
// Ranks that make the same calls, each in its own time: the plan, what they exchange, the run.
#include "tests/simulation/ranks.h"

#include <algorithm>

namespace stepwell::simulation {
namespace {

constexpr uint32_t kRoundsMax = 200000;
constexpr uint32_t kManyRoundsMax = 5000000;

// Delays and faults of many: ranks that are slow, cannot read, or are gone half way.
void choose_troubles(Random &random, RankPlan &plan)
{
    if (random.chance(60)) plan.faults_per_million = static_cast<uint32_t>(random.below(5000));
    for (uint64_t n = random.below(3); n > 0; n--) {
        plan.slow.push_back(static_cast<uint32_t>(random.below(plan.ranks)));
    }
    if (!random.chance(30)) return;
    plan.dies = static_cast<uint32_t>(random.below(plan.ranks));
    plan.dies_at = random.below(plan.calls.size());
}

RankPlan choose_plan(Random &random, bool many)
{
    RankPlan plan;
    plan.ranks = static_cast<uint32_t>(random.chance(70) ? 2 : random.between(3, 4));
    if (many) plan.ranks = static_cast<uint32_t>(8ull << random.below(random.chance(20) ? 4 : 2));
    const size_t tensors = random.between(3, many ? 5 : 8);
    uint32_t largest = 0;
    for (size_t i = 0; i < tensors; i++) {
        plan.shard_blocks.push_back(static_cast<uint32_t>(random.between(1, many ? 1 : 3)));
        largest = std::max(largest, plan.shard_blocks.back() * plan.ranks);
    }
    plan.whole_blocks = largest + static_cast<uint32_t>(random.below(2 * largest));
    if (random.chance(50))
        plan.bucket_bytes = random.between(32, 32ull * plan.whole_blocks) * kBlockBytes;
    plan.ahead_max = static_cast<uint32_t>(random.below(4));
    const bool speculates = random.chance(40);
    // Every tensor is written once, so that there is something to gather.
    for (WholeId whole = 0; whole < tensors; whole++) {
        plan.calls.push_back({RankCall::Kind::kWrite, {whole}, 0});
    }
    std::vector<size_t> open;
    size_t fetches = 0;
    for (int i = 0; i < (many ? 25 : 60); i++) {
        const uint64_t kind = random.below(10);
        RankCall call;
        if (kind < 5) {
            call.kind = RankCall::Kind::kFetch;
            for (uint64_t n = random.between(1, 2); n > 0; n--) {
                call.wholes.push_back(static_cast<WholeId>(random.below(tensors)));
            }
            // Sometimes an expert that some ranks do not need, or nobody.
            if (random.chance(30)) call.absent = random.next() & random.next();
            if (random.chance(5)) call.absent = UINT64_MAX;
            open.push_back(fetches++);
        } else if (kind < 8 && !open.empty()) {
            call.kind = RankCall::Kind::kRelease;
            std::swap(open[random.below(open.size())], open.back());
            call.fetch = open.back();
            open.pop_back();
        } else {
            call.kind = kind == 8 ? RankCall::Kind::kWrite : RankCall::Kind::kUpdate;
            call.wholes.push_back(static_cast<WholeId>(random.below(tensors)));
        }
        if (call.kind == RankCall::Kind::kUpdate && speculates) {
            call.kind = random.chance(60) ? RankCall::Kind::kEarly : RankCall::Kind::kVerdict;
        }
        plan.calls.push_back(call);
    }
    for (const size_t fetch : open) {
        plan.calls.push_back({RankCall::Kind::kRelease, {}, fetch});
    }
    if (speculates) plan.calls.push_back({RankCall::Kind::kVerdict, {}, 0});
    if (many) choose_troubles(random, plan);
    return plan;
}

}  // namespace

void Fabric::start(uint32_t rank, const StartGather &start, const std::vector<Stamp> &shards)
{
    const GatherId gather = start.gather;
    const std::vector<WholeId> &wholes = start.wholes;
    if (gather != started_[rank] + 1) {
        journal_.fail("rank %u starts collective %llu after %llu", rank, (unsigned long long)gather,
                      (unsigned long long)started_[rank]);
    }
    started_[rank] = gather;
    Collective &collective = gathers_[gather];
    if (collective.arrived > 0 && collective.wholes != wholes) {
        journal_.fail("collective %llu is of whole %u and others on one rank, of %u on another",
                      (unsigned long long)gather, collective.wholes[0], wholes[0]);
    }
    collective.wholes = wholes;
    collective.shards.resize(started_.size());
    collective.shards[rank] = shards;
    collective.failed |= shards.size() < wholes.size();
    collective.partial |= start.absent;
    collective.arrived++;
}

bool Fabric::ready(GatherId gather) const
{
    return broken_ || gathers_.at(gather).arrived == started_.size();
}

namespace {

Outcome run(const Options &options, bool many)
{
    Random random(options.seed);
    Journal journal(options.keep_journal);
    const RankPlan plan = choose_plan(random, many);
    Fabric fabric(plan.ranks, journal);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (uint32_t rank = 0; rank < plan.ranks; rank++) {
        ranks.push_back(std::make_unique<Rank>(rank, plan, random.next(), fabric, journal));
    }
    Outcome outcome;
    uint32_t idle = 0;
    uint32_t moved_at = 0;  // the last round in which a rank came a call or a collective further
    const uint32_t rounds = many ? kManyRoundsMax : kRoundsMax;
    for (uint32_t round = 0; round < rounds && !journal.failed(); round++) {
        // A rank may run far ahead of the others, or be held up.
        const auto turn = static_cast<uint32_t>(random.below(plan.ranks));
        const bool slow = std::find(plan.slow.begin(), plan.slow.end(), turn) != plan.slow.end();
        if (slow && !random.chance(5)) continue;
        Rank &rank = *ranks[turn];
        const size_t before = rank.progress();
        idle = rank.step() ? 0 : idle + 1;
        if (rank.progress() != before) moved_at = round;
        const uint32_t patience = (plan.slow.empty() ? 64 : 2048) * plan.ranks;
        // Survivors wait for one that is gone until their timeout; their own work goes on, or there
        // is none left.
        const bool waits = plan.dies != UINT32_MAX && !fabric.broken();
        if (waits && (round - moved_at > 4 * patience || idle > patience)) {
            fabric.break_down();
            idle = 0;
        }
        if (idle > patience) break;
    }
    const Rank &survivor = *ranks[ranks[0]->dead() ? 1 : 0];
    for (const auto &rank : ranks) {
        outcome.events += rank->events();
        outcome.transfers += rank->transfers();
        if (rank->dead()) continue;
        if (!rank->done()) journal.fail("%s: hangs", rank->state().c_str());
        // A collective may have ended on some and not on others when a rank went.
        if (!fabric.broken() && rank->decisions() != survivor.decisions()) {
            journal.fail("ranks decide differently:\n%s---- and\n%s", survivor.decisions().c_str(),
                         rank->decisions().c_str());
        }
    }
    outcome.failure = journal.failure();
    if (options.keep_journal) outcome.journal = journal.text();
    return outcome;
}

}  // namespace

Outcome run_ranks(const Options &options)
{
    return run(options, false);
}

Outcome run_many_ranks(const Options &options)
{
    return run(options, true);
}

}  // namespace stepwell::simulation
