// SPDX-License-Identifier: Apache-2.0
// What is taken for a report and what is not, with the place; and that nothing of a report can end
// the element of the page it stands in.
#include "report_json.h"
#include "report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace stepwell::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// The least that is a report.
json least()
{
    return json::parse(R"({"format": 1, "runtime": "r", "version": "0", "block_bytes": 1,
        "elapsed_ns": 2, "threads": 1, "tiers": [], "links": [], "drivers": [], "phases": [],
        "waste": {"bytes": 0, "share": null, "roles": []},
        "errors": {"total": 0, "first": []}})");
}

std::string refused(const json &report)
{
    return check_report("run.json", report.dump(2)).error;
}

TEST(ReportJson, TheLeastReportIsTakenAndItsNameIsKnown)
{
    const CheckedReport checked = check_report("run.json", least().dump());
    EXPECT_EQ(checked.error, "");
    EXPECT_EQ(checked.plan_error, "");
    EXPECT_EQ(checked.runtime, "r");
}

TEST(ReportJson, WhatIsEmptyOrNoJsonIsRefusedWithThePlace)
{
    EXPECT_EQ(check_report("run.json", " \n").error,
              "'run.json' is empty, at line 1, byte 0; name a file that stw_report_write has "
              "written.");
    EXPECT_THAT(check_report("run.json", "{\n \"a\": tru }").error,
                HasSubstr("'run.json' is not JSON: at line 2, byte 11: "));
    EXPECT_THAT(check_report("run.json", "{\"a\": \"\xff\"}").error, HasSubstr("is not JSON"));
    EXPECT_THAT(check_report("a\nb", "{").error, Not(HasSubstr("\n")));
    EXPECT_EQ(check_report("run.json", "{\"format\": 1e400}").error,
              "'run.json' is not JSON: number overflow parsing '1e400'.");
    const std::string cut = least().dump();
    EXPECT_THAT(check_report("run.json", cut.substr(0, cut.size() / 2)).error,
                HasSubstr("is not JSON: at line 1, byte"));
}

TEST(ReportJson, AWrongKeyIsNamedWithLineAndByte)
{
    json report = least();
    report["elapsed_ns"] = "soon";
    EXPECT_EQ(refused(report),
              "'run.json' is no report of stw_report_write: at line 4, byte 61 'elapsed_ns' is "
              "text, not a number that is not negative; name a file that stw_report_write has "
              "written.");
    report = least();
    report["threads"] = -1;
    EXPECT_THAT(refused(report), HasSubstr("'threads' is negative, not a count"));
    report = least();
    report["links"] = {json::object()};
    EXPECT_THAT(refused(report), HasSubstr("'links[0]' has no key"));
    report = least();
    report["waste"]["roles"] = {{{"role", "param"}, {"tensors", 1}, {"tensor_bytes", nullptr}}};
    EXPECT_THAT(refused(report), HasSubstr("'waste.roles[0]"));
    report = least();
    report.erase("format");
    EXPECT_THAT(refused(report), HasSubstr("at line 1, byte 1 it has no key 'format'"));
}

TEST(ReportJson, WhatAParserWouldPassOverIsRefused)
{
    const std::string text = least().dump();
    EXPECT_EQ(check_report("run.json", text + std::string("\0x", 2)).error,
              "'run.json' is not JSON: at line 1, byte " + std::to_string(text.size()) +
                  ": a byte is zero.");
    EXPECT_THAT(check_report("run.json", "{\"threads\": 1,\n\"threads\": 1}").error,
                HasSubstr("at line 2, byte 24 the key 'threads' is there twice"));
    json report = least();
    report["tiers"] = {{{"tier", "nvme"},
                        {"device", 0},
                        {"used_bytes", 0},
                        {"peak_bytes", 0},
                        {"within_budget", true},
                        {"dirty_bytes", 0},
                        {"staging_bytes", 0},
                        {"scratch_bytes", 0},
                        {"evictions", 0}}};
    report["tiers"][0]["budget_bytes"] = UINT64_MAX;
    EXPECT_EQ(refused(report), "");
    report["tiers"][0]["budget_bytes"] = 1e300;
    EXPECT_THAT(refused(report), HasSubstr("'tiers[0].budget_bytes' is 2^64 or more, not a "));
    report["tiers"][0]["budget_bytes"] = uint64_t{1} << 63;
    report["tiers"][0]["device"] = 0.5;
    EXPECT_THAT(refused(report), HasSubstr("'tiers[0].device' is 0.5, not a count"));
}

TEST(ReportJson, ForeignJsonIsRefusedAndATimelineIsKnown)
{
    EXPECT_THAT(refused(json::array({1, 2})), HasSubstr("it is a list, not an object"));
    EXPECT_THAT(refused(json{{"traceEvents", json::array()}}), HasSubstr("ui.perfetto.dev"));
    json newer = least();
    newer["format"] = 2;
    EXPECT_THAT(refused(newer), HasSubstr("has the key 'format' 2 at line "));
}

TEST(ReportJson, APhaseThatHadStepsTellsOfTheLast)
{
    json report = least();
    report["phases"] = {{{"name", "train"}, {"number", 0}, {"steps", 0}, {"aborted", 0}}};
    EXPECT_EQ(refused(report), "");
    report["phases"][0]["steps"] = 3;
    EXPECT_THAT(refused(report), HasSubstr("'phases[0]' had steps and has no key 'last'"));
}

TEST(ReportJson, ASpanNamesOneOfTheTensors)
{
    json report = least();
    const json none = {{"waits", 0},          {"total_ns", 0},      {"nvme_ns", 0},
                       {"host_device_ns", 0}, {"collective_ns", 0}, {"room_ns", 0},
                       {"update_ns", 0}};
    json lane = {{"kind", "link"}, {"lane", "nvme_to_host"}, {"device", 0}};
    lane["spans"] = {{0, 1, 2, 1, 0}};
    report["history"] = {{"steps_total", 0},
                         {"steps", json::array()},
                         {"stalls", {{"tensors", json::array()}, {"others", none}}},
                         {"tiers", json::array()},
                         {"window",
                          {{"begin_ns", 0},
                           {"end_ns", 1},
                           {"steps", 0},
                           {"whole", true},
                           {"tensors", {"a"}},
                           {"lanes", {lane}}}}};
    EXPECT_EQ(refused(report), "");
    report["history"]["window"]["begin_ns"] = 2;
    EXPECT_THAT(refused(report), HasSubstr("'history.window.end_ns' is before it begins"));
    report["history"]["window"]["begin_ns"] = 0;
    report["history"]["window"]["lanes"][0]["spans"][0][4] = 0.5;
    EXPECT_THAT(refused(report), HasSubstr("spans[0][4]' is not the number of one"));
    report["history"]["window"]["lanes"][0]["spans"][0][4] = 1;
    EXPECT_THAT(refused(report), HasSubstr("'history.window.lanes[0].spans[0][4]' is not the "
                                           "number of one of the window's tensors"));
    report["history"]["older_windows"] = {report["history"]["window"]};
    report["history"]["window"]["lanes"][0]["spans"][0][4] = 0;
    EXPECT_THAT(refused(report), HasSubstr("'history.older_windows[0].lanes[0].spans[0][4]' is"));
    report["history"]["window"]["lanes"][0]["spans"][0] = {0, 1};
    EXPECT_THAT(refused(report), HasSubstr("'history.window.lanes[0].spans[0]' is a list, not a "
                                           "list of at least 5 numbers"));
}

TEST(ReportJson, APlanThatCannotBeShownIsSaidAndTheRestIs)
{
    json report = least();
    report["plan"] = {{"phases", {{{"name", "train"}, {"chosen", "lru"}}}}};
    const CheckedReport checked = check_report("run.json", report.dump());
    EXPECT_EQ(checked.error, "");
    EXPECT_THAT(checked.plan_error, HasSubstr("'plan.phases[0]' has no key 'candidates'"));
    EXPECT_THAT(report_page(report.dump(), checked),
                HasSubstr("data-plan=\"The plan of this report cannot be shown: at line 1"));
}

TEST(ReportPage, NothingOfTheReportIsMarkup)
{
    json report = least();
    report["runtime"] = "</title><script>x()</script>&\"";
    const std::string text = report.dump();
    const std::string page = report_page(text, check_report("run.json", text));
    EXPECT_THAT(page, Not(HasSubstr("x()</script>")));
    EXPECT_THAT(page,
                HasSubstr("<title>&lt;/title&gt;&lt;script&gt;x()&lt;/script&gt;&amp;&quot;"));
    const std::string begin = "id=\"run\">";
    const size_t at = page.find(begin) + begin.size();
    const std::string data = page.substr(at, page.find("</script>", at) - at);
    EXPECT_EQ(json::parse(data), report) << "the same report, whatever was escaped";
    EXPECT_EQ(data.find_first_of("<>&"), std::string::npos);
}

TEST(ReportPage, ThePageNeedsNothingElse)
{
    const std::string text = least().dump();
    const std::string page = report_page(text, check_report("run.json", text));
    for (const char *outside : {"http://", "https://", "src=", "href=\"/", "@import", "url("}) {
        const std::string svg = "http://www.w3.org/2000/svg";  // a name, not a place
        std::string rest = page;
        for (size_t at = rest.find(svg); at != std::string::npos; at = rest.find(svg))
            rest.erase(at, svg.size());
        EXPECT_EQ(rest.find(outside), std::string::npos) << outside;
    }
    EXPECT_THAT(page, HasSubstr("default-src 'none'; style-src 'sha256-"));
}

TEST(ReportPage, GoesBesideTheReport)
{
    EXPECT_EQ(page_path_of("a.b/run.json"), "a.b/run.html");
    EXPECT_EQ(page_path_of("run"), "run.html");
}

}  // namespace
}  // namespace stepwell::cli
