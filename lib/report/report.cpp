// SPDX-License-Identifier: Apache-2.0
// The report: one object, a member per subject, units in the names. What is derived (utilisation,
// waste, the bound's share and the cause of the difference) is derived here and nowhere else.
#include "lib/report/report.h"

#include "lib/report/file.h"
#include "lib/report/history.h"
#include "lib/report/json.h"

#include <algorithm>

namespace stepwell::report {

namespace {

constexpr double kSecondNs = 1e9;

// a / b for a reader; null where nothing was measured.
void ratio_member(JsonWriter &json, const char *name, uint64_t a, uint64_t b)
{
    json.key(name);
    if (b == 0) {
        json.null();
    } else {
        json.number(static_cast<double>(a) / static_cast<double>(b));
    }
}

void write_tier(JsonWriter &json, const TierReport &tier)
{
    const stw_tier_stats &stats = tier.stats;
    json.begin_object();
    json.member("tier", tier_name(tier.tier));
    json.member("device", tier.device);
    json.member("budget_bytes", stats.budget_bytes);
    json.member("used_bytes", stats.used_bytes);
    json.member("peak_bytes", stats.peak_bytes);
    json.member("within_budget", stats.peak_bytes <= stats.budget_bytes);
    json.member("pinned_bytes", stats.pinned_bytes);
    json.member("dirty_bytes", stats.dirty_bytes);
    json.member("promised_bytes", tier.promised_bytes);
    json.member("staging_bytes", stats.staging_bytes);
    json.member("metadata_bytes", stats.metadata_bytes);
    json.member("metadata_budget_bytes", stats.metadata_budget_bytes);
    json.member("open_views", stats.open_views);
    json.member("exports", stats.exports);
    json.member("tensors", stats.tensors);
    json.member("evictions", stats.evictions);
    json.member("policy_calls", stats.policy_calls);
    json.member("policy_scores", stats.policy_scores);
    json.member("planned_bytes", stats.planned_bytes);
    json.member("planned_used_bytes", stats.planned_used_bytes);
    json.member("planned_wasted_bytes", stats.planned_wasted_bytes);
    json.member("registered_bytes", stats.registered_bytes);
    json.member("registering_bytes", stats.registering_bytes);
    json.member("registered_ns", stats.registered_ns);
    json.member("refused_slabs", stats.refused_slabs);
    json.member("remapped_bytes", stats.remapped_bytes);
    json.member("remapped_ns", stats.remapped_ns);
    json.member("adopted_bytes", stats.adopted_bytes);
    json.member("scratch_bytes", stats.scratch_bytes);
    json.member("scratch_used_bytes", stats.scratch_used_bytes);
    json.member("scratch_allocator", tier.scratch_allocator);
    json.end_object();
}

void write_link(JsonWriter &json, const LinkReport &link, uint64_t elapsed_ns)
{
    const stw_link_stats &stats = link.stats;
    json.begin_object();
    json.member("link", link_name(link.link));
    json.member("device", link.device);
    json.member("bytes", stats.bytes);
    json.member("transfers", stats.transfers);
    json.member("busy_ns", stats.busy_ns);
    json.member("measured_bytes_per_s", stats.measured_bytes_per_s);
    ratio_member(json, "busy_share", stats.busy_ns, elapsed_ns);
    // Of the bandwidth, while it was busy: below 1, transfers were too few or too small.
    json.key("utilisation");
    const double could = static_cast<double>(stats.measured_bytes_per_s) *
                         static_cast<double>(stats.busy_ns) / kSecondNs;
    if (could > 0) {
        json.number(static_cast<double>(stats.bytes) / could);
    } else {
        json.null();
    }
    json.member("errors", stats.errors);
    json.member("retries", stats.retries);
    json.end_object();
}

void write_driver(JsonWriter &json, const DriverReport &driver)
{
    json.begin_object();
    json.member("kind", driver.kind);
    json.member("name", driver.name);
    json.member("used_for", driver.used_for);
    json.member("bytes", driver.bytes);
    if (driver.kind == "storage") {
        json.member("file_system", driver.file_system);
        json.member("queue_depth", driver.queue_depth);
    } else {
        json.member("locked", driver.locked);
        json.member("huge_pages", driver.huge_pages);
        json.member("numa_node", driver.numa_node);
    }
    json.member("remark", driver.remark);
    json.end_object();
}

void write_profile_directory(JsonWriter &json, const ProfileDirectoryReport &directory)
{
    json.begin_object();
    json.member("path", directory.path);
    json.member("device", directory.device);
    json.member("file_system", directory.file_system);
    json.member("file_system_id", directory.file_system_id);
    json.member("source", directory.source);
    json.member("file", directory.file);
    json.member("created", directory.created);
    json.member("read_bytes_per_s", directory.read_bytes_per_s);
    json.member("write_bytes_per_s", directory.write_bytes_per_s);
    json.member("read_request_bytes", directory.read_request_bytes);
    json.member("read_queue_depth", directory.read_queue_depth);
    json.member("write_request_bytes", directory.write_request_bytes);
    json.member("write_queue_depth", directory.write_queue_depth);
    json.member("remark", directory.remark);
    json.end_object();
}

void write_step(JsonWriter &json, const char *name, const stw_step_stats &stats)
{
    json.key(name);
    json.begin_object();
    json.member("planned", stats.planned != 0);
    json.member("wall_ns", stats.wall_ns);
    json.member("bound_ns", stats.bound_ns);
    if (stats.least_ns > 0) json.member("least_ns", stats.least_ns);
    ratio_member(json, "bound_share", stats.bound_ns, stats.wall_ns);
    json.member("difference_ns", stats.wall_ns - std::min(stats.wall_ns, stats.bound_ns));
    // What is lost is lost in waiting, since compute alone is one of the bounds.
    const int cause = observe::largest_stall(stats);
    const bool lost = stats.wall_ns > stats.bound_ns && cause >= 0;
    json.member("difference_cause",
                lost ? observe::stall_name(static_cast<observe::Stall>(cause)) : "none");
    write_stalls(json, stats);
    json.key("bytes");
    json.begin_object();
    json.member("nvme_read", stats.nvme_read_bytes);
    json.member("nvme_write", stats.nvme_write_bytes);
    json.member("host_to_device", stats.host_to_device_bytes);
    json.member("device_to_host", stats.device_to_host_bytes);
    json.member("collective", stats.collective_bytes);
    json.end_object();
    json.end_object();
}

void write_phase(JsonWriter &json, const PhaseReport &phase)
{
    json.begin_object();
    json.member("name", phase.name);
    json.member("number", phase.number);
    json.member("steps", phase.steps);
    json.member("aborted", phase.aborted);
    if (phase.steps > 0) {
        const observe::StepBound &bound = phase.last_bound;
        write_step(json, "last", phase.last);
        write_step(json, "mean", phase.mean);
        json.key("last_bound");
        json.begin_object();
        json.member("by", bound.by_link ? link_name(bound.link) : "compute");
        json.member("compute_ns", bound.compute_ns);
        json.member("link_ns", bound.link_ns);
        json.member("slowest_link", bound.link != 0 ? link_name(bound.link) : "none");
        json.member("device", bound.device);
        json.end_object();
    }
    json.end_object();
}

void write_update(JsonWriter &json, const UpdateReport &update)
{
    json.begin_object();
    json.member("steps", update.steps);
    json.member("skipped", update.skipped);
    json.member("parameters", update.parameters);
    json.member("early", update.early);
    json.member("undone", update.undone);
    json.member("chunks", update.chunks);
    json.member("elements", update.elements);
    json.member("bytes", update.bytes);
    json.member("busy_ns", update.busy_ns);
    json.member("threads", update.threads);
    json.end_object();
}

void write_waste(JsonWriter &json, const ReportData &data)
{
    uint64_t charged = 0;
    uint64_t asked = 0;
    json.begin_object();
    json.key("roles");
    json.begin_array();
    for (const WasteReport &waste : data.waste) {
        charged += waste.charged_bytes;
        asked += waste.tensor_bytes;
        json.begin_object();
        json.member("role", role_name(waste.role));
        json.member("tensors", waste.tensors);
        json.member("tensor_bytes", waste.tensor_bytes);
        json.member("charged_bytes", waste.charged_bytes);
        json.end_object();
    }
    json.end_array();
    const uint64_t wasted = charged - std::min(charged, asked);
    json.member("bytes", wasted);
    ratio_member(json, "share", wasted, charged);
    json.end_object();
}

void write_errors(JsonWriter &json, const ReportData &data)
{
    json.begin_object();
    json.member("total", data.errors_total);
    json.key("first");
    json.begin_array();
    for (const ErrorReport &error : data.errors) {
        json.begin_object();
        json.member("status", error.status);
        json.member("tensor", error.tensor);
        json.member("sentence", error.sentence);
        json.member("count", error.count);
        json.end_object();
    }
    json.end_array();
    json.end_object();
}

template <class List, class Write>
void write_list(JsonWriter &json, const char *name, const List &list, Write &&write)
{
    json.key(name);
    json.begin_array();
    for (const auto &entry : list) write(entry);
    json.end_array();
}

void write_all(JsonWriter &json, const ReportData &data)
{
    json.begin_object();
    json.member("format", kReportFormat);
    json.member("runtime", data.name);
    json.member("version", data.version);
    json.member("block_bytes", data.block_bytes);
    json.member("elapsed_ns", data.elapsed_ns);
    json.member("threads", data.threads);
    json.member("threads_why", data.threads_why);
    write_list(json, "tiers", data.tiers, [&](const TierReport &tier) { write_tier(json, tier); });
    write_list(json, "links", data.links,
               [&](const LinkReport &link) { write_link(json, link, data.elapsed_ns); });
    write_list(json, "drivers", data.drivers,
               [&](const DriverReport &driver) { write_driver(json, driver); });
    json.key("profile");
    json.begin_object();
    json.member("kernel", data.profile.kernel);
    json.member("processor", data.profile.processor);
    json.member("cores", data.profile.cores);
    json.member("host_copy_bytes_per_s", data.profile.host_copy_bytes_per_s);
    write_list(json, "directories", data.profile.directories,
               [&](const auto &directory) { write_profile_directory(json, directory); });
    json.end_object();
    write_list(json, "phases", data.phases,
               [&](const PhaseReport &phase) { write_phase(json, phase); });
    write_plans(json, data);
    json.key("update");
    write_update(json, data.update);
    write_list(json, "half_sums", data.half_sums, [&](const HalfSumReport &sum) {
        json.begin_object();
        json.member("tensor", sum.tensor);
        json.member("dtype", dtype_name(sum.dtype));
        json.member("contributions", sum.contributions);
        json.end_object();
    });
    write_list(json, "touches", data.touches, [&](const TouchReport &touch) {
        json.begin_object();
        json.member("tensor", touch.tensor);
        json.member("reads", touch.reads);
        json.member("writes", touch.writes);
        json.end_object();
    });
    json.key("waste");
    write_waste(json, data);
    json.key("errors");
    write_errors(json, data);
    json.key("timeline");
    json.begin_object();
    json.member("spans", data.timeline_spans);
    json.member("lost", data.timeline_lost);
    json.end_object();
    json.member("log_lines_suppressed", data.log_suppressed);
    json.key("history");
    write_history(json, data.history);
    json.end_object();
}

}  // namespace

void write_stalls(JsonWriter &json, const stw_step_stats &stats)
{
    json.key("stall_ns");
    json.begin_object();
    json.member("total", stats.stall_ns);
    json.member("nvme", stats.stall_nvme_ns);
    json.member("host_device", stats.stall_host_device_ns);
    json.member("collective", stats.stall_collective_ns);
    json.member("room", stats.stall_room_ns);
    json.member("update", stats.stall_update_ns);
    json.end_object();
}

Status write_report(const char *path, const ReportData &data)
{
    auto file = AtomicFile::create(path, "report");
    if (!file.ok()) return file.status();
    JsonWriter json(file.value()->sink());
    write_all(json, data);
    return file.value()->commit();
}

}  // namespace stepwell::report
