// SPDX-License-Identifier: Apache-2.0
// Updates, sums and scans on one device: the kernels of the image, launched one after another on a
// stream of the module. Only the results of a scan are waited for.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/mutex.h"
#include "drivers/cuda/kernels/launch.h"
#include "drivers/cuda/marks.h"

#include <array>
#include <cstdint>

namespace stepwell::drivers::cuda {

class Updates {
public:
    Updates(const Context &context, Marks &marks, uint64_t block_bytes);
    Updates(const Updates &) = delete;
    Updates &operator=(const Updates &) = delete;
    ~Updates();  // inside a Scope; no work is in flight

    // Always the same stream after the first success. Any thread, several at once, inside a Scope,
    // as for the functions below, which are called after it.
    stw_status open(StreamHandle *stream_out, stw_driver_error *error_out);
    stw_status update(const stw_update_work &work);
    stw_status accumulate(const stw_accumulate_work &work);
    stw_status zero(Address destination, uint64_t bytes);
    stw_status scan(const stw_scan_work &work, uint64_t *scan_out);
    stw_status scan_end(uint64_t scan, double *sums_out, stw_scan_result *result_out);

private:
    // The results of one scan: sums of its runs, then their counts.
    struct Scan {
        Address results = 0;
        Address together = 0;           // a run that is split over two ranges
        unsigned char *seen = nullptr;  // the results, in host memory
        uint64_t runs = 0;
        uint64_t mark = 0;
        int next_free = -1;
    };

    int load();
    int take_scans();
    int launch(Kernel kernel, uint64_t elements, void *argument);
    int make_fresh(const stw_update_work &work);
    int enqueue(const stw_scan_work &work, Scan &scan);
    void free_scan(int index);
    const Api &api() const { return context_.api(); }

    const Context &context_;
    Marks &marks_;
    const uint64_t runs_max_;  // of a scan of one block
    Mutex opening_;
    bool open_ STW_GUARDED_BY(opening_) = false;
    StreamHandle stream_ = nullptr;
    ModuleHandle module_ = nullptr;
    std::array<FunctionHandle, kKernels> functions_{};
    uint32_t sm_count_ = 1;
    Address scan_memory_ = 0;
    void *scan_results_ = nullptr;
    Mutex scanning_;
    std::array<Scan, STW_SCANS_MAX> scans_;
    int free_scans_ STW_GUARDED_BY(scanning_) = -1;
};

}  // namespace stepwell::drivers::cuda
