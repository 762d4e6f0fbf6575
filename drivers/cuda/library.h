// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, loaded when a device is opened, so that the module itself loads on any machine.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/mutex.h"
#include "drivers/cuda/mapping_api.h"

#include <atomic>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace stepwell::drivers::cuda {

// Failed calls that are still to be logged, each function and code once. Any thread.
class Failures {
public:
    void note(const Failure &failure, const std::string &sentence);
    bool next(std::string *sentence_out);

private:
    std::atomic<bool> any_{false};
    Mutex mutex_;
    std::set<std::pair<std::string, int>> seen_ STW_GUARDED_BY(mutex_);
    std::deque<std::string> untold_ STW_GUARDED_BY(mutex_);
};

struct Library {
    Api api = {};
    MappingApi mapping = {};
    BatchApi batch = {};
    int version = 0;  // 1000 x major + 10 x minor, of what the driver supports

    // "CUDA_ERROR_OUT_OF_MEMORY (2, out of memory)"
    std::string text(int error) const;
    // The status for an error of CUDA.
    static stw_status status_of(int error);
    // The same, for callers that return no sentence: why() has it.
    stw_status failed(int error) const;
    // "cuEventRecord returned CUDA_ERROR_...": the last error given to failed() on this thread.
    std::string why() const;

    std::unique_ptr<Failures> failures = std::make_unique<Failures>();
};

// The driver stays loaded. UNSUPPORTED: it is absent or too old, or has no device.
stw_status load(Library *library_out, stw_driver_error *error_out);

}  // namespace stepwell::drivers::cuda
