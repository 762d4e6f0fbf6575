// SPDX-License-Identifier: Apache-2.0
// Why an operation of a memory driver failed, for a sentence: the device's own error where the
// driver says it, else what the status means.
#pragma once

#include <stepwell/driver.h>

#include <string>

namespace stepwell::memory {

inline const char *status_text(stw_status code)
{
#define STW_STATUS_TEXT(name, value, text)                                                         \
    if (code == (value)) return text;
    STW_STATUS_MAP(STW_STATUS_TEXT)
#undef STW_STATUS_TEXT
    return "a status this version does not know";
}

// Of the last operation that this thread called.
inline std::string driver_reason(const stw_memory_ops *ops, stw_memory *memory, stw_status code)
{
    std::string reason = status_text(code);
    if ((ops->capabilities & STW_MEMORY_SAYS_WHY) == 0 || code == STW_ERROR_INVALID) return reason;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    ops->why(memory, &error);
    if (error.sentence[0]) reason = error.sentence;
    return reason;
}

}  // namespace stepwell::memory
