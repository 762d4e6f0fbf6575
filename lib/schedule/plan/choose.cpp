// SPDX-License-Identifier: Apache-2.0
// The candidates, and how replays judge them.
#include "lib/schedule/plan/choose.h"

#include "lib/schedule/plan/policies.h"
#include "lib/schedule/replay/ahead.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <set>

namespace stepwell::schedule {
namespace {

constexpr uint32_t kWarmSteps = 2;     // until residency does not depend on the start
constexpr uint64_t kFewSteps = 64;     // after which differing steps are judged again
constexpr double kChance = 1.02;       // differences below this factor may be chance
constexpr uint64_t kAlikeShare = 200;  // step times within 1/200 count as equal

double link_ns(const Machine &machine, const std::vector<LinkUse> &links)
{
    double sum = 0;
    for (size_t i = 0; i < links.size(); ++i) {
        sum += static_cast<double>(links[i].bytes) * 1e9 / machine.links[i].bytes_per_s;
    }
    return sum;
}

void add(Verdict &verdict, const StepResult &result)
{
    ++verdict.steps;
    verdict.step_ns += result.step_ns;
    verdict.stall_ns += result.stall_ns;
    verdict.read_bytes += result.read_bytes;
    verdict.hit_bytes += result.hit_bytes;
    verdict.links.resize(result.links.size());
    for (size_t i = 0; i < result.links.size(); ++i) {
        verdict.links[i].bytes += result.links[i].bytes;
        verdict.links[i].transfers += result.links[i].transfers;
        verdict.links[i].busy_ns += result.links[i].busy_ns;
    }
}

bool more_somewhere(const Verdict &one, const Verdict &other)
{
    for (size_t i = 0; i < one.links.size(); ++i) {
        if (one.links[i].bytes > other.links[i].bytes) return true;
    }
    return false;
}

bool better(const Verdict &one, const Verdict &other)
{
    return one.link_ns != other.link_ns ? one.link_ns < other.link_ns : one.step_ns < other.step_ns;
}

}  // namespace

std::string Candidate::name() const
{
    switch (rule) {
    case Rule::kLastUse: return "last use";
    case Rule::kNextUse:
        return number > 0 ? format_text("next use, write-back %g", number) : "next use";
    case Rule::kPinRole: return format_text("pin role %g", number);
    case Rule::kZigZag: return "zig-zag";
    case Rule::kOftenUsed: return format_text("often used, fading %g", number);
    case Rule::kKept: return format_text("kept, way %g", number);
    }
    return "";
}

std::vector<Candidate> known_candidates(const std::vector<residency::TensorSpec> &specs)
{
    std::vector<Candidate> candidates = {
        {Rule::kLastUse, 0},   {Rule::kNextUse, 0}, {Rule::kNextUse, 0.125}, {Rule::kNextUse, 0.25},
        {Rule::kNextUse, 0.5}, {Rule::kNextUse, 1}, {Rule::kZigZag, 0}};
    std::set<uint32_t> roles;
    for (const residency::TensorSpec &spec : specs) roles.insert(spec.role);
    for (const uint32_t role : roles) {
        candidates.push_back({Rule::kPinRole, static_cast<double>(role)});
    }
    for (uint32_t way = 0; way < kKeepingWays; ++way) {
        candidates.push_back({Rule::kKept, static_cast<double>(way)});
    }
    return candidates;
}

// The longest memory first: with few steps it is the better estimate.
std::vector<Candidate> online_candidates()
{
    std::vector<Candidate> candidates = {{Rule::kLastUse, 0}};
    for (const double fading : {0.999, 0.98, 0.95, 0.9, 0.8, 0.6, 0.3}) {
        candidates.push_back({Rule::kOftenUsed, fading});
    }
    return candidates;
}

std::unique_ptr<Policy> make_policy(const Candidate &candidate, const Machine &machine,
                                    const std::vector<residency::TensorSpec> &specs,
                                    const Uses &uses)
{
    switch (candidate.rule) {
    case Rule::kLastUse: return std::make_unique<LastUse>();
    case Rule::kNextUse: return std::make_unique<NextUse>(uses, candidate.number);
    case Rule::kPinRole:
        return std::make_unique<PinRole>(uses, specs, static_cast<uint32_t>(candidate.number));
    case Rule::kZigZag: return std::make_unique<ZigZag>(uses);
    case Rule::kOftenUsed: return std::make_unique<OftenUsed>(candidate.number);
    case Rule::kKept: {
        const auto way = static_cast<uint32_t>(candidate.number);
        return std::make_unique<Kept>(uses, plan_keeping(uses, specs, machine, 0, way), 0);
    }
    }
    return nullptr;
}

Result<Verdict> judge(const Candidate &candidate, const Machine &machine,
                      const std::vector<residency::TensorSpec> &specs, const Step &step,
                      Asking asking, Stop stop, uint32_t steps)
{
    Result<std::unique_ptr<Replay>> opened = Replay::open(machine, specs);
    if (!opened.ok()) return std::move(opened.status());
    Replay &replay = *opened.value();
    replay.set_stop(stop);
    const Uses uses(step, specs.size());
    const std::unique_ptr<Policy> policy = make_policy(candidate, machine, specs, uses);
    STW_TRY(replay.fill_what_is_read(step));
    Result<StepResult> recorded = replay.step(step);
    if (!recorded.ok()) return std::move(recorded.status());
    replay.set_policy(policy.get());
    AheadPrefetcher ahead(machine, specs, step);
    if (asking == Asking::kAhead) replay.set_prefetcher(&ahead);
    Verdict verdict;
    verdict.candidate = candidate;
    for (uint32_t i = 0; i < kWarmSteps + steps; ++i) {
        Result<StepResult> result = replay.step(step);
        if (!result.ok()) return std::move(result.status());
        if (i >= kWarmSteps) add(verdict, result.value());
    }
    replay.set_prefetcher(nullptr);
    replay.set_policy(nullptr);
    verdict.link_ns = link_ns(machine, verdict.links);
    return verdict;
}

Result<std::vector<Verdict>> choose(const Machine &machine,
                                    const std::vector<residency::TensorSpec> &specs,
                                    const Step &step, Asking asking, Stop stop)
{
    return choose_among(known_candidates(specs), machine, specs, step, asking, stop);
}

Result<std::vector<Verdict>> choose_among(const std::vector<Candidate> &candidates,
                                          const Machine &machine,
                                          const std::vector<residency::TensorSpec> &specs,
                                          const Step &step, Asking asking, Stop stop)
{
    std::vector<Verdict> verdicts;
    for (const Candidate &candidate : candidates) {
        Result<Verdict> verdict = judge(candidate, machine, specs, step, asking, stop);
        if (!verdict.ok()) return std::move(verdict.status());
        verdicts.push_back(verdict.take());
    }
    std::stable_sort(verdicts.begin(), verdicts.end(), better);
    const auto planned = [](const Verdict &verdict) {
        return verdict.candidate.rule == Rule::kKept;
    };
    const auto single = std::find_if_not(verdicts.begin(), verdicts.end(), planned);
    if (single == verdicts.end()) return verdicts;
    std::stable_partition(verdicts.begin(), single + 1, [&](const Verdict &verdict) {
        return !planned(verdict) || !more_somewhere(verdict, *single);
    });
    return verdicts;
}

const Verdict &fastest(const std::vector<Verdict> &verdicts)
{
    STW_ASSERT(!verdicts.empty());
    uint64_t least_ns = UINT64_MAX;
    for (const Verdict &verdict : verdicts) least_ns = std::min(least_ns, verdict.step_ns);
    const uint64_t alike_ns = least_ns + least_ns / kAlikeShare;
    return *std::find_if(verdicts.begin(), verdicts.end(),
                         [&](const Verdict &verdict) { return verdict.step_ns <= alike_ns; });
}

namespace {

Result<Verdict> judge_online(const Candidate &candidate, const Machine &machine,
                             const std::vector<residency::TensorSpec> &specs,
                             const std::vector<const Step *> &steps, Stop stop)
{
    Result<std::unique_ptr<Replay>> opened = Replay::open(machine, specs);
    if (!opened.ok()) return std::move(opened.status());
    Replay &replay = *opened.value();
    replay.set_stop(stop);
    const Uses nothing;
    const std::unique_ptr<Policy> policy = make_policy(candidate, machine, specs, nothing);
    for (const Step *step : steps) STW_TRY(replay.fill_what_is_read(*step));
    replay.set_policy(policy.get());
    Verdict verdict;
    verdict.candidate = candidate;
    for (size_t i = 0; i < steps.size(); ++i) {
        Result<StepResult> result = replay.step(*steps[i]);
        if (!result.ok()) return std::move(result.status());
        if (i >= steps.size() / 2) add(verdict, result.value());
    }
    replay.set_policy(nullptr);
    verdict.link_ns = link_ns(machine, verdict.links);
    return verdict;
}

}  // namespace

Result<std::vector<Verdict>> choose_online(const Machine &machine,
                                           const std::vector<residency::TensorSpec> &specs,
                                           const std::vector<const Step *> &steps, Stop stop)
{
    std::vector<Verdict> verdicts;
    for (const Candidate &candidate : online_candidates()) {
        Result<Verdict> verdict = judge_online(candidate, machine, specs, steps, stop);
        if (!verdict.ok()) return std::move(verdict.status());
        verdicts.push_back(verdict.take());
    }
    double least_ns = verdicts.front().link_ns;
    for (const Verdict &verdict : verdicts) least_ns = std::min(least_ns, verdict.link_ns);
    const auto longest = std::find_if(verdicts.begin(), verdicts.end(), [&](const Verdict &at) {
        return at.candidate.rule == Rule::kOftenUsed && at.link_ns <= kChance * least_ns;
    });
    if (longest != verdicts.end()) std::rotate(verdicts.begin(), longest, longest + 1);
    std::stable_sort(verdicts.begin() + (longest != verdicts.end()), verdicts.end(), better);
    return verdicts;
}

bool is_much_more(uint64_t steps, uint64_t judged)
{
    return steps - judged >= std::min(judged, kFewSteps);
}

void teach(Policy &policy, const std::vector<const Step *> &steps)
{
    for (const Step *step : steps) {
        policy.begin_step(*step);
        for (const Event &event : *step) {
            if (event.act == Act::kFetch) policy.access(event);
        }
    }
}

}  // namespace stepwell::schedule
