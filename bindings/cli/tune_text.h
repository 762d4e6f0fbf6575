// SPDX-License-Identifier: Apache-2.0
// Of `stepwell tune` for a reader: the results as a table, and how far it is.
#pragma once

#include "tune.h"

#include <cstdio>
#include <string>

namespace stepwell::cli {

std::string tuned_text(const Tuned &tuned);

// A bar on a terminal, gone when this is; elsewhere a line for each subject.
class ProgressLine {
public:
    explicit ProgressLine(std::FILE *out);
    ~ProgressLine();
    ProgressLine(const ProgressLine &) = delete;
    ProgressLine &operator=(const ProgressLine &) = delete;
    void show(const std::string &what, double share);

private:
    std::FILE *out_;
    bool terminal_;
    std::string subject_;
    size_t length_ = 0;
};

}  // namespace stepwell::cli
