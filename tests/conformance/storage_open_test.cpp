// SPDX-License-Identifier: Apache-2.0
// Every storage driver, driven alike: what an open reserves, refuses and says, and that nothing is
// left after a close.
#include "tests/conformance/support.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <sys/stat.h>
#include <sys/statvfs.h>

namespace conformance {
namespace {

TEST_P(StorageConformance, InfoSaysWhatWasOpened)
{
    open(4 * kMiB, 8);
    EXPECT_EQ(storage_.info().bytes, 4 * kMiB);
    EXPECT_EQ(storage_.info().queue_depth, 8u);
    EXPECT_NE(storage_.info().file_system[0], '\0');
    const uint32_t alignment = storage_.info().alignment_bytes;
    EXPECT_TRUE(alignment != 0 && (alignment & (alignment - 1)) == 0) << alignment;
}

TEST_P(StorageConformance, SpaceIsReservedAtOpen)
{
    if (in_memory()) GTEST_SKIP() << kNoDirectory;
    struct statvfs before = {};
    struct statvfs after = {};
    ASSERT_EQ(statvfs(directory_.path().c_str(), &before), 0);
    open(64 * kMiB);
    ASSERT_EQ(statvfs(directory_.path().c_str(), &after), 0);
    const uint64_t taken = (before.f_bfree - after.f_bfree) * before.f_frsize;
    if (after.f_bfree > before.f_bfree) GTEST_SKIP() << "somebody else frees space here";
    EXPECT_GE(taken, 48 * kMiB);  // others may free some meanwhile
}

TEST_P(StorageConformance, NothingIsLeftInTheDirectoryWhileOpen)
{
    open();
    EXPECT_EQ(directory_.entries(), 0u);
    storage_.close();
    EXPECT_EQ(directory_.entries(), 0u);
}

TEST_P(StorageConformance, NothingIsLeftAfterSigkill)
{
    const int status = in_child([&] {
        Storage storage(GetParam().ops, GetParam().options);
        if (storage.open(directory_.path(), kMiB, 4) != STW_OK) return 1;
        raise(SIGKILL);
        return 2;
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EXPECT_EQ(directory_.entries(), 0u);
}

TEST_P(StorageConformance, MissingPathIsNotFound)
{
    if (in_memory()) GTEST_SKIP() << kNoDirectory;
    const std::string path = directory_.path() + "/missing";
    EXPECT_EQ(storage_.open(path, kMiB, 4), STW_ERROR_NOT_FOUND);
    EXPECT_NE(storage_.sentence().find(path), std::string::npos);
    EXPECT_EQ(storage_.error().os_errno, ENOENT);
}

TEST_P(StorageConformance, InMemoryThePathIsALabel)
{
    if (!in_memory()) GTEST_SKIP() << "this driver keeps its bytes in a directory";
    ASSERT_EQ(storage_.open(directory_.path() + "/missing", kMiB, 4), STW_OK)
        << storage_.sentence();
    EXPECT_EQ(directory_.entries(), 0u);
}

TEST_P(StorageConformance, AFileIsNotADirectory)
{
    if (in_memory()) GTEST_SKIP() << kNoDirectory;
    const std::string path = directory_.path() + "/file";
    std::ofstream(path) << "x";
    EXPECT_EQ(storage_.open(path, kMiB, 4), STW_ERROR_INVALID);
    EXPECT_NE(storage_.sentence().find("not a directory"), std::string::npos);
}

TEST_P(StorageConformance, ASymbolicLinkIsNotFollowed)
{
    if (in_memory()) GTEST_SKIP() << kNoDirectory;
    const std::string path = directory_.path() + "/link";
    ASSERT_EQ(symlink(directory_.path().c_str(), path.c_str()), 0);
    EXPECT_EQ(storage_.open(path, kMiB, 4), STW_ERROR_INVALID);
    EXPECT_NE(storage_.sentence().find("symbolic link"), std::string::npos);
}

TEST_P(StorageConformance, NotWritableIsPermission)
{
    if (in_memory()) GTEST_SKIP() << kNoDirectory;
    ASSERT_EQ(chmod(directory_.path().c_str(), 0555), 0);
    const int status = in_child([&] {
        // Root may write everywhere, and nobody may not enter the directories above: go in first.
        if (chdir(directory_.path().c_str()) != 0) return 1;
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 2;
        Storage storage(GetParam().ops, GetParam().options);
        if (storage.open(".", kMiB, 4) != STW_ERROR_PERMISSION) return 3;
        return storage.sentence().find("not writable") == std::string::npos ? 4 : 0;
    });
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(StorageConformance, OpenWithoutRoomIsNoSpaceAndLeavesNothing)
{
    if (in_memory()) GTEST_SKIP() << kNoDirectory;
    struct statvfs before = {};
    ASSERT_EQ(statvfs(directory_.path().c_str(), &before), 0);
    const uint64_t free = before.f_bavail * before.f_frsize;
    const uint64_t needed = free + 1024 * kMiB;
    ASSERT_EQ(storage_.open(directory_.path(), needed, 4), STW_ERROR_NO_SPACE);
    EXPECT_EQ(storage_.error().needed_bytes, needed);
    EXPECT_LT(storage_.error().free_bytes, needed);
    EXPECT_GT(storage_.error().free_bytes, 0u);
    EXPECT_NE(storage_.sentence().find(directory_.path()), std::string::npos);
    EXPECT_EQ(directory_.entries(), 0u);
}

TEST_P(StorageConformance, OpenOnTmpfsIsRefusedWithTheReason)
{
    if (in_memory()) GTEST_SKIP() << kNoDirectory;
    struct stat shm = {};
    if (stat("/dev/shm", &shm) != 0) GTEST_SKIP() << "no /dev/shm here";
    EXPECT_EQ(storage_.open("/dev/shm", kMiB, 4), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(storage_.sentence().find("tmpfs"), std::string::npos);
    EXPECT_NE(storage_.sentence().find("memory"), std::string::npos);
}

TEST_P(StorageConformance, UnknownOptionIsRefusedByName)
{
    Storage storage(GetParam().ops, GetParam().options + ";colour=blue");
    EXPECT_EQ(storage.open(directory_.path(), kMiB, 4), STW_ERROR_INVALID);
    EXPECT_NE(storage.sentence().find("colour=blue"), std::string::npos);
}

TEST_P(StorageConformance, OptionsOfAnotherBuildAreRefused)
{
    struct Newer {
        stw_storage_options known;
        uint64_t unknown;
    } newer = {};
    const std::string path = directory_.path();
    newer.known.path = path.c_str();
    newer.known.bytes = kMiB;
    newer.known.options = GetParam().options.c_str();
    newer.known.struct_size = sizeof newer;
    newer.unknown = 1;
    stw_storage *storage = nullptr;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    EXPECT_EQ(ops().open(nullptr, &newer.known, &storage, &error), STW_ERROR_INVALID);
    EXPECT_NE(std::string(error.sentence).find(ops().name), std::string::npos) << error.sentence;
    newer.known.struct_size = sizeof newer.known - 8;
    EXPECT_EQ(ops().open(nullptr, &newer.known, &storage, nullptr), STW_ERROR_INVALID);
    newer.known.struct_size = sizeof newer;
    newer.unknown = 0;  // more room, nothing asked
    ASSERT_EQ(ops().open(nullptr, &newer.known, &storage, nullptr), STW_OK);
    EXPECT_EQ(ops().close(storage, kPatience), STW_OK);
}

TEST_P(StorageConformance, NoFileOrThreadOutlivesClose)
{
    const auto count = [](const char *path) {
        size_t n = 0;
        for ([[maybe_unused]] const auto &entry : std::filesystem::directory_iterator(path)) ++n;
        return n;
    };
    const size_t files = count("/proc/self/fd");
    const size_t threads = count("/proc/self/task");
    open();
    storage_.close();
    EXPECT_EQ(count("/proc/self/fd"), files);
    // A thread that was joined may be listed for a moment.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (count("/proc/self/task") > threads && std::chrono::steady_clock::now() < end)
        std::this_thread::yield();
    EXPECT_LE(count("/proc/self/task"), threads);  // those of the test before may have been there
}

}  // namespace
}  // namespace conformance
