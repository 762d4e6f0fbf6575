// SPDX-License-Identifier: Apache-2.0
// What the update layer asks of devices that compute (STW_MEMORY_UPDATES): work on the pieces of a
// fetch, begun behind what others do with them on the device and not waited for. It has the bits of
// the kernels here, so where a tensor is updated is a question of traffic alone. The runtime
// implements it. Called as tiers are, with no lock of the pipeline held.
#pragma once

#include <stepwell/driver.h>

#include "lib/support/status.h"
#include "lib/update/kernels/kernels.h"
#include "lib/update/tiers.h"

#include <cstdint>

namespace stepwell::update {

class Devices {
public:
    static constexpr uint32_t kSum = UINT32_MAX;

    // The device that knows the algorithm (kSum: a sum) and where these are worked on: at home is
    // there what stays from step to step (`kept`), and all may be there; else kAnyCpuPlace. A
    // function of policies and budgets, never of what is where: so all ranks of a program have the
    // same answer. Of tensors that are claimed: what they need stays there until the claim ends.
    virtual PlaceId place_for(uint32_t algorithm, const TensorId *kept, uint32_t kept_count,
                              const TensorId *others, uint32_t other_count) = 0;

    // Of a ticket at a device, which may be released right after: whoever has the pieces next comes
    // behind the work.
    virtual Status start_update(uint64_t ticket, const stw_update_work &work) = 0;
    virtual Status start_sum(uint64_t ticket, const stw_accumulate_work &work) = 0;
    virtual Status start_zeros(uint64_t ticket, void *destination, uint64_t bytes) = 0;
    // At most STW_SCANS_MAX of a device have begun and not ended.
    virtual Result<uint64_t> start_scan(uint64_t ticket, const stw_scan_work &work) = 0;
    // Blocks until its results are there. Once for each scan.
    virtual Status end_scan(PlaceId place, uint64_t scan, double *sums_out,
                            kernels::ScanResult *result_out) = 0;

protected:
    ~Devices() = default;
};

}  // namespace stepwell::update
