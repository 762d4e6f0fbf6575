// SPDX-License-Identifier: Apache-2.0
// Measuring by the writer: the pass itself, and the habit that tells which write is the last one.
#include "lib/update/measure.h"

#include "lib/update/parts.h"

#include <algorithm>
#include <utility>

namespace stepwell::update {
namespace {

constexpr uint64_t kBlocksAtOnce = 64;  // sums of so many lie on the stack
constexpr uint32_t kRests = 16;         // steps, after a measurement in vain

}  // namespace

Measurement measure(const void *gradient, uint32_t dtype, const std::vector<ElementRange> &parts)
{
    constexpr uint64_t kAtOnce = kBlocksAtOnce * kernels::kScanBlockElements;
    Measurement all;
    all.sums.reserve(parts.size());
    for (const ElementRange &part : parts) {
        double sum = 0.0;
        for (uint64_t done = 0; done < part.count; done += kAtOnce) {
            const uint64_t count = std::min(kAtOnce, part.count - done);
            const uint64_t byte = (part.begin + done) * element_bytes(dtype);
            double sums[kBlocksAtOnce];
            all.scan = kernels::join(
                all.scan, kernels::scan_blocks(static_cast<const char *>(gradient) + byte, dtype,
                                               count, sums));
            sum = kernels::combine_block_sums(sum, sums, kernels::scan_block_count(count));
        }
        all.sums.push_back(sum);
    }
    return all;
}

void Measure::set_parts(std::vector<ElementRange> parts, uint64_t order)
{
    parts_ = std::move(parts);
    order_ = order;
    version_ = 0;
    fresh_ = false;
}

void Measure::ask(bool wanted)
{
    wanted_ = wanted;
    if (writes_ > 0) last_write_ = std::exchange(writes_, 0);
    if (rests_ > 0) --rests_;
    if (std::exchange(fresh_, false)) rests_ = kRests;  // changed after it was measured
}

// A gradient that is written several times between steps is measured after the last one, as it was
// before.
bool Measure::written()
{
    ++writes_;
    return wanted_ && rests_ == 0 && writes_ >= last_write_;
}

void Measure::take(Measurement measurement, uint64_t version)
{
    latest_ = std::move(measurement);
    version_ = version;
    fresh_ = true;
}

const Measurement *Measure::use(uint64_t version)
{
    if (version == 0 || version_ != version) return nullptr;
    fresh_ = false;
    return &latest_;
}

// ------------------------------------------------------------------------------- the pipeline ----

uint64_t Pipeline::wants_measure(TensorId gradient, std::vector<ElementRange> &parts_out)
{
    return parts_->wants_measure(gradient, parts_out);
}

void Pipeline::measured(TensorId gradient, uint64_t order, Measurement measurement,
                        uint64_t version)
{
    parts_->measured(gradient, order, std::move(measurement), version);
}

uint64_t Pipeline::Parts::wants_measure(TensorId gradient, std::vector<ElementRange> &parts_out)
{
    if (measures.load(std::memory_order_relaxed) == 0) return 0;
    MutexLock lock(mutex);
    if (gradient >= queues.size()) return 0;
    Measure *const measure = queues[gradient].measure;
    if (measure == nullptr || !measure->written()) return 0;
    parts_out = measure->parts();
    return measure->order();
}

void Pipeline::Parts::measured(TensorId gradient, uint64_t order, Measurement measurement,
                               uint64_t version)
{
    MutexLock lock(mutex);
    Measure *const measure = queues[gradient].measure;
    if (measure == nullptr || measure->order() != order) return;
    ++totals.measured;
    measure->take(std::move(measurement), version);
}

void Pipeline::Parts::register_measure(TensorId gradient, Measure &measure,
                                       std::vector<ElementRange> parts)
{
    measure.set_parts(std::move(parts), next_measure++);
    queues[gradient].measure = &measure;
}

void Pipeline::Parts::ask_measure(Measure &measure, bool wanted)
{
    measures += static_cast<uint32_t>(wanted) - static_cast<uint32_t>(measure.wanted());
    measure.ask(wanted);
}

void Pipeline::Parts::forget_measure(TensorId gradient, Measure &measure)
{
    ask_measure(measure, false);
    if (gradient >= queues.size()) return;
    if (queues[gradient].measure == &measure) queues[gradient].measure = nullptr;
}

}  // namespace stepwell::update
