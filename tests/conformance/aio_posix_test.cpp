// SPDX-License-Identifier: Apache-2.0
// What the drivers of real disks promise each for itself, beyond the suite that all of them pass.
#include "tests/conformance/support.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace conformance {
namespace {

TEST(AioStorage, WithoutSlotsItSaysTheNumbersAndTheSysctl)
{
    uint64_t most = 0;
    std::ifstream("/proc/sys/fs/aio-max-nr") >> most;
    if (most > 1 << 22) GTEST_SKIP() << "fs.aio-max-nr is " << most << ", too many to ask for more";
    Directory directory;
    Storage storage("aio", "");
    EXPECT_EQ(storage.open(directory.path(), kMiB, static_cast<uint32_t>(most + 1)),
              STW_ERROR_UNSUPPORTED);
    EXPECT_NE(storage.sentence().find(std::to_string(most)), std::string::npos);
    EXPECT_NE(storage.sentence().find("sysctl fs.aio-max-nr="), std::string::npos);
    EXPECT_NE(storage.sentence().find("posix"), std::string::npos);
}

TEST(PosixStorage, BufferedIoLeavesNothingInThePageCache)
{
    const auto cached_kib = [] {
        std::ifstream meminfo("/proc/meminfo");
        std::string key;
        uint64_t value = 0;
        for (std::string rest; meminfo >> key >> value; std::getline(meminfo, rest))
            if (key == "Cached:") return value;
        return uint64_t{0};
    };
    Directory directory;
    Storage storage("posix", "buffered=1");
    ASSERT_EQ(storage.open(directory.path(), 256 * kMiB, 8), STW_OK) << storage.sentence();
    EXPECT_NE(std::string(storage.info().remark).find("buffered"), std::string::npos);
    Buffer data(8 * kMiB);
    // What others write meanwhile is in the cache as well: of three times one is to be quiet.
    uint64_t least_kib = UINT64_MAX;
    for (int round = 0; round < 3; ++round) {
        const uint64_t before = cached_kib();
        for (uint64_t i = 0; i < 32; ++i)
            ASSERT_EQ(storage.run(STW_IO_WRITE, data.data(), i * data.bytes(), data.bytes()),
                      static_cast<int64_t>(data.bytes()));
        for (uint64_t i = 0; i < 32; ++i)
            ASSERT_EQ(storage.run(STW_IO_READ, data.data(), i * data.bytes(), data.bytes()),
                      static_cast<int64_t>(data.bytes()));
        const uint64_t after = cached_kib();
        least_kib = std::min(least_kib, after > before ? after - before : 0);
    }
    EXPECT_LT(least_kib, 128u * 1024) << "of 256 MiB, more than half stayed";
}

TEST(PosixStorage, ItWorksOnTmpfsWhenToldAndSaysWhatThatIs)
{
    struct stat shm = {};
    if (stat("/dev/shm", &shm) != 0) GTEST_SKIP() << "no /dev/shm here";
    Storage storage("posix", "allow_tmpfs=1");
    ASSERT_EQ(storage.open("/dev/shm", kMiB, 4), STW_OK) << storage.sentence();
    EXPECT_STREQ(storage.info().file_system, "tmpfs");
    EXPECT_NE(std::string(storage.info().remark).find("memory"), std::string::npos);
    Buffer data(64 << 10);
    data.fill(1);
    EXPECT_EQ(storage.run(STW_IO_WRITE, data.data(), 0, data.bytes()), 64 << 10);
    std::memset(data.data(), 0, data.bytes());
    EXPECT_EQ(storage.run(STW_IO_READ, data.data(), 0, data.bytes()), 64 << 10);
    EXPECT_TRUE(data.holds(1));
}

TEST(PosixStorage, PastTheFileSizeLimitItIsRefusedAndNotKilled)
{
    Directory directory;
    const int status = in_child([&] {
        const rlimit limit = {kMiB, kMiB};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
        Storage storage("posix", "");
        if (storage.open(directory.path(), 2 * kMiB, 4) != STW_ERROR_NO_SPACE) return 2;
        return storage.sentence().find("ulimit -f") == std::string::npos ? 3 : 0;
    });
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Past the limit the kernel ends the process at a write that changes no file's size, too.
TEST(KeptFile, OpenPastTheFileSizeLimitIsRefused)
{
    for (const char *driver : {"aio", "posix"}) {
        Directory directory;
        Storage made(driver, "");
        ASSERT_EQ(made.open(directory.path(), 2 * kMiB, 4, "kept", STW_STORAGE_NAME_CREATE), STW_OK)
            << made.sentence();
        made.close();
        const int status = in_child([&] {
            const rlimit limit = {kMiB, kMiB};
            if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
            Storage storage(driver, "");
            if (storage.open(directory.path(), 0, 4, "kept", STW_STORAGE_NAME_OPEN) !=
                STW_ERROR_NO_SPACE)
                return 2;
            return storage.sentence().find("ulimit -f") == std::string::npos ? 3 : 0;
        });
        EXPECT_TRUE(WIFEXITED(status)) << driver;
        EXPECT_EQ(WEXITSTATUS(status), 0) << driver;
    }
}

TEST(KeptFile, FlushSaysThatItWasRemoved)
{
    for (const char *driver : {"aio", "posix"}) {
        Directory directory;
        Storage kept(driver, "");
        ASSERT_EQ(kept.open(directory.path(), kMiB, 8, "kept.stepwell", STW_STORAGE_NAME_CREATE),
                  STW_OK)
            << kept.sentence();
        EXPECT_EQ(kept.ops()->flush(kept.get()), STW_OK) << driver;
        ASSERT_EQ(unlink((directory.path() + "/kept.stepwell").c_str()), 0);
        EXPECT_EQ(kept.ops()->flush(kept.get()), STW_ERROR_NOT_FOUND) << driver;
        Storage scratch(driver, "");
        ASSERT_EQ(scratch.open(directory.path(), kMiB, 8), STW_OK) << scratch.sentence();
        EXPECT_EQ(scratch.ops()->flush(scratch.get()), STW_OK) << driver;
    }
}

// A path whose aio slots are used up is opened with posix instead.
TEST(KeptFile, WhatOneDriverWroteTheOtherReads)
{
    constexpr const char *kPairs[][2] = {{"aio", "posix"}, {"posix", "aio"}};
    for (const auto &[writer, reader] : kPairs)
        for (const char *options : {"", "buffered=1"}) {
            const auto options_of = [&](const char *driver) {
                return std::string(driver) == "posix" ? options : "";
            };
            Directory directory;
            Storage first(writer, options_of(writer));
            ASSERT_EQ(first.open(directory.path(), kMiB, 4, "kept", STW_STORAGE_NAME_CREATE),
                      STW_OK)
                << first.sentence();
            Buffer data(kMiB);
            data.fill(1);
            EXPECT_EQ(first.run(STW_IO_WRITE, data.data(), 0, kMiB), static_cast<int64_t>(kMiB));
            EXPECT_EQ(first.ops()->flush(first.get()), STW_OK);
            Storage second(reader, options_of(reader));
            EXPECT_EQ(second.open(directory.path(), kMiB, 4, "kept", STW_STORAGE_NAME_OPEN),
                      STW_ERROR_LOCKED);
            first.close();
            ASSERT_EQ(second.open(directory.path(), kMiB, 4, "kept", STW_STORAGE_NAME_OPEN), STW_OK)
                << second.sentence();
            std::memset(data.data(), 0, kMiB);
            EXPECT_EQ(second.run(STW_IO_READ, data.data(), 0, kMiB), static_cast<int64_t>(kMiB));
            EXPECT_TRUE(data.holds(1)) << writer << " to " << reader << " " << options;
        }
}

}  // namespace
}  // namespace conformance
