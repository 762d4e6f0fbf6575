// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/tensors/zeros.h"

#include "lib/residency/core.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/update/pipeline.h"

namespace stepwell {

using residency::PlaceId;
using residency::TensorId;

// After the contents were discarded. A tensor that reads as zeros and shares its block with others
// needs them written: at its next use, as this call must not wait for the block.
void OwedZeros::note_zeros(TensorId tensor)
{
    if (!dispatch_.core.spec(tensor).reads_zero ||
        dispatch_.core.contents(tensor) != residency::Contents::kEmpty) {
        return;
    }
    owed_.insert(tensor);
    count_.store(owed_.size(), std::memory_order_relaxed);
}

// Before the tensor is used: the zeros are written in the background, and only its users wait for
// them.
Status OwedZeros::write_zeros(const stw_tensor *tensor)
{
    if (count_.load(std::memory_order_relaxed) == 0) return {};
    uint64_t bytes = 0;
    {
        MutexLock lock(dispatch_.mutex());
        if (owed_.count(tensor->id) == 0) return {};
        bytes = dispatch_.core.spec(tensor->id).bytes;  // as created, which is at least 1
    }
    STW_TRY(machine_.pipeline->zero(tensor->id, bytes));
    MutexLock lock(dispatch_.mutex());
    forget(tensor->id);
    return {};
}

// For calls that use many tensors.
Status OwedZeros::write_all_zeros()
{
    if (count_.load(std::memory_order_relaxed) == 0) return {};
    std::vector<stw_tensor *> owed;
    {
        MutexLock lock(dispatch_.mutex());
        for (const TensorId tensor : owed_) {
            if (stw_tensor *handle = handles_.at(tensor)) owed.push_back(handle);
        }
    }
    for (const stw_tensor *tensor : owed) STW_TRY(write_zeros(tensor));
    return {};
}

void OwedZeros::forget(TensorId tensor)
{
    owed_.erase(tensor);
    count_.store(owed_.size(), std::memory_order_relaxed);
}

}  // namespace stepwell
