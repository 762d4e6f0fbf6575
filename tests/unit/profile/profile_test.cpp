// SPDX-License-Identifier: Apache-2.0
// Claims about machine profiles as text and as files: what is good is taken, all else is refused
// with a sentence that names the file and what is wrong in it.
#include "lib/profile/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace stepwell::profile {
namespace {

using testing::HasSubstr;

const std::string kGood = R"({
  "kind": "stepwell machine profile",
  "format": 1,
  "created": "2026-11-22T04:15:00Z",
  "by": "tune",
  "machine": {"kernel": "6.18", "processor": "A", "cores": 2},
  "host_copy_bytes_per_s": 12000000000,
  "something": ["of", {"a": "later"}, "release"],
  "directories": [
    {"path": "/data", "device": "254:1", "file_system": "ext4", "file_system_id": "0123",
     "driver": "aio",
     "read": {"bytes_per_s": 2000000000, "request_bytes": 1048576, "queue_depth": 32},
     "write": {"bytes_per_s": 1000000000, "request_bytes": 524288, "queue_depth": 8},
     "mixed": {"bytes_per_s": 1500000000}}
  ]
})";

std::string with(const std::string &from, const std::string &to)
{
    std::string text = kGood;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
}

class Folder {
public:
    Folder()
    {
        std::string name = "profile-XXXXXX";
        if (mkdtemp(name.data())) path_ = name;
    }
    ~Folder()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    [[nodiscard]] std::string file(const char *name = "p.json") const { return path_ + "/" + name; }
    [[nodiscard]] std::string put(const std::string &text, mode_t mode = 0644) const
    {
        std::ofstream(file()) << text;
        chmod(file().c_str(), mode);
        return file();
    }

private:
    std::string path_;
};

TEST(Profile, EveryMemberOfAGoodOneIsTaken)
{
    Result<Profile> found = parse(kGood, "p.json");
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    const Profile &profile = found.value();
    EXPECT_EQ(profile.created, "2026-11-22T04:15:00Z");
    EXPECT_EQ(profile.by, "tune");
    EXPECT_EQ(profile.machine, (Machine{"6.18", "A", 2}));
    EXPECT_EQ(profile.host_copy_bytes_per_s, 12'000'000'000u);
    const Directory *entry = profile.find({"254:1", "ext4", "0123"});
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->driver, "aio");
    EXPECT_EQ(entry->read.bytes_per_s, 2'000'000'000u);
    EXPECT_EQ(entry->read.request_bytes, 1u << 20);
    EXPECT_EQ(entry->read.queue_depth, 32u);
    EXPECT_EQ(entry->write.bytes_per_s, 1'000'000'000u);
    EXPECT_EQ(entry->write.request_bytes, 512u << 10);
    EXPECT_EQ(entry->write.queue_depth, 8u);
    EXPECT_EQ(entry->mixed_bytes_per_s, 1'500'000'000u);
    EXPECT_EQ(profile.find({"254:2", "ext4", "0123"}), nullptr);
    EXPECT_EQ(profile.find({"254:1", "xfs", "0123"}), nullptr);
    EXPECT_EQ(profile.find({"254:1", "ext4", "0124"}), nullptr);
    EXPECT_EQ(profile.find({"254:1", "ext4", "0123"}, "buffered=1"), nullptr);
}

TEST(Profile, OneFileSystemHasAnEntryForEachOptionsOfItsDriver)
{
    Result<Profile> found = parse(
        with("\"driver\": \"aio\"", "\"driver\": \"aio\", \"driver_options\": \"buffered=1\""),
        "p.json");
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    Profile profile = found.take();
    EXPECT_EQ(profile.find({"254:1", "ext4", "0123"}), nullptr);
    profile.directories.push_back(profile.directories.front());
    profile.directories.back().driver_options = "";
    profile.directories.back().read.queue_depth = 7;
    const Profile again = parse(to_json(profile), "p.json").take();
    EXPECT_EQ(again.find({"254:1", "ext4", "0123"})->read.queue_depth, 7u);
    EXPECT_EQ(again.find({"254:1", "ext4", "0123"}, "buffered=1")->read.queue_depth, 32u);
}

TEST(Profile, ADamagedOneIsRefusedWithWhatIsWrong)
{
    const struct {
        std::string text;
        const char *words;
    } cases[] = {
        {"", "its 0 bytes are no JSON"},
        {kGood.substr(0, kGood.size() / 2), "are no JSON"},
        {std::string(200000, '['), "are no JSON"},
        {std::string("\0\xff\xfe", 3), "are no JSON"},
        {"[]", "is no machine profile"},
        {"null", "is no machine profile"},
        {"{}", "is no machine profile"},
        {R"({"kind": 7})", "is no machine profile"},
        {with("stepwell machine", "another"), "is no machine profile"},
        {with("\"format\": 1,", ""), "'format' is missing"},
        {with("\"format\": 1", "\"format\": \"1\""), "'format' is not a whole number"},
        {with("\"format\": 1", "\"format\": 0"), "'format' is 0"},
        {with("\"format\": 1", "\"format\": 2"), "format 2, of a newer release"},
        {with("\"created\": \"2026-11-22T04:15:00Z\"", "\"created\": 5"),
         "'created' is not a text"},
        {with("\"by\": \"tune\",", ""), "'by' is missing"},
        {with("\"by\": \"tune\"", "\"by\": \"" + std::string(5000, 'x') + "\""),
         "'by' is longer than"},
        {with("\"machine\": {", "\"machine\": 3, \"m\": {"), "'machine' is not an object"},
        {with("\"cores\": 2", "\"cores\": 0"), "'cores' is 0"},
        {with("\"cores\": 2", "\"cores\": -2"), "'cores' is not a whole number"},
        {with("12000000000", "1e10"), "'host_copy_bytes_per_s' is not a whole number"},
        {with("12000000000", "99999999999999999"), "'host_copy_bytes_per_s' is 99999999999999999"},
        {with("\"directories\": [", "\"directories\": 1, \"d\": ["),
         "'directories' is not an array"},
        {with("\"directories\": [", "\"directories\": [1,"),
         "'directories' is no array of objects"},
        {with("\"driver\": \"aio\"", "\"driver\": \"fault\""), "'driver' is neither"},
        {with("\"driver\": \"aio\",", ""), "'driver' is missing"},
        {with("\"driver\": \"aio\"", "\"driver\": \"aio\", \"driver_options\": 1"),
         "'driver_options' is not a text"},
        {with("\"device\": \"254:1\",", ""), "'device' is missing"},
        {with("\"read\": {", "\"read\": [{"), "are no JSON"},
        {with("\"bytes_per_s\": 2000000000", "\"bytes_per_s\": 0"), "'bytes_per_s' is 0"},
        {with("\"bytes_per_s\": 2000000000", "\"bytes_per_s\": 18446744073709551615"),
         "'bytes_per_s' is 18446744073709551615"},
        {with("1048576", "1048577"), "'request_bytes' is not a multiple of 4096"},
        {with("1048576", "0"), "'request_bytes' is 0"},
        {with("1048576", "4294967296"), "'request_bytes' is 4294967296"},
        {with("\"queue_depth\": 32", "\"queue_depth\": 0"), "'queue_depth' is 0"},
        {with("\"queue_depth\": 32", "\"queue_depth\": 5000"), "'queue_depth' is 5000"},
        {with("\"queue_depth\": 32", "\"queue_depth\": null"), "'queue_depth' is not"},
    };
    for (const auto &damaged : cases) {
        const Result<Profile> found = parse(damaged.text, "p.json");
        ASSERT_FALSE(found.ok()) << damaged.words;
        Result<Profile> again = parse(damaged.text, "p.json");
        EXPECT_EQ(again.status().code(), STW_ERROR_FORMAT);
        EXPECT_THAT(again.status().sentence(), HasSubstr("'p.json'"));
        EXPECT_THAT(again.status().sentence(), HasSubstr(damaged.words));
    }
}

TEST(Profile, MoreDirectoriesThanAMachineHasAreRefused)
{
    std::string many;
    for (int i = 0; i < 65; ++i) many += "{},";
    Result<Profile> found = parse(with("\"directories\": [", "\"directories\": [" + many), "p");
    ASSERT_FALSE(found.ok());
    EXPECT_THAT(found.status().sentence(), HasSubstr("66, more than 64"));
}

TEST(Profile, WhatIsWrittenIsReadBackTheSame)
{
    const Folder folder;
    Profile profile = parse(kGood, "p.json").take();
    const std::string file = folder.file("a/b/p.json");
    const Status saved = save(profile, file);
    ASSERT_TRUE(saved.ok()) << saved.sentence();
    struct stat about = {};
    ASSERT_EQ(stat(file.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777, 0600u);
    Result<Profile> found = load(file);
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    EXPECT_EQ(found.value().file, file);
    EXPECT_EQ(found.value().machine, profile.machine);
    ASSERT_EQ(found.value().directories.size(), 1u);
    const Directory &entry = found.value().directories[0];
    EXPECT_EQ(entry.path, "/data");
    EXPECT_EQ(entry.file_system, profile.directories[0].file_system);
    EXPECT_EQ(entry.write.request_bytes, 512u << 10);
    EXPECT_EQ(entry.write.queue_depth, 8u);
}

TEST(Profile, AFileThatIsMissingUnreadableOrOthersCouldWriteIsRefused)
{
    const Folder folder;
    EXPECT_EQ(load(folder.file("none")).status().code(), STW_ERROR_NOT_FOUND);
    EXPECT_EQ(load(folder.put(kGood) + "/below").status().code(), STW_ERROR_NOT_FOUND);
    Result<Profile> open_to_all = load(folder.put(kGood, 0646));
    EXPECT_EQ(open_to_all.status().code(), STW_ERROR_PERMISSION);
    EXPECT_THAT(open_to_all.status().sentence(), HasSubstr("mode 0646"));
    EXPECT_EQ(load(folder.file("")).status().code(), STW_ERROR_FORMAT);
    ASSERT_EQ(mkfifo(folder.file("fifo").c_str(), 0600), 0);
    EXPECT_EQ(load(folder.file("fifo")).status().code(), STW_ERROR_FORMAT);
    EXPECT_TRUE(load(folder.put(kGood, 0600)).ok());
    if (geteuid() != 0) {
        EXPECT_EQ(load(folder.put(kGood, 0)).status().code(), STW_ERROR_PERMISSION);
        return;
    }
    ASSERT_EQ(chown(folder.put(kGood).c_str(), 12345, 0), 0);
    EXPECT_THAT(load(folder.file()).status().sentence(), HasSubstr("belongs to user 12345"));
}

TEST(Profile, AHugeFileIsRefusedWithoutBeingRead)
{
    const Folder folder;
    const std::string file = folder.put(kGood);
    ASSERT_EQ(truncate(file.c_str(), off_t{1} << 40), 0);
    Result<Profile> found = load(file);
    EXPECT_EQ(found.status().code(), STW_ERROR_FORMAT);
    EXPECT_THAT(found.status().sentence(), HasSubstr("is longer than"));
}

TEST(Profile, ThisMachineAndItsFileSystemsHaveNames)
{
    const Machine machine = this_machine();
    EXPECT_THAT(machine.kernel, testing::MatchesRegex("[0-9]+\\.[0-9]+"));
    EXPECT_NE(machine.processor, "");
    EXPECT_GE(machine.cores, 1u);
    Result<FileSystem> here = file_system_of(".");
    ASSERT_TRUE(here.ok());
    EXPECT_THAT(here.value().device, testing::MatchesRegex("[0-9]+:[0-9]+"));
    EXPECT_EQ(here.value().id.size(), 16u);
    Result<FileSystem> processes = file_system_of("/proc");
    ASSERT_TRUE(processes.ok());
    EXPECT_NE(here.value(), processes.value());
    EXPECT_EQ(file_system_of("nowhere").status().code(), STW_ERROR_NOT_FOUND);
}

TEST(Profile, TheUsersComesBeforeTheMachinesAndFollowsXdg)
{
    setenv("HOME", "/nobody", 1);
    setenv("XDG_CONFIG_HOME", "/config", 1);
    setenv("XDG_CACHE_HOME", "relative", 1);
    EXPECT_THAT(usual_files(), testing::ElementsAre("/config/stepwell/profile.json",
                                                    "/etc/stepwell/profile.json"));
    EXPECT_EQ(cache_file(), "/nobody/.cache/stepwell/probe.json");
    unsetenv("XDG_CONFIG_HOME");
    EXPECT_EQ(usual_files()[0], "/nobody/.config/stepwell/profile.json");
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    EXPECT_THAT(usual_files(), testing::ElementsAre("/etc/stepwell/profile.json"));
    EXPECT_EQ(cache_file(), "");
}

}  // namespace
}  // namespace stepwell::profile
