// SPDX-License-Identifier: Apache-2.0
// Log: format on the stack, limit by topic, hand to the program. Any thread, no lock: counters of a
// topic are atomics, and a race at the edge of a window may let a line too many through, never hold
// back one that nobody counts.
#include "lib/observe/log.h"

#include <cstdio>
#include <cstring>

namespace stepwell::observe {

namespace {

constexpr char kCut[] = "...";

uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (; *name != '\0'; ++name) {
        hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001b3;
    }
    return hash == 0 ? 1 : hash;
}

// Others' text (a path, a name) must not be able to begin a line of its own.
void make_one_line(char *text)
{
    for (; *text != '\0'; ++text) {
        const unsigned char c = static_cast<unsigned char>(*text);
        if (c < 0x20 || c == 0x7f) *text = ' ';
    }
}

// Of a UTF-8 sequence that ends beyond `end`, nothing is kept.
size_t whole_characters(const char *text, size_t end)
{
    size_t begin = end;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    return begin;
}

}  // namespace

void Log::print(uint32_t level, const char *topic, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_list(level, topic, format, arguments);
    va_end(arguments);
}

void Log::print_list(uint32_t level, const char *topic, const char *format, va_list arguments)
{
    if (!wants(level)) return;
    uint32_t held = 0;
    if (!admit(topic, &held)) return;

    char text[kLogLineBytesMax];
    int length = std::vsnprintf(text, sizeof text, format, arguments);
    if (length < 0) length = std::snprintf(text, sizeof text, "%s", format);
    if (static_cast<size_t>(length) >= sizeof text) {
        const size_t cut = whole_characters(text, sizeof text - sizeof kCut);
        std::memcpy(text + cut, kCut, sizeof kCut);
    }
    make_one_line(text);
    if (held > 0) {
        char told[96];
        std::snprintf(told, sizeof told, "%u lines of this topic were left out before the next one",
                      held);
        tell(level, topic, told);
    }
    tell(level, topic, text);
}

// Either this sees the flag, or silence() sees the call.
void Log::tell(uint32_t level, const char *topic, const char *text)
{
    calls_.fetch_add(1);
    if (!silent_.load()) options_.callback(options_.user, level, topic, text);
    if (calls_.fetch_sub(1) == 1 && silent_.load()) calls_.notify_all();
}

void Log::silence()
{
    silent_.store(true);
    for (uint32_t calls = calls_.load(); calls > 0; calls = calls_.load()) calls_.wait(calls);
}

void Log::line(uint32_t level, const char *topic, const char *text)
{
    print(level, topic, "%s", text);
}

void Log::service(void *log, uint32_t level, const char *topic, const char *text)
{
    static_cast<Log *>(log)->line(level, topic, text);
}

Log::Topic &Log::topic_of(const char *name)
{
    const uint64_t hash = hash_of(name);
    for (uint32_t i = 0; i < kLogTopicsMax; ++i) {
        Topic &topic = topics_[(hash + i) % kLogTopicsMax];
        uint64_t seen = topic.hash.load(std::memory_order_relaxed);
        if (seen == 0 &&
            topic.hash.compare_exchange_strong(seen, hash, std::memory_order_relaxed)) {
            return topic;
        }
        if (seen == hash) return topic;
    }
    return topics_[kLogTopicsMax];
}

bool Log::admit(const char *name, uint32_t *held_out)
{
    if (options_.lines_per_window == 0 || options_.now_ns == nullptr) return true;
    Topic &topic = topic_of(name);
    const uint64_t length = options_.window_ns == 0 ? 1 : options_.window_ns;
    const uint64_t window = options_.now_ns(options_.now_user) / length + 1;
    uint64_t seen = topic.window.load(std::memory_order_relaxed);
    // One thread opens the window; a clock that another core read a little earlier does not.
    if (window > seen &&
        topic.window.compare_exchange_strong(seen, window, std::memory_order_relaxed)) {
        topic.lines.store(0, std::memory_order_relaxed);
    }
    if (topic.lines.fetch_add(1, std::memory_order_relaxed) >= options_.lines_per_window) {
        topic.held.fetch_add(1, std::memory_order_relaxed);
        suppressed_.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    *held_out = topic.held.exchange(0, std::memory_order_relaxed);
    return true;
}

}  // namespace stepwell::observe
