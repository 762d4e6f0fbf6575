// SPDX-License-Identifier: Apache-2.0
// What a report and the type of a file system say.
#include "directory.h"
#include "drivers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <sys/stat.h>

namespace stepwell::cli {
namespace {

TEST(FileSystem, ItsTypeTellsWhatATierThereWouldBe)
{
    const auto classify = [](const char *type) {
        Directory directory;
        classify_file_system(type, &directory);
        return directory;
    };
    EXPECT_TRUE(classify("tmpfs").is_memory);
    EXPECT_TRUE(classify("btrfs").copies_on_write);
    EXPECT_TRUE(classify("nfs4").is_remote);
    const Directory plain = classify("xfs");
    EXPECT_FALSE(plain.is_memory || plain.copies_on_write || plain.is_remote);
}

TEST(Report, TheStorageDriverOfAReportIsTheChosenOne)
{
    const auto chosen = parse_report(
        R"({"drivers": [{"kind": "memory", "name": "cpu"}, {"kind": "storage", "name": "posix",
            "file_system": "ext4", "queue_depth": 32, "remark": "aio cannot work"}]})");
    ASSERT_TRUE(chosen);
    EXPECT_EQ(chosen->driver, "posix");
    EXPECT_EQ(chosen->queue_depth, 32u);
    EXPECT_EQ(chosen->remark, "aio cannot work");
    EXPECT_FALSE(parse_report("no report"));
    EXPECT_FALSE(parse_report("{}"));
}

// A directory that may be trusted, with modules that the build made.
class Modules : public testing::Test {
protected:
    std::string directory_ = "/tmp/stepwell-cli-XXXXXX";

    void SetUp() override { ASSERT_NE(mkdtemp(directory_.data()), nullptr); }
    void TearDown() override { std::filesystem::remove_all(directory_); }
    std::string copy(const std::string &name, const std::string &as)
    {
        const std::string path = directory_ + "/libstepwell-" + as + ".so";
        std::filesystem::copy_file(std::string(TEST_MODULES) + "/libstepwell-" + name + ".so",
                                   path);
        EXPECT_EQ(chmod(path.c_str(), 0644), 0);
        return path;
    }
};

TEST_F(Modules, AreListedByKindOrWithTheReason)
{
    copy("ram", "ram");
    copy("ram", "other");
    ASSERT_EQ(chmod(copy("ram", "unsafe").c_str(), 0666), 0);
    copy("other_abi", "other_abi");
    std::ofstream(directory_ + "/README");
    const std::vector<Driver> found = find_modules(directory_);
    ASSERT_EQ(found.size(), 5u);
    EXPECT_EQ(found[0].name, "other");
    EXPECT_NE(found[0].reason.find("calls its driver 'ram'"), std::string::npos);
    EXPECT_EQ(found[1].name, "other_abi");
    EXPECT_EQ(found[1].works, false);
    EXPECT_NE(found[1].reason.find("was built for driver ABI"), std::string::npos);
    EXPECT_EQ(found[2].name + " " + found[2].kind, "ram memory");
    EXPECT_EQ(found[2].works, true) << found[2].reason;
    EXPECT_EQ(found[2].unified, true);
    EXPECT_EQ(found[3].name + " " + found[3].kind, "ram storage");
    EXPECT_FALSE(found[3].works);
    EXPECT_EQ(found[4].name, "unsafe");
    EXPECT_NE(found[4].reason.find("chmod go-w"), std::string::npos);
    for (const Driver &driver : found) EXPECT_FALSE(driver.built_in);
}

TEST_F(Modules, WhereThereIsNoDirectoryThereAreNone)
{
    EXPECT_TRUE(find_modules(directory_ + "/none").empty());
}

}  // namespace
}  // namespace stepwell::cli
