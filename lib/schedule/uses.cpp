// SPDX-License-Identifier: Apache-2.0
// Each fetch counts as a use of its own for the order; views of it that overlap end as one.
#include "lib/schedule/uses.h"

#include <algorithm>

namespace stepwell::schedule {

using residency::Access;

Uses::Uses(const Step &step, size_t tensors)
    : uses_(tensors), events_(static_cast<uint32_t>(step.size()))
{
    std::vector<uint32_t> open(tensors);  // views
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
            uses.push_back(use);
            ++open[event.tensor];
            continue;
        }
        const bool dies = event.act == Act::kDiscard || event.hint == Hint::kDiscard;
        if (uses.empty()) continue;
        if (event.act == Act::kRelease && open[event.tensor] > 0) --open[event.tensor];
        uses.back().release = i;
        uses.back().dies |= dies;
    }
}

}  // namespace stepwell::schedule
