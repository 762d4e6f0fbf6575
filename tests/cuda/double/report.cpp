// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/report.h"

#include <cstdarg>
#include <cstdio>
#include <utility>

namespace stepwell::cuda_double {
namespace {

constexpr size_t kViolationsMax = 1000;

}  // namespace

std::string text(const char *format, ...)
{
    char buffer[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(buffer, sizeof buffer, format, arguments);
    va_end(arguments);
    return buffer;
}

void Report::add(int kind, std::string sentence)
{
    if (violations_.size() < kViolationsMax)
        violations_.push_back({kind, std::move(sentence)});
    else
        ++dropped_;
}

std::vector<Violation> Report::take()
{
    dropped_ = 0;
    return std::exchange(violations_, {});
}

}  // namespace stepwell::cuda_double
