// SPDX-License-Identifier: Apache-2.0
// The end of views. Read views of resident tensors end without the lock; the others report to the
// core what became of the bytes.
#include "lib/runtime/views/ends.h"

#include "lib/memory/address_alias.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/handles/release_hint.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/tensors/registry.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/runtime/views/streams.h"
#include "lib/support/assert.h"
#include "lib/update/pipeline.h"

#include <algorithm>
#include <new>
#include <utility>

namespace stepwell {

// A gradient that was measured when its view ended.
struct Measured {
    uint64_t order = 0;  // 0: not measured
    update::Measurement measurement;
};

namespace {

// The error of a release whose view has ended, and whose tensor keeps its contents.
Status undiscarded(Status status)
{
    if (status.ok()) return status;
    ErrorDetail &detail = status.mutable_detail();
    detail.sentence = format_text("the view has ended, but its tensor was not discarded: %s",
                                  detail.sentence.c_str());
    return status;
}

}  // namespace

Status ViewEnds::release(stw_view *views, uint32_t n, void *stream, ReleaseHint hint)
{
    Status first;
    for (uint32_t i = 0; i < n; ++i) {
        Status status = release_one(views[i], stream, hint, i + 1 < n);
        if (first.ok() && !status.ok()) first = std::move(status);
    }
    return first;
}

[[gnu::always_inline]] inline void ViewEnds::end_on_stream(const ViewSlot &slot,
                                                           memory::DeviceStreams::Id stream,
                                                           bool followed)
{
    const memory::Tier &at = machine_.tiers[slot.place];
    if (!at.streams || slot.byte_count == 0) return;
    const stw_tensor *tensor = slot.tensor;
    const bool seen = at.aliases && slot.scratch == residency::kNone;
    memory::AddressAlias *shown = seen ? tensor->shown[slot.place] : nullptr;
    const bool there = shown && shown->shows(slot.byte_count == tensor->bytes);
    at.streams->end(stream, streams_.slots_of(slot), slot.access != STW_READ,
                    there ? &shown->users() : nullptr, followed);
}

// For a READ view that is pinned by its gate: takes no lock unless the core has to be notified.
[[gnu::always_inline]] inline Status ViewEnds::end_hit(uint32_t index, const ViewSlot &slot,
                                                       ThreadState *state, ReleaseHint hint)
{
    stw_tensor *tensor = slot.tensor;
    const residency::PlaceId place = slot.place;
    const residency::Request view{tensor->id, residency::Access::kRead, place, slot.byte_begin,
                                  slot.byte_count};
    const uint64_t step = slot.step;
    views_.give_slot(state, index);
    if (recorder_.enabled && step != 0 && !hint.concerns_core() && state) {
        ViewTable::push_end(*state, tensor->id, place, step);
    }
    const bool last = tensor->doors[place].gate.unpin();
    if (!last && !hint.concerns_core() && !dispatch_.has_stuck_fetch() && !errors_.any()) return {};
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        // The hit came before the hint.
        if (hint.concerns_core()) recorder_.drain_hits();
        if (hint.concerns_core()) recorder_.note_release(view, step, hint);
        core.gate_idle(tensor->id, out);
        end_touches_beside(*tensor);
        if (hint.discard()) {
            status = drop_contents(tensor, out, core);
        } else if (hint.far() || hint.near()) {
            core.release_hint(tensor->id, place, hint.far(), out);
        }
    });
    return status.ok() ? errors_.of(tensor->id) : status;
}

Status ViewEnds::release_one(stw_view &view, void *stream, ReleaseHint hint, bool followed)
{
    memory::DeviceStreams::Id id = 0;
    const bool open = views_.is_view_of(view.cookie, view.tensor);
    if (open) {
        const ViewSlot &slot = views_.slot(ViewTable::index_of(view.cookie));
        if (machine_.tiers[slot.place].streams)
            STW_TRY(streams_.stream_id(slot.place, stream, &id));
    }
    if (id == 0 && stream != STW_STREAM_HOST) STW_TRY(streams_.check_stream(stream));
    const uint32_t index = open ? views_.close(view.cookie) : residency::kNone;
    if (index == residency::kNone && view.cookie == kCopyCookie) return release_copy(view, hint);
    if (index == residency::kNone) {
        return Status::error(STW_ERROR_INVALID,
                             "the view with cookie 0x%llx is not open: it was released before, "
                             "belongs to an ended step, or its bytes were overwritten",
                             static_cast<unsigned long long>(view.cookie));
    }
    view.cookie = 0;
    view.pointer = nullptr;
    ViewSlot &slot = views_.slot(index);
    return end_view(index, slot, id, hint, followed);
}

Status ViewEnds::end_view(uint32_t index, ViewSlot &slot, memory::DeviceStreams::Id stream,
                          ReleaseHint hint, bool followed)
{
    end_on_stream(slot, stream, followed);
    if (slot.exported) slot.exported = 0;
    if (slot.copied) slot.copied = 0;
    ThreadState *state = views_.thread_state();
    views_.note_release(slot.owner, state);
    if (slot.by_gate && slot.scratch == residency::kNone) return end_hit(index, slot, state, hint);
    const ViewSlot copy{.tensor = slot.tensor,
                        .byte_begin = slot.byte_begin,
                        .byte_count = slot.byte_count,
                        .step = slot.step,
                        .owner = slot.owner,
                        .scratch = slot.scratch,
                        .access = slot.access,
                        .place = slot.place,
                        .by_gate = slot.by_gate,
                        .dtype = slot.dtype,
                        .absent = slot.absent,
                        .touched = slot.touched};
    if (slot.touched) slot.touched = 0;
    views_.give_slot(state, index);
    if (copy.scratch == residency::kNone) return end_pinned(copy, hint);
    const Sharding *sharding = copy.tensor->sharding.get();
    if (sharding && copy.scratch == sharding->whole) {
        STW_TRY(wholes_->end(copy, hint));
        stw_tensor *tensor = copy.tensor;
        if (!hint.discard() || hint.abandon()) return {};
        return undiscarded(registry_.discard(&tensor, 1));
    }
    return copy.access == STW_REDUCE ? release_reduce(copy, hint) : release_converted(copy, hint);
}

// A view that a touch keeps was not in the way of those who waited for this one already.
void ViewEnds::end_touches_beside(const stw_tensor &tensor)
{
    if (machine_.touches && machine_.touches->any() && dispatch_.core.is_awaited(tensor.id, 0))
        dispatch_.give_way_soon();
}

// For a view that the core pinned.
Status ViewEnds::end_pinned(const ViewSlot &view, ReleaseHint hint)
{
    stw_tensor *tensor = view.tensor;
    residency::Release release;
    release.tensor = tensor->id;
    release.access = view.access == STW_READ         ? residency::Access::kRead
                     : view.access == STW_READ_WRITE ? residency::Access::kReadWrite
                                                     : residency::Access::kWrite;
    release.place = view.place;
    release.byte_begin = view.byte_begin;
    release.byte_count = view.byte_count;
    release.far = hint.far() && !hint.discard();
    release.near = hint.near() && !hint.discard();
    release.discard = hint.discard();
    release.abandon = hint.abandon() && view.access != STW_READ;
    release.beside_readers = view.touched;
    Measured measured = measure_gradient(view, hint);
    uint64_t version = 0;
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        const residency::Request request{release.tensor, release.access, release.place,
                                         release.byte_begin, release.byte_count};
        recorder_.note_release(request, view.step, hint);
        core.release(release, out);
        end_touches_beside(*tensor);
        version = core.version(tensor->id);
        if (view.access == STW_READ && release.discard) status = drop_contents(tensor, out, core);
        if (view.access == STW_REDUCE && !release.abandon)
            recorder_.note_reduced(tensor, view.step);
    });
    if (measured.order != 0) {
        machine_.pipeline->measured(tensor->id, measured.order, std::move(measured.measurement),
                                    version);
    }
    return status.ok() ? errors_.of(tensor->id) : status;
}

// Returns the error of the tensor, if it has one, as any other release does.
Status ViewEnds::drop_contents(stw_tensor *tensor, Commands &out, Core &core)
{
    const Status *failed = errors_.find(tensor->id);
    Status error = failed ? *failed : Status();
    STW_TRY(undiscarded(registry_.drop_contents(tensor, out, core)));
    return error;
}

// Measures a gradient for the next step's norm while its bytes are here and still pinned. If that
// is not possible, the step measures it.
Measured ViewEnds::measure_gradient(const ViewSlot &view, ReleaseHint hint)
{
    const bool whole = view.byte_begin == 0 && view.byte_count == view.tensor->bytes;
    if (view.access == STW_READ || !whole || view.byte_count == 0 || hint.more() || hint.drops()) {
        return {};
    }
    if (!machine_.pipeline || !machine_.tiers[view.place].cpu_access) return {};
    Measured measured;
    try {
        std::vector<update::ElementRange> parts;
        measured.order = machine_.pipeline->wants_measure(view.tensor->id, parts);
        if (measured.order == 0) return {};
        // The tensor was reshaped to a smaller one since.
        const uint64_t elements = view.byte_count / (view.tensor->element_bits / 8);
        for (const update::ElementRange &part : parts) {
            if (part.begin + part.count > elements) return {};
        }
        update::Piece all;
        all.tensor = view.tensor->id;
        const void *bytes = nullptr;
        {
            MutexLock lock(dispatch_.mutex());
            bytes = addresses_.piece_pointer(dispatch_.core.location(all.tensor, view.place), all);
        }
        measured.measurement = update::measure(bytes, view.tensor->dtype, parts);
    } catch (const std::bad_alloc &) {
        return {};
    }
    return measured;
}

// The private buffer is added after the call, in the order of releases.
Status ViewEnds::release_reduce(const ViewSlot &slot, ReleaseHint hint)
{
    if (slot.tensor->sharding) return sums_->end(slot, hint);
    residency::Release release;
    release.tensor = slot.scratch;
    release.access = residency::Access::kWrite;
    release.place = slot.place;
    release.byte_count = buffer_bytes(slot);
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        core.release(release, out);
        if (!hint.drops()) recorder_.note_reduced(slot.tensor, slot.step);
    });
    if (hint.drops()) {
        buffers_.drop_scratch(slot.scratch);
        return {};
    }
    STW_TRY(zeros_.write_zeros(slot.tensor));
    STW_TRY(buffers_.accumulate(slot, slot.tensor->id, slot.tensor->elements));
    if (!machine_.touches) return {};
    return machine_.touches->await_concealed(views_, {slot.tensor->id}, false,
                                             dispatch_.deadline(0));
}

// The private buffer is destroyed with its view.
Status ViewEnds::release_converted(const ViewSlot &slot, ReleaseHint hint)
{
    stw_tensor *tensor = slot.tensor;
    residency::Release release;
    release.tensor = slot.scratch;
    release.access = residency::Access::kReadWrite;
    release.place = slot.place;
    release.byte_count = buffer_bytes(slot);
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        core.release(release, out);
        const Status gone = core.destroy(slot.scratch, out);
        STW_ASSERT(gone.ok());
        if (hint.discard()) status = drop_contents(tensor, out, core);
    });
    return status.ok() ? errors_.of(tensor->id) : status;
}

// A copy in the caller's memory holds nothing.
Status ViewEnds::release_copy(stw_view &view, ReleaseHint hint)
{
    view.cookie = 0;
    view.pointer = nullptr;
    if (hint.discard()) STW_TRY(undiscarded(registry_.discard(&view.tensor, 1)));
    return errors_.of(view.tensor->id);
}

Status ViewEnds::check_open(const stw_view &view) const
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

uint32_t ViewEnds::dtype_of(const stw_view &view) const
{
    const ViewSlot &slot = views_.slot(ViewTable::index_of(view.cookie));
    const uint32_t dtype = slot.scratch != residency::kNone ? uint32_t{slot.dtype} : 0;
    return dtype != 0 ? dtype : view.tensor->dtype;
}

Status ViewEnds::move_to_export(stw_view *view, stw_view *moved_out)
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

}  // namespace stepwell
