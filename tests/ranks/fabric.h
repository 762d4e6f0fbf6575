// SPDX-License-Identifier: Apache-2.0
// Fabric: collectives. One runs when all ranks of its group have come to it, in the order of the
// calls of each lane. What it brings is told from who had come, so that one which ran too soon is
// seen by those it served.
#pragma once

#include "tests/ranks/support.h"

#include <deque>
#include <vector>

namespace stepwell::ranks {

struct Collective {
    enum class Lane : uint8_t { kProgram, kUpdate };
    uint64_t number = 0;  // among those of its communicator
    uint32_t arrived = 0;
    uint64_t sum = 0;  // of what those who came have given
    Instant takes = 0;
};

class Fabric {
public:
    Fabric(uint32_t ranks, uint32_t group_ranks, Journal &journal, Planted &planted);

    struct Ran {
        uint32_t communicator = 0;
        uint64_t number = 0;
        uint64_t sum = 0;
        bool runs = false;
    };
    Ran arrive(uint32_t rank, Collective::Lane lane, bool in_group, Instant takes);
    // What all of its ranks together have to give.
    [[nodiscard]] uint64_t expected(uint32_t communicator, uint64_t number) const;
    [[nodiscard]] const std::vector<uint32_t> &members(uint32_t communicator) const
    {
        return communicators_[communicator].members;
    }
    [[nodiscard]] uint64_t came(uint32_t communicator, uint32_t rank) const
    {
        return communicators_[communicator].came[rank];
    }

private:
    struct Communicator {
        std::vector<uint32_t> members;
        std::vector<uint64_t> came;  // by rank: to so many
        std::deque<Collective> open;
        uint64_t begun = 0;  // number of the first in `open`
    };
    [[nodiscard]] uint32_t find(uint32_t rank, Collective::Lane lane, bool in_group) const;
    [[nodiscard]] static uint64_t gift(uint32_t communicator, uint64_t number, uint32_t rank);

    const uint32_t group_ranks_;
    const uint32_t groups_;
    Journal &journal_;
    Planted &planted_;
    std::vector<Communicator> communicators_;  // by lane: of all, then of each group
};

}  // namespace stepwell::ranks
