// SPDX-License-Identifier: Apache-2.0
// Adopted gradients are added by the update threads, as private buffers are, directly from the
// memory that the program handed over, which is given back afterwards.
#include "lib/runtime/calls/reductions.h"

#include "lib/memory/caller_memory.h"
#include "lib/residency/core.h"
#include "lib/runtime/calls/fetches.h"
#include "lib/runtime/copies/chunks.h"
#include "lib/runtime/copies/snapshots.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/sums.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/runtime/updates/tiers.h"
#include "lib/runtime/views/ends.h"
#include "lib/runtime/views/sleepers.h"

#include <memory>
#include <new>

namespace stepwell {

// A contribution, until its memory is given back.
struct Adopted {
    Reductions *owner = nullptr;
    memory::CallerMemory memory;
    uint64_t bytes = 0;
    stw_deleter_fn deleter = nullptr;
    void *user = nullptr;

    // Called on an update thread, after the memory was added or the sum has failed.
    static void end(void *user, const Status &)
    {
        const std::unique_ptr<Adopted> mine(static_cast<Adopted *>(user));
        // Where nothing was brought the stream may still write it. A lost device does not.
        (void)mine->memory.await();
        if (mine->deleter) mine->deleter(mine->user);
        mine->owner->give_adopted(mine->memory, mine->bytes);
    }

    static Status bring(void *user, void *to, const void *from, uint64_t bytes)
    {
        return static_cast<const Adopted *>(user)->memory.copy(to, from, bytes);
    }
};

uint64_t Reductions::adopted_at(residency::PlaceId place) const
{
    const auto found = adopted_.find(place);
    return found == adopted_.end() ? 0 : found->second;
}

uint64_t Reductions::adopted_max(const memory::CallerMemory &memory) const
{
    if (!memory.on_device()) return placement_.update_window();
    return dispatch_.core.budget_blocks(memory.place()) * machine_.block_bytes / 2;
}

// Waits until adopted memory is below its limit.
Status Reductions::take_adopted(const stw_tensor &gradient, const memory::CallerMemory &memory,
                                uint64_t bytes, uint64_t timeout_ns)
{
    const residency::Instant begin = dispatch_.now();
    const residency::Instant deadline = dispatch_.deadline(begin, timeout_ns);
    MutexLock lock(dispatch_.mutex());
    uint64_t &held = adopted_[memory.place()];
    const auto has_room = [&]() STW_REQUIRES(runtime_lock) {
        return held == 0 || held + bytes <= adopted_max(memory);
    };
    bool waited = false;
    while (!has_room()) {
        waited = true;
        STW_TRY(dispatch_.interrupted_since(begin));
        if (machine_.pipeline->waits_only_for(recorder_.owner_number())) {
            return Status::error(
                STW_ERROR_BUSY,
                "%s of gradient '%s' would wait for the verdict of a speculative update, which "
                "this thread is to give, as sums behind it hold %s: take a step without "
                "STW_UPDATE_SPECULATE first, or one with STW_UPDATE_REJECT",
                bytes_text(bytes).c_str(), gradient.name.c_str(), bytes_text(held).c_str());
        }
        // If collectives run on callers' threads, sums may wait for some that this one must run.
        const bool goes_on = collectives_.works_here()
                                 ? collectives_.wait_ranks(begin, deadline, has_room)
                                 : dispatch_.wait_progress(deadline);
        if (goes_on || begin <= dispatch_.interrupted_at()) continue;
        return Status::error(
            STW_ERROR_TIMEOUT,
            "%s of gradient '%s' had no room among the memory that "
            "stw_reduce_adopt may hold when the timeout passed: %s held; at most "
            "%s, half of the %s tier's budget; release views of gradients, or "
            "raise it",
            bytes_text(bytes).c_str(), gradient.name.c_str(), bytes_text(held).c_str(),
            bytes_text(adopted_max(memory)).c_str(),
            !memory.on_device() && dispatch_.core.budget_blocks(machine_.tiers.host()) ? "host"
                                                                                       : "device");
    }
    held += bytes;
    if (waited) {
        recorder_.add_stall_of(recorder_.current_step(), observe::Stall::kUpdate, gradient.id,
                               begin, dispatch_.now());
    }
    return {};
}

void Reductions::give_adopted(const memory::CallerMemory &memory, uint64_t bytes)
{
    MutexLock lock(dispatch_.mutex());
    adopted_[memory.place()] -= bytes;
    dispatch_.note_progress();
}

Status Reductions::adopt(stw_tensor *gradient, const void *local, const stw_reduce_options &options,
                         stw_deleter_fn deleter, void *user)
{
    STW_TRY(chunks_.check_dtype(gradient, options.dtype));
    STW_TRY(errors_.of(gradient->id));
    const Sharding *sharding = gradient->sharding.get();
    update::Accumulation work;
    work.gradient_dtype = gradient->dtype;
    work.memory = local;
    work.scratch_dtype = options.dtype ? options.dtype : gradient->dtype;
    work.element_count = sharding ? sharding->elements() : gradient->elements;
    work.scale = options.scale != 0.0 ? options.scale : 1.0;
    if (!local && work.element_count > 0) {
        return Status::error(STW_ERROR_INVALID,
                             "no memory is given for gradient '%s'; where a rank has none, call "
                             "stw_reduce",
                             gradient->name.c_str());
    }
    const uint64_t bytes = work.element_count * (stw_dtype_bits(work.scratch_dtype) / 8);
    Result<memory::CallerMemory> caller = memory::CallerMemory::make(
        machine_.tiers, {options.tier, options.device, options.stream}, local, bytes);
    if (!caller.ok()) return std::move(caller.status());
    const memory::CallerMemory &memory = caller.value();
    if (memory.on_device()) work.bring = Adopted::bring;
    auto mine = std::make_unique<Adopted>();
    mine->owner = this;
    mine->memory = memory;
    mine->bytes = bytes;
    mine->deleter = deleter;
    mine->user = user;
    STW_TRY(take_adopted(*gradient, memory, bytes, options.timeout_ns));
    const bool more = (options.flags & STW_REDUCE_MORE) != 0;
    try {
        Status status = sharding ? adopt_on_ranks(gradient, work, more, mine)
                                 : adopt_here(gradient, work, mine);
        if (!status.ok()) give_adopted(memory, bytes);
        if (!status.ok() || !machine_.touches) return status;
    } catch (const std::bad_alloc &) {
        give_adopted(memory, bytes);
        throw;
    }
    // The memory is taken: a failure from here on is an error of the tensor, not of the call.
    const Status concealed = machine_.touches->await_concealed(
        views_, {gradient->id}, false, dispatch_.deadline(options.timeout_ns));
    if (!concealed.ok()) pieces_.fail(gradient->id, concealed);
    return {};
}

// The last step that can fail. After it the pipeline owns the memory, and may be done with it
// before this returns.
Status Reductions::start_adopted(update::Accumulation &work, std::unique_ptr<Adopted> &mine)
{
    work.done = Adopted::end;
    work.done_user = mine.get();
    if (work.element_count > 0) STW_TRY(machine_.pipeline->accumulate(work));
    Adopted *const adopted = mine.release();
    if (work.element_count == 0) Adopted::end(adopted, {});
    return {};
}

Status Reductions::adopt_here(stw_tensor *gradient, update::Accumulation &work,
                              std::unique_ptr<Adopted> &mine)
{
    STW_TRY(placement_.check_cpu_room());
    STW_TRY(zeros_.write_zeros(gradient));
    work.gradient = gradient->id;
    work.gradient_elements = gradient->elements;
    {
        MutexLock lock(dispatch_.mutex());
        recorder_.note_reduced(gradient, recorder_.current_step());
    }
    return start_adopted(work, mine);
}

// Adds to this rank's part of the sum. Without MORE the sum goes out to all ranks afterwards, in
// the order of calls.
Status Reductions::adopt_on_ranks(stw_tensor *gradient, update::Accumulation &work, bool more,
                                  std::unique_ptr<Adopted> &mine)
{
    STW_TRY(Status(machine_.ranks->group.broken()));
    Sharding &sharding = *gradient->sharding;
    Status status;
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        if (sharding.partial == residency::kNone) {
            Result<residency::TensorId> made = buffers_.make_buffer(
                *gradient, sharding.padded_elements() * (gradient->element_bits / 8));
            status = std::move(made.status());
            if (made.ok()) sharding.partial = made.value();
        }
        work.gradient = sharding.partial;
        if (status.ok()) recorder_.note_reduced(gradient, recorder_.current_step());
    });
    STW_TRY(std::move(status));
    work.gradient_elements = sharding.padded_elements();
    STW_TRY(start_adopted(work, mine));
    if (more) return {};
    dispatch_.act([&](Core &, Commands &)
                      STW_REQUIRES(runtime_lock) { sharding.partial = residency::kNone; });
    // The memory is taken: a failure from here on is an error of the tensor, not of the call.
    try {
        status = sums_.queue_reduce(gradient, work.gradient, true, Status());
    } catch (const std::bad_alloc &) {
        status = Status::error(STW_ERROR_MEMORY, "no memory to queue the sum of gradient '%s'",
                               gradient->name.c_str());
    }
    if (!status.ok()) pieces_.fail(gradient->id, status);
    return {};
}

// The gathered tensor is where the group works, and so is a view that is summed.
Status Reductions::check_whole(const stw_tensor &tensor, uint32_t tier, const char *instead) const
{
    const memory::Tier &at = machine_.tiers[machine_.ranks->place];
    if (at.cpu_access && (tier != STW_TIER_DEVICE || !at.streams)) return {};
    return Status::error(STW_ERROR_UNSUPPORTED,
                         "%s is divided over ranks whose collectives work at a device, or the "
                         "caller's memory is a device's: %s",
                         tensor_text(tensor.name).c_str(), instead);
}

Status Reductions::read_whole(stw_tensor *tensor, void *destination, collective::Range asked,
                              const stw_copy_options &options)
{
    STW_TRY(check_whole(*tensor, options.tier,
                        "fetch a view of STW_WHOLE on a stream and copy it, or read STW_SHARD"));
    FetchPlan plan;
    RequestedRange range;
    range.tensor = tensor;
    range.place = machine_.ranks->place;
    range.element_begin = asked.begin;
    range.element_count = asked.count;
    range.byte_begin = asked.begin * (tensor->element_bits / 8);
    range.byte_count = asked.count * (tensor->element_bits / 8);
    plan.gathered.push_back(range);
    plan.step = recorder_.current_step();
    plan.timeout_ns = options.timeout_ns;
    stw_view view;
    STW_TRY(fetches_.fetch(std::move(plan), &view));
    if (asked.count > 0)
        copy_elements(destination, options.dtype, view.pointer, *tensor, asked.count);
    return ends_.release(&view, 1, STW_STREAM_SYNCED, {});
}

// Uses a view to add into: the calls of all ranks are one collective; with MORE there is none yet.
Status Reductions::reduce_over_ranks(stw_tensor *gradient, const void *local,
                                     const stw_reduce_options &options)
{
    if (local) {
        STW_TRY(check_whole(*gradient, options.tier,
                            "fetch a view with STW_REDUCE on a stream, or call stw_reduce_adopt"));
    }
    const bool more = (options.flags & STW_REDUCE_MORE) != 0;
    if (!local && more) return errors_.of(gradient->id);
    RequestedRange range;
    range.tensor = gradient;
    range.access = STW_REDUCE;
    range.place = machine_.ranks->place;
    range.element_count = gradient->sharding->elements();
    range.byte_count = range.element_count * (gradient->element_bits / 8);
    FetchPlan plan;
    plan.ranges.push_back(range);
    plan.step = recorder_.current_step();
    plan.timeout_ns = options.timeout_ns;
    plan.flags = STW_FETCH_WAIT_ROOM;
    plan.stream = STW_STREAM_SYNCED;  // no stream uses the view
    stw_view view;
    STW_TRY(fetches_.fetch(std::move(plan), &view));
    if (local && range.element_count > 0) {
        kernels::accumulate(kernels::Reduce::kFirst, view.pointer, gradient->dtype, local,
                            options.dtype ? options.dtype : gradient->dtype, range.element_count,
                            options.scale != 0.0 ? options.scale : 1.0);
    }
    const uint32_t flags =
        (more ? uint32_t{STW_RELEASE_MORE} : 0) | (local ? 0 : ReleaseHint::kNothing);
    return ends_.release(&view, 1, STW_STREAM_SYNCED, ReleaseHint(flags));
}

// A consistent copy, made like a fetch into the caller's memory that waits for room.
Status Reductions::read(stw_tensor *tensor, void *destination, const stw_copy_options &options)
{
    STW_TRY(chunks_.check_dtype(tensor, options.dtype));
    collective::Range asked;
    collective::Range part;
    STW_TRY(chunks_.resolve_copy(*tensor, options, &asked, &part));
    const bool whole =
        tensor->sharding && tensor->sharding->is_sharded() && options.scope == STW_WHOLE;
    if (whole) return read_whole(tensor, destination, asked, options);
    const uint64_t size = stw_dtype_bits(options.dtype ? options.dtype : tensor->dtype) / 8;
    Result<memory::CallerMemory> caller =
        memory::CallerMemory::make(machine_.tiers, {options.tier, options.device, options.stream},
                                   destination, asked.count * size);
    if (!caller.ok()) return std::move(caller.status());
    STW_TRY(caller.value().await());
    RequestedRange range;
    range.tensor = tensor;
    range.into = destination;
    range.caller = &caller.value();
    range.dtype = options.dtype;
    range.element_begin = part.begin;
    range.element_count = part.count;
    range.byte_begin = range.element_begin * (tensor->element_bits / 8);
    range.byte_count = range.element_count * (tensor->element_bits / 8);
    STW_TRY(errors_.of(tensor->id));
    if (range.element_count == 0) return {};
    Waiter waiter;
    waiter.plan.copied.push_back(range);
    waiter.plan.flags = STW_FETCH_WAIT_ROOM;
    waiter.plan.timeout_ns = options.timeout_ns;
    waiter.owner = recorder_.owner_number();
    Status status = snapshots_.copy_out(waiter);
    sleepers_.log_timeout(status);
    return status;
}

Status Reductions::reduce(stw_tensor *gradient, const void *local,
                          const stw_reduce_options &options)
{
    STW_TRY(chunks_.check_dtype(gradient, options.dtype));
    if (gradient->sharding) return reduce_over_ranks(gradient, local, options);
    if (!local) return errors_.of(gradient->id);
    const uint32_t dtype = options.dtype ? options.dtype : gradient->dtype;
    const uint64_t size = stw_dtype_bits(dtype) / 8;
    Result<memory::CallerMemory> caller =
        memory::CallerMemory::make(machine_.tiers, {options.tier, options.device, options.stream},
                                   local, gradient->elements * size);
    if (!caller.ok()) return std::move(caller.status());
    STW_TRY(caller.value().await());
    memory::OnHost part_here(caller.value());
    const double scale = options.scale != 0.0 ? options.scale : 1.0;
    const char *from = static_cast<const char *>(local);
    bool asked = false;
    kernels::Reduce mode = kernels::Reduce::kAdd;
    Status status = chunks_.each_chunk(
        gradient, residency::Access::kReadWrite, true, 0, gradient->elements, options.timeout_ns,
        [&](void *chunk, uint64_t at, uint64_t n) {
            // An empty gradient counts as zeros: the first contribution is stored, not added.
            if (!asked && pieces_.contents(gradient->id) == residency::Contents::kEmpty) {
                mode = kernels::Reduce::kFirst;
            }
            asked = true;
            const void *here = nullptr;
            STW_TRY(part_here.bring(from + at * size, n * size, &here));
            kernels::accumulate(mode, chunk, gradient->dtype, here, dtype, n, scale);
            return Status();
        });
    if (!status.ok()) return status;
    MutexLock lock(dispatch_.mutex());
    recorder_.note_reduced(gradient, recorder_.current_step());
    return {};
}

}  // namespace stepwell
