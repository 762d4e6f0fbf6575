// SPDX-License-Identifier: Apache-2.0
// Claims about order: races that are planted are found, and what CUDA orders is not called a race.
#include "tests/cuda/double_rig.h"

#include <atomic>
#include <thread>

namespace stepwell::cuda_double {
namespace {

constexpr size_t kBytes = 64 << 10;

// Two streams, two buffers on the device and two of pinned memory.
class DoubleOrder : public DoubleTest {
protected:
    void SetUp() override
    {
        DoubleTest::SetUp();
        one = stream();
        two = stream();
        done = event();
        memory = device(kBytes);
        other = device(kBytes);
        host = pinned(kBytes);
        back = pinned(kBytes);
    }
    void TearDown() override
    {
        stw_double_hold_all(0);
        EXPECT_EQ(cuCtxSynchronize(), kSuccess);
        EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
        EXPECT_EQ(cuMemFree_v2(other), kSuccess);
        EXPECT_EQ(cuMemFreeHost(host), kSuccess);
        EXPECT_EQ(cuMemFreeHost(back), kSuccess);
        if (done != nullptr) {
            EXPECT_EQ(cuEventDestroy_v2(done), kSuccess);
        }
        if (one != nullptr) {
            EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
        }
        if (two != nullptr) {
            EXPECT_EQ(cuStreamDestroy_v2(two), kSuccess);
        }
        DoubleTest::TearDown();
    }

    static void in(Address to, const void *from, void *on, size_t bytes = kBytes)
    {
        EXPECT_EQ(cuMemcpyHtoDAsync_v2(to, from, bytes, on), kSuccess);
    }
    static void out(void *to, Address from, void *on, size_t bytes = kBytes)
    {
        EXPECT_EQ(cuMemcpyDtoHAsync_v2(to, from, bytes, on), kSuccess);
    }
    static void fill(Address to, unsigned char value, void *on, size_t bytes = kBytes)
    {
        EXPECT_EQ(cuMemsetD8Async(to, value, bytes, on), kSuccess);
    }

    void *one = nullptr;
    void *two = nullptr;
    void *done = nullptr;
    Address memory = 0;
    Address other = 0;
    unsigned char *host = nullptr;
    unsigned char *back = nullptr;
};

TEST_F(DoubleOrder, NothingHappensBeforeItsStreamIsLetGo)
{
    host[0] = 5;
    stw_double_hold(one);
    in(memory, host, one);
    out(back, memory, one);
    EXPECT_EQ(stw_double_pending(one), 2u);
    EXPECT_EQ(cuStreamQuery(one), kNotReady);
    EXPECT_EQ(bytes(memory)[0], 0);
    stw_double_let_go(one, 1);
    while (stw_double_pending(one) == 2) std::this_thread::yield();
    EXPECT_EQ(bytes(memory)[0], 5);
    EXPECT_EQ(back[0], 0);
    stw_double_let_go(one, 0);
    EXPECT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(cuStreamQuery(one), kSuccess);
    EXPECT_EQ(back[0], 5);
}

TEST_F(DoubleOrder, ReadingBeforeTheWriteIsReadyIsFound)
{
    in(memory, host, one);
    out(back, memory, two);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY,
                     {"cuMemcpyDtoHAsync_v2 #2 on stream", "reads", "cuMemcpyHtoDAsync_v2 #1",
                      "+65536)", "not ordered after"});
}

TEST_F(DoubleOrder, OverwritingWhatIsReadIsFound)
{
    in(memory, host, one);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    out(back, memory, one);
    fill(memory + 4096, 1, two, 10);
    expect_violation(STW_DOUBLE_OVERWRITTEN_IN_USE, {"cuMemsetD8Async", "+10)", "reads these"});
}

TEST_F(DoubleOrder, WritingTwiceIsFound)
{
    fill(memory, 1, one);
    fill(memory + kBytes - 1, 2, two, 1);
    expect_violation(STW_DOUBLE_WRITTEN_TWICE, {"+1)"});
}

TEST_F(DoubleOrder, MemoryThatGetsANewOwnerIsTouched)
{
    const stw_double_range range{memory, kBytes, 1, 0};
    out(back, memory, one);
    EXPECT_EQ(stw_double_touch(one, "given out", &range, 1), kSuccess);
    EXPECT_EQ(stw_double_violations(), 0u);
    EXPECT_EQ(stw_double_touch(two, "given out", &range, 1), kSuccess);
    expect_violation(STW_DOUBLE_WRITTEN_TWICE, {"given out #3", "given out #2"});
    out(back, memory, one);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY, {"given out #3"});
    EXPECT_EQ(stw_double_touch(&host, "given out", &range, 1), kInvalidHandle);
}

TEST_F(DoubleOrder, PinnedMemoryRacesAsDeviceMemoryDoes)
{
    out(host, memory, one);
    in(other, host, two);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY);
    out(host + kBytes / 2, memory, two, 1);
    EXPECT_EQ(stw_double_take_violations(nullptr, 0), 1u);
}

TEST_F(DoubleOrder, TouchingOtherBytesIsNoRace)
{
    fill(memory, 1, one, 100);
    fill(memory + 100, 2, two, 100);
    fill(memory + 200, 3, one, 100);
    out(back, memory + 100, two, 100);
}

TEST_F(DoubleOrder, AnEventOrdersOneStreamBehindAnother)
{
    host[7] = 9;
    in(memory, host, one);
    ASSERT_EQ(cuEventRecord(done, one), kSuccess);
    ASSERT_EQ(cuStreamWaitEvent(two, done, 0), kSuccess);
    out(back, memory, two);
    ASSERT_EQ(cuStreamSynchronize(two), kSuccess);
    EXPECT_EQ(back[7], 9);
    stw_double_host_reads(reinterpret_cast<uintptr_t>(back), kBytes);
    stw_double_host_writes(reinterpret_cast<uintptr_t>(host), kBytes);
}

TEST_F(DoubleOrder, AnEventThatWasNeverRecordedOrdersNothing)
{
    in(memory, host, one);
    EXPECT_EQ(cuEventQuery(done), kSuccess);
    EXPECT_EQ(cuEventSynchronize(done), kSuccess);
    ASSERT_EQ(cuStreamWaitEvent(two, done, 0), kSuccess);
    ASSERT_EQ(cuEventRecord(done, one), kSuccess);
    out(back, memory, two);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY);
}

TEST_F(DoubleOrder, AWaitIsForTheRecordThatWasLastWhenItWasAsked)
{
    stw_double_hold(one);
    fill(memory, 1, one);
    ASSERT_EQ(cuEventRecord(done, one), kSuccess);
    ASSERT_EQ(cuStreamWaitEvent(two, done, 0), kSuccess);
    fill(other, 1, one);
    ASSERT_EQ(cuEventRecord(done, one), kSuccess);
    out(back, memory, two);
    stw_double_let_go(one, 2);
    ASSERT_EQ(cuStreamSynchronize(two), kSuccess) << "does not wait for the second record";
    EXPECT_EQ(back[0], 1);
    EXPECT_EQ(cuEventQuery(done), kNotReady);
    EXPECT_EQ(stw_double_violations(), 0u);
    out(back, other, two);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY);
}

TEST_F(DoubleOrder, AnEarlierRecordDoesNotCoverLaterWork)
{
    ASSERT_EQ(cuEventRecord(done, one), kSuccess);
    in(memory, host, one);
    ASSERT_EQ(cuStreamWaitEvent(two, done, 0), kSuccess);
    out(back, memory, two);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY);
}

TEST_F(DoubleOrder, WhatTheHostWaitedForIsOrdered)
{
    in(memory, host, one);
    ASSERT_EQ(cuEventRecord(done, one), kSuccess);
    ASSERT_EQ(cuEventSynchronize(done), kSuccess);
    out(back, memory, two);
    fill(other, 1, two);
    ASSERT_EQ(cuCtxSynchronize(), kSuccess);
    fill(memory, 1, one);
    fill(other, 2, one);
}

TEST_F(DoubleOrder, ThatItEndedIsNotThatTheHostKnows)
{
    in(memory, host, one);
    stw_double_drain();
    out(back, memory, two);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY);
    stw_double_drain();
    EXPECT_EQ(cuStreamQuery(two), kSuccess);
    EXPECT_EQ(cuStreamQuery(one), kSuccess);
    fill(memory, 1, one);
}

TEST_F(DoubleOrder, AnEventThatWasFoundDoneTellsTheHost)
{
    in(memory, host, one);
    ASSERT_EQ(cuEventRecord(done, one), kSuccess);
    fill(other, 1, one);
    stw_double_drain();
    ASSERT_EQ(cuEventQuery(done), kSuccess);
    out(back, memory, two);
    EXPECT_EQ(stw_double_violations(), 0u);
    out(back, other, two);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY);
}

TEST_F(DoubleOrder, NothingThatMayStillRunIsForgotten)
{
    const Address another = device(1);
    fill(another, 1, one, 1);
    fill(memory, 1, one, 1);
    for (int round = 0; round < 2; ++round) {
        for (uint32_t at = 2; at < 2000; at += 2) fill(memory + at, 1, two, 1);
        ASSERT_EQ(cuStreamSynchronize(two), kSuccess);
    }
    fill(memory + 4, 2, one, 1);
    EXPECT_EQ(stw_double_violations(), 0u);
    fill(memory, 2, two, 1);
    expect_violation(STW_DOUBLE_WRITTEN_TWICE);
    EXPECT_EQ(cuMemFree_v2(another), kSuccess);
    expect_violation(STW_DOUBLE_GONE_IN_USE);
}

TEST_F(DoubleOrder, TheHostItselfCanBeTooEarly)
{
    in(memory, host, one);
    stw_double_host_reads(reinterpret_cast<uintptr_t>(host), kBytes);
    EXPECT_EQ(stw_double_violations(), 0u) << "two reads";
    stw_double_host_writes(reinterpret_cast<uintptr_t>(host) + 8, 8);
    expect_violation(STW_DOUBLE_HOST_TOO_EARLY, {"The host writes", "cuMemcpyHtoDAsync_v2 #1"});
    stw_double_host_reads(memory, 1);
    expect_violation(STW_DOUBLE_HOST_TOO_EARLY);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    stw_double_host_writes(reinterpret_cast<uintptr_t>(host), kBytes);
}

TEST_F(DoubleOrder, BlockingStreamsAreOrderedByTheLegacyStream)
{
    void *blocking = stream(0);
    fill(memory, 1, blocking);
    fill(memory, 2, nullptr);
    fill(memory, 3, blocking);
    fill(memory, 4, reinterpret_cast<void *>(kStreamLegacy));
    EXPECT_EQ(cuMemsetD8_v2(memory, 5, kBytes), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(nullptr), kSuccess);
    EXPECT_EQ(bytes(memory)[0], 5);
    fill(memory, 6, one);
    EXPECT_EQ(stw_double_violations(), 0u);
    fill(memory, 7, nullptr);
    expect_violation(STW_DOUBLE_WRITTEN_TWICE);
    EXPECT_EQ(cuStreamDestroy_v2(blocking), kSuccess);
}

TEST_F(DoubleOrder, TheLegacyStreamWaitsInDeedAndIsWaitedFor)
{
    void *blocking = stream(0);
    stw_double_hold(blocking);
    fill(memory, 1, blocking);
    fill(memory, 2, nullptr);
    void *late = stream(0);
    fill(memory, 3, late);
    EXPECT_EQ(stw_double_pending(nullptr), 3u);
    stw_double_let_go(blocking, 0);
    ASSERT_EQ(cuCtxSynchronize(), kSuccess);
    EXPECT_EQ(bytes(memory)[0], 3);
    EXPECT_EQ(cuStreamDestroy_v2(blocking), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(late), kSuccess);
}

TEST_F(DoubleOrder, EachThreadHasItsOwnPerThreadStream)
{
    void *const own = reinterpret_cast<void *>(kStreamPerThread);
    fill(memory, 1, own);
    std::thread([&] {
        ASSERT_EQ(cuCtxSetCurrent(context), kSuccess);
        fill(memory, 2, own);
    }).join();
    expect_violation(STW_DOUBLE_WRITTEN_TWICE);
    fill(memory, 3, nullptr);
    EXPECT_EQ(stw_double_violations(), 0u) << "the legacy stream orders them";
    ASSERT_EQ(cuStreamSynchronize(nullptr), kSuccess);
}

TEST_F(DoubleOrder, ADestroyedStreamEndsItsWorkAndIsNotUsedAgain)
{
    fill(memory, 1, one);
    ASSERT_EQ(cuEventRecord(done, one), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
    EXPECT_EQ(cuEventSynchronize(done), kSuccess);
    EXPECT_EQ(bytes(memory)[0], 1);
    EXPECT_EQ(cuMemsetD8Async(memory, 2, kBytes, one), kInvalidHandle);
    expect_violation(STW_DOUBLE_DEAD_HANDLE, {"was destroyed"});
    EXPECT_EQ(cuStreamSynchronize(&memory), kInvalidHandle);
    expect_violation(STW_DOUBLE_DEAD_HANDLE, {"never was one"});
    one = nullptr;
    EXPECT_EQ(cuEventDestroy_v2(done), kSuccess);
    EXPECT_EQ(cuStreamWaitEvent(two, done, 0), kInvalidHandle);
    expect_violation(STW_DOUBLE_DEAD_HANDLE, {"cuStreamWaitEvent", "was destroyed"});
    done = nullptr;
}

TEST_F(DoubleOrder, AnEventOfADestroyedStreamStillOrders)
{
    fill(memory, 1, one);
    ASSERT_EQ(cuEventRecord(done, one), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
    one = stream();
    fill(memory, 2, one);
    expect_violation(STW_DOUBLE_WRITTEN_TWICE);
    ASSERT_EQ(cuStreamWaitEvent(two, done, 0), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    fill(memory, 3, two);
}

TEST_F(DoubleOrder, AHostFunctionTellsTheHostAndMustNotCallCuda)
{
    static std::atomic<int> result;
    result = -1;
    fill(memory, 1, one);
    ASSERT_EQ(cuLaunchHostFunc(
                  one, [](void *) { result = cuCtxSynchronize(); }, nullptr),
              kSuccess);
    while (result == -1) std::this_thread::yield();
    EXPECT_EQ(result, kNotPermitted);
    expect_violation(STW_DOUBLE_CALL_IN_HOST_FUNCTION,
                     {"cuCtxSynchronize", "cuLaunchHostFunc #2 on stream"});
    fill(memory, 2, two);
}

TEST_F(DoubleOrder, TimedEventsSayHowLongItTook)
{
    void *begin = nullptr, *end = nullptr;
    ASSERT_EQ(cuEventCreate(&begin, 0), kSuccess);
    ASSERT_EQ(cuEventCreate(&end, 0), kSuccess);
    float milliseconds = -1;
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, end), kInvalidHandle) << "not recorded";
    stw_double_hold(one);
    ASSERT_EQ(cuEventRecord(begin, one), kSuccess);
    ASSERT_EQ(cuEventRecord(end, one), kSuccess);
    EXPECT_EQ(cuEventElapsedTime_v2(&milliseconds, begin, end), kNotReady);
    stw_double_let_go(one, 0);
    ASSERT_EQ(cuEventSynchronize(end), kSuccess);
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, end), kSuccess);
    EXPECT_GE(milliseconds, 0);
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, done), kInvalidHandle) << "not timed";
    EXPECT_EQ(cuEventDestroy_v2(begin), kSuccess);
    EXPECT_EQ(cuEventDestroy_v2(end), kSuccess);
}

TEST_F(DoubleOrder, AConsumerIsJudgedByTheRangesItDeclares)
{
    fill(memory, 4, one);
    stw_double_range ranges[] = {{memory, kBytes, 0, 0}, {other, 16, 1, 0}};
    const auto work = [](void *user, stw_double_alias_of alias) {
        const auto *given = static_cast<const stw_double_range *>(user);
        *static_cast<char *>(alias(given[1].address)) =
            *static_cast<char *>(alias(given[0].address));
    };
    ASSERT_EQ(stw_double_consume(two, "matmul", ranges, 2, work, ranges), kSuccess);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY, {"matmul #2"});
    ASSERT_EQ(cuCtxSynchronize(), kSuccess);
    ASSERT_EQ(stw_double_consume(two, "matmul", ranges, 2, work, ranges), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(two), kSuccess);
    EXPECT_EQ(bytes(other)[0], 4);
}

}  // namespace
}  // namespace stepwell::cuda_double
