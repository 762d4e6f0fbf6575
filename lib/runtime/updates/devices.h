// SPDX-License-Identifier: Apache-2.0
// Updates, sums and norms as work on devices with streams.
#pragma once

#include "lib/runtime/recording/ground.h"
#include "lib/update/devices.h"

namespace stepwell {

struct PieceFetch;
class Placement;
class StreamOrder;

class DeviceUpdates final : public update::Devices, Grounded {
public:
    DeviceUpdates(const Ground &ground, Placement &placement, StreamOrder &streams)
        : Grounded(ground), placement_(placement), streams_(streams)
    {
    }

    residency::PlaceId place_for(uint32_t algorithm, const residency::TensorId *kept,
                                 uint32_t kept_count, const residency::TensorId *others,
                                 uint32_t other_count) override;
    Status start_update(uint64_t ticket, const stw_update_work &work) override;
    Status start_sum(uint64_t ticket, const stw_accumulate_work &work) override;
    Status start_zeros(uint64_t ticket, void *destination, uint64_t bytes) override;
    Result<uint64_t> start_scan(uint64_t ticket, const stw_scan_work &work) override;
    Status end_scan(residency::PlaceId place, uint64_t scan, double *sums_out,
                    kernels::ScanResult *result_out) override;
    void end_update(const PieceFetch &fetch);

private:
    Status order_update(const PieceFetch &fetch);
    template <class Work> Status compute(uint64_t ticket, const char *what, Work &&work);

    Placement &placement_;
    StreamOrder &streams_;
};

}  // namespace stepwell
