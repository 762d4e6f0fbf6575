// SPDX-License-Identifier: Apache-2.0
// Entries, hyper-parameters and options: what is wrong is refused before anything is changed.
#include "model.h"

#include <cstdlib>
#include <new>

namespace {

thread_local uint64_t taken_bytes = 0;  // by this thread, ever

}  // namespace

// Inlined, they would be taken for mismatched ones.
[[gnu::noinline]] void *operator new(std::size_t bytes)
{
    taken_bytes += bytes;
    void *memory = std::malloc(bytes != 0 ? bytes : 1);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
[[gnu::noinline]] void operator delete(void *memory) noexcept
{
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void *memory, std::size_t) noexcept
{
    std::free(memory);
}

namespace stepwell::update::test {
namespace {

const Shape kShape{8000, STW_F32, STW_F32, 0};

stw_status add(World &world, std::initializer_list<Entry> entries)
{
    return world.optimizer->add(entries.begin(), static_cast<uint32_t>(entries.size())).code();
}

TEST(Entries, AllOrNone)
{
    World world({});
    const Entry good = world.make(kShape);
    Entry bad = world.make(kShape);
    bad.gradient_dtype = STW_I32;
    EXPECT_EQ(add(world, {good, bad}), STW_ERROR_INVALID);
    EXPECT_FALSE(world.optimizer->count(good.parameter).ok());
    EXPECT_EQ(add(world, {good}), STW_OK);
    EXPECT_TRUE(world.optimizer->count(good.parameter).ok());
}

// A table that is copied for each entry would take a hundred times as much.
TEST(Entries, AddedOneByOneEachTakesAsMuchMemoryAsBefore)
{
    constexpr int kEach = 1000;
    World world({});
    std::vector<Entry> entries;
    for (int i = 0; i < 4 * kEach; ++i) entries.push_back(world.make({8, STW_F32, STW_F32, 0}));
    const auto bytes_of_adding = [&](int begin) {
        const uint64_t before = taken_bytes;
        for (int i = begin; i < begin + kEach; ++i) {
            EXPECT_EQ(add(world, {entries[i]}), STW_OK);
        }
        return taken_bytes - before;
    };
    const uint64_t first = bytes_of_adding(0);
    for (int i = 1; i <= 3; ++i) EXPECT_LT(bytes_of_adding(i * kEach), 2 * first);
}

TEST(Entries, PartsDoNotOverlap)
{
    World world({});
    Entry a = world.make(kShape);
    a.element_count = 5000;
    Entry b = a;
    b.element_begin = 4999;
    b.element_count = 3001;
    EXPECT_EQ(add(world, {a, b}), STW_ERROR_EXISTS);
    b.element_begin = 5000;
    b.element_count = 3000;
    EXPECT_EQ(add(world, {a, b}), STW_OK);
    EXPECT_EQ(add(world, {b}), STW_ERROR_EXISTS);
}

TEST(Entries, PartsHaveTheSameTensors)
{
    World world({});
    Entry a = world.make(kShape);
    a.element_count = 5000;
    Entry b = a;
    b.element_begin = 5000;
    b.element_count = 3000;
    b.states[1] = world.tiers.create(32000, 0, true);
    EXPECT_EQ(add(world, {a, b}), STW_ERROR_MISMATCH);
}

TEST(Entries, ATensorIsOfOneParameter)
{
    World world({});
    const Entry a = world.make(kShape);
    Entry b = world.make(kShape);
    b.gradient = a.gradient;
    EXPECT_EQ(add(world, {a, b}), STW_ERROR_EXISTS);
    b = world.make(kShape);
    b.states[0] = b.gradient;
    EXPECT_EQ(add(world, {b}), STW_ERROR_EXISTS);
    EXPECT_EQ(add(world, {a}), STW_OK);
    ASSERT_TRUE(world.step_and_wait().ok());
}

TEST(Entries, MasterBelongsToNarrowParameters)
{
    World world({});
    Entry narrow = world.make({8000, STW_BF16, STW_F32, 0});
    narrow.master = kNone;
    EXPECT_EQ(add(world, {narrow}), STW_ERROR_INVALID);
    Entry wide = world.make(kShape);
    wide.master = world.tiers.create(32000, 0, false);
    EXPECT_EQ(add(world, {wide}), STW_ERROR_INVALID);
    Entry short_of_states = world.make(kShape);
    short_of_states.state_count = 1;
    EXPECT_EQ(add(world, {short_of_states}), STW_ERROR_INVALID);
    Entry without_one = world.make(kShape);
    without_one.states[1] = kNone;
    EXPECT_EQ(add(world, {without_one}), STW_ERROR_INVALID);
}

TEST(Entries, StatesAreF32OrBf16)
{
    Conditions conditions;
    conditions.state_dtype = STW_BF16;
    World world(conditions);
    Entry entry = world.make(kShape);
    entry.state_dtype = STW_F16;
    EXPECT_EQ(add(world, {entry}), STW_ERROR_UNSUPPORTED);
    Entry a = world.make(kShape);
    a.element_count = 5000;
    Entry b = a;
    b.element_begin = 5000;
    b.element_count = 3000;
    b.state_dtype = STW_F32;
    EXPECT_EQ(add(world, {a, b}), STW_ERROR_MISMATCH);
    stw_custom_update custom{};
    custom.struct_size = sizeof custom;
    custom.update = [](void *, const stw_update_chunk *) -> stw_status { return STW_OK; };
    conditions.algorithm = STW_OPTIMIZER_CUSTOM;
    conditions.custom = &custom;
    World own(conditions);
    EXPECT_EQ(add(own, {own.make(kShape)}), STW_ERROR_UNSUPPORTED);
}

TEST(Entries, AnAverageNeedsItsTensorAndADecay)
{
    World without({});
    Entry entry = without.make(kShape);
    entry.average = without.tiers.create(32000, 0, false);
    EXPECT_EQ(add(without, {entry}), STW_ERROR_INVALID);
    Conditions conditions;
    conditions.average_decay = 0.9;
    World world(conditions);
    Entry lacks = world.make(kShape);
    lacks.average = kNone;
    EXPECT_EQ(add(world, {lacks}), STW_ERROR_INVALID);
    Entry a = world.make(kShape);
    a.element_count = 5000;
    Entry b = a;
    b.element_begin = 5000;
    b.element_count = 3000;
    b.average = world.tiers.create(32000, 0, false);
    EXPECT_EQ(add(world, {a, b}), STW_ERROR_MISMATCH);
    b.average = a.average;
    EXPECT_EQ(add(world, {a, b}), STW_OK);
    for (const double decay : {1.0, -0.1, std::numeric_limits<double>::quiet_NaN()}) {
        EXPECT_EQ(
            Optimizer::create(*world.pipeline, STW_OPTIMIZER_ADAM, nullptr, decay).status().code(),
            STW_ERROR_INVALID);
    }
}

TEST(Entries, MomentumNeedsItsState)
{
    Conditions conditions;
    conditions.algorithm = STW_OPTIMIZER_SGD;
    World world(conditions);
    const Entry entry = world.make(kShape, false);
    EXPECT_EQ(add(world, {entry}), STW_OK);
    EXPECT_EQ(world.optimizer->set_hyper(0, some_hyper(STW_OPTIMIZER_SGD)).code(),
              STW_ERROR_INVALID);
    stw_hyper plain = some_hyper(STW_OPTIMIZER_SGD);
    plain.momentum = 0.0;
    ASSERT_TRUE(world.optimizer->set_hyper(0, plain).ok());
    ASSERT_TRUE(world.step_and_wait().ok());
    world.expect_update(entry, plain, 1, 1.0);
    world.expect_same(entry);
    EXPECT_EQ(state_names(STW_OPTIMIZER_SGD, plain, nullptr).count, 0u);
    EXPECT_STREQ(state_names(STW_OPTIMIZER_SGD, some_hyper(STW_OPTIMIZER_SGD), nullptr).names[0],
                 "momentum");
    EXPECT_STREQ(state_names(STW_OPTIMIZER_ADAMW, plain, nullptr).names[1], "exp_avg_sq");
}

TEST(Entries, HyperParametersAreFinite)
{
    World world({});
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.lr = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(world.optimizer->set_hyper(0, hyper).code(), STW_ERROR_INVALID);
    hyper = STW_HYPER_INIT;
    hyper.beta2 = 1.0;
    EXPECT_EQ(world.optimizer->set_hyper(0, hyper).code(), STW_ERROR_INVALID);
    hyper = STW_HYPER_INIT;
    hyper.flags = 64;
    EXPECT_EQ(world.optimizer->set_hyper(0, hyper).code(), STW_ERROR_INVALID);
    EXPECT_EQ(world.optimizer->hyper(0).beta2, 0.999);
}

TEST(Entries, BetasAreThoseOfMovingAverages)
{
    struct Case {
        uint32_t algorithm;
        stw_status expected;
    };
    for (const Case &c :
         {Case{STW_OPTIMIZER_ADAMW, STW_ERROR_INVALID}, Case{STW_OPTIMIZER_ADAM, STW_ERROR_INVALID},
          Case{STW_OPTIMIZER_LION, STW_ERROR_INVALID}, Case{STW_OPTIMIZER_SGD, STW_OK},
          Case{STW_OPTIMIZER_ADAGRAD, STW_OK}}) {
        Conditions conditions;
        conditions.algorithm = c.algorithm;
        World world(conditions);
        for (const double beta : {-0.1, 1.0}) {
            stw_hyper hyper = STW_HYPER_INIT;
            hyper.beta1 = beta;
            EXPECT_EQ(world.optimizer->set_hyper(0, hyper).code(), c.expected) << c.algorithm;
            hyper = STW_HYPER_INIT;
            hyper.beta2 = beta;
            EXPECT_EQ(world.optimizer->set_hyper(0, hyper).code(), c.expected) << c.algorithm;
        }
    }
}

TEST(Entries, OptionsOfAStep)
{
    World world({});
    const Entry entry = world.add(kShape);
    StepOptions options;
    options.flags = 1u << 30;
    EXPECT_EQ(world.optimizer->step(options, nullptr).code(), STW_ERROR_INVALID);
    options = {};
    options.norm_type = 3.0;
    EXPECT_EQ(world.optimizer->step(options, nullptr).code(), STW_ERROR_INVALID);
    options = {};
    options.gradient_scale = std::numeric_limits<double>::infinity();
    EXPECT_EQ(world.optimizer->step(options, nullptr).code(), STW_ERROR_INVALID);
    options = {};
    const TensorId twice[] = {entry.parameter, entry.parameter};
    options.parameters = twice;
    options.parameter_count = 2;
    EXPECT_EQ(world.optimizer->step(options, nullptr).code(), STW_ERROR_INVALID);
    options.parameters = &entry.gradient;
    options.parameter_count = 1;
    EXPECT_EQ(world.optimizer->step(options, nullptr).code(), STW_ERROR_NOT_FOUND);
    EXPECT_EQ(world.tiers.fetches(), 0u);
    EXPECT_FALSE(world.tiers.claimed(entry.parameter));
}

TEST(Entries, OptimizersThisBuildDoesNotHave)
{
    World world({});
    EXPECT_EQ(Optimizer::create(*world.pipeline, 7, nullptr).status().code(), STW_ERROR_INVALID);
    EXPECT_EQ(Optimizer::create(*world.pipeline, STW_OPTIMIZER_CUSTOM, nullptr).status().code(),
              STW_ERROR_INVALID);
}

}  // namespace
}  // namespace stepwell::update::test
