// SPDX-License-Identifier: Apache-2.0
// Tensors of the library's own: buffers of views that sum or convert, which are created, added to
// their gradient and destroyed, and older contents of tensors.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

namespace stepwell {

class AddressTable;
class MetadataBudget;
class Placement;
class TransferSink;

class PrivateBuffers final : Grounded {
public:
    PrivateBuffers(const Ground &ground, AddressTable &addresses, MetadataBudget &metadata,
                   Placement &placement, TransferSink &sink)
        : Grounded(ground),
          addresses_(addresses),
          metadata_(metadata),
          placement_(placement),
          sink_(sink)
    {
    }

    void drop_scratches(FetchPlan &plan);
    Status make_scratch(RequestedRange &range) STW_REQUIRES(runtime_lock);
    void drop_scratch(residency::TensorId scratch);
    Status accumulate(const ViewSlot &slot, residency::TensorId sum, uint64_t sum_elements);
    Status add_up(const stw_tensor &gradient, residency::TensorId scratch, uint32_t scratch_dtype,
                  residency::TensorId sum, collective::Range range, uint64_t sum_elements);
    Result<residency::TensorId> make_buffer(const stw_tensor &tensor, uint64_t bytes)
        STW_REQUIRES(runtime_lock);
    Result<residency::TensorId> make(residency::TensorSpec spec) STW_REQUIRES(runtime_lock);

private:
    AddressTable &addresses_;
    MetadataBudget &metadata_;
    Placement &placement_;
    TransferSink &sink_;
};

}  // namespace stepwell
