// SPDX-License-Identifier: Apache-2.0
// What a rank prefetches and writes back early: the runtime's lookahead on the trace of this
// rank's steps, called after each event as in lib/runtime/planning/prefetcher.cpp.
#include "lib/simulate/rank.h"

#include <algorithm>
#include <utility>

namespace stepwell::simulate {
namespace {

using schedule::Lookahead;

constexpr uint32_t kHintsMax = 64;       // asked for at once
constexpr Instant kTimerNs = 1'000'000;  // a start that is late by this is still safe

}  // namespace

// As a runtime measures them while all GPUs are busy.
void World::take_bandwidths(Rank &rank)
{
    const auto speed = [this](Route route) {
        return static_cast<uint64_t>(machine_.bytes_per_s(route));
    };
    const uint64_t up = speed(Route::kHostToDevice);
    const uint64_t in = speed(Route::kNvmeToHost);
    rank.lookahead->set_bandwidth(kHostPlace, kDevicePlace, up);
    rank.lookahead->set_bandwidth(kNvmePlace, kHostPlace, in);
    rank.lookahead->set_bandwidth(kNvmePlace, kDevicePlace, std::min(in, up));
}

Status World::look_ahead(Rank &rank)
{
    const schedule::PhaseTrace *forecast = rank.trace.phase(0);
    if (!rank.lookahead || forecast == nullptr || !forecast->has_forecast()) return {};
    Lookahead &lookahead = *rank.lookahead;
    for (uint32_t i = 0; i < kHintsMax; ++i) {
        const std::optional<residency::FetchAsked> asked =
            lookahead.next(rank.core, *forecast, now_);
        if (!asked) break;
        lookahead.asked(rank.core.fetch(*asked, rank.out));
        STW_TRY(execute(rank));
    }
    // What can be written back changes only when the program goes on.
    const std::pair<uint64_t, uint64_t> at{forecast->turn(), forecast->passed()};
    const bool goes_on = std::exchange(rank.cleaned_at, at) != at;
    for (const PlaceId place : {kDevicePlace, kHostPlace}) {
        if (!goes_on) break;
        const uint64_t horizon = lookahead.horizon(place);
        if (horizon == residency::kNever) continue;
        rank.core.clean_ahead(place, horizon, rank.out);
        STW_TRY(execute(rank));
    }
    const Instant wake = std::max(lookahead.wake(), now_ + kTimerNs);
    if (lookahead.wake() == residency::kNever || rank.timer_at <= wake) return {};
    rank.timer_at = wake;
    ++timers_;
    links_.remind(rank.number, kTimerTag, wake);
    return {};
}

// False: not a hint of this lookahead.
bool World::end_hint(Rank &rank, residency::FetchId fetch, const Status &status)
{
    const bool no_room = status.code() == STW_ERROR_BUDGET || status.code() == STW_ERROR_BUSY;
    const auto end = status.ok() ? Lookahead::End::kThere
                     : no_room   ? Lookahead::End::kNoRoom
                                 : Lookahead::End::kFailed;
    return rank.lookahead && rank.lookahead->ended(fetch, end);
}

}  // namespace stepwell::simulate
