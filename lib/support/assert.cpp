// SPDX-License-Identifier: Apache-2.0
// Assertions: count, keep the text of the first, call the handler of a test if there is one.
#include "lib/support/assert.h"

#include <cstdio>

namespace stepwell {
namespace {

AssertionLog of_process;
thread_local AssertionLog *of_thread = nullptr;
std::atomic<AssertionHandler> handler{nullptr};

}  // namespace

void AssertionLog::note(const char *condition, const char *file, int line) noexcept
{
    if (count_.fetch_add(1) > 0) return;
    std::snprintf(first_, sizeof first_, "%s:%d: %s", file, line, condition);
    text_ready_.store(true, std::memory_order_release);
}

uint64_t AssertionLog::failures(char *text, uint32_t capacity) const noexcept
{
    if (capacity > 0) {
        const bool ready = text_ready_.load(std::memory_order_acquire);
        std::snprintf(text, capacity, "%s", ready ? first_ : "");
    }
    return count_.load();
}

void AssertionLog::clear() noexcept
{
    text_ready_.store(false);
    count_.store(0);
}

void set_assertion_log(AssertionLog *log) noexcept
{
    of_thread = log;
}

AssertionLog *assertion_log() noexcept
{
    return of_thread;
}

void assertion_failed(const char *condition, const char *file, int line) noexcept
{
    (of_thread != nullptr ? *of_thread : of_process).note(condition, file, line);
    if (AssertionHandler call = handler.load()) call(condition, file, line);
}

void set_assertion_handler(AssertionHandler replacement) noexcept
{
    handler.store(replacement);
}

uint64_t assertion_failures(char *text, uint32_t capacity) noexcept
{
    return of_process.failures(text, capacity);
}

}  // namespace stepwell
