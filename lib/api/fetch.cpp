// SPDX-License-Identifier: Apache-2.0
// fetch.h at the boundary. A fetch whose requests are all hits passes through here without a lock,
// an allocation or a system call.
#include "lib/api/check.h"
#include "lib/runtime/dispatch/waiter.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <type_traits>

using namespace stepwell;
using namespace stepwell::api;

namespace {

constexpr uint32_t kOnStackMax = HitPath::kHitsAtOnceMax;

// Cheap enough for every hit: tags, epochs and one comparison of sizes.
bool quick_enter(const stw_runtime *runtime)
{
    return runtime_pool.is_live(runtime) &&
           runtime->life.load(std::memory_order_acquire) == Life::kOpen &&
           runtime->fork_epoch.load(std::memory_order_relaxed) ==
               fork_epoch.load(std::memory_order_relaxed);
}

// A view in another dtype is a copy, or a buffer that is added.
Status resolve_dtype(const stw_fetch_request &request, RequestedRange *range)
{
    const stw_tensor &tensor = *request.tensor;
    STW_TRY(ChunkCopies::check_dtype(&tensor, request.dtype));
    if (request.access == STW_READ || request.access == STW_REDUCE) {
        range->dtype = request.dtype;
        return {};
    }
    return Status::error(STW_ERROR_INVALID,
                         "%s of dtype %s cannot be fetched for writing as %s: what was not "
                         "written would lose bits; fetch it in its own dtype, or convert with "
                         "stw_tensor_write",
                         tensor_text(tensor.name).c_str(), report::dtype_name(tensor.dtype),
                         report::dtype_name(request.dtype));
}

// Host memory of the caller's takes a copy; nothing is pinned.
Status resolve_into(const stw_fetch_request &request, RequestedRange *range)
{
    const char *name = request.tensor->name.c_str();
    if (request.access != STW_READ) {
        return Status::error(STW_ERROR_INVALID,
                             "%s: access %u is not for memory of the caller's, which "
                             "takes a copy for STW_READ; stw_tensor_write and stw_reduce copy the "
                             "other way",
                             tensor_text(name).c_str(), request.access);
    }
    const bool host = request.tier == STW_TIER_DEFAULT || request.tier == STW_TIER_HOST;
    if (!host || request.device != 0) {
        return Status::error(STW_ERROR_INVALID,
                             "%s: memory of the caller's is host memory, not of tier %u, "
                             "device %u; leave them 0",
                             tensor_text(name).c_str(), request.tier, request.device);
    }
    range->into = request.into;
    return {};
}

Status no_views_at(const stw_fetch_request &request)
{
    const char *name = request.tensor->name.c_str();
    if (request.tier == STW_TIER_NVME) {
        return Status::error(STW_ERROR_INVALID,
                             "%s cannot be fetched at the nvme tier, which has no "
                             "addresses; fetch it at the device or host tier",
                             tensor_text(name).c_str());
    }
    return Status::error(
        STW_ERROR_INVALID,
        "%s cannot be fetched at tier %u (%s), device %u: no such tier has "
        "a budget of at least one block (%s); open the runtime with one, or "
        "fetch at another tier",
        tensor_text(name).c_str(), request.tier,
        request.tier == STW_TIER_DEFAULT ? "the default one" : report::tier_name(request.tier),
        request.device, bytes_text(request.tensor->runtime->body->machine.block_bytes).c_str());
}

// Before `into` was there; such a request asks for a pin.
constexpr uint32_t kSizeBeforeInto = offsetof(stw_fetch_request, into);

constexpr bool is_known(uint32_t struct_size)
{
    return struct_size == sizeof(stw_fetch_request) || struct_size == kSizeBeforeInto;
}

// Of a size that is_known().
Status resolve_known(const stw_runtime *runtime, const stw_fetch_request *at, RequestedRange *range)
{
    if (!tensor_pool.is_live(at->tensor) || at->tensor->runtime != runtime) {
        return Status::error(STW_ERROR_INVALID,
                             "request.tensor is not a live tensor of this runtime");
    }
    stw_tensor *tensor = at->tensor;
    if (at->access > STW_REDUCE || at->scope > STW_SHARD) {
        return Status::error(STW_ERROR_INVALID, "%s: access %u or scope %u is not known",
                             tensor_text(tensor->name).c_str(), at->access, at->scope);
    }
    range->dtype = 0;
    range->into = nullptr;
    if (at->dtype != 0 && at->dtype != tensor->dtype) STW_TRY(resolve_dtype(*at, range));
    if (at->struct_size > kSizeBeforeInto && at->into) STW_TRY(resolve_into(*at, range));
    if (at->access != STW_READ && (tensor->flags & STW_TENSOR_READ_ONLY)) {
        return Status::error(STW_ERROR_INVALID,
                             "%s is read-only: stw_tensor_write writes it, a fetch cannot",
                             tensor_text(tensor->name).c_str());
    }
    if (at->access == STW_REDUCE) STW_TRY(refuse_unsummable(tensor));
    range->tensor = tensor;
    range->access = at->access;
    range->scope = at->scope;
    range->place = runtime->body->machine.tiers.place_of(at->tier, at->device);
    if (!range->into && (range->place == residency::kNoPlace || at->tier == STW_TIER_NVME)) {
        return no_views_at(*at);
    }
    const bool whole = at->scope == STW_WHOLE && tensor->sharding;
    const uint64_t first = whole ? 0 : tensor->shard_begin;
    const uint64_t elements = whole ? tensor->sharding->elements() : tensor->elements;
    range->element_begin = at->element_begin;
    range->element_count = at->element_count;
    if (at->element_begin == 0 && at->element_count == 0) {
        range->element_begin = first;
        range->element_count = elements;
    }
    uint64_t end = 0;
    if (__builtin_add_overflow(range->element_begin, range->element_count, &end) ||
        range->element_begin < first || end > first + elements) {
        return elements_outside(*tensor, range->element_begin, range->element_count, first,
                                elements);
    }
    if (at->access == STW_REDUCE && tensor->sharding && at->scope == STW_SHARD) {
        return Status::error(STW_ERROR_INVALID,
                             "%s lies over several ranks, and a sum over them is of all "
                             "of it: fetch it with scope STW_WHOLE to reduce",
                             tensor_text(tensor->name).c_str());
    }
    const uint64_t size = tensor->element_bits / 8;
    range->byte_begin = (range->element_begin - first) * size;
    range->byte_count = range->element_count * size;
    return {};
}

Status resolve(const stw_runtime *runtime, const stw_fetch_request &from, RequestedRange *range)
{
    if (is_known(from.struct_size)) return resolve_known(runtime, &from, range);
    stw_fetch_request request{};
    STW_TRY(take(&request, &from, "request"));
    return resolve_known(runtime, &request, range);
}

Status resolve_all(const stw_runtime *runtime, const stw_fetch_request *requests, uint32_t n,
                   std::vector<RequestedRange> *ranges)
{
    if (!requests || n == 0) return Status::error(STW_ERROR_INVALID, "no requests are given");
    if (n > 65536) return Status::error(STW_ERROR_LIMIT, "%u requests in one call", n);
    ranges->resize(n);
    for (uint32_t i = 0; i < n; ++i) {
        const stw_fetch_request &request = element(requests, i);
        if (request.struct_size != requests[0].struct_size) {
            return Status::error(STW_ERROR_INVALID,
                                 "requests[%u].struct_size differs from the "
                                 "first one's",
                                 i);
        }
        STW_TRY(resolve(runtime, request, &(*ranges)[i]));
        (*ranges)[i].index = i;
    }
    return {};
}

// Nobody gets bytes, so there is nothing to write, to convert or to copy.
Status check_absent(const std::vector<RequestedRange> &ranges)
{
    for (const RequestedRange &range : ranges) {
        if (range.access == STW_READ && range.dtype == 0 && !range.into) continue;
        return Status::error(STW_ERROR_INVALID,
                             "%s is fetched with STW_FETCH_ABSENT, which shows no bytes: "
                             "access must be STW_READ, without `into` and another dtype",
                             tensor_text(range.tensor->name).c_str());
    }
    return {};
}

// What has no verdict yet is changed by nobody else.
Status check_reads(const std::vector<RequestedRange> &ranges)
{
    for (const RequestedRange &range : ranges) {
        if (range.access == STW_READ) continue;
        return Status::error(STW_ERROR_INVALID,
                             "%s is fetched with STW_FETCH_SPECULATED to be written; a tensor that "
                             "waits for its verdict can only be read, so access must be STW_READ",
                             tensor_text(range.tensor->name).c_str());
    }
    return {};
}

// Wholes and copies into memory of the caller's apart from what is pinned here.
void part_copied(FetchPlan *plan)
{
    const auto gathered =
        std::stable_partition(plan->ranges.begin(), plan->ranges.end(),
                              [](const RequestedRange &at) { return !is_gathered(at); });
    plan->gathered.assign(gathered, plan->ranges.end());
    plan->ranges.erase(gathered, plan->ranges.end());
    if (plan->flags & STW_FETCH_ABSENT) {
        plan->absent = std::exchange(plan->ranges, {});
        return;
    }
    const auto first =
        std::stable_partition(plan->ranges.begin(), plan->ranges.end(),
                              [](const RequestedRange &range) { return !range.into; });
    plan->copied.assign(first, plan->ranges.end());
    plan->ranges.erase(first, plan->ranges.end());
}

Status make_plan(stw_runtime *runtime, const stw_fetch_options *from,
                 const stw_fetch_request *requests, uint32_t n, FetchPlan *plan)
{
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    if (from) STW_TRY(take(&options, from, "options"));
    constexpr uint32_t kKnown = STW_FETCH_TRY | STW_FETCH_WAIT_ROOM | STW_FETCH_HAND_OVER |
                                STW_FETCH_ABSENT | STW_FETCH_SPECULATED;
    STW_TRY(check_flags(options.flags, kKnown, "options.flags"));
    STW_TRY(runtime->body->views.streams.check_stream(options.stream));
    plan->stream = options.stream;
    if (options.reserved) return Status::error(STW_ERROR_INVALID, "options.reserved is not 0");
    plan->step = runtime->body->recorder.current_step();
    if (options.phase) {
        STW_TRY(enter(options.phase));
        if (options.phase->runtime != runtime) {
            return Status::error(STW_ERROR_INVALID, "options.phase is of another runtime");
        }
        plan->step = runtime->body->recorder.step_of(options.phase);
    }
    plan->flags = options.flags;
    plan->priority = options.priority;
    plan->timeout_ns = options.timeout_ns;
    STW_TRY(resolve_all(runtime, requests, n, &plan->ranges));
    if (plan->flags & STW_FETCH_ABSENT) STW_TRY(check_absent(plan->ranges));
    if (plan->flags & STW_FETCH_SPECULATED) STW_TRY(check_reads(plan->ranges));
    part_copied(plan);
    for (const RequestedRange &range : plan->ranges) {
        STW_TRY(runtime->body->views.streams.check_stream_at(range.place, options.stream));
    }
    return {};
}

// Such a request can be a hit; the range is set when it can.
bool may_hit(const stw_runtime *runtime, const stw_fetch_request &request, uint32_t stride,
             RequestedRange *range)
{
    return request.struct_size == stride && request.access == STW_READ &&
           resolve_known(runtime, &request, range).ok() && range->byte_count != 0 &&
           range->dtype == 0 && !range->into && !is_gathered(*range);
}

// Views go to the caller only when all are there; so many are remembered by their slots.
[[gnu::noinline]] bool fetch_many_quickly(stw_runtime *runtime, const stw_fetch_request *requests,
                                          uint32_t n, stw_view *views_out)
{
    const uint32_t stride = requests->struct_size;
    for (uint32_t i = 0; i < n; ++i) {  // before anything is pinned that would be unpinned again
        if (element(requests, i).access != STW_READ) return false;
    }
    const uint64_t step = runtime->body->recorder.current_step();
    HitChain chain;
    RequestedRange range;
    for (uint32_t i = 0; i < n; ++i) {
        if (may_hit(runtime, element(requests, i), stride, &range) &&
            runtime->body->views.hits.add_hit(&chain, range, step)) {
            continue;
        }
        runtime->body->views.hits.undo_hits(chain);
        return false;
    }
    runtime->body->views.hits.open_hits(chain, views_out);
    for (uint32_t i = 0; i < n; ++i) views_out[i].scope = element(requests, i).scope;
    return true;
}

// A hit waits for nothing, so those that say how to wait change none.
constexpr uint32_t kHitFlags = STW_FETCH_TRY | STW_FETCH_WAIT_ROOM | STW_FETCH_SPECULATED;

// The hit path: false when the call needs anything else than pins, be it an error.
bool fetch_quickly(stw_runtime *runtime, const stw_fetch_options *options,
                   const stw_fetch_request *requests, uint32_t n, stw_view *views_out)
{
    if (n == 0 || !requests || !views_out || !quick_enter(runtime)) return false;
    if (options && (options->struct_size != sizeof *options || options->phase ||
                    (options->stream && n > kOnStackMax) || (options->flags & ~kHitFlags) != 0 ||
                    options->reserved != 0)) {
        return false;
    }
    const uint32_t stride = requests->struct_size;
    if (!is_known(stride)) return false;
    if (n > kOnStackMax) return fetch_many_quickly(runtime, requests, n, views_out);
    const uint64_t step = runtime->body->recorder.current_step();
    void *stream = options ? options->stream : nullptr;
    RequestedRange range;
    if (n == 1) {
        return may_hit(runtime, *requests, stride, &range) &&
               runtime->body->views.hits.fetch_hit(range, step, stream, views_out);
    }
    static_assert(std::is_trivially_destructible_v<RequestedRange>);
    alignas(RequestedRange)
        std::byte room[sizeof(RequestedRange) * kOnStackMax];  // made as far as it is used
    auto *ranges = reinterpret_cast<RequestedRange *>(room);
    for (uint32_t i = 0; i < n; ++i) {
        new (&ranges[i]) RequestedRange();
        if (!may_hit(runtime, element(requests, i), stride, &ranges[i])) return false;
    }
    return runtime->body->views.hits.fetch_hits(ranges, n, step, stream, views_out);
}

}  // namespace

Status stepwell::api::resolve_request(const stw_runtime *runtime, const stw_fetch_request &request,
                                      RequestedRange *range)
{
    return resolve(runtime, request, range);
}

stw_status stw_fetch(stw_runtime *runtime, const stw_fetch_options *options,
                     const stw_fetch_request *requests, uint32_t n, stw_view *views_out)
{
    if (fetch_quickly(runtime, options, requests, n, views_out)) return STW_OK;
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!views_out) return Status::error(STW_ERROR_INVALID, "views_out is null");
        FetchPlan plan;
        STW_TRY(make_plan(runtime, options, requests, n, &plan));
        return runtime->body->calls.fetches.fetch(std::move(plan), views_out);
    });
}

stw_status stw_fetch_async(stw_runtime *runtime, const stw_fetch_options *options,
                           const stw_fetch_request *requests, uint32_t n,
                           stw_operation **operation_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!operation_out) return Status::error(STW_ERROR_INVALID, "operation_out is null");
        FetchPlan plan;
        STW_TRY(make_plan(runtime, options, requests, n, &plan));
        return runtime->body->calls.operations.fetch_async(std::move(plan), operation_out);
    });
}

stw_status stw_fetch_collect(stw_operation *operation, void *stream, stw_view *views_out,
                             uint32_t n)
{
    return guard([&]() -> Status {
        STW_TRY(enter(operation));
        STW_TRY(operation->runtime->body->views.streams.check_stream(stream));
        if (!views_out) return Status::error(STW_ERROR_INVALID, "views_out is null");
        return operation->runtime->body->calls.operations.collect(operation, stream, views_out, n);
    });
}

stw_status stw_fetch_fits(stw_runtime *runtime, const stw_fetch_request *requests, uint32_t n)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        std::vector<RequestedRange> ranges;
        STW_TRY(resolve_all(runtime, requests, n, &ranges));
        return runtime->body->calls.fetches.fits(ranges);
    });
}

stw_status stw_prefetch(stw_runtime *runtime, const stw_fetch_request *requests, uint32_t n)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        std::vector<RequestedRange> ranges;
        STW_TRY(resolve_all(runtime, requests, n, &ranges));
        return runtime->body->calls.fetches.prefetch(ranges);
    });
}

namespace {

// Views of one runtime that follow each other.
stw_status release_run(stw_runtime *runtime, stw_view *views, uint32_t n, void *stream,
                       uint32_t flags)
{
    const bool open = quick_enter(runtime);
    if (!open && !enter_deferred(runtime)) return guard([&] { return enter(runtime); });
    const stw_status status = guard(
        [&] { return runtime->body->views.ends.release(views, n, stream, ReleaseHint(flags)); });
    if (!open) leave_deferred(runtime);
    return status;
}

// The sentence that is kept is the last one, so the first failure is told once more at the end.
Status release_each(stw_view *views, uint32_t n, void *stream, uint32_t flags)
{
    Status first;
    uint32_t begin = 0;
    while (begin < n) {
        stw_status status = STW_OK;
        uint32_t end = begin + 1;
        if (tensor_pool.is_live(views[begin].tensor)) {
            stw_runtime *runtime = views[begin].tensor->runtime;
            while (end < n && tensor_pool.is_live(views[end].tensor) &&
                   views[end].tensor->runtime == runtime) {
                ++end;
            }
            status = release_run(runtime, views + begin, end - begin, stream, flags);
        } else {
            status = report_invalid("views[%u] is not open: it was released before, or its tensor "
                                    "is gone",
                                    begin);
        }
        if (status < STW_OK && first.ok()) first = Status(status, last_detail());
        begin = end;
    }
    return first;
}

}  // namespace

stw_status stw_release(stw_view *views, uint32_t n, void *stream, uint32_t flags)
{
    constexpr uint32_t kKnown = STW_RELEASE_FAR | STW_RELEASE_NEAR | STW_RELEASE_DISCARD |
                                STW_RELEASE_MORE | STW_RELEASE_ABANDON;
    if (!views || n == 0) return report_invalid("no views are given");
    if ((flags & ~kKnown) != 0) {
        return guard([&] { return check_flags(flags, kKnown, "flags"); });
    }
    if (n == 1 && tensor_pool.is_live(views->tensor)) {
        return release_run(views->tensor->runtime, views, 1, stream, flags);
    }
    return guard([&] { return release_each(views, n, stream, flags); });
}

stw_status stw_stream_forget(stw_runtime *runtime, void *stream)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        return runtime->body->views.streams.forget_stream(stream);
    });
}

stw_status stw_view_share(const stw_view *view, stw_view *view_out)
{
    return guard([&]() -> Status {
        if (!view || !view_out) return Status::error(STW_ERROR_INVALID, "a view is null");
        STW_TRY(enter(view->tensor));
        return view->tensor->runtime->body->calls.fetches.share(*view, view_out);
    });
}

stw_status stw_evict(stw_runtime *runtime, stw_tensor *const *tensors, uint32_t n, uint32_t tier,
                     uint32_t device, uint64_t timeout_ns)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (n > 0 && !tensors) return Status::error(STW_ERROR_INVALID, "tensors is null");
        for (uint32_t i = 0; i < n; ++i) {
            STW_TRY(enter(tensors[i]));
            if (tensors[i]->runtime == runtime) continue;
            return Status::error(STW_ERROR_INVALID, "%s is of another runtime",
                                 tensor_text(tensors[i]->name).c_str());
        }
        const residency::PlaceId place = runtime->body->machine.tiers.place_of(tier, device);
        if (place == residency::kNoPlace || tier == STW_TIER_NVME) {
            return Status::error(STW_ERROR_INVALID,
                                 "nothing can be evicted from tier %u (%s), device %u: it is not "
                                 "there, or no tier is behind it",
                                 tier, report::tier_name(tier), device);
        }
        return runtime->body->calls.fetches.evict(tensors, n, place, timeout_ns);
    });
}
