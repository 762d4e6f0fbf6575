// SPDX-License-Identifier: Apache-2.0
// Status: sentences are formatted where the cause is known, and only on failure.
#include "lib/support/status.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace stepwell {

Status &Status::operator=(const Status &other)
{
    if (this == &other) return *this;
    code_ = other.code_;
    detail_ = other.detail_ ? std::make_unique<ErrorDetail>(*other.detail_) : nullptr;
    return *this;
}

std::string format_text_list(const char *format, va_list arguments)
{
    char buffer[512];  // most are shorter
    va_list again;
    va_copy(again, arguments);
    const int printed = std::vsnprintf(buffer, sizeof buffer, format, arguments);
    const size_t length = printed > 0 ? static_cast<size_t>(printed) : 0;
    std::string text(buffer, std::min(length, sizeof buffer - 1));
    if (text.size() < length) {
        text.resize(length);
        std::vsnprintf(text.data(), length + 1, format, again);
    }
    va_end(again);
    return text;
}

std::string format_text(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    std::string text = format_text_list(format, arguments);
    va_end(arguments);
    return text;
}

Status Status::error(stw_status code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    ErrorDetail detail;
    detail.sentence = format_text_list(format, arguments);
    va_end(arguments);
    return {code, std::move(detail)};
}

Status Status::os_error(stw_status code, int os_errno, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    ErrorDetail detail;
    detail.sentence = format_text_list(format, arguments);
    va_end(arguments);
    char buffer[128];
    detail.sentence +=
        format_text(" [errno %d: %s]", os_errno, strerror_r(os_errno, buffer, sizeof buffer));
    detail.os_errno = os_errno;
    return {code, std::move(detail)};
}

const char *Status::sentence() const
{
    return detail_ ? detail_->sentence.c_str() : "";
}

ErrorDetail &Status::mutable_detail()
{
    if (!detail_) detail_ = std::make_unique<ErrorDetail>();
    return *detail_;
}

std::string bytes_text(uint64_t bytes)
{
    constexpr uint64_t kKiB = 1024;
    constexpr uint64_t kMiB = kKiB * 1024;
    constexpr uint64_t kGiB = kMiB * 1024;
    const auto scaled = [bytes](uint64_t unit) {
        return static_cast<double>(bytes) / static_cast<double>(unit);
    };
    if (bytes >= 10 * kGiB) return format_text("%.1f GiB", scaled(kGiB));
    if (bytes >= kMiB) return format_text("%.1f MiB", scaled(kMiB));
    if (bytes >= 10 * kKiB) return format_text("%.1f KiB", scaled(kKiB));
    return format_text("%llu bytes", static_cast<unsigned long long>(bytes));
}

namespace {

std::string named_text(const char *kind, std::string_view name)
{
    constexpr size_t kShown = 255;
    if (name.empty()) return format_text("a %s without a name", kind);
    return format_text("%s '%.*s'", kind, static_cast<int>(std::min(name.size(), kShown)),
                       name.data());
}

}  // namespace

std::string tensor_text(std::string_view name)
{
    return named_text("tensor", name);
}

std::string parameter_text(std::string_view name)
{
    return named_text("parameter", name);
}

std::string sum_text(std::initializer_list<BytesPart> parts)
{
    uint64_t sum = 0;
    std::string text;
    for (const BytesPart &part : parts) {
        sum += part.bytes;
        const bool last = &part == parts.end() - 1;
        if (part.bytes == 0 && !last) continue;
        text += format_text("%s%s %s", text.empty() ? " = " : " + ", bytes_text(part.bytes).c_str(),
                            part.of);
    }
    return bytes_text(sum) + text;
}

}  // namespace stepwell
