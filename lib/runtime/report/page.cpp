// SPDX-License-Identifier: Apache-2.0
// Publishes the statistics page once a second, on the timer's thread, from totals that are kept
// anyway: hits do nothing for it.
#include "lib/runtime/report/page.h"

#include "lib/report/live.h"
#include "lib/residency/core.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/optimizers/table.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/phase.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/report/reporter.h"
#include "lib/runtime/report/stats_page.h"

#include <unistd.h>

namespace stepwell {

using residency::PlaceId;

constexpr residency::Instant kPublishNs = 1'000'000'000;

// The values published last, for the rates of the next ones.
struct Stats {
    std::unique_ptr<StatsPage> page;
    report::LiveData last;
    bool published = false;
};

StatsPublisher::StatsPublisher(const Ground &ground, OptimizerTable &optimizers, Reporter &reporter,
                               Meters &meters)
    : Grounded(ground), optimizers_(optimizers), reporter_(reporter), meters_(meters)
{
}

StatsPublisher::~StatsPublisher() = default;

// On the opening thread once, then on the timer's.
void StatsPublisher::publish_stats()
{
    Stats &stats = *stats_;
    report::LiveData data;
    data.process = stats.last.process;
    data.process_start = stats.last.process_start;
    data.name = machine_.name;
    data.version = stw_version_string();
    for (PlaceId place = 0; place <= machine_.tiers.nvme(); ++place) {
        report::TierReport tier;
        tier.tier = static_cast<uint32_t>(machine_.tiers[place].kind);
        tier.device = machine_.tiers[place].device;
        if (machine_.tiers.place_of(tier.tier, tier.device) == residency::kNoPlace) continue;
        (void)reporter_.tier_stats(tier.tier, tier.device, &tier.stats);
        data.tiers.push_back(tier);
    }
    for (const observe::LinkTotal &total : meters_.link_totals()) {
        report::LinkReport link;
        link.link = total.link;
        link.device = total.device;
        if (reporter_.link_stats(total.link, total.device, &link.stats).ok())
            data.links.push_back(link);
    }
    const residency::Instant time = dispatch_.now();
    {
        MutexLock lock(dispatch_.mutex());
        recorder_.drain_hits();
        data.hits = recorder_.hits();
        data.misses = recorder_.misses();
        data.stalls = recorder_.stalls.all();
        data.waiting_fetches = dispatch_.core.waiting_fetches();
        data.transfers_in_flight = dispatch_.core.transfers_in_flight();
        data.updates = optimizers_.updates.steps;
        data.errors = errors_.count();
        for (const std::unique_ptr<Phase> &phase : recorder_.phases) {
            data.phases.push_back(
                {phase->name, phase->totals.steps(), phase->step != 0, phase->totals.last()});
        }
    }
    data.elapsed_ns = time - machine_.opened_ns;
    stats.page->publish(report::live_text(data, stats.published ? &stats.last : nullptr));
    stats.last = std::move(data);
    stats.published = true;
    stats_due_ns_ = time + kPublishNs;
}

// Without the page the runtime works all the same.
void StatsPublisher::open()
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
    stats_ = std::move(stats);
    publish_stats();
}

void StatsPublisher::on_timer(residency::Instant now)
{
    if (stats_ && now >= stats_due_ns_) publish_stats();
}

}  // namespace stepwell
