// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/updates.h"

#include <stepwell/optimizer.h>

#include "drivers/common/edge.h"

#include <algorithm>
#include <cstring>

namespace stepwell::drivers::cuda {

namespace {

constexpr uint64_t kRunBytesMax = uint64_t{kScanElements} * sizeof(float);
constexpr uint64_t kResultBytes = sizeof(double) + sizeof(ScanCounts);  // of a run

uint64_t bytes_of(uint32_t dtype, uint64_t count)
{
    return count * (dtype == STW_F32 ? 4 : 2);
}

bool is_known(uint32_t dtype)
{
    return dtype == STW_F32 || dtype == STW_F16 || dtype == STW_BF16;
}

bool kernel_of(const stw_update_work &work, Kernel *kernel_out)
{
    switch (work.algorithm) {
    case STW_OPTIMIZER_ADAMW:
    case STW_OPTIMIZER_ADAM: *kernel_out = Kernel::kUpdateAdam; return true;
    case STW_OPTIMIZER_SGD:
        *kernel_out = work.states[0] != nullptr ? Kernel::kUpdateMomentum : Kernel::kUpdateSgd;
        return true;
    case STW_OPTIMIZER_ADAGRAD: *kernel_out = Kernel::kUpdateAdagrad; return true;
    case STW_OPTIMIZER_LION: *kernel_out = Kernel::kUpdateLion; return true;
    default: return false;
    }
}

// The kernels' argument has the layout of the library's struct.
static_assert(sizeof(Coefficients) == sizeof(stw_update_coefficients));
static_assert(offsetof(Coefficients, correction2_sqrt) ==
                  offsetof(stw_update_coefficients, correction2_sqrt) &&
              offsetof(Coefficients, momentum) == offsetof(stw_update_coefficients, momentum) &&
              offsetof(Coefficients, decay) == offsetof(stw_update_coefficients, decay) &&
              offsetof(Coefficients, flags) == offsetof(stw_update_coefficients, flags));
static_assert(STW_DECAY_DECOUPLED == int{kDecayDecoupled} &&
              STW_DECAY_COUPLED == int{kDecayCoupled} && STW_MOMENTUM_FIRST == int{kFirstStep} &&
              STW_MOMENTUM_NESTEROV == int{kNesterov});
static_assert(STW_SCAN_ELEMENTS == kScanElements);

UpdateArguments arguments_of(const stw_update_work &work)
{
    UpdateArguments arguments{};
    arguments.values = address_of(work.values);
    arguments.master = address_of(work.master);
    arguments.gradient = address_of(work.gradient);
    arguments.states[0] = address_of(work.states[0]);
    arguments.states[1] = address_of(work.states[1]);
    arguments.count = work.count;
    arguments.first_element = work.first_element;
    arguments.step = work.step;
    arguments.values_dtype = work.values_dtype;
    arguments.gradient_dtype = work.gradient_dtype;
    arguments.states_dtype = work.states_dtype;
    std::memcpy(&arguments.coefficients, &work.coefficients, sizeof arguments.coefficients);
    return arguments;
}

}  // namespace

// Of the narrowest dtype, and one run more that ends in the next block.
Updates::Updates(const Context &context, Marks &marks, uint64_t block_bytes)
    : context_(context), marks_(marks), runs_max_(block_bytes / 2 / kScanElements + 1)
{
}

Updates::~Updates()
{
    if (scan_results_ != nullptr) api().host_free(scan_results_);
    if (scan_memory_ != 0) api().memory_free(scan_memory_);
    if (module_ != nullptr) api().module_unload(module_);
    if (stream_ != nullptr) api().stream_destroy(stream_);
}

// --------------------------------------------------------------------------------------- open ----

stw_status Updates::open(StreamHandle *stream_out, stw_driver_error *error_out)
{
    const MutexLock lock(opening_);
    if (stw_cuda_image_bytes == 0)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "This build of the module 'cuda' has no kernels, so nothing is updated on a "
                    "GPU; build it where nvcc 12.8 or newer is.");
    int error = open_ ? int{kSuccess} : load();
    if (error == kSuccess && !open_) error = take_scans();
    if (error != kSuccess)
        return fail(error_out, error == kOutOfMemory ? STW_ERROR_MEMORY : STW_ERROR_UNSUPPORTED, {},
                    "The kernels of updates do not load on this device: %s.",
                    context_.library().text(error).c_str());
    open_ = true;
    *stream_out = stream_;
    return STW_OK;
}

int Updates::load()
{
    int count = 0;
    int error = api().device_attribute(&count, kMultiprocessorCount, context_.device());
    if (error == kSuccess && stream_ == nullptr)
        error = api().stream_create(&stream_, kStreamNonBlocking);
    if (error == kSuccess && module_ == nullptr)
        error = api().module_load(&module_, stw_cuda_image, 0, nullptr, nullptr);
    for (uint32_t i = 0; error == kSuccess && i < kKernels; ++i)
        error = api().module_function(&functions_[i], module_,
                                      kernel_entry(static_cast<Kernel>(i)).name);
    sm_count_ = static_cast<uint32_t>(std::max(count, 1));
    return error;
}

int Updates::take_scans()
{
    const uint64_t results = runs_max_ * kResultBytes;
    const uint64_t each = (results + 255) / 256 * 256 + kRunBytesMax;
    int error = kSuccess;
    if (scan_memory_ == 0) error = api().memory_alloc(&scan_memory_, STW_SCANS_MAX * each);
    if (error == kSuccess && scan_results_ == nullptr)
        error = api().host_alloc(&scan_results_, STW_SCANS_MAX * results, kHostAllocPortable);
    if (error != kSuccess) return error;
    const MutexLock lock(scanning_);
    for (uint32_t i = 0; i < STW_SCANS_MAX; ++i) {
        Scan &scan = scans_[i];
        scan.together = scan_memory_ + i * each;
        scan.results = scan.together + kRunBytesMax;
        scan.seen = static_cast<unsigned char *>(scan_results_) + i * results;
        scan.next_free = free_scans_;
        free_scans_ = static_cast<int>(i);
    }
    return kSuccess;
}

// ------------------------------------------------------------------------------------ updates ----

int Updates::launch(Kernel kernel, uint64_t elements, void *argument)
{
    const uint32_t blocks = thread_blocks(kernel, elements, sm_count_);
    if (blocks == 0) return kSuccess;
    void *arguments[] = {argument};
    return api().launch(functions_[static_cast<uint32_t>(kernel)], blocks, 1, 1,
                        kernel_entry(kernel).threads, 1, 1, 0, stream_, arguments, nullptr);
}

int Updates::make_fresh(const stw_update_work &work)
{
    int error = kSuccess;
    if ((work.fresh & STW_FRESH_MASTER) != 0) {
        ConvertArguments convert{address_of(work.master), address_of(work.values), work.count,
                                 STW_F32, work.values_dtype};
        error = launch(Kernel::kConvert, work.count, &convert);
    }
    if (error == kSuccess && (work.fresh & STW_FRESH_AVERAGE) != 0)
        error = api().copy_inside(address_of(work.average), address_of(work.master),
                                  bytes_of(STW_F32, work.count), stream_);
    for (uint32_t i = 0; error == kSuccess && i < 2; ++i) {
        if ((work.fresh & (uint32_t{STW_FRESH_STATE_0} << i)) != 0)
            error = api().set_bytes(address_of(work.states[i]), 0,
                                    bytes_of(work.states_dtype, work.count), stream_);
    }
    return error;
}

stw_status Updates::update(const stw_update_work &work)
{
    Kernel kernel{};
    if (!kernel_of(work, &kernel)) return STW_ERROR_UNSUPPORTED;
    if (!is_known(work.values_dtype) || !is_known(work.gradient_dtype) ||
        !is_known(work.states_dtype))
        return STW_ERROR_INVALID;
    if (work.count == 0) return STW_OK;
    int error = make_fresh(work);
    UpdateArguments arguments = arguments_of(work);
    if (error == kSuccess) error = launch(kernel, work.count, &arguments);
    if (error == kSuccess && work.average != nullptr) {
        AverageArguments average{address_of(work.average), address_of(work.master), work.count,
                                 work.average_weight, 0};
        error = launch(Kernel::kAverage, work.count, &average);
    }
    return context_.library().failed(error);
}

stw_status Updates::accumulate(const stw_accumulate_work &work)
{
    if (!is_known(work.destination_dtype) || !is_known(work.source_dtype)) return STW_ERROR_INVALID;
    AccumulateArguments arguments{address_of(work.destination),
                                  address_of(work.source),
                                  work.count,
                                  work.destination_dtype,
                                  work.source_dtype,
                                  work.scale,
                                  work.adds != 0 ? uint32_t{kAccumulateAdd}
                                                 : uint32_t{kAccumulateFirst}};
    return context_.library().failed(launch(Kernel::kAccumulate, work.count, &arguments));
}

stw_status Updates::zero(Address destination, uint64_t bytes)
{
    if (bytes == 0) return STW_OK;
    return context_.library().failed(api().set_bytes(destination, 0, bytes, stream_));
}

// -------------------------------------------------------------------------------------- scans ----

void Updates::free_scan(int index)
{
    const MutexLock lock(scanning_);
    scans_[static_cast<size_t>(index)].next_free = free_scans_;
    free_scans_ = index;
}

int Updates::enqueue(const stw_scan_work &work, Scan &scan)
{
    Address gradient = address_of(work.gradient);
    const uint64_t first_bytes = bytes_of(work.dtype, work.count);
    const uint64_t count = work.count + work.rest_count;
    int error = kSuccess;
    if (work.rest_count > 0) {
        error = api().copy_inside(scan.together, gradient, first_bytes, stream_);
        if (error == kSuccess)
            error = api().copy_inside(scan.together + first_bytes, address_of(work.rest),
                                      bytes_of(work.dtype, work.rest_count), stream_);
        gradient = scan.together;
    }
    scan.runs = (count + kScanElements - 1) / kScanElements;
    ScanArguments arguments{
        gradient, count, scan.results, scan.results + scan.runs * sizeof(double), work.dtype, 0};
    if (error == kSuccess) error = launch(Kernel::kScan, count, &arguments);
    if (error == kSuccess)
        error = api().copy_to_host(scan.seen, scan.results, scan.runs * kResultBytes, stream_);
    if (error == kSuccess) error = marks_.make(stream_, &scan.mark);
    return error;
}

stw_status Updates::scan(const stw_scan_work &work, uint64_t *scan_out)
{
    const uint64_t count = work.count + work.rest_count;
    if (!is_known(work.dtype) || count == 0 || count > runs_max_ * kScanElements ||
        (work.rest_count > 0 && count > kScanElements))
        return STW_ERROR_INVALID;
    int index = -1;
    {
        const MutexLock lock(scanning_);
        index = free_scans_;
        if (index < 0) return STW_ERROR_LIMIT;
        free_scans_ = scans_[static_cast<size_t>(index)].next_free;
    }
    const int error = enqueue(work, scans_[static_cast<size_t>(index)]);
    // Enqueued parts of the scan may still write there, but only a permanent error of the device
    // leads here.
    if (error != kSuccess) free_scan(index);
    *scan_out = static_cast<uint64_t>(index);
    return context_.library().failed(error);
}

stw_status Updates::scan_end(uint64_t scan, double *sums_out, stw_scan_result *result_out)
{
    if (scan >= scans_.size()) return STW_ERROR_INVALID;
    const Scan &its = scans_[scan];
    const int error = marks_.wait_here(its.mark);
    stw_scan_result result{sizeof result, 0.0F, 0};
    if (error == kSuccess) {
        std::memcpy(sums_out, its.seen, its.runs * sizeof(double));
        for (uint64_t run = 0; run < its.runs; ++run) {
            ScanCounts counts;
            std::memcpy(&counts, its.seen + its.runs * sizeof(double) + run * sizeof counts,
                        sizeof counts);
            result.nonfinite += counts.nonfinite;
            result.maximum = std::max(result.maximum, counts.maximum);
        }
        std::memcpy(result_out, &result, std::min<size_t>(result_out->struct_size, sizeof result));
    }
    free_scan(static_cast<int>(scan));
    return context_.library().failed(error);
}

}  // namespace stepwell::drivers::cuda
