// SPDX-License-Identifier: Apache-2.0
// The runtime's reports: totals per tier and link, the report, the timeline.
#include "lib/runtime/report/reporter.h"

#include "lib/memory/host_pins.h"
#include "lib/memory/scratch.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/metadata.h"
#include "lib/runtime/calls/reductions.h"
#include "lib/runtime/calls/steps.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/optimizers/table.h"
#include "lib/runtime/planning/plans.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/phase.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/victims/scoring.h"
#include "lib/runtime/victims/victims.h"

#include "drivers/registry.h"
#include "lib/transfer/engine.h"
#include "lib/update/pipeline.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace stepwell {
namespace {

using residency::PlaceId;

}  // namespace

Status Reporter::tier_stats(uint32_t tier, uint32_t device, stw_tier_stats *stats_out)
{
    PlaceId place = machine_.tiers.place_of(tier, device);
    if (place == residency::kNoPlace && (tier == STW_TIER_HOST || tier == STW_TIER_NVME)) {
        place = tier == STW_TIER_HOST ? machine_.tiers.host() : machine_.tiers.nvme();
    }
    if (place == residency::kNoPlace) {
        return Status::error(STW_ERROR_INVALID, "there is no tier %u (%s) with device %u", tier,
                             report::tier_name(tier), device);
    }
    MutexLock lock(dispatch_.mutex());
    const residency::PlaceUsage usage = dispatch_.core.usage(place);
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    const bool host = machine_.tiers.is_host(place);
    stats.staging_bytes = host ? machine_.staging_bytes : 0;
    if (host && machine_.scratch) {
        const memory::Scratch::Usage scratch = machine_.scratch->usage();
        stats.scratch_bytes = scratch.bytes;
        stats.scratch_used_bytes = scratch.used_bytes;
    }
    if (host && machine_.pins) {
        const memory::HostPins::Stats pins = machine_.pins->stats();
        stats.registered_bytes = pins.bytes;
        stats.registering_bytes = pins.open_bytes;
        stats.registered_ns = pins.ns;
        stats.refused_slabs = pins.refused;
    }
    if (const memory::AliasTotals *shown = machine_.tiers[place].alias_totals.get()) {
        stats.remapped_bytes = shown->bytes;
        stats.remapped_ns = shown->ns;
    }
    stats.adopted_bytes = reductions_.adopted_at(place);
    const uint64_t kept = host ? machine_.kept_bytes() : 0;
    stats.budget_bytes = dispatch_.core.settled_budget(place) * machine_.block_bytes + kept;
    stats.used_bytes = usage.used_blocks * machine_.block_bytes + kept;
    stats.peak_bytes = usage.peak_blocks * machine_.block_bytes + kept;
    stats.pinned_bytes = usage.pinned_blocks * machine_.block_bytes;
    stats.dirty_bytes = usage.dirty_blocks * machine_.block_bytes;
    if (host) {
        stats.metadata_bytes = metadata_.metadata_bytes();
        stats.metadata_budget_bytes = metadata_.metadata_budget;
    }
    stats.tensors = handles_.count();
    stats.evictions = usage.evictions;
    stats.planned_bytes = usage.planned.brought * machine_.block_bytes;
    stats.planned_used_bytes = usage.planned.used * machine_.block_bytes;
    stats.planned_wasted_bytes = usage.planned.wasted * machine_.block_bytes;
    if (victims_.scoring) {
        stats.policy_calls = victims_.scoring->calls[place];
        stats.policy_scores = victims_.scoring->scored[place];
    }
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        const bool here = views_.is_open(index) && views_.slot(index).place == place;
        stats.open_views += here;
        stats.exports += here && views_.slot(index).exported;
    }
    stats.struct_size = std::min<uint32_t>(stats_out->struct_size, sizeof stats);
    std::memcpy(stats_out, &stats, stats.struct_size);
    return {};
}

Status Reporter::link_stats(uint32_t link, uint32_t device, stw_link_stats *stats_out)
{
    const bool known =
        std::find(std::begin(kLinkNumbers), std::end(kLinkNumbers), link) != std::end(kLinkNumbers);
    if (link == STW_LINK_RANKS) return meters_.rank_stats(stats_out);
    const PlaceId memory =
        ends_at_host(link) ? machine_.tiers.host() : static_cast<PlaceId>(device);
    if (!known || (!ends_at_host(link) && device >= std::max<uint32_t>(machine_.tiers.host(), 1))) {
        return Status::error(STW_ERROR_INVALID, "there is no link %u of device %u", link, device);
    }
    const transfer::LinkStats from =
        machine_.engine->link_stats(static_cast<transfer::Link>(link), memory);
    stw_link_stats stats = STW_LINK_STATS_INIT;
    stats.bytes = from.bytes;
    stats.transfers = from.transfers;
    stats.busy_ns = from.busy_ns;
    stats.measured_bytes_per_s = from.measured_bytes_per_s;
    stats.errors = from.errors;
    stats.retries = from.retries;
    stats.struct_size = std::min<uint32_t>(stats_out->struct_size, sizeof stats);
    std::memcpy(stats_out, &stats, stats.struct_size);
    return {};
}

Status Reporter::device_info(uint32_t device, stw_device_info *info_out)
{
    if (!machine_.tiers.is_device(device) || !machine_.tiers[device].memory) {
        return Status::error(STW_ERROR_INVALID, "there is no device %u", device);
    }
    const memory::Tier &place = machine_.tiers[device];
    stw_device_info info{};
    info.struct_size = std::min<uint32_t>(info_out->struct_size, sizeof info);
    info.ordinal = place.ordinal;
    if (place.maps) info.flags |= STW_DEVICE_STABLE_ADDRESS;
    if (place.storage_reaches()) info.flags |= STW_DEVICE_UNIFIED;
    if (place.streams) info.flags |= STW_DEVICE_STREAMS;
    if (place.computes) info.flags |= STW_DEVICE_UPDATES;
    info.granule_bytes = static_cast<uint32_t>(machine_.block_bytes);
    std::snprintf(info.driver, sizeof info.driver, "%s", place.driver.c_str());
    const bool pretends = place.driver == "cpu-discrete";
    std::snprintf(info.name, sizeof info.name, "%s",
                  pretends           ? "this machine's memory, as if across a bus"
                  : place.cpu_access ? "this machine's memory"
                  : place.direct     ? "memory that it shares with the CPU"
                                     : "memory of its own");
    std::memcpy(info_out, &info, std::min<size_t>(info_out->struct_size, sizeof info));
    return {};
}

// A module that cannot be loaded gives the same reason for every kind; if it only lacks some
// kinds, the reason of another kind is the better one.
Status Reporter::driver_info(const char *driver, stw_driver_info *info_out)
{
    const stw_memory_ops *memory = nullptr;
    const stw_storage_ops *storage = nullptr;
    const stw_collective_ops *collective = nullptr;
    stw_driver_error errors[3] = {STW_DRIVER_ERROR_INIT, STW_DRIVER_ERROR_INIT,
                                  STW_DRIVER_ERROR_INIT};
    const stw_status statuses[3] = {drivers::find_driver(driver, &storage, &errors[0]),
                                    drivers::find_driver(driver, &collective, &errors[1]),
                                    drivers::find_driver(driver, &memory, &errors[2])};
    if (!memory && !storage && !collective) {
        size_t at = 0;
        while (at < 2 && statuses[at] == STW_ERROR_UNSUPPORTED) ++at;
        Status status = Status::error(statuses[at], "%s", errors[at].sentence);
        status.mutable_detail().os_errno = errors[at].os_errno;
        return status;
    }
    stw_driver_info info{};
    info.struct_size = std::min<uint32_t>(info_out->struct_size, sizeof info);
    if (memory) info.kinds |= STW_DRIVER_MEMORY;
    if (storage) info.kinds |= STW_DRIVER_STORAGE;
    if (collective) info.kinds |= STW_DRIVER_COLLECTIVE;
    info.built_in = drivers::memory_driver(driver) || drivers::storage_driver(driver) ? 1 : 0;
    std::snprintf(info.name, sizeof info.name, "%s",
                  memory    ? memory->name
                  : storage ? storage->name
                            : collective->name);
    std::memcpy(info_out, &info, info.struct_size);
    return {};
}

void Reporter::report_drivers(report::ReportData &data)
{
    for (PlaceId place = 0; place <= machine_.tiers.host(); ++place) {
        const memory::Tier &at = machine_.tiers[place];
        if (!at.memory) continue;
        const stw_memory_info info = at.info();
        report::DriverReport driver;
        driver.kind = "memory";
        driver.name = at.driver;
        driver.used_for =
            machine_.tiers.is_host(place) ? "host" : format_text("device %u", at.device);
        driver.remark = at.remark;
        const std::string pins = machine_.pins ? machine_.pins->remark(at.device) : "";
        if (at.streams && !pins.empty()) driver.remark += (at.remark.empty() ? "" : " ") + pins;
        driver.bytes = info.bytes;
        driver.locked = info.locked != 0;
        driver.huge_pages = info.huge_pages != 0;
        driver.numa_node = info.numa_node;
        data.drivers.push_back(std::move(driver));
    }
    const store::Store *store = machine_.engine->store();
    for (uint32_t path = 0; store && path < store->paths(); ++path) {
        report::DriverReport driver;
        driver.kind = "storage";
        driver.name = store->ops(path).name;
        driver.used_for = store->name(path);
        driver.file_system = store->info(path).file_system;
        driver.remark = store->remark(path);
        driver.bytes = store->info(path).bytes;
        driver.queue_depth = store->info(path).queue_depth;
        data.drivers.push_back(std::move(driver));
    }
    data.profile = profile;
    for (uint32_t path = 0; store && path < store->paths(); ++path) {
        report::ProfileDirectoryReport &directory = data.profile.directories[path];
        directory.read_request_bytes = store->requests(path, true).bytes;
        directory.read_queue_depth = store->requests(path, true).depth;
        directory.write_request_bytes = store->requests(path, false).bytes;
        directory.write_queue_depth = store->requests(path, false).depth;
    }
}

// Remarks on single tensors: sums in half precision, accesses without a view.
void Reporter::report_tensors(report::ReportData &data) const
{
    for (const stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
        const uint64_t contributions = tensor->notes.contributions;
        if (contributions == 0 || tensor->dtype == STW_F32) continue;
        data.half_sums.push_back({tensor->name, tensor->dtype, contributions});
    }
    for (const stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
        const TensorNotes &notes = tensor->notes;
        if (notes.read_touches + notes.write_touches == 0) continue;
        data.touches.push_back({tensor->name, notes.read_touches, notes.write_touches});
    }
}

void Reporter::report_phases(report::ReportData &data) const
{
    for (uint32_t i = 0; i < recorder_.phases.size(); ++i) {
        const Phase &from = *recorder_.phases[i];
        report::PhaseReport phase;
        phase.name = from.name;
        phase.number = i;
        phase.steps = from.totals.steps();
        phase.aborted = from.aborted;
        phase.last = from.totals.last();
        phase.mean = from.totals.mean();
        phase.last_bound = from.totals.last_bound();
        data.phases.push_back(std::move(phase));
    }
}

void Reporter::fill_report(report::ReportData &data)
{
    data.name = machine_.name;
    data.version = stw_version_string();
    data.block_bytes = machine_.block_bytes;
    data.elapsed_ns = dispatch_.now() - machine_.opened_ns;
    data.threads = optimizers_.update_threads;
    data.threads_why = optimizers_.update_threads_why;
    for (PlaceId place = 0; place <= machine_.tiers.nvme(); ++place) {
        const memory::Tier &at = machine_.tiers[place];
        report::TierReport tier;
        tier.tier = static_cast<uint32_t>(at.kind);
        tier.device = at.device;
        if (machine_.tiers.place_of(tier.tier, tier.device) == residency::kNoPlace) continue;
        (void)tier_stats(tier.tier, tier.device, &tier.stats);
        if (machine_.tiers.is_host(place) && machine_.scratch)
            tier.scratch_allocator = machine_.scratch->allocator();
        MutexLock lock(dispatch_.mutex());
        tier.promised_bytes = dispatch_.core.usage(place).promised_blocks * machine_.block_bytes;
        data.tiers.push_back(tier);
    }
    for (const observe::LinkTotal &total : meters_.link_totals()) {
        report::LinkReport link;
        link.link = total.link;
        link.device = total.device;
        if (link_stats(total.link, total.device, &link.stats).ok()) data.links.push_back(link);
    }
    report_drivers(data);
    data.history.timeline = machine_.timeline->snapshot();
    const update::PipelineStats update = machine_.pipeline->stats();
    MutexLock lock(dispatch_.mutex());
    data.update = optimizers_.updates;
    data.update.chunks = update.chunks;
    data.update.early = update.early;
    data.update.undone = update.undone;
    data.update.bytes = update.read_bytes + update.written_bytes;
    data.update.busy_ns = update.busy_ns;
    data.update.threads = optimizers_.update_threads;
    report_tensors(data);
    report_phases(data);
    plans_.report_plans(data);
    data.errors_total = errors_.count();
    for (const auto &[tensor, status] : errors_.by_tensor()) {
        data.errors.push_back(
            {status.code(), status.detail() ? status.detail()->tensor : "", status.sentence(), 1});
    }
    data.log_suppressed = dispatch_.log.suppressed();
    data.timeline_spans = machine_.timeline->recorded();
    data.timeline_lost = machine_.timeline->overwritten();
    report_waste(data);
    report_history(data.history);
}

void Reporter::report_history(report::HistoryData &data) const
{
    data.origin_ns = machine_.opened_ns;
    data.steps = steps_.history.newest();
    data.steps_total = steps_.history.added();
    data.stalls = recorder_.stalls;
    data.tensors = tensor_names();
}

std::vector<report::TensorName> Reporter::tensor_names() const
{
    std::vector<report::TensorName> names(handles_.ids());
    for (const stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
        names[tensor->id] = {tensor->name, tensor->notes.created_ns};
    }
    return names;
}

void Reporter::report_waste(report::ReportData &data) const
{
    std::map<uint32_t, report::WasteReport> roles;
    std::set<residency::PackId> seen;
    for (const stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
        report::WasteReport &role = roles[tensor->role];
        role.role = tensor->role;
        ++role.tensors;
        role.tensor_bytes += tensor->bytes;
        if (!seen.insert(dispatch_.core.pack_of(tensor->id)).second) continue;
        role.charged_bytes += dispatch_.core.pack_blocks(tensor->id) * machine_.block_bytes;
    }
    for (auto &[number, role] : roles) data.waste.push_back(role);
}

Status Reporter::write_report(const char *path)
{
    report::ReportData data;
    fill_report(data);
    return report::write_report(path, data);
}

Status Reporter::write_timeline(const char *path)
{
    report::TimelineData data;
    data.name = machine_.name;
    data.origin_ns = machine_.opened_ns;
    {
        MutexLock lock(dispatch_.mutex());
        for (const std::unique_ptr<Phase> &phase : recorder_.phases)
            data.phase_names.push_back(phase->name);
        data.tensors = tensor_names();
    }
    data.snapshot = machine_.timeline->snapshot();
    return report::write_timeline(path, data);
}

}  // namespace stepwell
