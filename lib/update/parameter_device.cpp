// SPDX-License-Identifier: Apache-2.0
// A parameter that is updated on a device: the choice of the device, and its pieces of work.
#include "lib/support/assert.h"
#include "lib/update/optimizer_parts.h"

#include <algorithm>

namespace stepwell::update {
namespace {

stw_update_coefficients for_device(const kernels::Coefficients &from)
{
    stw_update_coefficients to{};
    to.gradient_scale = from.gradient_scale;
    to.decay_factor = from.decay_factor;
    to.beta1 = from.beta1;
    to.one_minus_beta1 = from.one_minus_beta1;
    to.beta2 = from.beta2;
    to.one_minus_beta2 = from.one_minus_beta2;
    to.eps = from.eps;
    to.correction2_sqrt = from.correction2_sqrt;
    to.negative_step_size = from.negative_step_size;
    to.momentum = from.momentum;
    to.one_minus_dampening = from.one_minus_dampening;
    to.decay = static_cast<uint32_t>(from.decay);
    if (from.first_step) to.flags |= STW_MOMENTUM_FIRST;
    if (from.nesterov) to.flags |= STW_MOMENTUM_NESTEROV;
    return to;
}
static_assert(static_cast<uint32_t>(kernels::Decay::kDecoupled) == STW_DECAY_DECOUPLED &&
              static_cast<uint32_t>(kernels::Decay::kCoupled) == STW_DECAY_COUPLED);

}  // namespace

// The states decide, or the parameter itself if it has none. The order of PyTorch is that of its
// CPU kernels, which no device has, and devices work on whole masters.
PlaceId ParameterJob::find_place() const
{
    if (owner.custom.update != nullptr || owner.torch_order || shape.is_split || given != nullptr)
        return kAnyCpuPlace;
    TensorId tensors[kJobTensorsMax];
    for (uint32_t i = 0; i < turn_count; ++i) tensors[i] = turns[i].tensor;
    const uint32_t kept = turn_count > kOthers ? turn_count - kOthers : 1;
    const TensorId *const first = turn_count > kOthers ? tensors + kOthers : tensors + kParameter;
    return owner.pipeline.options.devices->place_for(owner.algorithm, first, kept, tensors,
                                                     kOthers);
}

Status ParameterJob::scan_on_device(Chunk &chunk) const
{
    const uint32_t bytes = element_bytes(shape.gradient_dtype);
    stw_scan_work work{};
    work.struct_size = sizeof work;
    work.dtype = shape.gradient_dtype;
    work.gradient = chunk.pointers[0];
    work.count = chunk.pieces[0].byte_count / bytes;
    if (chunk.piece_count > 1) {
        STW_ASSERT(chunk.piece_count == 2);
        work.rest = chunk.pointers[1];
        work.rest_count = chunk.pieces[1].byte_count / bytes;
    }
    chunk.sums_count = kernels::scan_block_count(chunk.element_count);
    Result<uint64_t> scan = owner.pipeline.options.devices->start_scan(chunk.ticket, work);
    if (!scan.ok()) return std::move(scan.status());
    chunk.begun = true;
    chunk.begun_as = scan.value();
    return {};
}

Status ParameterJob::results(Chunk &chunk)
{
    return owner.pipeline.options.devices->end_scan(place, chunk.begun_as, chunk.sums.get(),
                                                    &chunk.scan);
}

// The address of a tensor's elements from `done` on, and how many of them are contiguous.
uint64_t ParameterJob::lie_together(const Chunk &chunk, uint32_t tensor, uint64_t done,
                                    void **pointer_out) const
{
    uint64_t skip = done * shape.layouts[tensor].element_bytes;
    uint64_t bytes = 0;
    const char *end = nullptr;
    for (uint32_t i = 0; i < chunk.piece_count; ++i) {
        if (chunk.owners[i] != tensor) continue;
        const uint64_t its = chunk.pieces[i].byte_count;
        if (skip >= its) {
            skip -= its;
            continue;
        }
        char *const begin = static_cast<char *>(chunk.pointers[i]) + skip;
        if (end == nullptr) {
            *pointer_out = begin;
        } else if (begin != end) {
            break;
        }
        bytes += its - skip;
        end = begin + (its - skip);
        skip = 0;
    }
    return bytes / shape.layouts[tensor].element_bytes;
}

// In as few pieces of work as the contiguous blocks of its tensors allow: each piece costs a
// launch.
Status ParameterJob::update_on_device(const Chunk &chunk, const Part &part) const
{
    const uint32_t n = shape.first_state() + part.states_used;
    for (uint64_t done = 0; done < chunk.element_count;) {
        void *pointers[kJobTensorsMax] = {};
        uint64_t run = chunk.element_count - done;
        for (uint32_t i = 0; i < n; ++i)
            run = std::min(run, lie_together(chunk, i, done, &pointers[i]));
        STW_ASSERT(run > 0);
        stw_update_work work = work_of(part, pointers);
        work.count = run;
        work.first_element = chunk.element_begin + done;
        STW_TRY(owner.pipeline.options.devices->start_update(chunk.ticket, work));
        done += run;
    }
    return {};
}

stw_update_work ParameterJob::work_of(const Part &part, void *const *pointers) const
{
    stw_update_work work{};
    work.struct_size = sizeof work;
    work.algorithm = owner.algorithm;
    work.values = pointers[kParameter];
    work.master = pointers[shape.has_master ? kOthers : kParameter];
    work.gradient = pointers[kGradient];
    work.step = count + 1;
    work.values_dtype = shape.parameter_dtype;
    work.gradient_dtype = shape.gradient_dtype;
    work.states_dtype = shape.state_dtype;
    work.coefficients = for_device(part.coefficients);
    if (fresh.master || part.makes_master) work.fresh |= STW_FRESH_MASTER;
    if (shape.has_average) {
        work.average = pointers[shape.average_at()];
        work.average_weight = kernels::average_weight(owner.average_decay);
        if (fresh.average || part.makes_average) work.fresh |= STW_FRESH_AVERAGE;
    }
    STW_ASSERT(part.states_used <= 2);
    for (uint32_t i = 0; i < part.states_used; ++i) {
        work.states[i] = pointers[shape.first_state() + i];
        if ((fresh.states >> i & 1) != 0) work.fresh |= uint32_t{STW_FRESH_STATE_0} << i;
    }
    return work;
}

}  // namespace stepwell::update
