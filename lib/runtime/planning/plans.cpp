// SPDX-License-Identifier: Apache-2.0
// Decides which plan is followed. A plan is asked for after a step for which there is none, and
// taken over when a step begins. The planner works on copies, so the program waits only while the
// recorded step is copied.
#include "lib/runtime/planning/plans.h"

#include "lib/profile/tuning.h"
#include "lib/runtime/addresses/metadata.h"
#include "lib/runtime/plan_thread/asking.h"
#include "lib/runtime/plan_thread/model.h"
#include "lib/runtime/plan_thread/work.h"
#include "lib/runtime/planning/models.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/phase.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/registry.h"
#include "lib/schedule/lookahead/lookahead.h"
#include "lib/transfer/engine.h"

#include <algorithm>
#include <new>
#include <utility>

namespace stepwell {
namespace {

using residency::kNone;
using residency::PlaceId;
using residency::TensorId;

constexpr size_t kPlansMax = 8;       // of all phases
constexpr uint64_t kReplayShare = 2;  // memory of a replay, in sizes of the core's tables
constexpr uint64_t kEventShare = 8;   // copies of a step: recorded, completed, expected
constexpr uint64_t kNodeBytes = 16;   // overhead of an allocation
constexpr size_t kSeenLeast = 8;      // differing steps, at least, if there is no room for all

}  // namespace

PlanStore::PlanStore(const Ground &ground, MetadataBudget &metadata, TensorRegistry &registry,
                     StepModels &models)
    : Grounded(ground), metadata_(metadata), registry_(registry), models_(models)
{
}
PlanStore::~PlanStore() = default;

// Changes with everything that limits what a step may use.
uint64_t PlanStore::room_number() const
{
    uint64_t number = registry_.policies_changed;
    for (PlaceId place = 0; place <= machine_.tiers.nvme(); ++place) {
        number = number * 0x9e3779b97f4a7c15 +
                 dispatch_.core.budget_bytes(place) / machine_.block_bytes + 1;
    }
    return number;
}

// Plans, the planner's present memory, and the order of victims.
uint64_t PlanStore::plans_bytes() const
{
    const uint64_t bytes = plan_bytes_asked_ + plan_bytes_kept_;
    return recorder_.planned.plans() ? bytes + rank_bytes() : bytes;
}

// For all packs, at each tier that has an order.
uint64_t PlanStore::rank_bytes() const
{
    return uint64_t{dispatch_.core.pack_ids()} * (machine_.tiers.host() + 1) *
           (residency::kRankBytes + kNodeBytes);
}

// Drops plans that are not followed.
bool PlanStore::make_plan_room(uint64_t bytes)
{
    const auto enough = [&]() STW_REQUIRES(runtime_lock) {
        return plan_bytes_kept_ + rank_bytes() + bytes <= metadata_.plan_bytes_max;
    };
    while (!enough() || plans_made_.size() >= kPlansMax) {
        const size_t drop = plan_to_drop(plans_made_, plan_followed_);
        if (drop == plans_made_.size()) break;
        const std::unique_ptr<PlanWork> gone = std::move(plans_made_[drop]);
        plans_made_.erase(plans_made_.begin() + static_cast<std::ptrdiff_t>(drop));
        plan_bytes_kept_ -= gone->bytes;
        const auto heir =
            std::find_if(plans_made_.begin(), plans_made_.end(), [&](const auto &other) {
                return is_same_round(other->round, gone->round);
            });
        if (heir != plans_made_.end()) (*heir)->steps += gone->steps;
    }
    return enough();
}

// Null: nothing to ask.
std::unique_ptr<PlanWork> PlanStore::plan_question(uint32_t phase)
{
    const std::vector<schedule::Trace::Turn> round = recorder_.trace.round(phase);
    Phase &mine = *recorder_.phases[phase];
    if (round.empty() || dispatch_.is_closing() || plan_refused_ || plan_bytes_asked_ > 0)
        return nullptr;
    auto work = std::make_unique<PlanWork>();
    work->varies = recorder_.trace.phase(phase)->varies();
    // The first step has no filled caches and no updates of an earlier step.
    const bool usual = std::all_of(round.begin(), round.end(), [](const auto &turn) {
        return turn.way->seen > 1 || turn.way->declared;
    });
    if (!usual && !work->varies) return nullptr;
    // Without evictions there is nothing to choose.
    uint64_t evictions = 0;
    for (PlaceId place = 0; place < machine_.tiers.nvme(); ++place)
        evictions += dispatch_.core.evictions(place);
    const bool declared = round.front().way->declared;
    if (!declared && evictions == std::exchange(mine.evictions, evictions)) return nullptr;
    std::vector<const schedule::Step *> steps = describe_work(round, work.get());
    if (is_answered(plans_made_, *work) || mine.plans.is_refused(work->room)) return nullptr;
    const PlanWork *earlier = find_same_steps(plans_made_, *work);
    if (earlier) work->whole_cpu_ns = earlier->whole_cpu_ns;
    const uint64_t open_ns = dispatch_.now() - machine_.opened_ns;
    const bool costly = PlanAsking::is_costly(planner.cpu_ns() + work->whole_cpu_ns, open_ns);
    const uint64_t takes_ns = work->whole_cpu_ns / (costly ? PlanAsking::kAnewShare : 1);
    if (!mine.plans.may_ask(planner.cpu_ns() + takes_ns, open_ns)) return nullptr;
    uint64_t needed = planning_bytes(steps);
    while (!make_plan_room(needed)) {
        // Of differing steps a plan needs not all.
        if (!work->varies || steps.size() < kSeenLeast) {
            mine.plans.refuse(work->room);
            return nullptr;
        }
        steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2));
        needed = planning_bytes(steps);
    }
    for (const schedule::Step *step : steps) work->lengths.push_back(step->size());
    models_.copy_steps(steps, &work->model);
    // make_plan_room() may have dropped the earlier one
    earlier = costly ? find_same_steps(plans_made_, *work) : nullptr;
    if (earlier) work->question.judged = earlier->plan->verdicts();
    plans_made_.reserve(kPlansMax + 1);  // so that take_plan() cannot fail
    mine.plans.asked();
    plan_bytes_asked_ = needed;
    return work;
}

// Memory that the planner needs.
uint64_t PlanStore::planning_bytes(const std::vector<const schedule::Step *> &steps) const
{
    uint64_t events = 0;
    for (const schedule::Step *step : steps) events += step->size();
    return kReplayShare * dispatch_.core.metadata_bytes() +
           kEventShare * events * sizeof(schedule::Event);
}

// Describes the plan to ask for, and returns its steps.
std::vector<const schedule::Step *> PlanStore::describe_work(
    const std::vector<schedule::Trace::Turn> &round, PlanWork *work) const
{
    work->room = room_number();
    for (const observe::LinkTotal &link : bandwidths) {
        work->speeds.push_back(static_cast<double>(link.bytes_per_s));
    }
    if (work->varies) {
        const schedule::PhaseTrace &phase = *recorder_.trace.phase(round.front().phase);
        work->round = {{round.front().phase, 0}};
        work->steps_seen = phase.steps();
        return phase.seen();
    }
    std::vector<const schedule::Step *> steps;
    for (const schedule::Trace::Turn &turn : round) {
        work->round.push_back({turn.phase, turn.way->key()});
        work->compute_ns += turn.way->compute_ns();
        work->update_bytes += turn.way->update_bytes();
        steps.push_back(&turn.way->events());
    }
    return steps;
}

// After a step, with no lock held. Without memory there is no plan, which is not an error.
void PlanStore::ask_plan(uint32_t phase, const std::vector<observe::LinkTotal> &totals)
{
    if (!recorder_.enabled) return;
    std::unique_ptr<PlanWork> work;
    Status asked;
    try {
        MutexLock lock(dispatch_.mutex());
        take_plan();
        work = plan_question(phase);
        if (!work) return;
        work->totals = totals;
    } catch (const std::bad_alloc &) {
        if (!work) return;
        asked = Status::error(STW_ERROR_BUDGET, "no memory is left to make a plan");
    }
    if (asked.ok()) asked = planner.ask(std::move(work));
    if (asked.ok()) return;
    MutexLock lock(dispatch_.mutex());
    plan_bytes_asked_ = 0;
    plan_refused_ = asked.code() == STW_ERROR_LIMIT;
    note_line(STW_LOG_WARNING, "plan", asked);
}

// Without memory for the line it is not logged.
void PlanStore::note_line(uint32_t level, const char *topic, const Status &status)
try {
    dispatch_.say(level, topic, status.sentence());
} catch (const std::bad_alloc &) {
}

// On the planner's thread. Reads only what is constant after open.
void PlanStore::prepare_plan(PlanWork &work) const
{
    StepModel &model = work.model;
    models_.settle_model(work.totals, &model);
    if (!work.varies) work.question.step = models_.complete_step(model.step, model);
    std::vector<schedule::Step> &steps = work.varies ? work.question.seen : work.question.turns;
    const bool several = work.varies || work.lengths.size() > 1;
    for (size_t i = 0, begin = 0; several && i < work.lengths.size(); begin += work.lengths[i++]) {
        const auto first = model.step.begin() + static_cast<std::ptrdiff_t>(begin);
        const schedule::Step step(first, first + static_cast<std::ptrdiff_t>(work.lengths[i]));
        steps.push_back(models_.complete_step(step, model));
    }
    for (uint32_t number = 0; number < model.ids.size(); ++number) {
        const TensorId id = model.ids[number];
        if (id == kNone) continue;
        if (id >= work.numbers.size()) work.numbers.resize(id + size_t{1}, kNone);
        work.numbers[id] = number;
    }
    work.question.specs = std::move(model.specs);
    work.question.machine = std::move(model.machine);
    model = {};
}

void PlanStore::take_plan()
{
    std::unique_ptr<PlanWork> work = planner.take();
    if (!work) return;
    plan_bytes_asked_ = 0;
    if (work->whole_cpu_ns == 0) work->whole_cpu_ns = work->cpu_ns;
    work->bytes = sizeof *work + work->numbers.capacity() * sizeof(uint32_t);
    if (work->plan) work->bytes += work->plan->bytes();
    if (!work->plan) note_line(STW_LOG_INFO, "plan", work->status);
    plan_bytes_kept_ += work->bytes;
    plans_made_.push_back(std::move(work));
    (void)make_plan_room(0);
}

// The plan has at turn `at` the step of the phase that begins.
bool PlanStore::plan_fits(const PlanWork &work, uint32_t at, uint32_t phase) const
{
    const PlanTurn &turn = work.round[at];
    if (!work.plan || turn.phase != phase || work.room != room_number()) return false;
    const schedule::Learned *way = recorder_.trace.phase(phase)->coming();
    return work.varies || (way && way->key() == turn.way);
}

// The newest plan with this step as its next turn, or as its first one.
PlanWork *PlanStore::plan_for(uint32_t phase)
{
    for (size_t i = plans_made_.size(); i > 0; --i) {
        PlanWork *work = plans_made_[i - 1].get();
        const bool followed = work == plan_followed_;
        const auto next = static_cast<uint32_t>((plan_turn_ + 1) % work->round.size());
        if (plan_fits(*work, followed ? next : 0, phase)) return work;
    }
    return nullptr;
}

// Before the trace begins the phase's step. Concurrent steps are not a round, so no plan is
// followed.
void PlanStore::follow_plan(uint32_t phase)
{
    take_plan();
    const bool alone =
        std::none_of(recorder_.phases.begin(), recorder_.phases.end(),
                     [&](const auto &other) STW_REQUIRES(runtime_lock) {
                         return other->step != 0 && other.get() != recorder_.phases[phase].get();
                     });
    PlanWork *work = alone ? plan_for(phase) : nullptr;
    plan_turn_ = work && work == plan_followed_
                     ? static_cast<uint32_t>((plan_turn_ + 1) % work->round.size())
                     : 0;
    const bool other = work != plan_followed_;
    plan_followed_ = work;
    if (other)
        recorder_.planned.follow(work ? work->plan.get() : nullptr,
                                 work ? &work->numbers : nullptr);
    recorder_.phases[phase]->way = work ? work->round[plan_turn_].way : 0;
    const bool repeats = work && work->plan->repeats();
    recorder_.phases[phase]->turn =
        repeats ? work->plan->turns()[plan_turn_] : schedule::PlannedTurn{};
    if (work) ++work->steps;
    if (work && plan_turn_ == 0) recorder_.planned.begin_step();
    uint64_t deviations = 0;
    for (uint32_t i = 0; i < recorder_.phases.size(); ++i) {
        if (recorder_.trace.phase(i)) deviations += recorder_.trace.phase(i)->deviations();
    }
    const bool deviated = std::exchange(plan_deviations_, deviations) != deviations;
    if (other) {
        dispatch_.core.set_victim_policy(&recorder_.planned);
    } else if (work && deviated) {
        dispatch_.core.replan();  // accesses off the plan change what the rest is worth
    }
}

// --------------------------------------------------------------------------------- the report ----

// The compute time of the round's steps, as seen up to now; 0: an access pattern was forgotten.
uint64_t PlanStore::computed_now(const std::vector<PlanTurn> &round) const
{
    uint64_t sum = 0;
    for (const PlanTurn &turn : round) {
        const auto &ways = recorder_.trace.phase(turn.phase)->learned();
        const auto way = std::find_if(ways.begin(), ways.end(),
                                      [&](const auto &one) { return one->key() == turn.way; });
        if (way == ways.end()) return 0;
        sum += (*way)->compute_ns();
    }
    return sum;
}

// The newest plan of each round.
void PlanStore::report_plans(report::ReportData &data) const
{
    data.planning_ns = planner.cpu_ns();
    for (size_t i = 0; i < plans_made_.size(); ++i) {
        const PlanWork *work = plans_made_[i].get();
        const auto later = plans_made_.begin() + static_cast<std::ptrdiff_t>(i) + 1;
        const bool older = std::any_of(later, plans_made_.end(), [&](const auto &other) {
            return other->plan && is_same_round(other->round, work->round);
        });
        if (!work->plan || older) continue;
        report::PlanReport report;
        for (const PlanTurn &turn : work->round) {
            report.name += (report.name.empty() ? "" : " + ") + recorder_.phases[turn.phase]->name;
        }
        for (const auto &made : plans_made_) {
            if (is_same_round(made->round, work->round)) report.steps += made->steps;
        }
        fill_plan(*work->plan, &report);
        report.now_compute_ns = computed_now(work->round);
        if (work->plan->repeats() && report.now_compute_ns > 0) {
            report.now_ns =
                schedule::bound_with(report.bound_ns, report.compute_ns, report.now_compute_ns);
        }
        const std::vector<schedule::PlannedTurn> &turns = work->plan->turns();
        for (size_t k = 0; k < turns.size(); ++k) {
            const uint64_t end = k + 1 < turns.size() ? turns[k + 1].begin_ns : report.step_ns;
            report.turns.push_back({work->round[k].phase, work->round[k].way, turns[k].begin_ns,
                                    end, turns[k].least_ns});
        }
        data.plans.push_back(std::move(report));
    }
}

void PlanStore::fill_plan(const schedule::Plan &plan, report::PlanReport *report) const
{
    const std::vector<schedule::Link> &links = plan.machine().links;
    for (const schedule::Verdict &verdict : plan.verdicts()) {
        const uint64_t steps = std::max<uint32_t>(verdict.steps, 1);
        report::CandidateReport candidate;
        candidate.policy = verdict.candidate.name();
        candidate.earlier = verdict.earlier;
        candidate.step_ns = verdict.step_ns / steps;
        candidate.stall_ns = verdict.stall_ns / steps;
        for (size_t i = 0; i < links.size(); ++i) {
            candidate.link_bytes[link_between(links[i])] += verdict.links[i].bytes / steps;
        }
        report->candidates.push_back(std::move(candidate));
    }
    report->repeats = plan.repeats();
    if (!plan.repeats()) return;
    report->bound_ns = plan.bound().step_ns;
    report->compute_ns = plan.bound().compute_ns;
    for (size_t i = 0; i < links.size(); ++i) {
        const uint32_t link = link_between(links[i]);
        const auto bytes = static_cast<double>(plan.bound().link_bytes[i]);
        report->bound_bytes[link] += plan.bound().link_bytes[i];
        report->bound_link_ns[link] += static_cast<uint64_t>(bytes * 1e9 / links[i].bytes_per_s);
    }
    report->step_ns = plan.expected().step_ns;
    const auto add = [&](const schedule::Span &span) {
        const uint32_t link = span.link == schedule::kNoLink ? 0 : link_between(links[span.link]);
        const residency::Instant begin = plan.expected().begin;
        report->spans.push_back(
            {link, span.begin - std::min(span.begin, begin), span.end - std::min(span.end, begin)});
    };
    for (const schedule::Span &span : plan.computing()) add(span);
    for (const schedule::Span &span : plan.expected().spans) add(span);
}

uint32_t PlanStore::link_between(const schedule::Link &link) const
{
    const bool from_device = machine_.tiers.is_device(link.from);
    const bool to_device = machine_.tiers.is_device(link.to);
    if (from_device && to_device) return STW_LINK_DEVICE_TO_HOST;  // via the host
    if (from_device)
        return machine_.tiers.is_host(link.to) ? STW_LINK_DEVICE_TO_HOST : STW_LINK_DEVICE_TO_NVME;
    if (to_device)
        return machine_.tiers.is_host(link.from) ? STW_LINK_HOST_TO_DEVICE
                                                 : STW_LINK_NVME_TO_DEVICE;
    return machine_.tiers.is_host(link.from) ? STW_LINK_HOST_TO_NVME : STW_LINK_NVME_TO_HOST;
}

// Plans use the profile's bandwidths of disks and copies until transfers were measured.
void PlanStore::expect_bandwidths(const profile::Tuning &tuning)
{
    using transfer::Link;
    const auto expect = [this](Link link, PlaceId memory, uint64_t bytes_per_s) {
        if (bytes_per_s > 0) machine_.engine->expect_bandwidth(link, memory, bytes_per_s);
    };
    for (PlaceId place = 0; place <= machine_.tiers.host(); ++place) {
        const memory::Tier &at = machine_.tiers[place];
        if (!at.memory) continue;
        const bool host = machine_.tiers.is_host(place);
        if (host || at.storage_reaches()) {
            expect(host ? Link::kNvmeToHost : Link::kNvmeToDevice, place,
                   tuning.read_bytes_per_s());
            expect(host ? Link::kHostToNvme : Link::kDeviceToNvme, place,
                   tuning.write_bytes_per_s());
        }
        if (!host && !at.cpu_access) {
            expect(Link::kHostToDevice, place, tuning.host_copy_bytes_per_s());
            expect(Link::kDeviceToHost, place, tuning.host_copy_bytes_per_s());
        }
    }
}

void PlanStore::take_bandwidths(const std::vector<observe::LinkTotal> &links)
{
    uint64_t speeds[residency::kPlacesMax][residency::kPlacesMax] = {};
    for (const observe::LinkTotal &link : links) {
        const auto device = static_cast<PlaceId>(link.device);
        switch (link.link) {
        case STW_LINK_NVME_TO_HOST:
            speeds[machine_.tiers.nvme()][machine_.tiers.host()] = link.bytes_per_s;
            break;
        case STW_LINK_HOST_TO_DEVICE:
            speeds[machine_.tiers.host()][device] = link.bytes_per_s;
            break;
        case STW_LINK_NVME_TO_DEVICE:
            speeds[machine_.tiers.nvme()][device] = link.bytes_per_s;
            break;
        default: break;
        }
    }
    for (const std::unique_ptr<Phase> &phase : recorder_.phases) {
        if (!phase->lookahead) continue;
        for (PlaceId to = 0; to < machine_.tiers.host(); ++to) {
            // Across a ring there are two hops, and the slower one counts.
            const uint64_t hops = std::min(speeds[machine_.tiers.nvme()][machine_.tiers.host()],
                                           speeds[machine_.tiers.host()][to]);
            const uint64_t direct = speeds[machine_.tiers.nvme()][to];
            phase->lookahead->set_bandwidth(machine_.tiers.nvme(), to, direct ? direct : hops);
            phase->lookahead->set_bandwidth(machine_.tiers.host(), to,
                                            speeds[machine_.tiers.host()][to]);
        }
        phase->lookahead->set_bandwidth(machine_.tiers.nvme(), machine_.tiers.host(),
                                        speeds[machine_.tiers.nvme()][machine_.tiers.host()]);
    }
    if (&links != &bandwidths) bandwidths = links;
}

}  // namespace stepwell
