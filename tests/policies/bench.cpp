// SPDX-License-Identifier: Apache-2.0
// bench-policy FIRST LAST: compares policies on the traces of these seeds; a JSON object a line.
// bench-policy stall FIRST LAST: what their steps wait with what comes next brought ahead.
#include "tests/policies/compare.h"
#include "tests/policies/stall.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace stepwell::schedule {
namespace {

constexpr uint32_t kPercents[] = {10, 15, 25, 50, 75};
constexpr double kRatios[] = {1.25, 2};  // of computing, to what the bytes take at least
constexpr uint32_t kExpertsPercent = 25;
constexpr size_t kExpertsSteps = 60;
constexpr uint32_t kReplayPercent = 15;
constexpr size_t kReplaySteps = 50;

std::string list(const std::vector<uint64_t> &bytes)
{
    std::string text;
    for (const uint64_t at : bytes) {
        text +=
            format_text("%s%llu", text.empty() ? "" : ", ", static_cast<unsigned long long>(at));
    }
    return text;
}

bool compare(const Workload &trace, uint64_t seed, uint32_t percent)
{
    Result<Repeated> result = compare_repeated(trace, percent);
    if (!result.ok()) {
        std::fprintf(stderr, "bench-policy: %s: %s\n", trace.name.c_str(),
                     result.status().sentence());
        return false;
    }
    const Repeated &at = result.value();
    std::printf("{\"trace\": \"%s\", \"seed\": %llu, \"percent\": %u, \"ratio\": %.6f, "
                "\"ours\": \"%s\", \"best\": \"%s\", \"our_bytes\": [%s], \"best_bytes\": [%s], "
                "\"bound_bytes\": [%s], \"last_use_bytes\": %llu, \"followed\": \"%s\", "
                "\"followed_bytes\": [%s]}\n",
                trace.name.c_str(), static_cast<unsigned long long>(seed), percent, at.ratio(),
                at.ours.c_str(), at.single.c_str(), list(at.our_bytes).c_str(),
                list(at.single_bytes).c_str(), list(at.bound_bytes).c_str(),
                static_cast<unsigned long long>(at.recency_bytes), at.followed.c_str(),
                list(at.followed_bytes).c_str());
    std::fflush(stdout);
    return true;
}

bool compare_stalls(const Workload &trace, uint64_t seed, uint32_t percent)
{
    for (const double ratio : kRatios) {
        Result<Stall> result = compare_stall(trace, percent, ratio);
        if (!result.ok()) {
            std::fprintf(stderr, "bench-policy: %s: %s\n", trace.name.c_str(),
                         result.status().sentence());
            return false;
        }
        const Stall &at = result.value();
        std::printf("{\"trace\": \"%s\", \"seed\": %llu, \"percent\": %u, \"computing\": %g, "
                    "\"overlaps\": %s, \"over\": %.6f, \"ours\": \"%s\", "
                    "\"frugal_over\": %.6f, \"frugal\": \"%s\", \"step_ns\": %llu, "
                    "\"bound_ns\": %llu, \"compute_ns\": %llu, \"busy_ns\": %.0f}\n",
                    trace.name.c_str(), static_cast<unsigned long long>(seed), percent, ratio,
                    at.overlaps ? "true" : "false", at.over(), at.ours.c_str(), at.frugal_over(),
                    at.frugal.c_str(), static_cast<unsigned long long>(at.step_ns),
                    static_cast<unsigned long long>(at.bound_ns),
                    static_cast<unsigned long long>(at.compute_ns), at.busy_ns);
        std::fflush(stdout);
    }
    return true;
}

bool compare_experts(uint64_t seed)
{
    Result<Online> result = compare_online(experts_trace(seed, kExpertsSteps), kExpertsPercent);
    if (!result.ok()) {
        std::fprintf(stderr, "bench-policy: experts: %s\n", result.status().sentence());
        return false;
    }
    const Online &at = result.value();
    std::printf("{\"trace\": \"experts\", \"seed\": %llu, \"percent\": %u, \"ratio\": %.6f, "
                "\"ours\": \"%s\", \"best\": \"%s\", \"hit\": %.6f, \"clairvoyant\": %.6f, "
                "\"last_use\": %.6f}\n",
                static_cast<unsigned long long>(seed), kExpertsPercent, at.ratio(), at.ours.c_str(),
                at.single.c_str(), at.hit, at.clairvoyant_hit, at.recency_hit);
    std::fflush(stdout);
    return true;
}

// How fast a replay goes: events that the core was told, by processor time.
bool measure_replay(uint64_t seed)
{
    const Workload trace = accumulation_trace(seed);
    const Machine machine = trace_machine(trace, kReplayPercent);
    const Step &step = trace.steps.front();
    Result<std::unique_ptr<Replay>> opened = Replay::open(machine, trace.tensors);
    if (!opened.ok() || !opened.value()->fill_what_is_read(step).ok()) return false;
    const Uses uses(step, trace.tensors.size());
    NextUse policy(uses);
    opened.value()->set_policy(&policy);
    uint64_t events = 0;
    const std::clock_t begin = std::clock();
    for (size_t i = 0; i < kReplaySteps; ++i) {
        Result<StepResult> result = opened.value()->step(step);
        if (!result.ok()) return false;
        events += result.value().events;
    }
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    opened.value()->set_policy(nullptr);
    std::printf("{\"events\": %llu, \"seconds\": %.6f}\n", static_cast<unsigned long long>(events),
                seconds);
    return true;
}

int main(int count, char **words)
{
    const bool stall = count == 4 && std::strcmp(words[1], "stall") == 0;
    if (count != 3 && !stall) {
        std::fprintf(stderr, "usage: bench-policy [stall] FIRST_SEED LAST_SEED\n");
        return 2;
    }
    const uint64_t first = std::strtoull(words[count - 2], nullptr, 10);
    const uint64_t last = std::strtoull(words[count - 1], nullptr, 10);
    for (uint64_t seed = first; seed <= last; ++seed) {
        for (const auto make :
             {zigzag_trace, cyclic_trace, accumulation_trace, alternation_trace, mixed_trace}) {
            const Workload trace = make(seed);
            for (const uint32_t percent : kPercents) {
                const bool done =
                    stall ? compare_stalls(trace, seed, percent) : compare(trace, seed, percent);
                if (!done) return 1;
            }
        }
        if (!stall && !compare_experts(seed)) return 1;
    }
    return stall || measure_replay(first) ? 0 : 1;
}

}  // namespace
}  // namespace stepwell::schedule

int main(int count, char **words)
{
    return stepwell::schedule::main(count, words);
}
