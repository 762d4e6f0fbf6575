// SPDX-License-Identifier: Apache-2.0
// Is a text what stw_report_write writes? Checked whole before anything is made of it, so that the
// page's script finds every key with its type. Knows no page.
#pragma once

#include <string>

namespace stepwell::cli {

constexpr unsigned kReportFormatMax = 1;  // "format" of the reports that are known

struct CheckedReport {
    std::string error;    // one sentence that names the file, the line, the byte and the key; or ""
    std::string runtime;  // its name
    // Why "plan" is there and cannot be shown; "" where it is fine or absent.
    std::string plan_error;
};

// `file`: for the sentence.
CheckedReport check_report(const std::string &file, const std::string &text);

}  // namespace stepwell::cli
