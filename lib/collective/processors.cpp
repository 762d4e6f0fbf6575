// SPDX-License-Identifier: Apache-2.0
#include "lib/collective/processors.h"

#include <algorithm>

namespace stepwell::collective {

double processor_share(const std::vector<Processors> &ranks, uint32_t own)
{
    const Processors &mine = ranks[own];
    double share = 0;
    for (uint32_t cpu = 0; cpu < Processors::kMax; ++cpu) {
        const uint32_t word = cpu / 64;
        const uint64_t bit = uint64_t{1} << cpu % 64;
        if ((mine.allowed[word] & bit) == 0) continue;
        const auto sharing = std::count_if(ranks.begin(), ranks.end(), [&](const Processors &rank) {
            return (rank.allowed[word] & bit) != 0;
        });
        share += 1.0 / static_cast<double>(sharing);
    }
    if (mine.quota <= 0) return share;
    const auto same = std::count_if(ranks.begin(), ranks.end(), [&](const Processors &rank) {
        return rank.quota > 0 && rank.quota_of == mine.quota_of;
    });
    return std::min(share, mine.quota / static_cast<double>(same));
}

}  // namespace stepwell::collective
