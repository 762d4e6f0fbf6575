// SPDX-License-Identifier: Apache-2.0
// Claims about what the engine does when storage is short, busy, failing or lying.
#include "tests/unit/transfer/rig.h"

#include <cerrno>

namespace stepwell::testing {
namespace {

bool says(const Status &status, const std::string &text)
{
    return std::string(status.sentence()).find(text) != std::string::npos;
}

// A store with block 1 in it, value 11, and an empty log.
struct Written : Rig {
    explicit Written(const RigOptions &options = {}) : Rig(options)
    {
        fill(kHost, 0, 11);
        const Status status = run(write(1, kHost, 0));
        EXPECT_TRUE(status.ok()) << status.sentence();
        clear_log();
    }
    void clear_log()
    {
        disks[0].with_lock([&] { disks[0].log.clear(); });
    }
    std::vector<stw_io> log()
    {
        return disks[0].with_lock([&] { return disks[0].log; });
    }
    void script(FakeStorage::Script script)
    {
        disks[0].with_lock([&] { disks[0].script = std::move(script); });
    }
    uint64_t retries(Link link) { return engine->link_stats(link, kHost).retries; }
};

FakeStorage::Script short_by(uint64_t most)
{
    return [most](FakeStorage &disk, const stw_io &io) {
        stw_io part = io;
        part.bytes = std::min(io.bytes, most);
        return disk.do_io(part);
    };
}

TEST(EngineFaults, ShortReadsAreContinuedAtAlignedOffsets)
{
    Written rig;
    rig.script(short_by(10'000));
    const Status status = rig.run(rig.read(1, kHost, 5));
    ASSERT_TRUE(status.ok()) << status.sentence();
    EXPECT_TRUE(rig.holds(kHost, 5, 11));
    const std::vector<stw_io> log = rig.log();
    ASSERT_EQ(log.size(), 7u);  // 65536 in steps of 9728, the whole units of 10000
    for (size_t i = 1; i < log.size(); ++i) {
        EXPECT_EQ(log[i].offset_bytes, log[i - 1].offset_bytes + 9728);
        EXPECT_EQ(log[i].bytes, log[i - 1].bytes - 9728);
    }
    EXPECT_EQ(rig.disks[0].with_lock([&] { return rig.disks[0].misaligned; }), 0u);
}

TEST(EngineFaults, ShortWritesAreContinuedAtAlignedOffsets)
{
    Written rig;
    rig.script(short_by(33'000));
    rig.fill(kHost, 1, 22);
    const Status status = rig.run(rig.write(1, kHost, 1));
    ASSERT_TRUE(status.ok()) << status.sentence();
    EXPECT_EQ(rig.log().size(), 2u);
    rig.script(nullptr);
    ASSERT_TRUE(rig.run(rig.read(1, kHost, 5)).ok());
    EXPECT_TRUE(rig.holds(kHost, 5, 22));
}

TEST(EngineFaults, ARequestThatMovesLessThanAUnitIsRetriedThenReported)
{
    Written rig;
    rig.script([](FakeStorage &, const stw_io &) -> int64_t { return 100; });
    const Status status = rig.run(rig.read(1, kHost, 5));
    EXPECT_EQ(status.code(), STW_ERROR_IO);
    EXPECT_TRUE(says(status, "100 bytes moved of 65536 at offset 1048576, after 2 retries"))
        << status.sentence();
}

TEST(EngineFaults, ZeroBytesAreAnError)
{
    Written rig;
    rig.script([](FakeStorage &, const stw_io &) -> int64_t { return 0; });
    const Status status = rig.run(rig.read(1, kHost, 5));
    EXPECT_EQ(status.code(), STW_ERROR_IO);
    EXPECT_TRUE(says(status, "0 bytes moved")) << status.sentence();
    EXPECT_TRUE(says(status, "the file ends before it")) << status.sentence();
}

TEST(EngineFaults, ErrorsAreRetriedThenReportedWithPathOffsetAndErrno)
{
    Written rig;
    auto fail = [](int times, uint32_t kind) -> FakeStorage::Script {
        return [times, kind](FakeStorage &disk, const stw_io &io) mutable -> int64_t {
            return io.kind == kind && times-- > 0 ? -EIO : disk.do_io(io);
        };
    };
    rig.script(fail(2, STW_IO_READ));
    EXPECT_TRUE(rig.run(rig.read(1, kHost, 5)).ok());
    EXPECT_EQ(rig.retries(Link::kNvmeToHost), 2u);
    rig.script(fail(3, STW_IO_READ));
    Job job = rig.read(1, kHost, 5);
    job.transfer.pack_offset = 3 * kBlock;
    Status status = rig.run(job);
    EXPECT_EQ(status.code(), STW_ERROR_IO);
    ASSERT_NE(status.detail(), nullptr);
    EXPECT_EQ(status.detail()->os_errno, EIO);
    EXPECT_EQ(status.detail()->offset_bytes, 3 * kBlock);
    EXPECT_TRUE(says(status, "Reading block 1 in '/disk0' failed: 65536 bytes at offset 1048576, "
                             "after 2 retries"))
        << status.sentence();
    EXPECT_EQ(rig.engine->link_stats(Link::kNvmeToHost, kHost).errors, 1u);

    rig.script(fail(3, STW_IO_WRITE));
    status = rig.run(rig.write(1, kHost, 0));
    EXPECT_EQ(status.code(), STW_ERROR_IO);
    EXPECT_TRUE(says(status, "Writing block 1 in '/disk0'")) << status.sentence();
    EXPECT_EQ(rig.run(rig.read(1, kHost, 5)).code(), STW_ERROR_INTERNAL)
        << "a block whose write failed must not be readable";
    EXPECT_TRUE(rig.run(rig.write(1, kHost, 0)).ok());
    EXPECT_TRUE(rig.run(rig.read(1, kHost, 5)).ok());
}

TEST(EngineFaults, AFailedPieceFailsItsBlockOnceAndNoOther)
{
    Written rig({.io_bytes = 4096});
    rig.fill(kHost, 1, 22);
    ASSERT_TRUE(rig.run(rig.write(2, kHost, 1)).ok());
    rig.script([](FakeStorage &disk, const stw_io &io) -> int64_t {
        const bool bad = io.offset_bytes == 1048576 + 3 * 4096 || io.offset_bytes == 1048576 + 8192;
        return bad ? -EIO : disk.do_io(io);
    });
    const std::vector<Job> jobs = {rig.read(1, kHost, 5), rig.read(2, kHost, 6)};
    rig.submit(jobs);
    EXPECT_EQ(rig.result(jobs[0].transfer.id).code(), STW_ERROR_IO);
    EXPECT_TRUE(rig.result(jobs[1].transfer.id).ok());
    EXPECT_TRUE(rig.holds(kHost, 6, 22));
    rig.close();
    EXPECT_EQ(rig.order().size(), 4u);
    EXPECT_EQ(rig.doubles(), 0u);
}

TEST(EngineFaults, AgainIsNoError)
{
    Written rig({.retries_max = 0});
    rig.script([n = 0](FakeStorage &disk, const stw_io &io) mutable -> int64_t {
        ++n;
        return n <= 10 ? (n % 2 == 0 ? -EAGAIN : -EINTR) : disk.do_io(io);
    });
    const Status status = rig.run(rig.read(1, kHost, 5));
    ASSERT_TRUE(status.ok()) << status.sentence();
    EXPECT_TRUE(rig.holds(kHost, 5, 11));
    EXPECT_EQ(rig.retries(Link::kNvmeToHost), 10u);
}

TEST(EngineFaults, PartialAcceptanceLosesAndRepeatsNothing)
{
    Written rig({.depth = 8, .io_bytes = 4096});
    rig.disks[0].with_lock([&] { rig.disks[0].accept_max = 3; });
    rig.fill(kHost, 1, 22);
    ASSERT_TRUE(rig.run(rig.write(2, kHost, 1)).ok());
    ASSERT_TRUE(rig.run(rig.read(2, kHost, 6)).ok());
    EXPECT_TRUE(rig.holds(kHost, 6, 22));
    std::map<std::pair<uint32_t, uint64_t>, int> seen;
    for (const stw_io &io : rig.log()) ++seen[{io.kind, io.offset_bytes}];
    EXPECT_EQ(seen.size(), 32u);
    for (const auto &[request, times] : seen) EXPECT_EQ(times, 1);
}

TEST(EngineFaults, ADriverThatTakesNothingIsAskedAgainUntilItDoes)
{
    Written rig;
    rig.disks[0].with_lock([&] { rig.disks[0].accept_max = 0; });
    const uint64_t id = rig.submit(rig.read(1, kHost, 5));
    rig.disks[0].with_lock([&] { rig.disks[0].accept_max = 1; });
    EXPECT_TRUE(rig.result(id).ok());
    rig.disks[0].with_lock([&] { rig.disks[0].accept_max = 0; });
    const Status status = rig.run(rig.read(1, kHost, 5));
    EXPECT_EQ(status.code(), STW_ERROR_BUSY) << "bounded: " << status.sentence();
}

TEST(EngineFaults, ARefusedRequestFailsItsBlockWithTheDriversStatus)
{
    Written rig;
    rig.disks[0].with_lock([&] {
        rig.disks[0].accept_max = 0;
        rig.disks[0].submit_error = STW_ERROR_DEVICE;
    });
    const Status status = rig.run(rig.read(1, kHost, 5));
    EXPECT_EQ(status.code(), STW_ERROR_DEVICE);
    EXPECT_TRUE(says(status, "/disk0")) << status.sentence();
}

// ---- lies of the medium ------------------------------------------------------------------------

void expect_checksum_error(Written &rig)
{
    rig.clear_log();
    const uint64_t retries = rig.retries(Link::kNvmeToHost);
    const Status status = rig.run(rig.read(1, kHost, 5));
    EXPECT_EQ(status.code(), STW_ERROR_CHECKSUM) << status.sentence();
    EXPECT_TRUE(says(status, "Block 1 in slot 0 of '/disk0' (65536 bytes at offset 1048576)"))
        << status.sentence();
    EXPECT_TRUE(says(status, "expected")) << status.sentence();
    EXPECT_EQ(rig.log().size(), 2u) << "read again once";
    EXPECT_EQ(rig.retries(Link::kNvmeToHost), retries + 1);
}

TEST(EngineFaults, AFlippedBitIsFound)
{
    Written rig;
    rig.disks[0].with_lock([&] { rig.disks[0].medium[1048576 + 40'000] ^= 4; });
    expect_checksum_error(rig);
}

TEST(EngineFaults, AFlipOnTheWayIsHealedByReadingAgain)
{
    Written rig;
    rig.script([n = 0](FakeStorage &disk, const stw_io &io) mutable -> int64_t {
        const int64_t result = disk.do_io(io);
        if (n++ == 0) static_cast<uint8_t *>(io.data)[77] ^= 1;
        return result;
    });
    EXPECT_TRUE(rig.run(rig.read(1, kHost, 5)).ok());
    EXPECT_TRUE(rig.holds(kHost, 5, 11));
    EXPECT_EQ(rig.retries(Link::kNvmeToHost), 1u);
}

TEST(EngineFaults, ATornWriteIsFound)
{
    Written rig;
    rig.script([](FakeStorage &disk, const stw_io &io) -> int64_t {
        stw_io half = io;
        half.bytes = io.kind == STW_IO_WRITE ? io.bytes / 2 : io.bytes;
        return disk.do_io(half) == 0 ? 0 : static_cast<int64_t>(io.bytes);
    });
    rig.fill(kHost, 0, 12);
    ASSERT_TRUE(rig.run(rig.write(1, kHost, 0)).ok());
    expect_checksum_error(rig);
}

TEST(EngineFaults, ALostWriteLeavesStaleBytesThatAreFound)
{
    Written rig;
    rig.script([](FakeStorage &disk, const stw_io &io) -> int64_t {
        return io.kind == STW_IO_WRITE ? static_cast<int64_t>(io.bytes) : disk.do_io(io);
    });
    rig.fill(kHost, 0, 12);
    ASSERT_TRUE(rig.run(rig.write(1, kHost, 0)).ok());
    expect_checksum_error(rig);
}

TEST(EngineFaults, AMisdirectedWriteIsFoundInBothPlaces)
{
    Written rig;
    rig.fill(kHost, 1, 22);
    ASSERT_TRUE(rig.run(rig.write(2, kHost, 1)).ok());
    rig.script([](FakeStorage &disk, const stw_io &io) -> int64_t {
        stw_io moved = io;
        if (io.kind == STW_IO_WRITE) moved.offset_bytes = 1048576;
        return disk.do_io(moved);
    });
    rig.fill(kHost, 1, 23);
    ASSERT_TRUE(rig.run(rig.write(2, kHost, 1)).ok());
    EXPECT_EQ(rig.run(rig.read(2, kHost, 6)).code(), STW_ERROR_CHECKSUM);
    expect_checksum_error(rig);
}

TEST(EngineFaults, AMisdirectedReadIsFound)
{
    Written rig;
    rig.fill(kHost, 1, 22);
    ASSERT_TRUE(rig.run(rig.write(2, kHost, 1)).ok());
    rig.script([](FakeStorage &disk, const stw_io &io) -> int64_t {
        stw_io moved = io;
        if (io.kind == STW_IO_READ) moved.offset_bytes += kBlock;
        return disk.do_io(moved);
    });
    expect_checksum_error(rig);
}

TEST(EngineFaults, OnlyBytesInUseAreMovedRoundedUpToTheUnit)
{
    Written rig;
    rig.fill(kHost, 1, 33);
    Job job = rig.write(3, kHost, 1);
    job.transfer.bytes = 1001;
    ASSERT_TRUE(rig.run(job).ok());
    job = rig.read(3, kHost, 6);
    job.transfer.bytes = 1001;
    ASSERT_TRUE(rig.run(job).ok());
    EXPECT_TRUE(rig.holds(kHost, 6, 33, 1001));
    EXPECT_EQ(*(rig.at(kHost, 6) + 1024), 0xEE) << "past the unit nothing is touched";
    for (const stw_io &io : rig.log()) EXPECT_EQ(io.bytes, 1024u);
    job = rig.read(3, kHost, 6);
    EXPECT_EQ(rig.run(job).code(), STW_ERROR_INTERNAL) << "another length than was written";
}

TEST(EngineFaults, AWrongJobCompletesWithItsReason)
{
    Written rig;
    EXPECT_EQ(rig.run(rig.read(40, kHost, 5)).code(), STW_ERROR_INTERNAL);
    Job job = rig.read(1, kHost, 5);
    job.to_pointer = rig.at(kHost, 5) + 1;
    EXPECT_EQ(rig.run(job).code(), STW_ERROR_INTERNAL);
    job = rig.read(1, kHost, 5);
    job.to_memory = 7;
    EXPECT_EQ(rig.run(job).code(), STW_ERROR_INTERNAL);
    EXPECT_TRUE(rig.run(rig.read(1, kHost, 5)).ok());
}

TEST(EngineFaults, AMemoryThatFailsIsNamed)
{
    Written rig;
    rig.memories[kDevice].status = STW_ERROR_DEVICE;
    const Status copied = rig.run(rig.job(1, kHost, 0, kDevice, 2));
    Job job = rig.read(1, kDevice, 3);
    job.map_block = 9;
    const Status mapped = rig.run(job);
    EXPECT_EQ(mapped.code(), STW_ERROR_DEVICE);
    EXPECT_TRUE(says(mapped, "Mapping block 9 of memory 'device 0' failed")) << mapped.sentence();
    EXPECT_TRUE(copied.ok()) << "both are CPU memory: the source copies";
    job = rig.job(1, kHost, 0, kDevice, 2);
    job.transfer.kind = TransferKind::kZero;
    const Status cleared = rig.run(job);
    EXPECT_EQ(cleared.code(), STW_ERROR_DEVICE);
    EXPECT_TRUE(says(cleared, "the device is lost")) << cleared.sentence();
}

}  // namespace
}  // namespace stepwell::testing
