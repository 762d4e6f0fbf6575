// SPDX-License-Identifier: Apache-2.0
// Every storage driver, driven alike: what becomes of requests. A driver of which something else
// holds is wrong, or the contract in stepwell/driver.h is.
#include "tests/conformance/support.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

namespace conformance {
namespace {

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

TEST_P(StorageConformance, SpaceThatIsGivenBackIsEmptyAndComesBack)
{
    if ((ops().capabilities & STW_STORAGE_CAN_SHRINK) == 0) GTEST_SKIP() << "cannot shrink";
    open(4 * kMiB);
    Buffer data(kMiB);
    for (uint64_t i = 0; i < 3; ++i) {
        data.fill(i);
        ASSERT_EQ(storage_.run(STW_IO_WRITE, data.data(), i * kMiB, kMiB),
                  static_cast<int64_t>(kMiB));
    }
    const stw_status given = ops().give_back(storage_.get(), kMiB, kMiB);
    if (given == STW_ERROR_UNSUPPORTED) GTEST_SKIP() << "the file system punches no holes";
    ASSERT_EQ(given, STW_OK);
    ASSERT_EQ(storage_.run(STW_IO_READ, data.data(), kMiB, kMiB), static_cast<int64_t>(kMiB));
    EXPECT_TRUE(std::all_of(data.data(), data.data() + kMiB, [](uint8_t b) { return b == 0; }));
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    ASSERT_EQ(ops().take_back(storage_.get(), kMiB, kMiB, &error), STW_OK) << error.sentence;
    data.fill(9);
    ASSERT_EQ(storage_.run(STW_IO_WRITE, data.data(), kMiB, kMiB), static_cast<int64_t>(kMiB));
    for (const uint64_t seed : {0, 9, 2}) {
        const uint64_t at = seed == 9 ? 1 : seed;
        ASSERT_EQ(storage_.run(STW_IO_READ, data.data(), at * kMiB, kMiB),
                  static_cast<int64_t>(kMiB));
        EXPECT_TRUE(data.holds(seed)) << seed;
    }
    EXPECT_EQ(ops().give_back(storage_.get(), 4 * kMiB, kMiB), STW_ERROR_INVALID);
    EXPECT_EQ(ops().take_back(storage_.get(), 0, 5 * kMiB, &error), STW_ERROR_INVALID);
    EXPECT_NE(error.sentence[0], '\0');
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

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StorageConformance);
INSTANTIATE_TEST_SUITE_P(Drivers, StorageConformance, testing::ValuesIn(storage_cases()),
                         [](const auto &info) { return info.param.label; });

}  // namespace
}  // namespace conformance
