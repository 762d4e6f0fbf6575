// SPDX-License-Identifier: Apache-2.0
// Claims about the bandwidth meter.
#include "lib/store/bandwidth.h"

#include <gtest/gtest.h>

namespace stepwell::store {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(BandwidthMeter, CountsOnlyTimeWithSomethingInFlight)
{
    BandwidthMeter meter;
    meter.begin(1000);
    meter.begin(1500);
    meter.end(10, 2000);
    meter.end(10, 3000);
    meter.begin(1'000'000);
    EXPECT_EQ(meter.busy_ns(1'000'500), 2500u);
    meter.end(10, 1'001'000);
    EXPECT_EQ(meter.busy_ns(9'000'000), 3000u);
    EXPECT_EQ(meter.bytes(), 30u);
}

TEST(BandwidthMeter, WhatIsExpectedStandsUntilSamplesCorrectItByAQuarter)
{
    BandwidthMeter meter;
    meter.expect(1000 * kMiB);
    EXPECT_EQ(meter.bytes_per_s(), 1000 * kMiB);
    meter.begin(0);
    meter.end(200 * kMiB, 1'000'000'000);
    EXPECT_EQ(meter.bytes_per_s(), 800 * kMiB);
    EXPECT_EQ(meter.bytes(), 200 * kMiB);
}

TEST(BandwidthMeter, FirstSampleIsTakenWholeLaterOnesByAQuarter)
{
    BandwidthMeter meter;
    meter.begin(0);
    meter.end(16 * kMiB, 1'000'000'000);
    EXPECT_EQ(meter.bytes_per_s(), 16 * kMiB);
    meter.begin(2'000'000'000);
    meter.end(32 * kMiB, 3'000'000'000);
    EXPECT_EQ(meter.bytes_per_s(), 20 * kMiB);
}

TEST(BandwidthMeter, SaysNothingBeforeASampleIsComplete)
{
    BandwidthMeter meter;
    meter.begin(0);
    meter.end(kMiB, 1'000'000);
    EXPECT_EQ(meter.bytes_per_s(), 0u);
}

TEST(BandwidthMeter, ABunchOfCompletionsIsOneSample)
{
    BandwidthMeter meter;
    for (int i = 0; i < 32; ++i) meter.begin(0);
    for (int i = 0; i < 32; ++i) meter.end(2 * kMiB, 16'000'000 + 100 * i);
    // 16 MiB of them took 16 ms, the others nothing: that must not look like a faster link.
    EXPECT_NEAR(static_cast<double>(meter.bytes_per_s()), 1000.0 * kMiB, 0.001 * 1000.0 * kMiB);
}

TEST(BandwidthMeter, ATimeThatGoesBackCountsNothing)
{
    BandwidthMeter meter;
    meter.begin(5000);
    meter.begin(4000);
    meter.end(1, 3000);
    meter.end(1, 6000);
    EXPECT_EQ(meter.busy_ns(7000), 1000u);
}

}  // namespace
}  // namespace stepwell::store
