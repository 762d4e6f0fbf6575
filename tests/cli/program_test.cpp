// SPDX-License-Identifier: Apache-2.0
// The program itself, in a process of its own, on this machine. Limits are set in the child before
// it starts; file systems are mounted in a mount namespace of the child's own, so that nothing is
// left of them.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/capability.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int kSetupFailed = 99;

struct Outcome {
    int status = -1;
    std::string out;
    std::string err;
};

std::string drain(int fd)
{
    std::string text;
    char buffer[4096];
    lseek(fd, 0, SEEK_SET);
    for (ssize_t n = 0; (n = read(fd, buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<size_t>(n));
    close(fd);
    return text;
}

int scratch_file()
{
    return open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

// `before` runs in the child; where it says false the status is kSetupFailed. -1: no program.
pid_t start(const std::vector<std::string> &words, const std::function<bool()> &before)
{
    const char *program = std::getenv("STEPWELL_COMMAND");
    if (program == nullptr) {
        ADD_FAILURE() << "STEPWELL_COMMAND names no program";
        return -1;
    }
    std::vector<char *> arguments = {const_cast<char *>("stepwell")};
    for (const std::string &word : words) arguments.push_back(const_cast<char *>(word.c_str()));
    arguments.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        if (before && !before()) _exit(kSetupFailed);
        execv(program, arguments.data());
        _exit(kSetupFailed);
    }
    return child;
}

Outcome run(const std::vector<std::string> &words, const std::function<bool()> &before = nullptr)
{
    const int out = scratch_file();
    const int err = scratch_file();
    EXPECT_TRUE(out >= 0 && err >= 0) << std::strerror(errno);
    const pid_t child = start(
        words, [&] { return dup2(out, 1) == 1 && dup2(err, 2) == 2 && (!before || before()); });
    if (child < 0) return {};
    int status = 0;
    waitpid(child, &status, 0);
    Outcome result;
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    result.out = drain(out);
    result.err = drain(err);
    return result;
}

json entry_of(const json &list, const std::string &name)
{
    for (const json &entry : list)
        if (entry["name"] == name) return entry;
    ADD_FAILURE() << "nothing is named " << name;
    return {};
}

constexpr const char *kModel = TEST_DATA "/models/gpt-13b.json";
constexpr const char *kMachine = TEST_DATA "/machines/workstation-24gb.json";

// A directory here, on whatever file system the build is on.
class Here {
public:
    Here()
    {
        std::string name = std::filesystem::current_path() / "cli-program-XXXXXX";
        if (mkdtemp(name.data()) != nullptr) path_ = name;
    }
    ~Here()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    const std::string &path() const { return path_; }

private:
    std::string path_;
};

bool own_mounts()
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// Runs `info WORDS` with a file system at the directory.
Outcome run_mounted(const std::vector<std::string> &words, const std::string &directory,
                    const char *type, const char *options,
                    const std::function<bool()> &then = nullptr)
{
    return run(words, [&] {
        return own_mounts() && mount("test", directory.c_str(), type, 0, options) == 0 &&
               (!then || then());
    });
}

#define SKIP_WITHOUT_MOUNTS(result)                                                                \
    if ((result).status == kSetupFailed)                                                           \
    GTEST_SKIP() << "this machine does not allow mounts in a namespace of one's own"

TEST(Program, VersionNamesLibraryAndAbi)
{
    const Outcome result = run({"version"});
    EXPECT_EQ(result.status, 0);
    EXPECT_THAT(result.out, testing::StartsWith("stepwell 0."));
    EXPECT_THAT(result.out, HasSubstr("ABI "));
    EXPECT_EQ(result.err, "");
}

TEST(Program, AnUnknownCommandOrFlagIsStatus2AndASentence)
{
    for (const std::vector<std::string> &words :
         {std::vector<std::string>{"fly"}, {"info", "--fast"}, {"version", "x"}, {}}) {
        const Outcome result = run(words);
        EXPECT_EQ(result.status, 2);
        EXPECT_EQ(result.out, "");
        EXPECT_THAT(result.err, HasSubstr("it knows "));
    }
}

TEST(Program, JsonParsesAndHasItsKeysAndNothingIsLeft)
{
    const Here here;
    const Outcome result = run({"info", "--json", here.path()});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.err, "");
    const json info = json::parse(result.out);
    EXPECT_EQ(info["format"], 1);
    EXPECT_GT(info["machine"]["memory_bytes"], 0);
    EXPECT_GT(info["machine"]["cores"], 0);
    EXPECT_EQ(info["topology"]["type"], "machine");
    for (const char *name : {"cpu", "cpu-discrete", "host", "aio", "posix", "fault"})
        EXPECT_EQ(entry_of(info["drivers"], name)["built_in"], true) << name;
    EXPECT_EQ(entry_of(info["drivers"], "cpu")["unified_memory"], true);
    EXPECT_EQ(entry_of(info["drivers"], "cpu-discrete")["unified_memory"], false);
    for (const char *name :
         {"aio_slots", "locked_memory", "transparent_huge_pages", "reserved_huge_pages", "mappings",
          "open_files", "file_size", "addresses", "cgroup_memory", "cgroup_processor", "overcommit",
          "swap"}) {
        const json limit = entry_of(info["limits"], name);
        EXPECT_TRUE(limit["verdict"] == "ok" || limit["verdict"] == "warn") << name;
        EXPECT_EQ(limit["verdict"] == "warn", limit["remedy"].is_string()) << name;
    }
    ASSERT_EQ(info["paths"].size(), 1u);
    EXPECT_EQ(info["paths"][0]["path"], here.path());
    EXPECT_TRUE(info["paths"][0]["error"].is_null());
    for (const char *name :
         {"path", "file_system", "space", "direct_io", "unnamed_files", "device", "driver"})
        EXPECT_TRUE(entry_of(info["paths"][0]["checks"], name).is_object());
    EXPECT_TRUE(std::filesystem::is_empty(here.path()));
}

TEST(Program, WithoutADirectoryStorageDriversAreNotTried)
{
    const json info = json::parse(run({"info", "--json"}).out);
    EXPECT_EQ(entry_of(info["drivers"], "host")["works"], true);
    EXPECT_TRUE(entry_of(info["drivers"], "aio")["works"].is_null());
    EXPECT_EQ(info["paths"], json::array());
}

// As `ulimit -l 64` in a shell of a user who may not exceed it.
TEST(Program, ASmallLimitOnLockedMemoryIsAWarningWithItsRemedy)
{
    const auto lower = [] {
        const rlimit small = {64 << 10, 64 << 10};
        prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
        return setrlimit(RLIMIT_MEMLOCK, &small) == 0;
    };
    const Outcome text = run({"info"}, lower);
    EXPECT_EQ(text.status, 0);
    EXPECT_THAT(text.out, HasSubstr("warn  locked memory    64 KiB"));
    EXPECT_THAT(text.out, HasSubstr("prlimit --pid $$ --memlock=unlimited:unlimited"));
    const json info = json::parse(run({"info", "--json"}, lower).out);
    const json limit = entry_of(info["limits"], "locked_memory");
    EXPECT_EQ(limit["verdict"], "warn");
    EXPECT_EQ(limit["facts"]["soft_bytes"], 64 << 10);
    EXPECT_EQ(limit["facts"]["may_exceed_it"], false);
    EXPECT_THAT(entry_of(info["drivers"], "host")["reason"].get<std::string>(),
                HasSubstr("RLIMIT_MEMLOCK"));
}

TEST(Program, ADirectoryInMemoryIsNamedAsSuch)
{
    const Outcome result = run({"info", "--json", "/dev/shm"});
    EXPECT_EQ(result.status, 0) << result.err;
    const json path = json::parse(result.out)["paths"][0];
    const json check = entry_of(path["checks"], "file_system");
    EXPECT_EQ(check["facts"]["type"], "tmpfs");
    EXPECT_EQ(check["facts"]["memory"], true);
    EXPECT_EQ(check["verdict"], "warn");
    EXPECT_EQ(entry_of(path["drivers"], "aio")["works"], false);
    EXPECT_THAT(entry_of(path["drivers"], "aio")["reason"].get<std::string>(), HasSubstr("tmpfs"));
}

TEST(Program, ADirectoryThatRefusesDirectIoIsToldSo)
{
    const Here here;
    const Outcome result =
        run_mounted({"info", "--json", here.path()}, here.path(), "ramfs", nullptr);
    SKIP_WITHOUT_MOUNTS(result);
    EXPECT_EQ(result.status, 0) << result.err;
    const json path = json::parse(result.out)["paths"][0];
    const json check = entry_of(path["checks"], "direct_io");
    EXPECT_EQ(check["verdict"], "warn");
    EXPECT_EQ(check["facts"]["taken"], false);
    EXPECT_EQ(entry_of(path["checks"], "file_system")["facts"]["type"], "ramfs");
}

TEST(Program, WhatIsMissingOrNoDirectoryIsToldOnceWithStatus1)
{
    const Here here;
    const std::string missing = here.path() + "/missing";
    const Outcome result = run({"info", missing, "/proc/version", here.path()});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.out, HasSubstr("directory " + here.path() + "\n"));
    EXPECT_THAT(result.out, HasSubstr("mkdir -p " + missing));
    EXPECT_THAT(result.out, HasSubstr(", 2 errors\n"));
    EXPECT_THAT(result.out, HasSubstr("error '" + missing + "' does not exist.\n"));
    EXPECT_THAT(result.out, HasSubstr("error '/proc/version' is not a directory.\n"));
    EXPECT_EQ(result.err, "");
}

TEST(Program, AReadOnlyDirectoryIsToldWithStatus1)
{
    const Here here;
    const Outcome result = run_mounted({"info", here.path()}, here.path(), "tmpfs", "size=8m", [&] {
        return mount(nullptr, here.path().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY,
                     nullptr) == 0;
    });
    SKIP_WITHOUT_MOUNTS(result);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.out, HasSubstr("is mounted read-only."));
}

TEST(Program, AFullDirectoryIsToldWithStatus1)
{
    const Here here;
    const Outcome result = run_mounted({"info", here.path()}, here.path(), "tmpfs", "size=512k");
    SKIP_WITHOUT_MOUNTS(result);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.out, HasSubstr("is full: 512 KiB are available"));
}

TEST(Program, ADirectoryOfSomebodyElseIsToldWithStatus1)
{
    const Here here;
    chmod(here.path().c_str(), 0555);
    const Outcome result = run({"info", here.path()}, [] {
        return geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0);
    });
    if (result.status == 126 || result.out.empty())
        GTEST_SKIP() << "another user may not come to the build directory";
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.out, HasSubstr("is not writable for this user."));
}

TEST(Program, ALinkIsToldAndItsTargetLookedAt)
{
    const Here here;
    const std::string link = here.path() + "/link";
    ASSERT_EQ(symlink(".", link.c_str()), 0);
    const Outcome result = run({"info", link});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("a symbolic link to " + here.path()));
    EXPECT_THAT(result.out, HasSubstr("remedy: give " + here.path()));
}

TEST(Program, ALinkToNothingIsToldWithStatus1)
{
    const Here here;
    const std::string link = here.path() + "/link";
    ASSERT_EQ(symlink("nowhere", link.c_str()), 0);
    const Outcome result = run({"info", link});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.out, HasSubstr("is a symbolic link to nothing."));
}

// ---------------------------------------------------------------------------------------- tune --

bool on_a_disk(const std::string &path)
{
    const json entry = json::parse(run({"info", "--json", path}).out)["paths"][0];
    return entry_of(entry["checks"], "file_system")["facts"]["memory"] == false &&
           entry_of(entry["checks"], "space")["facts"]["available_bytes"] > (256 << 20);
}

#define SKIP_WITHOUT_DISK(here)                                                                    \
    if (!on_a_disk((here).path())) GTEST_SKIP() << "the build directory has no room on a disk"

std::vector<std::string> tune_words(const std::string &directory, const std::string &file)
{
    return {"tune", directory, "--seconds", "1", "--size", "32m", "--output", file};
}

TEST(Program, TuneWritesAProfileAndATableAndLeavesNothingElse)
{
    const Here here;
    SKIP_WITHOUT_DISK(here);
    const Here output;
    const std::string file = output.path() + "/p.json";
    const Outcome result = run(tune_words(here.path(), file));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("directory " + here.path()));
    EXPECT_THAT(result.err, HasSubstr("stepwell tune: the profile is in '" + file + "'.\n"));
    EXPECT_TRUE(std::filesystem::is_empty(here.path()));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(output.path()), {}), 1);
    std::ifstream stream(file);
    const json profile = json::parse(stream);
    ASSERT_EQ(profile["directories"].size(), 1u);
    const json &directory = profile["directories"][0];
    EXPECT_EQ(directory["path"], std::filesystem::canonical(here.path()).string());
    for (const char *way : {"read", "write"}) {
        EXPECT_GT(directory[way]["bytes_per_s"], 1'000'000) << way;
        EXPECT_GE(directory[way]["rounds"], 1) << way;
    }
    EXPECT_GT(directory["mixed"]["read"]["bytes_per_s"], 1'000'000);
    EXPECT_GT(profile["host_copy_bytes_per_s"], 100'000'000);
}

TEST(Program, TuneMeasuresSeveralDirectoriesAloneAndTogetherAndFindsItsPlace)
{
    const Here first;
    SKIP_WITHOUT_DISK(first);
    const Here second;
    const Here home;
    const Outcome result =
        run({"tune", first.path(), second.path(), "--seconds", "1", "--size", "32m", "--json"},
            [&] { return setenv("XDG_CONFIG_HOME", home.path().c_str(), 1) == 0; });
    EXPECT_EQ(result.status, 0) << result.err;
    const json profile = json::parse(result.out);
    EXPECT_EQ(profile["directories"].size(), 1u);  // they are on one file system
    EXPECT_GT(profile["together"]["read"]["bytes_per_s"], 1'000'000);
    EXPECT_GT(profile["together"]["write"]["bytes_per_s"], 1'000'000);
    std::ifstream stream(home.path() + "/stepwell/profile.json");
    EXPECT_EQ(json::parse(stream), profile);
}

TEST(Program, TuneRefusesWhatIsNoPlaceForATierBeforeItMeasures)
{
    const Here here;
    const std::string file = here.path() + "/p.json";
    const std::string missing = here.path() + "/missing";
    Outcome result = run(tune_words(missing, file));
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.err, "stepwell tune: '" + missing + "' does not exist.\n");
    result = run(tune_words("/proc/version", file));
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.err, "stepwell tune: '/proc/version' is not a directory.\n");
    result = run(tune_words("/dev/shm", file));
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("'/dev/shm' is on tmpfs, which is memory"));
    result = run(tune_words(here.path(), here.path() + "/none/p.json"));
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("The profile cannot be written to '" + here.path() +
                                      "/none/p.json': No such file or directory"));
    EXPECT_TRUE(std::filesystem::is_empty(here.path()));
}

TEST(Program, TuneSaysThatADirectoryIsReadOnlyOrFull)
{
    const Here here;
    const std::string file = here.path() + ".json";
    const auto read_only = [&] {
        return mount(nullptr, here.path().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY,
                     nullptr) == 0;
    };
    Outcome result =
        run_mounted(tune_words(here.path(), file), here.path(), "tmpfs", "size=8m", read_only);
    SKIP_WITHOUT_MOUNTS(result);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("is mounted read-only."));
    result = run_mounted(tune_words(here.path(), file), here.path(), "tmpfs", "size=512k");
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("is full: 512 KiB are available"));
    EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Program, BenchShowsFiguresBesideWhatTheMachineGives)
{
    const Here here;
    SKIP_WITHOUT_DISK(here);
    const Outcome result = run({"bench", here.path(), "--seconds", "1", "--size", "32m", "--json"});
    EXPECT_EQ(result.status, 0) << result.err;
    const json bench = json::parse(result.out);
    EXPECT_EQ(bench["format"], 1);
    ASSERT_EQ(bench["results"].size(), 4u);
    for (const char *name : {"nvme.read", "nvme.write", "fetch.hit", "update.memory"}) {
        const json row = entry_of(bench["results"], name);
        EXPECT_GT(row["value"], 0) << name;
        EXPECT_GT(row["reference_value"], 0) << name;
        EXPECT_GE(row["ratio"], row["spread"][0]) << name;
        EXPECT_LE(row["ratio"], row["spread"][1]) << name;
        EXPECT_EQ(row["rounds"], 7) << name;
    }
    EXPECT_TRUE(std::filesystem::is_empty(here.path()));
    const Outcome refused = run({"bench", here.path() + "/missing"});
    EXPECT_EQ(refused.status, 1);
    EXPECT_EQ(refused.err, "stepwell bench: '" + here.path() + "/missing' does not exist.\n");
}

TEST(Program, TuneThatIsEndedBySignalsLeavesNothing)
{
    const Here here;
    SKIP_WITHOUT_DISK(here);
    const Here scratch;
    const Here output;
    for (const int number : {SIGINT, SIGTERM, SIGKILL}) {
        int words[2];
        ASSERT_EQ(pipe(words), 0);
        const std::vector<std::string> arguments = {"tune", here.path(), "--seconds",
                                                    "60",   "--output",  output.path() + "/p.json"};
        const pid_t child = start(arguments, [&] {
            return dup2(words[1], 2) == 2 && setenv("TMPDIR", scratch.path().c_str(), 1) == 0;
        });
        close(words[1]);
        // It has begun with the directory once it says so, and then a file is open in it.
        std::string said;
        char c = 0;
        while (said.find(here.path()) == std::string::npos && read(words[0], &c, 1) == 1) said += c;
        EXPECT_THAT(said, HasSubstr(here.path()));
        kill(child, number);
        int status = 0;
        waitpid(child, &status, 0);
        close(words[0]);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number);
        EXPECT_TRUE(std::filesystem::is_empty(here.path()));
        EXPECT_TRUE(std::filesystem::is_empty(output.path()));
        EXPECT_TRUE(number == SIGKILL || std::filesystem::is_empty(scratch.path()));
    }
}

TEST(Program, ReportMakesAPageOrSaysWhyNotAndLeavesNothing)
{
    const Here here;
    const std::string report = here.path() + "/run.json";
    const std::string page = here.path() + "/run.html";
    const auto write = [&](const std::string &text) { std::ofstream(report) << text; };
    const std::string least =
        R"({"format": 1, "runtime": "r", "version": "0", "block_bytes": 1, "elapsed_ns": 2,
        "threads": 1, "tiers": [], "links": [], "drivers": [], "phases": [],
        "waste": {"bytes": 0, "share": null, "roles": []}, "errors": {"total": 0, "first": []}})";
    write(least);
    Outcome result = run({"report", report});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, page + "\n");
    std::ifstream file(page);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    EXPECT_EQ(text.rfind("<!doctype html>", 0), 0u);
    EXPECT_EQ(run({"report", report, "-o", "-"}).out, text);
    result = run({"report", report, "-o", report});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("would take the place of the report"));

    std::filesystem::remove(page);
    write("{");
    result = run({"report", report});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("is not JSON: parse error at line 1, column 2"));
    EXPECT_FALSE(std::filesystem::exists(page));
    EXPECT_THAT(run({"report", here.path()}).err, HasSubstr("Is a directory"));
    EXPECT_THAT(run({"report", report + "x"}).err, HasSubstr("No such file or directory"));
    write(least);
    result = run({"report", report, "-o", here.path() + "/no/page.html"});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("cannot be written to"));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(here.path()),
                            std::filesystem::directory_iterator()),
              1);
}

TEST(Program, OutputThatCannotBeWrittenIsStatus1)
{
    const Outcome result =
        run({"version"}, [] { return dup2(open("/dev/full", O_WRONLY), 1) == 1; });
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("could not be written"));
}

TEST(StepwellSimulate, FromTwoFilesToAnAnswer)
{
    const Outcome text = run({"simulate", kModel, kMachine});
    EXPECT_EQ(text.status, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("13B on workstation with one RTX 4090, 1 rank\n"));
    EXPECT_THAT(text.out,
                HasSubstr("\n  flop          8 a parameter and token, 2 of them recomputed; "
                          "attention's scores are not counted; without recomputation "));
    const Outcome outcome = run({"simulate", "--json", kModel, kMachine});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const json answer = json::parse(outcome.out)["points"][0]["answer"];
    EXPECT_EQ(answer["parameters"], 12'582'912'000u);
    EXPECT_GT(answer["parameters_max"], answer["parameters"]);
    EXPECT_GE(answer["step_s"], answer["bound"]["seconds"]);
    EXPECT_DOUBLE_EQ(double{answer["flop_per_s_per_gpu"]} * double{answer["step_s"]},
                     8.0 * 12'582'912'000 * 8 * 2048);
    EXPECT_DOUBLE_EQ(double{answer["flop_per_s_per_gpu_without_recomputation"]} * 8,
                     double{answer["flop_per_s_per_gpu"]} * 6);
    double step = answer["compute_s"];
    for (const auto &[cause, seconds] : answer["stall"].items()) step += double{seconds};
    EXPECT_NEAR(step, double{answer["step_s"]}, 0.01 * step);
}

// As installed: the command in bin, beside share.
TEST(StepwellSimulate, AnUnknownNameIsAnsweredWithTheExamplesThereAre)
{
    namespace fs = std::filesystem;
    const Here here;
    const fs::path root = here.path();
    fs::create_directories(root / "bin");
    fs::create_directories(root / "share/stepwell");
    const char *const program = std::getenv("STEPWELL_COMMAND");
    ASSERT_NE(program, nullptr);
    fs::copy_file(program, root / "bin/stepwell");
    for (const char *folder : {"models", "machines"})
        fs::copy(fs::path(TEST_DATA) / folder, root / "share/stepwell" / folder);
    const auto installed = [&](const std::string &words) {
        const std::string err = root / "err";
        const std::string command = (root / "bin/stepwell").string() + " " + words + " 2> " + err;
        EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
        std::ifstream file(err);
        return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string model = installed("simulate no-such dgx-2-v100");
    EXPECT_THAT(model,
                HasSubstr("stepwell simulate: There is no model file 'no-such' here, and the "
                          "examples are gpt-120b, gpt-13b, gpt-13b-clip, "));
    EXPECT_THAT(installed("estimate gpt-13b cray-1"),
                HasSubstr("stepwell estimate: There is no machine file 'cray-1' here, and the "
                          "examples are a100-40gb, dgx-2-v100, dgx-a100, "));
}

TEST(StepwellSimulate, AnExampleIsFoundByItsNameAndAProfileNeedsAGpu)
{
    const Outcome unknown = run({"simulate", "no-such-model", kMachine});
    EXPECT_EQ(unknown.status, 1);
    EXPECT_THAT(unknown.err, HasSubstr("There is no model file 'no-such-model' here, and "));
    const Here here;
    const std::string file = here.path() + "/profile.json";
    std::ofstream(file) << R"({"kind": "stepwell machine profile", "format": 1,
        "host_copy_bytes_per_s": 1e10, "directories": [{"path": ")"
                        << here.path() << R"(", "read": {"bytes_per_s": 2e9},
        "write": {"bytes_per_s": 3e9}, "mixed": {"bytes_per_s": 2.5e9}}]})";
    const Outcome bare = run({"simulate", kModel, file});
    EXPECT_EQ(bare.err, "stepwell simulate: A profile says nothing of a GPU; give --gpu-memory.\n");
    // Whether it fits depends on this machine.
    const Outcome told = run({"simulate", "--json", TEST_DATA "/models/layers.json", file,
                              "--gpu-memory", "24 GB", "--gpu-flops", "1 TFLOPS"});
    EXPECT_TRUE(told.status == 0 || told.err.find("does not fit") != std::string::npos) << told.err;
}

TEST(StepwellSimulate, ASweepIsATableAndAPlot)
{
    const Here here;
    const std::string plot = here.path() + "/plot.svg";
    const Outcome outcome = run({"simulate", kModel, TEST_DATA "/machines/dgx-h100.json", "--sweep",
                                 "ranks=1,8,9", "-o", plot});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("\n9          9 ranks are more than the machine has GPUs"));
    std::ifstream stream(plot);
    const std::string svg{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_THAT(svg, testing::StartsWith("<svg xmlns"));
    EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
    EXPECT_THAT(svg, HasSubstr("9 (no)"));
    for (const char *elsewhere : {"href", "url(", "<script", "@import"})
        EXPECT_THAT(svg, testing::Not(HasSubstr(elsewhere)));
    EXPECT_THAT(svg, HasSubstr(">9: 9 ranks are more than the machine has GPUs, which is 8.<"));
    const Outcome none =
        run({"simulate", kModel, TEST_DATA "/machines/dgx-h100.json", "--sweep", "ranks=9,10"});
    EXPECT_EQ(none.status, 1);
    EXPECT_THAT(none.out, HasSubstr("\n10         10 ranks are more"));
    EXPECT_THAT(none.err,
                testing::EndsWith("stepwell simulate: No point of the sweep can be; the table says "
                                  "of each why.\n"));
    EXPECT_EQ(
        run({"simulate", kModel, kMachine, "--sweep", "ranks=1", "-o", here.path() + "/none/p.svg"})
            .status,
        1);
}

TEST(StepwellEstimate, TellsTheSmallestBudgetsAtAllAndAsFast)
{
    const Outcome exposed = run({"estimate", "--json", "--exposed-update", kModel, kMachine});
    ASSERT_EQ(exposed.status, 0) << exposed.err;
    const json stalls = json::parse(exposed.out);
    EXPECT_EQ(stalls["limited_by"], "update");
    EXPECT_EQ(stalls["without_stall"], false);
    EXPECT_GT(double{stalls["waits"]}, 0.02);
    const Outcome outcome = run({"estimate", "--json", kModel, kMachine});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const json found = json::parse(outcome.out);
    EXPECT_EQ(found["limited_by"], "computation");
    EXPECT_EQ(found["without_stall"], true);
    EXPECT_LE(double{found["waits"]}, 0.02);
    const double whole = found["with_all"]["step_s"];
    EXPECT_LE(double{found["with_fast"]["step_s"]}, 1.01 * whole);
    EXPECT_LT(found["fast_budgets_per_rank"]["device_bytes"],
              found["with_all"]["budgets_per_rank"]["device_bytes"]);
    EXPECT_LE(found["least_budgets_per_rank"]["device_bytes"],
              found["fast_budgets_per_rank"]["device_bytes"]);
    EXPECT_EQ(found["parameter_bytes"], 2 * uint64_t{found["with_all"]["parameters"]});
}

// A file of safetensors with these tensors of fp32, or a part of it.
void write_checkpoint(const std::string &file, const std::string &tensors, size_t data)
{
    std::string header = "{\"__metadata__\": {\"format\": \"pt\"}, " + tensors + "}";
    std::string text(8, '\0');
    for (size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i));
    std::ofstream(file, std::ios::binary) << text << header << std::string(data, 'x');
}

std::string stored(const std::string &name, uint64_t elements, uint64_t begin)
{
    return "\"" + name + "\": {\"dtype\": \"F32\", \"shape\": [2, " + std::to_string(elements / 2) +
           "], \"data_offsets\": [" + std::to_string(begin) + ", " +
           std::to_string(begin + 4 * elements) + "]}";
}

TEST(StepwellEstimate, ACheckpointIsAModelByItsHeaders)
{
    const Here here;
    const std::string place = here.path() + "/model";
    std::filesystem::create_directory(place);
    write_checkpoint(place + "/a.safetensors",
                     stored("embedding.weight", 200'000, 0) + ", " +
                         stored("layers.0.weight", 400'000, 800'000),
                     2'400'000);
    write_checkpoint(place + "/b.safetensors", stored("layers.10.weight", 400'000, 0), 1'600'000);
    const auto estimated = [&](const char *optimizer) {
        const Outcome outcome =
            run({"estimate", "--json", "--optimizer", optimizer, place, kMachine});
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        return json::parse(outcome.out);
    };
    const json found = estimated("adamw");
    EXPECT_EQ(found["model"], "model");
    EXPECT_EQ(found["with_all"]["parameters"], 1'000'000);
    EXPECT_EQ(found["parameter_bytes"], 4'000'000);
    EXPECT_EQ(found["gradient_bytes"], 4'000'000);
    EXPECT_EQ(found["state_bytes"], 8'000'000);
    EXPECT_EQ(estimated("momentum")["state_bytes"], 4'000'000);
    EXPECT_EQ(estimated("sgd")["state_bytes"], 0);
    EXPECT_THAT(run({"estimate", place, kMachine, "--tokens", "4k"}).err,
                HasSubstr("--tokens takes a number from 1 to 1e9, not '4k'."));
    EXPECT_THAT(run({"estimate", place, kMachine, "--activations", "100 GB"}).err,
                HasSubstr("does not fit"));
    EXPECT_THAT(run({"estimate", place, kMachine, "--optimizer", "lion"}).err,
                HasSubstr("--optimizer takes adamw, momentum, adagrad or sgd, not 'lion'."));
}

TEST(StepwellEstimate, ADamagedCheckpointIsRefusedByName)
{
    const Here here;
    const std::string file = here.path() + "/a.safetensors";
    const auto refusal = [&] { return run({"estimate", file, kMachine}).err; };
    std::ofstream(file) << "short";
    EXPECT_THAT(refusal(), HasSubstr("a.safetensors' has no 8 bytes: it is no file of safeten"));
    std::ofstream(file) << "these are no sizes";
    EXPECT_THAT(refusal(), HasSubstr(" bytes, of 18: it is no file of safetensors"));
    write_checkpoint(file, "1", 0);
    EXPECT_THAT(refusal(), HasSubstr("has a header that is no JSON object"));
    const std::string fifo = here.path() + "/fifo.safetensors";
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    EXPECT_THAT(run({"estimate", fifo, kMachine}).err,
                HasSubstr("fifo.safetensors' is no regular"));
    const std::string whole = stored("w", 100, 0);
    write_checkpoint(file, whole, 396);
    EXPECT_THAT(refusal(), HasSubstr("has a tensor 'w' at bytes 0 to 400 of 396, which its shape "
                                     "and dtype do not take"));
    for (const auto &[from, to, why] :
         std::vector<std::tuple<std::string, std::string, std::string>>{
             {"F32", "F31", "'w' of dtype 'F31', which is not known"},
             {"F32", "F16", "'w' at bytes 0 to 400 of 400"},
             {"[2, 50]", "[2, -50]", "'w' whose shape is no list of sizes"},
             {"[2, 50]", "[4294967296, 4294967296]", "'w' whose shape is no list of sizes"},
             {"\"dtype\"", "\"type\"", "'w' without dtype, shape and data_offsets"},
             {"F32", "I32", "has no tensor of floating-point numbers to train"}}) {
        std::string changed = whole;
        changed.replace(changed.find(from), from.size(), to);
        write_checkpoint(file, changed, 400);
        EXPECT_THAT(refusal(), HasSubstr(why)) << changed;
    }
}

TEST(StepwellEstimate, ACheckpointThatIsNotWholeIsRefused)
{
    const Here here;
    const std::string place = here.path() + "/model";
    std::filesystem::create_directory(place);
    const auto refusal = [&] { return run({"estimate", place, kMachine}).err; };
    EXPECT_THAT(refusal(), HasSubstr("model' has no tensor: it is no checkpoint of safetensors."));
    write_checkpoint(place + "/a.safetensors", stored("w", 100, 0), 400);
    const std::string index = place + "/model.safetensors.index.json";
    std::ofstream(index) << R"({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}})";
    EXPECT_THAT(refusal(), HasSubstr("names a file for 'v' that is not there: b.safetensors."));
    std::ofstream(index) << "{}";
    EXPECT_THAT(refusal(), HasSubstr("is no index of a checkpoint"));
    std::ofstream(index) << R"({"weight_map": {"w": "a.safetensors"}})";
    write_checkpoint(place + "/b.safetensors", stored("w", 100, 0), 400);
    EXPECT_THAT(refusal(), HasSubstr("b.safetensors' has a tensor 'w' that '"));
    EXPECT_THAT(run({"estimate", here.path() + "/none.safetensors", kMachine}).err,
                HasSubstr("none.safetensors' cannot be read: No such file or directory."));
}

TEST(StepwellEstimate, WhatCannotBeIsToldWithTensorMomentAndBytes)
{
    const Outcome outcome = run({"estimate", TEST_DATA "/models/paper-10t.json", kMachine});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("stepwell estimate: "));
    EXPECT_THAT(outcome.err, HasSubstr("1 ranks: it must be a multiple of the model-parallel"));
    const Outcome eight = run({"estimate", TEST_DATA "/models/paper-8b-16.json", kMachine});
    EXPECT_EQ(eight.status, 1);
    EXPECT_THAT(eight.err, testing::MatchesRegex(
                               "stepwell estimate: 'layer.*' does not fit into host by [0-9]+ "
                               "bytes when it is created: .*\n"));
}

}  // namespace
