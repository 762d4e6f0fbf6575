// SPDX-License-Identifier: Apache-2.0
// For a step that repeats, every candidate is judged with the runtime's prefetches; the best one
// is replayed once more and recorded.
#include "lib/schedule/plan/plan.h"

#include "lib/schedule/replay/ahead.h"

#include <algorithm>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::kNone;
using residency::TensorId;

constexpr uint64_t kBlocksMax = 4096;  // of all tensors; more take longer and add little
constexpr size_t kStepsBefore = 2;     // warm-up before the recorded one
constexpr size_t kSpansMax = 4096;     // kept for each link
constexpr size_t kJudgedAnew = 4;      // best verdicts of an earlier plan that are judged again

uint64_t blocks_of(const std::vector<residency::TensorSpec> &specs, uint64_t block_bytes)
{
    uint64_t blocks = 0;
    for (const residency::TensorSpec &spec : specs) {
        blocks += (spec.bytes + block_bytes - 1) / block_bytes;
    }
    return blocks;
}

// Enlarges blocks while most tensors are no smaller. Capacities in bytes stay the same.
void coarsen(Machine &machine, const std::vector<residency::TensorSpec> &specs)
{
    std::vector<uint64_t> sizes;
    sizes.reserve(specs.size());
    for (const residency::TensorSpec &spec : specs) sizes.push_back(spec.bytes);
    if (sizes.empty()) return;
    const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
    std::nth_element(sizes.begin(), middle, sizes.end());
    residency::Config &config = machine.config;
    while (blocks_of(specs, config.block_bytes) > kBlocksMax && 2 * config.block_bytes <= *middle) {
        config.block_bytes *= 2;
        for (residency::PlaceConfig &place : config.places) place.blocks /= 2;
        // The farthest place has room for all, so it gets a partial block for each tensor.
        const auto farthest = std::find_if(config.places.rbegin(), config.places.rend(),
                                           [](const auto &place) { return place.blocks > 0; });
        if (farthest == config.places.rend()) return;
        farthest->blocks += static_cast<uint32_t>(specs.size());
    }
}

// For display: merges spans on a link that have hardly a gap between them.
void merge(std::vector<Span> &spans, residency::Instant step_ns)
{
    const residency::Instant gap = step_ns / kSpansMax;
    std::stable_sort(spans.begin(), spans.end(), [](const Span &a, const Span &b) {
        return a.link != b.link ? a.link < b.link : a.begin < b.begin;
    });
    std::vector<Span> merged;
    for (const Span &span : spans) {
        if (!merged.empty() && merged.back().link == span.link &&
            span.begin <= merged.back().end + gap) {
            merged.back().end = std::max(merged.back().end, span.end);
            merged.back().bytes += span.bytes;
        } else {
            merged.push_back(span);
        }
    }
    merged.shrink_to_fit();
    spans.swap(merged);
}

bool is_program_fetch(const Event &event)
{
    return event.act == Act::kFetch && event.lane == Lane::kProgram;
}

}  // namespace

uint64_t PlanQuestion::bytes() const
{
    uint64_t bytes = step.capacity() * sizeof(Event);
    for (const Step &each : seen) bytes += each.capacity() * sizeof(Event);
    for (const Step &each : turns) bytes += each.capacity() * sizeof(Event);
    for (const residency::TensorSpec &spec : specs) bytes += sizeof spec + spec.name.capacity();
    for (const Verdict &verdict : judged) {
        bytes += sizeof verdict + verdict.links.capacity() * sizeof(LinkUse);
    }
    return bytes;
}

Result<std::unique_ptr<Plan>> Plan::make(PlanQuestion question, Stop stop)
{
    std::unique_ptr<Plan> plan(new Plan());
    plan->specs_ = std::move(question.specs);
    plan->machine_ = std::move(question.machine);
    coarsen(plan->machine_, plan->specs_);
    plan->seen_ = question.seen.size();
    STW_TRY(plan->repeats() ? plan->make_known(question, stop)
                            : plan->make_online(question.seen, stop));
    return plan;
}

Status Plan::make_known(const PlanQuestion &question, Stop stop)
{
    const Step &step = question.step;
    std::vector<Verdict> judged = question.judged;
    std::erase_if(judged, [&](const Verdict &verdict) {
        return verdict.links.size() != machine_.links.size();  // from a machine with other places
    });
    std::stable_sort(judged.begin(), judged.end(), [](const Verdict &a, const Verdict &b) {
        return a.step_ns * b.steps < b.step_ns * a.steps;
    });
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < std::min(judged.size(), kJudgedAnew); ++i) {
        candidates.push_back(judged[i].candidate);
    }
    if (judged.empty()) candidates = known_candidates(specs_);
    Result<std::vector<Verdict>> chosen =
        choose_among(candidates, machine_, specs_, step, Asking::kAhead, stop);
    if (!chosen.ok()) return std::move(chosen.status());
    verdicts_ = chosen.take();
    const auto best = verdicts_.begin() + (&fastest(verdicts_) - verdicts_.data());
    std::rotate(verdicts_.begin(), best, best + 1);
    for (size_t i = kJudgedAnew; i < judged.size(); ++i) {
        verdicts_.push_back(std::move(judged[i]));
        verdicts_.back().earlier = true;
    }
    uses_ = Uses(step, specs_.size());
    policy_ = make_policy(verdicts_.front().candidate, machine_, specs_, uses_);
    bound_ = bound_of(step, specs_, machine_, Start::kAny);
    bound_turns(question.turns);
    STW_TRY(expect(step, stop));
    find_turns(step, question.turns);
    expected_.event_begins = {};
    expected_.event_ends = {};
    return {};
}

void Plan::bound_turns(const std::vector<Step> &turns)
{
    for (const Step &turn : turns) {
        const Bound bound = bound_of(turn, specs_, machine_, Start::kAny);
        turns_.push_back({0, bound.step_ns, bound.compute_ns});
    }
    if (turns.empty()) turns_.push_back({0, bound_.step_ns, bound_.compute_ns});
}

// A turn begins with the compute time before its first fetch of the program.
void Plan::find_turns(const Step &step, const std::vector<Step> &turns)
{
    size_t turn = 0;
    std::ptrdiff_t left = 0;
    for (size_t i = 0; i < step.size() && turn < turns.size(); ++i) {
        if (!is_program_fetch(step[i])) continue;
        if (left == 0) {
            const residency::Instant begin = expected_.event_begins[i] - step[i].compute_ns;
            turns_[turn].begin_ns = begin - std::min(begin, expected_.begin);
            left = std::count_if(turns[turn].begin(), turns[turn].end(), is_program_fetch);
            ++turn;
        }
        --left;
    }
    for (; turn < turns.size(); ++turn) turns_[turn].begin_ns = expected_.step_ns;
    turns_.front().begin_ns = 0;
}

Status Plan::make_online(const std::vector<Step> &seen, Stop stop)
{
    std::vector<const Step *> steps;
    steps.reserve(seen.size());
    for (const Step &step : seen) steps.push_back(&step);
    Result<std::vector<Verdict>> chosen = choose_online(machine_, specs_, steps, stop);
    if (!chosen.ok()) return std::move(chosen.status());
    verdicts_ = chosen.take();
    policy_ = make_policy(verdicts_.front().candidate, machine_, specs_, uses_);
    teach(*policy_, steps);
    return {};
}

Status Plan::expect(const Step &step, Stop stop)
{
    Result<std::unique_ptr<Replay>> opened = Replay::open(machine_, specs_);
    if (!opened.ok()) return std::move(opened.status());
    Replay &replay = *opened.value();
    replay.set_stop(stop);
    STW_TRY(replay.fill_what_is_read(step));
    const std::unique_ptr<Policy> policy =
        make_policy(verdicts_.front().candidate, machine_, specs_, uses_);
    AheadPrefetcher ahead(machine_, specs_, step);
    replay.set_policy(policy.get());
    replay.set_prefetcher(&ahead);
    replay.set_recording(true);
    for (size_t i = 0; i <= kStepsBefore; ++i) {
        Result<StepResult> result = replay.step(step);
        if (!result.ok()) return std::move(result.status());
        expected_ = result.take();
    }
    for (size_t i = 0; i < step.size(); ++i) {
        const residency::Instant begin = expected_.event_begins[i];
        if (step[i].lane != Lane::kProgram || step[i].compute_ns == 0) continue;
        computing_.push_back({kNoLink, step[i].tensor, {}, 0, begin - step[i].compute_ns, begin});
    }
    merge(expected_.spans, expected_.step_ns);
    merge(computing_, expected_.step_ns);
    return {};
}

uint64_t Plan::bytes() const
{
    uint64_t bytes = sizeof *this + verdicts_.capacity() * sizeof(Verdict) +
                     turns_.capacity() * sizeof(PlannedTurn) +
                     (expected_.spans.capacity() + computing_.capacity()) * sizeof(Span);
    for (const residency::TensorSpec &spec : specs_) bytes += sizeof spec + spec.name.capacity();
    for (size_t tensor = 0; tensor < uses_.tensors(); ++tensor) {
        bytes += sizeof(std::vector<Use>) +
                 uses_.of(static_cast<TensorId>(tensor)).capacity() * sizeof(Use);
    }
    return bytes + tensors() * 4 * sizeof(uint64_t);  // what a policy keeps for each
}

void Planned::follow(Plan *plan, const std::vector<uint32_t> *numbers)
{
    plan_ = plan;
    numbers_ = plan ? numbers : nullptr;
}

void Planned::begin_step()
{
    static const Step unknown;  // policies only need the call
    if (plan_) plan_->policy().begin_step(unknown);
}

// Other tensors get numbers after the plan's, so that numbers are unique.
TensorId Planned::number_of(TensorId tensor) const
{
    const bool known = tensor < numbers_->size() && (*numbers_)[tensor] != kNone;
    return known ? (*numbers_)[tensor] : static_cast<TensorId>(plan_->tensors() + tensor);
}

uint64_t Planned::next_use(TensorId tensor) const
{
    if (plan_ && plan_->policy().keeps(number_of(tensor))) return 0;
    return trace_.next_use(tensor);
}

void Planned::access(Lane lane, TensorId tensor)
{
    if (!plan_) return;
    Event event;
    event.lane = lane;
    event.tensor = number_of(tensor);
    plan_->policy().access(event);
}

double Planned::worth(TensorId tensor, residency::PlaceId place) const
{
    return plan_ ? plan_->policy().worth(number_of(tensor), place) : 0;
}

double Planned::write_back_worth() const
{
    return plan_ ? plan_->policy().write_back_worth() : 0;
}

}  // namespace stepwell::schedule
