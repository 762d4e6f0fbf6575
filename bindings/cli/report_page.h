// SPDX-License-Identifier: Apache-2.0
// `stepwell report`: the report of a run as one page that needs nothing but itself. The page's
// markup, style and script are in report_page/ and put in here when the command is built.
#pragma once

#include <string>

namespace stepwell::cli {

constexpr unsigned long kReportBytesMax = 256ul << 20;
constexpr unsigned kReportFormatMax = 1;  // "format" of the reports that are known

// "run.html" of "run.json".
std::string page_path_of(const std::string &report);
// The text of the file; "" with the sentence why in `error_out`.
std::string read_report_file(const std::string &path, std::string *error_out);
// The name of the runtime; "" with the sentence why in `error_out` where the text is no report that
// is known. What lies inside of its parts is not checked: where that is damaged the page says so.
std::string check_report(const std::string &file, const std::string &text, std::string *error_out);
// `text` passed check_report(), which returned `runtime`.
std::string report_page(const std::string &text, const std::string &runtime);

}  // namespace stepwell::cli
