// SPDX-License-Identifier: Apache-2.0
// Gradients that become the library's: added by the update threads as sums of buffers are, from the
// memory as it came, which is given back then.
#include "lib/runtime/ranks.h"

#include <memory>
#include <new>

namespace stepwell {

// A contribution, until its memory is given back.
struct Runtime::Adopted {
    Runtime *runtime = nullptr;
    uint64_t bytes = 0;
    stw_deleter_fn deleter = nullptr;
    void *user = nullptr;

    // On an update thread, when it was added or cannot be.
    static void end(void *user, const Status &)
    {
        const std::unique_ptr<Adopted> mine(static_cast<Adopted *>(user));
        if (mine->deleter) mine->deleter(mine->user);
        mine->runtime->give_adopted(mine->bytes);
    }
};

// Room for it among what is held, or the wait for that.
Status Runtime::take_adopted(const stw_tensor &gradient, uint64_t bytes, uint64_t timeout_ns)
{
    const residency::Instant begin = dispatch_.now();
    const residency::Instant deadline = begin + dispatch_.timeout(timeout_ns);
    MutexLock lock(dispatch_.mutex());
    const auto has_room = [&]() STW_REQUIRES(runtime_lock) {
        return adopted_bytes_ == 0 || adopted_bytes_ + bytes <= update_window();
    };
    bool waited = false;
    while (!has_room()) {
        waited = true;
        STW_TRY(dispatch_.interrupted_since(begin));
        // Where collectives stay on the callers' threads, sums may be behind some of this one's.
        const bool goes_on = works_here() ? wait_ranks(begin, deadline, has_room)
                                          : dispatch_.wait_progress(deadline);
        if (goes_on || begin <= dispatch_.interrupted_at()) continue;
        return Status::error(STW_ERROR_TIMEOUT,
                             "%s of gradient '%s' had no room among the memory that "
                             "stw_reduce_adopt may hold when the timeout passed: %s held; at most "
                             "%s, half of the %s tier's budget; release views of gradients, or "
                             "raise it",
                             bytes_text(bytes).c_str(), gradient.name.c_str(),
                             bytes_text(adopted_bytes_).c_str(),
                             bytes_text(update_window()).c_str(),
                             dispatch_.core.budget_blocks(tiers_.host()) ? "host" : "device");
    }
    adopted_bytes_ += bytes;
    if (waited) {
        add_stall_of(current_step(), observe::Stall::kUpdate, gradient.id, begin, dispatch_.now());
    }
    return {};
}

void Runtime::give_adopted(uint64_t bytes)
{
    MutexLock lock(dispatch_.mutex());
    adopted_bytes_ -= bytes;
    dispatch_.note_progress();
}

Status Runtime::adopt(stw_tensor *gradient, const void *local, const stw_reduce_options &options,
                      stw_deleter_fn deleter, void *user)
{
    STW_TRY(check_dtype(gradient, options.dtype));
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
    auto mine = std::make_unique<Adopted>();
    mine->runtime = this;
    mine->bytes = bytes;
    mine->deleter = deleter;
    mine->user = user;
    STW_TRY(take_adopted(*gradient, bytes, options.timeout_ns));
    const bool more = (options.flags & STW_REDUCE_MORE) != 0;
    try {
        Status status = sharding ? adopt_on_ranks(gradient, work, more, mine)
                                 : adopt_here(gradient, work, mine);
        if (!status.ok()) give_adopted(bytes);
        return status;
    } catch (const std::bad_alloc &) {
        give_adopted(bytes);
        throw;
    }
}

// The last that can fail: it is the pipeline's then, and may be over before the call is.
Status Runtime::start_adopted(update::Accumulation &work, std::unique_ptr<Adopted> &mine)
{
    work.done = Adopted::end;
    work.done_user = mine.get();
    if (work.element_count > 0) STW_TRY(pipeline_->accumulate(work));
    Adopted *const adopted = mine.release();
    if (work.element_count == 0) Adopted::end(adopted, {});
    return {};
}

Status Runtime::adopt_here(stw_tensor *gradient, update::Accumulation &work,
                           std::unique_ptr<Adopted> &mine)
{
    STW_TRY(check_cpu_room());
    STW_TRY(write_zeros(gradient));
    work.gradient = gradient->id;
    work.gradient_elements = gradient->elements;
    {
        MutexLock lock(dispatch_.mutex());
        note_reduced(gradient, current_step());
    }
    return start_adopted(work, mine);
}

// Into what this rank has of the sum, which goes out to all ranks behind it, in the order of calls.
Status Runtime::adopt_on_ranks(stw_tensor *gradient, update::Accumulation &work, bool more,
                               std::unique_ptr<Adopted> &mine)
{
    STW_TRY(Status(ranks_->group.broken()));
    Sharding &sharding = *gradient->sharding;
    Status status;
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        if (sharding.partial == residency::kNone) {
            Result<residency::TensorId> made =
                make_buffer(*gradient, sharding.padded_elements() * (gradient->element_bits / 8));
            status = std::move(made.status());
            if (made.ok()) sharding.partial = made.value();
        }
        work.gradient = sharding.partial;
        if (status.ok()) note_reduced(gradient, current_step());
    });
    STW_TRY(std::move(status));
    work.gradient_elements = sharding.padded_elements();
    STW_TRY(start_adopted(work, mine));
    if (more) return {};
    dispatch_.act([&](Core &, Commands &)
                      STW_REQUIRES(runtime_lock) { sharding.partial = residency::kNone; });
    // It is taken: what goes wrong from here on is the tensor's error, not the call's.
    try {
        status = queue_reduce(gradient, work.gradient, true, Status());
    } catch (const std::bad_alloc &) {
        status = Status::error(STW_ERROR_MEMORY, "no memory to queue the sum of gradient '%s'",
                               gradient->name.c_str());
    }
    if (!status.ok()) fail(gradient->id, status);
    return {};
}

}  // namespace stepwell
