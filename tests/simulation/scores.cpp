// SPDX-License-Identifier: Apache-2.0
// The random program as a policy: it scores what the core says may leave, as wildly as it can.
#include "tests/simulation/program.h"

#include <limits>

namespace stepwell::simulation {

void Program::score()
{
    if (random_.chance(15)) {
        journal_.line("forget scores");
        machine_.core.forget_scores();
        return;
    }
    const PlaceId place = static_cast<PlaceId>(random_.below(setup_.config.places.size()));
    if ((setup_.viewable & (1u << place)) == 0) return;
    std::vector<Candidate> found;
    PackId next = 0;
    while (next != kNone) {
        next = machine_.core.candidates(place, next, random_.between(1, 30), &found);
    }
    check_candidates(place, found);
    std::vector<Score> scores;
    for (const Candidate &candidate : found) {
        if (random_.chance(10)) continue;  // made since the policy was asked
        double score = static_cast<double>(random_.below(7)) - 3.0;
        if (random_.chance(10)) score = std::numeric_limits<double>::infinity() * (score - 0.5);
        scores.push_back({candidate.tensor, score});
    }
    journal_.line("score %zu tensors at place %u", scores.size(), place);
    machine_.core.score(place, scores.data(), scores.size());
}

// A plan comes, changes or goes.
void Program::plan()
{
    const uint64_t kind = random_.below(4);
    journal_.line("plan %llu", (unsigned long long)kind);
    plan_.write_back = static_cast<double>(random_.below(3));
    if (kind == 0) machine_.core.set_victim_policy(plans_ ? &trace_ : nullptr);
    if (kind == 1) machine_.core.set_victim_policy(&plan_);
    if (kind > 1) machine_.core.replan();
}

// Everything that may be there is told of once, with the bytes that the memories have.
void Program::check_candidates(PlaceId place, const std::vector<Candidate> &found)
{
    std::map<TensorId, Candidate> told;
    for (const Candidate &candidate : found) {
        if (!told.emplace(candidate.tensor, candidate).second) {
            journal_.fail("tensor %u is a candidate twice", candidate.tensor);
        }
    }
    for (const auto &[id, tensor] : model_.tensors) {
        const bool may = tensor.alive && !tensor.spec.agreed &&
                         (tensor.spec.policy.allowed & (1u << place)) != 0;
        const auto at = told.find(id);
        if (at == told.end()) {
            if (may) journal_.fail("tensor %u is no candidate", id);
            continue;
        }
        const Candidate &candidate = at->second;
        const bool all = (machine_.core.residence(id) & (1u << place)) != 0 &&
                         machine_.core.contents(id) != Contents::kEmpty;
        if (!tensor.alive || candidate.bytes > tensor.spec.bytes ||
            candidate.dirty_bytes > candidate.bytes ||
            (all && candidate.bytes != tensor.spec.bytes)) {
            journal_.fail("candidate tensor %u: %llu bytes, %llu dirty of %llu", id,
                          (unsigned long long)candidate.bytes,
                          (unsigned long long)candidate.dirty_bytes,
                          (unsigned long long)tensor.spec.bytes);
        }
    }
}

}  // namespace stepwell::simulation
