// SPDX-License-Identifier: Apache-2.0
// What is expected of a program, as an interface: the trace of a phase answers it, or a replay that
// knows its steps. Pure.
#pragma once

#include "lib/schedule/trace/step.h"

#include <optional>

namespace stepwell::schedule {

struct Expected {
    residency::Request request;
    uint64_t compute_ns = 0;  // since the fetch before it; waits are not in it
    uint64_t distance = 0;    // in the accesses of VictimPolicy::next_use
    bool update = false;      // of an update, which works wherever the bytes are and the CPU can
    bool unsure = false;      // as likely as not something else comes: not worth bytes ahead
};

// The program's own lane up to the end of the step, then what updates begin with and the step after
// it; what else uses tensors is in the distances.
class Forecast {
public:
    virtual ~Forecast() = default;
    // Another number when the order ahead is another one: what `ahead` said before is void.
    [[nodiscard]] virtual uint64_t turn() const = 0;
    // Fetches of this turn that are over, as they came or left out; ahead(0) comes next.
    [[nodiscard]] virtual uint64_t passed() const = 0;
    // When the last of them was made.
    [[nodiscard]] virtual residency::Instant passed_at() const = 0;
    // The fetch so many after the next one; nothing where the future is not known so far.
    [[nodiscard]] virtual std::optional<Expected> ahead(uint64_t fetches) const = 0;
};

}  // namespace stepwell::schedule
