// SPDX-License-Identifier: Apache-2.0
// Release: the end of views. Read views of resident tensors end without the lock; the others tell
// the core what became of the bytes. Also operations: fetches that somebody collects later.
#include "lib/runtime/runtime.h"
#include "lib/runtime/snapshot.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <new>
#include <utility>

namespace stepwell {
namespace {

constexpr uint32_t kHints = STW_RELEASE_FAR | STW_RELEASE_NEAR | STW_RELEASE_DISCARD;

}  // namespace

Status Runtime::release(stw_view *views, uint32_t n, void *stream, uint32_t flags)
{
    Status first;
    for (uint32_t i = 0; i < n; ++i) {
        Status status = release_one(views[i], stream, flags);
        if (first.ok() && !status.ok()) first = std::move(status);
    }
    return first;
}

Status Runtime::release_one(stw_view &view, void *stream, uint32_t flags)
{
    memory::DeviceStreams::Id id = 0;
    if (views_.is_view_of(view.cookie, view.tensor)) {
        const ViewSlot &slot = views_.slot(ViewTable::index_of(view.cookie));
        if (tiers_[slot.place].streams) STW_TRY(stream_id(slot.place, stream, &id));
    }
    if (id == 0 && stream != STW_STREAM_HOST) STW_TRY(check_stream(stream));
    const uint32_t index =
        views_.is_view_of(view.cookie, view.tensor) ? views_.close(view.cookie) : residency::kNone;
    if (index == residency::kNone && view.cookie == kCopyCookie) return release_copy(view, flags);
    if (index == residency::kNone) {
        return Status::error(STW_ERROR_INVALID,
                             "the view with cookie 0x%llx is not open: it was released before, "
                             "belongs to an ended step, or its bytes were overwritten",
                             static_cast<unsigned long long>(view.cookie));
    }
    view.cookie = 0;
    view.pointer = nullptr;
    ViewSlot &slot = views_.slot(index);
    return end_view(index, slot, id, flags);
}

Status Runtime::end_view(uint32_t index, ViewSlot &slot, memory::DeviceStreams::Id stream,
                         uint32_t flags)
{
    stw_tensor *tensor = slot.tensor;
    if (const memory::Tier &at = tiers_[slot.place]; at.streams && slot.byte_count > 0) {
        const bool seen = at.shows && slot.scratch == residency::kNone;
        const bool part = at.shows_runs && slot.byte_count != tensor->bytes;
        memory::ShownTensor *shown = seen && !part ? tensor->shown[slot.place] : nullptr;
        at.streams->end(stream, slots_of(slot), slot.access != STW_READ,
                        shown ? &shown->users() : nullptr);
    }
    Status status;
    if (slot.exported) slot.exported = 0;
    ThreadState *state = views_.thread_state();
    views_.note_release(slot.owner, state);
    if (slot.by_gate && slot.scratch == residency::kNone) {
        const residency::PlaceId place = slot.place;
        const residency::Request view{tensor->id, residency::Access::kRead, place, slot.byte_begin,
                                      slot.byte_count};
        const uint64_t step = slot.step;
        views_.give_slot(state, index);
        if (plans_ && step != 0 && (flags & kHints) == 0 && state) {
            ViewTable::push_end(*state, tensor->id, place, step);
        }
        const bool last = tensor->doors[place].gate.unpin();
        if (!last && (flags & kHints) == 0 && !dispatch_.has_stuck() && !errors_.any()) {
            return {};
        }
        dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
            const bool far = (flags & STW_RELEASE_FAR) != 0;
            const bool near = (flags & STW_RELEASE_NEAR) != 0;
            // The hit itself is older than the hint.
            if (flags & kHints) drain_hits();
            if (flags & kHints) note_release(view, step, flags);
            core.gate_idle(tensor->id, dispatch_.now(), out);
            if (far || near) core.release_hint(tensor->id, place, far, dispatch_.now(), out);
            if (flags & STW_RELEASE_DISCARD) status = core.discard(tensor->id, out);
        });
        if (!status.ok()) return status;
        return errors_.of(tensor->id);
    }
    const ViewSlot copy{slot.serial.load(), tensor,     slot.byte_begin, slot.byte_count,
                        slot.step,          slot.owner, slot.scratch,    slot.access,
                        slot.place,         0,          slot.dtype,      slot.absent};
    const bool by_gate = slot.by_gate != 0;
    views_.give_slot(state, index);
    if (tensor->sharding && copy.scratch == tensor->sharding->whole &&
        copy.scratch != residency::kNone) {
        return release_whole(copy, by_gate, flags);
    }
    if (copy.scratch != residency::kNone) {
        return copy.access == STW_REDUCE ? release_reduce(copy, flags)
                                         : release_converted(copy, flags);
    }
    residency::Release release;
    release.tensor = tensor->id;
    release.access = copy.access == STW_READ         ? residency::Access::kRead
                     : copy.access == STW_READ_WRITE ? residency::Access::kReadWrite
                                                     : residency::Access::kWrite;
    release.place = copy.place;
    release.byte_begin = copy.byte_begin;
    release.byte_count = copy.byte_count;
    release.far = (flags & STW_RELEASE_FAR) != 0;
    release.near = (flags & STW_RELEASE_NEAR) != 0;
    release.discard = (flags & STW_RELEASE_DISCARD) != 0;
    release.abandon = (flags & STW_RELEASE_ABANDON) != 0 && copy.access != STW_READ;
    Measured measured = measure_gradient(copy, flags);
    uint64_t version = 0;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        const residency::Request view{release.tensor, release.access, release.place,
                                      release.byte_begin, release.byte_count};
        note_release(view, copy.step, flags);
        core.release(release, dispatch_.now(), out);
        version = core.version(tensor->id);
        if (copy.access == STW_READ && release.discard) status = core.discard(tensor->id, out);
        note_zeros(tensor->id);
        if (copy.access == STW_REDUCE && !release.abandon) note_reduced(tensor, copy.step);
    });
    if (measured.order != 0) {
        pipeline_->measured(tensor->id, measured.order, std::move(measured.measurement), version);
    }
    if (!status.ok()) return status;
    return errors_.of(tensor->id);
}

// A gradient whose norm the next step will ask for, while its bytes are here and still the view's.
// What cannot be had for it now, the step will do.
Runtime::Measured Runtime::measure_gradient(const ViewSlot &view, uint32_t flags)
{
    constexpr uint32_t kMoves =
        STW_RELEASE_MORE | STW_RELEASE_ABANDON | STW_RELEASE_DISCARD;  // on, or to nothing
    const bool whole = view.byte_begin == 0 && view.byte_count == view.tensor->bytes;
    if (view.access == STW_READ || !whole || view.byte_count == 0 || (flags & kMoves) != 0) {
        return {};
    }
    if (!pipeline_ || !tiers_[view.place].cpu_access) return {};
    Measured measured;
    try {
        std::vector<update::ElementRange> parts;
        measured.order = pipeline_->wants_measure(view.tensor->id, parts);
        if (measured.order == 0) return {};
        // A tensor that was made smaller since has parts that are not in this view.
        const uint64_t elements = view.byte_count / (view.tensor->element_bits / 8);
        for (const update::ElementRange &part : parts) {
            if (part.begin + part.count > elements) return {};
        }
        update::Piece all;
        all.tensor = view.tensor->id;
        const void *bytes = nullptr;
        {
            MutexLock lock(dispatch_.mutex());
            bytes = piece_pointer(dispatch_.core.location(all.tensor, view.place), all);
        }
        measured.measurement = update::measure(bytes, view.tensor->dtype, parts);
    } catch (const std::bad_alloc &) {
        return {};
    }
    return measured;
}

// The private buffer is added behind the call, in the order of releases.
Status Runtime::release_reduce(const ViewSlot &slot, uint32_t flags)
{
    if (slot.tensor->sharding) return release_sum(slot, flags);
    residency::Release release;
    release.tensor = slot.scratch;
    release.access = residency::Access::kWrite;
    release.place = slot.place;
    release.byte_count = buffer_bytes(slot);
    const bool drops = (flags & (STW_RELEASE_ABANDON | STW_RELEASE_DISCARD)) != 0;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        core.release(release, dispatch_.now(), out);
        if (!drops) note_reduced(slot.tensor, slot.step);
    });
    if (drops) {
        drop_scratch(slot.scratch);
        return {};
    }
    STW_TRY(write_zeros(slot.tensor));
    return accumulate(slot, slot.tensor->id, slot.tensor->elements);
}

uint64_t buffer_bytes(const ViewSlot &view)
{
    const stw_tensor *tensor = view.tensor;
    const uint64_t elements = view.byte_count / (tensor->element_bits / 8);
    const uint32_t dtype = view.dtype;
    return sum_elements(*tensor, view.access, elements) *
           (dtype == 0 ? tensor->element_bits / 8 : stw_dtype_bits(dtype) / 8);
}

// A whole buffer that is summed over ranks has the padding of their parts.
uint64_t sum_elements(const stw_tensor &tensor, uint32_t access, uint64_t elements)
{
    const bool pads =
        access == STW_REDUCE && tensor.sharding && elements == tensor.sharding->elements();
    return pads ? tensor.sharding->padded_elements() : elements;
}

// What was converted goes with its view.
Status Runtime::release_converted(const ViewSlot &slot, uint32_t flags)
{
    stw_tensor *tensor = slot.tensor;
    residency::Release release;
    release.tensor = slot.scratch;
    release.access = residency::Access::kReadWrite;
    release.place = slot.place;
    release.byte_count = buffer_bytes(slot);
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        core.release(release, dispatch_.now(), out);
        const Status gone = core.destroy(slot.scratch, out);
        STW_ASSERT(gone.ok());
        if (flags & STW_RELEASE_DISCARD) status = core.discard(tensor->id, out);
        note_zeros(tensor->id);
    });
    if (!status.ok()) return status;
    return errors_.of(tensor->id);
}

// A view of the caller's memory: there is nothing to give back.
Status Runtime::release_copy(stw_view &view, uint32_t flags)
{
    view.cookie = 0;
    view.pointer = nullptr;
    if (flags & STW_RELEASE_DISCARD) STW_TRY(discard(&view.tensor, 1));
    return errors_.of(view.tensor->id);
}

Status Runtime::share(const stw_view &view, stw_view *view_out)
{
    const uint32_t index = ViewTable::index_of(view.cookie);
    if (view.cookie == kCopyCookie) {
        return Status::error(STW_ERROR_INVALID,
                             "the view of %s is a copy in memory of the caller's, which "
                             "needs no pin: use that memory",
                             tensor_text(view.tensor->name).c_str());
    }
    const bool open = index < views_.slots_used() &&
                      views_.slot(index).serial.load() == view.cookie >> 24 &&
                      views_.is_open(index);
    if (!open || view.access != STW_READ) {
        return Status::error(STW_ERROR_INVALID,
                             open ? "only views with access STW_READ can be shared"
                                  : "the view to be shared is not open");
    }
    if (views_.slot(index).scratch != residency::kNone) {
        const Sharding *sharding = view.tensor->sharding.get();
        const bool gathered = sharding && views_.slot(index).scratch == sharding->whole;
        return Status::error(STW_ERROR_INVALID,
                             "the view of %s is %s and cannot be shared; fetch it once "
                             "more",
                             tensor_text(view.tensor->name).c_str(),
                             gathered ? "of what all ranks gathered, and counted by all of them,"
                                      : "a converted copy of its own");
    }
    const uint64_t step = views_.slot(index).step;
    Range range;
    range.tensor = view.tensor;
    range.scope = view.scope;
    range.place = views_.slot(index).place;
    range.element_begin = view.element_begin;
    range.element_count = view.element_count;
    range.byte_begin = views_.slot(index).byte_begin;
    range.byte_count = views_.slot(index).byte_count;
    if (fetch_hit(range, step, STW_STREAM_SYNCED, view_out)) return {};
    FetchPlan plan;
    plan.step = step;
    plan.stream = STW_STREAM_SYNCED;  // who has the first view has been ordered with it
    plan.ranges.push_back(range);
    plan.flags = STW_FETCH_TRY;
    return fetch(std::move(plan), view_out);
}

Status Runtime::check_open(const stw_view &view) const
{
    if ((view.cookie >> 24 & 1) != 0 && views_.is_view_of(view.cookie, view.tensor)) return {};
    if (view.cookie == kCopyCookie) {
        return Status::error(STW_ERROR_INVALID,
                             "the view of %s is a copy in memory of the caller's, which "
                             "keeps itself alive: export that memory",
                             tensor_text(view.tensor->name).c_str());
    }
    return Status::error(STW_ERROR_INVALID,
                         "the view with cookie 0x%llx is not open: it was released or exported "
                         "before, belongs to an ended step, or its bytes were overwritten",
                         static_cast<unsigned long long>(view.cookie));
}

uint32_t Runtime::dtype_of(const stw_view &view) const
{
    const ViewSlot &slot = views_.slot(ViewTable::index_of(view.cookie));
    const uint32_t dtype = slot.scratch != residency::kNone ? uint32_t{slot.dtype} : 0;
    return dtype != 0 ? dtype : view.tensor->dtype;
}

Status Runtime::move_to_export(stw_view *view, stw_view *moved_out)
{
    STW_TRY(check_open(*view));
    const uint32_t index = views_.close(view->cookie);
    if (index == residency::kNone) {
        return Status::error(STW_ERROR_INVALID,
                             "another thread released or exported the view at the same time");
    }
    views_.slot(index).exported = 1;
    *moved_out = *view;
    moved_out->cookie = views_.open(index);
    view->cookie = 0;
    view->pointer = nullptr;
    return {};
}

// ------------------------------------------------------------------------------- operations --

Status Runtime::fetch_async(FetchPlan plan, stw_operation **operation_out)
{
    release_touches();
    STW_TRY(sticky_errors(plan));
    {
        MutexLock lock(dispatch_.mutex());
        if (operations_ >= operations_max_) {
            return Status::error(STW_ERROR_LIMIT,
                                 "%u operations exist, as many as operations_max allows; free "
                                 "those that are over",
                                 operations_);
        }
        ++operations_;
    }
    const auto uncount = [this](stw_operation *unused) {
        if (unused) operation_pool.give(unused);
        MutexLock lock(dispatch_.mutex());
        --operations_;
    };
    stw_operation *operation = nullptr;
    Waiter *waiter = nullptr;
    try {
        operation = operation_pool.take();
        if (operation) waiter = new Waiter();
    } catch (const std::bad_alloc &) {
        uncount(operation);
        throw;
    }
    if (!operation) {
        uncount(operation);
        return Status::error(STW_ERROR_LIMIT,
                             "this process has as many operations as there are handles for; free "
                             "those that are over");
    }
    waiter->plan = std::move(plan);
    waiter->owner = owner_number();
    waiter->asynchronous = true;
    waiter->listener = this;
    waiter->operation = operation;
    operation->runtime = handle_;
    operation->waiter = waiter;
    const bool gathers = !waiter->plan.gathered.empty();
    const bool nothing = !gathers && !waiter->plan.absent.empty();
    const bool copies = gathers || needs_copies(waiter->plan);
    Status status = gathers   ? ask_wholes(*waiter)
                    : nothing ? Status()
                    : copies  ? start_snapshot(*waiter)
                              : start_fetch(*waiter);
    {
        MutexLock lock(dispatch_.mutex());
        if (nothing || !status.ok()) {
            waiter->done = true;
            waiter->status = std::move(status);
        }
        if (!waiter->done && !copies) dispatch_.arm_timer(waiter->deadline);
    }
    *operation_out = operation;
    return {};
}

// A callback may use its operation while another thread frees it: the waiter, which lives until the
// callback has returned, is looked up under the lock.
Status Runtime::freed_meanwhile()
{
    return Status::error(STW_ERROR_INVALID,
                         "the operation handle is not alive: another thread freed it during this "
                         "call");
}

Status Runtime::poll(stw_operation *operation)
{
    MutexLock lock(dispatch_.mutex());
    const Waiter *waiter = operation->waiter;
    if (!waiter) return freed_meanwhile();
    if (works_here() && !waiter->done) {
        (void)work_one();
        waiter = operation->waiter;
        if (!waiter) return freed_meanwhile();
    }
    return waiter->done ? waiter->status : Status::remark(STW_PENDING);
}

Status Runtime::wait(stw_operation *operation, uint64_t timeout_ns)
{
    const residency::Instant begin = dispatch_.now();
    const residency::Instant deadline = begin + dispatch_.timeout(timeout_ns);
    MutexLock lock(dispatch_.mutex());
    Waiter *waiter = operation->waiter;
    if (!waiter) return freed_meanwhile();
    if (!waiter->done) {
        STW_TRY(dispatch_.interrupted_since(begin));
        // Who comes back by himself may still release.
        sleep_on(*waiter, deadline, timeout_ns == 0);
    }
    if (waiter->done) return waiter->status;
    STW_TRY(dispatch_.interrupted_since(begin));
    return Status::remark(STW_PENDING);
}

// Under the lock. Of copies, the chunk at work is the last: then it is over.
void Runtime::end_early(Waiter &waiter, Core &core, Commands &out)
{
    if (waiter.done) return;
    waiter.cancelled = true;
    if (end_wholes_early(waiter, out)) return;
    core.cancel(waiter.fetch, cancelled(), out);
    if (!waiter.snapshot) return;
    core.cancel(waiter.snapshot->chunk.fetch, cancelled(), out);
    const auto mine = std::find(copier_queue_.begin(), copier_queue_.end(), waiter.snapshot.get());
    if (mine != copier_queue_.end()) std::iter_swap(copier_queue_.begin(), mine);
}

Status Runtime::cancel(stw_operation *operation)
{
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        if (operation->waiter) {
            end_early(*operation->waiter, core, out);
        } else {
            status = freed_meanwhile();
        }
    });
    return status;
}

Status Runtime::collect(stw_operation *operation, void *stream, stw_view *views_out, uint32_t n)
{
    Waiter *waiter = nullptr;
    {
        MutexLock lock(dispatch_.mutex());
        waiter = operation->waiter;
        if (!waiter) return freed_meanwhile();
        if (!waiter->done) return Status::remark(STW_PENDING);
        STW_TRY(Status(waiter->status));
        if (waiter->collected) {
            return Status::error(STW_ERROR_INVALID, "the views of this operation were collected");
        }
        const FetchPlan &plan = waiter->plan;
        const size_t requests =
            plan.ranges.size() + plan.copied.size() + plan.gathered.size() + plan.absent.size();
        if (n != requests) {
            return Status::error(STW_ERROR_INVALID, "%u views asked of a fetch of %zu requests", n,
                                 requests);
        }
        for (const Range &range : plan.ranges) STW_TRY(check_stream_at(range.place, stream));
        waiter->plan.stream = stream;
        waiter->collected = true;
    }
    return finish_fetch(*waiter, views_out);
}

Status Runtime::free_operation(stw_operation *operation)
{
    Waiter *waiter = nullptr;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        waiter = std::exchange(operation->waiter, nullptr);
        if (!waiter) return;
        operation_pool.retire(operation);
        end_early(*waiter, core, out);
        release_refused(*waiter, out);
    });
    if (!waiter) return freed_meanwhile();
    bool collected = false;
    {
        MutexLock lock(dispatch_.mutex());
        // The chunk that is just being copied is the last one.
        while (!waiter->done) waiter->cv.wait(dispatch_.mutex());
        collected = std::exchange(waiter->collected, true);
    }
    if (!collected) {
        if (waiter->status.ok()) undo_grants(waiter->plan, waiter->grants);
        undo_wholes(*waiter);
        drop_scratches(waiter->plan);
    }
    MutexLock lock(dispatch_.mutex());
    --operations_;
    if (waiter->callback == Callback::kQueued) {
        // The callback runs, or has still to: when it returns, the rest goes.
        waiter->freed = true;
        ++callbacks_freed_;
        return {};
    }
    operation_pool.give(operation);
    delete waiter;
    return {};
}

}  // namespace stepwell
