// SPDX-License-Identifier: Apache-2.0
// Asks the core for the prefetches and early write-backs that a phase's lookahead proposes. Under
// the lock, after an event that may have changed them.
#include "lib/runtime/planning/prefetcher.h"

#include "lib/runtime/addresses/metadata.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/planning/pause.h"
#include "lib/runtime/planning/plans.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/phase.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/schedule/lookahead/lookahead.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <utility>

namespace stepwell {
namespace {

using residency::Instant;
using residency::PlaceId;

constexpr uint32_t kHintsMax = 64;       // asked for at once
constexpr Instant kRestNs = 16'000'000;  // between looks ahead while no step is open

}  // namespace

PlanPause::PlanPause(Prefetcher &prefetcher) : prefetcher_(prefetcher)
{
    prefetcher_.begin_pause();
}

PlanPause::~PlanPause()
{
    prefetcher_.end_pause();
}

void Prefetcher::begin_pause()
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        ++plan_pauses_;
        // The pause would otherwise wait for the views and verdicts that these hints wait for.
        for (const residency::FetchId hint : core.blocked_hints())
            core.cancel(hint, cancelled(), out);
    });
}

void Prefetcher::end_pause()
{
    MutexLock lock(dispatch_.mutex());
    --plan_pauses_;
    recorder_.plan_due = true;
}

// After the commands of the event were issued: demand goes first.
void Prefetcher::look_ahead()
{
    recorder_.plan_due = false;
    plan_wake_ = residency::kNever;
    if (!recorder_.enabled || dispatch_.is_closing() || plan_pauses_ > 0) return;
    recorder_.drain_hits();
    for (const uint32_t phase : recorder_.trace.current()) look_ahead_in(phase);
    recorder_.plan_due = false;  // hints answered at once need no further look
    dispatch_.arm_timer(plan_wake_);
}

void Prefetcher::look_ahead_in(uint32_t index)
{
    Phase &phase = *recorder_.phases[index];
    const schedule::PhaseTrace &forecast = *recorder_.trace.phase(index);
    if (!phase.handle || !forecast.has_forecast() || !make_lookahead(phase)) return;
    schedule::Lookahead &lookahead = *phase.lookahead;
    const Instant time = dispatch_.now();
    for (uint32_t i = 0; i < kHintsMax; ++i) {
        const std::optional<residency::FetchAsked> asked =
            lookahead.next(dispatch_.core, forecast, time);
        if (!asked) break;
        lookahead.asked(dispatch_.core.fetch(*asked, dispatch_.loop.out));
        dispatch_.loop.run();
    }
    // Between steps every relevant change is an event, so retries can wait.
    const Instant wake = lookahead.wake();
    const bool rests = phase.step == 0 && wake != residency::kNever;
    plan_wake_ = std::min(plan_wake_, rests ? std::max(wake, time + kRestNs) : wake);
    for (PlaceId place = 0; place <= machine_.tiers.host(); ++place) {
        const uint64_t horizon = lookahead.horizon(place);
        if (horizon == residency::kNever) continue;
        if (dispatch_.core.clean_ahead(place, horizon, dispatch_.loop.out) > 0)
            dispatch_.loop.run();
    }
}

// False if metadata_bytes has no room for it: the phase is then not prefetched for.
bool Prefetcher::make_lookahead(Phase &phase)
{
    if (phase.lookahead) return true;
    const uint64_t needed = schedule::Lookahead::metadata_bytes_max();
    if (metadata_.metadata_taken() + needed > metadata_.metadata_budget) return false;
    phase.lookahead =
        std::make_unique<schedule::Lookahead>(machine_.tiers.host(), machine_.tiers.nvme());
    lookahead_bytes_ += needed;
    plans_.take_bandwidths(plans_.bandwidths);
    return true;
}

// False: a hint of the program or of a copy.
bool Prefetcher::end_hint(residency::FetchId fetch, const Status &status)
{
    const bool no_room = status.code() == STW_ERROR_BUDGET || status.code() == STW_ERROR_BUSY;
    const auto end = status.ok() ? schedule::Lookahead::End::kThere
                     : no_room   ? schedule::Lookahead::End::kNoRoom
                                 : schedule::Lookahead::End::kFailed;
    for (const std::unique_ptr<Phase> &phase : recorder_.phases) {
        if (!phase->lookahead || !phase->lookahead->ended(fetch, end)) continue;
        recorder_.plan_due = true;
        return true;
    }
    return false;
}

void Prefetcher::plan_now()
{
    dispatch_.act([&](Core &, Commands &)
                      STW_REQUIRES(runtime_lock) { recorder_.plan_due = true; });
}

bool Prefetcher::granted(residency::Granted &granted, Commands &)
{
    return end_hint(granted.fetch, Status());
}

bool Prefetcher::refused(residency::Refused &refused, Commands &)
{
    return end_hint(refused.fetch, refused.status);
}

void Prefetcher::before_unlock()
{
    if (recorder_.plan_due) look_ahead();
}

void Prefetcher::on_timer_locked(Instant now)
{
    recorder_.plan_due |= plan_wake_ <= now;
}

}  // namespace stepwell
