// SPDX-License-Identifier: Apache-2.0
// A file appears whole or not at all, and a directory after a failure is as it was before.
#include "lib/report/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace stepwell::report {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
protected:
    void SetUp() override
    {
        std::string pattern = fs::temp_directory_path() / "stepwell-file-XXXXXX";
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        directory_ = pattern;
    }
    void TearDown() override
    {
        fs::permissions(directory_, fs::perms::owner_all);
        fs::remove_all(directory_);
    }

    [[nodiscard]] std::string path(const char *name) const { return directory_ / name; }
    [[nodiscard]] std::set<std::string> names() const
    {
        std::set<std::string> names;
        for (const auto &entry : fs::directory_iterator(directory_)) {
            names.insert(entry.path().filename());
        }
        return names;
    }
    static std::string contents(const std::string &path)
    {
        std::ifstream in(path, std::ios::binary);
        std::ostringstream text;
        text << in.rdbuf();
        return text.str();
    }
    static Status write(const std::string &path, std::string_view text)
    {
        auto file = AtomicFile::create(path.c_str(), "report");
        if (!file.ok()) return file.status();
        file.value()->put(text);
        return file.value()->commit();
    }

    fs::path directory_;
};

TEST_F(AtomicFileTest, WritesAFileForItsOwnerOnly)
{
    std::string text(1'000'003, 'x');
    text.back() = 'y';
    const mode_t mask = umask(0);
    const Status status = write(path("report.json"), text);
    umask(mask);
    ASSERT_TRUE(status.ok()) << status.sentence();
    EXPECT_EQ(contents(path("report.json")), text);
    EXPECT_EQ(names(), std::set<std::string>{"report.json"});
    struct stat info;
    ASSERT_EQ(stat(path("report.json").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(AtomicFileTest, ReadersSeeTheOldFileOrTheNewOneNeverAPart)
{
    ASSERT_TRUE(write(path("r"), std::string(100'000, 'a')).ok());
    std::atomic<bool> over{false};
    std::thread writer([&] {
        for (int i = 0; i < 20; ++i) {
            EXPECT_TRUE(write(path("r"), std::string(100'000, i % 2 == 0 ? 'b' : 'a')).ok());
        }
        over = true;
    });
    uint64_t reads = 0;
    while (!over || reads == 0) {
        const std::string text = contents(path("r"));
        EXPECT_EQ(text.size(), 100'000u);
        EXPECT_EQ(text.find_first_not_of(text[0]), std::string::npos);
        ++reads;
    }
    writer.join();
    EXPECT_EQ(names(), std::set<std::string>{"r"});
}

TEST_F(AtomicFileTest, TheOldFileStaysUntilTheCommit)
{
    ASSERT_TRUE(write(path("r"), "old").ok());
    {
        auto file = AtomicFile::create(path("r").c_str(), "report");
        ASSERT_TRUE(file.ok());
        file.value()->put("new");
        EXPECT_EQ(contents(path("r")), "old");
        EXPECT_EQ(names().size(), 2u);
    }
    EXPECT_EQ(contents(path("r")), "old") << "without a commit nothing happens";
    EXPECT_EQ(names(), std::set<std::string>{"r"});
}

TEST_F(AtomicFileTest, ALinkAtThePathIsReplacedNotFollowed)
{
    std::ofstream(path("precious")) << "precious";
    fs::create_symlink(path("precious"), path("r"));
    ASSERT_TRUE(write(path("r"), "new").ok());
    EXPECT_EQ(contents(path("precious")), "precious");
    EXPECT_FALSE(fs::is_symlink(path("r")));
    EXPECT_EQ(contents(path("r")), "new");
}

TEST_F(AtomicFileTest, ALeftTemporaryNameOfADeadProcessIsPassedBy)
{
    // The numbers of this process go up by one per file: take the next few names away.
    {
        auto probe = AtomicFile::create(path("probe").c_str(), "report");
        ASSERT_TRUE(probe.ok());
        const std::string name = *names().begin();
        const auto dash = name.rfind('-');
        const unsigned long number = std::stoul(name.substr(dash + 1));
        for (unsigned long i = 1; i <= 5; ++i) {
            fs::create_symlink(
                path("precious"),
                directory_ / (name.substr(0, dash + 1) + std::to_string(number + i) + ".tmp"));
        }
    }
    ASSERT_TRUE(write(path("r"), "new").ok());
    EXPECT_EQ(contents(path("r")), "new");
    EXPECT_FALSE(fs::exists(path("precious"))) << "a link at a temporary name was followed";
    EXPECT_EQ(names().size(), 6u);
}

TEST_F(AtomicFileTest, AnUnwritableDirectoryIsASentence)
{
    constexpr mode_t kReadOnly = 0555;
    ASSERT_EQ(chmod(directory_.c_str(), kReadOnly), 0);
    // Root may write everywhere; this thread alone becomes nobody for the file system.
    if (geteuid() == 0) setfsuid(65534);
    const Status status = write(path("r.json"), "x");
    if (geteuid() == 0) setfsuid(0);
    EXPECT_EQ(status.code(), STW_ERROR_PERMISSION);
    EXPECT_EQ(std::string(status.sentence()),
              "The report could not be written to '" + path("r.json") +
                  "': creating a temporary file in the directory '" + directory_.string() +
                  "' failed. What was there before is unchanged. [errno 13: Permission denied]");
    ASSERT_NE(status.detail(), nullptr);
    EXPECT_EQ(status.detail()->os_errno, EACCES);
    EXPECT_TRUE(names().empty());
}

TEST_F(AtomicFileTest, AMissingDirectoryIsASentence)
{
    const Status status = write(path("no/r.json"), "x");
    EXPECT_EQ(status.code(), STW_ERROR_NOT_FOUND);
    EXPECT_EQ(std::string(status.sentence()),
              "The report could not be written to '" + path("no/r.json") + "': the directory '" +
                  path("no") +
                  "' cannot be opened. Name one that exists and may be written. "
                  "[errno 2: No such file or directory]");
    std::ofstream(path("file")) << "x";
    EXPECT_EQ(write(path("file/r.json"), "x").code(), STW_ERROR_NOT_FOUND);
}

TEST_F(AtomicFileTest, ADirectoryIsNoFile)
{
    fs::create_directory(path("d"));
    const Status status = write(path("d"), "x");
    EXPECT_EQ(status.code(), STW_ERROR_INVALID);
    EXPECT_NE(std::string(status.sentence())
                  .find("'" + path("d") + "': putting a file in the place of a directory"),
              std::string::npos)
        << status.sentence();
    EXPECT_EQ(write(path("d/"), "x").code(), STW_ERROR_INVALID);
    EXPECT_EQ(write(path("d/.."), "x").code(), STW_ERROR_INVALID);
    EXPECT_EQ(write("", "x").code(), STW_ERROR_INVALID);
    EXPECT_EQ(AtomicFile::create(nullptr, "report").status().code(), STW_ERROR_INVALID);
    EXPECT_EQ(names(), std::set<std::string>{"d"});
    EXPECT_TRUE(fs::is_empty(path("d")));
}

TEST_F(AtomicFileTest, AWriteThatFailsLeavesNothingBehind)
{
    ASSERT_TRUE(write(path("r"), "old").ok());
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 100'000;
    const auto handler = signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const Status status = write(path("r"), std::string(300'000, 'x'));
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    EXPECT_EQ(status.code(), STW_ERROR_IO);
    EXPECT_EQ(status.detail()->os_errno, EFBIG);
    EXPECT_NE(std::string(status.sentence()).find("writing the temporary file"), std::string::npos);
    EXPECT_EQ(names(), std::set<std::string>{"r"});
    EXPECT_EQ(contents(path("r")), "old");
}

TEST_F(AtomicFileTest, DescriptorsAreClosed)
{
    const auto count = [] {
        return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
    };
    const auto before = count();
    ASSERT_TRUE(write(path("r"), "x").ok());
    ASSERT_FALSE(write(path("no/r"), "x").ok());
    EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace stepwell::report
