// SPDX-License-Identifier: Apache-2.0
// Memory drivers whose devices compute updates: each has the bits of the library's own kernels.
#include "tests/conformance/support.h"

#include <stepwell/types.h>

#include "lib/update/kernels/kernels.h"

#include <cstring>
#include <random>

namespace conformance {
namespace {

namespace kernels = stepwell::kernels;

constexpr uint32_t kKernelBlock = 256 << 10;

uint64_t bytes_of(uint32_t dtype, uint64_t count)
{
    return count * (dtype == STW_F32 ? 4 : 2);
}

struct Array {
    void *there = nullptr;  // in the driver's memory
    std::vector<uint8_t> bytes;
    template <class T> T *as() { return reinterpret_cast<T *>(bytes.data()); }
};

class UpdatesConformance : public testing::TestWithParam<MemoryCase> {
protected:
    void SetUp() override
    {
        if (!memory_.can(STW_MEMORY_UPDATES)) GTEST_SKIP() << "the device computes no updates";
        ASSERT_EQ(memory_.open(8 * kMiB, kKernelBlock, 0), STW_OK) << memory_.sentence();
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        const stw_status opened = ops().update_stream(memory_.get(), &stream_, &error);
        if (opened == STW_ERROR_UNSUPPORTED) GTEST_SKIP() << error.sentence;
        ASSERT_EQ(opened, STW_OK) << error.sentence;
        ASSERT_EQ(ops().check_stream(memory_.get(), stream_, &error), STW_OK) << error.sentence;
    }
    const stw_memory_ops &ops() { return *memory_.ops(); }
    // Of random ordinary numbers, `skip` elements behind the beginning of a block.
    Array array(uint32_t block, uint32_t dtype, uint64_t count, uint64_t skip)
    {
        std::vector<float> wide(count);
        std::normal_distribution<float> normal(0.0F, 1.0F);
        for (float &value : wide) value = normal(random_);
        Array made;
        made.bytes.resize(bytes_of(dtype, count));
        kernels::convert(made.bytes.data(), dtype, wide.data(), STW_F32, count);
        made.there = memory_.block(block) + bytes_of(dtype, skip);
        put(made);
        return made;
    }
    void put(Array &array)
    {
        ASSERT_EQ(ops().copy(memory_.get(), array.there, array.bytes.data(), array.bytes.size()),
                  STW_OK);
    }
    void copies_after_work()
    {
        uint64_t mark = 0;
        ASSERT_EQ(ops().mark(memory_.get(), stream_, &mark), STW_OK);
        ASSERT_EQ(ops().copies_after(memory_.get(), mark, STW_COPIES_OUT), STW_OK);
    }
    bool is_there(const Array &array)
    {
        std::vector<uint8_t> seen(array.bytes.size());
        EXPECT_EQ(ops().copy(memory_.get(), seen.data(), array.there, seen.size()), STW_OK);
        return seen == array.bytes;
    }
    void update(uint32_t algorithm, bool narrow, uint64_t count, bool fresh);

    Memory memory_{GetParam()};
    void *stream_ = nullptr;
    std::mt19937_64 random_{7};
};

stw_update_coefficients coefficients_of(const kernels::Coefficients &from)
{
    stw_update_coefficients to{};
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
    to.decay = static_cast<uint32_t>(from.decay);
    to.flags = (from.first_step ? uint32_t{STW_MOMENTUM_FIRST} : 0u) |
               (from.nesterov ? uint32_t{STW_MOMENTUM_NESTEROV} : 0u);
    return to;
}

// One parameter with all that an update may touch.
struct Parameter {
    Array values;
    Array gradient;
    Array master;
    Array average;
    Array state[2];
    uint32_t states = 0;  // those that the algorithm has
    stw_update_work work{};

    Array &wide() { return work.values_dtype == STW_F32 ? values : master; }
};

void make_fresh(Parameter &p)
{
    Array &wide = p.wide();
    if ((p.work.fresh & STW_FRESH_MASTER) != 0)
        kernels::convert(wide.bytes.data(), STW_F32, p.values.bytes.data(), p.work.values_dtype,
                         p.work.count);
    if ((p.work.fresh & STW_FRESH_AVERAGE) != 0) p.average.bytes = wide.bytes;
    if ((p.work.fresh & STW_FRESH_STATE_0) != 0)
        std::fill(p.state[0].bytes.begin(), p.state[0].bytes.end(), 0);
}

void update_by_library(Parameter &p, const kernels::Coefficients &coefficients, double decay)
{
    const stw_update_work &work = p.work;
    make_fresh(p);
    kernels::Chunk chunk{};
    std::vector<float> moments[2];
    chunk.values = p.values.bytes.data();
    chunk.values_dtype = work.values_dtype;
    chunk.gradient_dtype = work.gradient_dtype;
    chunk.master = p.wide().as<float>();
    chunk.gradient = p.gradient.bytes.data();
    chunk.count = work.count;
    for (uint32_t i = 0; i < p.states; ++i) {
        moments[i].resize(work.count);
        kernels::convert(moments[i].data(), STW_F32, p.state[i].bytes.data(), work.states_dtype,
                         work.count);
        chunk.states[i] = moments[i].data();
    }
    kernels::update_chunk(static_cast<kernels::Algorithm>(work.algorithm), coefficients, chunk);
    for (uint32_t i = 0; i < p.states; ++i) {
        if (work.states_dtype == STW_F32) {
            std::memcpy(p.state[i].bytes.data(), moments[i].data(), p.state[i].bytes.size());
        } else {
            kernels::narrow_state(p.state[i].as<uint16_t>(), moments[i].data(), work.count,
                                  {work.first_element, work.step, i});
        }
    }
    kernels::average(p.average.as<float>(), p.wide().as<float>(), work.count, decay);
}

// The same update on both sides, of arrays that begin off any alignment but the element's.
void UpdatesConformance::update(uint32_t algorithm, bool narrow, uint64_t count, bool fresh)
{
    SCOPED_TRACE(testing::Message() << "algorithm " << algorithm << ", " << count << " elements, "
                                    << (narrow ? "narrow" : "f32") << (fresh ? ", fresh" : ""));
    constexpr double kDecay = 0.9;
    const uint32_t dtype = narrow ? STW_BF16 : STW_F32;
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.weight_decay = 0.1;
    hyper.momentum = 0.9;
    const auto which = static_cast<kernels::Algorithm>(algorithm);
    Parameter p;
    p.states = kernels::state_count(which, hyper);
    p.values = array(0, dtype, count, 1);
    p.gradient = array(1, narrow ? STW_F16 : STW_F32, count, 3);
    p.master = array(2, STW_F32, count, 0);
    p.average = array(3, STW_F32, count, 5);
    p.state[0] = array(4, dtype, count, 2);
    p.state[1] = array(5, dtype, count, 0);
    stw_update_work &work = p.work;
    work.struct_size = sizeof work;
    work.algorithm = algorithm;
    work.values = p.values.there;
    work.master = narrow ? p.master.there : p.values.there;
    work.gradient = p.gradient.there;
    for (uint32_t i = 0; i < p.states; ++i) work.states[i] = p.state[i].there;
    work.average = p.average.there;
    work.average_weight = kernels::average_weight(kDecay);
    work.count = count;
    work.first_element = 12345;
    work.step = 3;
    work.values_dtype = work.states_dtype = dtype;
    work.gradient_dtype = narrow ? STW_F16 : STW_F32;
    const kernels::Coefficients c = kernels::make_coefficients(which, hyper, work.step, 0.5);
    work.coefficients = coefficients_of(c);
    if (fresh) work.fresh = STW_FRESH_AVERAGE;
    if (fresh && narrow) work.fresh |= STW_FRESH_MASTER;
    if (fresh && p.states > 0) work.fresh |= STW_FRESH_STATE_0;
    ASSERT_EQ(ops().update_start(memory_.get(), &work), STW_OK);
    copies_after_work();
    update_by_library(p, c, kDecay);
    for (const Array *array :
         {&p.values, &p.gradient, &p.master, &p.average, &p.state[0], &p.state[1]})
        EXPECT_TRUE(is_there(*array)) << "array " << array->there;
}

TEST_P(UpdatesConformance, HaveTheBitsOfTheLibrary)
{
    for (const uint32_t algorithm : {STW_OPTIMIZER_ADAMW, STW_OPTIMIZER_ADAM, STW_OPTIMIZER_SGD,
                                     STW_OPTIMIZER_ADAGRAD, STW_OPTIMIZER_LION}) {
        for (const uint64_t count : {uint64_t{1}, uint64_t{4099}, uint64_t{40000}}) {
            for (const bool fresh : {false, true}) {
                update(algorithm, false, count, fresh);
                update(algorithm, true, count, fresh);
            }
        }
    }
}

TEST_P(UpdatesConformance, AScanHasTheSumsOfTheLibrary)
{
    for (const uint32_t dtype : {STW_F32, STW_F16, STW_BF16}) {
        for (const uint64_t count : {uint64_t{1}, uint64_t{4096}, uint64_t{20001}}) {
            Array gradient = array(0, dtype, count, 0);
            const uint32_t infinity = dtype == STW_F16 ? 0x7c00u : 0x7f80u;
            std::memcpy(gradient.bytes.data() + (dtype == STW_F32 ? 2 : 0), &infinity, 2);
            put(gradient);
            stw_scan_work work{};
            work.struct_size = sizeof work;
            work.dtype = dtype;
            work.gradient = gradient.there;
            work.count = count;
            uint64_t scan = 0;
            ASSERT_EQ(ops().scan_start(memory_.get(), &work, &scan), STW_OK);
            std::vector<double> expected(kernels::scan_block_count(count));
            const kernels::ScanResult result =
                kernels::scan_blocks(gradient.bytes.data(), dtype, count, expected.data());
            std::vector<double> sums(expected.size());
            stw_scan_result seen{};
            seen.struct_size = sizeof seen;
            ASSERT_EQ(ops().scan_end(memory_.get(), scan, sums.data(), &seen), STW_OK);
            EXPECT_EQ(sums, expected);
            EXPECT_EQ(seen.maximum, result.maximum);
            EXPECT_EQ(seen.nonfinite, result.nonfinite);
            EXPECT_GT(seen.nonfinite, 0u);
        }
    }
}

TEST_P(UpdatesConformance, ARunOfTheScanMayLieInTwoPlaces)
{
    constexpr uint64_t kFirst = 1000;
    constexpr uint64_t kRest = 3096;
    Array whole = array(0, STW_F32, kFirst + kRest, 0);
    Array rest = array(1, STW_F32, kRest, 7);
    std::memcpy(rest.bytes.data(), whole.bytes.data() + kFirst * 4, kRest * 4);
    put(rest);
    stw_scan_work work{};
    work.struct_size = sizeof work;
    work.dtype = STW_F32;
    work.gradient = whole.there;
    work.count = kFirst;
    work.rest = rest.there;
    work.rest_count = kRest;
    uint64_t scan = 0;
    ASSERT_EQ(ops().scan_start(memory_.get(), &work, &scan), STW_OK);
    double expected = 0.0;
    kernels::scan_blocks(whole.bytes.data(), STW_F32, kFirst + kRest, &expected);
    double sum = 0.0;
    stw_scan_result seen{};
    seen.struct_size = sizeof seen;
    ASSERT_EQ(ops().scan_end(memory_.get(), scan, &sum, &seen), STW_OK);
    EXPECT_EQ(sum, expected);
}

TEST_P(UpdatesConformance, ScansAreEndedInAnyOrder)
{
    std::vector<Array> gradients;
    std::vector<uint64_t> scans(STW_SCANS_MAX);
    for (uint32_t round = 0; round < 2; ++round) {
        gradients.clear();
        for (uint32_t i = 0; i < STW_SCANS_MAX; ++i) {
            gradients.push_back(array(i / 8, STW_BF16, 4097 + i, (i % 8) * 8192));
            stw_scan_work work{};
            work.struct_size = sizeof work;
            work.dtype = STW_BF16;
            work.gradient = gradients[i].there;
            work.count = 4097 + i;
            ASSERT_EQ(ops().scan_start(memory_.get(), &work, &scans[i]), STW_OK) << i;
        }
        for (uint32_t step = 0; step < STW_SCANS_MAX; ++step) {
            const uint32_t i = step * 23 % STW_SCANS_MAX;
            double sums[2] = {};
            double expected[2] = {};
            stw_scan_result seen{};
            seen.struct_size = sizeof seen;
            ASSERT_EQ(ops().scan_end(memory_.get(), scans[i], sums, &seen), STW_OK);
            kernels::scan_blocks(gradients[i].bytes.data(), STW_BF16, 4097 + i, expected);
            EXPECT_EQ(sums[0], expected[0]);
            EXPECT_EQ(sums[1], expected[1]);
        }
    }
}

TEST_P(UpdatesConformance, SumsAndZerosHaveTheBitsOfTheLibrary)
{
    for (const uint32_t to : {STW_F32, STW_F16, STW_BF16}) {
        for (const uint32_t adds : {0u, 1u}) {
            Array destination = array(0, to, 5001, 1);
            Array source = array(1, STW_F32, 5001, 2);
            stw_accumulate_work work{};
            work.struct_size = sizeof work;
            work.adds = adds;
            work.destination = destination.there;
            work.source = source.there;
            work.count = 5001;
            work.destination_dtype = to;
            work.source_dtype = STW_F32;
            work.scale = kernels::accumulate_scale(0.3);
            ASSERT_EQ(ops().accumulate_start(memory_.get(), &work), STW_OK);
            copies_after_work();
            kernels::accumulate(adds != 0 ? kernels::Reduce::kAdd : kernels::Reduce::kFirst,
                                destination.bytes.data(), to, source.bytes.data(), STW_F32, 5001,
                                0.3);
            EXPECT_TRUE(is_there(destination));
            ASSERT_EQ(ops().zero_start(memory_.get(), destination.there, 777), STW_OK);
            copies_after_work();
            std::fill(destination.bytes.begin(), destination.bytes.begin() + 777, 0);
            EXPECT_TRUE(is_there(destination));
        }
    }
}

TEST_P(UpdatesConformance, WhatIsNoUpdateIsInvalid)
{
    stw_update_work work{};
    work.struct_size = sizeof work;
    work.algorithm = 12345;
    work.values_dtype = work.gradient_dtype = work.states_dtype = STW_F32;
    EXPECT_EQ(ops().update_start(memory_.get(), &work), STW_ERROR_UNSUPPORTED);
    work.algorithm = STW_OPTIMIZER_ADAMW;
    EXPECT_EQ(ops().update_start(memory_.get(), &work), STW_OK);  // of nothing
    work.gradient_dtype = STW_I32;
    EXPECT_EQ(ops().update_start(memory_.get(), &work), STW_ERROR_INVALID);
    stw_scan_work scan{};
    scan.struct_size = sizeof scan;
    scan.dtype = STW_I32;
    scan.count = 1;
    uint64_t number = 0;
    EXPECT_EQ(ops().scan_start(memory_.get(), &scan, &number), STW_ERROR_INVALID);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(UpdatesConformance);
INSTANTIATE_TEST_SUITE_P(Drivers, UpdatesConformance, testing::ValuesIn(memory_cases()),
                         [](const auto &info) { return info.param.label; });

}  // namespace
}  // namespace conformance
