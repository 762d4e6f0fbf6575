// SPDX-License-Identifier: Apache-2.0
// Claims about the learned order of a phase.
#include "lib/schedule/trace.h"

#include <gtest/gtest.h>

namespace stepwell::schedule {
namespace {

using residency::kNever;

// Two layers there and back: the order of a forward and a backward pass.
void pass(Trace &trace)
{
    for (const residency::TensorId tensor : {1u, 2u, 2u, 1u}) trace.access(tensor);
}

TEST(Trace, FirstStepForecastsNothing)
{
    Trace trace;
    EXPECT_FALSE(trace.begin_step(0));
    EXPECT_EQ(trace.next_use(1), kNever);
    pass(trace);
    EXPECT_EQ(trace.next_use(1), kNever);
}

TEST(Trace, DistanceCountsToTheNextUseAndIntoTheNextStep)
{
    Trace trace;
    trace.begin_step(0);
    pass(trace);
    trace.end_step(0, true);
    EXPECT_TRUE(trace.begin_step(0));
    EXPECT_EQ(trace.next_use(1), 0u);
    EXPECT_EQ(trace.next_use(2), 1u);
    trace.access(1);
    EXPECT_EQ(trace.next_use(1), 2u);
    trace.access(2);
    trace.access(2);
    trace.access(1);
    EXPECT_EQ(trace.next_use(2), 1u);  // in the next step
}

TEST(Trace, ADeviationDoesNotMoveTheForecast)
{
    Trace trace;
    trace.begin_step(0);
    pass(trace);
    trace.end_step(0, true);
    trace.begin_step(0);
    trace.access(1);
    trace.access(99);
    EXPECT_EQ(trace.next_use(99), kNever);
    EXPECT_EQ(trace.next_use(2), 0u);
}

TEST(Trace, AnAbortedStepTeachesNothing)
{
    Trace trace;
    trace.begin_step(0);
    pass(trace);
    trace.end_step(0, true);
    trace.begin_step(0);
    trace.access(7);
    trace.end_step(0, false);
    trace.begin_step(0);
    EXPECT_EQ(trace.next_use(7), kNever);
    EXPECT_EQ(trace.next_use(1), 0u);
}

TEST(Trace, PhasesLearnApart)
{
    Trace trace;
    trace.begin_step(0);
    pass(trace);
    trace.end_step(0, true);
    EXPECT_FALSE(trace.begin_step(1));
    trace.access(5);
    trace.end_step(1, true);
    EXPECT_TRUE(trace.begin_step(0));
    EXPECT_EQ(trace.next_use(5), kNever);
}

TEST(Trace, LearnsNoMoreThanItsLimitAllows)
{
    Trace trace;
    trace.set_limit(4096);
    trace.begin_step(0);
    for (residency::TensorId tensor = 0; tensor < 10000; ++tensor) trace.access(tensor % 50);
    EXPECT_LE(trace.metadata_bytes(), 4096u);
    trace.end_step(0, true);
    EXPECT_LE(trace.metadata_bytes(), 4096u);
    EXPECT_TRUE(trace.begin_step(0));
    EXPECT_EQ(trace.next_use(49), 49u);
}

}  // namespace
}  // namespace stepwell::schedule
