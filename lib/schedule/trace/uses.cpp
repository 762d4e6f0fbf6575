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
    std::vector<uint32_t> open(tensors);                               // open views
    std::vector<std::pair<residency::TensorId, uint32_t>> early_ends;  // of the step before
    const auto end = [](Use &use, uint32_t at) {
        use.dies = true;
        use.dies_at = at;
    };
    std::array<residency::TensorId, kLanes> last = {residency::kNone, residency::kNone};
    for (uint32_t i = 0; i < step.size(); ++i) {
        const Event &event = step[i];
        std::vector<Use> &uses = uses_[event.tensor];
        if (event.act == Act::kFetch) {
            has_updates_ |= event.lane == Lane::kUpdate;
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
        if (event.act == Act::kRelease && open[event.tensor] > 0) --open[event.tensor];
        if (uses.empty()) {
            if (dies(event)) early_ends.push_back({event.tensor, i});
            continue;
        }
        if (event.act == Act::kRelease || open[event.tensor] > 0) uses.back().release = i;
        if (dies(event)) end(uses.back(), i);
    }
    for (const auto &[tensor, at] : early_ends) {
        if (!uses_[tensor].empty() && !uses_[tensor].back().dies) end(uses_[tensor].back(), at);
    }
}

}  // namespace stepwell::schedule
