// SPDX-License-Identifier: Apache-2.0
// Lines of the log on their way to the program on a thread of their own, so that no other thread of
// the library ever waits for what the program's callback wants: the lock of an interpreter, say,
// which a thread may hold that waits for the library.
#pragma once

#include "lib/support/status.h"
#include "lib/support/thread_annotations.h"

#include <stepwell/runtime.h>

#include <deque>
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
    Mutex mutex_;
    Condition changed_;
    std::deque<Line> lines_ STW_GUARDED_BY(mutex_);
    uint64_t dropped_ STW_GUARDED_BY(mutex_) = 0;
    bool calling_ STW_GUARDED_BY(mutex_) = false;
    bool stops_ STW_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace stepwell::observe
