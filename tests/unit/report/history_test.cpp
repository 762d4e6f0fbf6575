// SPDX-License-Identifier: Apache-2.0
// "history" of the report: every byte of the steps that are drawn is in a span, names go with their
// own time, and lists stay within their maxima.
#include "lib/report/report.h"

#include "tests/unit/report/report_support.h"

namespace stepwell::report {
namespace {

using nlohmann::json;
using observe::Span;
using observe::SpanKind;
using observe::Stall;

constexpr uint64_t kMs = 1'000'000;

json written_history(const HistoryData &history)
{
    ReportData data;
    data.history = history;
    const WrittenFile file;
    const Status status = write_report(file.path(), data);
    EXPECT_TRUE(status.ok()) << status.sentence();
    return file.parsed()["history"];
}

Span transfer_of(uint64_t start_ns, uint64_t end_ns, uint32_t tensor, uint64_t bytes,
                 uint16_t link = STW_LINK_NVME_TO_HOST)
{
    return {start_ns, end_ns, observe::transfer_id(7, tensor), bytes, SpanKind::kTransfer, link, 0};
}

observe::StepRecord step(uint64_t number, uint64_t begin_ns, uint64_t end_ns)
{
    observe::StepRecord record;
    record.begin_ns = begin_ns;
    record.end_ns = end_ns;
    record.stats.step = number;
    record.stats.wall_ns = end_ns - begin_ns;
    return record;
}

TEST(History, AStepThatAPlanDroveSaysWhichAndWhatNoScheduleBeats)
{
    HistoryData data;
    data.steps.push_back(step(3, 1100, 2100));
    data.steps.back().stats.least_ns = 750;
    data.steps.back().way = 0xab;
    const json history = written_history(data);
    EXPECT_EQ(history["steps"][0]["least_ns"], 750);
    EXPECT_EQ(history["steps"][0]["way"], "00000000000000ab");
}

TEST(History, AStepHasItsCostsAndItsBytesByLink)
{
    HistoryData data;
    data.origin_ns = 100;
    observe::StepRecord record = step(3, 1100, 2100);
    record.phase = 1;
    record.stats.planned = 1;
    record.stats.bound_ns = 800;
    record.stats.stall_ns = 300;
    record.stats.stall_room_ns = 300;
    record.bound.compute_ns = 700;
    record.bound.by_link = true;
    record.bound.link = STW_LINK_HOST_TO_NVME;
    record.bound.link_bytes[STW_LINK_HOST_TO_NVME] = 4096;
    data.steps.push_back(record);
    data.steps_total = 3;
    const json history = written_history(data);
    EXPECT_EQ(history["steps_total"], 3);
    const json &first = history["steps"][0];
    EXPECT_EQ(first["phase"], 1);
    EXPECT_EQ(first["step"], 3);
    EXPECT_EQ(first["begin_ns"], 1000);
    EXPECT_EQ(first["end_ns"], 2000);
    EXPECT_EQ(first["planned"], true);
    EXPECT_EQ(first["bound_ns"], 800);
    EXPECT_EQ(first["bound_by"], "host_to_nvme");
    EXPECT_FALSE(first.contains("least_ns"));
    EXPECT_FALSE(first.contains("way"));
    EXPECT_EQ(first["compute_ns"], 700);
    EXPECT_EQ(first["stall_ns"]["room"], 300);
    EXPECT_EQ(first["link_bytes"]["host_to_nvme"], 4096);
    EXPECT_EQ(first["link_bytes"]["nvme_to_host"], 0);
    EXPECT_EQ(first["link_bytes"].size(), 7u);
}

TEST(History, TensorsThatWaitedStandInTheOrderOfWhatTheyCost)
{
    HistoryData data;
    data.stalls.add("short", Stall::kNvme, 1);
    data.stalls.add("</script>", Stall::kNvme, 5);
    data.stalls.add("</script>", Stall::kUpdate, 6);
    const json stalls = written_history(data)["stalls"];
    ASSERT_EQ(stalls["tensors"].size(), 2u);
    EXPECT_EQ(stalls["tensors"][0]["tensor"], "</script>");
    EXPECT_EQ(stalls["tensors"][0]["waits"], 2);
    EXPECT_EQ(stalls["tensors"][0]["total_ns"], 11);
    EXPECT_EQ(stalls["tensors"][0]["nvme_ns"], 5);
    EXPECT_EQ(stalls["tensors"][0]["update_ns"], 6);
    EXPECT_EQ(stalls["tensors"][1]["tensor"], "short");
    EXPECT_EQ(stalls["others"]["waits"], 0);
}

TEST(History, TransfersOfATensorThatFollowEachOtherAreOneSpan)
{
    HistoryData data;
    data.steps.push_back(step(1, 0, 100 * kMs));
    data.tensors = {{"a", 0}, {"b", 0}};
    data.timeline.spans = {
        transfer_of(1 * kMs, 3 * kMs, 0, 10),
        transfer_of(2 * kMs, 4 * kMs, 1, 5),
        transfer_of(3 * kMs, 6 * kMs, 0, 20),
        transfer_of(40 * kMs, 41 * kMs, 0, 40),
        transfer_of(1 * kMs, 2 * kMs, 0, 3, STW_LINK_HOST_TO_DEVICE),
    };
    const json window = written_history(data)["window"];
    EXPECT_EQ(window["tensors"], json({"a", "b"}));
    ASSERT_EQ(window["lanes"].size(), 2u);
    EXPECT_EQ(window["lanes"][0]["lane"], "nvme_to_host");
    EXPECT_EQ(window["lanes"][0]["kind"], "link");
    EXPECT_EQ(window["lanes"][0]["spans"], json({{1 * kMs, 6 * kMs, 30, 2, 0},
                                                 {2 * kMs, 4 * kMs, 5, 1, 1},
                                                 {40 * kMs, 41 * kMs, 40, 1, 0}}));
    EXPECT_EQ(window["lanes"][1]["spans"], json({{1 * kMs, 2 * kMs, 3, 1, 0}}));
}

TEST(History, WaitsStayApartAndUpdatesOfAllThreadsAreOneLane)
{
    HistoryData data;
    data.steps.push_back(step(1, 0, 100));
    data.tensors = {{"a", 0}};
    data.timeline.spans = {
        {1, 5, 0, 0, SpanKind::kStall, static_cast<uint16_t>(Stall::kRoom), 0},
        {5, 9, 0, 0, SpanKind::kStall, static_cast<uint16_t>(Stall::kRoom), 0},
        {1, 5, 0, 0, SpanKind::kUpdate, 0, 0},
        {2, 6, 0, 0, SpanKind::kUpdate, 1, 0},
    };
    const json lanes = written_history(data)["window"]["lanes"];
    ASSERT_EQ(lanes.size(), 2u);
    EXPECT_EQ(lanes[0]["kind"], "stall");
    EXPECT_EQ(lanes[0]["lane"], "room");
    EXPECT_EQ(lanes[0]["spans"].size(), 2u);
    EXPECT_EQ(lanes[1]["kind"], "update");
    EXPECT_EQ(lanes[1]["spans"], json({{1, 6, 0, 2, 0}}));
}

TEST(History, ANumberThatIsUsedAgainDoesNotLendItsNameToThePast)
{
    HistoryData data;
    data.steps.push_back(step(1, 0, 100));
    data.tensors = {{"new", 50}};
    data.timeline.spans = {transfer_of(10, 20, 0, 1), transfer_of(60, 70, 0, 1),
                           transfer_of(80, 90, 99, 1)};
    const json window = written_history(data)["window"];
    EXPECT_EQ(window["tensors"], json({"", "new"}));
    EXPECT_EQ(window["lanes"][0]["spans"].size(), 2u) << "no name twice: the library's own";
}

TEST(History, StepsWithTooManySpansOrLostOnesAreNotDrawn)
{
    HistoryData data;
    for (uint64_t i = 0; i < 4; ++i) {
        data.steps.push_back(step(i + 1, i * 1000 * kMs, (i + 1) * 1000 * kMs));
    }
    data.tensors.resize(20000);
    for (uint32_t i = 0; i < 20000; ++i) {
        data.tensors[i].name = std::to_string(i);
        const uint64_t start = i < 10000 ? i : 3000 * kMs + i;
        data.timeline.spans.push_back(transfer_of(start, start + 1, i, 1));
    }
    json window = written_history(data)["window"];
    EXPECT_EQ(window["steps"], 3) << "with the first step they would be 20,000";
    EXPECT_EQ(window["whole"], true);
    EXPECT_EQ(window["lanes"][0]["spans"].size(), 10000u);

    data.timeline.spans.clear();
    data.timeline.lost = 1;
    data.timeline.spans.push_back(transfer_of(2500 * kMs, 2600 * kMs, 1, 1));
    data.timeline.spans.push_back(transfer_of(3500 * kMs, 3600 * kMs, 1, 1));
    window = written_history(data)["window"];
    EXPECT_EQ(window["steps"], 1) << "of the third step something was lost";
    EXPECT_EQ(window["begin_ns"], 3000 * kMs);
    EXPECT_EQ(window["whole"], true);
    data.timeline.spans.erase(data.timeline.spans.begin());
    EXPECT_EQ(written_history(data)["window"]["whole"], false);
}

// Training, then text a step for each letter: both are drawn, and no window twice.
TEST(History, APhaseThatEndedIsDrawnFromAnOlderWindow)
{
    HistoryData data;
    data.tensors = {{"a", 0}, {"b", 0}};
    const auto add = [&](uint32_t phase, uint32_t tensor) {
        const uint64_t begin = 10 * kMs * data.steps.size();
        data.steps.push_back(step(data.steps.size(), begin, begin + 9 * kMs));
        data.steps.back().phase = phase;
        data.timeline.spans.push_back(transfer_of(begin, begin + kMs, tensor, 10 + phase));
    };
    for (int i = 0; i < 8; ++i) add(i % 2 == 0 ? 5 : 6, 0);
    for (int i = 0; i < 20; ++i) add(7, 1);
    json history = written_history(data);
    EXPECT_EQ(history["window"]["begin_ns"], 220 * kMs);
    ASSERT_EQ(history["older_windows"].size(), 1u) << "5 and 6 take turns in one";
    const json older = history["older_windows"][0];
    EXPECT_EQ(older["begin_ns"], 20 * kMs);
    EXPECT_EQ(older["end_ns"], 79 * kMs);
    EXPECT_EQ(older["steps"], 6);
    EXPECT_EQ(older["tensors"], json({"a"}));
    EXPECT_EQ(older["lanes"][0]["spans"].size(), 6u);

    data.timeline.lost = 1;  // up to the seventh step
    data.timeline.spans.erase(data.timeline.spans.begin(), data.timeline.spans.begin() + 6);
    history = written_history(data);
    ASSERT_EQ(history["older_windows"].size(), 1u);
    EXPECT_EQ(history["older_windows"][0]["begin_ns"], 70 * kMs);
    data.timeline.spans.erase(data.timeline.spans.begin(), data.timeline.spans.begin() + 4);
    EXPECT_EQ(written_history(data)["older_windows"], json::array()) << "nothing of them is whole";
}

TEST(History, SamplesAreThinnedAndThePeakStays)
{
    HistoryData data;
    for (uint64_t i = 0; i < 50000; ++i) {
        const uint64_t bytes = i == 31111 ? 1000 : i % 10;
        data.timeline.spans.push_back({i, i, 0, bytes, SpanKind::kTierBytes, STW_TIER_HOST, 0});
    }
    const json tier = written_history(data)["tiers"][0];
    EXPECT_EQ(tier["tier"], "host");
    EXPECT_LE(tier["samples"].size(), kSamplesDrawn);
    EXPECT_GT(tier["samples"].size(), kSamplesDrawn / 4);
    uint64_t peak = 0;
    uint64_t before = 0;
    for (const json &sample : tier["samples"]) {
        EXPECT_GE(sample[0].get<uint64_t>(), before);
        before = sample[0];
        peak = std::max(peak, sample[1].get<uint64_t>());
    }
    EXPECT_EQ(peak, 1000u);
    EXPECT_EQ(before, 49999u) << "the line ends where it did";
}

}  // namespace
}  // namespace stepwell::report
