// SPDX-License-Identifier: Apache-2.0
// Claims about the probe, over storage in memory whose speed depends on the requests.
#include "lib/store/probe.h"

#include "tests/unit/transfer/fake_storage.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace stepwell::store {
namespace {

using stepwell::testing::FakeStorage;

constexpr uint64_t kProbeBlock = 2 << 20;
constexpr uint64_t kProbeSlots = 16;
constexpr uint64_t kTimeNs = 2'000'000'000;

// Time passes with requests alone, as long as the disk needs for them, and a little when asked for:
// a probe of seconds takes as long as its copies.
uint64_t virtual_ns = 0;
const stw_services kServices = {
    sizeof(stw_services),
    STW_DRIVER_ABI,
    nullptr,
    [](void *) -> uint64_t { return virtual_ns += 1000; },
    [](void *, uint32_t, const char *, const char *) {},
};

// 1 GB/s with `best` bytes a request, half of that with others; writes at half of reads.
FakeStorage::Script disk_that_likes(uint64_t best)
{
    return [best](FakeStorage &, const stw_io &io) -> int64_t {
        const uint64_t slow = (io.bytes == best ? 1 : 2) * (io.kind == STW_IO_WRITE ? 2 : 1);
        virtual_ns += io.bytes * slow;
        return static_cast<int64_t>(io.bytes);
    };
}

class ProbeOf {
public:
    explicit ProbeOf(FakeStorage::Script script, uint32_t depth = 32) : disk_(depth)
    {
        StoreOptions options;
        options.services = &kServices;
        options.block_bytes = kProbeBlock;
        options.blocks = kProbeSlots;
        options.paths.push_back({&FakeStorage::ops(), "/disk", disk_.options(), 0});
        Result<std::unique_ptr<Store>> opened = Store::open(options);
        EXPECT_TRUE(opened.ok()) << opened.status().sentence();
        store_ = opened.take();
        disk_.with_lock([&] {
            disk_.log.clear();
            disk_.in_flight_peak = 0;
            disk_.script = std::move(script);
        });
    }
    Result<Probed> run() { return probe(*store_, 0, kServices, kTimeNs); }
    FakeStorage &disk() { return disk_; }

private:
    FakeStorage disk_;
    std::unique_ptr<Store> store_;
};

TEST(Probe, FindsTheRequestSizeThatIsFastestInEachDirection)
{
    ProbeOf probe([](FakeStorage &, const stw_io &io) -> int64_t {
        const bool liked = io.bytes == (io.kind == STW_IO_READ ? 2u << 20 : 512u << 10);
        virtual_ns += io.bytes * (liked ? 1 : 2);
        return static_cast<int64_t>(io.bytes);
    });
    Result<Probed> found = probe.run();
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    EXPECT_EQ(found.value().reads.bytes, 2u << 20);
    EXPECT_EQ(found.value().writes.bytes, 512u << 10);
    EXPECT_NEAR(static_cast<double>(found.value().read_bytes_per_s), 1e9, 1e8);
    EXPECT_NEAR(static_cast<double>(found.value().write_bytes_per_s), 1e9, 1e8);
}

TEST(Probe, KeepsWhatIsUsualWhereNothingIsClearlyFaster)
{
    ProbeOf probe([](FakeStorage &, const stw_io &io) -> int64_t {
        virtual_ns += io.bytes + (io.bytes == 1 << 20 ? io.bytes / 6 : 0);
        return static_cast<int64_t>(io.bytes);
    });
    Result<Probed> found = probe.run();
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    EXPECT_EQ(found.value().reads.bytes, 2u << 20);
    EXPECT_EQ(found.value().reads.depth, 16u);
    EXPECT_EQ(found.value().writes.bytes, 2u << 20);
    EXPECT_EQ(found.value().writes.depth, 16u);
}

TEST(Probe, TakesTheTimeItIsGivenAndNoMoreThanAFewRequestsBeyond)
{
    ProbeOf probe(disk_that_likes(1 << 20));
    const uint64_t begin_ns = virtual_ns;
    ASSERT_TRUE(probe.run().ok());
    EXPECT_GT(virtual_ns - begin_ns, kTimeNs / 2);
    EXPECT_LT(virtual_ns - begin_ns, kTimeNs * 2);
}

TEST(Probe, StaysInTheSlotsWithinTheDepthAndAligned)
{
    ProbeOf probe(disk_that_likes(1 << 20), 6);
    Result<Probed> found = probe.run();
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    EXPECT_LE(found.value().reads.depth, 6u);
    probe.disk().with_lock([&] {
        EXPECT_EQ(probe.disk().in_flight_peak, 6u);
        EXPECT_EQ(probe.disk().misaligned, 0u);
        for (const stw_io &io : probe.disk().log) {
            EXPECT_GE(io.offset_bytes, kReservedBytes);
            EXPECT_LE(io.offset_bytes + io.bytes, kReservedBytes + kProbeSlots * kProbeBlock);
        }
    });
}

TEST(Probe, GivesUpWithTheErrnoWhereADiskFails)
{
    ProbeOf probe([](FakeStorage &, const stw_io &io) -> int64_t {
        virtual_ns += io.bytes;
        return io.kind == STW_IO_READ ? -EIO : static_cast<int64_t>(io.bytes);
    });
    Result<Probed> found = probe.run();
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), STW_ERROR_IO);
    EXPECT_EQ(found.status().detail()->os_errno, EIO);
    EXPECT_NE(std::string(found.status().sentence()).find("/disk"), std::string::npos);
}

TEST(Probe, GivesUpOnADiskThatIsTooSlowToTell)
{
    ProbeOf probe([](FakeStorage &, const stw_io &io) -> int64_t {
        virtual_ns += io.bytes * 100;  // 10 MB/s
        return static_cast<int64_t>(io.bytes);
    });
    Result<Probed> found = probe.run();
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), STW_ERROR_LIMIT);
}

}  // namespace
}  // namespace stepwell::store
