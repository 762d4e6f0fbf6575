// SPDX-License-Identifier: Apache-2.0
// The fault driver: each kind of fault is really injected, and only when the script says so.
#include "tests/conformance/support.h"

#include "drivers/fault/fault.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace conformance {
namespace {

using stepwell::drivers::fault_counts;
using stepwell::drivers::fault_release;
using stepwell::drivers::FaultKind;
using stepwell::drivers::FaultScript;

constexpr uint64_t kUnit = 64 << 10;
constexpr int64_t kWhole = kUnit;

class Fault : public testing::Test {
protected:
    Directory directory_;
    std::unique_ptr<Storage> storage_;
    Buffer data_{kUnit};

    void open(const std::string &script)
    {
        storage_ = std::make_unique<Storage>("fault", script);
        ASSERT_EQ(storage_->open(directory_.path(), kMiB, 8), STW_OK) << storage_->sentence();
    }
    int64_t write(uint64_t seed, uint64_t offset = 0)
    {
        data_.fill(seed);
        return storage_->run(STW_IO_WRITE, data_.data(), offset, kUnit);
    }
    int64_t read(uint64_t offset = 0)
    {
        std::memset(data_.data(), 0xa5, kUnit);
        return storage_->run(STW_IO_READ, data_.data(), offset, kUnit);
    }
    uint64_t count(FaultKind kind) { return fault_counts(storage_->get())[kind]; }
    uint32_t poll(stw_io_done *done, uint64_t wait_ns)
    {
        return storage_->ops()->poll(storage_->get(), done, 1, wait_ns);
    }
};

TEST_F(Fault, WithoutAScriptNothingIsInjected)
{
    open("inner=posix;seed=3");
    for (uint64_t i = 0; i < 20; ++i) {
        ASSERT_EQ(write(i), kWhole);
        ASSERT_EQ(read(), kWhole);
        ASSERT_TRUE(data_.holds(i));
    }
    for (const uint64_t injected : fault_counts(storage_->get()).of_kind) EXPECT_EQ(injected, 0u);
}

TEST_F(Fault, EioHitsTheRequestThatWasNamed)
{
    open("at=read:1:eio;at=write:2:eio");
    ASSERT_EQ(write(1), kWhole);
    ASSERT_EQ(write(2), kWhole);
    EXPECT_EQ(write(3), -EIO);
    ASSERT_EQ(read(), kWhole);
    EXPECT_TRUE(data_.holds(2));  // what failed was not written
    EXPECT_EQ(read(), -EIO);
    EXPECT_EQ(read(), kWhole);
    EXPECT_EQ(count(FaultKind::kEio), 2u);
}

TEST_F(Fault, ShortMovesAPrefixAndSaysSo)
{
    open("at=write:1:short;at=read:0:short");
    ASSERT_EQ(write(1), kWhole);
    const int64_t wrote = write(2);
    EXPECT_GT(wrote, 0);
    EXPECT_LT(wrote, kWhole);
    const int64_t got = read();
    EXPECT_GT(got, 0);
    EXPECT_LT(got, kWhole);
    EXPECT_EQ(data_.data()[kUnit - 1], 0xa5);  // untouched
    ASSERT_EQ(read(), kWhole);
    Buffer expected(kUnit);
    expected.fill(1);
    const auto cut = static_cast<uint64_t>(wrote);
    EXPECT_TRUE(has_pattern(data_.data(), cut, 2));
    EXPECT_EQ(std::memcmp(data_.data() + cut, expected.data() + cut, kUnit - cut), 0);
    EXPECT_EQ(count(FaultKind::kShort), 2u);
}

TEST_F(Fault, TornSaysAllAndWritesAPrefix)
{
    open("torn_write=at:1");
    ASSERT_EQ(write(1), kWhole);
    EXPECT_EQ(write(2), kWhole);
    ASSERT_EQ(read(), kWhole);
    EXPECT_FALSE(data_.holds(1));
    EXPECT_FALSE(data_.holds(2));
    EXPECT_TRUE(has_pattern(data_.data(), 4096, 2));
    EXPECT_EQ(count(FaultKind::kTorn), 1u);
}

TEST_F(Fault, LostSaysAllAndWritesNothing)
{
    open("lost_write=at:1");
    ASSERT_EQ(write(1), kWhole);
    EXPECT_EQ(write(2), kWhole);
    ASSERT_EQ(read(), kWhole);
    EXPECT_TRUE(data_.holds(1));
    EXPECT_EQ(count(FaultKind::kLost), 1u);
}

TEST_F(Fault, MisdirectWritesSomewhereElse)
{
    open("misdirect=at:0");
    EXPECT_EQ(write(5), kWhole);
    EXPECT_EQ(count(FaultKind::kMisdirect), 1u);
    Buffer all(kMiB);
    ASSERT_EQ(storage_->run(STW_IO_READ, all.data(), 0, kMiB), static_cast<int64_t>(kMiB));
    EXPECT_FALSE(has_pattern(all.data(), kUnit, 5));
    bool found = false;
    for (uint64_t offset = 512; offset + kUnit <= kMiB; offset += 512)
        found = found || has_pattern(all.data() + offset, kUnit, 5);
    EXPECT_TRUE(found);
}

TEST_F(Fault, FlipChangesOneBit)
{
    open("flip_read=at:0");
    ASSERT_EQ(write(7), kWhole);
    ASSERT_EQ(read(), kWhole);
    Buffer expected(kUnit);
    expected.fill(7);
    int bits = 0;
    for (uint64_t i = 0; i < kUnit; ++i)
        bits += __builtin_popcount(data_.data()[i] ^ expected.data()[i]);
    EXPECT_EQ(bits, 1);
    ASSERT_EQ(read(), kWhole);
    EXPECT_TRUE(data_.holds(7));  // the disk has the right ones
}

TEST_F(Fault, DelayHoldsTheCompletionUntilItsTime)
{
    open("at=read:0:delay:1000000000");
    storage_->recorder().use_virtual_clock();
    stw_io_done done;
    ASSERT_EQ(storage_->submit({1, data_.data(), 0, kUnit, STW_IO_READ, 0}), STW_OK);
    EXPECT_EQ(poll(&done, 5'000'000), 0u);  // the lent clock stands still
    storage_->recorder().advance(999'999'999);
    EXPECT_EQ(poll(&done, 0), 0u);
    storage_->recorder().advance(1);
    EXPECT_EQ(poll(&done, kPatience), 1u);
    EXPECT_EQ(done.result, kWhole);
    EXPECT_EQ(count(FaultKind::kDelay), 1u);
}

TEST_F(Fault, ThrottleSpreadsBytesOverTime)
{
    open("throttle_bytes_per_s=65536");  // one request a second
    storage_->recorder().use_virtual_clock();
    std::vector<stw_io> ios;
    Buffer data(4 * kUnit);
    for (uint64_t i = 0; i < 4; ++i)
        ios.push_back({i, data.data() + i * kUnit, i * kUnit, kUnit, STW_IO_WRITE, 0});
    uint32_t accepted = 0;
    ASSERT_EQ(storage_->ops()->submit(storage_->get(), ios.data(), 4, &accepted), STW_OK);
    ASSERT_EQ(accepted, 4u);  // submit is not what is slow
    EXPECT_EQ(storage_->try_close(2'000'000), STW_ERROR_TIMEOUT);
    for (uint64_t i = 0; i < 4; ++i) {
        stw_io_done done;
        EXPECT_EQ(poll(&done, 0), 0u);
        storage_->recorder().advance(kSecond);
        ASSERT_EQ(poll(&done, kPatience), 1u);
        EXPECT_EQ(done.result, kWhole);
    }
    EXPECT_EQ(count(FaultKind::kThrottle), 4u);
}

TEST_F(Fault, HangEndsByReleaseAndItsBytesComeOnlyThen)
{
    open("hang_read=at:0;hang_until=release");
    ASSERT_EQ(write(9), kWhole);
    std::memset(data_.data(), 0, kUnit);
    stw_io_done done;
    ASSERT_EQ(storage_->submit({1, data_.data(), 0, kUnit, STW_IO_READ, 0}), STW_OK);
    EXPECT_EQ(poll(&done, 5'000'000), 0u);
    EXPECT_EQ(storage_->try_close(1'000'000), STW_ERROR_TIMEOUT);
    EXPECT_EQ(data_.data()[100], 0);
    Buffer other(kUnit);  // others go on meanwhile
    EXPECT_EQ(storage_->run(STW_IO_READ, other.data(), 0, kUnit), kWhole);
    std::thread later([&] { fault_release(storage_->get()); });
    ASSERT_EQ(poll(&done, kPatience), 1u);
    later.join();
    EXPECT_EQ(done.result, kWhole);
    EXPECT_TRUE(data_.holds(9));
    EXPECT_EQ(count(FaultKind::kHang), 1u);
}

TEST_F(Fault, HangEndsByCloseUnlessToldOtherwise)
{
    open("hang_write=1");
    stw_io_done done;
    ASSERT_EQ(storage_->submit({1, data_.data(), 0, kUnit, STW_IO_WRITE, 0}), STW_OK);
    EXPECT_EQ(poll(&done, 2'000'000), 0u);
    EXPECT_EQ(storage_->try_close(kPatience), STW_OK);
}

TEST_F(Fault, PartialSubmitTakesAPrefix)
{
    open("submit_partial=1");
    Buffer data(6 * kUnit);
    std::vector<stw_io> ios;
    for (uint64_t i = 0; i < 6; ++i)
        ios.push_back({i, data.data() + i * kUnit, i * kUnit, kUnit, STW_IO_WRITE, 0});
    uint32_t accepted = 0;
    ASSERT_EQ(storage_->ops()->submit(storage_->get(), ios.data(), 6, &accepted), STW_OK);
    EXPECT_GE(accepted, 1u);
    EXPECT_LT(accepted, 6u);
    EXPECT_EQ(storage_->collect(accepted).size(), accepted);
    EXPECT_EQ(count(FaultKind::kPartial), 1u);
}

TEST_F(Fault, FlushFailsWhenTold)
{
    open("at=flush:1:eio");
    EXPECT_EQ(storage_->ops()->flush(storage_->get()), STW_OK);
    EXPECT_EQ(storage_->ops()->flush(storage_->get()), STW_ERROR_SYNC);
    EXPECT_EQ(storage_->ops()->flush(storage_->get()), STW_OK);
}

TEST_F(Fault, OpenWithoutSpaceSaysTheNumbers)
{
    Storage storage("fault", "open_enospc=1");
    EXPECT_EQ(storage.open(directory_.path(), kMiB, 4), STW_ERROR_NO_SPACE);
    EXPECT_EQ(storage.error().needed_bytes, kMiB);
    EXPECT_EQ(storage.error().free_bytes, 0u);
    EXPECT_NE(storage.sentence().find(directory_.path()), std::string::npos);
}

TEST_F(Fault, CountsAreLoggedAtClose)
{
    open("at=read:0:eio;seed=12");
    read();
    Recorder &recorder = storage_->recorder();
    ASSERT_EQ(storage_->try_close(kPatience), STW_OK);
    ASSERT_EQ(recorder.lines().size(), 1u);
    EXPECT_EQ(recorder.lines()[0], "3 fault: injected into aio with seed 12: eio 1");
}

TEST_F(Fault, UnclearScriptsAreRefused)
{
    for (const char *script :
         {"read_eio=1.5", "read_eio=x", "at=read:1", "at=read:1:torn", "at=read:x:eio",
          "at=flush:0:hang", "delay_read=0.5", "torn_read=1", "hang_until=noon", "seed=", "eio"}) {
        Storage storage("fault", script);
        EXPECT_EQ(storage.open(directory_.path(), kMiB, 4), STW_ERROR_INVALID) << script;
        EXPECT_NE(storage.sentence(), "") << script;
    }
}

TEST_F(Fault, AnInnerDriverThatIsNotThereIsUnsupportedByItsName)
{
    Storage storage("fault", "inner=tape");
    EXPECT_EQ(storage.open(directory_.path(), kMiB, 4), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(storage.sentence().find("'tape'"), std::string::npos) << storage.sentence();
}

TEST_F(Fault, AnUnknownOptionIsToldWhereTheyAreListed)
{
    Storage storage("fault", "torn_read=1");
    EXPECT_EQ(storage.open(directory_.path(), kMiB, 4), STW_ERROR_INVALID);
    EXPECT_NE(storage.sentence().find("docs/drivers.md"), std::string::npos) << storage.sentence();
}

std::vector<bool> faults_of(const char *text, uint64_t n)
{
    FaultScript script;
    EXPECT_EQ(FaultScript::parse(text, &script, nullptr), STW_OK);
    std::vector<bool> hit;
    for (uint64_t i = 0; i < n; ++i)
        hit.push_back(script.plan(stepwell::drivers::Direction::kRead, i).has(FaultKind::kEio));
    return hit;
}

TEST(FaultScript, TheSeedDecidesAndNothingElse)
{
    const auto seven = faults_of("seed=7;read_eio=0.1", 1000);
    EXPECT_EQ(seven, faults_of("seed=7;read_eio=0.1", 1000));
    EXPECT_EQ(seven, faults_of("seed=7;write_eio=0.5;read_eio=0.1;delay_read=0.3:5", 1000));
    EXPECT_NE(seven, faults_of("seed=8;read_eio=0.1", 1000));
    const auto hits = std::count(seven.begin(), seven.end(), true);
    EXPECT_GT(hits, 60);
    EXPECT_LT(hits, 140);
    EXPECT_EQ(faults_of("read_eio=0", 100), std::vector<bool>(100, false));
    EXPECT_EQ(faults_of("read_eio=1", 100), std::vector<bool>(100, true));
}

TEST_F(Fault, TheSameSequenceMeetsTheSameFaultsThroughEveryInnerDriver)
{
    std::vector<std::vector<int64_t>> runs;
    for (const char *inner : {"inner=aio;", "inner=posix;", "inner=aio;submit_partial=0.5;"}) {
        open(std::string(inner) + "seed=42;read_eio=0.2;read_short=0.2;write_eio=0.3");
        std::vector<int64_t> results;
        for (uint64_t i = 0; i < 60; ++i) results.push_back(i % 3 == 0 ? write(i) : read());
        runs.push_back(results);
    }
    EXPECT_EQ(runs[0], runs[1]);
    EXPECT_EQ(runs[0], runs[2]);
    EXPECT_GT(std::count(runs[0].begin(), runs[0].end(), -EIO), 3);
}

TEST_F(Fault, ItsOwnKindCanBeWrapped)
{
    open("inner=fault;inner.inner=posix;inner.at=write:0:eio;at=write:1:eio");
    EXPECT_EQ(write(1), -EIO);  // by the inner one
    EXPECT_EQ(write(1), -EIO);  // by the outer one
    EXPECT_EQ(write(1), kWhole);
}

}  // namespace
}  // namespace conformance
