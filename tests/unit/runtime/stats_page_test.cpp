// SPDX-License-Identifier: Apache-2.0
// The statistics page: readers that follow docs/command.md see whole texts alone, whatever is being
// written; the file is private, where it should be, and goes with the object.
#include "lib/runtime/stats_page.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

namespace stepwell {
namespace {

// XDG_RUNTIME_DIR of the test's own, as long as this lives.
class RuntimeDirectory {
public:
    RuntimeDirectory()
    {
        std::string pattern = std::filesystem::temp_directory_path() / "stepwell-page-XXXXXX";
        EXPECT_NE(mkdtemp(pattern.data()), nullptr);
        path_ = pattern;
        setenv("XDG_RUNTIME_DIR", path_.c_str(), 1);
    }
    ~RuntimeDirectory()
    {
        unsetenv("XDG_RUNTIME_DIR");
        std::filesystem::remove_all(path_);
    }
    RuntimeDirectory(const RuntimeDirectory &) = delete;
    RuntimeDirectory &operator=(const RuntimeDirectory &) = delete;
    [[nodiscard]] const std::filesystem::path &path() const { return path_; }

private:
    std::filesystem::path path_;
};

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

TEST(StatsPage, IsAPrivateFileThatGoesWithTheObject)
{
    const RuntimeDirectory directory;
    auto page = StatsPage::create(7);
    ASSERT_TRUE(page.ok()) << page.status().sentence();
    const std::string path = page.value()->path();
    EXPECT_EQ(path, directory.path() / ("stepwell-" + std::to_string(getpid()) + "-7.stats"));
    struct stat about;
    ASSERT_EQ(stat(path.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777, 0600u);
    EXPECT_EQ(about.st_size, kStatsPageBytes);
    page.take().reset();
    EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(StatsPage, WhatADeadProcessLeftUnderTheNameIsReplaced)
{
    const RuntimeDirectory directory;
    const std::filesystem::path elsewhere = directory.path() / "elsewhere";
    const std::filesystem::path name =
        directory.path() / ("stepwell-" + std::to_string(getpid()) + "-8.stats");
    std::filesystem::create_symlink(elsewhere, name);
    auto page = StatsPage::create(8);
    ASSERT_TRUE(page.ok()) << page.status().sentence();
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(name)));
    EXPECT_FALSE(std::filesystem::exists(elsewhere)) << "a link is not followed";
}

TEST(StatsPage, WithoutARuntimeDirectoryItIsInSharedMemory)
{
    if (access("/dev/shm", W_OK | X_OK) != 0) GTEST_SKIP() << "/dev/shm may not be written here";
    setenv("XDG_RUNTIME_DIR", "/nonexistent-directory", 1);
    auto page = StatsPage::create(9);
    unsetenv("XDG_RUNTIME_DIR");
    ASSERT_TRUE(page.ok()) << page.status().sentence();
    EXPECT_EQ(page.value()->path().rfind("/dev/shm/", 0), 0u);
}

TEST(StatsPage, ATextThatIsTooLongLeavesTheOneBefore)
{
    const RuntimeDirectory directory;
    auto page = StatsPage::create(1);
    ASSERT_TRUE(page.ok());
    const int file = open(page.value()->path().c_str(), O_RDONLY | O_CLOEXEC);
    std::string text;
    EXPECT_FALSE(read_page(file, &text)) << "nothing was published yet";
    EXPECT_TRUE(page.value()->publish("short"));
    EXPECT_FALSE(page.value()->publish(std::string(kStatsPageBytes, 'x')));
    EXPECT_TRUE(read_page(file, &text));
    EXPECT_EQ(text, "short");
    EXPECT_TRUE(page.value()->publish(std::string(kStatsPageBytes - sizeof(Head), 'x')));
    close(file);
}

TEST(StatsPage, AReaderBesideTheWriterSeesWholeTexts)
{
    const RuntimeDirectory directory;
    auto page = StatsPage::create(2);
    ASSERT_TRUE(page.ok());
    const int file = open(page.value()->path().c_str(), O_RDONLY | O_CLOEXEC);
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
    close(file);
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
