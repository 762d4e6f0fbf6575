// SPDX-License-Identifier: Apache-2.0
// Steps are one at a time with these calls, so that nothing but the program's own writes comes
// between the copies of a master's parts.
#include "lib/runtime/calls/masters.h"

#include "lib/runtime/calls/reductions.h"
#include "lib/runtime/copies/chunks.h"
#include "lib/runtime/copies/snapshots.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/optimizers/table.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/updates/body.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/update/kernels/kernels.h"

#include <algorithm>
#include <cinttypes>
#include <memory>

namespace stepwell {
namespace {

using collective::Range;
using residency::Access;

constexpr uint64_t kJoinedAtOnce = uint64_t{1} << 20;  // elements, in 4.1 MiB beside the caller's
constexpr uint64_t kSplitAtOnce = 4096;                // elements, whose other part is dropped

constexpr uint64_t bit_bytes(uint64_t elements)
{
    return (elements + 7) / 8;
}

RequestedRange range_of(stw_tensor *tensor, void *into, uint64_t begin, uint64_t count)
{
    RequestedRange range;
    const uint64_t size = tensor->element_bits / 8;
    range.tensor = tensor;
    range.into = into;
    range.element_begin = begin;
    range.element_count = count;
    range.byte_begin = begin * size;
    range.byte_count = count * size;
    return range;
}

}  // namespace

// The part is in elements of the shard.
Status Masters::prepare(stw_optimizer *optimizer, stw_tensor *parameter, stw_copy_options *options,
                        Range *part_out, KeptMaster *kept_out)
{
    const std::string text = parameter_text(parameter->name);
    if (options->dtype != 0 && options->dtype != STW_F32) {
        return Status::error(STW_ERROR_INVALID,
                             "the master of %s is read and written as f32 in host memory",
                             text.c_str());
    }
    if (parameter->sharding && parameter->sharding->is_sharded() && options->scope != STW_SHARD) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "%s is sharded: its master is read and written by shards, with "
                             "options.scope STW_SHARD on each rank",
                             text.c_str());
    }
    options->dtype = STW_F32;
    Range asked;
    STW_TRY(chunks_.resolve_copy(*parameter, *options, &asked, part_out));
    return optimizers_.kept_master(optimizer, parameter, options->timeout_ns, kept_out);
}

Status Masters::read(stw_optimizer *optimizer, stw_tensor *parameter, float *destination,
                     const stw_copy_options &options)
{
    stw_copy_options copy = options;
    Range part;
    KeptMaster kept;
    STW_TRY(prepare(optimizer, parameter, &copy, &part, &kept));
    if (kept.is_remade || kept.whole)
        return reductions_.read(kept.is_remade ? parameter : kept.whole, destination, copy);
    return read_parts(parameter, kept, destination, part, copy.timeout_ns);
}

Status Masters::read_parts(stw_tensor *parameter, const KeptMaster &kept, float *destination,
                           Range part, uint64_t timeout_ns)
{
    const uint64_t most = std::min(part.count, kJoinedAtOnce);
    const auto values = std::make_unique_for_overwrite<uint16_t[]>(most);
    const auto low = std::make_unique_for_overwrite<uint16_t[]>(most);
    const auto open = std::make_unique_for_overwrite<uint8_t[]>(bit_bytes(most) + 1);
    for (const stw_tensor *tensor : {parameter, kept.low, kept.open})
        STW_TRY(errors_.of(tensor->id));
    for (uint64_t at = 0; at < part.count; at += most) {
        const uint64_t n = std::min(most, part.count - at);
        const uint64_t begin = part.begin + at;
        const uint64_t first_bit = begin % 8;
        Waiter waiter;
        waiter.plan.copied = {range_of(parameter, values.get(), begin, n),
                              range_of(kept.low, low.get(), begin, n),
                              range_of(kept.open, open.get(), begin / 8, bit_bytes(first_bit + n))};
        waiter.plan.flags = STW_FETCH_WAIT_ROOM;
        waiter.plan.timeout_ns = timeout_ns;
        waiter.owner = recorder_.owner_number();
        const Status status = snapshots_.copy_out(waiter);
        sleepers_.log_timeout(status);
        if (!status.ok()) return status;
        for (uint64_t i = 0; first_bit > 0 && i < bit_bytes(n); ++i)
            open[i] = static_cast<uint8_t>((open[i] | open[i + 1] << 8) >> first_bit);
        kernels::merge_master(destination + at, values.get(), {low.get(), open.get()}, n);
    }
    return {};
}

// The parameter first: with what is written after it, the master is no older than it is.
Status Masters::write(stw_optimizer *optimizer, stw_tensor *parameter, const float *source,
                      const stw_copy_options &options)
{
    stw_copy_options copy = options;
    Range part;
    KeptMaster kept;
    STW_TRY(prepare(optimizer, parameter, &copy, &part, &kept));
    const bool ends_a_byte = part.count % 8 == 0 || part.begin + part.count == parameter->elements;
    if (kept.low && (part.begin % 8 != 0 || !ends_a_byte)) {
        return Status::error(STW_ERROR_INVALID,
                             "a part of the master of %s is written from a multiple of 8 elements "
                             "to another one, or to the end, not %" PRIu64
                             " elements from %" PRIu64,
                             parameter_text(parameter->name).c_str(), part.count, part.begin);
    }
    if (part.count == 0) return {};
    if (kept.is_remade && part.count < parameter->elements) STW_TRY(remake(parameter, kept, copy));
    STW_TRY(chunks_.write(parameter, source, copy));
    if (kept.whole) return chunks_.write(kept.whole, source, copy);
    return write_parts(kept, source, part, copy.timeout_ns);
}

Status Masters::write_parts(const KeptMaster &kept, const float *source, Range part,
                            uint64_t timeout_ns)
{
    const auto low = [&](void *chunk, uint64_t begin, uint64_t n) {
        uint8_t open[kSplitAtOnce / 8];
        for (uint64_t at = 0; at < n; at += kSplitAtOnce) {
            const float *from = source + (begin - part.begin) + at;
            kernels::split_master({static_cast<uint16_t *>(chunk) + at, open}, from,
                                  std::min(kSplitAtOnce, n - at));
        }
        return Status();
    };
    const auto open = [&](void *chunk, uint64_t begin, uint64_t n) {
        uint16_t low_too[kSplitAtOnce];
        for (uint64_t at = 0; at < n; at += kSplitAtOnce / 8) {
            const uint64_t first = (begin + at) * 8 - part.begin;
            const uint64_t bits = std::min(kSplitAtOnce, (n - at) * 8);
            kernels::split_master({low_too, static_cast<uint8_t *>(chunk) + at}, source + first,
                                  std::min(bits, part.count - first));
        }
        return Status();
    };
    STW_TRY(chunks_.each_chunk(kept.low, Access::kWrite, true, part.begin, part.count, timeout_ns,
                               low));
    return chunks_.each_chunk(kept.open, Access::kWrite, true, part.begin / 8,
                              bit_bytes(part.count), timeout_ns, open);
}

// What the next update would begin with; the part that is written then changes some of it.
Status Masters::remake(stw_tensor *parameter, const KeptMaster &kept,
                       const stw_copy_options &options)
{
    stw_copy_options copy = options;
    copy.scope = STW_SHARD;
    if (kept.low) {  // parts of zeros leave the parameter as it is
        copy.element_begin = copy.element_count = 0;
        STW_TRY(chunks_.fill(kept.low, 0.0, copy));
        return chunks_.fill(kept.open, 0.0, copy);
    }
    const uint64_t most = std::min(parameter->elements, kJoinedAtOnce);
    const auto values = std::make_unique_for_overwrite<float[]>(most);
    for (uint64_t at = 0; at < parameter->elements; at += most) {
        copy.element_begin = parameter->shard_begin + at;
        copy.element_count = std::min(most, parameter->elements - at);
        STW_TRY(reductions_.read(parameter, values.get(), copy));
        STW_TRY(chunks_.write(kept.whole, values.get(), copy));
    }
    return {};
}

}  // namespace stepwell
