// SPDX-License-Identifier: Apache-2.0
// The report file: what went in comes out, and what is derived is the arithmetic done by hand.
#include "lib/report/report.h"

#include "tests/unit/report/report_support.h"

namespace stepwell::report {
namespace {

using nlohmann::json;

json written(const ReportData &data)
{
    const WrittenFile file;
    const Status status = write_report(file.path(), data);
    EXPECT_TRUE(status.ok()) << status.sentence();
    return file.parsed();
}

PhaseReport train_phase()
{
    PhaseReport phase;
    phase.name = "train \"a\"\n";
    phase.steps = 12;
    phase.last.wall_ns = 100;
    phase.last.bound_ns = 80;
    phase.last.stall_ns = 35;
    phase.last.stall_nvme_ns = 10;
    phase.last.stall_room_ns = 25;
    phase.last.nvme_read_bytes = 1234;
    phase.mean = phase.last;
    phase.mean.wall_ns = 80;
    phase.last_bound.by_link = true;
    phase.last_bound.link = STW_LINK_HOST_TO_NVME;
    phase.last_bound.link_ns = 80;
    phase.last_bound.compute_ns = 65;
    return phase;
}

TEST(Report, AnEmptyRuntimeIsAValidReport)
{
    const json report = written({});
    ASSERT_TRUE(report.is_object());
    EXPECT_EQ(report["format"], kReportFormat);
    for (const char *list : {"tiers", "links", "drivers", "phases"}) {
        EXPECT_TRUE(report[list].is_array()) << list;
        EXPECT_TRUE(report[list].empty()) << list;
    }
    EXPECT_EQ(report["errors"]["total"], 0);
    EXPECT_TRUE(report["waste"]["share"].is_null()) << "nothing measured is null, not 0";
}

TEST(Report, TellsPlansWithWhatTheyConsidered)
{
    ReportData data;
    data.planning_ns = 77;
    PlanReport plan;
    plan.name = "train";
    plan.repeats = true;
    plan.steps = 21;
    CandidateReport best;
    best.policy = "next use";
    best.link_bytes[STW_LINK_NVME_TO_HOST] = 10;
    best.link_bytes[STW_LINK_NVME_TO_DEVICE] = 5;
    best.link_bytes[STW_LINK_DEVICE_TO_NVME] = 3;
    best.step_ns = 400;
    best.stall_ns = 40;
    plan.candidates = {best, {}};
    plan.candidates.back().earlier = true;
    plan.bound_ns = 350;
    plan.compute_ns = 300;
    plan.now_ns = 320;
    plan.now_compute_ns = 270;
    plan.bound_bytes[STW_LINK_NVME_TO_HOST] = 9;
    plan.bound_link_ns[STW_LINK_NVME_TO_HOST] = 350;
    plan.step_ns = 400;
    plan.spans = {{0, 10, 310}, {STW_LINK_NVME_TO_HOST, 0, 90}};
    plan.turns = {{4, 0xfedcba9876543210, 0, 400, 350}};
    PlanReport varying;
    varying.name = "decode";
    varying.candidates = {best};
    data.plans = {plan, varying};
    const json report = written(data)["plan"];
    EXPECT_EQ(report["cpu_ns"], 77);
    const json &first = report["phases"][0];
    EXPECT_EQ(first["chosen"], "next use");
    EXPECT_EQ(first["followed_steps"], 21);
    EXPECT_EQ(first["candidates"].size(), 2u);
    EXPECT_EQ(first["candidates"][0]["nvme_read_bytes"], 15);
    EXPECT_EQ(first["candidates"][0]["nvme_write_bytes"], 3);
    EXPECT_EQ(first["candidates"][0]["stall_ns"], 40);
    EXPECT_FALSE(first["candidates"][0].contains("earlier"));
    EXPECT_EQ(first["candidates"][1]["earlier"], true);
    EXPECT_EQ(first["bound"]["step_ns"], 350);
    EXPECT_EQ(first["bound"]["now_ns"], 320);
    EXPECT_EQ(first["bound"]["now_compute_ns"], 270);
    EXPECT_EQ(first["bound"]["links"],
              json::parse(R"([{"link": "nvme_to_host", "bytes": 9, "ns": 350}])"));
    EXPECT_EQ(first["predicted"]["spans"][0]["lane"], "compute");
    EXPECT_EQ(first["predicted"]["spans"][1]["end_ns"], 90);
    EXPECT_EQ(first["predicted"]["turns"], json::parse(R"([{"phase": 4, "way": "fedcba9876543210",
              "begin_ns": 0, "end_ns": 400, "least_ns": 350}])"));
    EXPECT_FALSE(report["phases"][1].contains("predicted"));
    EXPECT_FALSE(report["phases"][1].contains("bound"));
}

TEST(Report, TellsTiersWithTheirBudgets)
{
    ReportData data;
    TierReport tier;
    tier.tier = STW_TIER_NVME;
    tier.stats.budget_bytes = UINT64_MAX;
    tier.stats.peak_bytes = 4096;
    tier.stats.used_bytes = 2048;
    tier.stats.pinned_bytes = 1;
    tier.stats.dirty_bytes = 2;
    tier.stats.staging_bytes = 3;
    tier.stats.metadata_bytes = 4;
    tier.stats.evictions = 5;
    tier.promised_bytes = 6;
    data.tiers.push_back(tier);
    tier.tier = STW_TIER_HOST;
    tier.stats.budget_bytes = 4095;
    data.tiers.push_back(tier);
    const json tiers = written(data)["tiers"];
    EXPECT_EQ(tiers[0]["tier"], "nvme");
    EXPECT_EQ(tiers[0]["budget_bytes"].get<uint64_t>(), UINT64_MAX);
    EXPECT_EQ(tiers[0]["used_bytes"], 2048);
    EXPECT_EQ(tiers[0]["peak_bytes"], 4096);
    EXPECT_EQ(tiers[0]["pinned_bytes"], 1);
    EXPECT_EQ(tiers[0]["dirty_bytes"], 2);
    EXPECT_EQ(tiers[0]["staging_bytes"], 3);
    EXPECT_EQ(tiers[0]["metadata_bytes"], 4);
    EXPECT_EQ(tiers[0]["evictions"], 5);
    EXPECT_EQ(tiers[0]["promised_bytes"], 6);
    EXPECT_EQ(tiers[0]["within_budget"], true);
    EXPECT_EQ(tiers[1]["tier"], "host");
    EXPECT_EQ(tiers[1]["within_budget"], false);
}

TEST(Report, DerivesUtilisationOfLinks)
{
    ReportData data;
    data.elapsed_ns = 4'000'000'000;
    LinkReport link;
    link.link = STW_LINK_NVME_TO_HOST;
    link.stats.bytes = 1'500'000'000;
    link.stats.busy_ns = 1'000'000'000;
    link.stats.measured_bytes_per_s = 2'000'000'000;
    link.stats.errors = 3;
    link.stats.retries = 4;
    data.links.push_back(link);
    link.stats.measured_bytes_per_s = 0;
    data.links.push_back(link);
    const json links = written(data)["links"];
    EXPECT_EQ(links[0]["link"], "nvme_to_host");
    EXPECT_DOUBLE_EQ(links[0]["busy_share"].get<double>(), 0.25);
    EXPECT_DOUBLE_EQ(links[0]["utilisation"].get<double>(), 0.75);
    EXPECT_EQ(links[0]["errors"], 3);
    EXPECT_EQ(links[0]["retries"], 4);
    EXPECT_TRUE(links[1]["utilisation"].is_null());
}

TEST(Report, ShowsTheStepBesideItsBoundAndNamesTheCause)
{
    ReportData data;
    data.phases.push_back(train_phase());
    const json phase = written(data)["phases"][0];
    EXPECT_EQ(phase["name"], "train \"a\"\n");
    EXPECT_EQ(phase["steps"], 12);
    EXPECT_EQ(phase["last"]["wall_ns"], 100);
    EXPECT_EQ(phase["last"]["bound_ns"], 80);
    EXPECT_DOUBLE_EQ(phase["last"]["bound_share"].get<double>(), 0.8);
    EXPECT_EQ(phase["last"]["difference_ns"], 20);
    EXPECT_EQ(phase["last"]["difference_cause"], "room");
    EXPECT_EQ(phase["last"]["stall_ns"]["total"], 35);
    EXPECT_EQ(phase["last"]["stall_ns"]["nvme"], 10);
    EXPECT_EQ(phase["last"]["bytes"]["nvme_read"], 1234);
    EXPECT_EQ(phase["last_bound"]["by"], "host_to_nvme");
    EXPECT_EQ(phase["last_bound"]["compute_ns"], 65);
    EXPECT_EQ(phase["mean"]["difference_ns"], 0);
    EXPECT_EQ(phase["mean"]["difference_cause"], "none") << "nothing was lost";
}

TEST(Report, APhaseWithoutStepsHasNoStep)
{
    ReportData data;
    data.phases.push_back({});
    const json phase = written(data)["phases"][0];
    EXPECT_EQ(phase["steps"], 0);
    EXPECT_FALSE(phase.contains("last"));
    EXPECT_FALSE(phase.contains("mean"));
}

TEST(Report, CountsWhatBlocksCostBeyondTensors)
{
    ReportData data;
    data.waste.push_back({STW_ROLE_PARAM, 3, 700, 800});
    data.waste.push_back({STW_ROLE_OPTIMIZER_STATE, 1, 200, 200});
    const json waste = written(data)["waste"];
    EXPECT_EQ(waste["roles"][0]["role"], "param");
    EXPECT_EQ(waste["roles"][1]["role"], "optimizer_state");
    EXPECT_EQ(waste["bytes"], 100);
    EXPECT_DOUBLE_EQ(waste["share"].get<double>(), 0.1);
}

TEST(Report, TellsDriversRemarksUpdatesAndErrors)
{
    ReportData data;
    data.name = "trainer";
    data.version = "0.1.0";
    data.block_bytes = 2097152;
    DriverReport posix;
    posix.kind = "storage";
    posix.name = "posix";
    posix.used_for = "/data \xff";
    posix.file_system = "tmpfs";
    posix.remark = "tmpfs refuses O_DIRECT";
    data.drivers.push_back(posix);
    DriverReport host;
    host.kind = "memory";
    host.name = "host";
    host.locked = true;
    host.numa_node = -1;
    data.drivers.push_back(host);
    data.update.steps = 5;
    data.update.skipped = 1;
    data.errors.push_back({STW_ERROR_CHECKSUM, "w", "Block 3 of 'w' is not what was written.", 2});
    data.errors_total = 9;
    data.timeline_lost = 11;
    const json report = written(data);
    EXPECT_EQ(report["runtime"], "trainer");
    EXPECT_EQ(report["block_bytes"], 2097152);
    EXPECT_EQ(report["drivers"][0]["used_for"], "/data \xef\xbf\xbd");
    EXPECT_EQ(report["drivers"][0]["remark"], "tmpfs refuses O_DIRECT");
    EXPECT_EQ(report["drivers"][0]["file_system"], "tmpfs");
    EXPECT_EQ(report["drivers"][1]["locked"], true);
    EXPECT_EQ(report["drivers"][1]["numa_node"], -1);
    EXPECT_EQ(report["update"]["skipped"], 1);
    EXPECT_EQ(report["errors"]["total"], 9);
    EXPECT_EQ(report["errors"]["first"][0]["status"], STW_ERROR_CHECKSUM);
    EXPECT_EQ(report["errors"]["first"][0]["tensor"], "w");
    EXPECT_EQ(report["errors"]["first"][0]["count"], 2);
    EXPECT_EQ(report["timeline"]["lost"], 11);
}

TEST(Report, AnErrorOfTheFileIsReturned)
{
    const Status status = write_report("/nonexistent-directory/report.json", {});
    EXPECT_EQ(status.code(), STW_ERROR_NOT_FOUND);
}

}  // namespace
}  // namespace stepwell::report
