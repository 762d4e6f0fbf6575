// SPDX-License-Identifier: Apache-2.0
// What a program is expected to do: implemented by the trace of a phase, and by replays that know
// their steps. Pure.
#pragma once

#include "lib/schedule/trace/step.h"

#include <optional>

namespace stepwell::schedule {

struct Expected {
    residency::Request request;
    uint64_t compute_ns = 0;  // since the fetch before it, without waits
    uint64_t distance = 0;    // in the accesses of VictimPolicy::next_use
    bool update = false;      // of an update, which runs where the bytes are and the CPU works
    bool unsure = false;      // uncertain: not worth a prefetch
};

// The program's lane to the end of the step, then the first accesses of updates and the next step;
// other uses of tensors affect only the distances.
class Forecast {
public:
    virtual ~Forecast() = default;
    // Changes when the expected order changes: earlier results of ahead() are then invalid.
    [[nodiscard]] virtual uint64_t turn() const = 0;
    // Fetches of this turn that have passed, made or skipped; ahead(0) is the next one.
    [[nodiscard]] virtual uint64_t passed() const = 0;
    // Time of the last of them.
    [[nodiscard]] virtual residency::Instant passed_at() const = 0;
    // The fetch that many after the next one; nullopt: not known so far ahead.
    [[nodiscard]] virtual std::optional<Expected> ahead(uint64_t fetches) const = 0;
};

}  // namespace stepwell::schedule
