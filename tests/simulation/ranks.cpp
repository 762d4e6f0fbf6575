// SPDX-License-Identifier: Apache-2.0
// Ranks that make the same calls, each in its own time: the plan, what they exchange, the run.
#include "tests/simulation/ranks.h"

namespace stepwell::simulation {
namespace {

constexpr uint32_t kRoundsMax = 200000;

RankPlan choose_plan(Random &random)
{
    RankPlan plan;
    plan.ranks = static_cast<uint32_t>(random.chance(70) ? 2 : random.between(3, 4));
    const size_t tensors = random.between(3, 8);
    uint32_t largest = 0;
    for (size_t i = 0; i < tensors; i++) {
        plan.shard_blocks.push_back(static_cast<uint32_t>(random.between(1, 3)));
        largest = std::max(largest, plan.shard_blocks.back() * plan.ranks);
    }
    plan.whole_blocks = largest + static_cast<uint32_t>(random.below(2 * largest));
    if (random.chance(50)) plan.bucket_bytes = random.between(32, 32ull * plan.whole_blocks) * kBlockBytes;
    // Every tensor is written once, so that there is something to gather.
    for (WholeId whole = 0; whole < tensors; whole++) {
        plan.calls.push_back({RankCall::Kind::kWrite, {whole}, 0});
    }
    std::vector<size_t> open;
    size_t fetches = 0;
    for (int i = 0; i < 60; i++) {
        const uint64_t kind = random.below(10);
        RankCall call;
        if (kind < 5) {
            call.kind = RankCall::Kind::kFetch;
            for (uint64_t n = random.between(1, 2); n > 0; n--) {
                call.wholes.push_back(static_cast<WholeId>(random.below(tensors)));
            }
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
        plan.calls.push_back(call);
    }
    for (const size_t fetch : open) {
        plan.calls.push_back({RankCall::Kind::kRelease, {}, fetch});
    }
    return plan;
}

}  // namespace

void Fabric::start(uint32_t rank, GatherId gather, const std::vector<WholeId> &wholes,
                   const std::vector<Stamp> &shards)
{
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
    collective.arrived++;
}

bool Fabric::ready(GatherId gather) const
{
    return gathers_.at(gather).arrived == started_.size();
}

Outcome run_ranks(const Options &options)
{
    Random random(options.seed);
    Journal journal(options.keep_journal);
    const RankPlan plan = choose_plan(random);
    Fabric fabric(plan.ranks, journal);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (uint32_t rank = 0; rank < plan.ranks; rank++) {
        ranks.push_back(std::make_unique<Rank>(rank, plan, random.next(), fabric, journal));
    }
    Outcome outcome;
    uint32_t idle = 0;
    for (uint32_t round = 0; round < kRoundsMax && !journal.failed(); round++) {
        // A rank may run far ahead of the others, or be held up.
        Rank &rank = *ranks[random.below(plan.ranks)];
        idle = rank.step() ? 0 : idle + 1;
        if (idle > 64 * plan.ranks) break;
    }
    for (const auto &rank : ranks) {
        outcome.events += rank->events();
        outcome.transfers += rank->transfers();
        if (!rank->done()) journal.fail("%s: hangs", rank->state().c_str());
        if (rank->decisions() != ranks[0]->decisions()) {
            journal.fail("ranks decide differently:\n%s---- and\n%s", ranks[0]->decisions().c_str(),
                         rank->decisions().c_str());
        }
    }
    outcome.failure = journal.failure();
    if (options.keep_journal) outcome.journal = journal.text();
    return outcome;
}

}  // namespace stepwell::simulation
