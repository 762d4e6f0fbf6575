// SPDX-License-Identifier: Apache-2.0
// Lines of the log on their way to the program on a thread of their own, so that no other thread of
// the library ever waits for what the program's callback wants: the lock of an interpreter, say,
// which a thread may hold that waits for the library.
#pragma once

#include "lib/support/status.h"

#include <stepwell/runtime.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace stepwell::observe {

class LogRelay {
public:
    LogRelay(stw_log_fn callback, void *user) : callback_(callback), user_(user) {}
    ~LogRelay() { stop(); }
    LogRelay(const LogRelay &) = delete;
    LogRelay &operator=(const LogRelay &) = delete;

    Status start();
    // For LogOptions, with the relay as user. Past kLinesMax a line is dropped and counted.
    static void line(void *relay, uint32_t level, const char *topic, const char *text);
    // All lines have been delivered, and none comes after this.
    void stop();
    // Those that wait are dropped, and no call is under way when this returns.
    void silence();

private:
    static constexpr size_t kLinesMax = 4096;
    struct Line {
        uint32_t level;
        std::string topic;
        std::string text;
    };

    void run();

    const stw_log_fn callback_;
    void *const user_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Line> lines_;
    uint64_t dropped_ = 0;
    bool calling_ = false;
    bool stops_ = false;
    std::thread thread_;
};

}  // namespace stepwell::observe
