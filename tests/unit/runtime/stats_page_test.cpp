// SPDX-License-Identifier: Apache-2.0
// The statistics page: readers that follow docs/command.md see whole texts alone, whatever is being
// written; the file has no name, and goes with the object.
#include "lib/runtime/report/stats_page.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

namespace stepwell {
namespace {

struct Head {
    uint64_t magic;
    uint64_t sequence;
    uint64_t bytes;
};

// False while it is being written.
bool read_page(int file, std::string *text_out)
{
    Head before{};
    Head after{};
    EXPECT_EQ(pread(file, &before, sizeof before, 0), static_cast<ssize_t>(sizeof before));
    if (before.magic != kStatsPageMagic || before.sequence % 2 != 0) return false;
    text_out->resize(std::min<uint64_t>(before.bytes, kStatsPageBytes - sizeof before));
    EXPECT_EQ(pread(file, text_out->data(), text_out->size(), sizeof before),
              static_cast<ssize_t>(text_out->size()));
    EXPECT_EQ(pread(file, &after, sizeof after, 0), static_cast<ssize_t>(sizeof after));
    return after.sequence == before.sequence;
}

// As other processes see it.
std::string link_of(int file)
{
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file));
}

TEST(StatsPage, IsAFileWithoutANameThatGoesWithTheObject)
{
    auto page = StatsPage::create();
    ASSERT_TRUE(page.ok()) << page.status().sentence();
    const int file = page.value()->file();
    EXPECT_EQ(link_of(file), "/memfd:stepwell-stats (deleted)");
    struct stat about;
    ASSERT_EQ(fstat(file, &about), 0);
    EXPECT_EQ(about.st_size, kStatsPageBytes);
    EXPECT_EQ(fcntl(file, F_GETFD), FD_CLOEXEC) << "a program that is started has no page of ours";
    page.take().reset();
    EXPECT_EQ(fcntl(file, F_GETFD), -1);
}

TEST(StatsPage, ATextThatIsTooLongLeavesTheOneBefore)
{
    auto page = StatsPage::create();
    ASSERT_TRUE(page.ok());
    const int file = page.value()->file();
    std::string text;
    EXPECT_FALSE(read_page(file, &text)) << "nothing was published yet";
    EXPECT_TRUE(page.value()->publish("short"));
    EXPECT_FALSE(page.value()->publish(std::string(kStatsPageBytes, 'x')));
    EXPECT_TRUE(read_page(file, &text));
    EXPECT_EQ(text, "short");
    EXPECT_TRUE(page.value()->publish(std::string(kStatsPageBytes - sizeof(Head), 'x')));
}

TEST(StatsPage, AReaderBesideTheWriterSeesWholeTexts)
{
    auto page = StatsPage::create();
    ASSERT_TRUE(page.ok());
    const int file = page.value()->file();
    std::atomic<bool> stop{false};
    // Texts of one letter each, of many lengths.
    std::thread writer([&] {
        for (uint32_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
            page.value()->publish(std::string(100 + i % 3000, static_cast<char>('a' + i % 26)));
            std::this_thread::yield();
        }
    });
    uint32_t texts = 0;
    char last = 0;
    std::string text;
    for (uint32_t i = 0; i < 2'000'000 && texts < 300; ++i) {
        if (!read_page(file, &text)) continue;
        ASSERT_FALSE(text.empty());
        ASSERT_EQ(text.find_first_not_of(text[0]), std::string::npos) << "two texts in one";
        texts += text[0] != std::exchange(last, text[0]);
    }
    stop.store(true);
    writer.join();
    EXPECT_GE(texts, 50u) << "the writer was not beside the reader";
}

TEST(StatsPage, TheStartOfTheProcessIsThatOfTheKernel)
{
    struct stat about;
    ASSERT_EQ(stat("/proc/self", &about), 0);
    const uint64_t ticks = process_start_ticks();
    EXPECT_GT(ticks, 0u);
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    EXPECT_LE(ticks,
              static_cast<uint64_t>(now.tv_sec + 1) * static_cast<uint64_t>(sysconf(_SC_CLK_TCK)));
}

}  // namespace
}  // namespace stepwell
