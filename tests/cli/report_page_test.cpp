// SPDX-License-Identifier: Apache-2.0
// What is taken for a report and what is not; and that nothing of a report can end the element of
// the page it stands in.
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

// The sentence, or "".
std::string refusal(const std::string &text, const std::string &file = "run.json")
{
    std::string error;
    const std::string runtime = check_report(file, text, &error);
    EXPECT_EQ(runtime, error.empty() ? "r" : "");
    return error;
}

TEST(ReportCheck, TheLeastReportIsTakenAndItsNameIsKnown)
{
    std::string error;
    EXPECT_EQ(check_report("run.json", least().dump(), &error), "r");
    EXPECT_EQ(error, "");
}

TEST(ReportCheck, WhatIsEmptyCutOrDamagedIsRefused)
{
    EXPECT_EQ(refusal(" \n"),
              "'run.json' is empty; name a file that stw_report_write has written.");
    EXPECT_THAT(refusal("{\n \"a\": tru }"),
                HasSubstr("'run.json' is not JSON: parse error at line 2, column 10: "));
    EXPECT_THAT(refusal("{\"a\": \"\xff\"}"), HasSubstr("is not JSON"));
    EXPECT_THAT(refusal("{", "a\nb"), Not(HasSubstr("\n")));
    EXPECT_EQ(refusal("{\"format\": 1e400}"),
              "'run.json' is not JSON: number overflow parsing '1e400'.");
    const std::string whole = least().dump();
    EXPECT_EQ(refusal(whole + std::string("\0x", 2)),
              "'run.json' is not JSON: a byte of it is zero.");
    for (size_t bytes = 1; bytes < whole.size(); ++bytes)
        EXPECT_THAT(refusal(whole.substr(0, bytes)), HasSubstr("is not JSON: ")) << bytes;
}

TEST(ReportCheck, AMissingKeyIsNamed)
{
    const json whole = least();
    for (const auto &[key, value] : whole.items()) {
        json report = whole;
        report.erase(key);
        EXPECT_EQ(refusal(report.dump()),
                  "'run.json' is no report of stw_report_write: it has no key '" + key +
                      "'; name a file that stw_report_write has written.");
    }
    json report = least();
    report["format"] = "1";
    EXPECT_THAT(refusal(report.dump()), HasSubstr("its 'format' is not a count; name a file"));
    report = least();
    report["runtime"] = 1;
    EXPECT_THAT(refusal(report.dump()), HasSubstr("its 'runtime' is not text; name a file"));
}

TEST(ReportCheck, ForeignJsonIsRefusedAndATimelineIsKnown)
{
    EXPECT_THAT(refusal("[1, 2]"), HasSubstr("it is not an object; name a file"));
    EXPECT_THAT(refusal(R"({"format": 1, "directories": []})"), HasSubstr("no key 'runtime'"));
    EXPECT_THAT(refusal(R"({"traceEvents": []})"), HasSubstr("ui.perfetto.dev"));
}

TEST(ReportCheck, ANewerFormatIsSaidWhateverItLacks)
{
    EXPECT_EQ(refusal(R"({"format": 2, "runtime": "r"})"),
              "'run.json' has the format 2; this stepwell knows 1, so use that of the library "
              "that wrote it.");
}

TEST(ReportPage, NothingOfTheReportIsMarkup)
{
    json report = least();
    report["runtime"] = "</title><script>x()</script>&\"";
    const std::string text = report.dump();
    const std::string page = report_page(text, report["runtime"]);
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
    const std::string page = report_page(text, "r");
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
