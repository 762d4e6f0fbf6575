// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/tensors/buffers.h"

#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/addresses/metadata.h"
#include "lib/runtime/addresses/sink.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/support/assert.h"

namespace stepwell {

using residency::PlaceId;
using residency::TensorId;

// A tensor of the library's own, for a sum or a conversion.
Result<TensorId> PrivateBuffers::make_buffer(const stw_tensor &tensor, uint64_t bytes)
{
    residency::TensorSpec spec;
    spec.name = tensor.name;
    spec.bytes = bytes;
    spec.role = STW_ROLE_GRAD;
    spec.no_packing = true;
    spec.policy = placement_.default_policy(STW_ROLE_GRAD);
    return make(spec);
}

Result<TensorId> PrivateBuffers::make(residency::TensorSpec spec)
{
    spec.passing = true;
    STW_TRY(metadata_.metadata_room(spec));
    metadata_.prepare_tables(spec);
    Result<TensorId> made = dispatch_.core.create(spec);
    if (!made.ok()) return std::move(made.status());
    Status status = addresses_.address_pack(made.value(), nullptr);
    if (status.ok()) return made;
    Commands out;
    (void)dispatch_.core.destroy(made.value(), out);
    sink_.forget_unused(out);
    return status;
}

Status PrivateBuffers::make_scratch(RequestedRange &range)
{
    Result<residency::TensorId> made = make_buffer(*range.tensor, sum_bytes(range));
    if (made.ok()) range.scratch = made.value();
    return std::move(made.status());
}

void PrivateBuffers::drop_scratch(residency::TensorId scratch)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        const Status status = core.destroy(scratch, out);
        STW_ASSERT(status.ok());
    });
}

void PrivateBuffers::drop_scratches(FetchPlan &plan)
{
    for (RequestedRange &range : plan.ranges) {
        if (range.scratch != residency::kNone) drop_scratch(range.scratch);
        range.scratch = residency::kNone;
    }
}

// Adds the private buffer of a REDUCE to its gradient after the call, and drops it.
Status PrivateBuffers::accumulate(const ViewSlot &slot, residency::TensorId sum,
                                  uint64_t sum_elements)
{
    const stw_tensor &gradient = *slot.tensor;
    const uint64_t element_bytes = gradient.element_bits / 8;
    const uint32_t dtype = slot.dtype;
    Status status =
        add_up(gradient, slot.scratch, dtype ? dtype : gradient.dtype, sum,
               {slot.byte_begin / element_bytes, slot.byte_count / element_bytes}, sum_elements);
    if (!status.ok()) drop_scratch(slot.scratch);
    return status;
}

// sum[range] += scratch, which is then dropped; on an error it is not.
Status PrivateBuffers::add_up(const stw_tensor &gradient, residency::TensorId scratch,
                              uint32_t scratch_dtype, residency::TensorId sum,
                              collective::Range range, uint64_t sum_elements)
{
    struct Done {
        PrivateBuffers *owner;
        residency::TensorId scratch;
    };
    auto *done = new Done{this, scratch};
    update::Accumulation work;
    work.gradient = sum;
    work.gradient_dtype = gradient.dtype;
    work.scratch = scratch;
    work.scratch_dtype = scratch_dtype;
    work.element_begin = range.begin;
    work.element_count = range.count;
    work.gradient_elements = sum_elements;
    work.done_user = done;
    work.done = [](void *user, const Status &) {
        auto *mine = static_cast<Done *>(user);
        mine->owner->drop_scratch(mine->scratch);
        delete mine;
    };
    Status status = machine_.pipeline->accumulate(work);
    if (!status.ok()) delete done;
    return status;
}

}  // namespace stepwell
