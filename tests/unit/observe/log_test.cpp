// SPDX-License-Identifier: Apache-2.0
// The log: one line per call, bounded, silent without a callback, limited per topic by a clock that
// the test holds.
#include "lib/observe/log.h"
#include "lib/observe/log_relay.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace stepwell::observe {
namespace {

struct Line {
    uint32_t level;
    std::string topic;
    std::string text;
};

struct Heard {
    std::mutex mutex;
    std::vector<Line> lines;
    uint64_t now_ns = 0;

    static void take(void *user, uint32_t level, const char *topic, const char *line)
    {
        auto *heard = static_cast<Heard *>(user);
        const std::lock_guard lock(heard->mutex);
        heard->lines.push_back({level, topic, line});
    }
    static uint64_t now(void *user) { return static_cast<Heard *>(user)->now_ns; }

    LogOptions options(uint32_t level, uint32_t lines_per_window = 0)
    {
        LogOptions options;
        options.callback = take;
        options.user = this;
        options.level = level;
        options.lines_per_window = lines_per_window;
        options.window_ns = 1000;
        options.now_ns = now;
        options.now_user = this;
        return options;
    }
};

TEST(Log, HandsLevelTopicAndLineToTheProgram)
{
    Heard heard;
    Log log(heard.options(STW_LOG_INFO));
    log.print(STW_LOG_WARNING, "store", "%s is full at %d %%", "/a", 97);
    ASSERT_EQ(heard.lines.size(), 1u);
    EXPECT_EQ(heard.lines[0].level, uint32_t{STW_LOG_WARNING});
    EXPECT_EQ(heard.lines[0].topic, "store");
    EXPECT_EQ(heard.lines[0].text, "/a is full at 97 %");
}

TEST(Log, LinesAboveTheLevelAreNotHeard)
{
    Heard heard;
    Log log(heard.options(STW_LOG_WARNING));
    EXPECT_TRUE(log.wants(STW_LOG_ERROR));
    EXPECT_FALSE(log.wants(STW_LOG_INFO));
    log.print(STW_LOG_INFO, "store", "not now");
    log.print(0, "store", "no level");
    EXPECT_TRUE(heard.lines.empty());
    log.print(STW_LOG_WARNING, "store", "now");
    EXPECT_EQ(heard.lines.size(), 1u);
}

TEST(Log, IsSilentWithoutACallback)
{
    Log log(LogOptions{});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    log.print(STW_LOG_ERROR, "store", "nobody listens");
    EXPECT_FALSE(log.wants(STW_LOG_ERROR));
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, SilenceWaitsForTheCallUnderWayAndLetsNoOtherBegin)
{
    struct Slow {
        std::atomic<int> calls{0};
        std::atomic<bool> inside{false};
        std::atomic<bool> may_go{false};
    } slow;
    LogOptions options;
    options.user = &slow;
    options.callback = [](void *user, uint32_t, const char *, const char *) {
        auto *mine = static_cast<Slow *>(user);
        ++mine->calls;
        mine->inside = true;
        mine->inside.notify_all();
        mine->may_go.wait(false);
        mine->inside = false;
    };
    Log log(options);
    std::thread teller([&] { log.print(STW_LOG_ERROR, "t", "first"); });
    slow.inside.wait(false);
    bool left_inside = true;
    std::thread silencer([&] {
        log.silence();
        left_inside = slow.inside;
    });
    while (log.wants(STW_LOG_ERROR)) std::this_thread::yield();
    log.print(STW_LOG_ERROR, "t", "second");
    slow.may_go = true;
    slow.may_go.notify_all();
    teller.join();
    silencer.join();
    EXPECT_FALSE(left_inside);
    EXPECT_EQ(slow.calls, 1);
}

TEST(Log, ALongLineEndsInDotsAndAWholeCharacter)
{
    Heard heard;
    Log log(heard.options(STW_LOG_INFO));
    for (const char *lead : {"", "a"}) {  // the cut falls on both bytes of a character
        std::string text = lead;
        while (text.size() < 2 * kLogLineBytesMax) text += "\xc3\xa9";
        log.print(STW_LOG_INFO, "t", "%s", text.c_str());
        const std::string &line = heard.lines.back().text;
        EXPECT_LT(line.size(), size_t{kLogLineBytesMax});
        EXPECT_GT(line.size(), size_t{kLogLineBytesMax} - 4);
        EXPECT_EQ(line.substr(line.size() - 3), "...");
        EXPECT_EQ((line.size() - 3 - text.find('\xc3')) % 2, 0u) << "half a character is left";
        EXPECT_EQ(text.compare(0, line.size() - 3, line, 0, line.size() - 3), 0);
    }
    std::string fits(kLogLineBytesMax - 1, 'x');
    log.print(STW_LOG_INFO, "t", "%s", fits.c_str());
    EXPECT_EQ(heard.lines.back().text, fits);
}

TEST(Log, ANameWithALineBreakStaysOneLine)
{
    Heard heard;
    Log log(heard.options(STW_LOG_INFO));
    log.line(STW_LOG_INFO, "t", "tensor 'a\nERROR all is lost\x1b[2J\x7f'");
    EXPECT_EQ(heard.lines[0].text, "tensor 'a ERROR all is lost [2J '");
}

TEST(Log, TheServiceOfDriversGoesTheSameWay)
{
    Heard heard;
    Log log(heard.options(STW_LOG_INFO));
    Log::service(&log, STW_LOG_INFO, "aio", "100 % and %s are no formats here");
    EXPECT_EQ(heard.lines[0].text, "100 % and %s are no formats here");
}

TEST(Log, ATopicThatFloodsIsCutOffAndSaysHowMuchWasLeftOut)
{
    Heard heard;
    Log log(heard.options(STW_LOG_INFO, 3));
    for (int i = 0; i < 10; ++i) log.print(STW_LOG_INFO, "store", "line %d", i);
    EXPECT_EQ(heard.lines.size(), 3u);
    EXPECT_EQ(log.suppressed(), 7u);
    log.print(STW_LOG_INFO, "transfer", "another topic is heard");
    EXPECT_EQ(heard.lines.size(), 4u);

    heard.now_ns = 1000;
    log.print(STW_LOG_INFO, "store", "later");
    ASSERT_EQ(heard.lines.size(), 6u);
    EXPECT_EQ(heard.lines[4].text, "7 lines of this topic were left out before the next one");
    EXPECT_EQ(heard.lines[4].topic, "store");
    EXPECT_EQ(heard.lines[5].text, "later");

    log.print(STW_LOG_INFO, "store", "again");
    EXPECT_EQ(heard.lines.size(), 7u) << "what was told is not told twice";
}

TEST(Log, MoreTopicsThanPlacesShareOneLimit)
{
    Heard heard;
    Log log(heard.options(STW_LOG_INFO, 1));
    for (uint32_t i = 0; i < kLogTopicsMax + 10; ++i) {
        log.line(STW_LOG_INFO, ("topic" + std::to_string(i)).c_str(), "x");
    }
    EXPECT_EQ(heard.lines.size(), size_t{kLogTopicsMax} + 1);
    EXPECT_EQ(log.suppressed(), 9u);
}

TEST(Log, EveryLineOfManyThreadsIsHeardOrCounted)
{
    Heard heard;
    Log log(heard.options(STW_LOG_INFO, 100));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&log, t] {
            for (int i = 0; i < 500; ++i) log.print(STW_LOG_INFO, "shared", "%d.%d", t, i);
        });
    }
    for (auto &thread : threads) thread.join();
    EXPECT_EQ(heard.lines.size() + log.suppressed(), 2000u);
    EXPECT_GE(heard.lines.size(), 100u);
    EXPECT_LE(heard.lines.size(), 103u) << "one line per thread at the edge of the window";
}

// The program's callback, which waits for a lock that the thread holds that logs.
struct Held {
    std::mutex lock;
    std::vector<std::string> lines;  // under that lock

    static void take(void *user, uint32_t, const char *, const char *line)
    {
        auto *held = static_cast<Held *>(user);
        const std::lock_guard<std::mutex> lock(held->lock);
        held->lines.emplace_back(line);
    }
};

TEST(LogRelay, NobodyWaitsForTheCallbackAndStopDeliversAll)
{
    Held held;
    LogRelay relay(Held::take, &held);
    ASSERT_TRUE(relay.start().ok());
    {
        const std::lock_guard<std::mutex> lock(held.lock);
        for (int i = 0; i < 100; ++i)
            LogRelay::line(&relay, STW_LOG_INFO, "topic", std::to_string(i).c_str());
    }
    relay.stop();
    ASSERT_EQ(held.lines.size(), 100u);
    EXPECT_EQ(held.lines.front(), "0");
    EXPECT_EQ(held.lines.back(), "99");
    LogRelay::line(&relay, STW_LOG_INFO, "topic", "late");
    EXPECT_EQ(held.lines.size(), 100u);
}

TEST(LogRelay, WhatIsSilencedIsDropped)
{
    Held held;
    LogRelay relay(Held::take, &held);
    LogRelay::line(&relay, STW_LOG_INFO, "topic", "before it runs");
    relay.silence();
    ASSERT_TRUE(relay.start().ok());
    relay.stop();
    EXPECT_TRUE(held.lines.empty());
}

}  // namespace
}  // namespace stepwell::observe
