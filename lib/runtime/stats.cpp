// SPDX-License-Identifier: Apache-2.0
// The statistics page of a runtime: filled once a second by the thread of the timer, from totals
// that are kept anyway. Hits cost nothing for it.
#include "lib/report/live.h"
#include "lib/runtime/phases.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/stats_page.h"

#include <unistd.h>

namespace stepwell {

using residency::PlaceId;

constexpr residency::Instant kPublishNs = 1'000'000'000;

// What was published last, for the rates of the next one.
struct Runtime::Stats {
    std::unique_ptr<StatsPage> page;
    report::LiveData last;
    bool published = false;
};

Runtime::StatsOwner::StatsOwner() = default;
Runtime::StatsOwner::~StatsOwner() = default;

// A page that cannot be had is no reason not to train.
void Runtime::open_stats()
{
    Result<std::unique_ptr<StatsPage>> page = StatsPage::create();
    if (!page.ok()) {
        dispatch_.log.print(STW_LOG_WARNING, "stats", "%s", page.status().sentence());
        return;
    }
    auto stats = std::make_unique<Stats>();
    stats->page = page.take();
    stats->last.process = static_cast<uint64_t>(getpid());
    stats->last.process_start = process_start_ticks();
    stats_.body = std::move(stats);
    publish_stats();
}

// By the opening thread, then by the timer's alone.
void Runtime::publish_stats()
{
    Stats &stats = *stats_.body;
    report::LiveData data;
    data.process = stats.last.process;
    data.process_start = stats.last.process_start;
    data.name = name_;
    data.version = stw_version_string();
    for (PlaceId place = 0; place <= tiers_.nvme(); ++place) {
        report::TierReport tier;
        tier.tier = static_cast<uint32_t>(tiers_[place].kind);
        tier.device = tiers_[place].device;
        if (tiers_.place_of(tier.tier, tier.device) == residency::kNoPlace) continue;
        (void)tier_stats(tier.tier, tier.device, &tier.stats);
        data.tiers.push_back(tier);
    }
    for (const observe::LinkTotal &total : link_totals()) {
        report::LinkReport link;
        link.link = total.link;
        link.device = total.device;
        if (link_stats(total.link, total.device, &link.stats).ok()) data.links.push_back(link);
    }
    const residency::Instant time = dispatch_.now();
    {
        MutexLock lock(dispatch_.mutex());
        drain_hits();
        data.hits = hits_;
        data.misses = misses_;
        data.stalls = stalls_.all();
        data.waiting_fetches = dispatch_.core.waiting_fetches();
        data.transfers_in_flight = dispatch_.core.transfers_in_flight();
        data.updates = updates_.steps;
        data.errors = errors_.count();
        for (const std::unique_ptr<Phase> &phase : phases_) {
            data.phases.push_back(
                {phase->name, phase->totals.steps(), phase->step != 0, phase->totals.last()});
        }
    }
    data.elapsed_ns = time - opened_ns_;
    stats.page->publish(report::live_text(data, stats.published ? &stats.last : nullptr));
    stats.last = std::move(data);
    stats.published = true;
    stats_due_ns_ = time + kPublishNs;
}

}  // namespace stepwell
