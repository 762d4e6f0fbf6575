// SPDX-License-Identifier: Apache-2.0
// Error sentences and the lent services.
#include "drivers/common/edge.h"

#include <cstdarg>
#include <cstdio>
#include <ctime>

namespace stepwell::drivers {

stw_status fail(stw_driver_error *error_out, stw_status status, Numbers numbers, const char *format,
                ...)
{
    if (error_out == nullptr || error_out->struct_size < sizeof(stw_driver_error)) return status;
    error_out->os_errno = numbers.os_errno;
    error_out->needed_bytes = numbers.needed_bytes;
    error_out->free_bytes = numbers.free_bytes;
    va_list arguments;
    va_start(arguments, format);
    const int length =
        std::vsnprintf(error_out->sentence, sizeof error_out->sentence, format, arguments);
    va_end(arguments);
    const size_t used = length < 0 ? 0 : static_cast<size_t>(length);
    if (numbers.os_errno != 0 && used < sizeof error_out->sentence) {
        char buffer[128];
        std::snprintf(error_out->sentence + used, sizeof error_out->sentence - used,
                      " [errno %d: %s]", numbers.os_errno,
                      strerror_r(numbers.os_errno, buffer, sizeof buffer));
    }
    return status;
}

std::string bytes_text(uint64_t bytes)
{
    static constexpr const char *kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    char text[64];
    if (bytes < 1024) {
        std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
        return text;
    }
    double value = static_cast<double>(bytes) / 1024;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(kUnits)) {
        value /= 1024;
        ++unit;
    }
    std::snprintf(text, sizeof text, "%.1f %s (%llu bytes)", value, kUnits[unit],
                  static_cast<unsigned long long>(bytes));
    return text;
}

void copy_text(char *destination, size_t capacity, const std::string &text)
{
    const size_t bytes = std::min(capacity - 1, text.size());
    std::memcpy(destination, text.data(), bytes);
    destination[bytes] = '\0';
}

uint64_t Services::now_ns() const
{
    if (services_.now_ns != nullptr) return services_.now_ns(services_.user);
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void Services::log(uint32_t level, const char *topic, const std::string &line) const
{
    if (services_.log != nullptr) services_.log(services_.user, level, topic, line.c_str());
}

}  // namespace stepwell::drivers
