// SPDX-License-Identifier: Apache-2.0
// `stepwell report`: the report of a run as one page that needs nothing but itself. The page's
// markup, style and script are in report_page/ and put in here when the command is built.
#pragma once

#include "report_json.h"

#include <string>

namespace stepwell::cli {

constexpr unsigned long kReportBytesMax = 256ul << 20;

// "run.html" of "run.json".
std::string page_path_of(const std::string &report);
// The text of the file; "" with the sentence why in `error_out`.
std::string read_report_file(const std::string &path, std::string *error_out);
// `text` was found right.
std::string report_page(const std::string &text, const CheckedReport &checked);

}  // namespace stepwell::cli
