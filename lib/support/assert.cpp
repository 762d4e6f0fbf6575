// SPDX-License-Identifier: Apache-2.0
// Assertions: count, keep the text of the first, call the handler of a test if there is one.
#include "lib/support/assert.h"

#include <atomic>
#include <cstdio>
#include <cstring>

namespace stepwell {
namespace {

constexpr uint32_t kTextBytes = 256;
std::atomic<uint64_t> failures{0};
std::atomic<bool> text_ready{false};
std::atomic<AssertionHandler> handler{nullptr};
char first_text[kTextBytes];

}  // namespace

void assertion_failed(const char *condition, const char *file, int line) noexcept
{
    if (failures.fetch_add(1) == 0) {
        std::snprintf(first_text, sizeof first_text, "%s:%d: %s", file, line, condition);
        text_ready.store(true, std::memory_order_release);
    }
    if (AssertionHandler call = handler.load()) call(condition, file, line);
}

void set_assertion_handler(AssertionHandler replacement) noexcept
{
    handler.store(replacement);
}

uint64_t assertion_failures(char *text, uint32_t capacity) noexcept
{
    if (capacity > 0) {
        const bool ready = text_ready.load(std::memory_order_acquire);
        std::snprintf(text, capacity, "%s", ready ? first_text : "");
    }
    return failures.load();
}

}  // namespace stepwell
