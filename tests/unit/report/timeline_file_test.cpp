// SPDX-License-Identifier: Apache-2.0
// The trace file: complete events that do not overlap on a row, rows with names, counters.
#include "lib/report/report.h"

#include "tests/unit/report/report_support.h"

#include <map>
#include <set>
#include <vector>

namespace stepwell::report {
namespace {

using nlohmann::json;
using observe::Span;
using observe::SpanKind;

json written(const TimelineData &data)
{
    const WrittenFile file;
    const Status status = write_timeline(file.path(), data);
    EXPECT_TRUE(status.ok()) << status.sentence();
    return file.parsed();
}

std::vector<json> events(const json &trace, const char *phase)
{
    std::vector<json> list;
    for (const json &event : trace["traceEvents"]) {
        if (event["ph"] == phase) list.push_back(event);
    }
    return list;
}

std::map<uint64_t, std::string> row_names(const json &trace)
{
    std::map<uint64_t, std::string> names;
    for (const json &event : events(trace, "M")) {
        if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
    }
    return names;
}

TEST(TimelineFile, WritesOneCompleteEventPerSpan)
{
    TimelineData data;
    data.name = "trainer";
    data.origin_ns = 1'000'000;
    data.phase_names = {"train"};
    data.snapshot.recorded = 10;
    data.snapshot.lost = 8;
    data.snapshot.spans = {
        {1'001'234, 1'003'000, 42, 2097152, SpanKind::kTransfer, STW_LINK_NVME_TO_HOST, 0},
        {1'000'000, 1'010'000, 3, 0, SpanKind::kStep, 0, 0},
    };
    const json trace = written(data);
    EXPECT_EQ(trace["otherData"]["spans_recorded"], 10);
    EXPECT_EQ(trace["otherData"]["spans_lost"], 8);
    const auto complete = events(trace, "X");
    const auto names = row_names(trace);
    ASSERT_EQ(complete.size(), 2u);
    const json &step = complete[0];
    EXPECT_EQ(step["name"], "train 3");
    EXPECT_EQ(step["cat"], "step");
    EXPECT_DOUBLE_EQ(step["ts"].get<double>(), 0.0);
    EXPECT_DOUBLE_EQ(step["dur"].get<double>(), 10.0);
    EXPECT_EQ(names.at(step["tid"]), "step: train");
    const json &transfer = complete[1];
    EXPECT_EQ(transfer["name"], "nvme_to_host");
    EXPECT_DOUBLE_EQ(transfer["ts"].get<double>(), 1.234);
    EXPECT_DOUBLE_EQ(transfer["dur"].get<double>(), 1.766);
    EXPECT_EQ(transfer["args"]["id"], 42);
    EXPECT_EQ(transfer["args"]["bytes"], 2097152);
    EXPECT_EQ(names.at(transfer["tid"]), "nvme_to_host");
}

TEST(TimelineFile, SpansOfARowNeverOverlap)
{
    TimelineData data;
    uint64_t state = 12345;
    for (uint64_t i = 0; i < 2000; ++i) {
        state = state * 6364136223846793005 + 1442695040888963407;
        const uint64_t start = (state >> 33) % 1'000'000;
        const uint64_t length = (state >> 20) % 5000;
        data.snapshot.spans.push_back({start, start + length, i, 1, SpanKind::kTransfer,
                                       static_cast<uint16_t>(1 + i % 3), 0});
    }
    const json trace = written(data);
    const auto names = row_names(trace);
    std::map<uint64_t, std::vector<std::pair<double, double>>> rows;
    for (const json &event : events(trace, "X")) {
        const double start = event["ts"];
        rows[event["tid"]].emplace_back(start, start + event["dur"].get<double>());
    }
    uint64_t spans = 0;
    for (auto &[row, list] : rows) {
        ASSERT_TRUE(names.count(row));
        std::sort(list.begin(), list.end());
        for (size_t i = 1; i < list.size(); ++i) {
            ASSERT_LE(list[i - 1].second, list[i].first + 1e-6) << "row " << row;
        }
        spans += list.size();
    }
    EXPECT_EQ(spans, 2000u);
    EXPECT_GT(rows.size(), 3u) << "the spans of this test do overlap";
    EXPECT_EQ(names.size(), rows.size());
}

TEST(TimelineFile, EachKindHasRowsOfItsOwn)
{
    TimelineData data;
    data.phase_names = {"train", "eval"};
    data.snapshot.spans = {
        {0, 1, 1, 0, SpanKind::kStall, 0, 0},
        {0, 1, 1, 0, SpanKind::kStall, 4, 0},
        {0, 1, 1, 0, SpanKind::kUpdate, 0, 0},
        {0, 1, 1, 0, SpanKind::kUpdate, 1, 0},
        {0, 1, 1, 0, SpanKind::kTransfer, STW_LINK_HOST_TO_DEVICE, 0},
        {0, 1, 1, 0, SpanKind::kTransfer, STW_LINK_HOST_TO_DEVICE, 1},
        {0, 1, 1, 0, SpanKind::kStep, 1, 0},
        {0, 1, 1, 0, SpanKind::kStep, 9, 0},
    };
    std::set<std::string> names;
    for (const auto &[row, name] : row_names(written(data))) names.insert(name);
    EXPECT_EQ(names,
              (std::set<std::string>{"stall: nvme", "stall: update", "update: thread 0",
                                     "update: thread 1", "host_to_device",
                                     "host_to_device, device 1", "step: eval", "step: phase 9"}));
}

TEST(TimelineFile, TierBytesAreCounters)
{
    TimelineData data;
    data.snapshot.spans = {
        {2000, 2000, 0, 100, SpanKind::kTierBytes, STW_TIER_HOST, 0},
        {1000, 1000, 0, 50, SpanKind::kTierBytes, STW_TIER_HOST, 0},
        {1000, 1000, 0, 70, SpanKind::kTierBytes, STW_TIER_DEVICE, 1},
    };
    const json trace = written(data);
    const auto counters = events(trace, "C");
    ASSERT_EQ(counters.size(), 3u);
    EXPECT_EQ(counters[0]["name"], "host bytes");
    EXPECT_DOUBLE_EQ(counters[0]["ts"].get<double>(), 1.0);
    EXPECT_EQ(counters[0]["args"]["bytes"], 50);
    EXPECT_EQ(counters[1]["name"], "device bytes, device 1");
    EXPECT_EQ(counters[2]["args"]["bytes"], 100);
    EXPECT_TRUE(row_names(trace).empty()) << "a counter is no row";
}

TEST(TimelineFile, ClocksThatRunBackwardsGiveNoNegativeOrHugeTimes)
{
    TimelineData data;
    data.origin_ns = 1000;
    data.snapshot.spans = {{500, 400, 0, 0, SpanKind::kTransfer, 1, 0}};
    const auto complete = events(written(data), "X");
    ASSERT_EQ(complete.size(), 1u);
    EXPECT_DOUBLE_EQ(complete[0]["ts"].get<double>(), 0.0);
    EXPECT_DOUBLE_EQ(complete[0]["dur"].get<double>(), 0.0);
}

}  // namespace
}  // namespace stepwell::report
