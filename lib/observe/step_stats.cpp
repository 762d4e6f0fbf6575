// SPDX-License-Identifier: Apache-2.0
// Step accounting: differences of totals, sums by cause, and the bound. Pure arithmetic; the only
// shared state is the sum per stall cause.
#include "lib/observe/step_stats.h"

#include "lib/support/assert.h"

#include <algorithm>
#include <iterator>

namespace stepwell::observe {

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

// Bytes times 1e9 would overflow from 18 GB on, so whole seconds apart.
uint64_t time_of(uint64_t bytes, uint64_t bytes_per_s)
{
    if (bytes_per_s == 0) return 0;
    const uint64_t seconds = bytes / bytes_per_s;
    const double rest = static_cast<double>(bytes % bytes_per_s) / static_cast<double>(bytes_per_s);
    if (seconds >= UINT64_MAX / kSecondNs) return UINT64_MAX;
    return seconds * kSecondNs + static_cast<uint64_t>(rest * kSecondNs);
}

void add_bytes(uint32_t link, uint64_t bytes, stw_step_stats *stats)
{
    switch (link) {
    case STW_LINK_NVME_TO_HOST:
    case STW_LINK_NVME_TO_DEVICE: stats->nvme_read_bytes += bytes; break;
    case STW_LINK_HOST_TO_NVME:
    case STW_LINK_DEVICE_TO_NVME: stats->nvme_write_bytes += bytes; break;
    case STW_LINK_HOST_TO_DEVICE: stats->host_to_device_bytes += bytes; break;
    case STW_LINK_DEVICE_TO_HOST: stats->device_to_host_bytes += bytes; break;
    case STW_LINK_RANKS: stats->collective_bytes += bytes; break;
    default: break;
    }
}

// The fields that add up over steps.
constexpr uint64_t stw_step_stats::*kSums[] = {
    &stw_step_stats::wall_ns,
    &stw_step_stats::bound_ns,
    &stw_step_stats::stall_ns,
    &stw_step_stats::stall_nvme_ns,
    &stw_step_stats::stall_host_device_ns,
    &stw_step_stats::stall_collective_ns,
    &stw_step_stats::stall_room_ns,
    &stw_step_stats::stall_update_ns,
    &stw_step_stats::nvme_read_bytes,
    &stw_step_stats::nvme_write_bytes,
    &stw_step_stats::host_to_device_bytes,
    &stw_step_stats::device_to_host_bytes,
    &stw_step_stats::collective_bytes,
};
// A field added to the public struct must be added above too.
constexpr size_t kOtherBytes = 2 * sizeof(uint32_t) + 2 * sizeof(uint64_t);
static_assert(sizeof(stw_step_stats) == kOtherBytes + std::size(kSums) * sizeof(uint64_t));

}  // namespace

const char *stall_name(Stall stall)
{
    switch (stall) {
    case Stall::kNvme: return "nvme";
    case Stall::kHostDevice: return "host_device";
    case Stall::kCollective: return "collective";
    case Stall::kRoom: return "room";
    case Stall::kUpdate: return "update";
    }
    return "unknown";
}

void StepAccount::begin(uint64_t now_ns, std::span<const LinkTotal> links)
{
    STW_ASSERT(links.size() <= kLinkTotalsMax);
    begin_ns_ = now_ns;
    links_ = static_cast<uint32_t>(std::min<size_t>(links.size(), kLinkTotalsMax));
    for (uint32_t i = 0; i < links_; ++i) begin_bytes_[i] = links[i].bytes;
    for (auto &stall : stalls_) stall.store(0, std::memory_order_relaxed);
}

StepBound StepAccount::end(uint64_t now_ns, std::span<const LinkTotal> links,
                           stw_step_stats *stats_out)
{
    STW_ASSERT(links.size() == links_);
    stw_step_stats stats{};
    stats.wall_ns = now_ns - begin_ns_;
    const auto stall = [this](Stall cause) {
        return stalls_[static_cast<uint32_t>(cause)].load(std::memory_order_relaxed);
    };
    stats.stall_nvme_ns = stall(Stall::kNvme);
    stats.stall_host_device_ns = stall(Stall::kHostDevice);
    stats.stall_collective_ns = stall(Stall::kCollective);
    stats.stall_room_ns = stall(Stall::kRoom);
    stats.stall_update_ns = stall(Stall::kUpdate);
    stats.stall_ns = stats.stall_nvme_ns + stats.stall_host_device_ns + stats.stall_collective_ns +
                     stats.stall_room_ns + stats.stall_update_ns;

    StepBound bound;
    bound.compute_ns = stats.wall_ns - std::min(stats.wall_ns, stats.stall_ns);
    for (uint32_t i = 0; i < std::min<size_t>(links.size(), links_); ++i) {
        const uint64_t bytes = links[i].bytes - begin_bytes_[i];
        add_bytes(links[i].link, bytes, &stats);
        if (links[i].link < kLinkTable) bound.link_bytes[links[i].link] += bytes;
        const uint64_t ns = time_of(bytes, links[i].bytes_per_s);
        if (ns <= bound.link_ns) continue;
        bound.link_ns = ns;
        bound.link = links[i].link;
        bound.device = links[i].device;
    }
    bound.by_link = bound.link_ns > bound.compute_ns;
    bound.ns = std::max(bound.link_ns, bound.compute_ns);
    stats.bound_ns = bound.ns;
    stats.struct_size = stats_out->struct_size;
    stats.planned = stats_out->planned;
    stats.step = stats_out->step;
    stats.least_ns = stats_out->least_ns;
    *stats_out = stats;
    return bound;
}

void PhaseAccount::add(const stw_step_stats &stats, const StepBound &bound)
{
    ++steps_;
    planned_ += stats.planned != 0;
    last_ = stats;
    last_bound_ = bound;
    for (const auto field : kSums) sum_.*field += stats.*field;
}

stw_step_stats PhaseAccount::mean() const
{
    stw_step_stats mean{};
    if (steps_ == 0) return mean;
    mean.struct_size = sizeof mean;
    mean.planned = planned_ == steps_;
    mean.step = steps_;
    for (const auto field : kSums) mean.*field = sum_.*field / steps_;
    return mean;
}

int largest_stall(const stw_step_stats &stats)
{
    // In the order of enum Stall.
    const uint64_t by_cause[kStalls] = {stats.stall_nvme_ns, stats.stall_host_device_ns,
                                        stats.stall_collective_ns, stats.stall_room_ns,
                                        stats.stall_update_ns};
    const auto *largest = std::max_element(by_cause, by_cause + kStalls);
    return *largest == 0 ? -1 : static_cast<int>(largest - by_cause);
}

}  // namespace stepwell::observe
