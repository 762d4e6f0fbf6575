// SPDX-License-Identifier: Apache-2.0
// STW_ASSERT: a mistake of ours, never of the caller's; one condition each, on in release builds.
// The library does not abort inside a host program: the first failed assertion is recorded, and the
// runtime that the thread works for refuses further calls with STW_ERROR_INTERNAL. Others go on.
#pragma once

#include <atomic>
#include <cstdint>

namespace stepwell {

// The assertions that failed on threads that work for one runtime. Lock-free; any thread.
class AssertionLog {
public:
    constexpr AssertionLog() = default;

    void note(const char *condition, const char *file, int line) noexcept;
    // Their number; the text of the first one in the caller's buffer.
    uint64_t failures(char *text, uint32_t capacity) const noexcept;
    [[nodiscard]] bool any() const noexcept { return count_.load(std::memory_order_relaxed) > 0; }
    // Before anybody else knows the runtime.
    void clear() noexcept;

private:
    static constexpr uint32_t kTextBytes = 256;

    std::atomic<uint64_t> count_{0};
    std::atomic<bool> text_ready_{false};
    char first_[kTextBytes] = {};
};

// Sets the log that failures on this thread go to, that of the runtime it works for. Null: the log
// of the process. A log must outlive the threads that it is set on.
void set_assertion_log(AssertionLog *log) noexcept;
[[nodiscard]] AssertionLog *assertion_log() noexcept;

// Records the failure. Tests install a handler that stops the program.
void assertion_failed(const char *condition, const char *file, int line) noexcept;
using AssertionHandler = void (*)(const char *condition, const char *file, int line);
void set_assertion_handler(AssertionHandler handler) noexcept;
// Those of threads that work for no runtime.
uint64_t assertion_failures(char *text, uint32_t capacity) noexcept;

}  // namespace stepwell

#define STW_ASSERT(condition)                                                                      \
    (__builtin_expect(!!(condition), 1)                                                            \
         ? (void)0                                                                                 \
         : ::stepwell::assertion_failed(#condition, __FILE__, __LINE__))
