// SPDX-License-Identifier: Apache-2.0
// Plans of what stays resident in a round of steps: asked for, kept, followed.
#pragma once

#include "lib/observe/step_stats.h"
#include "lib/runtime/addresses/metadata_user.h"
#include "lib/runtime/plan_thread/planner.h"
#include "lib/runtime/recording/ground.h"
#include "lib/schedule/trace/trace.h"

namespace stepwell::profile {
struct Tuning;
}  // namespace stepwell::profile
namespace stepwell::report {
struct PlanReport;
struct ReportData;
}  // namespace stepwell::report
namespace stepwell::schedule {
struct Link;
class Plan;
}  // namespace stepwell::schedule

namespace stepwell {

struct PlanTurn;
struct PlanWork;
class MetadataBudget;
class TensorRegistry;
class StepModels;

class PlanStore final : public MetadataUser, Grounded {
public:
    PlanStore(const Ground &ground, MetadataBudget &metadata, TensorRegistry &registry,
              StepModels &models);
    ~PlanStore() override;

    void expect_bandwidths(const profile::Tuning &tuning);
    void take_bandwidths(const std::vector<observe::LinkTotal> &links) STW_REQUIRES(runtime_lock);
    void ask_plan(uint32_t phase, const std::vector<observe::LinkTotal> &totals);
    void follow_plan(uint32_t phase) STW_REQUIRES(runtime_lock);
    void report_plans(report::ReportData &data) const STW_REQUIRES(runtime_lock);

    Planner planner{[this](PlanWork &work) { prepare_plan(work); }};
    // At the last begin or end of a step.
    std::vector<observe::LinkTotal> bandwidths STW_GUARDED_BY(runtime_lock);

    [[nodiscard]] uint64_t metadata_bytes() const override STW_REQUIRES(runtime_lock)
    {
        return plans_bytes();
    }

private:
    void prepare_plan(PlanWork &work) const;
    [[nodiscard]] uint64_t plans_bytes() const STW_REQUIRES(runtime_lock);
    std::unique_ptr<PlanWork> plan_question(uint32_t phase) STW_REQUIRES(runtime_lock);
    uint64_t planning_bytes(const std::vector<const schedule::Step *> &steps) const
        STW_REQUIRES(runtime_lock);
    std::vector<const schedule::Step *> describe_work(
        const std::vector<schedule::Trace::Turn> &round, PlanWork *work) const
        STW_REQUIRES(runtime_lock);
    bool make_plan_room(uint64_t bytes) STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t rank_bytes() const STW_REQUIRES(runtime_lock);
    void note_line(uint32_t level, const char *topic, const Status &status)
        STW_REQUIRES(runtime_lock);
    void take_plan() STW_REQUIRES(runtime_lock);
    [[nodiscard]] PlanWork *plan_for(uint32_t phase) STW_REQUIRES(runtime_lock);
    [[nodiscard]] bool plan_fits(const PlanWork &work, uint32_t at, uint32_t phase) const
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t room_number() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t computed_now(const std::vector<PlanTurn> &round) const
        STW_REQUIRES(runtime_lock);
    void fill_plan(const schedule::Plan &plan, report::PlanReport *report) const;
    [[nodiscard]] uint32_t link_between(const schedule::Link &link) const;

    MetadataBudget &metadata_;
    TensorRegistry &registry_;
    StepModels &models_;
    // The oldest first, including those refused.
    std::vector<std::unique_ptr<PlanWork>> plans_made_ STW_GUARDED_BY(runtime_lock);
    const PlanWork *plan_followed_ STW_GUARDED_BY(runtime_lock)
        STW_PT_GUARDED_BY(runtime_lock) = nullptr;               // one of plans_made_
    uint32_t plan_turn_ STW_GUARDED_BY(runtime_lock) = 0;        // in its round
    uint64_t plan_deviations_ STW_GUARDED_BY(runtime_lock) = 0;  // of all phases, at its last begin
    // Reserved for the question under way; 0: none.
    uint64_t plan_bytes_asked_ STW_GUARDED_BY(runtime_lock) = 0;
    uint64_t plan_bytes_kept_ STW_GUARDED_BY(runtime_lock) = 0;  // total of plans_made_
    bool plan_refused_ STW_GUARDED_BY(runtime_lock) =
        false;  // the system starts no thread for the planner
};

}  // namespace stepwell
