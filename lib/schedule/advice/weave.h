// SPDX-License-Identifier: Apache-2.0
// Splits a step into lanes, finds where lanes can be cut, and merges reordered lanes into a step.
// Pure; one thread.
#pragma once

#include "lib/schedule/trace/step.h"

#include <array>
#include <optional>

namespace stepwell::schedule {

// Indexes of events in a step.
using EventList = std::vector<size_t>;

std::array<EventList, kLanes> lanes_of(const Step &step);

// By event of the lane: a call begins with it, and no view of the lane is open before it.
std::vector<bool> cuts_of(const Step &step, const EventList &lane);

// Merges the reordered lanes. An event that uses a tensor changed by the other lane keeps its
// order with the other lane's events on it; nullopt if that is impossible.
std::optional<Step> weave(const Step &step, const std::array<EventList, kLanes> &lanes);

}  // namespace stepwell::schedule
