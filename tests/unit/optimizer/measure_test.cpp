// SPDX-License-Identifier: Apache-2.0
// Gradients that are measured by those who write them: the verdict has the same bits and reads
// nothing, and whatever changed since is scanned.
#include "model.h"

#include <array>

namespace stepwell::update::test {
namespace {

const Shape kShapes[] = {
    {300001, STW_F32, STW_F32, 0}, {20001, STW_BF16, STW_BF16, 2048},   {5, STW_F32, STW_F32, 64},
    {50000, STW_F32, STW_F16, 64}, {9000, STW_F16, STW_F32, 12 * 1024},
};

StepOptions with_verdict()
{
    StepOptions options;
    options.clip_norm = 1.0;
    options.wants_verdict = true;
    return options;
}

// As the runtime does when a view of the gradient ends. False: nobody wants it.
bool measure_if_wanted(World &world, const Entry &entry)
{
    std::vector<ElementRange> parts;
    const uint64_t order = world.pipeline->wants_measure(entry.gradient, parts);
    if (order == 0) return false;
    const std::vector<uint8_t> &gradient = world.mirrors[entry.parameter].gradient;
    world.pipeline->measured(entry.gradient, order,
                             measure(gradient.data(), entry.gradient_dtype, parts),
                             world.tiers.version(entry.gradient));
    return true;
}

uint64_t scanned(const World &world)
{
    return world.pipeline->stats().scanned_bytes;
}

struct Both {
    World measured{Conditions{}};
    World scanned{Conditions{}};
    std::vector<Entry> entries;  // the same in both

    void add(const Shape &shape)
    {
        entries.push_back(measured.add(shape));
        scanned.add(shape);
    }
    // One parameter, not added yet, in two parts.
    std::array<Entry, 2> make_parts()
    {
        const Entry whole = measured.make({40000, STW_F32, STW_F32, 0});
        scanned.make({40000, STW_F32, STW_F32, 0});
        entries = {whole};
        std::array<Entry, 2> parts = {whole, whole};
        parts[0].element_count = 10001;
        parts[1].element_begin = 10001;
        parts[1].element_count = 40000 - 10001;
        return parts;
    }
    void write(bool measures)
    {
        for (const Entry &entry : entries) {
            measured.give_gradient(entry);
            scanned.give_gradient(entry);
            if (measures) {
                EXPECT_TRUE(measure_if_wanted(measured, entry));
            }
        }
    }
    void step(StepResult &result)
    {
        StepResult expected;
        ASSERT_TRUE(measured.optimizer->step(with_verdict(), &result).ok());
        ASSERT_TRUE(scanned.optimizer->step(with_verdict(), &expected).ok());
        EXPECT_EQ(result.norm, expected.norm);
        EXPECT_EQ(result.clip_coefficient, expected.clip_coefficient);
        EXPECT_EQ(result.updated, entries.size());
        ASSERT_TRUE(measured.optimizer->wait(UINT64_MAX).ok());
        ASSERT_TRUE(scanned.optimizer->wait(UINT64_MAX).ok());
        for (const Entry &entry : entries) {
            EXPECT_EQ(measured.tiers.bytes(entry.parameter), scanned.tiers.bytes(entry.parameter));
        }
    }
    // A first step asks for it; the second reads nothing for its verdict.
    void expect_measured()
    {
        StepResult result;
        step(result);
        write(true);
        const uint64_t before = measured.pipeline->stats().scanned_bytes;
        step(result);
        EXPECT_EQ(measured.pipeline->stats().scanned_bytes, before);
    }
};

TEST(Measure, TheVerdictHasTheSameBitsAndReadsNothing)
{
    Both both;
    for (const Shape &shape : kShapes) both.add(shape);
    StepResult result;
    both.step(result);
    for (int again = 0; again < 3; ++again) {
        both.write(true);
        const uint64_t before = scanned(both.measured);
        const uint64_t scanned_before = scanned(both.scanned);
        both.step(result);
        EXPECT_EQ(scanned(both.measured), before);
        EXPECT_GT(scanned(both.scanned), scanned_before);
    }
    EXPECT_EQ(both.measured.pipeline->stats().measured, 3 * both.entries.size());
}

TEST(Measure, PartsOfAPackedParameterHaveTheirOwnSums)
{
    Both both;
    std::array<Entry, 2> parts = both.make_parts();
    parts[1].group = 1;
    ASSERT_TRUE(both.measured.optimizer->add(parts.data(), 2).ok());
    ASSERT_TRUE(both.scanned.optimizer->add(parts.data(), 2).ok());
    both.expect_measured();
}

// As another part of it came, and when one did not come after all.
TEST(Measure, APartThatCameLaterIsMeasuredToo)
{
    Both both;
    std::array<Entry, 2> parts = both.make_parts();
    for (World *world : {&both.measured, &both.scanned}) {
        ASSERT_TRUE(world->optimizer->add(&parts[0], 1).ok());
        Entry twice[2] = {parts[1], parts[1]};
        EXPECT_EQ(world->optimizer->add(twice, 2).code(), STW_ERROR_EXISTS);
        ASSERT_TRUE(world->optimizer->add(&parts[1], 1).ok());
    }
    both.expect_measured();
}

TEST(Measure, IsAskedForOnceAStepHasWaitedForANorm)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    EXPECT_FALSE(measure_if_wanted(world, entry));
    ASSERT_TRUE(world.step_and_wait().ok());  // without a verdict
    world.give_gradient(entry);
    EXPECT_FALSE(measure_if_wanted(world, entry));
    ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
    world.give_gradient(entry);
    EXPECT_TRUE(measure_if_wanted(world, entry));
    ASSERT_TRUE(world.step_and_wait().ok());
    world.give_gradient(entry);
    EXPECT_FALSE(measure_if_wanted(world, entry));
    EXPECT_FALSE(measure_if_wanted(world, {}));  // nobody's gradient
}

// These read it soon, on threads that its writer does not wait for.
TEST(Measure, IsNotAskedForWhereUpdatesAreEarly)
{
    Conditions conditions;
    conditions.alone = true;
    World world(conditions);
    const Entry entry = world.add({20000, STW_F32, STW_F32, 0});
    const StepOptions early = early_of(&entry.parameter, 1);
    StepOptions verdict;
    verdict.wants_verdict = true;
    world.give_gradient(entry);
    ASSERT_TRUE(world.step_and_wait(verdict).ok());
    for (int round = 0; round < 3; ++round) {
        world.give_gradient(entry);
        EXPECT_EQ(measure_if_wanted(world, entry), round == 0) << round;
        ASSERT_TRUE(world.optimizer->step(early, nullptr).ok());
        ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
        StepResult result;
        ASSERT_TRUE(world.step_and_wait(verdict, &result).ok());
        EXPECT_EQ(result.early, 1U) << round;
    }
}

TEST(Measure, WhatWasWrittenSinceIsScannedAndNotMeasuredForAWhile)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
    world.give_gradient(entry);
    ASSERT_TRUE(measure_if_wanted(world, entry));
    world.give_gradient(entry);
    const uint64_t before = scanned(world);
    StepResult result;
    ASSERT_TRUE(world.step_and_wait(with_verdict(), &result).ok());
    EXPECT_EQ(scanned(world), before + 9000 * sizeof(float));
    const std::vector<uint8_t> &gradient = world.mirrors[entry.parameter].gradient;
    EXPECT_EQ(result.norm, std::sqrt(measure(gradient.data(), STW_F32, {{0, 9000}}).sums[0]));
    int steps_without = 0;
    for (int step = 0; step < 40; ++step) {
        world.give_gradient(entry);
        if (measure_if_wanted(world, entry)) break;
        ++steps_without;
        ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
    }
    EXPECT_GE(steps_without, 8);
    EXPECT_LT(steps_without, 40);
}

TEST(Measure, OfSeveralWritesTheLastOneIsMeasured)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
    for (int step = 0; step < 3; ++step) {
        int measured = 0;
        for (int write = 0; write < 4; ++write) {
            world.give_gradient(entry);
            measured += measure_if_wanted(world, entry);
        }
        EXPECT_EQ(measured, step == 0 ? 4 : 1) << step;
        const uint64_t before = scanned(world);
        ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
        EXPECT_EQ(scanned(world), before);
    }
}

// A norm first, and the step with the factor that came of it: one scan, by the writer.
TEST(Measure, HoldsForTheStepBehindOneThatOnlyMeasures)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
    StepOptions measures = with_verdict();
    measures.flags = STW_UPDATE_MEASURE;
    for (int step = 0; step < 4; ++step) {
        int measured = 0;
        for (int write = 0; write < 3; ++write) {
            world.give_gradient(entry);
            measured += measure_if_wanted(world, entry);
        }
        EXPECT_EQ(measured, step == 0 ? 3 : 1) << step;
        const uint64_t before = scanned(world);
        ASSERT_TRUE(world.step_and_wait(measures).ok());
        ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
        EXPECT_EQ(scanned(world), before);
    }
}

TEST(Measure, WhatSomebodyMayStillChangeIsScanned)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
    world.give_gradient(entry);
    ASSERT_TRUE(measure_if_wanted(world, entry));
    world.tiers.open_view(entry.gradient);
    StepOptions options;
    options.clip_norm = 1.0;
    ASSERT_TRUE(world.optimizer->step(options, nullptr).ok());
    EXPECT_EQ(world.optimizer->result(nullptr).code(), STW_PENDING);
    world.tiers.close_view(entry.gradient);
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
}

TEST(Measure, AStepThatIsSkippedGivesEverythingBack)
{
    World world({});
    std::vector<Entry> entries;
    for (const Shape &shape : kShapes) entries.push_back(world.add(shape));
    ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
    for (const Entry &entry : entries) {
        world.give_gradient(entry);
        if (entry.gradient == entries[0].gradient) {
            std::vector<uint8_t> &gradient = world.mirrors[entry.parameter].gradient;
            const float infinity = std::numeric_limits<float>::infinity();
            std::memcpy(gradient.data() + 4000, &infinity, sizeof infinity);
            world.tiers.set_bytes(entry.gradient, gradient.data());
        }
        ASSERT_TRUE(measure_if_wanted(world, entry));
    }
    StepOptions options = with_verdict();
    options.flags = STW_UPDATE_SKIP_NONFINITE;
    StepResult result;
    EXPECT_EQ(world.optimizer->step(options, &result).code(), STW_SKIPPED);
    EXPECT_EQ(result.nonfinite, 1u);
    EXPECT_FALSE(world.optimizer->pending());
    for (const Entry &entry : entries) {
        EXPECT_FALSE(world.tiers.claimed(entry.parameter));
        EXPECT_EQ(world.tiers.contents(entry.gradient), Contents::kEmpty);
    }
}

// Adds `values`, of F32, to the entry's gradient, from a tensor or from memory, and waits.
void contribute(World &world, const Entry &entry, const std::vector<uint8_t> &values,
                bool from_memory = false)
{
    Accumulation sum;
    sum.gradient = entry.gradient;
    sum.gradient_dtype = entry.gradient_dtype;
    sum.scratch = world.tiers.create(values.size(), 0, false);
    sum.scratch_dtype = STW_F32;
    sum.element_count = sum.gradient_elements = values.size() / sizeof(float);
    world.tiers.set_bytes(sum.scratch, values.data());
    if (from_memory) {
        sum.scratch = kNone;
        sum.memory = values.data();
    }
    ASSERT_TRUE(world.pipeline->accumulate(sum).ok());
    ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
}

double norm_of(World &world, const Entry &entry, uint64_t elements)
{
    const std::vector<uint8_t> bytes = world.tiers.bytes(entry.gradient);
    return std::sqrt(measure(bytes.data(), entry.gradient_dtype, {{0, elements}}).sums[0]);
}

// What is summed is not written by a view: the last sum measures it, in as many chunks as it takes,
// with the bits of a scan.
TEST(Measure, TheLastSumIntoAGradientMeasuresIt)
{
    for (uint32_t i = 0; i < 2 * std::size(kShapes); ++i) {
        const Shape &shape = kShapes[i / 2];
        const uint64_t elements = shape.elements;
        World world({});
        Entry entry = world.make(shape);
        const uint64_t offset = i % 2 == 0 ? 0 : 256;
        const uint64_t bytes = elements * (entry.gradient_dtype == STW_F32 ? 4 : 2);
        entry.gradient = world.tiers.create(bytes, offset, false);
        world.give_gradient(entry);
        ASSERT_TRUE(world.optimizer->add(&entry, 1).ok());
        // Else its blocks end between those of a scan.
        const bool measures =
            offset == 0 || offset + elements * sizeof(float) <= world.tiers.block_bytes();
        ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
        for (int step = 0; step < 3; ++step) {
            for (int batch = 0; batch < 2; ++batch) {
                contribute(world, entry, world.random_elements(elements, STW_F32), step == batch);
            }
            const uint64_t before = scanned(world);
            const double expected = norm_of(world, entry, elements);
            StepResult result;
            ASSERT_TRUE(world.step_and_wait(with_verdict(), &result).ok());
            EXPECT_EQ(result.norm, expected) << elements;
            EXPECT_EQ(scanned(world) == before, measures) << elements;
        }
    }
}

// Of a sum into a part of the gradient, and of one behind which a view wrote.
TEST(Measure, WhatASumDidNotWriteOrIsNotTheLastOfIsScanned)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
    contribute(world, entry, world.random_elements(9000, STW_F32));
    world.give_gradient(entry);
    uint64_t before = scanned(world);
    double expected = norm_of(world, entry, 9000);
    StepResult result;
    ASSERT_TRUE(world.step_and_wait(with_verdict(), &result).ok());
    EXPECT_EQ(result.norm, expected);
    EXPECT_EQ(scanned(world), before + 9000 * sizeof(float));
    for (int step = 0; step < 40; ++step) {  // until it is wanted again
        const std::vector<uint8_t> values = world.random_elements(5000, STW_F32);
        Accumulation part;
        part.gradient = entry.gradient;
        part.gradient_dtype = part.scratch_dtype = STW_F32;
        part.scratch = world.tiers.create(values.size(), 0, false);
        part.element_begin = 4000;
        part.element_count = 5000;
        part.gradient_elements = 9000;
        world.tiers.set_bytes(part.scratch, values.data());
        ASSERT_TRUE(world.pipeline->accumulate(part).ok());
        ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
        before = scanned(world);
        expected = norm_of(world, entry, 9000);
        ASSERT_TRUE(world.step_and_wait(with_verdict(), &result).ok());
        EXPECT_EQ(result.norm, expected);
        EXPECT_EQ(scanned(world), before + 9000 * sizeof(float));
    }
}

TEST(Measure, OfAnOptimizerThatIsGoneIsNobodys)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    ASSERT_TRUE(world.step_and_wait(with_verdict()).ok());
    world.give_gradient(entry);
    std::vector<ElementRange> parts;
    const uint64_t order = world.pipeline->wants_measure(entry.gradient, parts);
    ASSERT_NE(order, 0u);
    world.optimizer.reset();
    const std::vector<uint8_t> &gradient = world.mirrors[entry.parameter].gradient;
    world.pipeline->measured(entry.gradient, order, measure(gradient.data(), STW_F32, parts),
                             world.tiers.version(entry.gradient));
    EXPECT_EQ(world.pipeline->stats().measured, 0u);
}

}  // namespace
}  // namespace stepwell::update::test
