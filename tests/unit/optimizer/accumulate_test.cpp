// SPDX-License-Identifier: Apache-2.0
// Sums into gradients: in the order of the calls, the first one taken as it is, a failure for good.
#include "model.h"

#include <atomic>
#include <deque>

namespace stepwell::update::test {
namespace {

struct Done {
    std::atomic<uint32_t> calls{0};
    std::atomic<stw_status> code{STW_OK};
};

void on_done(void *user, const Status &status)
{
    Done &done = *static_cast<Done *>(user);
    if (!status.ok()) done.code = status.code();
    ++done.calls;
}

constexpr uint64_t kElements = 20001;

Accumulation contribution(World &world, TensorId gradient, const std::vector<uint8_t> &values,
                          Done &done)
{
    Accumulation sum;
    sum.gradient = gradient;
    sum.gradient_dtype = STW_F16;
    sum.scratch = world.tiers.create(values.size(), 256, false);
    sum.scratch_dtype = STW_F32;
    sum.element_count = sum.gradient_elements = kElements;
    sum.scale = 0.5;
    sum.done = on_done;
    sum.done_user = &done;
    world.tiers.set_bytes(sum.scratch, values.data());
    return sum;
}

// The same from memory of the host, which outlives it.
Accumulation from_memory(const Accumulation &sum, const std::vector<uint8_t> &values)
{
    Accumulation made = sum;
    made.scratch = kNone;
    made.memory = values.data();
    return made;
}

TEST(Accumulate, AddsInTheOrderOfTheCalls)
{
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        Conditions conditions;
        conditions.seed = seed;
        conditions.window_blocks = 2 + seed;
        conditions.tier_threads = seed % 4;
        World world(conditions);
        const TensorId gradient = world.tiers.create(kElements * 2, 512, false);
        if (seed % 2 == 0) world.devices.move_home(gradient, kDevice);
        std::vector<uint8_t> expected(kElements * 2);
        Done done;
        std::vector<Accumulation> sums;
        std::deque<std::vector<uint8_t>> kept;
        for (int i = 0; i < 6; ++i) {  // rounding to fp16 makes every order another sum
            const std::vector<uint8_t> &values =
                kept.emplace_back(world.random_elements(kElements, STW_F32));
            kernels::accumulate(i == 0 ? kernels::Reduce::kFirst : kernels::Reduce::kAdd,
                                expected.data(), STW_F16, values.data(), STW_F32, kElements, 0.5);
            sums.push_back(contribution(world, gradient, values, done));
            if (world.random() % 2 == 0) sums.back() = from_memory(sums.back(), values);
        }
        world.tiers.pause();
        for (const Accumulation &sum : sums) {
            ASSERT_TRUE(world.pipeline->accumulate(sum).ok());
            EXPECT_TRUE(sum.scratch == kNone || world.tiers.claimed(sum.scratch));
        }
        EXPECT_TRUE(world.pipeline->pending(gradient));
        world.tiers.resume();
        ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
        EXPECT_EQ(done.calls, 6u);
        EXPECT_EQ(world.tiers.bytes(gradient), expected);
        EXPECT_FALSE(world.pipeline->pending(gradient));
        EXPECT_FALSE(world.tiers.claimed(gradient));
    }
}

// The blocks that a first sum writes are not filled with zeros before. Its first piece is requested
// before it is known to be the first sum.
TEST(Accumulate, TheFirstSumAsksForRoomAlone)
{
    World world(Conditions{});
    const TensorId gradient = world.tiers.create(kElements * 2, 0, false);
    const std::vector<uint8_t> values = world.random_elements(kElements, STW_F32);
    Done done;
    const Accumulation sum = from_memory(contribution(world, gradient, values, done), values);
    std::vector<std::vector<Access>> asked(2);
    for (std::vector<Access> &each : asked) {
        const size_t before = world.tiers.events().size();
        ASSERT_TRUE(world.pipeline->accumulate(sum).ok());
        ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
        const std::vector<FakeTiers::Event> events = world.tiers.events();
        for (size_t i = before; i < events.size(); ++i) {
            const bool grants = events[i].kind == FakeTiers::Event::kGrant;
            if (grants && events[i].byte_begin > 0) each.push_back(events[i].access);
        }
    }
    ASSERT_GT(asked[0].size(), 1u);
    EXPECT_EQ(asked[0], std::vector<Access>(asked[0].size(), Access::kWrite));
    EXPECT_EQ(asked[1], std::vector<Access>(asked[0].size(), Access::kReadWrite));
    EXPECT_EQ(done.calls, 2u);
}

// Of two threads that found a tensor empty, the second asks for zeros after the first has written.
TEST(Accumulate, ZerosLeaveContentsAsTheyAre)
{
    World world({});
    const TensorId tensor = world.tiers.create(kElements * 2, 512, false);
    ASSERT_TRUE(world.pipeline->zero(tensor, kElements * 2).ok());
    ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
    EXPECT_EQ(world.tiers.bytes(tensor), std::vector<uint8_t>(kElements * 2));
    const std::vector<uint8_t> written = world.random_elements(kElements, STW_F16);
    world.tiers.set_bytes(tensor, written.data());
    ASSERT_TRUE(world.pipeline->zero(tensor, kElements * 2).ok());
    ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
    EXPECT_EQ(world.tiers.bytes(tensor), written);
}

// Zeros around the first; blocks of gradient and contribution end at different elements.
TEST(Accumulate, APartIsAddedWhereItBegins)
{
    for (const uint64_t begin : {0u, 1u, 4095u, 12000u}) {
        World world({});
        const TensorId gradient = world.tiers.create(kElements * 2, 512, false);
        std::vector<uint8_t> expected(kElements * 2);
        Done done;
        const uint64_t counts[] = {kElements - begin - 1, 3000};
        std::vector<uint8_t> kept[2];
        for (int i = 0; i < 2; ++i) {
            kept[i] = world.random_elements(counts[i], STW_F32);
            const std::vector<uint8_t> &values = kept[i];
            kernels::accumulate(i == 0 ? kernels::Reduce::kFirst : kernels::Reduce::kAdd,
                                expected.data() + 2 * begin, STW_F16, values.data(), STW_F32,
                                counts[i], 0.5);
            Accumulation sum = contribution(world, gradient, values, done);
            sum.element_begin = begin;
            sum.element_count = counts[i];
            if (begin != 4095) sum = from_memory(sum, values);
            ASSERT_TRUE(world.pipeline->accumulate(sum).ok());
        }
        ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
        EXPECT_EQ(world.tiers.bytes(gradient), expected) << begin;
    }
}

TEST(Accumulate, FailureFailsTheGradient)
{
    World world({});
    const TensorId gradient = world.tiers.create(kElements * 2, 512, false);
    Done done;
    const Accumulation sum =
        contribution(world, gradient, world.random_elements(kElements, STW_F32), done);
    world.tiers.refuse(sum.scratch, 70000, STW_ERROR_IO);
    ASSERT_TRUE(world.pipeline->accumulate(sum).ok());
    ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
    EXPECT_EQ(done.calls, 1u);
    EXPECT_EQ(done.code, STW_ERROR_IO);
    EXPECT_EQ(world.tiers.failed(gradient), STW_ERROR_IO);
    ASSERT_EQ(world.failures.size(), 1u);
    EXPECT_EQ(world.failures[0].tensor, gradient);
}

// The step was asked for between two sums, and sees the first alone.
TEST(Accumulate, StandsInLineWithSteps)
{
    World world({});
    const Entry entry = world.add({kElements, STW_F32, STW_F16, 0});
    world.tiers.discard(entry.gradient);
    Done done;
    const std::vector<uint8_t> first = world.random_elements(kElements, STW_F32);
    const std::vector<uint8_t> second = world.random_elements(kElements, STW_F32);
    const Accumulation sums[] = {contribution(world, entry.gradient, first, done),
                                 contribution(world, entry.gradient, second, done)};
    world.tiers.pause();
    ASSERT_TRUE(world.pipeline->accumulate(sums[0]).ok());
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    ASSERT_TRUE(world.pipeline->accumulate(sums[1]).ok());
    // What is asked for last is waited for: it takes the others along.
    world.pipeline->prefer(entry.gradient);
    world.tiers.resume();
    ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
    std::vector<uint8_t> &gradient = world.mirrors[entry.parameter].gradient;
    kernels::accumulate(kernels::Reduce::kFirst, gradient.data(), STW_F16, first.data(), STW_F32,
                        kElements, 0.5);
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(entry);
    kernels::accumulate(kernels::Reduce::kFirst, gradient.data(), STW_F16, second.data(), STW_F32,
                        kElements, 0.5);
    EXPECT_EQ(world.tiers.bytes(entry.gradient), gradient);
}

TEST(Accumulate, RefusesWhatIsNoSum)
{
    World world({});
    Done done;
    const TensorId gradient = world.tiers.create(kElements * 2, 0, false);
    Accumulation sum =
        contribution(world, gradient, world.random_elements(kElements, STW_F32), done);
    sum.scratch_dtype = STW_I32;
    EXPECT_EQ(world.pipeline->accumulate(sum).code(), STW_ERROR_INVALID);
    sum.scratch_dtype = STW_F32;
    sum.element_count = 0;
    EXPECT_EQ(world.pipeline->accumulate(sum).code(), STW_ERROR_INVALID);
    sum.element_count = kElements;
    sum.element_begin = 1;
    EXPECT_EQ(world.pipeline->accumulate(sum).code(), STW_ERROR_INVALID);
    EXPECT_EQ(done.calls, 0u);
}

}  // namespace
}  // namespace stepwell::update::test
