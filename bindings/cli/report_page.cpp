// SPDX-License-Identifier: Apache-2.0
// The report enters the page as it is, where nothing in it can end the element it stands in: in
// JSON '<', '>' and '&' occur inside of strings alone, and may be written by their numbers there.
#include "report_page.h"

#include "text.h"
#include "whole_file.h"

#include "report_page_parts.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace stepwell::cli {

namespace {

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

std::string report_page(const std::string &text, const CheckedReport &checked)
{
    std::string page(part(kPageHead));
    page += as_markup(checked.runtime.empty() ? "A run" : printable(checked.runtime));
    page += " - Stepwell run report";
    page += part(kPageMiddle);
    page += "<script type=\"application/json\" id=\"run\"";
    if (!checked.plan_error.empty()) page += " data-plan=\"" + as_markup(checked.plan_error) + "\"";
    page += ">" + with_numbers(text) + "</script>";
    page += part(kPageTail);
    return page;
}

}  // namespace stepwell::cli
