// SPDX-License-Identifier: Apache-2.0
// Statistics, reports and the timeline.
#pragma once

#include "lib/report/report.h"
#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

struct stw_device_info;
struct stw_driver_info;
struct stw_link_stats;
struct stw_tier_stats;

namespace stepwell {

class MetadataBudget;
class Meters;
class PlanStore;
class ProgramVictims;
class OptimizerTable;
class Reductions;
class Steps;

class Reporter final : Grounded {
public:
    Reporter(const Ground &ground, MetadataBudget &metadata, Meters &meters, PlanStore &plans,
             ProgramVictims &victims, OptimizerTable &optimizers, Reductions &reductions,
             Steps &steps)
        : Grounded(ground),
          metadata_(metadata),
          meters_(meters),
          plans_(plans),
          victims_(victims),
          optimizers_(optimizers),
          reductions_(reductions),
          steps_(steps)
    {
    }

    Status tier_stats(uint32_t tier, uint32_t device, stw_tier_stats *stats_out);
    Status link_stats(uint32_t link, uint32_t device, stw_link_stats *stats_out);
    Status device_info(uint32_t device, stw_device_info *info_out);
    static Status driver_info(const char *driver, stw_driver_info *info_out);
    Status write_report(const char *path);
    Status write_timeline(const char *path);

    report::ProfileReport profile;

private:
    void fill_report(report::ReportData &data);
    void report_tensors(report::ReportData &data) const STW_REQUIRES(runtime_lock);
    void report_phases(report::ReportData &data) const STW_REQUIRES(runtime_lock);
    void report_drivers(report::ReportData &data);
    void report_waste(report::ReportData &data) const STW_REQUIRES(runtime_lock);
    void report_history(report::HistoryData &data) const STW_REQUIRES(runtime_lock);
    [[nodiscard]] std::vector<report::TensorName> tensor_names() const STW_REQUIRES(runtime_lock);

    MetadataBudget &metadata_;
    Meters &meters_;
    PlanStore &plans_;
    ProgramVictims &victims_;
    OptimizerTable &optimizers_;
    Reductions &reductions_;
    Steps &steps_;
};

}  // namespace stepwell
