// SPDX-License-Identifier: Apache-2.0
// Sums into gradients: one job per contribution. The queue for the gradient keeps them in the order
// of the calls, so the sum has the same bits whatever completes first.
#include "lib/update/cuts.h"
#include "lib/update/parts.h"

#include <cinttypes>
#include <memory>

namespace stepwell::update {
namespace {

enum : uint32_t { kGradient, kScratch, kTensors };

struct AccumulateJob final : Job {
    AccumulateJob(Pipeline::Parts &parts, const Accumulation &asked);

    void cut(Chunk &chunk) override;
    [[nodiscard]] bool more() const override { return cursor < sum.element_count; }
    [[nodiscard]] uint32_t chunk_pieces() const override { return kTensors; }
    Chunk *settle(Chunk &chunk) override;
    Status opened() override;
    Status run(Chunk &chunk) override;
    void end() override;

    Pipeline::Parts &pipeline;
    const Accumulation sum;
    Layout layouts[kTensors];
    uint64_t cursor = 0;
    kernels::Reduce mode = kernels::Reduce::kAdd;
};

AccumulateJob::AccumulateJob(Pipeline::Parts &parts, const Accumulation &asked)
    : pipeline(parts), sum(asked)
{
    layouts[kGradient] = {sum.gradient, parts.tiers.pack_offset(sum.gradient),
                          element_bytes(sum.gradient_dtype)};
    layouts[kScratch] = {sum.scratch, parts.tiers.pack_offset(sum.scratch),
                         element_bytes(sum.scratch_dtype)};
    turns[kGradient].tensor = sum.gradient;
    turns[kScratch].tensor = sum.scratch;
    turn_count = kTensors;
}

void AccumulateJob::cut(Chunk &chunk)
{
    chunk.scans = false;
    chunk.element_begin = cursor;
    chunk.element_count =
        common_run(layouts, kTensors, cursor, sum.element_count - cursor, pipeline.block_bytes);
    chunk.piece_count = 0;
    for (const Layout &layout : layouts) {
        const Access access = &layout == &layouts[kGradient] ? Access::kReadWrite : Access::kRead;
        chunk.piece_count +=
            make_pieces(layout, access, cursor, chunk.element_count, pipeline.block_bytes,
                        chunk.pieces + chunk.piece_count, kPiecesMax - chunk.piece_count);
    }
    cursor += chunk.element_count;
}

Chunk *AccumulateJob::settle(Chunk &chunk)
{
    chunk.next = nullptr;
    return &chunk;
}

Status AccumulateJob::opened()
{
    const bool empty = pipeline.tiers.contents(sum.gradient) == Contents::kEmpty;
    mode = empty ? kernels::Reduce::kFirst : kernels::Reduce::kAdd;
    return {};
}

Status AccumulateJob::run(Chunk &chunk)
{
    kernels::accumulate(mode, chunk.pointers[kGradient], sum.gradient_dtype,
                        chunk.pointers[kScratch], sum.scratch_dtype, chunk.element_count,
                        sum.scale);
    return {};
}

void AccumulateJob::end()
{
    const std::unique_ptr<AccumulateJob> self(this);
    const Status status = std::move(error);
    if (!status.ok()) {
        pipeline.tiers.fail(sum.gradient, status);
        pipeline.report(sum.gradient, status);
    }
    pipeline.tiers.unclaim(claim, sum.gradient);
    pipeline.tiers.unclaim(claim, sum.scratch);
    {
        MutexLock lock(pipeline.mutex);
        pipeline.retire(*this);
    }
    if (sum.done != nullptr) sum.done(sum.done_user, status);
    MutexLock lock(pipeline.mutex);
    --pipeline.accumulations;
    pipeline.job_gone();
}

}  // namespace

Status Pipeline::accumulate(const Accumulation &asked)
{
    if (element_bytes(asked.gradient_dtype) == 0 || element_bytes(asked.scratch_dtype) == 0 ||
        asked.element_count == 0 || asked.gradient == asked.scratch) {
        return Status::error(STW_ERROR_INVALID,
                             "A sum takes elements of F32, F16 or BF16 of two tensors; asked were "
                             "%" PRIu64 " elements of dtypes %u and %u of tensors %u and %u.",
                             asked.element_count, asked.gradient_dtype, asked.scratch_dtype,
                             asked.gradient, asked.scratch);
    }
    auto made = std::make_unique<AccumulateJob>(*parts_, asked);
    {
        MutexLock claiming(parts_->claiming);
        {
            MutexLock lock(parts_->mutex);
            if (parts_->closing) {
                return Status::error(STW_ERROR_CLOSED, "The runtime closes: no more sums.");
            }
            if (parts_->accumulations == kAccumulationsMax) {
                return Status::error(STW_ERROR_LIMIT, "%u sums into gradients are pending already.",
                                     kAccumulationsMax);
            }
            ++parts_->accumulations;
            parts_->enqueue(*made);
        }
        AccumulateJob *job = made.release();  // its own from here on, see end()
        const TensorId tensors[] = {asked.gradient, asked.scratch};
        const ClaimId claim = parts_->tiers.claim(tensors, kTensors);
        MutexLock lock(parts_->mutex);
        parts_->activate(*job, claim);
    }
    parts_->pump();
    return {};
}

}  // namespace stepwell::update
