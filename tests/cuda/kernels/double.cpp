// SPDX-License-Identifier: Apache-2.0
// The kernels for the test double of the CUDA driver: the sources of the image, compiled for the
// processor, and what a launch of each touches.
#include "tests/cuda/double/kernel.h"

#include "drivers/cuda/kernels/launch.h"
#include "drivers/cuda/kernels/list.h"
#include "drivers/cuda/kernels/map.h"
#include "drivers/cuda/kernels/scan.h"
#include "drivers/cuda/kernels/update.h"
#include "tests/cuda/kernels/host_block.h"

#include <cfenv>

namespace stepwell::drivers::cuda {
namespace {

// A GPU has its own rounding and keeps denormals, whatever the thread does that launches.
class DeviceFloats {
public:
    DeviceFloats()
    {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    DeviceFloats(const DeviceFloats &) = delete;
    DeviceFloats &operator=(const DeviceFloats &) = delete;
    ~DeviceFloats() { std::fesetenv(&saved_); }

private:
    std::fenv_t saved_;
};

uint64_t bytes_of(uint32_t dtype, uint64_t count)
{
    return count * (dtype == STW_F32 ? 4 : 2);
}

uint32_t states_of(Kernel kernel)
{
    if (kernel == Kernel::kUpdateSgd) return 0;
    return kernel == Kernel::kUpdateAdam ? 2 : 1;
}

// visit(address, bytes, writes) for each array of an argument.

template <class Visit> void visit_arrays(Kernel kernel, UpdateArguments &a, const Visit &visit)
{
    visit(a.gradient, bytes_of(a.gradient_dtype, a.count), false);
    visit(a.master, bytes_of(STW_F32, a.count), true);
    for (uint32_t s = 0; s < states_of(kernel); ++s) {
        visit(a.states[s], bytes_of(a.states_dtype, a.count), true);
    }
    if (a.values_dtype != STW_F32) visit(a.values, bytes_of(a.values_dtype, a.count), true);
}

template <class Visit> void visit_arrays(Kernel, AverageArguments &a, const Visit &visit)
{
    visit(a.values, bytes_of(STW_F32, a.count), false);
    visit(a.average, bytes_of(STW_F32, a.count), true);
}

template <class Visit> void visit_arrays(Kernel, ConvertArguments &a, const Visit &visit)
{
    visit(a.source, bytes_of(a.source_dtype, a.count), false);
    visit(a.destination, bytes_of(a.destination_dtype, a.count), true);
}

template <class Visit> void visit_arrays(Kernel, AccumulateArguments &a, const Visit &visit)
{
    visit(a.source, bytes_of(a.source_dtype, a.count), false);
    visit(a.destination, bytes_of(a.destination_dtype, a.count), true);
}

template <class Visit> void visit_arrays(Kernel, ScanArguments &a, const Visit &visit)
{
    const uint64_t runs = (a.count + kScanElements - 1) / kScanElements;
    visit(a.gradient, bytes_of(a.gradient_dtype, a.count), false);
    visit(a.sums, runs * sizeof(double), true);
    visit(a.counts, runs * sizeof(ScanCounts), true);
}

template <class Arguments>
uint32_t ranges_of(Kernel kernel, void **args, stw_double_range *ranges, uint32_t capacity)
{
    auto arguments = *static_cast<const Arguments *>(args[0]);
    uint32_t count = 0;
    visit_arrays(kernel, arguments, [&](uint64_t address, uint64_t bytes, bool writes) {
        if (count < capacity) ranges[count] = {address, bytes, writes ? 1U : 0U, 0};
        ++count;
    });
    return count;
}

template <class Arguments>
Arguments aliased(Kernel kernel, void **args, void *(*alias)(uint64_t address))
{
    auto arguments = *static_cast<const Arguments *>(args[0]);
    visit_arrays(kernel, arguments, [&](uint64_t &address, uint64_t bytes, bool) {
        if (bytes != 0) address = reinterpret_cast<uintptr_t>(alias(address));
    });
    return arguments;
}

// The image is compiled for at most so many threads; the scan shares its runs among exactly those.
bool can_launch(Kernel kernel, const stw_double_launch &launch)
{
    const uint32_t threads = kernel_entry(kernel).threads;
    const bool fits =
        kernel == Kernel::kScan ? launch.block[0] == threads : launch.block[0] <= threads;
    return fits && launch.grid[1] == 1 && launch.grid[2] == 1 && launch.block[1] == 1 &&
           launch.block[2] == 1;
}

}  // namespace
}  // namespace stepwell::drivers::cuda

using namespace stepwell::drivers::cuda;

#define STW_DOUBLE extern "C" __attribute__((visibility("default")))

#define STW_DEFINE(kernel, name, Arguments, body, threads, elements)                               \
    STW_DOUBLE void stw_double_kernel_##name(void **args, const stw_double_launch *launch,         \
                                             void *(*alias)(uint64_t address))                     \
    {                                                                                              \
        if (!can_launch(Kernel::kernel, *launch)) __builtin_trap();                                \
        const DeviceFloats floats;                                                                 \
        const auto arguments = aliased<Arguments>(Kernel::kernel, args, alias);                    \
        run_grid(launch->grid[0], launch->block[0],                                                \
                 [&](HostBlock &block) { body(block, arguments); });                               \
    }                                                                                              \
    STW_DOUBLE uint32_t stw_double_ranges_##name(void **args, const stw_double_launch *,           \
                                                 stw_double_range *ranges, uint32_t capacity)      \
    {                                                                                              \
        return ranges_of<Arguments>(Kernel::kernel, args, ranges, capacity);                       \
    }                                                                                              \
    STW_DOUBLE uint32_t stw_double_args_##name(uint32_t *sizes, uint32_t capacity)                 \
    {                                                                                              \
        if (capacity > 0) sizes[0] = sizeof(Arguments);                                            \
        return 1;                                                                                  \
    }
STW_CUDA_KERNELS(STW_DEFINE)
