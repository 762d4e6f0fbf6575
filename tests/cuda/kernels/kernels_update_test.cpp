// SPDX-License-Identifier: Apache-2.0
// Optimizers: the GPU's kernels, run by the processor, against the processor's own. Bits are equal
// for every algorithm, dtype, alignment, length and geometry, on all of its instruction sets.
#include "tests/cuda/kernels/support.h"

namespace stepwell::drivers::cuda::test {
namespace {

struct Case {
    kernels::Algorithm algorithm;
    Kernel kernel;
    double momentum;
    double weight_decay;
    uint32_t flags;
    uint64_t step;
};

constexpr Case kCases[] = {
    {kernels::Algorithm::kAdamW, Kernel::kUpdateAdam, 0.0, 0.1, 0, 3},
    {kernels::Algorithm::kAdamW, Kernel::kUpdateAdam, 0.0, 0.0, 0, 1},
    {kernels::Algorithm::kAdam, Kernel::kUpdateAdam, 0.0, 0.1, STW_HYPER_MAXIMIZE, 9},
    {kernels::Algorithm::kSgd, Kernel::kUpdateSgd, 0.0, 0.1, 0, 1},
    {kernels::Algorithm::kSgd, Kernel::kUpdateSgd, 0.0, 0.0, STW_HYPER_MAXIMIZE, 2},
    {kernels::Algorithm::kSgd, Kernel::kUpdateMomentum, 0.9, 0.1, 0, 1},
    {kernels::Algorithm::kSgd, Kernel::kUpdateMomentum, 0.9, 0.0, 0, 2},
    {kernels::Algorithm::kSgd, Kernel::kUpdateMomentum, 0.9, 0.1, STW_HYPER_NESTEROV, 2},
    {kernels::Algorithm::kAdagrad, Kernel::kUpdateAdagrad, 0.0, 0.1, 0, 4},
    {kernels::Algorithm::kLion, Kernel::kUpdateLion, 0.0, 0.1, STW_HYPER_MAXIMIZE, 5},
    {kernels::Algorithm::kLion, Kernel::kUpdateLion, 0.0, 0.0, 0, 5},
};

struct Dtypes {
    uint32_t values;
    uint32_t gradient;
    uint32_t states;
};

stw_hyper hyper_of(const Case &c)
{
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.momentum = c.momentum;
    hyper.dampening = c.momentum / 4;
    hyper.weight_decay = c.weight_decay;
    hyper.flags = c.flags;
    hyper.lr_decay = 0.01;
    return hyper;
}

kernels::Coefficients coefficients_of(const Case &c)
{
    return kernels::make_coefficients(c.algorithm, hyper_of(c), c.step, 1.0 / 3.0);
}

Coefficients device_coefficients(const kernels::Coefficients &c)
{
    uint32_t flags = 0;
    if (c.first_step) flags |= kFirstStep;
    if (c.nesterov) flags |= kNesterov;
    return {c.gradient_scale,
            c.decay_factor,
            c.beta1,
            c.one_minus_beta1,
            c.beta2,
            c.one_minus_beta2,
            c.eps,
            c.correction2_sqrt,
            c.negative_step_size,
            c.momentum,
            c.one_minus_dampening,
            static_cast<uint32_t>(c.decay),
            flags,
            0};
}
static_assert(static_cast<uint32_t>(kernels::Decay::kNone) == kDecayNone);
static_assert(static_cast<uint32_t>(kernels::Decay::kDecoupled) == kDecayDecoupled);
static_assert(static_cast<uint32_t>(kernels::Decay::kCoupled) == kDecayCoupled);

// One parameter with its gradient and states, the same for the same seed.
struct Tensors {
    Array master;
    Array values;
    Array gradient;
    Array states[2];

    Tensors(const Dtypes &dtypes, uint64_t count, const uint64_t (&offsets)[3], uint64_t seed)
        : master(STW_F32, count, offsets[0]),
          values(dtypes.values, count, offsets[1]),
          gradient(dtypes.gradient, count, offsets[2]),
          states{Array(dtypes.states, count, offsets[0]), Array(dtypes.states, count, offsets[1])}
    {
        Random random(seed);
        for (Array *array : {&master, &values, &gradient, &states[0], &states[1]}) {
            mix(*array, random);
        }
    }
};

void expect_same(Tensors &expected, Tensors &found)
{
    EXPECT_TRUE(same(expected.master, found.master)) << "master";
    EXPECT_TRUE(same(expected.values, found.values)) << "values";
    EXPECT_TRUE(same(expected.gradient, found.gradient)) << "gradient";
    EXPECT_TRUE(same(expected.states[0], found.states[0])) << "state 0";
    EXPECT_TRUE(same(expected.states[1], found.states[1])) << "state 1";
}

// As lib/update does: states of 16 bits are widened, updated, and rounded by a draw.
void update_on_processor(const Case &c, Tensors &tensors, uint64_t first_element)
{
    const uint64_t count = tensors.master.count();
    const bool narrow = tensors.states[0].dtype() != STW_F32;
    Array wide[2] = {Array(STW_F32, count), Array(STW_F32, count)};
    const uint32_t states = kernels::state_count(c.algorithm, hyper_of(c));
    kernels::Chunk chunk = {tensors.values.data(),
                            tensors.values.dtype(),
                            tensors.gradient.dtype(),
                            tensors.master.floats(),
                            tensors.gradient.data(),
                            {},
                            count};
    if (chunk.values_dtype == STW_F32) chunk.values = chunk.master;
    for (uint32_t s = 0; s < states; ++s) {
        Array &state = tensors.states[s];
        if (narrow) kernels::convert(wide[s].data(), STW_F32, state.data(), STW_BF16, count);
        chunk.states[s] = narrow ? wide[s].floats() : state.floats();
    }
    kernels::update_chunk(c.algorithm, coefficients_of(c), chunk);
    for (uint32_t s = 0; narrow && s < states; ++s) {
        kernels::narrow_state(static_cast<uint16_t *>(tensors.states[s].data()), wide[s].floats(),
                              count, {first_element, c.step, s});
    }
}

UpdateArguments arguments_of(const Case &c, Tensors &tensors, uint64_t first_element)
{
    UpdateArguments arguments = {};
    const uint32_t states = kernels::state_count(c.algorithm, hyper_of(c));
    arguments.master = device_address(tensors.master.data());
    arguments.values = arguments.master;
    if (tensors.values.dtype() != STW_F32) {
        arguments.values = device_address(tensors.values.data());
    }
    arguments.gradient = device_address(tensors.gradient.data());
    for (uint32_t s = 0; s < states; ++s) {
        arguments.states[s] = device_address(tensors.states[s].data());
    }
    arguments.count = tensors.master.count();
    arguments.first_element = first_element;
    arguments.step = c.step;
    arguments.values_dtype = tensors.values.dtype();
    arguments.gradient_dtype = tensors.gradient.dtype();
    arguments.states_dtype = tensors.states[0].dtype();
    arguments.coefficients = device_coefficients(coefficients_of(c));
    return arguments;
}

std::vector<Dtypes> all_dtypes()
{
    std::vector<Dtypes> all;
    for (const uint32_t values : kDtypes) {
        for (const uint32_t gradient : kDtypes) {
            all.push_back({values, gradient, STW_F32});
            all.push_back({values, gradient, STW_BF16});
        }
    }
    return all;
}

class CudaUpdate : public testing::TestWithParam<Case> {
protected:
    void TearDown() override { kernels::force_target_for_test(0); }
};

TEST_P(CudaUpdate, HasTheBitsOfTheProcessor)
{
    const Case &c = GetParam();
    uint64_t seed = 1;
    for (const Dtypes &dtypes : all_dtypes()) {
        for (const uint64_t count : kCounts) {
            const auto &offsets = kOffsets[seed % std::size(kOffsets)];
            SCOPED_TRACE("STW_SEED=" + std::to_string(seed) + ", " + std::to_string(count) +
                         " elements, dtypes " + std::to_string(dtypes.values) + " " +
                         std::to_string(dtypes.gradient) + " " + std::to_string(dtypes.states));
            kernels::force_target_for_test(seed % kernels::target_count());
            Tensors expected(dtypes, count, offsets, seed);
            update_on_processor(c, expected, seed * 4093);
            Tensors found(dtypes, count, offsets, seed);
            UpdateArguments arguments = arguments_of(c, found, seed * 4093);
            launch(c.kernel, &arguments, count, seed % 3);
            expect_same(expected, found);
            if (HasFailure()) return;
            ++seed;
        }
    }
}

TEST_P(CudaUpdate, IsTheSameOnEveryInstructionSet)
{
    const Case &c = GetParam();
    const Dtypes dtypes = {STW_BF16, STW_F16, STW_BF16};
    for (const auto &offsets : kOffsets) {
        Tensors found(dtypes, 4099, offsets, 5);
        UpdateArguments arguments = arguments_of(c, found, 7);
        launch(c.kernel, &arguments, 4099, 2);
        for (uint32_t target = 0; target < kernels::target_count(); ++target) {
            SCOPED_TRACE(kernels::target_name(target));
            kernels::force_target_for_test(target);
            Tensors expected(dtypes, 4099, offsets, 5);
            update_on_processor(c, expected, 7);
            expect_same(expected, found);
        }
    }
}

// Fewer threads than groups, more than elements, and numbers that divide nothing.
TEST_P(CudaUpdate, IsTheSameForEveryGeometry)
{
    const Case &c = GetParam();
    for (const Dtypes dtypes : {Dtypes{STW_F32, STW_F32, STW_F32}, {STW_F16, STW_BF16, STW_BF16}}) {
        for (const auto &offsets : kOffsets) {
            Tensors expected(dtypes, 1021, offsets, 9);
            update_on_processor(c, expected, 0);
            for (const Geometry geometry : {Geometry{1, 1}, {3, 37}, {1, 256}, {13, 256}}) {
                Tensors found(dtypes, 1021, offsets, 9);
                UpdateArguments arguments = arguments_of(c, found, 0);
                launch(c.kernel, &arguments, geometry);
                expect_same(expected, found);
            }
        }
    }
}

// Draws have another key for each 2^32 elements; here a group lies on both sides.
TEST_P(CudaUpdate, DrawsAcrossFourBillionElements)
{
    const Case &c = GetParam();
    const Dtypes dtypes = {STW_F32, STW_F32, STW_BF16};
    for (const uint64_t before : {1, 2, 3, 500}) {
        const uint64_t first = (uint64_t{3} << 32) - before;
        Tensors expected(dtypes, 1001, kOffsets[0], 2);
        update_on_processor(c, expected, first);
        Tensors found(dtypes, 1001, kOffsets[0], 2);
        UpdateArguments arguments = arguments_of(c, found, first);
        launch(c.kernel, &arguments, {1, 64});
        expect_same(expected, found);
    }
}

TEST_P(CudaUpdate, NamesWhatItTouches)
{
    const Case &c = GetParam();
    Tensors tensors({STW_BF16, STW_F16, STW_F32}, 10, kOffsets[0], 1);
    UpdateArguments arguments = arguments_of(c, tensors, 0);
    const uint32_t states = kernels::state_count(c.algorithm, hyper_of(c));
    const std::vector<stw_double_range> ranges = ranges_of(c.kernel, &arguments);
    ASSERT_EQ(ranges.size(), states + 3);
    EXPECT_EQ(ranges[0].address, arguments.gradient);
    EXPECT_EQ(ranges[0].bytes, 20U);
    EXPECT_EQ(ranges[0].writes, 0U);
    EXPECT_EQ(ranges[1].address, arguments.master);
    EXPECT_EQ(ranges[1].bytes, 40U);
    EXPECT_EQ(ranges.back().address, arguments.values);
    EXPECT_EQ(ranges.back().bytes, 20U);
    for (uint32_t i = 1; i < ranges.size(); ++i) EXPECT_EQ(ranges[i].writes, 1U);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, CudaUpdate, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case> &test) {
                             return std::string(kernel_entry(test.param.kernel).name) + "_" +
                                    std::to_string(test.index);
                         });

}  // namespace
}  // namespace stepwell::drivers::cuda::test
