// SPDX-License-Identifier: Apache-2.0
// Files and pipes are read whole, and nothing is waited for that may never come.
#include "whole_file.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

class ReadWhole : public testing::Test {
protected:
    void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    [[nodiscard]] std::string place(const char *name) const { return folder_ + "/" + name; }

    std::string folder_ = std::filesystem::temp_directory_path() / "stepwell-whole-XXXXXX";
    std::string text_;
};

TEST_F(ReadWhole, AFileUpToItsLimit)
{
    const std::string words(200'000, 'x');
    std::ofstream(place("file")) << words;
    EXPECT_EQ(read_whole(place("file"), words.size(), &text_), 0);
    EXPECT_EQ(text_, words);
    EXPECT_EQ(read_whole(place("file"), words.size() - 1, &text_), EFBIG);
    EXPECT_EQ(read_whole(place("none"), 1, &text_), ENOENT);
    EXPECT_EQ(read_whole(folder_, 1, &text_), EISDIR);
    EXPECT_EQ(read_whole("/dev/zero", 1 << 20, &text_), EFBIG);
}

TEST_F(ReadWhole, APipeThatNobodyWritesToIsEmpty)
{
    ASSERT_EQ(mkfifo(place("pipe").c_str(), 0600), 0);
    EXPECT_EQ(read_whole(place("pipe"), 100, &text_), 0);
    EXPECT_EQ(text_, "");
}

TEST_F(ReadWhole, APipeToTheEndOfItsWriter)
{
    ASSERT_EQ(mkfifo(place("pipe").c_str(), 0600), 0);
    const int writer = open(place("pipe").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(writer, 0);
    // More than a pipe holds, so the reader has to wait and go on.
    const std::string words(1 << 20, 'y');
    std::thread other([&] {
        EXPECT_TRUE(write_all(writer, words));
        close(writer);
    });
    EXPECT_EQ(read_whole(place("pipe"), words.size(), &text_), 0);
    other.join();
    EXPECT_EQ(text_, words);
}

}  // namespace
}  // namespace stepwell::cli
