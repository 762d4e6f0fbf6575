// SPDX-License-Identifier: Apache-2.0
// Snapshots, a chunk at a time, on the thread that waits for the fetch, or on the copier's thread
// for operations.
#include "lib/runtime/copies/snapshots.h"

#include "lib/memory/caller_memory.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/copies/chunks.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/runtime/views/ends.h"
#include "lib/runtime/views/hits.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/update/kernels/kernels.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace stepwell {
namespace {

constexpr size_t kReadsAhead = 8;

SnapshotPart part_of(const RequestedRange &range)
{
    SnapshotPart part;
    part.tensor = range.tensor;
    part.scratch = range.scratch;
    part.into = static_cast<char *>(range.into);
    part.caller = range.caller;
    part.dtype = range.dtype ? range.dtype : range.tensor->dtype;
    part.from_size = range.tensor->element_bits / 8;
    part.to_size = stw_dtype_bits(part.dtype) / 8;
    // In elements of the shard.
    part.begin = range.byte_begin / part.from_size;
    part.end = part.begin + range.element_count;
    return part;
}

// The tensors that it uses, or only those that it has claimed; each once.
std::vector<residency::TensorId> tensors_of(const Snapshot &work, bool claimed = false)
{
    std::vector<residency::TensorId> tensors;
    for (const SnapshotPart &part : work.parts) {
        if (claimed && !part.claimed) continue;
        tensors.push_back(part.tensor->id);
        if (part.scratch != residency::kNone) tensors.push_back(part.scratch);
    }
    std::sort(tensors.begin(), tensors.end());
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    return tensors;
}

}  // namespace

// If all of it is resident where the CPU reads it: pins all ranges without the lock and copies
// them.
bool Snapshots::copy_resident(const FetchPlan &plan)
{
    if (!plan.ranges.empty()) return false;
    std::vector<stw_view> views;
    views.reserve(plan.copied.size());
    for (RequestedRange range : plan.copied) {
        bool hit = false;
        stw_view view;
        if (range.caller && range.caller->on_device()) break;  // a chunk at a time
        for (range.place = 0; !hit && range.place <= machine_.tiers.host(); ++range.place) {
            const memory::Tier &place = machine_.tiers[range.place];
            hit = range.byte_count > 0 && place.memory && place.cpu_access &&
                  hits_.fetch_hit(range, plan.step, STW_STREAM_HOST, &view);
        }
        if (!hit) break;
        views_.slot(ViewTable::index_of(view.cookie)).copied = 1;
        views.push_back(view);
    }
    const bool all = views.size() == plan.copied.size();
    for (size_t i = 0; all && i < views.size(); ++i) {
        const RequestedRange &range = plan.copied[i];
        const ViewTable::Copying copying(views_, range.tensor->id);
        copy_elements(range.into, range.dtype, views[i].pointer, *range.tensor,
                      range.element_count);
    }
    if (!views.empty())
        (void)ends_.release(views.data(), static_cast<uint32_t>(views.size()), STW_STREAM_SYNCED,
                            {});
    return all;
}

// On the thread that waits for the copies.
Status Snapshots::copy_out(Waiter &waiter)
{
    if (copy_resident(waiter.plan)) return {};
    STW_TRY(prepare_snapshot(waiter));
    Snapshot &work = *waiter.snapshot;
    while (next_chunk(work)) {
        sleepers_.await(work.chunk, work.parts[work.next.part].tensor->id);
        copy_chunk(work);
    }
    return std::move(work.status);
}

// Whatever can be refused without a copy is refused here. Makes the private buffers, and drops
// them if there is no memory.
Status Snapshots::prepare_snapshot(Waiter &waiter)
try {
    FetchPlan &plan = waiter.plan;
    STW_TRY(placement_.check_places(plan));
    if (std::any_of(plan.ranges.begin(), plan.ranges.end(), is_converted)) {
        STW_TRY(placement_.fits(plan.ranges));
    }
    auto work = std::make_unique<Snapshot>();
    const auto add = [&](const RequestedRange &range) -> Status {
        if (range.element_count == 0) return {};
        STW_TRY(
            sleepers_.self_wait(range.tensor, residency::Access::kRead, waiter.owner, plan.flags));
        STW_TRY(zeros_.write_zeros(range.tensor));
        work->parts.push_back(part_of(range));
        return {};
    };
    for (const RequestedRange &range : plan.copied) STW_TRY(add(range));
    for (RequestedRange &range : plan.ranges) {
        if (!is_converted(range)) continue;
        Status made;
        dispatch_.act([&](Core &, Commands &)
                          STW_REQUIRES(runtime_lock) { made = buffers_.make_scratch(range); });
        STW_TRY(std::move(made));
        STW_TRY(add(range));
        const bool direct = machine_.tiers[range.place].cpu_access;
        work->parts.back().place = direct ? range.place : residency::kAnyCpuPlace;
    }
    work->owner = this;
    work->whole = &waiter;
    if (plan.flags & STW_FETCH_TRY) work->flags |= residency::kFetchTry;
    if (plan.flags & STW_FETCH_WAIT_ROOM) work->flags |= residency::kFetchWaitRoom;
    if (!work->parts.empty()) {
        STW_TRY(placement_.check_cpu_room());
        work->next.at = work->hinted.at = work->parts.front().begin;
    }
    waiter.begin = dispatch_.now();
    waiter.deadline = dispatch_.deadline(waiter.begin, plan.timeout_ns);
    work->chunk.plan.step = plan.step;
    work->chunk.deadline = waiter.deadline;
    const std::vector<residency::TensorId> used = tensors_of(*work);
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        recorder_.drain_hits();
        recorder_.note_copies(plan);
        under_way.push_back(work.get());
        for (const residency::TensorId tensor : used) core.keep(tensor);
        waiter.snapshot = std::move(work);  // from here on other threads may see it
    });
    return {};
} catch (const std::bad_alloc &) {
    buffers_.drop_scratches(waiter.plan);
    return Status::error(STW_ERROR_MEMORY, "no memory for the copies of a fetch");
}

// In one event, gives the current chunk back and asks for the next one. False: it has ended, with
// work.status.
bool Snapshots::next_chunk(Snapshot &work)
{
    bool asked = false;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        if (work.held) give_chunk_back(work, core, out);
        if (work.torn) start_over(work, core, out);
        const Waiter &whole = *work.whole;
        if (work.status.ok() && whole.cancelled) work.status = cancelled();
        if (work.status.ok() && !whole.asynchronous)
            work.status = dispatch_.interrupted_since(whole.begin);
        asked = work.status.ok() && work.next.part < work.parts.size();
        if (asked && work.chunk.fetch != 0 && dispatch_.now() >= whole.deadline) {
            work.status =
                Status::error(STW_ERROR_TIMEOUT,
                              "the copy of %s was not done when the timeout "
                              "passed",
                              tensor_text(work.parts[work.next.part].tensor->name).c_str());
            asked = false;
        }
        asked ? ask_chunk(work, core, out) : end_snapshot(work, core, out);
    });
    return asked;
}

void Snapshots::ask_chunk(Snapshot &work, Core &core, Commands &out)
{
    const SnapshotPart &part = work.parts[work.next.part];
    const auto run = [this](uint64_t byte, uint64_t size) {
        return std::max<uint64_t>((machine_.block_bytes - byte % machine_.block_bytes) / size, 1);
    };
    const uint64_t at = work.next.at;
    const uint64_t offset = core.pack_offset(part.tensor->id) + at * part.from_size;
    work.count = std::min(run(offset, part.from_size), part.end - at);
    residency::FetchAsked asked;
    asked.claim = part.claimed ? work.claim : 0;
    asked.owner = work.whole->owner;
    asked.priority = work.whole->plan.priority;
    asked.deadline = work.whole->deadline;
    asked.flags = residency::kFetchInternal | work.flags;
    if (sleepers_.reads_lent(work.whole->plan.flags, part.tensor))
        asked.flags |= residency::kFetchLent;
    if (part.scratch != residency::kNone) {
        const uint64_t to = (at - part.begin) * part.to_size;
        work.count = std::min(work.count, run(to, part.to_size));
        asked.requests.push_back(
            {part.scratch, residency::Access::kWrite, part.place, to, work.count * part.to_size});
    }
    asked.requests.push_back({part.tensor->id, residency::Access::kRead, residency::kAnyCpuPlace,
                              at * part.from_size, work.count * part.from_size});
    work.chunk.begin = dispatch_.now();
    const residency::FetchId before = work.chunk.fetch;
    dispatch_.ask(work.chunk, asked, out);
    sleepers_.sleep_follows(before, work.chunk.fetch);
    if (core.is_waiting(work.chunk.fetch)) work.chunk.cause = sleepers_.cause_of(work.chunk);
    if (work.chunk.call) dispatch_.arm_timer(asked.deadline);
    if (core.is_barred(part.tensor->id, residency::Access::kRead, asked.claim)) {
        machine_.pipeline->prefer(part.tensor->id);
    } else if ((work.flags & residency::kFetchTry) == 0) {
        ask_ahead(work, core, out);
    }
}

// Hints for the next chunks, also of later ranges.
void Snapshots::ask_ahead(Snapshot &work, Core &core, Commands &out)
{
    SnapshotCursor &hinted = work.hinted;
    const uint64_t next = work.next.at + work.count;
    const bool behind = hinted.part < work.next.part;
    if (behind || (hinted.part == work.next.part && hinted.at < next)) {
        hinted = {work.next.part, next};
    }
    while (!work.hints.empty() && !core.is_waiting(work.hints.front())) work.hints.pop_front();
    while (work.hints.size() < kReadsAhead) {
        if (hinted.at == work.parts[hinted.part].end) {
            if (hinted.part + 1 == work.parts.size()) return;
            ++hinted.part;
            hinted.at = work.parts[hinted.part].begin;
        }
        const SnapshotPart &part = work.parts[hinted.part];
        const uint64_t byte = core.pack_offset(part.tensor->id) + hinted.at * part.from_size;
        const uint64_t room = (machine_.block_bytes - byte % machine_.block_bytes) / part.from_size;
        const uint64_t count = std::min(std::max<uint64_t>(room, 1), part.end - hinted.at);
        residency::FetchAsked hint;
        hint.claim = part.claimed ? work.claim : 0;
        hint.flags = residency::kFetchPrefetch;
        hint.urgency = residency::Class::kPlanned;
        hint.requests.push_back({part.tensor->id, residency::Access::kRead, residency::kAnyCpuPlace,
                                 hinted.at * part.from_size, count * part.from_size});
        work.hints.push_back(core.fetch(hint, out));
        hinted.at += count;
    }
}

void Snapshots::give_chunk_back(Snapshot &work, Core &core, Commands &out)
{
    const SnapshotPart &part = work.parts[work.next.part];
    const std::vector<residency::Grant> &grants = work.chunk.grants;
    residency::Release release;
    release.internal = true;
    release.claim = part.claimed ? work.claim : 0;
    if (part.scratch != residency::kNone) {
        release.tensor = part.scratch;
        release.access = residency::Access::kWrite;
        release.place = grants.front().place;
        release.byte_begin = (work.next.at - part.begin) * part.to_size;
        release.byte_count = work.count * part.to_size;
        core.release(release, out);
    }
    release.tensor = part.tensor->id;
    release.access = residency::Access::kRead;
    release.place = grants.back().place;
    release.byte_begin = work.next.at * part.from_size;
    release.byte_count = work.count * part.from_size;
    core.release(release, out);
    work.held = false;
    work.next.at += work.count;
    if (work.next.at < part.end) return;
    if (++work.next.part < work.parts.size()) work.next.at = work.parts[work.next.part].begin;
}

// From the first element on, under claims that keep writers out. Tensors of which the asking
// thread holds a view are not claimed: the claim would wait for the view, and the view keeps
// writers out.
void Snapshots::start_over(Snapshot &work, Core &core, Commands &out)
{
    drop_holds(work, core, out);
    work.torn = false;
    work.next = work.hinted = {0, work.parts.front().begin};
    recorder_.drain_hits();
    work.claim = core.claim(residency::ClaimKind::kAlone);
    for (SnapshotPart &part : work.parts)
        part.claimed = !sleepers_.has_own_view(*work.whole, part.tensor);
    for (const residency::TensorId tensor : tensors_of(work, true)) {
        core.claim_tensor(work.claim, tensor);
    }
}

void Snapshots::end_snapshot(Snapshot &work, Core &core, Commands &out)
{
    drop_holds(work, core, out);
    // That of an operation stays until the rest of its fetch is asked for.
    if (!work.whole->asynchronous) std::erase(under_way, &work);
    for (const residency::TensorId tensor : tensors_of(work)) core.let_go(tensor);
}

// Cancels hints and ends claims.
void Snapshots::drop_holds(Snapshot &work, Core &core, Commands &out)
{
    for (const residency::FetchId hint : work.hints) {
        core.cancel(hint, Status::remark(STW_ERROR_CANCELLED), out);
    }
    work.hints.clear();
    for (const residency::TensorId tensor : tensors_of(work, true)) {
        core.unclaim_tensor(work.claim, tensor, false, out);
    }
    for (SnapshotPart &part : work.parts) part.claimed = false;
}

// With a chunk held: true if a tensor was written since its first chunk was copied.
bool Snapshots::is_torn(Snapshot &work)
{
    SnapshotPart &part = work.parts[work.next.part];
    const uint64_t version = dispatch_.core.version(part.tensor->id);
    if (work.next.at == part.begin) part.version = version;
    if (part.version != version) return true;
    const bool last =
        work.next.part + 1 == work.parts.size() && work.next.at + work.count == part.end;
    return last && std::any_of(work.parts.begin(), work.parts.end(),
                               [&](const auto &at) STW_REQUIRES(runtime_lock) {
                                   return dispatch_.core.version(at.tensor->id) != at.version;
                               });
}

void Snapshots::copy_chunk(Snapshot &work)
{
    if (!work.chunk.status.ok()) {
        work.status = std::move(work.chunk.status);
        return;
    }
    const SnapshotPart &part = work.parts[work.next.part];
    void *to = nullptr;
    void *from = nullptr;
    {
        MutexLock lock(dispatch_.mutex());
        work.held = true;
        work.torn = is_torn(work);
        update::Piece piece;
        piece.tensor = part.tensor->id;
        piece.byte_begin = work.next.at * part.from_size;
        from = addresses_.piece_pointer(work.chunk.grants.back(), piece);
        piece.tensor = part.scratch;
        piece.byte_begin = (work.next.at - part.begin) * part.to_size;
        to = part.into ? part.into + piece.byte_begin
                       : addresses_.piece_pointer(work.chunk.grants.front(), piece);
    }
    if (work.torn) return;
    const ViewTable::Copying copying(views_, part.tensor->id);
    work.status = give_elements(part.caller, to, part.dtype, from, *part.tensor, work.count);
}

}  // namespace stepwell
