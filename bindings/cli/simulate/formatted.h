// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace stepwell::cli {

// As printf would print it.
std::string formatted(const char *format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace stepwell::cli
