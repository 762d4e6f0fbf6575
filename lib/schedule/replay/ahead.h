// SPDX-License-Identifier: Apache-2.0
// AheadPrefetcher: what the runtime prefetches in a step that repeats, in virtual time. Uses the
// same forecast and lookahead as lib/runtime/planning/prefetcher.cpp: it looks after each event
// that takes the lock, at the times of its wake-ups, and polls while hits cause no events. Pure;
// one thread.
#pragma once

#include "lib/schedule/lookahead/lookahead.h"
#include "lib/schedule/replay/replay.h"
#include "lib/schedule/trace/phase_trace.h"

namespace stepwell::schedule {

class AheadPrefetcher final : public Prefetcher {
public:
    // `step` is what is expected each time, on tensors as in `specs`.
    AheadPrefetcher(const Machine &machine, const std::vector<residency::TensorSpec> &specs,
                    const Step &step);

    void begin_step(const Step &step, residency::Instant now) override;
    void end_step(residency::Instant now) override;
    void access(const Event &event, bool told, residency::Instant now) override;
    std::optional<residency::FetchAsked> next(const Moment &moment,
                                              const residency::Core &core) override;
    void asked(residency::FetchId fetch) override;
    void ended(residency::FetchId fetch, const Status &status) override;
    void clean(const Moment &moment, residency::Core &core, residency::Commands &out) override;
    [[nodiscard]] residency::Instant wake() const override { return lookahead_.wake(); }

private:
    void take_bandwidths(const Machine &machine);

    residency::PlaceId host_ = 0;
    residency::PlaceId nvme_ = 0;
    Lookahead lookahead_;
    PhaseTrace forecast_;
};

}  // namespace stepwell::schedule
