// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/kernels/support.h"

#include "drivers/cuda/kernels/list.h"

#include <iterator>

#define STW_DECLARE(kernel, name, Arguments, body, threads, elements)                              \
    extern "C" void stw_double_kernel_##name(void **, const stw_double_launch *,                   \
                                             void *(*)(uint64_t));                                 \
    extern "C" uint32_t stw_double_ranges_##name(void **, const stw_double_launch *,               \
                                                 stw_double_range *, uint32_t);                    \
    extern "C" uint32_t stw_double_args_##name(uint32_t *, uint32_t);
STW_CUDA_KERNELS(STW_DECLARE)

namespace stepwell::drivers::cuda::test {

namespace {

struct Double {
    void (*run)(void **, const stw_double_launch *, void *(*)(uint64_t));
    uint32_t (*ranges)(void **, const stw_double_launch *, stw_double_range *, uint32_t);
    uint32_t (*args)(uint32_t *, uint32_t);
};

#define STW_ENTRY(kernel, name, Arguments, body, threads, elements)                                \
    {stw_double_kernel_##name, stw_double_ranges_##name, stw_double_args_##name},
constexpr Double kDoubles[] = {STW_CUDA_KERNELS(STW_ENTRY)};

const Double &double_of(Kernel kernel)
{
    return kDoubles[static_cast<uint32_t>(kernel)];
}

// No address of a process has this bit.
constexpr uint64_t kDevice = uint64_t{1} << 62;

void *alias(uint64_t address)
{
    EXPECT_NE(address & kDevice, 0U) << "alias() was given what is no device address";
    return reinterpret_cast<void *>(static_cast<uintptr_t>(address & ~kDevice));
}

}  // namespace

uint64_t device_address(const void *host)
{
    return reinterpret_cast<uintptr_t>(host) | kDevice;
}

std::vector<stw_double_range> ranges_of(Kernel kernel, void *argument)
{
    void *args[] = {argument};
    const stw_double_launch launch = {{1, 1, 1}, {1, 1, 1}, 0, 0};
    std::vector<stw_double_range> ranges(8);
    ranges.resize(double_of(kernel).ranges(args, &launch, ranges.data(), 8));
    return ranges;
}

void launch(Kernel kernel, void *argument, Geometry geometry)
{
    uint32_t bytes = 0;
    ASSERT_EQ(double_of(kernel).args(&bytes, 1), 1U);
    ASSERT_EQ(bytes, kernel_entry(kernel).argument_bytes);
    void *args[] = {argument};
    const stw_double_launch launch = {{geometry.blocks, 1, 1}, {geometry.threads, 1, 1}, 0, 0};
    double_of(kernel).run(args, &launch, alias);
}

void launch(Kernel kernel, void *argument, uint64_t count, uint32_t sm_count)
{
    const uint32_t blocks = thread_blocks(kernel, count, sm_count);
    if (blocks != 0) launch(kernel, argument, {blocks, kernel_entry(kernel).threads});
}

void mix(Array &array, Random &random)
{
    constexpr uint32_t kEdges[] = {
        0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF,
        0x7F800000, 0xFF800000, 0x7F800001, 0xFFBFFFFF, 0x7FC00000, 0xFFFFFFFF, 0x00008000,
        0x3F808000, 0x3F818000, 0x33000000, 0x33000001, 0x387FC000, 0x38800000, 0x477FE000,
        0x477FEFFF, 0x477FF000, 0x7F7F8000, 0x00007C00, 0x00007C01, 0x0000FE01, 0x000003FF,
    };
    for (uint64_t i = 0; i < array.count(); ++i) {
        const uint64_t kind = random.next() % 4;
        if (kind == 0) {
            array.set_bits(i, static_cast<uint32_t>(random.next()));
        } else if (kind == 1) {
            const uint32_t edge = kEdges[random.next() % std::size(kEdges)];
            const bool upper = array.dtype() == STW_BF16 && random.next() % 2 == 0;
            array.set_bits(i, upper ? edge >> 16 : edge);
        } else {
            array.set(i, random.uniform());
        }
    }
}

testing::AssertionResult same(Array &expected, Array &found)
{
    for (uint64_t i = 0; i < expected.count(); ++i) {
        if (expected.bits(i) == found.bits(i)) continue;
        return testing::AssertionFailure()
               << "element " << i << " of " << expected.count() << " is 0x" << std::hex
               << found.bits(i) << ", on the processor 0x" << expected.bits(i);
    }
    if (found.surroundings_intact()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "something was written outside of the array";
}

}  // namespace stepwell::drivers::cuda::test
