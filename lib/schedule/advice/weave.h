// SPDX-License-Identifier: Apache-2.0
// The events of a step by lane, where a lane can be cut, and a step from lanes in another order.
// Pure; one thread.
#pragma once

#include "lib/schedule/trace/step.h"

#include <array>
#include <optional>

namespace stepwell::schedule {

// Events of a step, by their numbers.
using EventList = std::vector<size_t>;

std::array<EventList, kLanes> lanes_of(const Step &step);

// Of each event of a lane: a call begins with it, and no view of the lane is open before it.
std::vector<bool> cuts_of(const Step &step, const EventList &lane);

// The events of both lanes in the new orders. What uses a tensor that the other lane changes stays
// before and behind the same events of it; nothing where no order is left.
std::optional<Step> weave(const Step &step, const std::array<EventList, kLanes> &lanes);

}  // namespace stepwell::schedule
