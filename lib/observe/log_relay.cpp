// SPDX-License-Identifier: Apache-2.0
#include "lib/observe/log_relay.h"

#include "lib/support/thread.h"

#include <new>
#include <utility>

namespace stepwell::observe {

Status LogRelay::start()
{
    return start_thread(thread_, "stw-log", "the log", [this] { run(); });
}

void LogRelay::line(void *relay, uint32_t level, const char *topic, const char *text)
{
    auto *mine = static_cast<LogRelay *>(relay);
    MutexLock lock(mine->mutex_);
    if (mine->stops_) return;
    try {
        if (mine->lines_.size() < kLinesMax)
            mine->lines_.push_back({level, topic, text});
        else
            ++mine->dropped_;
    } catch (const std::bad_alloc &) {
        ++mine->dropped_;
    }
    mine->changed_.notify_all();
}

void LogRelay::run()
{
    MutexLock lock(mutex_);
    for (;;) {
        while (!stops_ && lines_.empty()) changed_.wait(mutex_);
        if (lines_.empty()) return;
        const Line line = std::move(lines_.front());
        lines_.pop_front();
        const uint64_t dropped = std::exchange(dropped_, 0);
        calling_ = true;
        mutex_.unlock();
        callback_(user_, line.level, line.topic.c_str(), line.text.c_str());
        if (dropped > 0) {
            const std::string text =
                std::to_string(dropped) + " lines were left out: the program's callback was slow";
            callback_(user_, STW_LOG_WARNING, "log", text.c_str());
        }
        mutex_.lock();
        calling_ = false;
        changed_.notify_all();
    }
}

void LogRelay::stop()
{
    {
        MutexLock lock(mutex_);
        stops_ = true;
        changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
}

void LogRelay::silence()
{
    MutexLock lock(mutex_);
    lines_.clear();
    while (calling_) changed_.wait(mutex_);
}

}  // namespace stepwell::observe
