// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/machine/meters.h"

#include "lib/observe/step_stats.h"
#include "lib/observe/timeline.h"
#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/machine.h"
#include "lib/transfer/engine.h"

#include <algorithm>
#include <cstring>

namespace stepwell {

using residency::PlaceId;

std::vector<observe::LinkTotal> Meters::link_totals() const
{
    std::vector<observe::LinkTotal> totals;
    for (const uint32_t link : kLinkNumbers) {
        const PlaceId first = ends_at_host(link) ? machine_.tiers.host() : 0;
        const PlaceId end = ends_at_host(link) ? machine_.tiers.host() + 1 : machine_.tiers.host();
        for (PlaceId memory = first; memory < end; ++memory) {
            const transfer::LinkStats stats =
                machine_.engine->link_stats(static_cast<transfer::Link>(link), memory);
            const uint32_t device = ends_at_host(link) ? 0 : memory;
            totals.push_back({link, device, stats.bytes, stats.measured_bytes_per_s});
        }
    }
    // The time of a collective is mostly waiting for other ranks: it gives no bandwidth and no
    // bound.
    if (machine_.ranks) totals.push_back({STW_LINK_RANKS, 0, rank_totals().bytes, 0});
    return totals;
}

// Includes the replicas'.
collective::GroupTotals Meters::rank_totals() const
{
    collective::GroupTotals totals = machine_.ranks->group.totals();
    if (machine_.ranks->replicas) totals += machine_.ranks->replicas->totals();
    return totals;
}

// Records on the timeline what has moved between ranks for the tensor, if anything has.
void Meters::record_ranks(residency::TensorId tensor, residency::Instant begin,
                          uint64_t bytes_before)
{
    observe::Span span;
    span.start_ns = begin;
    span.end_ns = dispatch_.now();
    span.kind = observe::SpanKind::kTransfer;
    span.lane = STW_LINK_RANKS;
    span.id = observe::transfer_id(0, tensor);
    span.bytes = rank_totals().bytes - bytes_before;
    if (span.bytes > 0) machine_.timeline->record(span);
}

// Between this rank and the others; each collective counts as a transfer.
Status Meters::rank_stats(stw_link_stats *stats_out) const
{
    if (!machine_.ranks) {
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

}  // namespace stepwell
