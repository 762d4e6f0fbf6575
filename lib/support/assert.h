// SPDX-License-Identifier: Apache-2.0
// STW_ASSERT: a mistake of ours, never of the caller's; one condition each, on in release builds.
// The library does not abort inside a host program: the first failed assertion is recorded, the
// runtime that owns the thread refuses further calls with STW_ERROR_INTERNAL.
#pragma once

#include <cstdint>

namespace stepwell {

// Records the failure (first one kept). Tests install a handler that stops the program.
void assertion_failed(const char *condition, const char *file, int line) noexcept;
using AssertionHandler = void (*)(const char *condition, const char *file, int line);
void set_assertion_handler(AssertionHandler handler) noexcept;
// Assertions that failed in this process; text of the first in the caller's buffer.
uint64_t assertion_failures(char *text, uint32_t capacity) noexcept;

}  // namespace stepwell

#define STW_ASSERT(condition)                                                                      \
    (__builtin_expect(!!(condition), 1)                                                            \
         ? (void)0                                                                                 \
         : ::stepwell::assertion_failed(#condition, __FILE__, __LINE__))
