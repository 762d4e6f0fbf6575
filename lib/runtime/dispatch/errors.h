// SPDX-License-Identifier: Apache-2.0
// Background errors: the first one is kept for the runtime, and one for each tensor, until the
// program clears them.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/handles/lock.h"

#include <atomic>
#include <unordered_map>

namespace stepwell {

class Dispatcher;
class HandleTable;

class BackgroundErrors {
public:
    BackgroundErrors(Dispatcher &dispatch, const HandleTable &handles)
        : dispatch_(dispatch), handles_(handles)
    {
    }

    void add(residency::TensorId tensor, const Status &status) STW_REQUIRES(runtime_lock);
    // Takes no lock while there are no errors.
    Status of(residency::TensorId tensor) STW_EXCLUDES(runtime_lock);
    [[nodiscard]] const Status *find(residency::TensorId tensor) const STW_REQUIRES(runtime_lock);
    // The id is reused, or the contents are replaced.
    void forget(residency::TensorId tensor) STW_REQUIRES(runtime_lock) { by_tensor_.erase(tensor); }
    Status first();
    [[nodiscard]] const Status &first_locked() const STW_REQUIRES(runtime_lock) { return first_; }
    void clear();

    [[nodiscard]] bool any() const { return count() != 0; }
    [[nodiscard]] uint64_t count() const { return count_.load(std::memory_order_relaxed); }
    using ByTensor = std::unordered_map<residency::TensorId, Status>;
    [[nodiscard]] const ByTensor &by_tensor() const STW_REQUIRES(runtime_lock)
    {
        return by_tensor_;
    }

private:
    Dispatcher &dispatch_;
    const HandleTable &handles_;
    Status first_ STW_GUARDED_BY(runtime_lock);
    ByTensor by_tensor_ STW_GUARDED_BY(runtime_lock);
    std::atomic<uint64_t> count_{0};
};

}  // namespace stepwell
