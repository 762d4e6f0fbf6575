// SPDX-License-Identifier: Apache-2.0
// Copies between a tensor and memory of the caller's, chunk by chunk with a few chunks ahead: the
// tensor's blocks pass through wherever they are, and memory use does not depend on its size.
#include "lib/runtime/ranks.h"
#include "lib/runtime/snapshot.h"
#include "lib/support/assert.h"
#include "lib/update/kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

namespace stepwell {
namespace {

constexpr size_t kChunksAhead = 8;

template <class Integer> bool fill_integers(void *destination, uint64_t count, double value)
{
    const auto converted = static_cast<Integer>(value);
    if (static_cast<double>(converted) != value) return false;
    std::fill_n(static_cast<Integer *>(destination), count, converted);
    return true;
}

bool fill_elements(void *destination, uint32_t dtype, uint64_t count, double value)
{
    if (update::is_float(dtype)) {
        kernels::fill(destination, dtype, count, value);
        return true;
    }
    if (value == 0.0 && !std::signbit(value)) {
        std::memset(destination, 0, count * stw_dtype_bits(dtype) / 8);
        return true;
    }
    const bool in_range = std::abs(value) < 9.0e15;
    switch (dtype) {
    case STW_F64: std::fill_n(static_cast<double *>(destination), count, value); return true;
    case STW_I64: return in_range && fill_integers<int64_t>(destination, count, value);
    case STW_I32:
        return value >= -2147483648.0 && value < 2147483648.0 &&
               fill_integers<int32_t>(destination, count, value);
    case STW_I16:
        return value >= -32768.0 && value < 32768.0 &&
               fill_integers<int16_t>(destination, count, value);
    case STW_I8:
        return value >= -128.0 && value < 128.0 && fill_integers<int8_t>(destination, count, value);
    case STW_BOOL: return value == 1.0 && fill_integers<uint8_t>(destination, count, value);
    case STW_U8:
        return value >= 0 && value < 256.0 && fill_integers<uint8_t>(destination, count, value);
    default: return false;
    }
}

// What reads of the tensor are told from now on: some of it is new and some is not.
Status half_written(const stw_tensor &tensor, const Status &cause)
{
    Status status = Status::error(cause.code(),
                                  "%s was left half written by a call that failed; write "
                                  "all of it again, or discard it. The cause was: %s",
                                  tensor_text(tensor.name).c_str(), cause.sentence());
    status.mutable_detail().tensor = tensor.name;
    return status;
}

}  // namespace

Status Runtime::check_dtype(const stw_tensor *tensor, uint32_t dtype)
{
    if (dtype == 0 || dtype == tensor->dtype) return {};
    if (update::is_float(dtype) && update::is_float(tensor->dtype)) return {};
    if (stw_dtype_bits(dtype) == 0) {
        return Status::error(STW_ERROR_INVALID, "%s: dtype %u is not known",
                             tensor_text(tensor->name).c_str(), dtype);
    }
    return Status::error(STW_ERROR_INVALID,
                         "%s has dtype %s and cannot be converted from or to %s; only "
                         "f32, f16 and bf16 convert",
                         tensor_text(tensor->name).c_str(), report::dtype_name(tensor->dtype),
                         report::dtype_name(dtype));
}

// The piece of a copy that lies in one block. Only the piece at work is fetched; those that come
// are hinted at: what is not yet used holds nothing, so copies never wait for each other's pieces.
struct Runtime::ChunkFetch {
    Waiter waiter;
    uint64_t element_begin = 0;
    uint64_t element_count = 0;
};

// One copy: what its pieces have in common.
struct Runtime::Copy {
    stw_tensor *tensor = nullptr;
    residency::Access access = residency::Access::kRead;
    residency::ClaimId claim = 0;  // 0: not exclusive
    residency::Instant deadline = residency::kNever;
    uint32_t owner = 0;
    uint64_t offset = 0;  // in the pack
    uint64_t element_bytes = 0;
    uint64_t end = 0;     // elements
    uint64_t hinted = 0;  // element up to which hints were given
    std::deque<residency::FetchId> hints;
};

// How many elements from `at` on lie in its block.
uint64_t Runtime::chunk_elements(const Copy &copy, uint64_t at) const
{
    const uint64_t byte = copy.offset + at * copy.element_bytes;
    const uint64_t room = (block_bytes_ - byte % block_bytes_) / copy.element_bytes;
    return std::min(std::max<uint64_t>(room, 1), copy.end - at);
}

// Calls body(pointer, element_begin, count) for each piece of the range that lies in one block.
// Exclusive: the tensor is claimed, so that nobody sees it half done.
template <class Body>
Status Runtime::each_chunk(stw_tensor *tensor, residency::Access access, bool exclusive,
                           uint64_t element_begin, uint64_t element_count, uint64_t timeout_ns,
                           Body &&body)
{
    STW_TRY(errors_.of(tensor->id));
    if (element_count == 0) return {};
    STW_TRY(check_cpu_room());
    STW_TRY(write_zeros(tensor));
    Copy copy;
    copy.tensor = tensor;
    copy.access = access;
    copy.deadline = dispatch_.now() + dispatch_.timeout(timeout_ns);
    copy.owner = owner_number();
    copy.offset = pack_offset(tensor->id);
    copy.element_bytes = tensor->element_bits / 8;
    copy.end = element_begin + element_count;
    copy.hinted = element_begin;
    if (exclusive) copy.claim = claim_alone(tensor->id);
    Status status = self_wait(tensor, access, copy.owner);
    uint64_t next = element_begin;
    while (next < copy.end && status.ok()) {
        ChunkFetch chunk;
        chunk.element_begin = next;
        chunk.element_count = chunk_elements(copy, next);
        ask_chunk(chunk, copy);
        await(chunk.waiter, tensor->id);
        status = std::move(chunk.waiter.status);
        if (!status.ok()) break;
        status = body(chunk_pointer(chunk, copy), chunk.element_begin, chunk.element_count);
        release_chunk(chunk, copy);
        next += chunk.element_count;
    }
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (const residency::FetchId hint : copy.hints) {
            core.cancel(hint, Status::remark(STW_ERROR_CANCELLED), out);
        }
        const bool whole = element_begin == 0 && copy.end == tensor->elements;
        if (status.ok() && access == residency::Access::kWrite && whole) {
            core.mark_valid(tensor->id);
        } else if (!status.ok() && exclusive && next > element_begin) {
            core.fail(tensor->id, half_written(*tensor, status));
        }
    });
    if (exclusive) unclaim(copy.claim, &tensor->id, 1, residency::kNone);
    log_timeout(status);
    return status;
}

// A claim waits for open views of the tensor; one of the caller's own would never go.
Status Runtime::self_wait(stw_tensor *tensor, residency::Access access, uint32_t owner)
{
    Waiter waiter;
    Range range;
    range.tensor = tensor;
    range.access = access == residency::Access::kRead ? STW_READ : STW_WRITE;
    range.place = tiers_.nearest();
    waiter.plan.ranges.push_back(range);
    waiter.owner = owner;
    std::string name;
    MutexLock lock(dispatch_.mutex());
    if (!waits_for_itself(waiter, &name)) return {};
    return Status::error(STW_ERROR_BUSY,
                         "the call would wait for a view of %s that this thread holds; "
                         "release that view first",
                         tensor_text(name).c_str());
}

void Runtime::ask_chunk(ChunkFetch &chunk, Copy &copy)
{
    const residency::TensorId tensor = copy.tensor->id;
    const auto asked_for = [&](residency::Access access, uint64_t begin, uint64_t count) {
        residency::FetchAsked asked;
        asked.claim = copy.claim;
        asked.requests.push_back({tensor, access, residency::kAnyCpuPlace,
                                  begin * copy.element_bytes, count * copy.element_bytes});
        return asked;
    };
    residency::FetchAsked asked = asked_for(copy.access, chunk.element_begin, chunk.element_count);
    asked.owner = copy.owner;
    asked.deadline = copy.deadline;
    // Half done it must not fail because views pin the room at this moment.
    asked.flags = residency::kFetchInternal | residency::kFetchWaitRoom;
    chunk.waiter.begin = dispatch_.now();
    chunk.waiter.deadline = copy.deadline;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        chunk.waiter.fetch = core.fetch(asked, dispatch_.now(), out);
        dispatch_.expect(chunk.waiter);
        if (core.is_waiting(chunk.waiter.fetch)) chunk.waiter.cause = cause_of(chunk.waiter);
        if (core.claimed_by(tensor) != copy.claim) {
            pipeline_->prefer(tensor);
            return;
        }
        if (copy.access == residency::Access::kWrite) return;
        copy.hinted = std::max(copy.hinted, chunk.element_begin + chunk.element_count);
        while (!copy.hints.empty() && !core.is_waiting(copy.hints.front())) copy.hints.pop_front();
        while (copy.hinted < copy.end && copy.hints.size() < kChunksAhead) {
            const uint64_t count = chunk_elements(copy, copy.hinted);
            residency::FetchAsked hint = asked_for(residency::Access::kRead, copy.hinted, count);
            hint.flags = residency::kFetchPrefetch;
            hint.urgency = residency::Class::kPlanned;
            copy.hints.push_back(core.fetch(hint, dispatch_.now(), out));
            copy.hinted += count;
        }
    });
}

void *Runtime::chunk_pointer(const ChunkFetch &chunk, const Copy &copy)
{
    update::Piece piece;
    piece.tensor = copy.tensor->id;
    piece.byte_begin = chunk.element_begin * copy.element_bytes;
    MutexLock lock(dispatch_.mutex());
    return piece_pointer(chunk.waiter.grants[0], piece);
}

void Runtime::release_chunk(const ChunkFetch &chunk, const Copy &copy)
{
    residency::Release release;
    release.tensor = copy.tensor->id;
    release.access = copy.access;
    release.place = chunk.waiter.grants[0].place;
    release.byte_begin = chunk.element_begin * copy.element_bytes;
    release.byte_count = chunk.element_count * copy.element_bytes;
    release.internal = true;
    release.claim = copy.claim;
    release.far = copy.access != residency::Access::kRead;
    dispatch_.act([&](Core &core, Commands &out)
                      STW_REQUIRES(runtime_lock) { core.release(release, dispatch_.now(), out); });
}

Status elements_outside(const stw_tensor &tensor, uint64_t begin, uint64_t count, uint64_t first,
                        uint64_t elements)
{
    const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    const char *name = tensor.name.c_str();
    const bool all = !tensor.sharding || elements == tensor.sharding->elements();
    if (all) {
        return Status::error(
            STW_ERROR_INVALID, "elements [%llu, +%llu) are not inside %s of %llu elements",
            number(begin), number(count), tensor_text(name).c_str(), number(elements));
    }
    return Status::error(STW_ERROR_INVALID,
                         "elements [%llu, +%llu) are not inside this rank's shard of %s, "
                         "elements [%llu, +%llu)",
                         number(begin), number(count), tensor_text(name).c_str(), number(first),
                         number(elements));
}

// The range that a copy names, and what of it lies in this process, in elements of the shard.
Status Runtime::resolve_copy(const stw_tensor &tensor, const stw_copy_options &options,
                             collective::Range *asked_out, collective::Range *part_out) const
{
    const Sharding *sharding = tensor.sharding.get();
    const bool whole = sharding && options.scope == STW_WHOLE;
    const uint64_t first = whole ? 0 : tensor.shard_begin;
    const uint64_t elements = whole ? sharding->elements() : tensor.elements;
    collective::Range asked{options.element_begin, options.element_count};
    if (asked.begin == 0 && asked.count == 0) asked = {first, elements};
    if (asked.begin < first || asked.begin - first > elements ||
        asked.count > elements - (asked.begin - first)) {
        return elements_outside(tensor, asked.begin, asked.count, first, elements);
    }
    *asked_out = asked;
    *part_out = asked;
    if (sharding && sharding->is_sharded()) {
        *part_out = sharding->partition.part(ranks_->group.rank(), asked);
        if (part_out->count == 0) part_out->begin = tensor.shard_begin;
    }
    part_out->begin -= tensor.shard_begin;
    return {};
}

// Shards are written past their gathered whole.
Status Runtime::change_shards(stw_tensor *tensor)
{
    if (!tensor->sharding) return {};
    Status status;
    dispatch_.act([&](Core &, Commands &out)
                      STW_REQUIRES(runtime_lock) { status = write_shards(tensor, out); });
    return status;
}

// Of a sharded tensor each rank takes its own part of what all have.
Status Runtime::write(stw_tensor *tensor, const void *source, const stw_copy_options &options)
{
    STW_TRY(check_dtype(tensor, options.dtype));
    collective::Range asked;
    collective::Range part;
    STW_TRY(resolve_copy(*tensor, options, &asked, &part));
    if (durable_.body) {
        MutexLock lock(dispatch_.mutex());
        STW_TRY(check_thawed(*tensor));
    }
    STW_TRY(change_shards(tensor));
    const uint32_t dtype = options.dtype ? options.dtype : tensor->dtype;
    const uint64_t size = stw_dtype_bits(dtype) / 8;
    const uint64_t skipped = tensor->shard_begin + part.begin - asked.begin;
    const char *from = static_cast<const char *>(source) + (part.count > 0 ? skipped * size : 0);
    const uint64_t begin = part.begin;
    return each_chunk(tensor, residency::Access::kWrite, true, begin, part.count,
                      options.timeout_ns, [&](void *chunk, uint64_t at, uint64_t n) {
                          const char *bytes = from + (at - begin) * size;
                          if (dtype == tensor->dtype) {
                              std::memcpy(chunk, bytes, n * size);
                          } else {
                              kernels::convert(chunk, tensor->dtype, bytes, dtype, n);
                          }
                          return Status();
                      });
}

// Gathered, and copied from the whole.
Status Runtime::read_whole(stw_tensor *tensor, void *destination, collective::Range asked,
                           const stw_copy_options &options)
{
    FetchPlan plan;
    Range range;
    range.tensor = tensor;
    range.place = ranks_->place;
    range.element_begin = asked.begin;
    range.element_count = asked.count;
    range.byte_begin = asked.begin * (tensor->element_bits / 8);
    range.byte_count = asked.count * (tensor->element_bits / 8);
    plan.gathered.push_back(range);
    plan.step = current_step();
    plan.timeout_ns = options.timeout_ns;
    stw_view view;
    STW_TRY(fetch(std::move(plan), &view));
    if (asked.count > 0) {
        const uint32_t dtype = options.dtype ? options.dtype : tensor->dtype;
        copy_elements(destination, dtype, view.pointer, *tensor, asked.count);
    }
    return release(&view, 1, STW_STREAM_SYNCED, 0);
}

// By a view to add into: what is called for several ranks is one collective, or none with MORE.
Status Runtime::reduce_over_ranks(stw_tensor *gradient, const void *local,
                                  const stw_reduce_options &options)
{
    const bool more = (options.flags & STW_REDUCE_MORE) != 0;
    if (!local && more) return errors_.of(gradient->id);
    Range range;
    range.tensor = gradient;
    range.access = STW_REDUCE;
    range.place = ranks_->place;
    range.element_count = gradient->sharding->elements();
    range.byte_count = range.element_count * (gradient->element_bits / 8);
    FetchPlan plan;
    plan.ranges.push_back(range);
    plan.step = current_step();
    plan.timeout_ns = options.timeout_ns;
    plan.flags = STW_FETCH_WAIT_ROOM;
    stw_view view;
    STW_TRY(fetch(std::move(plan), &view));
    if (local && range.element_count > 0) {
        kernels::accumulate(kernels::Reduce::kFirst, view.pointer, gradient->dtype, local,
                            options.dtype ? options.dtype : gradient->dtype, range.element_count,
                            options.scale != 0.0 ? options.scale : 1.0);
    }
    const uint32_t flags = (more ? uint32_t{STW_RELEASE_MORE} : 0) | (local ? 0 : kReleaseNothing);
    return release(&view, 1, STW_STREAM_SYNCED, flags);
}

// One version, whole: a fetch into the caller's memory that waits for room.
Status Runtime::read(stw_tensor *tensor, void *destination, const stw_copy_options &options)
{
    STW_TRY(check_dtype(tensor, options.dtype));
    collective::Range asked;
    collective::Range part;
    STW_TRY(resolve_copy(*tensor, options, &asked, &part));
    const bool whole =
        tensor->sharding && tensor->sharding->is_sharded() && options.scope == STW_WHOLE;
    if (whole) return read_whole(tensor, destination, asked, options);
    Range range;
    range.tensor = tensor;
    range.into = destination;
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
    waiter.owner = owner_number();
    Status status = copy_out(waiter);
    log_timeout(status);
    return status;
}

Status Runtime::fill(stw_tensor *tensor, double value, const stw_copy_options &options)
{
    collective::Range asked;
    collective::Range part;
    STW_TRY(resolve_copy(*tensor, options, &asked, &part));
    char probe[8];
    if (!fill_elements(probe, tensor->dtype, 1, value)) {
        return Status::error(STW_ERROR_INVALID, "dtype %s of %s cannot hold the value %g",
                             report::dtype_name(tensor->dtype), tensor_text(tensor->name).c_str(),
                             value);
    }
    STW_TRY(change_shards(tensor));
    return each_chunk(tensor, residency::Access::kWrite, true, part.begin, part.count,
                      options.timeout_ns, [&](void *chunk, uint64_t, uint64_t n) {
                          fill_elements(chunk, tensor->dtype, n, value);
                          return Status();
                      });
}

Status Runtime::reduce(stw_tensor *gradient, const void *local, const stw_reduce_options &options)
{
    STW_TRY(check_dtype(gradient, options.dtype));
    if (gradient->sharding) return reduce_over_ranks(gradient, local, options);
    if (!local) return errors_.of(gradient->id);
    const uint32_t dtype = options.dtype ? options.dtype : gradient->dtype;
    const uint64_t size = stw_dtype_bits(dtype) / 8;
    const double scale = options.scale != 0.0 ? options.scale : 1.0;
    const char *from = static_cast<const char *>(local);
    bool asked = false;
    kernels::Reduce mode = kernels::Reduce::kAdd;
    Status status = each_chunk(
        gradient, residency::Access::kReadWrite, true, 0, gradient->elements, options.timeout_ns,
        [&](void *chunk, uint64_t at, uint64_t n) {
            // Empty counts as nothing: the first contribution is taken as it is.
            if (!asked && contents(gradient->id) == residency::Contents::kEmpty) {
                mode = kernels::Reduce::kFirst;
            }
            asked = true;
            kernels::accumulate(mode, chunk, gradient->dtype, from + at * size, dtype, n, scale);
            return Status();
        });
    if (!status.ok()) return status;
    MutexLock lock(dispatch_.mutex());
    note_reduced(gradient, current_step());
    return {};
}

// A private buffer of a reduce joins its gradient behind the call, then goes.
Status Runtime::accumulate(const ViewSlot &slot, residency::TensorId sum, uint64_t sum_elements)
{
    const stw_tensor &gradient = *slot.tensor;
    const uint64_t element_bytes = gradient.element_bits / 8;
    const uint32_t dtype = slot.dtype;
    Status status =
        add_up(gradient, slot.scratch, dtype ? dtype : gradient.dtype, sum,
               {slot.byte_begin / element_bytes, slot.byte_count / element_bytes}, sum_elements);
    if (!status.ok()) drop_scratch(slot.scratch);
    return status;
}

// sum[range] += scratch, which goes then; where there is an error, it does not.
Status Runtime::add_up(const stw_tensor &gradient, residency::TensorId scratch,
                       uint32_t scratch_dtype, residency::TensorId sum, collective::Range range,
                       uint64_t sum_elements)
{
    struct Done {
        Runtime *runtime;
        residency::TensorId scratch;
    };
    auto *done = new Done{this, scratch};
    update::Accumulation work;
    work.gradient = sum;
    work.gradient_dtype = gradient.dtype;
    work.scratch = scratch;
    work.scratch_dtype = scratch_dtype;
    work.element_begin = range.begin;
    work.element_count = range.count;
    work.gradient_elements = sum_elements;
    work.done_user = done;
    work.done = [](void *user, const Status &) {
        auto *mine = static_cast<Done *>(user);
        mine->runtime->drop_scratch(mine->scratch);
        delete mine;
    };
    Status status = pipeline_->accumulate(work);
    if (!status.ok()) delete done;
    return status;
}

}  // namespace stepwell
