// SPDX-License-Identifier: Apache-2.0
// Which policy for which step: every candidate is replayed, and the one whose bytes need the least
// link time is chosen. Pure.
#pragma once

#include "lib/schedule/replay/replay.h"
#include "lib/schedule/trace/uses.h"

namespace stepwell::schedule {

enum class Rule : uint8_t { kLastUse, kNextUse, kPinRole, kZigZag, kOftenUsed, kKept };

// A rule with its parameter: the role to pin, the part of a step that a write-back counts for, the
// fading of uses, or the way of keeping.
struct Candidate {
    Rule rule = Rule::kLastUse;
    double number = 0;
    [[nodiscard]] std::string name() const;
};

// For steps that repeat: single policies and planned ones.
std::vector<Candidate> known_candidates(const std::vector<residency::TensorSpec> &specs);
// For steps that differ: policies that use only the past.
std::vector<Candidate> online_candidates();

struct Verdict {
    Candidate candidate;
    bool earlier = false;  // from an earlier plan, with other speeds of links and computing
    uint32_t steps = 0;    // the figures below are totals of these
    double link_ns = 0;    // sum over all links
    uint64_t step_ns = 0;
    uint64_t stall_ns = 0;  // of the program's lane
    std::vector<LinkUse> links;
    uint64_t read_bytes = 0;
    uint64_t hit_bytes = 0;
};

std::unique_ptr<Policy> make_policy(const Candidate &candidate, const Machine &machine,
                                    const std::vector<residency::TensorSpec> &specs,
                                    const Uses &uses);

// kAhead: with the runtime's prefetches (ahead.h). Their own cost counts: bytes that are
// prefetched too early, or written back for nothing.
enum class Asking : uint8_t { kOnDemand, kAhead };

// Set by another thread to cancel the work: CANCELLED. Null: never.
using Stop = const std::atomic<bool> *;

// Repeats the step: first by recency, as when it was recorded, then by the candidate, until the
// costs are those of a step in the middle of a run; then `steps` are measured.
constexpr uint32_t kMeasuredSteps = 2;  // some policies alternate
Result<Verdict> judge(const Candidate &candidate, const Machine &machine,
                      const std::vector<residency::TensorSpec> &specs, const Step &step,
                      Asking asking = Asking::kOnDemand, Stop stop = nullptr,
                      uint32_t steps = kMeasuredSteps);

// Best first. A planned policy that moves fewer bytes in all than the best single one, but more
// over some link, is ranked after it.
Result<std::vector<Verdict>> choose(const Machine &machine,
                                    const std::vector<residency::TensorSpec> &specs,
                                    const Step &step, Asking asking = Asking::kOnDemand,
                                    Stop stop = nullptr);

// At least one candidate.
Result<std::vector<Verdict>> choose_among(const std::vector<Candidate> &candidates,
                                          const Machine &machine,
                                          const std::vector<residency::TensorSpec> &specs,
                                          const Step &step, Asking asking, Stop stop);

// The one with the shortest step, whatever it moves; of those within half a percent the first.
// `verdicts` must not be empty.
const Verdict &fastest(const std::vector<Verdict> &verdicts);

// An online candidate, by a replay of the steps so far; costs are those of the second half, after
// a warm-up with the first. The first verdict is the one to use: of those whose difference may be
// chance, the one with the longest memory.
Result<std::vector<Verdict>> choose_online(const Machine &machine,
                                           const std::vector<residency::TensorSpec> &specs,
                                           const std::vector<const Step *> &steps,
                                           Stop stop = nullptr);
// So many more steps that a choice made of `judged` steps should be made again.
bool is_much_more(uint64_t steps, uint64_t judged);
// Shows past steps to the policy.
void teach(Policy &policy, const std::vector<const Step *> &steps);

}  // namespace stepwell::schedule
