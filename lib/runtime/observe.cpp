// SPDX-License-Identifier: Apache-2.0
// What the runtime tells about itself: totals per tier and link, the report, the timeline.
#include "lib/runtime/phases.h"
#include "lib/runtime/ranks.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/scoring.h"

#include "drivers/registry.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace stepwell {
namespace {

using residency::PlaceId;

constexpr uint32_t kLinkNumbers[] = {STW_LINK_NVME_TO_HOST,   STW_LINK_HOST_TO_NVME,
                                     STW_LINK_HOST_TO_DEVICE, STW_LINK_DEVICE_TO_HOST,
                                     STW_LINK_NVME_TO_DEVICE, STW_LINK_DEVICE_TO_NVME};

bool ends_at_host(uint32_t link)
{
    return link == STW_LINK_NVME_TO_HOST || link == STW_LINK_HOST_TO_NVME;
}

}  // namespace

std::vector<observe::LinkTotal> Runtime::link_totals() const
{
    std::vector<observe::LinkTotal> totals;
    for (const uint32_t link : kLinkNumbers) {
        const PlaceId first = ends_at_host(link) ? tiers_.host() : 0;
        const PlaceId end = ends_at_host(link) ? tiers_.host() + 1 : tiers_.host();
        for (PlaceId memory = first; memory < end; ++memory) {
            const transfer::LinkStats stats =
                engine_->link_stats(static_cast<transfer::Link>(link), memory);
            const uint32_t device = ends_at_host(link) ? 0 : memory;
            totals.push_back({link, device, stats.bytes, stats.measured_bytes_per_s});
        }
    }
    // How long collectives take says how long ranks wait for each other: no bandwidth, no bound.
    if (ranks_.body) totals.push_back({STW_LINK_RANKS, 0, rank_totals().bytes, 0});
    return totals;
}

Status Runtime::tier_stats(uint32_t tier, uint32_t device, stw_tier_stats *stats_out)
{
    PlaceId place = tiers_.place_of(tier, device);
    if (place == residency::kNoPlace && (tier == STW_TIER_HOST || tier == STW_TIER_NVME)) {
        place = tier == STW_TIER_HOST ? tiers_.host() : tiers_.nvme();
    }
    if (place == residency::kNoPlace) {
        return Status::error(STW_ERROR_INVALID, "there is no tier %u (%s) with device %u", tier,
                             report::tier_name(tier), device);
    }
    MutexLock lock(dispatch_.mutex());
    const residency::PlaceUsage usage = dispatch_.core.usage(place);
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    const bool host = tiers_.is_host(place);
    stats.staging_bytes = host ? staging_bytes_ : 0;
    if (host && scratch_) {
        const memory::Scratch::Usage scratch = scratch_->usage();
        stats.scratch_bytes = scratch.bytes;
        stats.scratch_used_bytes = scratch.used_bytes;
    }
    if (host && pins_) {
        const memory::HostPins::Stats pins = pins_->stats();
        stats.registered_bytes = pins.bytes;
        stats.registering_bytes = pins.open_bytes;
        stats.registered_ns = pins.ns;
        stats.refused_slabs = pins.refused;
    }
    if (const memory::ShownTotals *shown = tiers_[place].shown.get()) {
        stats.remapped_bytes = shown->bytes;
        stats.remapped_ns = shown->ns;
    }
    stats.adopted_bytes = host ? adopted_bytes_ : 0;
    const uint64_t kept = host ? kept_bytes() : 0;
    stats.budget_bytes = usage.budget_blocks * block_bytes_ + kept;
    stats.used_bytes = usage.used_blocks * block_bytes_ + kept;
    stats.peak_bytes = usage.peak_blocks * block_bytes_ + kept;
    stats.pinned_bytes = usage.pinned_blocks * block_bytes_;
    stats.dirty_bytes = usage.dirty_blocks * block_bytes_;
    if (host) {
        stats.metadata_bytes = metadata_bytes();
        stats.metadata_budget_bytes = metadata_budget_;
    }
    stats.tensors = handles_.count();
    stats.evictions = usage.evictions;
    stats.planned_bytes = usage.planned.brought * block_bytes_;
    stats.planned_used_bytes = usage.planned.used * block_bytes_;
    stats.planned_wasted_bytes = usage.planned.wasted * block_bytes_;
    if (scoring_) {
        stats.policy_calls = scoring_->calls[place];
        stats.policy_scores = scoring_->scored[place];
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

Status Runtime::link_stats(uint32_t link, uint32_t device, stw_link_stats *stats_out)
{
    const bool known =
        std::find(std::begin(kLinkNumbers), std::end(kLinkNumbers), link) != std::end(kLinkNumbers);
    if (link == STW_LINK_RANKS) return rank_stats(stats_out);
    const PlaceId memory = ends_at_host(link) ? tiers_.host() : static_cast<PlaceId>(device);
    if (!known || (!ends_at_host(link) && device >= std::max<uint32_t>(tiers_.host(), 1))) {
        return Status::error(STW_ERROR_INVALID, "there is no link %u of device %u", link, device);
    }
    const transfer::LinkStats from = engine_->link_stats(static_cast<transfer::Link>(link), memory);
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

// With the replicas'.
collective::GroupTotals Runtime::rank_totals() const
{
    collective::GroupTotals totals = ranks_->group.totals();
    if (ranks_->replicas) totals += ranks_->replicas->totals();
    return totals;
}

// On the timeline: what has moved between ranks for the tensor, if anything has.
void Runtime::record_ranks(residency::TensorId tensor, residency::Instant begin,
                           uint64_t bytes_before)
{
    observe::Span span;
    span.start_ns = begin;
    span.end_ns = dispatch_.now();
    span.kind = observe::SpanKind::kTransfer;
    span.lane = STW_LINK_RANKS;
    span.id = observe::transfer_id(0, tensor);
    span.bytes = rank_totals().bytes - bytes_before;
    if (span.bytes > 0) timeline_->record(span);
}

// Between this rank and the others; a transfer is a collective.
Status Runtime::rank_stats(stw_link_stats *stats_out) const
{
    if (!ranks_.body) {
        return Status::error(STW_ERROR_UNSUPPORTED, "this runtime is one rank: no link to others");
    }
    const collective::GroupTotals totals = rank_totals();
    stw_link_stats stats = STW_LINK_STATS_INIT;
    stats.bytes = totals.bytes;
    stats.transfers = totals.collectives;
    stats.busy_ns = totals.busy_ns;
    const double seconds = static_cast<double>(totals.busy_ns) * 1e-9;
    if (totals.busy_ns > 0) {
        stats.measured_bytes_per_s =
            static_cast<uint64_t>(static_cast<double>(totals.bytes) / seconds);
    }
    stats.errors = totals.errors;
    stats.struct_size = std::min<uint32_t>(stats_out->struct_size, sizeof stats);
    std::memcpy(stats_out, &stats, stats.struct_size);
    return {};
}

Status Runtime::device_info(uint32_t device, stw_device_info *info_out)
{
    if (!tiers_.is_device(device) || !tiers_[device].memory) {
        return Status::error(STW_ERROR_INVALID, "there is no device %u", device);
    }
    const memory::Tier &place = tiers_[device];
    stw_device_info info{};
    info.struct_size = std::min<uint32_t>(info_out->struct_size, sizeof info);
    info.ordinal = place.ordinal;
    if (place.maps) info.flags |= STW_DEVICE_STABLE_ADDRESS;
    if (place.storage_reaches()) info.flags |= STW_DEVICE_UNIFIED;
    if (place.streams) info.flags |= STW_DEVICE_STREAMS;
    if (place.computes) info.flags |= STW_DEVICE_UPDATES;
    info.granule_bytes = static_cast<uint32_t>(block_bytes_);
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

// A module that is refused is refused as every kind; of one that lacks some kinds the reason of
// another is the better one.
Status Runtime::driver_info(const char *driver, stw_driver_info *info_out)
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

std::string Runtime::describe_views(uint32_t lines_max)
{
    std::string text;
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        if (lines_max-- == 0) return text + "; ...";
        const ViewSlot &view = views_.slot(index);
        const uint32_t owner = view.owner;
        const bool sleeps = std::any_of(sleepers_.begin(), sleepers_.end(),
                                        [&](const auto &at) { return at.owner == owner; });
        text += format_text("%s%s to %s, of thread %u%s%s", text.empty() ? "" : "; ",
                            tensor_text(view.tensor->name).c_str(),
                            view.access == STW_READ ? "read" : "write", owner,
                            view.exported ? ", exported to DLPack" : "",
                            sleeps ? ", which waits itself" : "");
    }
    return text;
}

// A timeout of the library's own work: what that waits for, and who has it.
Status Runtime::tell_waiting(Status status)
{
    constexpr uint32_t kEach = 4;
    if (status.code() != STW_ERROR_TIMEOUT) return status;
    const std::string transfers = engine_->describe_in_flight(kEach);
    MutexLock lock(dispatch_.mutex());
    std::string &sentence = status.mutable_detail().sentence;
    const auto add = [&](const char *what, const std::string &text) {
        if (!text.empty()) sentence += format_text("; %s: %s", what, text.c_str());
    };
    add("in flight", transfers);
    add("waiting", dispatch_.core.describe_waiting(kEach));
    add("open views", describe_views(kEach));
    return status;
}

// What was in the way when a timeout passed. What a device still owes is a warning, however few
// calls met it; a wait for views of the program is the program's matter.
void Runtime::log_timeout(const Status &status)
{
    constexpr uint32_t kLinesMax = 16;
    if (status.code() != STW_ERROR_TIMEOUT) return;
    std::string waiting;
    std::string views;
    {
        MutexLock lock(dispatch_.mutex());
        waiting = dispatch_.core.describe_waiting(kLinesMax);
        views = describe_views(kLinesMax);
    }
    const bool device = engine_->jobs_in_flight() > 0;
    const uint32_t level = device ? STW_LOG_WARNING : STW_LOG_INFO;
    dispatch_.log.print(level, "timeout", "%s In flight: %s", status.sentence(),
                        engine_->describe_in_flight(kLinesMax).c_str());
    if (!waiting.empty()) dispatch_.log.print(level, "timeout", "Waiting: %s", waiting.c_str());
    if (!views.empty()) dispatch_.log.print(level, "timeout", "Open views: %s", views.c_str());
}

void Runtime::report_drivers(report::ReportData &data)
{
    for (PlaceId place = 0; place <= tiers_.host(); ++place) {
        const memory::Tier &at = tiers_[place];
        if (!at.memory) continue;
        const stw_memory_info info = at.info();
        report::DriverReport driver;
        driver.kind = "memory";
        driver.name = at.driver;
        driver.used_for = tiers_.is_host(place) ? "host" : format_text("device %u", at.device);
        driver.remark = at.remark;
        const std::string pins = pins_ ? pins_->remark(at.device) : "";
        if (at.streams && !pins.empty()) driver.remark += (at.remark.empty() ? "" : " ") + pins;
        driver.bytes = info.bytes;
        driver.locked = info.locked != 0;
        driver.huge_pages = info.huge_pages != 0;
        driver.numa_node = info.numa_node;
        data.drivers.push_back(std::move(driver));
    }
    const store::Store *store = engine_->store();
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
    data.profile = profile_;
    for (uint32_t path = 0; store && path < store->paths(); ++path) {
        report::ProfileDirectoryReport &directory = data.profile.directories[path];
        directory.read_request_bytes = store->requests(path, true).bytes;
        directory.read_queue_depth = store->requests(path, true).depth;
        directory.write_request_bytes = store->requests(path, false).bytes;
        directory.write_queue_depth = store->requests(path, false).depth;
    }
}

void Runtime::fill_report(report::ReportData &data)
{
    data.name = name_;
    data.version = stw_version_string();
    data.block_bytes = block_bytes_;
    data.elapsed_ns = dispatch_.now() - opened_ns_;
    data.threads = update_threads_;
    data.threads_why = update_threads_why_;
    for (PlaceId place = 0; place <= tiers_.nvme(); ++place) {
        const memory::Tier &at = tiers_[place];
        report::TierReport tier;
        tier.tier = static_cast<uint32_t>(at.kind);
        tier.device = at.device;
        if (tiers_.place_of(tier.tier, tier.device) == residency::kNoPlace) continue;
        (void)tier_stats(tier.tier, tier.device, &tier.stats);
        if (tiers_.is_host(place) && scratch_) tier.scratch_allocator = scratch_->allocator();
        MutexLock lock(dispatch_.mutex());
        tier.promised_bytes = dispatch_.core.usage(place).promised_blocks * block_bytes_;
        data.tiers.push_back(tier);
    }
    for (const observe::LinkTotal &total : link_totals()) {
        report::LinkReport link;
        link.link = total.link;
        link.device = total.device;
        if (link_stats(total.link, total.device, &link.stats).ok()) data.links.push_back(link);
    }
    report_drivers(data);
    data.history.timeline = timeline_->snapshot();
    const update::PipelineStats update = pipeline_->stats();
    MutexLock lock(dispatch_.mutex());
    data.update = updates_;
    data.update.chunks = update.chunks;
    data.update.bytes = update.read_bytes + update.written_bytes;
    data.update.busy_ns = update.busy_ns;
    data.update.threads = update_threads_;
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
    for (uint32_t i = 0; i < phases_.size(); ++i) {
        report::PhaseReport phase;
        phase.name = phases_[i]->name;
        phase.number = i;
        phase.steps = phases_[i]->totals.steps();
        phase.aborted = phases_[i]->aborted;
        phase.last = phases_[i]->totals.last();
        phase.mean = phases_[i]->totals.mean();
        phase.last_bound = phases_[i]->totals.last_bound();
        data.phases.push_back(std::move(phase));
    }
    report_plans(data);
    data.errors_total = errors_.count();
    for (const auto &[tensor, status] : errors_.by_tensor()) {
        data.errors.push_back(
            {status.code(), status.detail() ? status.detail()->tensor : "", status.sentence(), 1});
    }
    data.log_suppressed = dispatch_.log.suppressed();
    data.timeline_spans = timeline_->recorded();
    data.timeline_lost = timeline_->overwritten();
    report_waste(data);
    report_history(data.history);
}

// Under the lock.
void Runtime::report_history(report::HistoryData &data) const
{
    data.origin_ns = opened_ns_;
    data.steps = steps_.newest();
    data.steps_total = steps_.added();
    data.stalls = stalls_;
    data.tensors = tensor_names();
}

// Under the lock.
std::vector<report::TensorName> Runtime::tensor_names() const
{
    std::vector<report::TensorName> names(handles_.ids());
    for (const stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
        names[tensor->id] = {tensor->name, tensor->notes.created_ns};
    }
    return names;
}

void Runtime::report_waste(report::ReportData &data) const
{
    std::map<uint32_t, report::WasteReport> roles;
    std::set<residency::PackId> seen;
    for (const stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
        report::WasteReport &role = roles[tensor->role];
        role.role = tensor->role;
        ++role.tensors;
        role.tensor_bytes += tensor->bytes;
        if (!seen.insert(dispatch_.core.pack_of(tensor->id)).second) continue;
        role.charged_bytes += dispatch_.core.pack_blocks(tensor->id) * block_bytes_;
    }
    for (auto &[number, role] : roles) data.waste.push_back(role);
}

Status Runtime::write_report(const char *path)
{
    report::ReportData data;
    fill_report(data);
    return report::write_report(path, data);
}

Status Runtime::write_timeline(const char *path)
{
    report::TimelineData data;
    data.name = name_;
    data.origin_ns = opened_ns_;
    {
        MutexLock lock(dispatch_.mutex());
        for (const std::unique_ptr<Phase> &phase : phases_) data.phase_names.push_back(phase->name);
        data.tensors = tensor_names();
    }
    data.snapshot = timeline_->snapshot();
    return report::write_timeline(path, data);
}

}  // namespace stepwell
