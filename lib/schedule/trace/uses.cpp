// SPDX-License-Identifier: Apache-2.0
// Overlapping views of a tensor end as one.
#include "lib/schedule/trace/uses.h"

#include <algorithm>
#include <array>
#include <utility>

namespace stepwell::schedule {

using residency::Access;

Uses::Uses(const Step &step, size_t tensors)
    : uses_(tensors), events_(static_cast<uint32_t>(step.size()))
{
    std::vector<uint32_t> open(tensors);  // open views
    std::array<residency::TensorId, kLanes> last = {residency::kNone, residency::kNone};
    for (uint32_t i = 0; i < step.size(); ++i) {
        const Event &event = step[i];
        std::vector<Use> &uses = uses_[event.tensor];
        if (event.act == Act::kFetch) {
            Use use;
            use.position = fetches_++;
            use.fetch = use.release = i;
            use.place = event.place == residency::kNoPlace ? residency::PlaceId{0} : event.place;
            use.reads = event.access == Access::kRead || event.access == Access::kReadWrite;
            use.writes = event.access != Access::kRead;
            ++open[event.tensor];
            if (std::exchange(last[static_cast<size_t>(event.lane)], event.tensor) ==
                event.tensor) {
                uses.back().writes |= use.writes;
                continue;
            }
            uses.push_back(use);
            continue;
        }
        const bool is_last = dies(event);
        if (uses.empty()) continue;
        if (event.act == Act::kRelease && open[event.tensor] > 0) --open[event.tensor];
        uses.back().release = i;
        uses.back().dies |= is_last;
    }
}

}  // namespace stepwell::schedule
