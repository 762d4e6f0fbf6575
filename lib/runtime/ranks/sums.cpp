// SPDX-License-Identifier: Apache-2.0
// Sums over ranks: gradients, to which every rank adds and of which each keeps its slice, and the
// numbers that make the verdict of an optimizer step.
#include "lib/runtime/ranks/sums.h"

#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/memory.h"
#include "lib/runtime/ranks/shards.h"
#include "lib/runtime/ranks/small_sums.h"
#include "lib/runtime/ranks/wholes.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/updates/body.h"
#include "lib/runtime/updates/tiers.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <new>
#include <utility>

namespace stepwell {

using residency::Access;
using residency::TensorId;

// --------------------------------------------------------------------------------- gradients ----

// The end of a buffer that a REDUCE added into. With MORE it is kept in this rank's part of the
// sum; without, that goes out to all ranks, in the order of releases. An empty contribution lends
// only its memory, if this rank has no part yet.
Status Sums::end(const ViewSlot &view, ReleaseHint hint)
{
    stw_tensor *tensor = view.tensor;
    Sharding &sharding = *tensor->sharding;
    residency::Release release;
    release.tensor = view.scratch;
    release.access = Access::kWrite;
    release.place = view.place;
    release.byte_count = buffer_bytes(view);
    bool drops = hint.drops();
    const bool more = hint.more();
    const bool all =
        view.dtype == 0 && view.byte_count == sharding.elements() * (tensor->element_bits / 8);
    const bool nothing = hint.nothing();
    TensorId source = residency::kNone;
    bool adds = false;
    bool gives = true;
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        core.release(release, out);
        drops |= collectives_.ranks_stopped();
        if (drops) return;
        if (!nothing) recorder_.note_reduced(tensor, view.step);
        adds = sharding.partial != residency::kNone || !all;
        gives = !nothing || sharding.partial != residency::kNone;
        if (!adds) {
            sharding.partial = view.scratch;
        } else if (sharding.partial == residency::kNone) {
            Result<TensorId> made = buffers_.make_buffer(*tensor, sharding.padded_elements() *
                                                                      (tensor->element_bits / 8));
            status = std::move(made.status());
            if (made.ok()) sharding.partial = made.value();
        }
        source = sharding.partial;
        if (!more) sharding.partial = residency::kNone;
    });
    if (drops || !status.ok()) {
        buffers_.drop_scratch(view.scratch);
        return status;
    }
    if (adds && (nothing || view.byte_count == 0)) {
        buffers_.drop_scratch(view.scratch);
    } else if (adds) {
        status = buffers_.accumulate(view, source, sharding.padded_elements());
    }
    if (more) return status;
    Status queued = queue_reduce(tensor, source, gives, status);
    return status.ok() ? queued : status;
}

// Queues the collective and, after it, the sum into the shard, both under claims taken here, so
// that later calls see the result. `gives`: this rank contributes a gradient. `cause`: why this
// rank cannot take part, for the others.
Status Sums::queue_reduce(stw_tensor *tensor, TensorId source, bool gives, const Status &cause)
{
    const bool sharded = tensor->sharding->is_sharded();
    auto next = std::make_unique<Collective>();
    next->kind = Collective::Kind::kReduce;
    next->tensors.push_back(tensor);
    next->source = source;
    next->gives = gives;
    next->cause = cause;
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        status = wholes_.write_shards(tensor, out);
        if (sharded) {
            const uint64_t size = tensor->element_bits / 8;
            const uint64_t bytes = tensor->sharding->partition.shard_elements * size;
            Result<TensorId> made = buffers_.make_buffer(*tensor, bytes);
            if (made.ok()) next->sums = made.value();
            if (!made.ok() && next->cause.ok()) next->cause = std::move(made.status());
        }
        core.advise(source, residency::Advice::kHot, out);
        if (next->sums != residency::kNone) {
            core.advise(next->sums, residency::Advice::kHot, out);
        }
        next->claim = core.claim();
        core.claim_tensor(next->claim, source);
        if (next->sums != residency::kNone) core.claim_tensor(next->claim, next->sums);
        core.keep(tensor->id);
    });
    const TensorId sums = sharded ? next->sums : source;
    next->adds = sums != residency::kNone && tensor->elements > 0;
    if (next->adds) {
        Status added = buffers_.add_up(*tensor, sums, tensor->dtype, tensor->id,
                                       {0, tensor->elements}, tensor->elements);
        next->adds = added.ok();
        if (next->cause.ok()) next->cause = added;
        if (status.ok()) status = std::move(added);
    }
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        collectives_.queue_collective(std::move(next));
    });
    return status;
}

// A single sum, or the first of several that go together.
void Sums::run_reduce(Collective &work)
{
    stw_tensor &tensor = *work.tensors[0];
    const collective::Partition &partition = tensor.sharding->partition;
    const uint64_t size = tensor.element_bits / 8;
    const bool sharded = work.sums != residency::kNone;
    const uint64_t bytes = tensor.sharding->padded_elements() * size;
    residency::FetchAsked asked;
    asked.claim = work.claim;
    asked.requests.push_back({work.source, sharded ? Access::kRead : Access::kReadWrite,
                              machine_.ranks->place, 0, bytes});
    if (sharded) {
        asked.requests.push_back(
            {work.sums, Access::kWrite, machine_.ranks->place, 0, partition.shard_bytes()});
    }
    Waiter waiter;
    Status status = work.cause;
    if (status.ok()) status = shards_.take_pieces(waiter, asked);
    const bool taken = status.ok();
    if (taken) {
        status = group_memory_.order_group(addresses_.bytes_at(work.source, waiter.grants[0]),
                                           bytes, !sharded);
        if (status.ok() && sharded) {
            status = group_memory_.order_group(addresses_.bytes_at(work.sums, waiter.grants[1]),
                                               partition.shard_bytes(), true);
        }
    }
    const std::vector<Collective *> together =
        taken ? small_sums(work) : std::vector<Collective *>{&work};
    const auto kind =
        tensor.sharding->is_sharded() ? collective::Kind::kReduce : collective::Kind::kSum;
    collective::Record mine = collectives_.record_of(kind, work.tensors, status);
    mine.counts[0] = together.size();
    mine.counts[3] = work.gives ? 1 : 0;
    SumAgreed agreed;
    status = agree_sum(mine, &agreed);
    char *source = status.ok() ? addresses_.bytes_at(work.source, waiter.grants[0]) : nullptr;
    if (status.ok() && agreed.count > 1) {
        SmallSums sums({together.begin(), together.begin() + static_cast<ptrdiff_t>(agreed.count)},
                       machine_.ranks->group.size());
        const Status put =
            sums.put(0, source, machine_.ranks->bucket_data(), group_memory_.mover());
        // Frees the source's room for the others. The room of the sum is taken again later.
        shards_.give_pieces(waiter, asked, sharded);
        return run_sums(std::move(sums), put);
    }
    const bool nothing = status.ok() && !agreed.given;
    if (status.ok() && !nothing) {
        char *sums = sharded ? addresses_.bytes_at(work.sums, waiter.grants[1]) : source;
        const uint64_t elements = sharded ? partition.shard_elements : partition.elements;
        status = sum_over_ranks(tensor.id, source, sums, elements, tensor.dtype);
    }
    // The engine may still access the memory, so it is not used again; its claims stay.
    if (machine_.ranks->holds_memory()) return pieces_.fail(tensor.id, status);
    // If no rank gave anything, the sum is dropped and the gradient unchanged.
    if (taken) shards_.give_pieces(waiter, asked, !status.ok() || nothing);
    end_reduce(work, status);
}

// Ends the claims and drops the buffers.
void Sums::end_reduce(const Collective &work, const Status &status)
{
    stw_tensor &tensor = *work.tensors[0];
    const bool sharded = work.sums != residency::kNone;
    if (!status.ok()) pieces_.fail(tensor.id, status);
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        if (!status.ok()) core.fail(sharded ? work.sums : work.source, status);
        core.unclaim_tensor(work.claim, work.source, false, out);
        if (sharded) core.unclaim_tensor(work.claim, work.sums, false, out);
        core.let_go(tensor.id);
    });
    // add_up() drops the buffer that it adds to the shard.
    if (sharded) buffers_.drop_scratch(work.source);
    if (sharded && !work.adds) buffers_.drop_scratch(work.sums);
    if (!sharded && !work.adds) buffers_.drop_scratch(work.source);
}

// ------------------------------------------------------------------------------- the verdict ----

void LocalVerdict::publish(const update::Verdict &mine)
{
    MutexLock lock(mutex_);
    mine_ = mine;
    published_ = true;
    changed_.notify_all();
}

void LocalVerdict::retract(Status cause)
{
    MutexLock lock(mutex_);
    mine_.status = std::move(cause);
    retracted_ = true;
    changed_.notify_all();
}

bool LocalVerdict::wait(update::Verdict *mine_out)
{
    MutexLock lock(mutex_);
    while (!published_ && !retracted_) changed_.wait(mutex_);
    *mine_out = mine_;
    return published_;
}

void Sums::run_verdict(Collective &work)
{
    update::Verdict mine;
    const bool begun = work.verdict->wait(&mine);
    collective::Record record = collective::make_record(collective::Kind::kVerdict, work.name);
    record.values[0] = mine.sum;
    record.values[1] = mine.maximum;
    record.counts[0] = mine.nonfinite;
    record.spec = work.step.hash;
    collective::set_text(record, work.step.words);
    if (!mine.status.ok()) collective::set_status(record, mine.status);
    std::vector<collective::Record> ranks;
    update::Verdict all;
    all.status = machine_.ranks->group.agree(record, ranks);
    // In rank order, so that all ranks get the same bits.
    for (const collective::Record &rank : ranks) {
        all.sum += rank.values[0];
        all.maximum = std::max(all.maximum, rank.values[1]);
        all.nonfinite += rank.counts[0];
    }
    if (machine_.ranks->replicas) agree_verdict(record, &all);
    if (begun) work.optimizer->agreed(all);
}

// Replicas have the same sums and norm, but the decision must not depend on it.
void Sums::agree_verdict(collective::Record record, update::Verdict *all)
{
    record.counts[0] = all->nonfinite;
    if (!all->status.ok()) collective::set_status(record, all->status);
    std::vector<collective::Record> replicas;
    Status status = machine_.ranks->replicas->agree(record, replicas);
    for (const collective::Record &rank : replicas) {
        all->nonfinite = std::max(all->nonfinite, rank.counts[0]);
    }
    if (all->status.ok()) all->status = std::move(status);
}

// Only tensors partitioned over ranks, and their groups, must be updated alike; other tensors of a
// rank need not be.
StepSpec Sums::describe_step(const OptimizerBody &body, const std::vector<stw_tensor *> &parameters,
                             const update::StepOptions &step)
{
    constexpr uint32_t kShared = STW_UPDATE_MEASURE | STW_UPDATE_SKIP_NONFINITE;
    StepSpec spec;
    const double scale = step.gradient_scale == 0.0 ? 1.0 : step.gradient_scale;
    const double norm_type = step.norm_type == 0.0 ? 2.0 : step.norm_type;
    const double numbers[] = {step.clip_norm + 0.0, norm_type, scale,
                              static_cast<double>(step.flags & kShared),
                              static_cast<double>(body.state_dtype)};
    spec.hash = collective::hash_bytes(body.shared_hash, numbers, sizeof numbers);
    spec.words =
        format_text("algorithm %u, clip_norm %.9g, norm_type %g, gradient_scale %.9g, "
                    "flags 0x%x",
                    body.algorithm, step.clip_norm, norm_type, scale, step.flags & kShared);
    for (const uint32_t group : body.shared_groups) {
        const stw_hyper hyper = body.optimizer->hyper(group);
        const double values[] = {static_cast<double>(group),
                                 static_cast<double>(hyper.flags),
                                 hyper.lr + 0.0,
                                 hyper.beta1 + 0.0,
                                 hyper.beta2 + 0.0,
                                 hyper.eps + 0.0,
                                 hyper.weight_decay + 0.0,
                                 hyper.momentum + 0.0,
                                 hyper.dampening + 0.0,
                                 hyper.lr_decay + 0.0};
        spec.hash = collective::hash_bytes(spec.hash, values, sizeof values);
        if (group != *body.shared_groups.begin()) continue;
        spec.words += format_text(", lr %.9g, weight_decay %.9g", hyper.lr, hyper.weight_decay);
    }
    size_t shared = 0;
    size_t early = 0;
    for (const stw_tensor *tensor : parameters) {
        if (!tensor->sharding) continue;
        ++shared;
        spec.hash = collective::hash_name(spec.hash, tensor->name);
        if (!tensor->sharding->undecided) continue;
        ++early;
        spec.hash = collective::hash_name(spec.hash, "updated speculatively");
    }
    spec.words += format_text(", %zu tensors of all ranks, %zu speculated; all of it as %08x",
                              shared, early, static_cast<unsigned>(spec.hash ^ spec.hash >> 32));
    return spec;
}

// Called before the step: queues its verdict among the collectives. Gathered copies of what is
// updated are invalid from here on.
std::shared_ptr<LocalVerdict> Sums::queue_verdict(OptimizerBody &body,
                                                  const std::vector<stw_tensor *> &parameters,
                                                  const std::vector<stw_tensor *> &changed,
                                                  const update::StepOptions &step)
{
    std::shared_ptr<LocalVerdict> verdict;
    auto next = std::make_unique<Collective>();
    if (update::has_verdict(step)) verdict = std::make_shared<LocalVerdict>();
    next->kind = Collective::Kind::kVerdict;
    next->optimizer = body.optimizer.get();
    next->name = body.name;
    next->verdict = verdict;
    if (verdict) next->step = describe_step(body, parameters, step);
    dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        if ((step.flags & STW_UPDATE_MEASURE) == 0) {
            for (const stw_tensor *tensor : changed) wholes_.update_shards(tensor, out);
        }
        if (verdict) collectives_.queue_collective(std::move(next));
    });
    return verdict;
}

void Sums::run(Collective &work)
{
    if (work.kind == Collective::Kind::kReduce) return run_reduce(work);
    run_verdict(work);
}

}  // namespace stepwell
