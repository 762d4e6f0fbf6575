// SPDX-License-Identifier: Apache-2.0
// Fabric: who has come to which collective.
#include "tests/ranks/fabric.h"

namespace stepwell::ranks {

Fabric::Fabric(uint32_t ranks, uint32_t group_ranks, Journal &journal, Planted &planted)
    : group_ranks_(group_ranks), groups_(ranks / group_ranks), journal_(journal), planted_(planted)
{
    for (uint32_t lane = 0; lane < 2; ++lane) {
        for (uint32_t group = 0; group <= groups_; ++group) {
            Communicator made;
            made.came.resize(ranks);
            for (uint32_t rank = 0; rank < ranks; ++rank) {
                if (group == 0 || rank / group_ranks == group - 1) made.members.push_back(rank);
            }
            communicators_.push_back(std::move(made));
        }
    }
}

uint32_t Fabric::find(uint32_t rank, Collective::Lane lane, bool in_group) const
{
    const uint32_t of_lane = static_cast<uint32_t>(lane) * (groups_ + 1);
    return of_lane + (in_group ? 1 + rank / group_ranks_ : 0);
}

uint64_t Fabric::gift(uint32_t communicator, uint64_t number, uint32_t rank)
{
    return Random((uint64_t{communicator} << 48) ^ (number << 8) ^ rank).next();
}

uint64_t Fabric::expected(uint32_t communicator, uint64_t number) const
{
    uint64_t sum = 0;
    for (const uint32_t rank : communicators_[communicator].members) {
        sum += gift(communicator, number, rank);
    }
    return sum;
}

Fabric::Ran Fabric::arrive(uint32_t rank, Collective::Lane lane, bool in_group, Instant takes)
{
    const uint32_t index = find(rank, lane, in_group);
    Communicator &at = communicators_[index];
    const uint64_t number = at.came[rank]++;
    Ran ran{index, number, 0, false};
    if (number < at.begun) {  // it ran without this rank
        journal_.fail("rank %u comes to collective %llu of communicator %u, which is over", rank,
                      static_cast<unsigned long long>(number), index);
        return ran;
    }
    while (at.begun + at.open.size() <= number) {
        Collective collective;
        collective.number = at.begun + at.open.size();
        collective.takes = takes;
        at.open.push_back(collective);
    }
    Collective &collective = at.open[number - at.begun];
    if (collective.takes != takes) {
        journal_.fail("rank %u makes another collective than the others as number %llu", rank,
                      static_cast<unsigned long long>(number));
    }
    ++collective.arrived;
    collective.sum += gift(index, number, rank);
    const bool one_short = collective.arrived + 1 == at.members.size();
    const bool all = collective.arrived == at.members.size();
    if (!all && !(one_short && planted_.now(Plant::kCollectiveWithoutOne))) return ran;
    ran.sum = collective.sum;
    ran.runs = true;
    at.open.pop_front();
    ++at.begun;
    return ran;
}

}  // namespace stepwell::ranks
