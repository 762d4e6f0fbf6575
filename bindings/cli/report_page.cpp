// SPDX-License-Identifier: Apache-2.0
// The report enters the page as it is, where nothing in it can end the element it stands in: in
// JSON '<', '>' and '&' occur inside of strings alone, and may be written by their numbers there.
#include "report_page.h"

#include "text.h"
#include "whole_file.h"

#include "report_page_parts.h"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <string_view>

namespace stepwell::cli {

namespace {

using ReportTree = nlohmann::json;

template <size_t N> std::string_view part(const unsigned char (&bytes)[N])
{
    return {reinterpret_cast<const char *>(bytes), N};
}

std::string with_numbers(const std::string &json)
{
    std::string text;
    text.reserve(json.size() + json.size() / 64);
    for (const char c : json) {
        switch (c) {
        case '<': text += "\\u003c"; break;
        case '>': text += "\\u003e"; break;
        case '&': text += "\\u0026"; break;
        default: text += c;
        }
    }
    return text;
}

std::string as_markup(const std::string &words)
{
    std::string text;
    for (const char c : words) {
        switch (c) {
        case '<': text += "&lt;"; break;
        case '>': text += "&gt;"; break;
        case '&': text += "&amp;"; break;
        case '"': text += "&quot;"; break;
        default: text += c;
        }
    }
    return text;
}

// "" or the first of the keys that an object lacks.
std::string missing_key(const ReportTree &report, std::initializer_list<const char *> keys)
{
    for (const char *key : keys)
        if (!report.contains(key)) return key;
    return "";
}

// What is wrong with a text that is JSON, after the file's name; "" if nothing.
std::string why_no_report(const ReportTree &report)
{
    const std::string no = " is no report of stw_report_write: ";
    const std::string other = "; name a file that stw_report_write has written.";
    if (!report.is_object()) return no + "it is not an object" + other;
    if (report.contains("traceEvents"))
        return no + "it looks like a timeline, which ui.perfetto.dev opens.";
    std::string key = missing_key(report, {"format", "runtime"});
    if (!key.empty()) return no + "it has no key '" + key + "'" + other;
    if (!report["format"].is_number_unsigned()) return no + "its 'format' is not a count" + other;
    if (!report["runtime"].is_string()) return no + "its 'runtime' is not text" + other;
    // Before the other keys, which a newer format may not have.
    if (report["format"] > kReportFormatMax) {
        return " has the format " + report["format"].dump() + "; this stepwell knows " +
               std::to_string(kReportFormatMax) + ", so use that of the library that wrote it.";
    }
    key = missing_key(report, {"version", "block_bytes", "elapsed_ns", "threads", "tiers", "links",
                               "drivers", "phases", "waste", "errors"});
    return key.empty() ? "" : no + "it has no key '" + key + "'" + other;
}

}  // namespace

std::string page_path_of(const std::string &report)
{
    std::filesystem::path path(report);
    return path.replace_extension(".html");
}

std::string read_report_file(const std::string &path, std::string *error_out)
{
    const auto cannot = [&](const std::string &why) {
        *error_out = "The report '" + printable(path) + "' cannot be read: " + why +
                     "; name a file that stw_report_write has written.";
        return std::string();
    };
    std::string text;
    const int cause = read_whole(path, kReportBytesMax, &text);
    if (cause == EFBIG)
        return cannot("it has more than the " + bytes_text(kReportBytesMax) + " of any report");
    return cause != 0 ? cannot(std::strerror(cause)) : text;
}

std::string check_report(const std::string &file, const std::string &text, std::string *error_out)
{
    const std::string name = "'" + printable(file) + "'";
    if (trimmed(text).empty()) {
        *error_out = name + " is empty; name a file that stw_report_write has written.";
        return "";
    }
    if (text.find('\0') != std::string::npos) {  // which the parser would take for the end
        *error_out = name + " is not JSON: a byte of it is zero.";
        return "";
    }
    try {
        const ReportTree report = ReportTree::parse(text);
        const std::string why = why_no_report(report);
        if (why.empty()) return report["runtime"];
        *error_out = name + why;
    } catch (const ReportTree::exception &error) {
        *error_out = name + " is not JSON: " + printable(parser_words(error.what())) + ".";
    }
    return "";
}

std::string report_page(const std::string &text, const std::string &runtime)
{
    std::string page(part(kPageHead));
    page += as_markup(runtime.empty() ? "A run" : printable(runtime));
    page += " - Stepwell run report";
    page += part(kPageMiddle);
    page += "<script type=\"application/json\" id=\"run\">" + with_numbers(text) + "</script>";
    page += part(kPageTail);
    return page;
}

}  // namespace stepwell::cli
