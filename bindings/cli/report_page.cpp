// SPDX-License-Identifier: Apache-2.0
// The report enters the page as it is, where nothing in it can end the element it stands in: in
// JSON '<', '>' and '&' occur inside of strings alone, and may be written by their numbers there.
#include "report_page.h"

#include "text.h"

#include "report_page_parts.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include <sys/stat.h>

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
    struct stat about;
    if (stat(path.c_str(), &about) != 0) return cannot(std::strerror(errno));
    if (S_ISDIR(about.st_mode)) return cannot("it is a directory");
    if (static_cast<unsigned long>(about.st_size) > kReportBytesMax)
        return cannot("it has " + bytes_text(static_cast<uint64_t>(about.st_size)) +
                      ", more than the " + bytes_text(kReportBytesMax) + " of any report");
    errno = 0;
    std::ifstream in(path, std::ios::binary);
    if (!in) return cannot(std::strerror(errno));
    std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (in.bad()) return cannot(std::strerror(errno));
    return text;
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
