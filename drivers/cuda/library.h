// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, loaded when a device is opened, so that the module loads anywhere.
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

// Failures of calls, each call and code once, until somebody asks for them. Any thread.
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
    // What of ours a failure is.
    static stw_status status_of(int error);
    // As that, where no sentence goes with it: it can be asked for.
    stw_status failed(int error) const;
    // "cuEventRecord returned CUDA_ERROR_...": what failed() was told of last on this thread.
    std::string why() const;

    std::unique_ptr<Failures> failures = std::make_unique<Failures>();
};

// It stays loaded. UNSUPPORTED: it is absent, too old, or shows no device.
stw_status load(Library *library_out, stw_driver_error *error_out);

}  // namespace stepwell::drivers::cuda
