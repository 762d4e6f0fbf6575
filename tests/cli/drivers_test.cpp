// SPDX-License-Identifier: Apache-2.0
// What a report and the type of a file system say.
#include "directory.h"
#include "drivers.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace stepwell::cli
