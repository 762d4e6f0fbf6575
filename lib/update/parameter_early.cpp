// SPDX-License-Identifier: Apache-2.0
// A parameter that is updated before its verdict: what it was is kept, and the verdict takes that
// or what it became.
#include "lib/update/optimizer_parts.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stepwell::update {

// Its caller's thread, before the claim: allocates.
void ParameterJob::make_older()
{
    if (asked_older) return;
    asked_older = true;
    if (owner.custom.update != nullptr) return;  // may have effects that nobody can undo
    Tiers &tiers = owner.pipeline.tiers;
    has_older = true;
    for (uint32_t i = 0; i < turn_count && has_older; ++i) {
        if (i == kGradient) continue;
        // Bits take little of a block, and so little to copy.
        older[i] = tiers.make_older(turns[i].tensor, shape.is_split && i == kOpen);
        has_older = older[i] != kNone;
    }
    for (uint32_t i = 0; i < turn_count && !has_older; ++i) {
        if (older[i] != kNone) tiers.drop_older(std::exchange(older[i], kNone));
    }
}

// With the mutex held. An update with a gradient that is not finite comes after the verdict.
bool ParameterJob::may_be_early() const
{
    const bool finite = scanned.nonfinite == 0;
    return claims_older && finite && !on_device();
}

// What it writes is kept as it is now: no lock held, under the claim. Once it is ready or parked,
// its verdict may come, and its optimizer may be destroyed.
void ParameterJob::start_early()
{
    Pipeline::Parts &pipeline = owner.pipeline;
    Tiers &tiers = pipeline.tiers;
    bool keeps = !master_is_stale();
    TensorId tensors[kJobTensorsMax];
    TensorId kept[kJobTensorsMax];
    uint32_t places_of[kJobTensorsMax];
    uint32_t n = 0;
    for (uint32_t i = 0; i < turn_count && keeps; ++i) {
        if (i == kGradient) continue;
        keeps = tiers.contents(turns[i].tensor) == Contents::kValid;
        places_of[n] = i;
        tensors[n] = turns[i].tensor;
        kept[n++] = older[i];
    }
    uint64_t taken = 0;
    {
        MutexLock lock(owner.pipeline.mutex);
        taken = owner.copy_share.taken();
    }
    OlderCopies asked;
    keeps = keeps && tiers.keep_older(tensors, kept, n, taken, &asked);
    bool leaves = false;
    {
        MutexLock lock(owner.pipeline.mutex);
        phase = StepPhase::kVerdict;
        copied_bytes = keeps && !step->known ? asked.bytes : 0;
        owner.copy_share.note(asked.bytes, copied_bytes > 0, taken, asked.free_bytes);
        if (step->known) {
            leaves = owner.apply(*this, *step);
        } else if (keeps) {
            copies = 0;
            for (uint32_t i = 0; i < n; ++i) copies |= (asked.tensors >> i & 1) << places_of[i];
            begin(StepPhase::kEarly);
            owner.pipeline.make_ready(*this);
        } else if (step->early) {
            owner.park(*this);
        }
    }
    if (leaves) leave_decided();
    pipeline.ask_to_pump();
}

uint32_t ParameterJob::tensors_to_undo() const
{
    const bool may_undo = step != nullptr && (step->early || undoes);
    return may_undo && claims_older ? turn_count - 1 : 0;
}

// Whether an update by the verdict would have had the same inputs.
bool ParameterJob::judged_alike() const
{
    if (step->scale != early_scale) return false;
    return std::all_of(parts.begin(), parts.end(), [](const Part *part) {
        return std::memcmp(&part->hyper, &part->judged_hyper, sizeof part->hyper) == 0;
    });
}

uint32_t ParameterJob::tensors_of(const Part &part) const
{
    if (phase == StepPhase::kJoin) return turn_count;
    const uint32_t states =
        undoes ? std::max(part.states_used, part.early_states) : part.states_used;
    return shape.first_state() + states;
}

bool ParameterJob::has_older_piece(const Part &part, uint32_t tensor) const
{
    if (tensor == kGradient || tensor >= shape.first_state() + part.early_states) return false;
    return undoes || (phase == StepPhase::kEarly && (copies >> tensor & 1) != 0);
}

// Pieces of older contents come after those of all tensors, in the same order.
void ParameterJob::copy_older(const Chunk &chunk, const Part &part) const
{
    const uint32_t n = tensors_of(part);
    uint32_t at = n;
    for (uint32_t i = 0; i < n; ++i) {
        if (!has_older_piece(part, i)) continue;
        void *const mine = chunk.pointers[i];
        void *const its = chunk.pointers[at++];
        std::memcpy(undoes ? mine : its, undoes ? its : mine, chunk.pieces[i].byte_count);
    }
}

// It waits for its verdict, or has it. A failed one does as well, so that its gradient is in the
// norm of the others: the update by the verdict is refused for the same cause.
void ParameterJob::end_early()
{
    const bool updated = error.ok();
    if (updated) {
        owner.pipeline.tiers.lend(claim, shape.layouts[kParameter].tensor);
    } else {
        tell_failure();
    }
    bool leaves = false;
    bool fails = false;
    {
        MutexLock lock(owner.pipeline.mutex);
        owner.copy_share.end_copies(copied_bytes);
        phase = updated ? StepPhase::kUpdated : StepPhase::kVerdict;
        if (!updated && step->failure.ok()) step->failure = error;
        error = Status();
        fails = !updated && step->known;
        if (fails) --step->result.updated;
        if (updated && step->known) leaves = owner.apply(*this, *step);
        if (step->early) owner.park(*this);
    }
    if (fails) leave(0);
    if (leaves) leave_decided();
}

// Nothing was updated after all.
void ParameterJob::end_restore()
{
    if (error.ok()) {
        note_versions();
    } else {
        tell_failure();
    }
    {
        MutexLock lock(owner.pipeline.mutex);
        phase = StepPhase::kVerdict;
        if (!error.ok() && step->failure.ok()) step->failure = error;
    }
    leave_decided();
}

// By its verdict: with the early update, or with none.
void ParameterJob::leave_decided()
{
    const bool updated = phase == StepPhase::kUpdated;
    if (updated) {
        note_versions();
        MutexLock lock(owner.pipeline.mutex);
        ++count;
    }
    const bool keeps = (step->flags & STW_UPDATE_KEEP_GRADIENTS) != 0;
    const bool empties = (updated || step->result.skipped) && !keeps;
    leave(empties ? uint64_t{1} << kGradient : 0);
}

}  // namespace stepwell::update
