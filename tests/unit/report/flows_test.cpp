// SPDX-License-Identifier: Apache-2.0
// Arrows of the trace: each has its two ends, inside of their slices, never backwards in time, from
// the transfer that brought a tensor last to the computation that used it first.
#include "lib/report/report.h"

#include "tests/unit/report/report_support.h"

#include <map>
#include <vector>

namespace stepwell::report {
namespace {

using nlohmann::json;
using observe::Span;
using observe::SpanKind;

constexpr uint32_t kThread = 3;

json written_flows(const std::vector<Span> &spans)
{
    TimelineData data;
    data.tensors = {{"a", 0}, {"b", 0}};
    data.snapshot.spans = spans;
    const WrittenFile file;
    const Status status = write_timeline(file.path(), data);
    EXPECT_TRUE(status.ok()) << status.sentence();
    return file.parsed()["traceEvents"];
}

Span step(uint64_t begin, uint64_t end)
{
    return {begin, end, 1, 0, SpanKind::kStep, 0, 0};
}

Span transfer(uint64_t begin, uint64_t end, uint32_t tensor, uint16_t link = STW_LINK_NVME_TO_HOST)
{
    return {begin, end, observe::transfer_id(7, tensor), 2048, SpanKind::kTransfer, link, 0};
}

Span wait(uint64_t begin, uint64_t end, uint32_t thread = kThread)
{
    return {begin, end, 0, 0, SpanKind::kStall, 0, thread};
}

Span use(uint64_t begin, uint64_t end, uint32_t tensor, uint16_t thread = kThread)
{
    return {begin, end, tensor, 0, SpanKind::kUse, thread, 0};
}

struct Slice {
    std::string name;
    double begin;
    double end;
};

// The slice of the thread around a moment.
Slice slice_at(const json &events, uint64_t thread, double ts)
{
    for (const json &event : events) {
        if (event["ph"] != "X" || event["tid"] != thread) continue;
        const double begin = event["ts"];
        const double end = begin + event["dur"].get<double>();
        if (begin <= ts && (ts < end || begin == end)) return {event["name"], begin, end};
    }
    return {"none", 0, 0};
}

// Checks what every trace must keep, and returns each arrow as "from > to".
std::vector<std::string> arrows(const json &events)
{
    std::map<uint64_t, std::pair<const json *, const json *>> ends;
    for (const json &event : events) {
        if (event["ph"] != "s" && event["ph"] != "f") continue;
        const json *&end = event["ph"] == "s" ? ends[event["id"]].first : ends[event["id"]].second;
        EXPECT_EQ(end, nullptr) << "an id is of one arrow: " << event;
        end = &event;
        if (event["ph"] == "f") {
            EXPECT_EQ(event["bp"], "e");
        }
    }
    std::vector<std::string> list;
    for (const auto &[id, pair] : ends) {
        EXPECT_TRUE(pair.first && pair.second) << "arrow " << id << " lacks an end";
        if (!pair.first || !pair.second) continue;
        const json &from = *pair.first;
        const json &to = *pair.second;
        EXPECT_LE(from["ts"].get<double>(), to["ts"].get<double>());
        EXPECT_EQ(from["name"], to["name"]);
        EXPECT_EQ(from["cat"], to["cat"]);
        list.push_back(slice_at(events, from["tid"], from["ts"]).name + " > " +
                       slice_at(events, to["tid"], to["ts"]).name);
    }
    return list;
}

std::vector<Slice> computations(const json &events)
{
    std::vector<Slice> list;
    for (const json &event : events) {
        if (event["ph"] != "X" || event["cat"] != "compute") continue;
        const double begin = event["ts"];
        list.push_back({event["name"], begin, begin + event["dur"].get<double>()});
    }
    return list;
}

TEST(Flows, AFetchThatWaitedHasAnArrowToTheComputationAfterIt)
{
    const json events = written_flows({transfer(20'000, 50'000, 0), wait(10'000, 60'000),
                                       use(10'000, 61'000, 0), step(0, 100'000)});
    EXPECT_EQ(arrows(events), std::vector<std::string>{"nvme_to_host > compute"});
    const std::vector<Slice> compute = computations(events);
    ASSERT_EQ(compute.size(), 2u) << "before the wait and after it";
    EXPECT_DOUBLE_EQ(compute[0].begin, 0);
    EXPECT_DOUBLE_EQ(compute[0].end, 10);
    EXPECT_DOUBLE_EQ(compute[1].begin, 60);
    EXPECT_DOUBLE_EQ(compute[1].end, 100);
}

TEST(Flows, OfManyBlocksTheLastOnEachLinkHasTheArrow)
{
    const json events = written_flows(
        {transfer(1'000, 2'000, 0), transfer(2'000, 9'000, 0), transfer(3'000, 4'000, 1),
         transfer(9'000, 9'500, 0, STW_LINK_HOST_TO_DEVICE), use(500, 10'000, 0), step(0, 20'000)});
    EXPECT_EQ(arrows(events),
              (std::vector<std::string>{"nvme_to_host > compute", "host_to_device > compute"}));
    for (const json &event : events) {
        if (event["ph"] == "s") {
            EXPECT_GE(event["ts"].get<double>(), 8.9) << "the last one's end";
        }
    }
}

TEST(Flows, WhatWasNotUsedOrLeftTheDeviceHasNone)
{
    EXPECT_TRUE(arrows(written_flows({transfer(1'000, 2'000, 0), use(0, 3'000, 1), step(0, 9'000)}))
                    .empty());
    EXPECT_TRUE(arrows(written_flows({transfer(1'000, 2'000, 0, STW_LINK_HOST_TO_NVME),
                                      use(0, 3'000, 0), step(0, 9'000)}))
                    .empty());
    EXPECT_TRUE(arrows(written_flows({transfer(1'000, 2'000, 0), use(0, 3'000, 0)})).empty())
        << "outside of steps nothing says what is computed";
    EXPECT_TRUE(arrows(written_flows({transfer(4'000, 5'000, 0), use(0, 3'000, 0), step(0, 9'000)}))
                    .empty())
        << "what came after the use";
}

TEST(Flows, AnArrivalIsUsedFirstOnce)
{
    const json events = written_flows(
        {transfer(1'000, 2'000, 0), use(0, 3'000, 0), use(3'000, 5'000, 0), step(0, 9'000)});
    EXPECT_EQ(arrows(events).size(), 1u);
}

TEST(Flows, EachThreadWaitsAndComputesForItself)
{
    const json events = written_flows({transfer(1'000, 2'000, 0), transfer(1'000, 3'000, 1),
                                       wait(0, 4'000, 1), wait(500, 6'000, 2), use(0, 4'100, 0, 1),
                                       use(500, 6'100, 1, 2), step(0, 9'000)});
    EXPECT_EQ(arrows(events).size(), 2u);
    const std::vector<Slice> compute = computations(events);
    ASSERT_EQ(compute.size(), 3u);
    EXPECT_DOUBLE_EQ(compute[1].begin, 4) << "thread 1 goes on, thread 2 still waits";
    EXPECT_DOUBLE_EQ(compute[2].begin, 6);
}

TEST(Flows, ManyOfThemKeepTheRules)
{
    std::vector<Span> spans;
    uint64_t state = 99;
    const auto random = [&state](uint64_t below) {
        state = state * 6364136223846793005 + 1442695040888963407;
        return (state >> 33) % below;
    };
    for (uint64_t at = 0; at < 2'000'000; at += 1'000 + random(9'000)) {
        const auto tensor = static_cast<uint32_t>(random(2));
        const uint64_t long_ns = 1 + random(5'000);
        spans.push_back(transfer(at, at + long_ns, tensor));
        if (random(3) == 0) spans.push_back(wait(at, at + long_ns));
        if (random(2) == 0) spans.push_back(use(at, at + long_ns + random(300), tensor));
    }
    for (uint64_t i = 0; i < 20; ++i) spans.push_back(step(i * 100'000, i * 100'000 + 90'000));
    const std::vector<std::string> list = arrows(written_flows(spans));
    EXPECT_GT(list.size(), 50u);
    for (const std::string &arrow : list) EXPECT_EQ(arrow, "nvme_to_host > compute");
}

}  // namespace
}  // namespace stepwell::report
