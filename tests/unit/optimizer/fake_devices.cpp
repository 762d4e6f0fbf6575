// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/optimizer/fake_devices.h"

#include "lib/update/parts.h"

#include <algorithm>
#include <cstring>

namespace stepwell::update::test {
namespace {

void *real(const void *pointer)
{
    return FakeTiers::device_pointer(const_cast<void *>(pointer));
}

kernels::Coefficients coefficients_of(const stw_update_work &work)
{
    const stw_update_coefficients &from = work.coefficients;
    kernels::Coefficients to{};
    to.gradient_scale = from.gradient_scale;
    to.decay_factor = from.decay_factor;
    to.beta1 = from.beta1;
    to.one_minus_beta1 = from.one_minus_beta1;
    to.beta2 = from.beta2;
    to.one_minus_beta2 = from.one_minus_beta2;
    to.eps = from.eps;
    to.correction2_sqrt = from.correction2_sqrt;
    to.negative_step_size = from.negative_step_size;
    to.momentum = from.momentum;
    to.one_minus_dampening = from.one_minus_dampening;
    to.decay = static_cast<kernels::Decay>(from.decay);
    to.has_momentum = work.states[0] != nullptr;
    to.first_step = (from.flags & STW_MOMENTUM_FIRST) != 0;
    to.nesterov = (from.flags & STW_MOMENTUM_NESTEROV) != 0;
    return to;
}

}  // namespace

PlaceId FakeDevices::place_for(uint32_t, const TensorId *kept, uint32_t kept_count,
                               const TensorId *, uint32_t)
{
    const auto home = [this](TensorId tensor) {
        const auto found = homes_.find(tensor);
        return found == homes_.end() ? kAnyCpuPlace : found->second;
    };
    for (uint32_t i = 1; i < kept_count; ++i) {
        if (home(kept[i]) != home(kept[0])) return kAnyCpuPlace;
    }
    return home(kept[0]);
}

Status FakeDevices::start(uint64_t ticket)
{
    if (fails_start_.exchange(false)) return Status::error(STW_ERROR_DEVICE, "told to fail");
    MutexLock lock(mutex_);
    ++started_;
    if (tiers_.place_of(ticket) == kAnyCpuPlace) faults_ += "work on pieces of the host\n";
    return {};
}

Status FakeDevices::start_update(uint64_t ticket, const stw_update_work &work)
{
    STW_TRY(start(ticket));
    kernels::Chunk chunk{};
    chunk.values = real(work.values);
    chunk.values_dtype = work.values_dtype;
    chunk.gradient_dtype = work.gradient_dtype;
    chunk.master = static_cast<float *>(real(work.master));
    chunk.gradient = real(work.gradient);
    chunk.count = work.count;
    auto *average = static_cast<float *>(work.average ? real(work.average) : nullptr);
    if (work.fresh & STW_FRESH_MASTER) {
        kernels::convert(chunk.master, STW_F32, chunk.values, work.values_dtype, work.count);
    }
    if (work.fresh & STW_FRESH_AVERAGE) std::memcpy(average, chunk.master, work.count * 4);
    std::vector<float> wide[2];
    for (uint32_t i = 0; i < 2 && work.states[i] != nullptr; ++i) {
        void *state = real(work.states[i]);
        if (work.fresh & (STW_FRESH_STATE_0 << i)) {
            std::memset(state, 0, work.count * element_bytes(work.states_dtype));
        }
        wide[i].resize(work.count);
        kernels::convert(wide[i].data(), STW_F32, state, work.states_dtype, work.count);
        chunk.states[i] = wide[i].data();
    }
    kernels::update_chunk(static_cast<kernels::Algorithm>(work.algorithm), coefficients_of(work),
                          chunk);
    for (uint32_t i = 0; i < 2 && work.states[i] != nullptr; ++i) {
        if (work.states_dtype == STW_F32) {
            std::memcpy(real(work.states[i]), wide[i].data(), work.count * 4);
        } else {
            kernels::narrow_state(static_cast<uint16_t *>(real(work.states[i])), wide[i].data(),
                                  work.count, {work.first_element, work.step, i});
        }
    }
    for (uint64_t i = 0; average != nullptr && i < work.count; ++i) {
        average[i] += (chunk.master[i] - average[i]) * work.average_weight;
    }
    return {};
}

Status FakeDevices::start_sum(uint64_t ticket, const stw_accumulate_work &work)
{
    STW_TRY(start(ticket));
    kernels::accumulate(work.adds ? kernels::Reduce::kAdd : kernels::Reduce::kFirst,
                        real(work.destination), work.destination_dtype, real(work.source),
                        work.source_dtype, work.count, work.scale);
    return {};
}

Status FakeDevices::start_zeros(uint64_t ticket, void *destination, uint64_t bytes)
{
    STW_TRY(start(ticket));
    std::memset(real(destination), 0, bytes);
    return {};
}

Result<uint64_t> FakeDevices::start_scan(uint64_t ticket, const stw_scan_work &work)
{
    STW_TRY(start(ticket));
    const uint64_t bytes = element_bytes(work.dtype);
    const uint64_t count = work.count + work.rest_count;
    std::vector<uint8_t> gradient(count * bytes);
    std::memcpy(gradient.data(), real(work.gradient), work.count * bytes);
    if (work.rest_count > 0) {
        std::memcpy(gradient.data() + work.count * bytes, real(work.rest), work.rest_count * bytes);
    }
    Scan scan{tiers_.place_of(ticket), std::vector<double>(kernels::scan_block_count(count)), {}};
    scan.result = kernels::scan_blocks(gradient.data(), work.dtype, count, scan.sums.data());
    MutexLock lock(mutex_);
    if (work.rest_count > 0 && count > STW_SCAN_ELEMENTS) faults_ += "a scan in two places\n";
    scans_[next_scan_] = std::move(scan);
    scans_peak_ = std::max(scans_peak_, static_cast<uint32_t>(scans_.size()));
    return next_scan_++;
}

Status FakeDevices::end_scan(PlaceId place, uint64_t scan, double *sums_out,
                             kernels::ScanResult *result_out)
{
    const bool fails = fails_scan_.exchange(false);
    MutexLock lock(mutex_);
    const auto found = scans_.find(scan);
    if (found == scans_.end() || found->second.place != place) {
        faults_ += "the end of no scan\n";
        return {};
    }
    std::copy(found->second.sums.begin(), found->second.sums.end(), sums_out);
    *result_out = found->second.result;
    scans_.erase(found);
    return fails ? Status::error(STW_ERROR_DEVICE, "told to fail") : Status();
}

std::string FakeDevices::faults()
{
    MutexLock lock(mutex_);
    return faults_ + (scans_.empty() ? "" : "scans that nobody ended\n");
}

uint32_t FakeDevices::started()
{
    MutexLock lock(mutex_);
    return started_;
}

uint32_t FakeDevices::scans_peak()
{
    MutexLock lock(mutex_);
    return scans_peak_;
}

}  // namespace stepwell::update::test
