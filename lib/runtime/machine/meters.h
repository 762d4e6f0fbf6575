// SPDX-License-Identifier: Apache-2.0
// Bytes and time on the links of this runtime, including those between ranks.
#pragma once

#include "lib/residency/types.h"

#include <stepwell/observe.h>

namespace stepwell::collective {
struct GroupTotals;
}  // namespace stepwell::collective
namespace stepwell::observe {
struct LinkTotal;
}  // namespace stepwell::observe

namespace stepwell {

class Dispatcher;
struct Machine;

inline constexpr uint32_t kLinkNumbers[] = {STW_LINK_NVME_TO_HOST,   STW_LINK_HOST_TO_NVME,
                                            STW_LINK_HOST_TO_DEVICE, STW_LINK_DEVICE_TO_HOST,
                                            STW_LINK_NVME_TO_DEVICE, STW_LINK_DEVICE_TO_NVME};

inline bool ends_at_host(uint32_t link)
{
    return link == STW_LINK_NVME_TO_HOST || link == STW_LINK_HOST_TO_NVME;
}

class Meters final {
public:
    Meters(Dispatcher &dispatch, Machine &machine) : dispatch_(dispatch), machine_(machine) {}
    Meters(const Meters &) = delete;
    Meters &operator=(const Meters &) = delete;

    Status rank_stats(stw_link_stats *stats_out) const;
    [[nodiscard]] collective::GroupTotals rank_totals() const;
    void record_ranks(residency::TensorId tensor, residency::Instant begin, uint64_t bytes_before);
    std::vector<observe::LinkTotal> link_totals() const;

private:
    Dispatcher &dispatch_;
    Machine &machine_;
};

}  // namespace stepwell
