// SPDX-License-Identifier: Apache-2.0
// What a rank may have of the processors of its host, which it shares with the ranks beside it.
#pragma once

#include <cstdint>
#include <vector>

namespace stepwell::collective {

struct Processors {
    static constexpr uint32_t kMax = 1024;
    uint64_t allowed[kMax / 64] = {};  // a bit each: the scheduler may run it there
    double quota = 0;                  // of a cgroup, in processors; 0: none
    uint64_t quota_of = 0;             // the same number for ranks in the same cgroup
};

// Of those that `own` may run on: each is split among the ranks that may run there, and a quota
// among those that it is for. At most its own part of the quota.
double processor_share(const std::vector<Processors> &ranks, uint32_t own);

}  // namespace stepwell::collective
