// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/kernels/gpu_case.h"

#include "drivers/cuda/kernels/list.h"
#include "drivers/cuda/kernels/map.h"
#include "drivers/cuda/kernels/scan.h"
#include "drivers/cuda/kernels/update.h"
#include "tests/cuda/kernels/host_block.h"

#include <cstring>
#include <iterator>

namespace stepwell::drivers::cuda::test {

namespace {

constexpr uint32_t kDtypes[] = {STW_F32, STW_F16, STW_BF16};
constexpr uint64_t kCounts[] = {1, 3, 4, 1023, 4095, 4097, 300007};
constexpr uint64_t kOffsets[] = {0, 1, 3};
constexpr uint64_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xA5;

uint64_t bytes_of(uint32_t dtype)
{
    if (dtype == 0) return 1;
    return dtype == STW_F32 ? 4 : 2;
}

uint64_t next(uint64_t &state)
{
    uint64_t z = (state += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

bool updates(Kernel kernel)
{
    return kernel <= Kernel::kUpdateLion;
}

Coefficients coefficients_of(uint32_t variant)
{
    Coefficients c = {};
    c.gradient_scale = 1.0F / 3.0F;
    c.decay = variant % 3;
    c.decay_factor = c.decay == kDecayDecoupled ? 0.9999F : 0.1F;
    c.beta1 = 0.9F;
    c.one_minus_beta1 = 0.1F;
    c.beta2 = 0.999F;
    c.one_minus_beta2 = 0.001F;
    c.eps = 1e-8F;
    c.correction2_sqrt = 0.0547F;
    c.negative_step_size = -0.0037F;
    c.momentum = 0.9F;
    c.one_minus_dampening = 0.75F;
    c.flags = variant / 3;
    return c;
}

template <class Arguments> Argument packed(const Arguments &arguments)
{
    static_assert(sizeof(Arguments) <= sizeof(Argument::bytes));
    Argument argument = {};
    std::memcpy(argument.bytes, &arguments, sizeof(arguments));
    return argument;
}

template <class Arguments> Arguments unpacked(const Argument &argument)
{
    Arguments arguments;
    std::memcpy(&arguments, argument.bytes, sizeof(arguments));
    return arguments;
}

void add_updates(std::vector<GpuCase> &cases, const GpuCase &c)
{
    for (uint32_t kernel = 0; kernel <= static_cast<uint32_t>(Kernel::kUpdateLion); ++kernel) {
        for (const uint32_t states : {STW_F32, STW_BF16}) {
            GpuCase update = c;
            update.kernel = static_cast<Kernel>(kernel);
            update.states_dtype = states;
            // Decay goes round by 3, the flags by 4.
            update.variant = static_cast<uint32_t>(cases.size()) % 12;
            cases.push_back(update);
        }
    }
}

void add_maps(std::vector<GpuCase> &cases, GpuCase c)
{
    cases.push_back(c);  // a conversion
    c.kernel = Kernel::kAccumulate;
    for (const uint32_t mode : {kAccumulateFirst, kAccumulateAdd}) {
        c.variant = mode;
        cases.push_back(c);
    }
    if (c.to_dtype == STW_F32 && c.from_dtype == STW_F32) {
        c.kernel = Kernel::kAverage;
        cases.push_back(c);
    }
    if (c.to_dtype == STW_F32) {
        c.kernel = Kernel::kScan;
        for (const uint32_t finite : {0, 1}) {
            c.variant = finite;
            cases.push_back(c);
        }
    }
}

}  // namespace

std::vector<GpuCase> all_cases()
{
    std::vector<GpuCase> cases;
    for (const uint64_t count : kCounts) {
        for (const uint64_t offset : kOffsets) {
            for (const uint32_t to : kDtypes) {
                for (const uint32_t from : kDtypes) {
                    const GpuCase c = {Kernel::kConvert, to, from, STW_F32, count, offset, 0};
                    add_updates(cases, c);
                    add_maps(cases, c);
                }
            }
        }
    }
    return cases;
}

std::string name_of(const GpuCase &c)
{
    constexpr const char *kNames[] = {"none", "f32", "f16", "bf16"};
    std::string name = kernel_entry(c.kernel).name;
    if (updates(c.kernel)) name += std::string(", states ") + kNames[c.states_dtype];
    return name + ", to " + kNames[c.to_dtype] + ", from " + kNames[c.from_dtype] + ", " +
           std::to_string(c.count) + " elements, offset " + std::to_string(c.offset) +
           ", variant " + std::to_string(c.variant);
}

Arena::Arena(const GpuCase &c) : case_(c)
{
    if (updates(c.kernel)) {
        const bool rounds = c.to_dtype != STW_F32;
        const uint32_t states =
            c.kernel == Kernel::kUpdateAdam ? 2 : (c.kernel == Kernel::kUpdateSgd ? 0 : 1);
        add(STW_F32, c.count, true, true);
        add(c.from_dtype, c.count, true, false);
        add(c.to_dtype, rounds ? c.count : 0, false, true);
        add(c.states_dtype, states > 0 ? c.count : 0, true, true);
        add(c.states_dtype, states > 1 ? c.count : 0, true, true);
    } else if (c.kernel == Kernel::kScan) {
        const uint64_t runs = (c.count + kScanElements - 1) / kScanElements;
        add(c.from_dtype, c.count, true, false);
        add(0, runs * sizeof(double), false, true);
        add(0, runs * sizeof(ScanCounts), false, true);
    } else {
        const bool adds = c.kernel == Kernel::kAverage ||
                          (c.kernel == Kernel::kAccumulate && c.variant == kAccumulateAdd);
        add(c.to_dtype, c.count, adds, true);
        add(c.from_dtype, c.count, true, false);
    }
    bytes_ += kGuardBytes;
}

void Arena::add(uint32_t dtype, uint64_t count, bool read, bool written)
{
    const uint64_t boundary = (bytes_ + 2 * kGuardBytes - 1) / kGuardBytes * kGuardBytes;
    const uint64_t offset = boundary + (dtype != 0 ? case_.offset * bytes_of(dtype) : 0);
    slots_.push_back({offset, count, dtype, read, written});
    bytes_ = offset + count * bytes_of(dtype);
}

uint64_t Arena::traffic_bytes() const
{
    uint64_t bytes = 0;
    for (const Slot &slot : slots_) {
        const uint64_t ways = (slot.read ? 1 : 0) + (slot.written ? 1 : 0);
        bytes += ways * slot.count * bytes_of(slot.dtype);
    }
    return bytes;
}

Argument Arena::argument(uint64_t base) const
{
    const auto at = [&](uint32_t slot) { return base + slots_[slot].offset; };
    const GpuCase &c = case_;
    switch (c.kernel) {
    case Kernel::kScan: return packed(ScanArguments{at(0), c.count, at(1), at(2), c.from_dtype, 0});
    case Kernel::kAverage: return packed(AverageArguments{at(0), at(1), c.count, 0.0001F, 0});
    case Kernel::kConvert:
        return packed(ConvertArguments{at(0), at(1), c.count, c.to_dtype, c.from_dtype});
    case Kernel::kAccumulate:
        return packed(AccumulateArguments{at(0), at(1), c.count, c.to_dtype, c.from_dtype,
                                          1.0F / 3.0F, c.variant});
    default: break;
    }
    // The numbers of the elements pass 2^32 in the longer ones.
    const uint64_t first = (uint64_t{1} << 32) - 1000;
    return packed(UpdateArguments{at(2),
                                  at(0),
                                  at(1),
                                  {at(3), at(4)},
                                  c.count,
                                  first,
                                  7,
                                  c.to_dtype,
                                  c.from_dtype,
                                  c.states_dtype,
                                  0,
                                  coefficients_of(c.variant)});
}

void Arena::fill_any(unsigned char *memory, uint64_t seed) const
{
    constexpr uint32_t kEdges[] = {0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF,
                                   0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345, 0x3F808000,
                                   0x33000001, 0x387FE000, 0x477FF000, 0x00007C01, 0x0000FC00};
    std::memset(memory, kGuard, bytes_);
    for (const Slot &slot : slots_) {
        if (slot.dtype == 0) continue;
        const uint64_t bytes = bytes_of(slot.dtype);
        for (uint64_t i = 0; i < slot.count; ++i) {
            const uint64_t random = next(seed);
            auto bits = static_cast<uint32_t>(random);
            if (random >> 62 == 0) bits = kEdges[(random >> 32) % std::size(kEdges)];
            if (random >> 63 != 0) {
                // Near 1, of either sign.
                bits = slot.dtype == STW_F16 ? (bits & 0x83FF) | 0x3800
                                             : (bits & 0x807FFFFF) | 0x3F000000;
                if (slot.dtype == STW_BF16) bits >>= 16;
            }
            if (case_.kernel == Kernel::kScan && case_.variant != 0) {
                // Without an upper bit of the exponent no number is infinite.
                bits &= slot.dtype == STW_F16 ? 0xBFFFU : 0xBFFFBFFFU;
            }
            std::memcpy(memory + slot.offset + i * bytes, &bits, bytes);
        }
    }
}

void Arena::fill_ordinary(unsigned char *memory) const
{
    std::memset(memory, 0, bytes_);
    uint64_t seed = 1;
    for (const Slot &slot : slots_) {
        if (slot.dtype == 0) continue;
        const uint64_t bytes = bytes_of(slot.dtype);
        for (uint64_t i = 0; i < slot.count; ++i) {
            auto bits = static_cast<uint32_t>(next(seed));
            if (slot.dtype == STW_F32) bits = (bits & 0x03FFFFFF) | 0x38000000;
            if (slot.dtype == STW_F16) bits = (bits & 0x07FF) | 0x3000;
            if (slot.dtype == STW_BF16) bits = (bits & 0x03FF) | 0x3800;
            std::memcpy(memory + slot.offset + i * bytes, &bits, bytes);
        }
    }
}

void run_by_processor(const GpuCase &c, Argument argument, uint32_t sm_count)
{
    const uint32_t blocks = thread_blocks(c.kernel, c.count, sm_count);
    const uint32_t size = kernel_entry(c.kernel).threads;
    switch (c.kernel) {
#define STW_RUN(kernel, name, Arguments, body, threads, elements)                                  \
    case Kernel::kernel: {                                                                         \
        const auto arguments = unpacked<Arguments>(argument);                                      \
        return run_grid(blocks, size, [&](HostBlock &block) { body(block, arguments); });          \
    }
        STW_CUDA_KERNELS(STW_RUN)
#undef STW_RUN
    }
}

}  // namespace stepwell::drivers::cuda::test
