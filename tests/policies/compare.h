// SPDX-License-Identifier: Apache-2.0
// What the choice of a policy comes to, beside each policy by itself: bytes over each link of steps
// that repeat, and hits of steps that differ. In virtual time, so the same everywhere.
#pragma once

#include "lib/schedule/plan/bound.h"
#include "lib/schedule/plan/choose.h"
#include "lib/schedule/plan/policies.h"
#include "tests/policies/traces.h"

namespace stepwell::schedule {

// The first step runs by recency and is recorded; then the choice is made, as a runtime would.
struct Repeated {
    std::string ours;
    std::string single;               // the best one, by the time that its bytes take the links
    std::vector<uint64_t> our_bytes;  // by link, of the measured steps
    std::vector<uint64_t> single_bytes;
    std::vector<uint64_t> bound_bytes;  // that no policy can go below
    uint64_t recency_bytes = 0;         // over all links
    // What a runtime follows instead: the fastest with what comes next brought ahead, which counts.
    std::string followed;
    std::vector<uint64_t> followed_bytes;
    // The smallest of the single one's bytes over ours; of links that either uses.
    [[nodiscard]] double ratio() const;
};
Result<Repeated> compare_repeated(const Workload &trace, uint32_t percent);

// Chosen as a runtime chooses, from the steps that were; measured once thirty are over.
struct Online {
    std::string ours;  // the last choice
    std::string single;
    uint64_t our_bytes = 0;
    uint64_t single_bytes = 0;  // of the best policy by itself, from the beginning
    double hit = 0;             // of the bytes that are read
    double clairvoyant_hit = 0;
    double recency_hit = 0;
    [[nodiscard]] double ratio() const;
};
constexpr size_t kLearnedSteps = 30;
Result<Online> compare_online(const Workload &trace, uint32_t percent);

}  // namespace stepwell::schedule
