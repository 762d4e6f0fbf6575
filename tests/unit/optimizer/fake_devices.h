// SPDX-License-Identifier: Apache-2.0
// Devices beside fake tiers: what is begun is done at once, by the kernels of the host, at
// addresses that the host cannot touch. What the contract of lib/update/devices.h forbids is
// counted in faults().
#pragma once

#include "fake_tiers.h"
#include "lib/support/thread_annotations.h"
#include "lib/update/devices.h"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace stepwell::update::test {

class FakeDevices final : public Devices {
public:
    explicit FakeDevices(FakeTiers &tiers) : tiers_(tiers) {}

    void move_home(TensorId tensor, PlaceId place) { homes_[tensor] = place; }
    // The next call of that kind fails, once.
    void fail_start() { fails_start_ = true; }
    void fail_scan() { fails_scan_ = true; }
    std::string faults();
    uint32_t started();
    uint32_t scans_peak();

    PlaceId place_for(uint32_t algorithm, const TensorId *kept, uint32_t kept_count,
                      const TensorId *others, uint32_t other_count) override;
    Status start_update(uint64_t ticket, const stw_update_work &work) override;
    Status start_sum(uint64_t ticket, const stw_accumulate_work &work) override;
    Status start_zeros(uint64_t ticket, void *destination, uint64_t bytes) override;
    Result<uint64_t> start_scan(uint64_t ticket, const stw_scan_work &work) override;
    Status end_scan(PlaceId place, uint64_t scan, double *sums_out,
                    kernels::ScanResult *result_out) override;

private:
    struct Scan {
        PlaceId place;
        std::vector<double> sums;
        kernels::ScanResult result;
    };
    Status start(uint64_t ticket) STW_EXCLUDES(mutex_);

    FakeTiers &tiers_;
    std::map<TensorId, PlaceId> homes_;  // set between steps
    std::atomic<bool> fails_start_{false};
    std::atomic<bool> fails_scan_{false};
    Mutex mutex_;
    std::map<uint64_t, Scan> scans_ STW_GUARDED_BY(mutex_);
    uint64_t next_scan_ STW_GUARDED_BY(mutex_) = 0;
    uint32_t started_ STW_GUARDED_BY(mutex_) = 0;
    uint32_t scans_peak_ STW_GUARDED_BY(mutex_) = 0;
    std::string faults_ STW_GUARDED_BY(mutex_);
};

}  // namespace stepwell::update::test
