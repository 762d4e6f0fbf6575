// SPDX-License-Identifier: Apache-2.0
// Which policy for which step: every candidate is replayed, and the one whose bytes take the links
// the least time is taken. Pure.
#pragma once

#include "lib/schedule/plan/policies.h"

namespace stepwell::schedule {

enum class Rule : uint8_t { kLastUse, kNextUse, kPinRole, kZigZag, kOftenUsed, kKept };

// A rule with its number: the role to pin, the part of a step that a write-back counts for, how
// uses fade, the way of keeping.
struct Candidate {
    Rule rule = Rule::kLastUse;
    double number = 0;
    [[nodiscard]] std::string name() const;
};

// For steps that repeat: each policy by itself, and the planned ones.
std::vector<Candidate> known_candidates(const std::vector<residency::TensorSpec> &specs);
// For steps that differ: what goes by the past alone.
std::vector<Candidate> online_candidates();

struct Verdict {
    Candidate candidate;
    bool earlier = false;  // by an earlier plan, when links and computing took other times
    uint32_t steps = 0;    // all that follows is of so many
    double link_ns = 0;    // that the bytes take, over all links
    uint64_t step_ns = 0;
    uint64_t stall_ns = 0;  // of the program's lane
    std::vector<LinkUse> links;
    uint64_t read_bytes = 0;
    uint64_t hit_bytes = 0;
};

std::unique_ptr<Policy> make_policy(const Candidate &candidate, const Machine &machine,
                                    const std::vector<residency::TensorSpec> &specs,
                                    const Uses &uses);

// Whether what comes next is brought ahead meanwhile, as by the runtime (ahead.h). That moves bytes
// of its own: what is brought too early, or written back for nothing, counts.
enum class Asking : uint8_t { kOnDemand, kAhead };

// Said from elsewhere: the answer is not wanted any more, and is CANCELLED. Null: it always is.
using Stop = const std::atomic<bool> *;

// The step again and again: first by recency, as when it is recorded, then by the candidate until
// what it costs is that of a step in the middle of many; so many are measured.
constexpr uint32_t kMeasuredSteps = 2;  // some policies alternate
Result<Verdict> judge(const Candidate &candidate, const Machine &machine,
                      const std::vector<residency::TensorSpec> &specs, const Step &step,
                      Asking asking = Asking::kOnDemand, Stop stop = nullptr,
                      uint32_t steps = kMeasuredSteps);

// Best first. One that moves fewer bytes in all than the best of the single policies, but more over
// some link, stands behind it.
Result<std::vector<Verdict>> choose(const Machine &machine,
                                    const std::vector<residency::TensorSpec> &specs,
                                    const Step &step, Asking asking = Asking::kOnDemand,
                                    Stop stop = nullptr);

// Of these candidates alone, at least one.
Result<std::vector<Verdict>> choose_among(const std::vector<Candidate> &candidates,
                                          const Machine &machine,
                                          const std::vector<residency::TensorSpec> &specs,
                                          const Step &step, Asking asking, Stop stop);

// Of these the one with the shortest step, whatever it moves; of those within half a percent of it
// the one that stands first. None is no choice: not empty.
const Verdict &fastest(const std::vector<Verdict> &verdicts);

// Of the online candidates, by a replay of the steps so far; what it costs is that of their second
// half, when each has seen the first. The first is used: of those that may be best by chance the
// one that remembers longest.
Result<std::vector<Verdict>> choose_online(const Machine &machine,
                                           const std::vector<residency::TensorSpec> &specs,
                                           const std::vector<const Step *> &steps,
                                           Stop stop = nullptr);
// So many steps tell more than those that the choice was made of.
bool is_much_more(uint64_t steps, uint64_t judged);
// The policy learns from steps that are over, as if it had been there.
void teach(Policy &policy, const std::vector<const Step *> &steps);

}  // namespace stepwell::schedule
