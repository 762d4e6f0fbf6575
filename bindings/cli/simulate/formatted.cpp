// SPDX-License-Identifier: Apache-2.0
#include "formatted.h"

#include <cstdarg>
#include <cstdio>

namespace stepwell::cli {

std::string formatted(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

}  // namespace stepwell::cli
