// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/tensors/zeros.h"

#include "lib/residency/core.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/update/pipeline.h"

#include <vector>

namespace stepwell {

using residency::TensorId;

// Before the tensor is used: the zeros are written in the background, and only its users wait for
// them.
Status OwedZeros::write_zeros(const stw_tensor *tensor)
{
    if ((tensor->flags & STW_TENSOR_ZERO) == 0 && tensor->elements > 0) return {};
    uint64_t bytes = 0;
    {
        MutexLock lock(dispatch_.mutex());
        if (dispatch_.core.owed_zeros().count(tensor->id) == 0) return {};
        bytes = dispatch_.core.spec(tensor->id).bytes;  // as created, which is at least 1
    }
    STW_TRY(machine_.pipeline->zero(tensor->id, bytes));
    MutexLock lock(dispatch_.mutex());
    dispatch_.core.give_zeros(tensor->id);
    return {};
}

// For calls that use many tensors.
Status OwedZeros::write_all_zeros()
{
    std::vector<stw_tensor *> owed;
    {
        MutexLock lock(dispatch_.mutex());
        for (const TensorId tensor : dispatch_.core.owed_zeros()) {
            if (stw_tensor *handle = handles_.at(tensor)) owed.push_back(handle);
        }
    }
    for (const stw_tensor *tensor : owed) STW_TRY(write_zeros(tensor));
    return {};
}

}  // namespace stepwell
