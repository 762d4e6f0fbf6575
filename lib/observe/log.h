// SPDX-License-Identifier: Apache-2.0
// The program's log callback, as everything inside sees it. One line at a time, formatted into a
// bounded buffer on the caller's stack; per topic at most so many lines in a window of time.
// Any thread; allocates nothing, takes no lock, never prints. Must not be called with a lock held
// that the program could want: the callback is foreign code.
#pragma once

#include <stepwell/runtime.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>

namespace stepwell::observe {

constexpr uint32_t kLogLineBytesMax = 1024;  // with the final zero; longer lines end in "..."
constexpr uint32_t kLogTopicsMax = 64;       // limited on their own; further topics share a limit

struct LogOptions {
    stw_log_fn callback = nullptr;  // null: silent
    void *user = nullptr;
    uint32_t level = STW_LOG_WARNING;  // lines above it are dropped before they are formatted
    // Of one topic in one window; what came beyond it is counted and told by the topic's first line
    // of a later window. 0: no limit.
    uint32_t lines_per_window = 0;
    uint64_t window_ns = 1'000'000'000;
    uint64_t (*now_ns)(void *user) = nullptr;  // needed with a limit
    void *now_user = nullptr;
};

class Log {
public:
    explicit Log(const LogOptions &options) : options_(options) {}
    Log(const Log &) = delete;
    Log &operator=(const Log &) = delete;

    // Whether a line of this level would be heard: ask before computing what is costly to tell.
    [[nodiscard]] bool wants(uint32_t level) const
    {
        return options_.callback != nullptr && level != 0 && level <= options_.level &&
               !silent_.load(std::memory_order_relaxed);
    }
    // No call begins from now on, and none is under way when this returns: what the callback needs
    // may go then. Blocks for calls under way, so never from inside one.
    void silence();
    // Control characters become spaces: one call is one line.
    void print(uint32_t level, const char *topic, const char *format, ...)
        __attribute__((format(printf, 4, 5)));
    void print_list(uint32_t level, const char *topic, const char *format, va_list arguments);
    // A ready line; fits stw_services.log, with the Log as user.
    void line(uint32_t level, const char *topic, const char *text);
    static void service(void *log, uint32_t level, const char *topic, const char *text);

    // Lines that the limit kept back since open.
    [[nodiscard]] uint64_t suppressed() const
    {
        return suppressed_.load(std::memory_order_relaxed);
    }

private:
    struct Topic {
        std::atomic<uint64_t> hash{0};    // of the name; 0: free
        std::atomic<uint64_t> window{0};  // number of the window + 1
        std::atomic<uint32_t> lines{0};   // let through in it
        std::atomic<uint32_t> held{0};    // kept back and not yet told
    };

    bool admit(const char *topic, uint32_t *held_out);
    void tell(uint32_t level, const char *topic, const char *text);
    Topic &topic_of(const char *name);

    const LogOptions options_;
    std::atomic<bool> silent_{false};
    std::atomic<uint32_t> calls_{0};  // of the callback, under way
    std::atomic<uint64_t> suppressed_{0};
    std::array<Topic, kLogTopicsMax + 1> topics_;  // the last one is shared
};

}  // namespace stepwell::observe
