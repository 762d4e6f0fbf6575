// SPDX-License-Identifier: Apache-2.0
// The statistics page's text. Whoever shows it needs no arithmetic: rates are in it.
#include "lib/report/live.h"

#include "lib/report/json.h"

#include <algorithm>

namespace stepwell::report {

namespace {

// The page has a size: what a name takes of it is bounded, and cut between two characters.
std::string_view shortened(std::string_view name)
{
    if (name.size() <= kLiveNameBytesMax) return name;
    size_t end = kLiveNameBytesMax;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;
    return name.substr(0, end);
}

class LiveWriter {
public:
    LiveWriter(JsonWriter &json, const LiveData &data, const LiveData *before)
        : json_(json),
          data_(data),
          before_(before),
          interval_ns_(data.elapsed_ns - std::min(data.elapsed_ns, before ? before->elapsed_ns : 0))
    {
    }
    void write();

private:
    void write_rate(const char *name, uint64_t now, uint64_t before)
    {
        json_.key(name);
        if (interval_ns_ == 0) {
            json_.null();
        } else {
            json_.number(static_cast<double>(now - std::min(now, before)) * 1e9 /
                         static_cast<double>(interval_ns_));
        }
    }
    void write_tier(const TierReport &tier);
    void write_link(const LinkReport &link, const LinkReport *before);
    void write_stalls();
    void write_phase(const LivePhase &phase);

    JsonWriter &json_;
    const LiveData &data_;
    const LiveData *before_;
    const uint64_t interval_ns_;
};

void LiveWriter::write_tier(const TierReport &tier)
{
    json_.begin_object();
    json_.member("tier", tier_name(tier.tier));
    json_.member("device", tier.device);
    json_.member("budget_bytes", tier.stats.budget_bytes);
    json_.member("used_bytes", tier.stats.used_bytes);
    json_.member("peak_bytes", tier.stats.peak_bytes);
    json_.member("pinned_bytes", tier.stats.pinned_bytes);
    json_.member("dirty_bytes", tier.stats.dirty_bytes);
    json_.member("open_views", tier.stats.open_views);
    json_.member("evictions", tier.stats.evictions);
    json_.end_object();
}

void LiveWriter::write_link(const LinkReport &link, const LinkReport *before)
{
    json_.begin_object();
    json_.member("link", link_name(link.link));
    json_.member("device", link.device);
    json_.member("bytes", link.stats.bytes);
    json_.member("transfers", link.stats.transfers);
    write_rate("bytes_per_s", link.stats.bytes, before ? before->stats.bytes : 0);
    json_.member("measured_bytes_per_s", link.stats.measured_bytes_per_s);
    json_.member("errors", link.stats.errors);
    json_.end_object();
}

void LiveWriter::write_stalls()
{
    json_.begin_object();
    json_.member("waits", data_.stalls.waits);
    json_.member("total_ns", data_.stalls.total_ns());
    for (uint32_t cause = 0; cause < observe::kStalls; ++cause) {
        const char *name = observe::stall_name(observe::Stall(cause));
        json_.member(std::string(name) + "_ns", data_.stalls.ns[cause]);
    }
    write_rate("ns_per_s", data_.stalls.total_ns(), before_ ? before_->stalls.total_ns() : 0);
    json_.end_object();
}

void LiveWriter::write_phase(const LivePhase &phase)
{
    json_.begin_object();
    json_.member("name", shortened(phase.name));
    json_.member("steps", phase.steps);
    json_.member("open", phase.open);
    json_.member("last_wall_ns", phase.last.wall_ns);
    json_.member("last_bound_ns", phase.last.bound_ns);
    json_.member("last_least_ns", phase.last.least_ns);
    json_.member("last_stall_ns", phase.last.stall_ns);
    json_.end_object();
}

void LiveWriter::write()
{
    json_.begin_object();
    json_.member("format", kLiveFormat);
    json_.member("runtime", shortened(data_.name));
    json_.member("version", data_.version);
    json_.member("process", data_.process);
    json_.member("process_start", data_.process_start);
    json_.member("elapsed_ns", data_.elapsed_ns);
    json_.member("interval_ns", interval_ns_);
    json_.key("tiers");
    json_.begin_array();
    for (const TierReport &tier : data_.tiers) write_tier(tier);
    json_.end_array();
    json_.key("links");
    json_.begin_array();
    for (size_t i = 0; i < data_.links.size(); ++i) {
        const bool known = before_ && i < before_->links.size();
        write_link(data_.links[i], known ? &before_->links[i] : nullptr);
    }
    json_.end_array();
    json_.member("hits", data_.hits);
    json_.member("misses", data_.misses);
    write_rate("hits_per_s", data_.hits, before_ ? before_->hits : 0);
    write_rate("misses_per_s", data_.misses, before_ ? before_->misses : 0);
    json_.key("stalls");
    write_stalls();
    json_.member("waiting_fetches", data_.waiting_fetches);
    json_.member("transfers_in_flight", data_.transfers_in_flight);
    json_.member("updates", data_.updates);
    json_.member("errors", data_.errors);
    json_.key("phases");
    json_.begin_array();
    const size_t phases = std::min<size_t>(data_.phases.size(), kLivePhasesMax);
    for (size_t i = 0; i < phases; ++i) write_phase(data_.phases[i]);
    json_.end_array();
    json_.end_object();
}

}  // namespace

std::string live_text(const LiveData &data, const LiveData *before)
{
    std::string text;
    const auto append = [](void *user, std::string_view bytes) {
        static_cast<std::string *>(user)->append(bytes);
    };
    JsonWriter json({append, &text}, 0);
    LiveWriter(json, data, before).write();
    return text;
}

}  // namespace stepwell::report
