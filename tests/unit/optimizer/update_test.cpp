// SPDX-License-Identifier: Apache-2.0
// Updates: the streamed step has the bits of one call of the kernel over whole arrays, whatever the
// cuts, the window, the threads and the order of completions are.
#include "model.h"

#include <atomic>

namespace stepwell::update::test {
namespace {

const Shape kUpdateShapes[] = {
    {10000, STW_F32, STW_F32, 0},        {12345, STW_BF16, STW_F32, 1024},
    {777, STW_F16, STW_F16, 8192},       {1, STW_F32, STW_BF16, 4096},
    {40000, STW_BF16, STW_BF16, 0},      {4096, STW_F16, STW_F32, 0},
    {5000, STW_F32, STW_F16, 15 * 1024}, {30001, STW_BF16, STW_F32, 1024, true},
    {9, STW_BF16, STW_BF16, 8192, true},
};

void train(const Conditions &setup)
{
    SCOPED_TRACE("seed " + std::to_string(setup.seed) + ", threads " +
                 std::to_string(setup.threads) + ", window " + std::to_string(setup.window_blocks));
    World world(setup);
    stw_hyper hyper = some_hyper(setup.algorithm);
    ASSERT_TRUE(world.optimizer->set_hyper(0, hyper).ok());
    std::vector<Entry> entries;
    for (const Shape &shape : kUpdateShapes) entries.push_back(world.add(shape));
    // On the host and on the device in turn, and some that change between steps.
    for (size_t i = setup.seed % 3; i < entries.size(); i += 2) world.move_home(entries[i]);
    for (uint64_t step = 1; step <= 3; ++step) {
        hyper.lr *= 0.5;  // a schedule
        ASSERT_TRUE(world.optimizer->set_hyper(0, hyper).ok());
        StepOptions options;
        options.gradient_scale = 0.25;
        StepResult result;
        ASSERT_EQ(world.step_and_wait(options, &result).code(), STW_OK);
        EXPECT_EQ(result.updated, entries.size());
        for (const Entry &entry : entries) {
            world.expect_update(entry, hyper, step, 0.25);
            world.expect_same(entry);
            EXPECT_EQ(world.tiers.contents(entry.gradient), Contents::kEmpty);
            world.give_gradient(entry);
        }
        world.move_home(entries[step]);
    }
}

TEST(Update, EqualsTheKernelOnTheWholeArray)
{
    uint64_t seed = 1;
    for (const uint32_t algorithm : {STW_OPTIMIZER_ADAMW, STW_OPTIMIZER_ADAM, STW_OPTIMIZER_SGD,
                                     STW_OPTIMIZER_ADAGRAD, STW_OPTIMIZER_LION}) {
        for (const uint32_t threads : {1u, 4u}) {
            for (const uint64_t window : {1u, 11u, 60u}) {
                Conditions setup;
                setup.seed = seed++;
                setup.algorithm = algorithm;
                setup.threads = threads;
                setup.window_blocks = window;
                setup.tier_threads = seed % 3;  // 0: answered inside the call
                setup.average_decay = seed % 2 == 0 ? 0.9 : 0.0;
                setup.state_dtype = seed % 4 < 2 ? STW_F32 : STW_BF16;
                train(setup);
            }
        }
    }
}

// Blocks of their tensors end at different elements: the pointers are those of the same elements.
TEST(Update, AGradientInTheCallersMemoryIsUsedWhereItLies)
{
    for (uint64_t seed = 1; seed <= 6; ++seed) {
        Conditions setup;
        setup.seed = seed;
        setup.window_blocks = 3 * seed;
        setup.average_decay = seed % 2 == 0 ? 0.9 : 0.0;
        World world(setup);
        const stw_hyper hyper = some_hyper(setup.algorithm);
        ASSERT_TRUE(world.optimizer->set_hyper(0, hyper).ok());
        std::vector<Entry> entries;
        for (const Shape &shape : kUpdateShapes) entries.push_back(world.add(shape));
        world.move_home(entries[seed]);  // it is updated on the CPU nevertheless
        for (uint64_t step = 1; step <= 2; ++step) {
            std::vector<TensorId> parameters;
            std::vector<const void *> gradients;
            for (const Entry &entry : entries) {
                parameters.push_back(entry.parameter);
                gradients.push_back(world.mirrors[entry.parameter].gradient.data());
                world.tiers.discard(entry.gradient);
            }
            StepOptions options;
            options.parameters = parameters.data();
            options.parameter_count = static_cast<uint32_t>(parameters.size());
            options.gradients = gradients.data();
            ASSERT_TRUE(world.step_and_wait(options).ok());
            for (const Entry &entry : entries) {
                world.expect_update(entry, hyper, step, 1.0);
                world.expect_same(entry);
                EXPECT_EQ(world.tiers.contents(entry.gradient), Contents::kEmpty);
            }
        }
    }
}

TEST(Update, MasterIsMadeFromTheParameter)
{
    World world({});
    const Entry entry = world.add({9000, STW_BF16, STW_F32, 256});
    std::vector<float> wide(9000);
    kernels::convert(wide.data(), STW_F32, world.mirrors[entry.parameter].values.data(), STW_BF16,
                     9000);
    stw_hyper still = STW_HYPER_INIT;
    still.lr = 0.0;  // the master is what it was made of
    ASSERT_TRUE(world.optimizer->set_hyper(0, still).ok());
    ASSERT_TRUE(world.step_and_wait().ok());
    EXPECT_TRUE(World::equal(world.tiers.bytes(entry.master), wide.data()));
    // And not again: from now on the master counts.
    const std::vector<float> other(9000, 3.0F);
    world.tiers.set_bytes(entry.master, other.data());
    world.give_gradient(entry);
    ASSERT_TRUE(world.step_and_wait().ok());
    EXPECT_TRUE(World::equal(world.tiers.bytes(entry.master), other.data()));
}

TEST(Update, AverageIsMadeOfTheMasterBeforeTheFirstUpdate)
{
    for (const uint32_t dtype : {STW_F32, STW_BF16}) {
        Conditions setup;
        setup.average_decay = 0.75;
        World world(setup);
        const Entry entry = world.add({9000, dtype, STW_F32, 256});
        std::vector<float> before(9000);
        kernels::convert(before.data(), STW_F32, world.mirrors[entry.parameter].values.data(),
                         dtype, 9000);
        ASSERT_TRUE(world.step_and_wait().ok());
        const TensorId master = dtype == STW_F32 ? entry.parameter : entry.master;
        std::vector<float> after(9000);
        std::memcpy(after.data(), world.tiers.bytes(master).data(), 9000 * sizeof(float));
        EXPECT_NE(before, after);
        kernels::average(before.data(), after.data(), 9000, 0.75);
        EXPECT_TRUE(World::equal(world.tiers.bytes(entry.average), before.data()));
        // And not again: what is in it counts.
        std::vector<float> other(9000, 3.0F);
        world.tiers.set_bytes(entry.average, other.data());
        world.give_gradient(entry);
        ASSERT_TRUE(world.step_and_wait().ok());
        std::memcpy(after.data(), world.tiers.bytes(master).data(), 9000 * sizeof(float));
        kernels::average(other.data(), after.data(), 9000, 0.75);
        EXPECT_TRUE(World::equal(world.tiers.bytes(entry.average), other.data()));
    }
}

// The tensor has contents by then, but not of this part.
TEST(Update, APartThatComesLaterMakesItsMasterAndAverage)
{
    Conditions setup;
    setup.average_decay = 0.9;
    World world(setup);
    Entry first = world.make({9001, STW_BF16, STW_F32, 512});
    Entry second = first;
    first.element_count = 1001;
    second.element_begin = 1001;
    second.element_count = 8000;
    ASSERT_TRUE(world.optimizer->add(&first, 1).ok());
    for (uint64_t step = 1; step <= 3; ++step) {
        if (step == 2) {
            ASSERT_TRUE(world.optimizer->add(&second, 1).ok());
        }
        ASSERT_TRUE(world.step_and_wait().ok());
        world.expect_update(first, STW_HYPER_INIT, step, 1.0);
        if (step >= 2) world.expect_update(second, STW_HYPER_INIT, step, 1.0);
        world.give_gradient(first);
    }
    world.expect_same(first);
}

TEST(Update, StatesWithoutContentsAreZeros)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    world.tiers.discard(entry.states[0]);
    world.tiers.discard(entry.states[1]);
    ASSERT_TRUE(world.step_and_wait().ok());
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(entry);
}

TEST(Update, PartsHaveTheirOwnHyperParameters)
{
    World world({});
    Entry first = world.make({9001, STW_BF16, STW_F32, 512});
    Entry second = first;
    first.element_count = 1001;
    second.element_begin = 1001;
    second.element_count = 8000;
    second.group = 7;
    const Entry entries[] = {first, second};
    ASSERT_TRUE(world.optimizer->add(entries, 2).ok());
    stw_hyper other = some_hyper();
    ASSERT_TRUE(world.optimizer->set_hyper(7, other).ok());
    ASSERT_TRUE(world.step_and_wait().ok());
    world.expect_update(first, STW_HYPER_INIT, 1, 1.0);
    world.expect_update(second, other, 1, 1.0);
    world.expect_same(first);
    EXPECT_EQ(world.optimizer->count(first.parameter).value(), 1u);
}

TEST(Update, StepCountsArePerParameter)
{
    World world({});
    const Entry a = world.add({5000, STW_F32, STW_F32, 0});
    const Entry b = world.add({5000, STW_F32, STW_F32, 0});
    ASSERT_TRUE(world.optimizer->set_count(b.parameter, 41).ok());
    StepOptions only_b;
    only_b.parameters = &b.parameter;
    only_b.parameter_count = 1;
    ASSERT_TRUE(world.step_and_wait(only_b).ok());
    EXPECT_EQ(world.optimizer->count(a.parameter).value(), 0u);
    EXPECT_EQ(world.optimizer->count(b.parameter).value(), 42u);
    world.expect_update(b, STW_HYPER_INIT, 42, 1.0);
    world.expect_same(a);
    world.expect_same(b);
    EXPECT_EQ(world.tiers.contents(a.gradient), Contents::kValid);
    EXPECT_FALSE(world.optimizer->count(a.gradient).ok());
}

TEST(Update, EmptyGradientLeavesTheParameterAlone)
{
    for (const bool verdict : {false, true}) {
        World world({});
        const Entry a = world.add({9000, STW_BF16, STW_F32, 0});
        const Entry b = world.add({9000, STW_F32, STW_F32, 0});
        world.tiers.discard(a.gradient);
        ASSERT_TRUE(world.optimizer->set_hyper(0, some_hyper()).ok());
        StepOptions options;
        options.wants_verdict = verdict;
        StepResult result;
        ASSERT_TRUE(world.step_and_wait(options, &result).ok());
        EXPECT_EQ(result.updated, 1u);
        EXPECT_EQ(result.without_gradient, 1u);
        world.expect_update(b, some_hyper(), 1, 1.0);
        world.expect_same(a);
        world.expect_same(b);
        EXPECT_EQ(world.tiers.contents(a.master), Contents::kEmpty);
        EXPECT_EQ(world.optimizer->count(a.parameter).value(), 0u);
        EXPECT_FALSE(world.tiers.claimed(a.parameter));
    }
}

TEST(Update, KeptGradientsStay)
{
    World world({});
    const Entry entry = world.add({5000, STW_F32, STW_F32, 0});
    StepOptions options;
    options.flags = STW_UPDATE_KEEP_GRADIENTS;
    ASSERT_TRUE(world.step_and_wait(options).ok());
    EXPECT_TRUE(World::equal(world.tiers.bytes(entry.gradient),
                             world.mirrors[entry.parameter].gradient.data()));
}

TEST(Update, FailedChunkFailsItsTensorAlone)
{
    World world({});
    std::vector<Entry> entries;
    for (int i = 0; i < 4; ++i) entries.push_back(world.add({30000, STW_BF16, STW_F32, 0}));
    const Entry &bad = entries[1];
    world.tiers.refuse(bad.states[1], 80000, STW_ERROR_CHECKSUM);
    StepResult result;
    EXPECT_EQ(world.step_and_wait({}, &result).code(), STW_ERROR_CHECKSUM);
    for (const Entry &entry : entries) {
        const stw_status expected = entry.parameter == bad.parameter ? STW_ERROR_CHECKSUM : STW_OK;
        EXPECT_EQ(world.tiers.failed(entry.parameter), expected);
        EXPECT_EQ(world.tiers.failed(entry.master), expected);
        EXPECT_EQ(world.tiers.failed(entry.states[0]), expected);
        EXPECT_EQ(world.tiers.failed(entry.gradient), STW_OK);
        EXPECT_FALSE(world.tiers.claimed(entry.parameter));
        EXPECT_EQ(world.optimizer->count(entry.parameter).value(), expected == STW_OK ? 1u : 0u);
        if (expected != STW_OK) continue;
        world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
        world.expect_same(entry);
    }
    ASSERT_EQ(world.failures.size(), 1u);
    EXPECT_EQ(world.failures[0].tensor, bad.parameter);
    EXPECT_EQ(world.tiers.contents(bad.gradient), Contents::kValid);
    EXPECT_TRUE(world.optimizer->result(&result).ok());
    EXPECT_EQ(result.updated, 3u);
}

// The program writes what it can: the parameter and the moments. What the library makes of these it
// makes anew.
TEST(Update, AParameterThatIsWrittenAgainGoesOnAfterAFailure)
{
    for (uint32_t bits = 0; bits < 16; ++bits) {
        SCOPED_TRACE(bits);
        Conditions setup;
        setup.average_decay = (bits & 1) != 0 ? 0.75 : 0.0;
        setup.state_dtype = (bits & 2) != 0 ? STW_BF16 : STW_F32;
        World world(setup);
        const bool splits = (bits & 4) != 0;
        const uint32_t dtype = (bits & 12) == 8 ? STW_F32 : STW_BF16;
        const Entry entry = world.add({30000, dtype, STW_F32, 0, splits && dtype == STW_BF16});
        Mirror &mirror = world.mirrors[entry.parameter];
        ASSERT_TRUE(world.step_and_wait().ok());
        world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
        world.give_gradient(entry);
        world.tiers.refuse(entry.states[1], 20000 * bytes_of(setup.state_dtype), STW_ERROR_IO);
        EXPECT_EQ(world.step_and_wait().code(), STW_ERROR_IO);
        EXPECT_EQ(world.tiers.failed(entry.parameter), STW_ERROR_IO);
        for (const TensorId made : {entry.master, entry.low, entry.open, entry.average}) {
            if (made == kNone) continue;
            EXPECT_EQ(world.tiers.failed(made), STW_ERROR_IO);
        }
        EXPECT_EQ(world.step_and_wait().code(), STW_ERROR_IO) << "nothing was written yet";
        mirror.values = world.random_elements(30000, dtype);
        mirror.master.clear();
        mirror.average.clear();
        world.tiers.set_bytes(entry.parameter, mirror.values.data());
        EXPECT_EQ(world.step_and_wait().code(), STW_ERROR_IO) << "the moments were not";
        world.tiers.set_bytes(entry.parameter, mirror.values.data());
        const std::vector<float> zeros(30000);
        for (uint32_t i = 0; i < 2; ++i) {
            mirror.states[i] = zeros;
            world.tiers.set_bytes(entry.states[i], zeros.data());
        }
        for (uint64_t step = 2; step <= 3; ++step) {
            ASSERT_TRUE(world.step_and_wait().ok());
            world.expect_update(entry, STW_HYPER_INIT, step, 1.0);
            world.expect_same(entry);
            world.give_gradient(entry);
        }
        EXPECT_EQ(world.optimizer->count(entry.parameter).value(), 3u);
    }
}

// The master that the program wrote after the failure counts, as it does otherwise.
TEST(Update, AMasterThatIsWrittenAfterAFailureCounts)
{
    World world({});
    const Entry entry = world.add({30000, STW_BF16, STW_F32, 0});
    Mirror &mirror = world.mirrors[entry.parameter];
    world.tiers.refuse(entry.states[1], 80000, STW_ERROR_IO);
    EXPECT_EQ(world.step_and_wait().code(), STW_ERROR_IO);
    world.tiers.set_bytes(entry.parameter, mirror.values.data());
    mirror.master.assign(30000, 0.3F);
    world.tiers.set_bytes(entry.master, mirror.master.data());
    const std::vector<float> zeros(30000);
    for (const TensorId state : {entry.states[0], entry.states[1]})
        world.tiers.set_bytes(state, zeros.data());
    ASSERT_TRUE(world.step_and_wait().ok());
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(entry);
}

// Nothing is half done, and yet nobody takes it for what the step was to make of it.
TEST(Update, AnUpdateThatDoesNotBeginChangesNothingAndIsTold)
{
    World world({});
    const Entry bad = world.add({30000, STW_BF16, STW_F32, 0});
    const Entry good = world.add({9000, STW_F32, STW_F32, 0});
    world.tiers.refuse(bad.gradient, 0, STW_ERROR_CHECKSUM);
    EXPECT_EQ(world.step_and_wait().code(), STW_ERROR_CHECKSUM);
    world.expect_update(good, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(bad);
    world.expect_same(good);
    EXPECT_EQ(world.tiers.failed(bad.parameter), STW_OK);
    EXPECT_EQ(world.tiers.missed(bad.parameter).code(), STW_ERROR_CHECKSUM);
    EXPECT_NE(std::string(world.tiers.missed(bad.parameter).sentence()).find("did not begin"),
              std::string::npos);
    EXPECT_EQ(world.tiers.missed(good.parameter).code(), STW_OK);
    EXPECT_EQ(world.optimizer->count(bad.parameter).value(), 0u);
    ASSERT_EQ(world.failures.size(), 1u);
    EXPECT_EQ(world.failures[0].tensor, bad.parameter);
}

TEST(Update, ParameterWithoutContentsIsAnError)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    world.tiers.discard(entry.parameter);
    EXPECT_EQ(world.step_and_wait().code(), STW_ERROR_EMPTY);
    EXPECT_EQ(world.optimizer->count(entry.parameter).value(), 0u);
}

TEST(Update, OnlyStatesLeaveFirst)
{
    World world({});
    const Entry entry = world.add({9000, STW_BF16, STW_F32, 0});
    ASSERT_TRUE(world.step_and_wait().ok());
    EXPECT_EQ(world.tiers.far_releases(entry.parameter), 0u);
    EXPECT_EQ(world.tiers.far_releases(entry.gradient), 0u);
    EXPECT_GT(world.tiers.far_releases(entry.master), 0u);
    EXPECT_EQ(world.tiers.far_releases(entry.states[0]), world.tiers.far_releases(entry.master));
    EXPECT_EQ(world.tiers.far_releases(entry.states[1]), world.tiers.far_releases(entry.master));
}

// -------------------------------------------------------------------- the caller's own kernel ----

struct Seen {
    std::vector<std::atomic<uint32_t>> times = std::vector<std::atomic<uint32_t>>(30000);
    std::atomic<uint32_t> wrong{0};
    stw_status refuses_at_20000 = STW_OK;
};

stw_status halve(void *user, const stw_update_chunk *chunk)
{
    Seen &seen = *static_cast<Seen *>(user);
    const bool right = chunk->struct_size == sizeof *chunk && chunk->state_count == 1 &&
                       chunk->step == 6 && chunk->gradient_scale == 0.5 &&
                       chunk->hyper->lr == 0.25 &&
                       chunk->parameter == reinterpret_cast<stw_tensor *>(8);
    if (!right) ++seen.wrong;
    for (uint64_t i = 0; i < chunk->element_count; ++i) {
        ++seen.times[chunk->element_begin + i];
        chunk->master[i] *= 0.5F;
        chunk->states[0][i] += 1.0F;
    }
    const bool there =
        chunk->element_begin <= 20000 && 20000 < chunk->element_begin + chunk->element_count;
    return there ? seen.refuses_at_20000 : STW_OK;
}

struct CustomWorld {
    CustomWorld()
    {
        custom.struct_size = sizeof custom;
        custom.state_count = 1;
        custom.state_names = names;
        custom.update = halve;
        custom.user = &seen;
        Conditions setup;
        setup.algorithm = STW_OPTIMIZER_CUSTOM;
        setup.custom = &custom;
        world = std::make_unique<World>(setup);
        entry = world->make({30000, STW_BF16, STW_F32, 512});
        entry.handle = reinterpret_cast<stw_tensor *>(8);
        stw_hyper hyper = STW_HYPER_INIT;
        hyper.lr = 0.25;
        EXPECT_TRUE(world->optimizer->add(&entry, 1).ok());
        EXPECT_TRUE(world->optimizer->set_hyper(0, hyper).ok());
        EXPECT_TRUE(world->optimizer->set_count(entry.parameter, 5).ok());
    }
    Status step()
    {
        StepOptions options;
        options.gradient_scale = 0.5;
        return world->step_and_wait(options);
    }
    const char *names[1] = {"mine"};
    Seen seen;
    stw_custom_update custom{};
    std::unique_ptr<World> world;
    Entry entry;
};

TEST(CustomUpdate, SeesEachElementOnce)
{
    CustomWorld custom;
    ASSERT_TRUE(custom.step().ok());
    EXPECT_EQ(custom.seen.wrong, 0u);
    for (const auto &times : custom.seen.times) ASSERT_EQ(times, 1u);
    // The master was halved and rounded into the parameter.
    std::vector<float> master(30000);
    const std::vector<uint8_t> &before = custom.world->mirrors[custom.entry.parameter].values;
    kernels::convert(master.data(), STW_F32, before.data(), STW_BF16, 30000);
    for (float &value : master) value *= 0.5F;
    EXPECT_TRUE(World::equal(custom.world->tiers.bytes(custom.entry.master), master.data()));
    std::vector<uint8_t> values(60000);
    kernels::convert(values.data(), STW_BF16, master.data(), STW_F32, 30000);
    EXPECT_EQ(custom.world->tiers.bytes(custom.entry.parameter), values);
    const std::vector<float> ones(30000, 1.0F);
    EXPECT_TRUE(World::equal(custom.world->tiers.bytes(custom.entry.states[0]), ones.data()));
}

TEST(CustomUpdate, ErrorFailsTheParameter)
{
    CustomWorld custom;
    custom.seen.refuses_at_20000 = STW_ERROR_PEER;
    const Status status = custom.step();
    EXPECT_EQ(status.code(), STW_ERROR_PEER);
    EXPECT_NE(std::string(status.sentence()).find("caller's update"), std::string::npos);
    EXPECT_EQ(custom.world->tiers.failed(custom.entry.parameter), STW_ERROR_PEER);
    EXPECT_EQ(custom.world->optimizer->count(custom.entry.parameter).value(), 5u);
}

}  // namespace
}  // namespace stepwell::update::test
