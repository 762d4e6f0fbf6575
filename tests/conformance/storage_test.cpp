// SPDX-License-Identifier: Apache-2.0
// Every storage driver, driven alike. A driver of which something else holds is wrong, or the
// contract in stepwell/driver.h is.
#include "tests/conformance/support.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

namespace conformance {
namespace {

class StorageConformance : public testing::TestWithParam<StorageCase> {
protected:
    Directory directory_;
    Storage storage_{GetParam().driver, GetParam().options};

    void open(uint64_t bytes = 4 * kMiB, uint32_t queue_depth = 8)
    {
        ASSERT_EQ(storage_.open(directory_.path(), bytes, queue_depth), STW_OK)
            << storage_.sentence();
    }
    const stw_storage_ops &ops() { return *storage_.ops(); }
};

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
    struct statvfs before = {};
    struct statvfs after = {};
    ASSERT_EQ(statvfs(directory_.path().c_str(), &before), 0);
    open(64 * kMiB);
    ASSERT_EQ(statvfs(directory_.path().c_str(), &after), 0);
    const uint64_t taken = (before.f_bfree - after.f_bfree) * before.f_frsize;
    if (after.f_bfree > before.f_bfree) GTEST_SKIP() << "somebody else frees space here";
    EXPECT_GE(taken, 48 * kMiB);  // others may free some meanwhile
}

TEST_P(StorageConformance, DataComesBackAtEveryAlignedOffset)
{
    open(kMiB);
    const uint64_t unit = storage_.unit();
    Buffer data(3 * unit);
    for (uint64_t offset = 0; offset + data.bytes() <= kMiB; offset += unit) {
        data.fill(offset);
        ASSERT_EQ(storage_.run(STW_IO_WRITE, data.data(), offset, data.bytes()),
                  static_cast<int64_t>(data.bytes()));
        Buffer back(3 * unit);
        ASSERT_EQ(storage_.run(STW_IO_READ, back.data(), offset, back.bytes()),
                  static_cast<int64_t>(back.bytes()));
        ASSERT_TRUE(back.holds(offset)) << "at offset " << offset;
    }
}

TEST_P(StorageConformance, LargeRequestsKeepTheirPlaces)
{
    open(32 * kMiB);
    Buffer data(8 * kMiB);
    for (uint64_t i = 0; i < 4; ++i) {
        data.fill(i);
        ASSERT_EQ(storage_.run(STW_IO_WRITE, data.data(), i * data.bytes(), data.bytes()),
                  static_cast<int64_t>(data.bytes()));
    }
    for (uint64_t i = 4; i-- > 0;) {
        ASSERT_EQ(storage_.run(STW_IO_READ, data.data(), i * data.bytes(), data.bytes()),
                  static_cast<int64_t>(data.bytes()));
        ASSERT_TRUE(data.holds(i)) << i;
    }
    EXPECT_EQ(ops().flush(storage_.get()), STW_OK);
}

TEST_P(StorageConformance, ReservedSpaceReadsAsZeros)
{
    open(kMiB);
    Buffer data(kMiB);
    ASSERT_EQ(storage_.run(STW_IO_READ, data.data(), 0, kMiB), static_cast<int64_t>(kMiB));
    EXPECT_TRUE(std::all_of(data.data(), data.data() + kMiB, [](uint8_t b) { return b == 0; }));
}

TEST_P(StorageConformance, FullQueueIsPartialAcceptance)
{
    constexpr uint32_t kDepth = 4;
    open(kMiB, kDepth);
    const uint64_t unit = storage_.unit();
    Buffer data(10 * unit);
    std::vector<stw_io> ios;
    for (uint64_t i = 0; i < 10; ++i)
        ios.push_back({i, data.data() + i * unit, i * unit, unit, STW_IO_WRITE, 0});
    uint32_t first = 0;
    ASSERT_EQ(ops().submit(storage_.get(), ios.data(), 10, &first), STW_OK);
    EXPECT_EQ(first, kDepth);  // nothing was polled, so no slot can have come free
    uint32_t none = 1;
    ASSERT_EQ(ops().submit(storage_.get(), &ios[first], 10 - first, &none), STW_OK);
    EXPECT_EQ(none, 0u);
    EXPECT_EQ(storage_.collect(first).size(), first);
    uint32_t again = 0;
    ASSERT_EQ(ops().submit(storage_.get(), &ios[first], 10 - first, &again), STW_OK);
    EXPECT_EQ(again, kDepth);
    EXPECT_EQ(storage_.collect(again).size(), again);
}

TEST_P(StorageConformance, EachAcceptedTagCompletesOnce)
{
    constexpr uint64_t kRequests = 500;
    open(4 * kMiB, 8);
    const uint64_t unit = storage_.unit();
    Buffer data(8 * unit);
    std::multiset<uint64_t> seen;
    uint64_t next = 0;
    while (seen.size() < kRequests) {
        std::vector<stw_io> ios;
        for (uint64_t i = next; i < std::min(next + 5, kRequests); ++i)
            ios.push_back({i << 40 | i, data.data() + i % 8 * unit, i % 64 * unit, unit,
                           i % 2 != 0 ? STW_IO_READ : STW_IO_WRITE, 0});
        uint32_t accepted = 0;
        ASSERT_EQ(
            ops().submit(storage_.get(), ios.data(), static_cast<uint32_t>(ios.size()), &accepted),
            STW_OK);
        next += accepted;
        stw_io_done done[3];
        const uint32_t n = ops().poll(storage_.get(), done, 3, kPatience);
        ASSERT_GT(n, 0u);
        for (uint32_t i = 0; i < n; ++i) {
            EXPECT_EQ(done[i].result, static_cast<int64_t>(unit));
            seen.insert(done[i].tag);
        }
    }
    stw_io_done more;
    EXPECT_EQ(ops().poll(storage_.get(), &more, 1, 0), 0u);
    for (uint64_t i = 0; i < kRequests; ++i) ASSERT_EQ(seen.count(i << 40 | i), 1u) << i;
}

TEST_P(StorageConformance, PollWithoutWorkReturnsAtItsTime)
{
    open();
    stw_io_done done;
    EXPECT_EQ(ops().poll(storage_.get(), &done, 1, 0), 0u);
    const auto before = std::chrono::steady_clock::now();
    EXPECT_EQ(ops().poll(storage_.get(), &done, 1, 20'000'000), 0u);
    EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(20));
}

TEST_P(StorageConformance, WakeEndsAWaitingPoll)
{
    open();
    for (int round = 0; round < 20; ++round) {
        const auto before = std::chrono::steady_clock::now();
        std::thread waiter([&] {
            stw_io_done done;
            EXPECT_EQ(ops().poll(storage_.get(), &done, 1, kPatience), 0u);
        });
        ops().wake(storage_.get());  // before the wait or during it: it ends either way
        waiter.join();
        EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
    }
}

TEST_P(StorageConformance, WakeLosesNoCompletion)
{
    open();
    const uint64_t unit = storage_.unit();
    Buffer data(unit);
    for (uint64_t i = 0; i < 50; ++i) {
        ASSERT_EQ(storage_.submit({i, data.data(), 0, unit, STW_IO_WRITE, 0}), STW_OK);
        ops().wake(storage_.get());
        stw_io_done done;
        uint32_t n = 0;
        for (int tries = 0; n == 0 && tries < 100; ++tries)
            n = ops().poll(storage_.get(), &done, 1, kPatience);
        ASSERT_EQ(n, 1u);
        EXPECT_EQ(done.tag, i);
    }
}

TEST_P(StorageConformance, TwoThreadsSubmitAndPoll)
{
    constexpr uint64_t kRequests = 2000;
    open(4 * kMiB, 8);
    const uint64_t unit = storage_.unit();
    // A buffer is used again only when its completion was seen; the poller checks what was read.
    constexpr uint64_t kBuffers = 8;
    Buffer data(kBuffers * unit);
    for (uint64_t i = 0; i < kBuffers; ++i) {
        fill_pattern(data.data() + i * unit, unit, i);
        ASSERT_EQ(storage_.run(STW_IO_WRITE, data.data() + i * unit, i * unit, unit),
                  static_cast<int64_t>(unit));
    }
    std::atomic<uint64_t> busy[kBuffers] = {};
    std::thread poller([&] {
        for (uint64_t seen = 0; seen < kRequests;) {
            stw_io_done done[4];
            const uint32_t n = ops().poll(storage_.get(), done, 4, kPatience);
            ASSERT_GT(n, 0u);
            for (uint32_t i = 0; i < n; ++i) {
                const uint64_t buffer = done[i].tag % kBuffers;
                uint8_t *bytes = data.data() + buffer * unit;
                ASSERT_EQ(done[i].result, static_cast<int64_t>(unit));
                ASSERT_TRUE(has_pattern(bytes, unit, buffer));
                std::memset(bytes, 0, unit);
                busy[buffer].store(0, std::memory_order_release);
            }
            seen += n;
        }
    });
    for (uint64_t i = 0; i < kRequests;) {
        const uint64_t buffer = i % kBuffers;
        if (busy[buffer].load(std::memory_order_acquire) != 0) {
            std::this_thread::yield();
            continue;
        }
        busy[buffer].store(1, std::memory_order_relaxed);
        const stw_io io = {i, data.data() + buffer * unit, buffer * unit, unit, STW_IO_READ, 0};
        uint32_t accepted = 0;
        ASSERT_EQ(ops().submit(storage_.get(), &io, 1, &accepted), STW_OK);
        if (accepted == 0) busy[buffer].store(0, std::memory_order_relaxed);
        i += accepted;
    }
    poller.join();
}

TEST_P(StorageConformance, MisalignedIsRefusedAtSubmit)
{
    open(kMiB);
    const uint64_t alignment = storage_.info().alignment_bytes;
    if (alignment == 1) GTEST_SKIP() << "this driver takes every alignment here (buffered I/O)";
    Buffer data(4 * alignment);
    uint8_t *bytes = data.data();
    EXPECT_EQ(storage_.submit({1, bytes + 1, 0, alignment, STW_IO_READ, 0}), STW_ERROR_INVALID);
    EXPECT_EQ(storage_.submit({1, bytes, alignment / 2, alignment, STW_IO_READ, 0}),
              STW_ERROR_INVALID);
    EXPECT_EQ(storage_.submit({1, bytes, 0, alignment + 1, STW_IO_WRITE, 0}), STW_ERROR_INVALID);
    stw_io_done done;
    EXPECT_EQ(ops().poll(storage_.get(), &done, 1, 0), 0u);
}

TEST_P(StorageConformance, SenselessRequestsAreRefusedAtSubmit)
{
    open(kMiB);
    const uint64_t unit = storage_.unit();
    Buffer data(2 * unit);
    uint8_t *bytes = data.data();
    EXPECT_EQ(storage_.submit({1, nullptr, 0, unit, STW_IO_READ, 0}), STW_ERROR_INVALID);
    EXPECT_EQ(storage_.submit({1, bytes, 0, 0, STW_IO_READ, 0}), STW_ERROR_INVALID);
    EXPECT_EQ(storage_.submit({1, bytes, 0, unit, 3, 0}), STW_ERROR_INVALID);
    EXPECT_EQ(storage_.submit({1, bytes, 0, unit, STW_IO_READ, 1}), STW_ERROR_INVALID);
    EXPECT_EQ(storage_.submit({1, bytes, UINT64_MAX - unit + 1, unit, STW_IO_READ, 0}),
              STW_ERROR_INVALID);
    // The file is never grown: a write across its end is refused, not cut.
    EXPECT_EQ(storage_.submit({1, bytes, kMiB - unit, 2 * unit, STW_IO_WRITE, 0}),
              STW_ERROR_INVALID);
}

TEST_P(StorageConformance, AnErrorLeavesThoseBeforeItAccepted)
{
    open(kMiB);
    const uint64_t unit = storage_.unit();
    Buffer data(3 * unit);
    const stw_io ios[3] = {{1, data.data(), 0, unit, STW_IO_WRITE, 0},
                           {2, nullptr, unit, unit, STW_IO_WRITE, 0},
                           {3, data.data() + unit, unit, unit, STW_IO_WRITE, 0}};
    uint32_t accepted = 9;
    EXPECT_EQ(ops().submit(storage_.get(), ios, 3, &accepted), STW_ERROR_INVALID);
    EXPECT_EQ(accepted, 1u);
    const auto done = storage_.collect(1);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].tag, 1u);
}

TEST_P(StorageConformance, ShortAtEndIsReported)
{
    open(kMiB);
    const uint64_t unit = storage_.unit();
    Buffer data(2 * unit);
    EXPECT_EQ(storage_.run(STW_IO_READ, data.data(), kMiB - unit, 2 * unit),
              static_cast<int64_t>(unit));
    EXPECT_EQ(storage_.run(STW_IO_READ, data.data(), kMiB, unit), 0);
}

TEST_P(StorageConformance, ACloseThatTimesOutLosesNoCompletion)
{
    // Between none and all done there is a moment that a close can meet; the wait grows to find it.
    for (uint64_t round = 0; round < 24; ++round) {
        open(32 * kMiB, 8);
        Buffer data(16 * kMiB);
        std::vector<stw_io> ios;
        for (uint64_t i = 0; i < 8; ++i)
            ios.push_back({i, data.data() + i * 2 * kMiB, i * 4 * kMiB, 2 * kMiB, STW_IO_WRITE, 0});
        uint32_t accepted = 0;
        ASSERT_EQ(ops().submit(storage_.get(), ios.data(), 8, &accepted), STW_OK);
        if (storage_.try_close(round * 500'000) == STW_OK) continue;
        ASSERT_EQ(storage_.collect(accepted).size(), accepted);
        ASSERT_EQ(storage_.try_close(kPatience), STW_OK);
    }
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
        Storage storage(GetParam().driver, GetParam().options);
        if (storage.open(directory_.path(), kMiB, 4) != STW_OK) return 1;
        raise(SIGKILL);
        return 2;
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EXPECT_EQ(directory_.entries(), 0u);
}

TEST_P(StorageConformance, MissingPathIsNotFound)
{
    const std::string path = directory_.path() + "/missing";
    EXPECT_EQ(storage_.open(path, kMiB, 4), STW_ERROR_NOT_FOUND);
    EXPECT_NE(storage_.sentence().find(path), std::string::npos);
    EXPECT_EQ(storage_.error().os_errno, ENOENT);
}

TEST_P(StorageConformance, AFileIsNotADirectory)
{
    const std::string path = directory_.path() + "/file";
    std::ofstream(path) << "x";
    EXPECT_EQ(storage_.open(path, kMiB, 4), STW_ERROR_INVALID);
    EXPECT_NE(storage_.sentence().find("not a directory"), std::string::npos);
}

TEST_P(StorageConformance, ASymbolicLinkIsNotFollowed)
{
    const std::string path = directory_.path() + "/link";
    ASSERT_EQ(symlink(directory_.path().c_str(), path.c_str()), 0);
    EXPECT_EQ(storage_.open(path, kMiB, 4), STW_ERROR_INVALID);
    EXPECT_NE(storage_.sentence().find("symbolic link"), std::string::npos);
}

TEST_P(StorageConformance, NotWritableIsPermission)
{
    ASSERT_EQ(chmod(directory_.path().c_str(), 0555), 0);
    const int status = in_child([&] {
        // Root may write everywhere, and nobody may not enter the directories above: go in first.
        if (chdir(directory_.path().c_str()) != 0) return 1;
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 2;
        Storage storage(GetParam().driver, GetParam().options);
        if (storage.open(".", kMiB, 4) != STW_ERROR_PERMISSION) return 3;
        return storage.sentence().find("not writable") == std::string::npos ? 4 : 0;
    });
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(StorageConformance, OpenWithoutRoomIsNoSpaceAndLeavesNothing)
{
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
    struct stat shm = {};
    if (stat("/dev/shm", &shm) != 0) GTEST_SKIP() << "no /dev/shm here";
    EXPECT_EQ(storage_.open("/dev/shm", kMiB, 4), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(storage_.sentence().find("tmpfs"), std::string::npos);
    EXPECT_NE(storage_.sentence().find("memory"), std::string::npos);
}

TEST_P(StorageConformance, UnknownOptionIsRefusedByName)
{
    Storage storage(GetParam().driver, std::string(GetParam().options) + ";colour=blue");
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
    newer.known.options = GetParam().options;
    newer.known.struct_size = sizeof newer;
    newer.unknown = 1;
    stw_storage *storage = nullptr;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    EXPECT_EQ(ops().open(nullptr, &newer.known, &storage, &error), STW_ERROR_INVALID);
    EXPECT_EQ(error.sentence, "The " + std::string(GetParam().driver) +
                                  " driver was given options of another build.");
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
    EXPECT_EQ(count("/proc/self/task"), threads);
}

INSTANTIATE_TEST_SUITE_P(
    Drivers, StorageConformance,
    testing::Values(StorageCase{"aio", "aio", ""}, StorageCase{"posix", "posix", ""},
                    StorageCase{"posix_buffered", "posix", "buffered=1;threads=2"},
                    StorageCase{"fault_over_aio", "fault", "inner=aio"},
                    StorageCase{"fault_over_posix", "fault", "inner=posix;inner.buffered=1"}),
    [](const auto &info) { return std::string(info.param.label); });

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
    const uint64_t before = cached_kib();
    for (uint64_t i = 0; i < 32; ++i)
        ASSERT_EQ(storage.run(STW_IO_WRITE, data.data(), i * data.bytes(), data.bytes()),
                  static_cast<int64_t>(data.bytes()));
    for (uint64_t i = 0; i < 32; ++i)
        ASSERT_EQ(storage.run(STW_IO_READ, data.data(), i * data.bytes(), data.bytes()),
                  static_cast<int64_t>(data.bytes()));
    const uint64_t after = cached_kib();
    EXPECT_LT(after, before + 128 * 1024) << "of 256 MiB, more than half stayed";
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

}  // namespace
}  // namespace conformance
