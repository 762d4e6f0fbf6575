// SPDX-License-Identifier: Apache-2.0
// Every storage driver that can keep a file under a name: what was flushed is there again, what is
// open elsewhere stays as it is, and nothing is taken from or made in any other place.
#include "tests/conformance/support.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

namespace conformance {
namespace {

constexpr uint32_t kCreate = STW_STORAGE_NAME_CREATE;
constexpr uint32_t kOpen = STW_STORAGE_NAME_OPEN;
constexpr uint32_t kReplace = STW_STORAGE_NAME_REPLACE;
constexpr uint32_t kAccesses[] = {kCreate, kOpen, kReplace};
constexpr uint32_t kDepth = 8;
constexpr const char *kName = "kept.stepwell";

class StorageKeep : public StorageConformance {
protected:
    void SetUp() override
    {
        if ((ops().capabilities & STW_STORAGE_CAN_KEEP) == 0)
            GTEST_SKIP() << "this driver keeps nothing past its close";
    }
    stw_status try_open(uint32_t access, uint64_t bytes = kMiB, const char *name = kName)
    {
        return storage_.open(directory_.path(), bytes, kDepth, name, access);
    }
    // Throws where it does not open, as open() does.
    void open_as(uint32_t access, uint64_t bytes = kMiB, const char *name = kName)
    {
        const stw_status status = try_open(access, bytes, name);
        if (status != STW_OK)
            throw std::runtime_error(std::string("open '") + name + "': " +
                                     stw_status_string(status) + ": " + storage_.sentence());
    }
    void write(uint64_t seed)
    {
        Buffer data(storage_.info().bytes);
        data.fill(seed);
        EXPECT_EQ(storage_.run(STW_IO_WRITE, data.data(), 0, data.bytes()),
                  static_cast<int64_t>(data.bytes()));
        EXPECT_EQ(ops().flush(storage_.get()), STW_OK);
    }
    bool holds(uint64_t seed)
    {
        Buffer data(storage_.info().bytes);
        EXPECT_EQ(storage_.run(STW_IO_READ, data.data(), 0, data.bytes()),
                  static_cast<int64_t>(data.bytes()));
        return data.holds(seed);
    }
    // A file with a pattern in all of it, flushed and closed.
    void make(uint64_t seed, const char *name = kName)
    {
        open_as(kCreate, kMiB, name);
        write(seed);
        storage_.close();
    }
    // It can be opened and has these bytes; it is closed again.
    bool is_kept(uint64_t seed, const char *name = kName)
    {
        open_as(kOpen, kMiB, name);
        const bool kept = holds(seed);
        storage_.close();
        return kept;
    }
    std::string place(const char *name = kName) { return directory_.path() + "/" + name; }
    struct stat look(const char *name = kName)
    {
        struct stat about = {};
        EXPECT_EQ(lstat(place(name).c_str(), &about), 0) << name;
        return about;
    }
    void expect_sentence(const Storage &storage, const char *name = kName);
    void expect_foreign();
    [[noreturn]] void hold_until_killed(int said);
};

// One sentence, whole, with the place in it; behind it at most the errno in brackets.
void StorageKeep::expect_sentence(const Storage &storage, const char *name)
{
    const std::string text = storage.sentence();
    const std::string sentence = text.substr(0, text.rfind(" [errno "));
    EXPECT_TRUE(sentence.ends_with('.')) << text;
    EXPECT_NE(sentence.find(directory_.path()), std::string::npos) << text;
    EXPECT_NE(sentence.find(name), std::string::npos) << text;
}

// What has the name is no file of ours: it is neither taken nor removed, and no file is made.
void StorageKeep::expect_foreign()
{
    const struct stat before = look();
    const size_t entries = directory_.entries();
    for (const uint32_t access : kAccesses) {
        EXPECT_EQ(try_open(access), access == kCreate ? STW_ERROR_EXISTS : STW_ERROR_PERMISSION)
            << access;
        expect_sentence(storage_);
    }
    EXPECT_EQ(look().st_ino, before.st_ino);
    EXPECT_EQ(look().st_mode, before.st_mode);
    EXPECT_EQ(look().st_size, before.st_size);
    EXPECT_EQ(directory_.entries(), entries);
}

// Of a child: it opens the file, says whether it could, and has it until it is killed.
void StorageKeep::hold_until_killed(int said)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char opened = try_open(kOpen) == STW_OK ? 'y' : 'n';
    if (::write(said, &opened, 1) != 1) _exit(1);
    for (;;) pause();
}

// ------------------------------------------------------------------------- what is kept --

TEST_P(StorageKeep, WhatWasFlushedIsThereAfterCloseAndOpen)
{
    open_as(kCreate, 4 * kMiB);
    EXPECT_EQ(storage_.info().bytes, 4 * kMiB);
    write(1);
    storage_.close();
    EXPECT_EQ(directory_.entries(), 1u);
    for (uint64_t seed = 1; seed < 4; ++seed) {
        open_as(kOpen, 4 * kMiB);
        EXPECT_TRUE(holds(seed)) << seed;
        write(seed + 1);
        storage_.close();
    }
    EXPECT_EQ(directory_.entries(), 1u);
}

TEST_P(StorageKeep, WithoutBytesOpenTakesWhatIsThere)
{
    make(1);
    open_as(kOpen, 0);
    EXPECT_EQ(storage_.info().bytes, kMiB);
    EXPECT_TRUE(holds(1));
    const uint64_t unit = storage_.unit();
    Buffer data(unit);
    EXPECT_EQ(storage_.submit({1, data.data(), kMiB, unit, STW_IO_WRITE, 0}), STW_ERROR_INVALID);
}

TEST_P(StorageKeep, EachNameIsAFileOfItsOwn)
{
    make(1, "one");
    make(2, "two");
    EXPECT_EQ(directory_.entries(), 2u);
    EXPECT_TRUE(is_kept(1, "one"));
    EXPECT_TRUE(is_kept(2, "two"));
    EXPECT_EQ(try_open(kOpen, kMiB, "on"), STW_ERROR_NOT_FOUND);
}

TEST_P(StorageKeep, TheLongestNameIsTaken)
{
    const std::string name(NAME_MAX, 'n');
    make(1, name.c_str());
    EXPECT_TRUE(is_kept(1, name.c_str()));
}

TEST_P(StorageKeep, AFlushWorksBesideRequests)
{
    open_as(kCreate);
    std::atomic<bool> over{false};
    std::atomic<uint64_t> failed{0};
    std::thread flusher([&] {
        do {
            if (ops().flush(storage_.get()) != STW_OK) ++failed;
        } while (!over);
    });
    const uint64_t unit = storage_.unit();
    Buffer data(unit);
    for (uint64_t i = 0; i < 64; ++i) {
        data.fill(i);
        EXPECT_EQ(storage_.run(STW_IO_WRITE, data.data(), i % 16 * unit, unit),
                  static_cast<int64_t>(unit));
    }
    over = true;
    flusher.join();
    EXPECT_EQ(failed, 0u);
}

TEST_P(StorageKeep, SpaceThatWasGivenBackIsPromisedAgainAtOpen)
{
    if ((ops().capabilities & STW_STORAGE_CAN_SHRINK) == 0) GTEST_SKIP() << "cannot shrink";
    const auto reserved = [&] { return static_cast<uint64_t>(look().st_blocks) * 512; };
    open_as(kCreate, 4 * kMiB);
    write(1);
    const stw_status given = ops().give_back(storage_.get(), kMiB, 2 * kMiB);
    if (given == STW_ERROR_UNSUPPORTED) GTEST_SKIP() << "the file system punches no holes";
    ASSERT_EQ(given, STW_OK);
    storage_.close();
    if (reserved() >= 4 * kMiB) GTEST_SKIP() << "the file system tells of no holes";
    open_as(kOpen, 4 * kMiB);
    EXPECT_GE(reserved(), 4 * kMiB);
    Buffer data(kMiB);
    data.fill(2);
    EXPECT_EQ(storage_.run(STW_IO_READ, data.data(), kMiB, kMiB), static_cast<int64_t>(kMiB));
    EXPECT_TRUE(std::all_of(data.data(), data.data() + kMiB, [](uint8_t b) { return b == 0; }));
}

TEST_P(StorageKeep, WithoutANameNothingIsLeft)
{
    make(1);
    open(kMiB);
    EXPECT_EQ(directory_.entries(), 1u);
    storage_.close();
    EXPECT_EQ(directory_.entries(), 1u);
    EXPECT_TRUE(is_kept(1));
}

// ------------------------------------------------------------------ the three ways to open --

TEST_P(StorageKeep, CreateOfATakenNameIsExistsAndLeavesTheOldBytes)
{
    make(1);
    EXPECT_EQ(try_open(kCreate, 2 * kMiB), STW_ERROR_EXISTS);
    expect_sentence(storage_);
    EXPECT_EQ(directory_.entries(), 1u);
    EXPECT_TRUE(is_kept(1));
}

TEST_P(StorageKeep, OpenOfWhatIsNotThereIsNotFoundAndMakesNothing)
{
    for (const uint64_t bytes : {uint64_t{0}, kMiB}) {
        EXPECT_EQ(try_open(kOpen, bytes), STW_ERROR_NOT_FOUND);
        expect_sentence(storage_);
    }
    EXPECT_EQ(directory_.entries(), 0u);
}

TEST_P(StorageKeep, OtherBytesAreAMismatchWithBothNumbers)
{
    make(1);
    for (const uint64_t bytes : {kMiB / 2, 2 * kMiB}) {
        ASSERT_EQ(try_open(kOpen, bytes), STW_ERROR_MISMATCH);
        EXPECT_EQ(storage_.error().needed_bytes, bytes);
        EXPECT_EQ(storage_.error().free_bytes, kMiB);
        expect_sentence(storage_);
        EXPECT_NE(storage_.sentence().find(std::to_string(bytes)), std::string::npos);
        EXPECT_NE(storage_.sentence().find(std::to_string(kMiB)), std::string::npos);
    }
    EXPECT_TRUE(is_kept(1));
}

TEST_P(StorageKeep, ReplaceMakesANewFile)
{
    make(1);
    open_as(kReplace, 2 * kMiB);
    EXPECT_EQ(storage_.info().bytes, 2 * kMiB);
    EXPECT_EQ(directory_.entries(), 1u);
    Buffer data(2 * kMiB);
    ASSERT_EQ(storage_.run(STW_IO_READ, data.data(), 0, 2 * kMiB), static_cast<int64_t>(2 * kMiB));
    EXPECT_TRUE(
        std::all_of(data.data(), data.data() + data.bytes(), [](uint8_t b) { return b == 0; }));
    write(2);
    storage_.close();
    EXPECT_EQ(try_open(kOpen, kMiB), STW_ERROR_MISMATCH);
    open_as(kOpen, 2 * kMiB);
    EXPECT_TRUE(holds(2));
}

TEST_P(StorageKeep, ReplaceOfWhatIsNotThereMakesIt)
{
    open_as(kReplace);
    write(1);
    storage_.close();
    EXPECT_TRUE(is_kept(1));
}

TEST_P(StorageKeep, AnUnknownAccessIsInvalid)
{
    make(1);
    for (const uint32_t access : {0u, 4u, UINT32_MAX}) {
        EXPECT_EQ(try_open(access), STW_ERROR_INVALID) << access;
        expect_sentence(storage_);
        EXPECT_NE(storage_.sentence().find(std::to_string(access)), std::string::npos);
        EXPECT_EQ(try_open(access, kMiB, "new"), STW_ERROR_INVALID) << access;
    }
    EXPECT_EQ(directory_.entries(), 1u);
    EXPECT_TRUE(is_kept(1));
}

TEST_P(StorageKeep, OnlyOpenGoesWithoutBytes)
{
    make(1);
    EXPECT_EQ(try_open(kReplace, 0), STW_ERROR_INVALID);
    EXPECT_EQ(try_open(kCreate, 0, "new"), STW_ERROR_INVALID);
    EXPECT_EQ(directory_.entries(), 1u);
    EXPECT_TRUE(is_kept(1));
}

TEST_P(StorageKeep, NamesThatAreNoneAreInvalidAndNothingIsMade)
{
    const std::string inside = directory_.path() + "/inside";
    ASSERT_EQ(mkdir(inside.c_str(), 0700), 0);
    ASSERT_EQ(mkdir((inside + "/deeper").c_str(), 0700), 0);
    const std::string names[] = {"",          ".",          "..",         ".hidden",
                                 "../beside", "deeper/in",  "deeper/",    "/",
                                 "..a",       "a/../../in", inside + "x", std::string(256, 'n')};
    for (const std::string &name : names)
        for (const uint32_t access : kAccesses) {
            EXPECT_EQ(storage_.open(inside, kMiB, kDepth, name.c_str(), access), STW_ERROR_INVALID)
                << "'" << name << "' " << access;
            expect_sentence(storage_, name.size() > NAME_MAX ? "256" : name.c_str());
        }
    EXPECT_EQ(directory_.entries(), 1u);
    struct stat deeper = {};
    ASSERT_EQ(stat((inside + "/deeper").c_str(), &deeper), 0);
    EXPECT_EQ(deeper.st_nlink, 2u);
    EXPECT_EQ(rmdir((inside + "/deeper").c_str()), 0);
    EXPECT_EQ(rmdir(inside.c_str()), 0) << "something was made in it";
}

// ------------------------------------------------------------------------------ the lock --

TEST_P(StorageKeep, WhatIsOpenElsewhereIsLockedAndStays)
{
    open_as(kCreate);
    write(1);
    Storage other(GetParam().ops, GetParam().options);
    for (const uint32_t access : {kOpen, kReplace}) {
        EXPECT_EQ(other.open(directory_.path(), kMiB, kDepth, kName, access), STW_ERROR_LOCKED)
            << access;
        expect_sentence(other);
    }
    EXPECT_EQ(other.open(directory_.path(), kMiB, kDepth, kName, kCreate), STW_ERROR_EXISTS);
    EXPECT_TRUE(holds(1));
    storage_.close();
    EXPECT_EQ(directory_.entries(), 1u);
    ASSERT_EQ(other.open(directory_.path(), kMiB, kDepth, kName, kOpen), STW_OK)
        << other.sentence();
    EXPECT_EQ(try_open(kOpen), STW_ERROR_LOCKED);
    other.close();
    EXPECT_TRUE(is_kept(1));
}

TEST_P(StorageKeep, AnOpenThatFailsKeepsNoLock)
{
    make(1);
    Storage other(GetParam().ops, GetParam().options);
    EXPECT_EQ(other.open(directory_.path(), 2 * kMiB, kDepth, kName, kOpen), STW_ERROR_MISMATCH);
    EXPECT_TRUE(is_kept(1));
}

TEST_P(StorageKeep, AKilledProcessLetsItGo)
{
    make(1);
    int said[2] = {};
    ASSERT_EQ(pipe2(said, O_CLOEXEC), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) hold_until_killed(said[1]);
    close(said[1]);
    char opened = 0;
    EXPECT_EQ(read(said[0], &opened, 1), 1);
    close(said[0]);
    EXPECT_EQ(opened, 'y');
    EXPECT_EQ(try_open(kOpen), STW_ERROR_LOCKED);
    EXPECT_EQ(try_open(kReplace), STW_ERROR_LOCKED);
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(is_kept(1));
}

// ------------------------------------------------------------ what has the name already --

TEST_P(StorageKeep, ASymbolicLinkIsRefusedAndItsTargetUntouched)
{
    make(1, "target");
    ASSERT_EQ(symlink("target", place().c_str()), 0);
    expect_foreign();
    EXPECT_TRUE(is_kept(1, "target"));
    ASSERT_EQ(unlink(place().c_str()), 0);
    ASSERT_EQ(symlink("nowhere", place().c_str()), 0);
    expect_foreign();
    EXPECT_EQ(try_open(kOpen, kMiB, "nowhere"), STW_ERROR_NOT_FOUND);
}

TEST_P(StorageKeep, AFifoIsRefusedAndNothingHangs)
{
    ASSERT_EQ(mkfifo(place().c_str(), 0600), 0);
    const int status = in_child([&] {
        alarm(kPatience / kSecond);  // ends the child where it hangs
        expect_foreign();
        return HasFailure() ? 1 : 0;
    });
    EXPECT_TRUE(WIFEXITED(status)) << "it hung";
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(StorageKeep, ADirectoryIsRefused)
{
    ASSERT_EQ(mkdir(place().c_str(), 0700), 0);
    expect_foreign();
    EXPECT_EQ(rmdir(place().c_str()), 0) << "something was made in it";
}

TEST_P(StorageKeep, AFileThatOthersMayReadIsPermission)
{
    make(1);
    for (const mode_t mode : {0644, 0640, 0602, 0604}) {
        ASSERT_EQ(chmod(place().c_str(), mode), 0);
        expect_foreign();
    }
    ASSERT_EQ(chmod(place().c_str(), 0600), 0);
    EXPECT_TRUE(is_kept(1));
}

TEST_P(StorageKeep, AFileOfAnotherUserIsPermission)
{
    if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
    make(1);
    ASSERT_EQ(chown(place().c_str(), 65534, 65534), 0);
    expect_foreign();
}

TEST_P(StorageKeep, AnEmptyFileIsRefusedAndCanBeReplaced)
{
    close(::open(place().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    EXPECT_LT(try_open(kOpen, 0), STW_OK);
    expect_sentence(storage_);
    EXPECT_EQ(try_open(kOpen), STW_ERROR_MISMATCH);
    open_as(kReplace);
    write(1);
    storage_.close();
    EXPECT_TRUE(is_kept(1));
}

// ---------------------------------------------------------------------------- a new file --

TEST_P(StorageKeep, ANewFileIsOfThisUserAlone)
{
    const mode_t before = umask(0);
    const stw_status made = try_open(kCreate);
    umask(before);
    ASSERT_EQ(made, STW_OK) << storage_.sentence();
    for (int round = 0; round < 2; ++round) {
        const struct stat about = look();
        EXPECT_TRUE(S_ISREG(about.st_mode));
        EXPECT_EQ(about.st_mode & 07777, 0600u);
        EXPECT_EQ(about.st_uid, geteuid());
        EXPECT_EQ(static_cast<uint64_t>(about.st_size), kMiB);
        storage_.close();
        open_as(kReplace);
    }
}

// Whoever sees the name sees the whole file: nothing is done to it between its name and the end of
// open. A file system without O_TMPFILE cannot do that.
TEST_P(StorageKeep, ANameAppearsWhenTheFileIsComplete)
{
    const int nameless = ::open(directory_.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (nameless < 0) GTEST_SKIP() << "this file system has no files without a name";
    close(nameless);
    const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    ASSERT_GE(watch, 0);
    constexpr uint32_t kChanges = IN_CREATE | IN_MOVED_TO | IN_MODIFY | IN_DELETE | IN_MOVED_FROM;
    ASSERT_GE(inotify_add_watch(watch, directory_.path().c_str(), kChanges), 0);
    open_as(kCreate, 16 * kMiB);
    alignas(inotify_event) char bytes[4096];
    std::vector<uint32_t> seen;
    for (ssize_t n; (n = read(watch, bytes, sizeof bytes)) > 0;)
        for (ssize_t at = 0; at < n;) {
            const auto *event = reinterpret_cast<const inotify_event *>(bytes + at);
            if (event->len != 0 && std::string(event->name) == kName) seen.push_back(event->mask);
            at += static_cast<ssize_t>(sizeof *event + event->len);
        }
    close(watch);
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_NE(seen[0] & (IN_CREATE | IN_MOVED_TO), 0u);
    EXPECT_EQ(static_cast<uint64_t>(look().st_size), 16 * kMiB);
}

TEST_P(StorageKeep, WithoutRoomNoNameIsLeft)
{
    struct statvfs disk = {};
    ASSERT_EQ(statvfs(directory_.path().c_str(), &disk), 0);
    const uint64_t needed = disk.f_blocks * disk.f_frsize + 1024 * kMiB;
    for (const uint32_t access : {kCreate, kReplace}) {
        ASSERT_EQ(try_open(access, needed), STW_ERROR_NO_SPACE);
        EXPECT_EQ(storage_.error().needed_bytes, needed);
        EXPECT_LT(storage_.error().free_bytes, needed);
        EXPECT_NE(storage_.sentence().find(directory_.path()), std::string::npos);
        EXPECT_EQ(directory_.entries(), 0u);
    }
    make(1);
    EXPECT_EQ(try_open(kReplace, needed), STW_ERROR_NO_SPACE);
    EXPECT_TRUE(is_kept(1)) << "the old file went for one that there is no room for";
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StorageKeep);
INSTANTIATE_TEST_SUITE_P(Drivers, StorageKeep, testing::ValuesIn(storage_cases()),
                         [](const auto &info) { return info.param.label; });

}  // namespace
}  // namespace conformance
