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

// As often as requested, `bytes` in each `ns`, one request at a time.
uint64_t transfer(BandwidthMeter &meter, uint64_t now, uint64_t bytes, uint64_t ns, int times)
{
    for (int i = 0; i < times; ++i) {
        meter.begin(now);
        now += ns;
        meter.end(bytes, now);
    }
    return now;
}

TEST(BandwidthMeter, WhatIsExpectedStandsUntilSamplesCorrectIt)
{
    BandwidthMeter meter;
    meter.expect(1000 * kMiB);
    EXPECT_EQ(meter.bytes_per_s(), 1000 * kMiB);
    transfer(meter, 0, 16 * kMiB, 64'000'000, 1);
    EXPECT_LT(meter.bytes_per_s(), 700 * kMiB);
    EXPECT_GT(meter.bytes_per_s(), 500 * kMiB);
    transfer(meter, 64'000'000, 16 * kMiB, 64'000'000, 60);
    EXPECT_NEAR(static_cast<double>(meter.bytes_per_s()), 250.0 * kMiB, 5.0 * kMiB);
    EXPECT_EQ(meter.bytes(), 61 * 16 * kMiB);
}

TEST(BandwidthMeter, FollowsALinkThatBecomesSlower)
{
    BandwidthMeter meter;
    const uint64_t now = transfer(meter, 0, 16 * kMiB, 8'000'000, 100);
    EXPECT_NEAR(static_cast<double>(meter.bytes_per_s()), 2000.0 * kMiB, 1.0 * kMiB);
    transfer(meter, now, 16 * kMiB, 64'000'000, 16);
    EXPECT_LT(meter.bytes_per_s(), 400 * kMiB);
}

// A drive that takes four times as much in one of four samples, and then makes the others wait.
TEST(BandwidthMeter, ABurstCountsNoMoreThanTheTimeItTook)
{
    BandwidthMeter meter;
    uint64_t now = 0;
    for (int i = 0; i < 40; ++i) {
        now = transfer(meter, now, 16 * kMiB, 4'000'000, 1);
        now = transfer(meter, now, 16 * kMiB, 16'000'000, 3);
    }
    const double sustained = 64.0 * kMiB / 0.052;
    EXPECT_NEAR(static_cast<double>(meter.bytes_per_s()), sustained, 0.05 * sustained);
    now = transfer(meter, now, 16 * kMiB, 4'000'000, 1);
    EXPECT_NEAR(static_cast<double>(meter.bytes_per_s()), sustained, 0.1 * sustained);
}

// Half of the time eight requests are in flight, the other half one that has to wait for latency.
TEST(BandwidthMeter, WhatALinkDoesWithMuchInFlightCountsForMore)
{
    BandwidthMeter meter;
    uint64_t now = 0;
    for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 8; ++i) meter.begin(now);
        now += 20'000'000;
        for (int i = 0; i < 8; ++i) meter.end(5 * kMiB, now);
        now = transfer(meter, now, 2 * kMiB, 20'000'000, 1);
    }
    EXPECT_NEAR(static_cast<double>(meter.bytes_per_s()), (8 * 2000.0 + 100) / 9 * kMiB,
                30.0 * kMiB);
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
    for (uint64_t round = 0; round < 3; ++round) {
        const uint64_t now = round * 20'000'000;
        for (int i = 0; i < 30; ++i) meter.begin(now);
        for (int i = 0; i < 30; ++i) meter.end(2 * kMiB, now + 16'000'000 + 100 * i);
        // Neither the first of them, which took all of the time, nor the others, which took none.
        EXPECT_NEAR(static_cast<double>(meter.bytes_per_s()), 3750.0 * kMiB, 2.0 * kMiB);
    }
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
