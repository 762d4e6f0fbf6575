// SPDX-License-Identifier: Apache-2.0
// Runs of whole programs by one policy, and by ours, which changes its mind.
#include "tests/policies/compare.h"

#include "lib/schedule/trace/trace.h"

#include <algorithm>
#include <numeric>

namespace stepwell::schedule {
namespace {

constexpr size_t kSteadySteps = 2;  // between the choice and what is measured

uint64_t all_bytes(const std::vector<LinkUse> &links)
{
    return std::accumulate(links.begin(), links.end(), uint64_t{0},
                           [](uint64_t sum, const LinkUse &use) { return sum + use.bytes; });
}

struct Hits {
    uint64_t read_bytes = 0;
    uint64_t hit_bytes = 0;
    uint64_t link_bytes = 0;
    void add(const StepResult &step)
    {
        read_bytes += step.read_bytes;
        hit_bytes += step.hit_bytes;
        link_bytes += all_bytes(step.links);
    }
    [[nodiscard]] double rate() const
    {
        return static_cast<double>(hit_bytes) / static_cast<double>(read_bytes);
    }
};

Result<std::unique_ptr<Replay>> filled(const Workload &trace, const Machine &machine)
{
    Result<std::unique_ptr<Replay>> replay = Replay::open(machine, trace.tensors);
    if (!replay.ok()) return replay;
    for (const Step &step : trace.steps) STW_TRY(replay.value()->fill_what_is_read(step));
    return replay;
}

// All steps by one policy; what those after the first `learned` cost.
Result<Hits> run(const Workload &trace, const Machine &machine, Policy &policy, size_t learned)
{
    Result<std::unique_ptr<Replay>> replay = filled(trace, machine);
    if (!replay.ok()) return std::move(replay.status());
    replay.value()->set_policy(&policy);
    Hits hits;
    for (size_t i = 0; i < trace.steps.size(); ++i) {
        Result<StepResult> step = replay.value()->step(trace.steps[i]);
        if (!step.ok()) return std::move(step.status());
        if (i >= learned) hits.add(step.value());
    }
    replay.value()->set_policy(nullptr);
    return hits;
}

// Of the same steps, with all of the future known: as if they were one.
Result<Hits> run_clairvoyant(const Workload &trace, const Machine &machine)
{
    Result<std::unique_ptr<Replay>> replay = filled(trace, machine);
    if (!replay.ok()) return std::move(replay.status());
    Step all;
    for (const Step &step : trace.steps) all.insert(all.end(), step.begin(), step.end());
    const Uses uses(all, trace.tensors.size());
    NextUse policy(uses);
    policy.begin_step(all);
    // Told once of the one long step; its parts are run one by one to be counted.
    class Part final : public Policy {
    public:
        explicit Part(Policy &whole) : whole_(whole) {}
        void access(const Event &event) override { whole_.access(event); }
        [[nodiscard]] uint64_t next_use(residency::TensorId tensor) const override
        {
            return whole_.next_use(tensor);
        }
        [[nodiscard]] bool plans() const override { return true; }
        [[nodiscard]] double worth(residency::TensorId tensor,
                                   residency::PlaceId place) const override
        {
            return whole_.worth(tensor, place);
        }

    private:
        Policy &whole_;
    };
    Part part(policy);
    replay.value()->set_policy(&part);
    Hits hits;
    for (size_t i = 0; i < trace.steps.size(); ++i) {
        Result<StepResult> step = replay.value()->step(trace.steps[i]);
        if (!step.ok()) return std::move(step.status());
        if (i >= kLearnedSteps) hits.add(step.value());
    }
    replay.value()->set_policy(nullptr);
    return hits;
}

// As a runtime does: of the steps that its trace keeps, where these differ, and anew when there are
// many more of them. Of such steps what is not sure is not brought ahead.
Result<Hits> run_ours(const Workload &trace, const Machine &machine, std::string *last)
{
    Result<std::unique_ptr<Replay>> replay = filled(trace, machine);
    if (!replay.ok()) return std::move(replay.status());
    std::unique_ptr<Policy> policy = std::make_unique<LastUse>();
    replay.value()->set_policy(policy.get());
    PhaseTrace phase;
    uint64_t judged = 0;
    const Uses nothing;
    Hits hits;
    for (size_t i = 0; i < trace.steps.size(); ++i) {
        if (phase.varies() && (judged == 0 || is_much_more(phase.steps(), judged))) {
            judged = phase.steps();
            const std::vector<const Step *> past = phase.seen();
            Result<std::vector<Verdict>> chosen = choose_online(machine, trace.tensors, past);
            if (!chosen.ok()) return std::move(chosen.status());
            const Candidate &best = chosen.value().front().candidate;
            std::unique_ptr<Policy> next = make_policy(best, machine, trace.tensors, nothing);
            teach(*next, past);
            replay.value()->set_policy(next.get());
            policy = std::move(next);
            *last = best.name();
        }
        Result<StepResult> step = replay.value()->step(trace.steps[i]);
        if (!step.ok()) return std::move(step.status());
        if (i >= kLearnedSteps) hits.add(step.value());
        phase.begin(0);
        phase.recording = trace.steps[i];
        phase.learn(Trace::kBytesMax);
        phase.end();
    }
    replay.value()->set_policy(nullptr);
    return hits;
}

}  // namespace

double Repeated::ratio() const
{
    double least = 0;
    bool none = true;
    for (size_t i = 0; i < our_bytes.size(); ++i) {
        if (our_bytes[i] == 0) continue;
        const double at = static_cast<double>(single_bytes[i]) / static_cast<double>(our_bytes[i]);
        least = none ? at : std::min(least, at);
        none = false;
    }
    return none ? 1 : least;
}

Result<Repeated> compare_repeated(const Workload &trace, uint32_t percent)
{
    const Machine machine = trace_machine(trace, percent);
    const Step &step = trace.steps.front();
    Result<std::unique_ptr<Replay>> replay = filled(trace, machine);
    if (!replay.ok()) return std::move(replay.status());
    Result<StepResult> first = replay.value()->step(step);
    if (!first.ok()) return std::move(first.status());
    Result<std::vector<Verdict>> verdicts = choose(machine, trace.tensors, step);
    if (!verdicts.ok()) return std::move(verdicts.status());
    const std::vector<Verdict> &all = verdicts.value();
    Repeated repeated;
    const auto single = std::find_if(all.begin(), all.end(), [](const Verdict &verdict) {
        return verdict.candidate.rule != Rule::kKept;
    });
    repeated.single = single->candidate.name();
    for (const LinkUse &use : single->links) repeated.single_bytes.push_back(use.bytes);
    for (const Verdict &verdict : all) {
        if (verdict.candidate.rule != Rule::kLastUse) continue;
        repeated.recency_bytes = all_bytes(verdict.links);
    }
    const Uses uses(step, trace.tensors.size());
    const std::unique_ptr<Policy> policy =
        make_policy(all.front().candidate, machine, trace.tensors, uses);
    repeated.ours = all.front().candidate.name();
    repeated.our_bytes.resize(machine.links.size());
    replay.value()->set_policy(policy.get());
    for (size_t i = 0; i < kSteadySteps + kMeasuredSteps; ++i) {
        Result<StepResult> result = replay.value()->step(step);
        if (!result.ok()) return std::move(result.status());
        for (size_t k = 0; i >= kSteadySteps && k < machine.links.size(); ++k) {
            repeated.our_bytes[k] += result.value().links[k].bytes;
        }
    }
    replay.value()->set_policy(nullptr);
    Result<std::vector<Verdict>> ahead = choose(machine, trace.tensors, step, Asking::kAhead);
    if (!ahead.ok()) return std::move(ahead.status());
    const Verdict &followed = fastest(ahead.value());
    repeated.followed = followed.candidate.name();
    for (const LinkUse &use : followed.links) repeated.followed_bytes.push_back(use.bytes);
    repeated.bound_bytes =
        bound_of(step, trace.tensors, machine, Start::kAny, kMeasuredSteps).link_bytes;
    for (uint64_t &bytes : repeated.bound_bytes) bytes *= kMeasuredSteps;
    return repeated;
}

double Online::ratio() const
{
    return static_cast<double>(single_bytes) / static_cast<double>(our_bytes);
}

Result<Online> compare_online(const Workload &trace, uint32_t percent)
{
    const Machine machine = trace_machine(trace, percent);
    Online online;
    Result<Hits> ours = run_ours(trace, machine, &online.ours);
    if (!ours.ok()) return std::move(ours.status());
    online.our_bytes = ours.value().link_bytes;
    online.hit = ours.value().rate();
    Result<Hits> clairvoyant = run_clairvoyant(trace, machine);
    if (!clairvoyant.ok()) return std::move(clairvoyant.status());
    online.clairvoyant_hit = clairvoyant.value().rate();
    const Uses nothing;
    for (const Candidate &candidate : online_candidates()) {
        const auto policy = make_policy(candidate, machine, trace.tensors, nothing);
        Result<Hits> hits = run(trace, machine, *policy, kLearnedSteps);
        if (!hits.ok()) return std::move(hits.status());
        if (candidate.rule == Rule::kLastUse) online.recency_hit = hits.value().rate();
        if (!online.single.empty() && hits.value().link_bytes >= online.single_bytes) continue;
        online.single = candidate.name();
        online.single_bytes = hits.value().link_bytes;
    }
    return online;
}

}  // namespace stepwell::schedule
