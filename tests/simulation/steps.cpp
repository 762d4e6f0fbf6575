// SPDX-License-Identifier: Apache-2.0
// The random program as steps of phases: what it does is recorded, now and then it does what it did
// before, and a lookahead brings ahead what the record makes expect, rightly or not.
#include "tests/simulation/program.h"

namespace stepwell::simulation {
namespace {

constexpr uint32_t kHintsMax = 4;  // after an event

}  // namespace

void Program::mark_step()
{
    if (!plans_) return;
    if (phase_ == schedule::kNoPhase) {
        phase_ = static_cast<uint32_t>(random_.below(kPhases));
        const bool planned = trace_.begin_step(phase_, machine_.now());
        journal_.line("step of phase %u begins%s", phase_, planned ? ", planned" : "");
    } else {
        journal_.line("step of phase %u ends", phase_);
        trace_.end_step(phase_, machine_.now(), random_.chance(90));
        phase_ = schedule::kNoPhase;
    }
}

void Program::note(const FetchAsked &asked)
{
    if (!plans_ || (asked.flags & kFetchPrefetch) != 0) return;
    const schedule::Lane lane = asked.claim ? schedule::Lane::kUpdate : schedule::Lane::kProgram;
    trace_.fetched(phase_, lane, asked.requests.data(), asked.requests.size(), machine_.now());
}

// What the program did here the last time; kNone: it does as it likes.
TensorId Program::expected_tensor()
{
    if (!plans_ || phase_ == schedule::kNoPhase || random_.chance(40)) return kNone;
    const std::optional<schedule::Expected> expected = trace_.phase(phase_)->ahead(0);
    if (!expected) return kNone;
    const auto found = model_.tensors.find(expected->request.tensor);
    return found != model_.tensors.end() && found->second.alive ? found->first : kNone;
}

void Program::look_ahead()
{
    if (!plans_ || shrinking_ != kNoPlace || reading_back_) return;
    for (const uint32_t phase : trace_.current()) {
        const schedule::PhaseTrace &forecast = *trace_.phase(phase);
        for (uint32_t i = 0; i < kHintsMax && !journal_.failed(); ++i) {
            const std::optional<FetchAsked> asked =
                lookaheads_[phase].next(machine_.core, forecast, machine_.now());
            if (!asked) break;
            asking_ = &lookaheads_[phase];
            ask(*asked);
            asking_ = nullptr;
        }
        for (PlaceId place = 0; place < setup_.config.places.size(); ++place) {
            if ((setup_.viewable & (1u << place)) == 0) continue;
            const uint64_t horizon = lookaheads_[phase].horizon(place);
            if (horizon != kNever) machine_.core.clean_ahead(place, horizon, out_);
            execute();
        }
    }
}

void Program::hint_over(FetchId id, const Status &status)
{
    const bool no_room = status.code() == STW_ERROR_BUDGET || status.code() == STW_ERROR_BUSY;
    const auto end = status.ok() ? schedule::Lookahead::End::kThere
                     : no_room   ? schedule::Lookahead::End::kNoRoom
                                 : schedule::Lookahead::End::kFailed;
    for (schedule::Lookahead &lookahead : lookaheads_) {
        if (lookahead.ended(id, end)) return;
    }
}

// Nothing is left in any tier: each block that was brought ahead has been used or wasted.
void Program::check_planned()
{
    for (PlaceId place = 0; place < setup_.config.places.size(); ++place) {
        const PlannedBlocks planned = machine_.core.usage(place).planned;
        if (planned.brought == planned.used + planned.wasted) continue;
        journal_.fail("place %u: %llu blocks brought ahead, %llu used, %llu wasted", place,
                      (unsigned long long)planned.brought, (unsigned long long)planned.used,
                      (unsigned long long)planned.wasted);
    }
}

}  // namespace stepwell::simulation
