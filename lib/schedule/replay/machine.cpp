// SPDX-License-Identifier: Apache-2.0
// Checks a machine before anything runs on it.
#include "lib/schedule/replay/machine.h"

#include <cmath>

namespace stepwell::schedule {
namespace {

bool carries(double bytes_per_s)
{
    return std::isfinite(bytes_per_s) && bytes_per_s > 0;
}

}  // namespace

Status Machine::check() const
{
    const size_t places = config.places.size();
    if (places == 0 || places > residency::kPlacesMax) {
        return Status::error(STW_ERROR_INVALID, "a machine has 1 to %u places, not %zu",
                             residency::kPlacesMax, places);
    }
    if (config.block_bytes == 0) return Status::error(STW_ERROR_INVALID, "blocks have 0 bytes");
    for (size_t i = 0; i < groups.size(); ++i) {
        if (carries(groups[i].bytes_per_s)) continue;
        return Status::error(STW_ERROR_INVALID, "group %zu carries %g bytes/s", i,
                             groups[i].bytes_per_s);
    }
    for (size_t i = 0; i < links.size(); ++i) {
        const Link &link = links[i];
        const char *wrong = nullptr;
        if (link.from >= places || link.to >= places) wrong = "leads to no place";
        if (!carries(link.bytes_per_s)) wrong = "carries nothing";
        if (link.depth == 0) wrong = "takes no transfer";
        if (link.group != kNoGroup && link.group >= groups.size()) wrong = "is of no group";
        if (!wrong && find_link(link.from, link.to) != i) wrong = "is there twice";
        if (!wrong) continue;
        return Status::error(STW_ERROR_INVALID,
                             "link %zu from place %u to %u %s (%g bytes/s, depth %u, group %d of "
                             "%zu)",
                             i, link.from, link.to, wrong, link.bytes_per_s, link.depth,
                             static_cast<int>(link.group), groups.size());
    }
    return {};
}

uint32_t Machine::find_link(residency::PlaceId from, residency::PlaceId to) const
{
    for (uint32_t i = 0; i < links.size(); ++i) {
        if (links[i].from == from && links[i].to == to) return i;
    }
    return kNoLink;
}

}  // namespace stepwell::schedule
