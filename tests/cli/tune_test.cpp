// SPDX-License-Identifier: Apache-2.0
// What `stepwell tune` makes of its measurements: choice, profile, table; and how it spends its
// time, on disks that are numbers. Nothing is measured here.
#include "machine_profile.h"
#include "tune_text.h"

#include <cstdlib>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace stepwell::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr uint32_t kRequestMiB = 1 << 20;

Tried tried(const char *driver, uint32_t request, uint32_t depth, std::vector<double> reads,
            std::vector<double> writes)
{
    return {{driver, request, depth}, std::move(reads), std::move(writes)};
}

Tuned some_results()
{
    TunedDirectory directory;
    directory.path = "/data";
    directory.mount = "/";
    directory.identity = {"6.18", "A processor", 2, "254:1", "ext4", "0123"};
    choose({tried("aio", kRequestMiB, 32, {1e9}, {1e9}),
            tried("aio", 2 * kRequestMiB, 8, {3e9, 2e9, 4e9}, {5e8}),
            tried("aio", kRequestMiB / 2, 16, {1e9}, {2e9})},
           &directory);
    directory.mixed_read = figure_of({6e8});
    directory.mixed_write = figure_of({7e8});
    Tuned tuned;
    tuned.directories = {directory};
    tuned.host_copy = figure_of({9e9});
    return tuned;
}

TEST(Tune, EachDirectionGetsTheSettingWithTheBestMedian)
{
    const Tuned tuned = some_results();
    const TunedDirectory &found = tuned.directories[0];
    EXPECT_EQ(found.read.setting.request_bytes, 2 * kRequestMiB);
    EXPECT_EQ(found.read.setting.queue_depth, 8u);
    EXPECT_DOUBLE_EQ(found.read.rate.median, 3e9);
    EXPECT_DOUBLE_EQ(found.read.rate.least, 2e9);
    EXPECT_DOUBLE_EQ(found.read.rate.most, 4e9);
    EXPECT_EQ(found.read.rate.rounds, 3u);
    EXPECT_EQ(found.write.setting.request_bytes, kRequestMiB / 2);
    EXPECT_DOUBLE_EQ(found.usual_write.median, 1e9);
}

TEST(Tune, WhatIsUsualStaysWhereNothingIsClearlyBetter)
{
    TunedDirectory found;
    choose({tried("aio", 2 * kRequestMiB, 8, {1.1e9}, {1.2e9}),
            tried("aio", kRequestMiB, 32, {1e9}, {1e9})},
           &found);
    EXPECT_EQ(found.read.setting.queue_depth, 32u);
    EXPECT_EQ(found.write.setting.queue_depth, 8u);
    const std::vector<double> flat = {1e9, 1e9, 1e9, 1e9};
    choose({tried("aio", 2 * kRequestMiB, 8, {1.1e9, 1.1e9, 1.1e9, 1.1e9},
                  {1.04e9, 1.04e9, 1e9, 1.1e9}),
            tried("aio", kRequestMiB, 32, flat, flat)},
           &found);
    EXPECT_EQ(found.read.setting.queue_depth, 8u);
    EXPECT_EQ(found.write.setting.queue_depth, 32u);
}

TEST(Tune, MoreBytesInFlightNeedToBeOnlyALittleBetter)
{
    TunedDirectory found;
    choose({tried("aio", kRequestMiB, 64, {1.02e9}, {1.0e9}),
            tried("aio", kRequestMiB, 32, {1e9}, {1e9})},
           &found);
    EXPECT_EQ(found.read.setting.queue_depth, 64u);
    EXPECT_EQ(found.write.setting.queue_depth, 32u);
}

TEST(Tune, ADiskThatChangesItsSpeedBetweenRoundsDecidesNothing)
{
    // By its median the first is ahead; in most rounds it was a little slower.
    TunedDirectory found;
    choose({tried("aio", 2 * kRequestMiB, 8, {0.95e9, 0.96e9, 2.8e9, 2.85e9, 2.9e9}, {1e9}),
            tried("aio", kRequestMiB, 32, {1e9, 1e9, 2e9, 3e9, 3e9}, {1e9})},
           &found);
    EXPECT_EQ(found.read.setting.queue_depth, 32u);
}

TEST(Tune, OneDriverServesBothDirections)
{
    TunedDirectory found;
    choose({tried("aio", kRequestMiB, 32, {1e9}, {1e9}),
            tried("posix", kRequestMiB, 16, {1.5e9}, {0.2e9})},
           &found);
    EXPECT_EQ(found.read.setting.driver, "aio");
    EXPECT_EQ(found.write.setting.driver, "aio");
    choose({tried("aio", kRequestMiB, 32, {1e9}, {1e9}),
            tried("posix", kRequestMiB, 16, {1.5e9}, {0.9e9})},
           &found);
    EXPECT_EQ(found.read.setting.driver, "posix");
    EXPECT_EQ(found.write.setting.driver, "posix");
    choose({tried("posix", kRequestMiB, 16, {1e9}, {1e9})}, &found);
    EXPECT_EQ(found.read.setting.driver, "posix");
}

TEST(Tune, TheFirstSettingIsTheUsualOneAndAllDiffer)
{
    const std::vector<Setting> settings = settings_tried();
    EXPECT_EQ(settings[0].driver, "aio");
    EXPECT_EQ(settings[0].request_bytes, kRequestMiB);
    EXPECT_EQ(settings[0].queue_depth, 32u);
    for (size_t i = 0; i < settings.size(); ++i) {
        for (size_t j = 0; j < i; ++j)
            EXPECT_FALSE(settings[i].driver == settings[j].driver &&
                         settings[i].request_bytes == settings[j].request_bytes &&
                         settings[i].queue_depth == settings[j].queue_depth);
    }
}

TEST(Tune, TheProfileHasWhatTheLibraryReads)
{
    const json profile = json::parse(profile_json(some_results(), ""));
    EXPECT_EQ(profile["kind"], "stepwell machine profile");
    EXPECT_EQ(profile["format"], 1);
    EXPECT_EQ(profile["machine"]["kernel"], "6.18");
    EXPECT_EQ(profile["host_copy_bytes_per_s"], 9'000'000'000u);
    EXPECT_EQ(profile["cuda"], "not measured");
    const json &directory = profile["directories"][0];
    EXPECT_EQ(directory["path"], "/data");
    EXPECT_EQ(directory["driver"], "aio");
    EXPECT_EQ(directory["read"]["bytes_per_s"], 3'000'000'000u);
    EXPECT_EQ(directory["read"]["request_bytes"], 2 * kRequestMiB);
    EXPECT_EQ(directory["read"]["spread_bytes_per_s"], (json{2'000'000'000u, 4'000'000'000u}));
    EXPECT_EQ(directory["write"]["queue_depth"], 16);
    EXPECT_EQ(directory["write"]["usual_bytes_per_s"], 1'000'000'000u);
    EXPECT_EQ(directory["mixed"]["bytes_per_s"], 1'300'000'000u);
    EXPECT_FALSE(profile.contains("together"));
}

TEST(Tune, OtherFileSystemsOfAnOlderProfileStay)
{
    Tuned first = some_results();
    first.directories[0].identity.device = "254:2";
    first.directories[0].path = "/other";
    const std::string before = profile_json(first, "");
    const json both = json::parse(profile_json(some_results(), before));
    ASSERT_EQ(both["directories"].size(), 2u);
    EXPECT_EQ(both["directories"][0]["path"], "/data");
    EXPECT_EQ(both["directories"][1]["path"], "/other");
    // The same file system again is replaced; another machine's or what is damaged is not kept.
    EXPECT_EQ(json::parse(profile_json(some_results(), both.dump()))["directories"].size(), 2u);
    json elsewhere = json::parse(before);
    elsewhere["machine"]["cores"] = 64;
    for (const std::string &text : {elsewhere.dump(), std::string("{"), std::string("[1]"),
                                    std::string(R"({"kind": 5, "directories": 7})")})
        EXPECT_EQ(json::parse(profile_json(some_results(), text))["directories"].size(), 1u);
}

TEST(Tune, TwoDirectoriesOfOneFileSystemAreOneEntry)
{
    Tuned tuned = some_results();
    tuned.directories.push_back(tuned.directories[0]);
    tuned.directories[1].path = "/data/b";
    tuned.together_read = figure_of({1e9});
    const json profile = json::parse(profile_json(tuned, ""));
    EXPECT_EQ(profile["directories"].size(), 1u);
    EXPECT_EQ(profile["together"]["read"]["rounds"], 1);
}

TEST(Tune, TheTableShowsMediansSpreadsAndSettings)
{
    const std::string text = tuned_text(some_results());
    EXPECT_THAT(text, HasSubstr("directory /data, ext4, driver aio\n"));
    EXPECT_THAT(text,
                testing::ContainsRegex("  read +3\\.00 +2\\.00 - 4\\.00 +2 MiB +8 +1\\.00\n"));
    EXPECT_THAT(text,
                testing::ContainsRegex("  write +2\\.00 +2\\.00 - 2\\.00 +512 KiB +16 +1\\.00\n"));
    EXPECT_THAT(text, testing::ContainsRegex("  copy +9\\.00"));
    EXPECT_THAT(text, HasSubstr("cuda\n  not measured\n"));
    EXPECT_THAT(text, testing::Not(HasSubstr("together")));
}

TEST(Tune, WhatIsNotADiskOrTooFullIsRefused)
{
    Directory directory;
    directory.path = "/d";
    directory.file_system = "ext4";
    directory.total_bytes = uint64_t{1} << 40;
    directory.available_bytes = uint64_t{1} << 30;
    EXPECT_EQ(why_not_tuned(directory, 256 * kRequestMiB), "");
    EXPECT_THAT(why_not_tuned(directory, uint64_t{1} << 30), HasSubstr("has 1 GiB available"));
    directory.is_memory = true;
    EXPECT_THAT(why_not_tuned(directory, 256 * kRequestMiB), HasSubstr("which is memory"));
    directory.error = "'/d' does not exist.";
    EXPECT_EQ(why_not_tuned(directory, 256 * kRequestMiB), "'/d' does not exist.");
}

// A disk whose passes all take the same time, longer than they were told where it is slow.
class Disks {
public:
    Disks(double pass_seconds, size_t directories) : pass_seconds_(pass_seconds)
    {
        for (size_t i = 0; i < directories; ++i) {
            Directory directory;
            directory.real_path = "/d" + std::to_string(i);
            options.directories.push_back(directory);
        }
        options.now = [this] { return now; };
        options.open = [this](const TierOptions &) { return std::make_unique<OnePass>(this); };
    }
    Tuned run() const
    {
        return tune(options, [](const std::string &, double) {});
    }

    TuneOptions options;
    double now = 1000;

private:
    class OnePass : public Passes {
    public:
        explicit OnePass(Disks *disks) : disks_(disks) {}
        Pass write(double seconds) override { return one(seconds); }
        Pass read(double seconds) override { return one(seconds); }
        Pass update(double seconds) override { return one(seconds); }
        Identity identity() override { return {"6.18", "A processor", 2, "254:1", "ext4", "01"}; }

    private:
        Pass one(double seconds)
        {
            Pass pass;
            pass.seconds = std::max(seconds, disks_->pass_seconds_);
            pass.read_bytes = pass.written_bytes = uint64_t{64} << 20;
            disks_->now += pass.seconds;
            return pass;
        }
        Disks *disks_;
    };
    double pass_seconds_;
};

TEST(Tune, FastDisksHaveAllTheirRoundsInTheirTime)
{
    Disks disks(0.01, 4);
    const Tuned tuned = disks.run();
    EXPECT_LE(disks.now, 1000 + kTuneSeconds + 1);
    ASSERT_EQ(tuned.directories.size(), 4u);
    for (const TunedDirectory &directory : tuned.directories) {
        EXPECT_GE(directory.usual_read.rounds, 2u);
        EXPECT_GT(directory.mixed_read.rounds, 0u);
    }
    EXPECT_GT(tuned.together_read.rounds, 0u);
    EXPECT_TRUE(cut_short(tuned).empty());
}

TEST(Tune, SlowDisksEndWithThePassThatRunsAndAreNamed)
{
    for (const double pass : {1.0, 3.0, 7.0, 15.0}) {
        Disks disks(pass, 8);
        const Tuned tuned = disks.run();
        EXPECT_LE(disks.now, 1000 + kTuneSeconds + kTuneSecondsMore + pass) << pass;
        EXPECT_GE(tuned.directories.size(), 1u);
        EXPECT_EQ(tuned.directories.size() + tuned.left_out.size(), 8u);
        std::string said;
        for (const std::string &line : cut_short(tuned)) said += line + "\n";
        for (const std::string &path : tuned.left_out)
            EXPECT_THAT(said, HasSubstr("'" + path + "' was not measured"));
        for (const TunedDirectory &directory : tuned.directories)
            EXPECT_THAT(said, HasSubstr("'" + directory.path + "' had fewer rounds"));
        EXPECT_EQ(json::parse(profile_json(tuned, ""))["directories"].size(), 1u);
    }
}

TEST(Tune, WhereNoDirectoryHadOneRoundTheSecondsAreNamed)
{
    Disks disks(100, 2);
    try {
        disks.run();
        ADD_FAILURE() << "there is a profile of nothing";
    } catch (const Failed &failed) {
        EXPECT_THAT(failed.what(),
                    HasSubstr("one pass over it took up to 100; give --seconds 600"));
    }
    EXPECT_DOUBLE_EQ(disks.now, 1100);
}

TEST(Tune, AProfileIsWrittenWholeOrNotAtAll)
{
    std::string folder = "tune-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    const std::string file = folder + "/p.json";
    EXPECT_EQ(why_not_written(file, false), "");
    EXPECT_EQ(write_profile(file, "one"), "");
    EXPECT_EQ(write_profile(file, "two"), "");
    struct stat about = {};
    ASSERT_EQ(stat(file.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777, 0644u);
    EXPECT_EQ(about.st_size, 3);
    EXPECT_THAT(why_not_written(folder, false), HasSubstr("directory"));
    EXPECT_THAT(why_not_written(folder + "/none/p.json", false), HasSubstr("No such file"));
    EXPECT_THAT(write_profile(folder + "/none/p.json", "x"), HasSubstr("No such file"));
    EXPECT_THAT(write_profile(folder, "x"), HasSubstr("cannot be written"));
    EXPECT_EQ(why_not_written(folder + "/made/below/p.json", true), "");
    EXPECT_TRUE(std::filesystem::is_directory(folder + "/made/below"));
    size_t entries = 0;
    for ([[maybe_unused]] const auto &entry : std::filesystem::directory_iterator(folder))
        ++entries;
    EXPECT_EQ(entries, 2u);  // the file and "made"
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace stepwell::cli
