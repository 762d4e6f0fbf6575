// SPDX-License-Identifier: Apache-2.0
// A bf16 parameter whose fp32 master is in parts: what the parameter lacks is kept beside it, so
// that an update moves nearly 2 bytes less per parameter in each direction. The parts become a
// master when somebody asks for it.
#include "lib/support/assert.h"
#include "lib/update/optimizer_parts.h"

#include <cstring>
#include <utility>

namespace stepwell::update {

// The kernel works on an fp32 master: the parts are joined for it, and split again.
void ParameterJob::update_split(kernels::Chunk &work, const Chunk &chunk, const Part &part,
                                uint64_t begin) const
{
    alignas(64) float master[kSliceElements];
    STW_ASSERT(work.count <= kSliceElements && begin % 8 == 0);
    const auto *values = static_cast<const uint16_t *>(work.values);
    const kernels::SplitMaster parts_of_it{static_cast<uint16_t *>(chunk.pointers[kLow]) + begin,
                                           static_cast<uint8_t *>(chunk.pointers[kOpen]) +
                                               begin / 8};
    if (fresh.master || part.makes_master) {
        kernels::convert(master, STW_F32, values, STW_BF16, work.count);
    } else {
        kernels::merge_master(master, values, parts_of_it, work.count);
    }
    if (fresh.average || part.makes_average) {
        std::memcpy(average_of(chunk) + begin, master, work.count * sizeof(float));
    }
    work.master = master;
    update_master(work, chunk, part, begin);
    kernels::split_master(parts_of_it, master, work.count);
}

// ------------------------------------------------------------------------------------- joined ----

void ParameterJob::begin_join(TensorId master, uint64_t pack_offset)
{
    STW_ASSERT(shape.is_split && turn_count < kJobTensorsMax);
    turns[turn_count].tensor = master;
    shape.layouts[turn_count] = {master, pack_offset, element_bytes(STW_F32)};
    ++turn_count;
    undoes = claims_older = false;
    fresh = {};
    begin(StepPhase::kJoin);
}

void ParameterJob::cut_join(Chunk &chunk) const
{
    const uint32_t joined[kJoined] = {kParameter, turn_count - 1, kLow, kOpen};
    chunk.scans = false;
    chunk.piece_count = fresh.master ? 2 : kJoined;  // of which the parts are the last
    for (uint32_t at = 0; at < chunk.piece_count; ++at) {
        const Layout &layout = shape.layouts[joined[at]];
        const Access access = at == 1 ? Access::kReadWrite : Access::kRead;
        make_pieces(layout, access, chunk.element_begin, chunk.element_count,
                    owner.pipeline.block_bytes, chunk.pieces + at, 1);
        if (at > 0 && block_is_through(layout, chunk, chunk.element_count))
            chunk.far_pieces |= uint64_t{1} << at;
    }
}

void ParameterJob::join(const Chunk &chunk) const
{
    auto *master = static_cast<float *>(chunk.pointers[1]);
    const auto *values = static_cast<const uint16_t *>(chunk.pointers[0]);
    if (fresh.master) {
        kernels::convert(master, STW_F32, values, STW_BF16, chunk.element_count);
        return;
    }
    kernels::merge_master(
        master, values,
        {static_cast<uint16_t *>(chunk.pointers[2]), static_cast<uint8_t *>(chunk.pointers[3])},
        chunk.element_count);
}

// The next update takes the master for what it is: made anew from a parameter that was written, or
// as the last update left it.
void ParameterJob::end_join()
{
    Tiers &tiers = owner.pipeline.tiers;
    const TensorId master = shape.layouts[turn_count - 1].tensor;
    if (!error.ok()) {
        tiers.fail(master, error);
        owner.pipeline.report(master, error);
    }
    master_version = tiers.version(master);
    // Another early update has one for the master.
    for (TensorId &tensor : older) {
        if (tensor != kNone) tiers.drop_older(std::exchange(tensor, kNone));
    }
    has_older = asked_older = false;
    leave(uint64_t{1} << kLow | uint64_t{1} << kOpen);
}

// No job has a turn at the parts any more.
void ParameterJob::forget_parts()
{
    shape.layouts[kOthers] = shape.layouts[turn_count - 1];
    turn_count -= 2;
    for (uint32_t i = kOthers + 1; i < turn_count; ++i) shape.layouts[i] = shape.layouts[i + 1];
    for (uint32_t i = 0; i < turn_count; ++i) turns[i].tensor = shape.layouts[i].tensor;
    shape.is_split = false;
}

// In a step of its own, which is not the one that result() is about.
Status Optimizer::Parts::begin_join(ParameterJob &job, TensorId master)
{
    const uint64_t pack_offset = pipeline.tiers.pack_offset(master);  // takes the runtime's lock
    {
        MutexLock claiming(pipeline.claiming);
        TensorId claimed[kJobTensorsMax];
        {
            MutexLock lock(pipeline.mutex);
            if (pipeline.closing)
                return Status::error(STW_ERROR_CLOSED, "The runtime closes: no more updates.");
            Step &step = early_step();
            step.active = true;
            step.jobs_left = 1;
            ++active_steps;
            job.step = &step;
            job.begin_join(master, pack_offset);
            pipeline.enqueue(job, pipeline.number_call());
            job.urgent = true;
            for (uint32_t i = 0; i < job.turn_count; ++i) claimed[i] = job.turns[i].tensor;
        }
        const ClaimId claim = pipeline.tiers.claim(claimed, job.turn_count);
        MutexLock lock(pipeline.mutex);
        pipeline.place_job(job, kAnyCpuPlace);
        pipeline.activate(job, claim);
    }
    pipeline.ask_to_pump();
    return {};
}

Status Optimizer::join_master(TensorId parameter, TensorId master, uint64_t timeout_ns,
                              bool *begun_out)
{
    *begun_out = false;
    Waiter waiter;
    const auto wait_for_steps = [&]() -> Status {
        MutexLock lock(parts_->pipeline.mutex);
        while (parts_->active_steps > 0) STW_TRY(parts_->pipeline.sleep(waiter));
        return {};
    };
    {
        MutexLock lock(parts_->pipeline.mutex);
        waiter = parts_->pipeline.waiter(timeout_ns);
        if (parts_->early_steps > 0) {
            return Status::error(STW_ERROR_BUSY,
                                 "Parameters of this optimizer were updated speculatively: ask for "
                                 "a master before that, or after the step that is their verdict.");
        }
    }
    STW_TRY(wait_for_steps());
    ParameterJob *const job = parts_->find(parameter);
    STW_ASSERT(job != nullptr && job->shape.is_split);
    const TensorId split[] = {job->turns[ParameterJob::kLow].tensor,
                              job->turns[ParameterJob::kOpen].tensor};
    parts_->by_tensor.emplace(master, job);
    parts_->tensors.reserve(parts_->by_tensor.size());
    const Status begun = parts_->begin_join(*job, master);
    if (!begun.ok()) {
        parts_->by_tensor.erase(master);
        return begun;
    }
    *begun_out = true;
    STW_TRY(wait_for_steps());
    for (const TensorId part : split) parts_->by_tensor.erase(part);
    return {};
}

// ----------------------------------------------------------------------------- read and write ----

Result<bool> Optimizer::remakes_master(TensorId parameter, uint64_t timeout_ns)
{
    Pipeline::Parts &pipeline = parts_->pipeline;
    const ParameterJob *const job = parts_->find(parameter);
    STW_ASSERT(job != nullptr && job->shape.has_master);
    {
        MutexLock lock(pipeline.mutex);
        const Waiter waiter = pipeline.waiter(timeout_ns);
        while (job->step != nullptr) {
            if (job->step->early) {
                return Status::error(STW_ERROR_BUSY,
                                     "%s was updated speculatively: read or write its master "
                                     "before that, or after the step that is the verdict",
                                     parameter_text(job->name).c_str());
            }
            STW_TRY(pipeline.sleep(waiter));
        }
    }
    const TensorId master = job->shape.layouts[ParameterJob::kOthers].tensor;
    return pipeline.tiers.contents(master) == Contents::kEmpty || job->master_is_stale();
}

}  // namespace stepwell::update
