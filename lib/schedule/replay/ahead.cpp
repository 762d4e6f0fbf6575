// SPDX-License-Identifier: Apache-2.0
// The runtime's prefetcher around a lookahead, without locks and threads.
#include "lib/schedule/replay/ahead.h"

#include <algorithm>

namespace stepwell::schedule {
namespace {

using residency::Instant;
using residency::PlaceId;
using residency::Tier;

// A machine without a disk gets the last place number, which no place has.
PlaceId nvme_of(const Machine &machine)
{
    const auto last = static_cast<PlaceId>(machine.config.places.size() - 1);
    const bool is_disk = machine.config.places[last].tier == Tier::kNvme;
    return is_disk ? last : static_cast<PlaceId>(residency::kPlacesMax - 1);
}

// Without a host tier this is the disk: bytes then go from it to devices directly, and no prefetch
// goes to the host.
PlaceId host_of(const Machine &machine)
{
    for (PlaceId place = 0; place < machine.config.places.size(); ++place) {
        if (machine.config.places[place].tier == Tier::kHost) return place;
    }
    return nvme_of(machine);
}

// With explicit places and byte counts, as in calls of a program.
Step spelled_out(Step step, const std::vector<residency::TensorSpec> &specs)
{
    for (Event &event : step) {
        if (event.place == residency::kNoPlace) event.place = 0;
        if (event.byte_count > 0) continue;
        event.byte_count = specs[event.tensor].bytes - event.byte_begin;
    }
    return step;
}

}  // namespace

AheadPrefetcher::AheadPrefetcher(const Machine &machine,
                                 const std::vector<residency::TensorSpec> &specs, const Step &step)
    : host_(host_of(machine)), nvme_(nvme_of(machine)), lookahead_(host_, nvme_)
{
    take_bandwidths(machine);
    forecast_.declare(spelled_out(step, specs));
}

// As the runtime measures them: of two hops the slower one counts.
void AheadPrefetcher::take_bandwidths(const Machine &machine)
{
    const auto speed = [&](PlaceId from, PlaceId to) -> uint64_t {
        const uint32_t link = machine.find_link(from, to);
        return link == kNoLink ? 0 : static_cast<uint64_t>(machine.links[link].bytes_per_s);
    };
    for (PlaceId to = 0; to < host_; ++to) {
        const uint64_t hops = std::min(speed(nvme_, host_), speed(host_, to));
        const uint64_t direct = speed(nvme_, to);
        lookahead_.set_bandwidth(nvme_, to, direct ? direct : hops);
        lookahead_.set_bandwidth(host_, to, speed(host_, to));
    }
    if (host_ != nvme_) lookahead_.set_bandwidth(nvme_, host_, speed(nvme_, host_));
}

void AheadPrefetcher::begin_step(const Step &, Instant now)
{
    forecast_.begin(now);
}

void AheadPrefetcher::end_step(Instant)
{
    forecast_.end();
}

// The time of a hit is not known.
void AheadPrefetcher::access(const Event &event, bool told, Instant now)
{
    forecast_.follow(event.lane, event.tensor, told ? now : forecast_.passed_at());
}

std::optional<residency::FetchAsked> AheadPrefetcher::next(const Moment &moment,
                                                           const residency::Core &core)
{
    return lookahead_.next(core, forecast_, moment.now);
}

void AheadPrefetcher::asked(residency::FetchId fetch)
{
    lookahead_.asked(fetch);
}

void AheadPrefetcher::ended(residency::FetchId fetch, const Status &status)
{
    const bool no_room = status.code() == STW_ERROR_BUDGET || status.code() == STW_ERROR_BUSY;
    const auto end = status.ok() ? Lookahead::End::kThere
                     : no_room   ? Lookahead::End::kNoRoom
                                 : Lookahead::End::kFailed;
    lookahead_.ended(fetch, end);
}

void AheadPrefetcher::clean(const Moment &, residency::Core &core, residency::Commands &out)
{
    for (PlaceId place = 0; place <= host_; ++place) {
        const uint64_t horizon = lookahead_.horizon(place);
        if (horizon != residency::kNever) core.clean_ahead(place, horizon, out);
    }
}

}  // namespace stepwell::schedule
