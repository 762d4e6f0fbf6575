// SPDX-License-Identifier: Apache-2.0
// A parameter that is worked on by a device: where that is, and what of it the device is asked for.
#include "lib/support/assert.h"
#include "lib/update/optimizer_parts.h"

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

// What stays is its states; where it has none, itself.
PlaceId ParameterJob::find_place() const
{
    if (owner.custom.update != nullptr) return kAnyCpuPlace;
    TensorId tensors[kJobTensorsMax];
    for (uint32_t i = 0; i < turn_count; ++i) tensors[i] = turns[i].tensor;
    const uint32_t kept = turn_count > kOthers ? turn_count - kOthers : 1;
    const TensorId *const first = turn_count > kOthers ? tensors + kOthers : tensors + kParameter;
    return owner.pipeline.options.devices->place_for(owner.algorithm, first, kept, tensors,
                                                     kOthers);
}

Status ParameterJob::scan_on_device(Chunk &chunk) const
{
    const uint32_t bytes = element_bytes(gradient_dtype);
    stw_scan_work work{};
    work.struct_size = sizeof work;
    work.dtype = gradient_dtype;
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

Status ParameterJob::update_on_device(const Chunk &chunk, const Part &part) const
{
    stw_update_work work{};
    work.struct_size = sizeof work;
    work.algorithm = owner.algorithm;
    work.values = chunk.pointers[kParameter];
    work.master = master_of(chunk);
    work.gradient = chunk.pointers[kGradient];
    work.count = chunk.element_count;
    work.first_element = chunk.element_begin;
    work.step = count + 1;
    work.values_dtype = parameter_dtype;
    work.gradient_dtype = gradient_dtype;
    work.states_dtype = state_dtype;
    work.coefficients = for_device(part.coefficients);
    if (fresh_master || part.makes_master) work.fresh |= STW_FRESH_MASTER;
    if (has_average) {
        work.average = average_of(chunk);
        work.average_weight = kernels::average_weight(owner.average_decay);
        if (fresh_average || part.makes_average) work.fresh |= STW_FRESH_AVERAGE;
    }
    STW_ASSERT(part.states_used <= 2);
    for (uint32_t i = 0; i < part.states_used; ++i) {
        work.states[i] = chunk.pointers[first_state() + i];
        if ((fresh_states >> i & 1) != 0) work.fresh |= uint32_t{STW_FRESH_STATE_0} << i;
    }
    return owner.pipeline.options.devices->start_update(chunk.ticket, work);
}

}  // namespace stepwell::update
