// SPDX-License-Identifier: Apache-2.0
// Sums into gradients, and zeros: one job per contribution. The queue for the gradient keeps them
// in the order of the calls, so the sum has the same bits whatever completes first. The last one
// before a step that wants a norm measures the gradient on its way, while its bytes are at hand.
#include "lib/update/cuts.h"
#include "lib/update/parts.h"

#include <cinttypes>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace stepwell::update {
namespace {

enum : uint32_t { kGradient, kScratch, kTensors };

struct AccumulateJob final : Job {
    AccumulateJob(Pipeline::Parts &parts, const Accumulation &asked);

    void cut(Chunk &chunk) override;
    [[nodiscard]] bool more() const override { return zone < zone_count; }
    [[nodiscard]] uint32_t chunk_pieces() const override { return turn_count; }
    [[nodiscard]] bool only_zeros() const { return sum.scratch == kNone && sum.memory == nullptr; }
    [[nodiscard]] bool has_scratch() const { return sum.scratch != kNone; }
    Status find_source(const Chunk &chunk, std::unique_ptr<char[]> &room, const void **out) const;
    void begin_measure();
    void end_measure();
    Chunk *settle(Chunk &chunk) override;
    Status opened() override;
    Status run(Chunk &chunk) override;
    Status run_on_device(const Chunk &chunk) const;
    void end() override;

    Pipeline::Parts &pipeline;
    const Accumulation sum;
    Layout layouts[kTensors];
    // The contribution, then what becomes zeros behind and before it.
    struct Zone {
        uint64_t begin = 0;
        uint64_t end = 0;
    } zones[3];
    uint32_t zone_count = 1;
    uint32_t zone = 0;
    uint64_t cursor;
    kernels::Reduce mode = kernels::Reduce::kAdd;
    uint64_t measure = 0;  // number of the measurement that is wanted; 0: none
    std::vector<ElementRange> measured;
    std::vector<double> sums;  // of the gradient's blocks of a scan
    kernels::ScanResult scan;
};

AccumulateJob::AccumulateJob(Pipeline::Parts &parts, const Accumulation &asked)
    : pipeline(parts), sum(asked), cursor(asked.element_begin)
{
    // Zeros are counted in bytes, whatever the dtype.
    layouts[kGradient] = {sum.gradient, parts.tiers.pack_offset(sum.gradient),
                          only_zeros() ? 1 : element_bytes(sum.gradient_dtype), 0};
    turns[kGradient].tensor = sum.gradient;
    turn_count = kScratch;
    if (has_scratch()) {
        layouts[kScratch] = {sum.scratch, parts.tiers.pack_offset(sum.scratch),
                             element_bytes(sum.scratch_dtype), sum.element_begin};
        turns[kScratch].tensor = sum.scratch;
        turn_count = kTensors;
    }
    zones[0] = {sum.element_begin, sum.element_begin + sum.element_count};
}

void AccumulateJob::cut(Chunk &chunk)
{
    chunk.scans = false;
    chunk.part = zone;
    chunk.element_begin = cursor;
    const uint32_t tensors = zone == 0 ? turn_count : kScratch;  // zeros need the gradient alone
    chunk.element_count =
        common_run(layouts, tensors, cursor, zones[zone].end - cursor, pipeline.block_bytes);
    chunk.piece_count = 0;
    for (uint32_t i = 0; i < tensors; ++i) {
        const Access writes = mode == kernels::Reduce::kFirst ? Access::kWrite : Access::kReadWrite;
        const Access access = i == kGradient ? writes : Access::kRead;
        chunk.piece_count +=
            make_pieces(layouts[i], access, cursor, chunk.element_count, pipeline.block_bytes,
                        chunk.pieces + chunk.piece_count, kPiecesMax - chunk.piece_count);
    }
    cursor += chunk.element_count;
    if (cursor == zones[zone].end && ++zone < zone_count) cursor = zones[zone].begin;
}

Chunk *AccumulateJob::settle(Chunk &chunk)
{
    if (measure != 0) scan = kernels::join(scan, chunk.scan);
    chunk.next = nullptr;
    return &chunk;
}

Status AccumulateJob::opened()
{
    begin_measure();
    const bool empty = pipeline.tiers.contents(sum.gradient) == Contents::kEmpty;
    if (!empty) return {};
    mode = kernels::Reduce::kFirst;
    if (only_zeros()) return {};
    const Zone around[] = {{zones[0].end, sum.gradient_elements}, {0, zones[0].begin}};
    for (const Zone &at : around) {
        if (at.begin == at.end) continue;
        if (!more()) cursor = at.begin;
        zones[zone_count++] = at;
    }
    return {};
}

// Where chunks are cut between blocks of a scan, and all of the gradient is written and scanned.
// What cannot be had for it now, the step will do.
void AccumulateJob::begin_measure()
{
    const uint64_t elements = sum.gradient_elements;
    constexpr uint64_t kUnit = kernels::kScanBlockElements;
    if (only_zeros() || place != kAnyCpuPlace || sum.element_count != elements) return;
    const uint64_t run = common_run(layouts, turn_count, 0, elements, pipeline.block_bytes);
    const bool packed = layouts[kGradient].pack_offset != 0 || layouts[kScratch].pack_offset != 0;
    if (run < elements && (packed || run % kUnit != 0)) return;
    try {
        const uint64_t order = pipeline.wants_measure(sum.gradient, measured);
        uint64_t covered = 0;
        for (const ElementRange &part : measured) {
            const uint64_t end = part.begin + part.count;
            if (part.begin % kUnit != 0 || (end % kUnit != 0 && end != elements)) return;
            covered += part.count;
        }
        if (covered != elements) return;
        sums.resize(kernels::scan_block_count(elements));
        measure = order;
    } catch (const std::bad_alloc &) {
        return;
    }
}

// No piece is out, and nobody else may have the gradient yet.
void AccumulateJob::end_measure()
{
    uint64_t version = 0;
    pipeline.tiers.versions(claim, &sum.gradient, 1, &version);
    if (version == 0) return;
    try {
        Measurement all;
        all.scan = scan;
        all.sums.reserve(measured.size());
        for (const ElementRange &part : measured) {
            const double *first = sums.data() + part.begin / kernels::kScanBlockElements;
            all.sums.push_back(
                kernels::combine_block_sums(0.0, first, kernels::scan_block_count(part.count)));
        }
        pipeline.measured(sum.gradient, measure, std::move(all), version);
    } catch (const std::bad_alloc &) {
        return;
    }
}

Status AccumulateJob::run_on_device(const Chunk &chunk) const
{
    Devices &devices = *pipeline.options.devices;
    if (chunk.piece_count == kScratch) {
        if (mode != kernels::Reduce::kFirst) return {};  // written meanwhile
        return devices.start_zeros(chunk.ticket, chunk.pointers[kGradient],
                                   chunk.element_count * layouts[kGradient].element_bytes);
    }
    stw_accumulate_work work{};
    work.struct_size = sizeof work;
    work.adds = mode == kernels::Reduce::kAdd ? 1 : 0;
    work.destination = chunk.pointers[kGradient];
    work.source = chunk.pointers[kScratch];
    work.count = chunk.element_count;
    work.destination_dtype = sum.gradient_dtype;
    work.source_dtype = sum.scratch_dtype;
    work.scale = kernels::accumulate_scale(sum.scale);
    return devices.start_sum(chunk.ticket, work);
}

Status AccumulateJob::find_source(const Chunk &chunk, std::unique_ptr<char[]> &room,
                                  const void **out) const
{
    *out = chunk.pointers[kScratch];
    if (has_scratch()) return {};
    const uint64_t size = element_bytes(sum.scratch_dtype);
    const uint64_t at = chunk.element_begin - sum.element_begin;
    *out = static_cast<const char *>(sum.memory) + at * size;
    if (sum.bring == nullptr) return {};
    const uint64_t bytes = chunk.element_count * size;
    room.reset(new (std::nothrow) char[bytes]);
    if (!room) {
        return Status::error(STW_ERROR_MEMORY, "no memory for %" PRIu64 " bytes of a gradient.",
                             bytes);
    }
    STW_TRY(sum.bring(sum.done_user, room.get(), *out, bytes));
    *out = room.get();
    return {};
}

Status AccumulateJob::run(Chunk &chunk)
{
    if (place != kAnyCpuPlace) return run_on_device(chunk);
    if (only_zeros() || chunk.part != 0) {
        if (mode != kernels::Reduce::kFirst) return {};  // written meanwhile
        std::memset(chunk.pointers[kGradient], 0,
                    chunk.element_count * layouts[kGradient].element_bytes);
        return {};
    }
    std::unique_ptr<char[]> room;
    const void *source = nullptr;
    STW_TRY(find_source(chunk, room, &source));
    kernels::accumulate(mode, chunk.pointers[kGradient], sum.gradient_dtype, source,
                        sum.scratch_dtype, chunk.element_count, sum.scale);
    if (measure == 0) return {};
    chunk.scan =
        kernels::scan_blocks(chunk.pointers[kGradient], sum.gradient_dtype, chunk.element_count,
                             sums.data() + chunk.element_begin / kernels::kScanBlockElements);
    return {};
}

void AccumulateJob::end()
{
    const std::unique_ptr<AccumulateJob> self(this);
    Status status = std::move(error);
    // No rank had a gradient: there is nothing to add.
    const bool nothing = status.code() == STW_ERROR_EMPTY && has_scratch() &&
                         pipeline.tiers.contents(sum.scratch) == Contents::kEmpty;
    if (nothing) status = Status();
    if (!status.ok()) {
        pipeline.tiers.fail(sum.gradient, status);
        pipeline.report(sum.gradient, status);
    } else if (measure != 0) {
        end_measure();
    }
    const TensorId tensors[] = {sum.gradient, sum.scratch};
    pipeline.tiers.unclaim(claim, tensors, turn_count, 0);
    {
        MutexLock lock(pipeline.mutex);
        pipeline.retire(*this);
    }
    if (sum.done != nullptr) sum.done(sum.done_user, status);
    MutexLock lock(pipeline.mutex);
    --pipeline.accumulations;
    pipeline.job_gone();
}

Status start(Pipeline::Parts &parts, const Accumulation &asked)
{
    auto made = std::make_unique<AccumulateJob>(parts, asked);
    {
        MutexLock claiming(parts.claiming);
        {
            MutexLock lock(parts.mutex);
            if (parts.closing) {
                return Status::error(STW_ERROR_CLOSED, "The runtime closes: no more sums.");
            }
            if (parts.accumulations == kAccumulationsMax) {
                return Status::error(STW_ERROR_LIMIT, "%u sums into gradients are pending already.",
                                     kAccumulationsMax);
            }
            ++parts.accumulations;
            parts.enqueue(*made, parts.number_call());
        }
        AccumulateJob *job = made.release();  // its own from here on, see end()
        const TensorId tensors[] = {asked.gradient, asked.scratch};
        const ClaimId claim = parts.tiers.claim(tensors, job->turn_count);
        PlaceId place = kAnyCpuPlace;
        // Memory of the host is added by the CPU.
        if (parts.options.devices != nullptr && asked.memory == nullptr) {
            place = parts.options.devices->place_for(Devices::kSum, tensors, 1, tensors + 1,
                                                     job->turn_count - 1);
        }
        MutexLock lock(parts.mutex);
        parts.place_job(*job, place);
        parts.activate(*job, claim);
    }
    parts.ask_to_pump();
    return {};
}

}  // namespace

Status Pipeline::accumulate(const Accumulation &asked)
{
    if (element_bytes(asked.gradient_dtype) == 0 || element_bytes(asked.scratch_dtype) == 0 ||
        asked.element_count == 0 || asked.gradient == asked.scratch ||
        (asked.scratch == kNone) == (asked.memory == nullptr) ||
        asked.element_begin > asked.gradient_elements ||
        asked.element_count > asked.gradient_elements - asked.element_begin) {
        return Status::error(
            STW_ERROR_INVALID,
            "A sum takes elements of F32, F16 or BF16 of a tensor, from another or "
            "from memory; asked were %" PRIu64
            " elements of dtypes %u and %u of tensors %u and %u.",
            asked.element_count, asked.gradient_dtype, asked.scratch_dtype, asked.gradient,
            asked.scratch);
    }
    return start(*parts_, asked);
}

Status Pipeline::zero(TensorId tensor, uint64_t bytes)
{
    Accumulation zeros;
    zeros.gradient = tensor;
    zeros.element_count = zeros.gradient_elements = bytes;
    return start(*parts_, zeros);
}

}  // namespace stepwell::update
