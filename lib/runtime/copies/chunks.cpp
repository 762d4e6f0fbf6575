// SPDX-License-Identifier: Apache-2.0
// Copies between a tensor and the caller's memory, a chunk at a time with hints for the next ones:
// memory use does not depend on the tensor's size.
#include "lib/runtime/copies/chunks.h"

#include "lib/memory/caller_memory.h"
#include "lib/report/report.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/restored/restored.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/tensors/registry.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/runtime/updates/tiers.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/support/assert.h"
#include "lib/update/kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include <stepwell/copy.h>

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

// The error of later reads of the tensor, whose contents are partly new.
Status half_written(const stw_tensor &tensor, const Status &cause)
{
    ErrorDetail detail = *cause.detail();
    detail.tensor = tensor.name;
    detail.sentence = format_text("%s was left half written by a call that failed; write all of it "
                                  "again, or discard it. The cause was: %s",
                                  tensor_text(tensor.name).c_str(), cause.sentence());
    return {cause.code(), std::move(detail)};
}

}  // namespace

Status ChunkCopies::check_dtype(const stw_tensor *tensor, uint32_t dtype)
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

// The piece of a copy that lies in one block. Only the current piece is fetched; the next ones are
// only hinted, and a hint holds nothing, so copies never wait for each other's pieces.
struct ChunkFetch {
    Waiter waiter;
    uint64_t element_begin = 0;
    uint64_t element_count = 0;
};

// The state of one copy.
struct Copy {
    stw_tensor *tensor = nullptr;
    residency::Access access = residency::Access::kRead;
    residency::ClaimId claim = 0;  // 0: not exclusive
    residency::Instant deadline = residency::kNever;
    uint32_t owner = 0;
    uint64_t offset = 0;  // in the pack
    uint64_t element_bytes = 0;
    uint64_t end = 0;     // elements
    uint64_t hinted = 0;  // hints were given up to this element
    std::deque<residency::FetchId> hints;
};

// The number of elements from `at` on in the same block.
uint64_t ChunkCopies::chunk_elements(const Copy &copy, uint64_t at) const
{
    const uint64_t byte = copy.offset + at * copy.element_bytes;
    const uint64_t room = (machine_.block_bytes - byte % machine_.block_bytes) / copy.element_bytes;
    return std::min(std::max<uint64_t>(room, 1), copy.end - at);
}

Status ChunkCopies::each_chunk(stw_tensor *tensor, residency::Access access, bool exclusive,
                               uint64_t element_begin, uint64_t element_count, uint64_t timeout_ns,
                               const ChunkBody &body)
{
    STW_TRY(errors_.of(tensor->id));
    if (element_count == 0) return {};
    STW_TRY(placement_.check_cpu_room());
    STW_TRY(zeros_.write_zeros(tensor));
    Copy copy;
    copy.tensor = tensor;
    copy.access = access;
    copy.deadline = dispatch_.deadline(timeout_ns);
    copy.owner = recorder_.owner_number();
    copy.offset = addresses_.pack_offset(tensor->id);
    copy.element_bytes = tensor->element_bits / 8;
    copy.end = element_begin + element_count;
    copy.hinted = element_begin;
    if (exclusive) copy.claim = pieces_.claim_alone(tensor->id);
    Status status = sleepers_.self_wait(tensor, access, copy.owner);
    uint64_t next = element_begin;
    while (next < copy.end && status.ok()) {
        ChunkFetch chunk;
        chunk.element_begin = next;
        chunk.element_count = chunk_elements(copy, next);
        ask_chunk(chunk, copy);
        sleepers_.await(chunk.waiter, tensor->id);
        status = std::move(chunk.waiter.status);
        if (!status.ok()) break;
        {
            const ViewTable::Copying copying(views_, tensor->id);
            status = body(chunk_pointer(chunk, copy), chunk.element_begin, chunk.element_count);
        }
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
    if (exclusive) pieces_.unclaim(copy.claim, &tensor->id, 1, 0);
    sleepers_.log_timeout(status);
    return status;
}

void ChunkCopies::ask_chunk(ChunkFetch &chunk, Copy &copy)
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
    // A copy that has begun must not fail because views pin the room at the moment.
    asked.flags = residency::kFetchInternal | residency::kFetchWaitRoom;
    chunk.waiter.begin = dispatch_.now();
    chunk.waiter.deadline = copy.deadline;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        dispatch_.ask(chunk.waiter, asked, out);
        if (core.is_waiting(chunk.waiter.fetch))
            chunk.waiter.cause = sleepers_.cause_of(chunk.waiter);
        if (core.is_barred(tensor, copy.access, copy.claim)) {
            machine_.pipeline->prefer(tensor);
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
            copy.hints.push_back(core.fetch(hint, out));
            copy.hinted += count;
        }
    });
}

void *ChunkCopies::chunk_pointer(const ChunkFetch &chunk, const Copy &copy)
{
    update::Piece piece;
    piece.tensor = copy.tensor->id;
    piece.byte_begin = chunk.element_begin * copy.element_bytes;
    MutexLock lock(dispatch_.mutex());
    return addresses_.piece_pointer(chunk.waiter.grants[0], piece);
}

void ChunkCopies::release_chunk(const ChunkFetch &chunk, const Copy &copy)
{
    residency::Release release;
    release.tensor = copy.tensor->id;
    release.access = copy.access;
    release.place = chunk.waiter.grants[0].place;
    release.byte_begin = chunk.element_begin * copy.element_bytes;
    release.byte_count = chunk.element_count * copy.element_bytes;
    release.internal = true;
    release.claim = copy.claim;
    // A block that is written in several pieces is written back after the last one.
    const uint64_t end = copy.offset + release.byte_begin + release.byte_count;
    const bool last = end % machine_.block_bytes == 0 ||
                      chunk.element_begin + chunk.element_count == copy.tensor->elements;
    release.far = copy.access != residency::Access::kRead && last;
    dispatch_.act([&](Core &core, Commands &out)
                      STW_REQUIRES(runtime_lock) { core.release(release, out); });
}

// The range that a copy names, and this rank's part of it in elements of the shard.
Status ChunkCopies::resolve_copy(const stw_tensor &tensor, const stw_copy_options &options,
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
        *part_out = sharding->partition.part(machine_.ranks->group.rank(), asked);
        if (part_out->count == 0) part_out->begin = tensor.shard_begin;
    }
    part_out->begin -= tensor.shard_begin;
    return {};
}

// Each rank of a sharded tensor writes its own part of the source.
Status ChunkCopies::write(stw_tensor *tensor, const void *source, const stw_copy_options &options)
{
    STW_TRY(check_dtype(tensor, options.dtype));
    collective::Range asked;
    collective::Range part;
    STW_TRY(resolve_copy(*tensor, options, &asked, &part));
    if (restored_.durable) {
        MutexLock lock(dispatch_.mutex());
        STW_TRY(restored_.check_thawed(*tensor));
    }
    STW_TRY(registry_.change_shards(tensor));
    const uint32_t dtype = options.dtype ? options.dtype : tensor->dtype;
    const uint64_t size = stw_dtype_bits(dtype) / 8;
    const uint64_t skipped = tensor->shard_begin + part.begin - asked.begin;
    const char *from = static_cast<const char *>(source) + (part.count > 0 ? skipped * size : 0);
    const uint64_t begin = part.begin;
    Result<memory::CallerMemory> caller = memory::CallerMemory::make(
        machine_.tiers, {options.tier, options.device, options.stream}, from, part.count * size);
    if (!caller.ok()) return std::move(caller.status());
    STW_TRY(caller.value().await());
    memory::OnHost part_here(caller.value());
    return each_chunk(tensor, residency::Access::kWrite, true, begin, part.count,
                      options.timeout_ns, [&](void *chunk, uint64_t at, uint64_t n) {
                          const char *bytes = from + (at - begin) * size;
                          if (dtype == tensor->dtype)
                              return caller.value().copy(chunk, bytes, n * size);
                          const void *here = nullptr;
                          STW_TRY(part_here.bring(bytes, n * size, &here));
                          kernels::convert(chunk, tensor->dtype, here, dtype, n);
                          return Status();
                      });
}

Status ChunkCopies::fill(stw_tensor *tensor, double value, const stw_copy_options &options)
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
    STW_TRY(registry_.change_shards(tensor));
    return each_chunk(tensor, residency::Access::kWrite, true, part.begin, part.count,
                      options.timeout_ns, [&](void *chunk, uint64_t, uint64_t n) {
                          fill_elements(chunk, tensor->dtype, n, value);
                          return Status();
                      });
}

}  // namespace stepwell
