// SPDX-License-Identifier: Apache-2.0
// The statistics page's text: totals as they are, rates of the time since the page before, and
// never more than the page holds.
#include "lib/report/live.h"

#include "lib/runtime/report/stats_page.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace stepwell::report {
namespace {

using nlohmann::json;

LiveData data_at(uint64_t elapsed_ns, uint64_t bytes, uint64_t hits)
{
    LiveData data;
    data.name = "trainer";
    data.elapsed_ns = elapsed_ns;
    data.hits = hits;
    data.stalls.ns[1] = elapsed_ns / 10;
    LinkReport link;
    link.link = STW_LINK_NVME_TO_HOST;
    link.stats.bytes = bytes;
    data.links.push_back(link);
    TierReport tier;
    tier.tier = STW_TIER_HOST;
    tier.stats.budget_bytes = 64;
    tier.stats.used_bytes = 32;
    data.tiers.push_back(tier);
    return data;
}

TEST(LivePage, RatesAreThoseOfTheTimeSinceThePageBefore)
{
    const LiveData before = data_at(1'000'000'000, 100, 10);
    const LiveData now = data_at(3'000'000'000, 500, 40);
    const json page = json::parse(live_text(now, &before));
    EXPECT_EQ(page["format"], 1);
    EXPECT_EQ(page["interval_ns"], 2'000'000'000);
    EXPECT_EQ(page["links"][0]["bytes"], 500);
    EXPECT_DOUBLE_EQ(page["links"][0]["bytes_per_s"], 200);
    EXPECT_EQ(page["hits"], 40);
    EXPECT_DOUBLE_EQ(page["hits_per_s"], 15);
    EXPECT_EQ(page["tiers"][0]["used_bytes"], 32);
    EXPECT_EQ(page["stalls"]["host_device_ns"], 300'000'000);
    EXPECT_DOUBLE_EQ(page["stalls"]["ns_per_s"], 100'000'000);
    const json first = json::parse(live_text(now, nullptr));
    EXPECT_DOUBLE_EQ(first["links"][0]["bytes_per_s"], 500 / 3.0);
    EXPECT_TRUE(json::parse(live_text(LiveData(), nullptr))["hits_per_s"].is_null());
}

TEST(LivePage, TheLargestRuntimeWithTheLongestNamesFits)
{
    LiveData data;
    const std::string name(5000, '\x01');  // the longest as JSON
    data.name = name;
    data.version = "0.1.0+0123456789-dirty";
    for (uint32_t i = 0; i < 40; ++i) data.phases.push_back({name, UINT64_MAX, true, {}});
    for (uint32_t i = 0; i < 6; ++i) {
        TierReport tier;
        tier.stats.budget_bytes = tier.stats.used_bytes = tier.stats.peak_bytes = UINT64_MAX;
        data.tiers.push_back(tier);
    }
    for (uint32_t i = 0; i < 18; ++i) {
        LinkReport link;
        link.link = STW_LINK_NVME_TO_DEVICE;
        link.stats.bytes = link.stats.measured_bytes_per_s = UINT64_MAX;
        data.links.push_back(link);
    }
    data.elapsed_ns = 1;
    const std::string text = live_text(data, nullptr);
    EXPECT_LT(text.size(), kStatsPageBytes - 64);
    const json page = json::parse(text);
    EXPECT_EQ(page["phases"].size(), kLivePhasesMax);
    EXPECT_EQ(page["runtime"].get<std::string>().size(), kLiveNameBytesMax);
}

TEST(LivePage, ANameIsCutBetweenTwoCharacters)
{
    LiveData data;
    data.name = std::string(kLiveNameBytesMax - 1, 'x') + "\u00e9\u00e9";
    const json page = json::parse(live_text(data, nullptr));
    EXPECT_EQ(page["runtime"], std::string(kLiveNameBytesMax - 1, 'x'));
}

}  // namespace
}  // namespace stepwell::report
