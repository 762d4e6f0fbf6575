// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/group/processors.h"

#include "drivers/common/system.h"
#include "lib/support/status.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <thread>

namespace stepwell {

collective::Processors own_processors(const std::string &root)
{
    collective::Processors mine;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (uint32_t cpu = 0; cpu < collective::Processors::kMax; ++cpu) {
            if (CPU_ISSET(cpu, &set)) mine.allowed[cpu / 64] |= uint64_t{1} << cpu % 64;
        }
    } else {  // more processors than a cpu_set_t has
        const uint32_t all = std::min(std::max(1u, std::thread::hardware_concurrency()),
                                      collective::Processors::kMax);
        for (uint32_t cpu = 0; cpu < all; ++cpu) mine.allowed[cpu / 64] |= uint64_t{1} << cpu % 64;
    }
    const drivers::ProcessorRoom room = drivers::processor_room(root);
    mine.quota = room.cores;
    if (room.cores > 0) mine.quota_of = std::hash<std::string>()(room.cgroup);
    return mine;
}

UpdateThreads update_threads(const std::vector<collective::Processors> &ranks, uint32_t own)
{
    const collective::Processors &mine = ranks[own];
    uint32_t allowed = 0;
    for (const uint64_t word : mine.allowed) allowed += static_cast<uint32_t>(std::popcount(word));
    const double share = collective::processor_share(ranks, own);
    UpdateThreads threads;
    // A fraction of a processor is rounded up for a single rank, down beside others.
    const double whole = ranks.size() == 1 ? std::ceil(share - 1e-9) : std::floor(share + 1e-9);
    threads.count = static_cast<uint32_t>(std::max(1.0, whole));
    threads.why = format_text("%u processors that it may run on", allowed);
    if (mine.quota > 0) threads.why += format_text(", a quota of %.2f by its cgroup", mine.quota);
    if (ranks.size() > 1) {
        threads.why +=
            format_text(", %zu ranks on the host: %.2f for this one", ranks.size(), share);
    }
    return threads;
}

}  // namespace stepwell
