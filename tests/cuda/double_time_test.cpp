// SPDX-License-Identifier: Apache-2.0
// Claims about virtual time: what overlaps and what is in the way of what, whatever is late here.
#include "tests/cuda/double_rig.h"

#include <atomic>
#include <thread>

namespace stepwell::cuda_double {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kRoom = 32 * kMiB;
constexpr uint64_t kMs = 1'000'000;

// Rates at which a MiB takes 1,048,576 ns, so that times can be said in full.
constexpr const char *kCosts =
    "seed=1,cost=up_mb_per_s:1000,cost=down_mb_per_s:1000,cost=copy_ns:0,"
    "cost=event_ns:0,cost=copy_call_ns:0,cost=event_call_ns:0,"
    "cost=wake_ns:7";

class DoubleTime : public DoubleTest {
protected:
    void SetUp() override { start(kCosts); }
    void start(const std::string &options)
    {
        begin(options);
        in = stream(), out = stream(), work = stream();
        done = event();
        memory = device(kRoom), other = device(kRoom);
        host = pinned(kRoom), back = pinned(kRoom);
        begin_ns = stw_double_settle();
    }
    void end()
    {
        EXPECT_EQ(cuCtxSynchronize(), kSuccess);
        for (void *each : {in, out, work}) EXPECT_EQ(cuStreamDestroy_v2(each), kSuccess);
        EXPECT_EQ(cuEventDestroy_v2(done), kSuccess);
        EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
        EXPECT_EQ(cuMemFree_v2(other), kSuccess);
        EXPECT_EQ(cuMemFreeHost(host), kSuccess);
        EXPECT_EQ(cuMemFreeHost(back), kSuccess);
    }
    void start_over(const std::string &options)
    {
        end();
        EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kSuccess);
        start(options);
    }
    void TearDown() override
    {
        end();
        DoubleTest::TearDown();
    }
    void up(void *on, size_t at = 0, size_t bytes = kMiB)
    {
        EXPECT_EQ(cuMemcpyHtoDAsync_v2(memory + at, host + at, bytes, on), kSuccess);
    }
    void down(void *on, size_t bytes = kMiB)
    {
        EXPECT_EQ(cuMemcpyDtoHAsync_v2(back, other, bytes, on), kSuccess);
    }
    // Of all that was enqueued since the start or the last time.
    uint64_t taken()
    {
        const uint64_t before = begin_ns;
        begin_ns = stw_double_settle();
        return begin_ns - before;
    }

    void *in = nullptr, *out = nullptr, *work = nullptr, *done = nullptr;
    Address memory = 0, other = 0;
    unsigned char *host = nullptr, *back = nullptr;
    uint64_t begin_ns = 0;
};

TEST_F(DoubleTime, DirectionsAndKernelsRunAtOnceAndEachIsOne)
{
    up(in), down(out);
    EXPECT_EQ(stw_double_compute(work, 2 * kMs), kSuccess);
    EXPECT_EQ(taken(), 2 * kMs);
    up(in, 0), up(work, kMiB);
    EXPECT_EQ(taken(), 2 * kMiB);
    stw_double_engine totals = {};
    ASSERT_EQ(stw_double_engine_totals(0, STW_DOUBLE_UP, &totals), 0);
    EXPECT_EQ(totals.operations, 3u);
    EXPECT_EQ(totals.bytes, 3 * kMiB);
    EXPECT_EQ(totals.busy_ns, 3 * kMiB);
    EXPECT_EQ(stw_double_engine_totals(0, 3, &totals), -1);
}

TEST_F(DoubleTime, ANewOwnerTakesNone)
{
    const stw_double_range range{memory, kMiB, 1, 0};
    EXPECT_EQ(stw_double_touch(work, "given out", &range, 1), kSuccess);
    EXPECT_EQ(taken(), 0u);
}

// What is lost where both directions wait for what one of them has to wait for.
TEST_F(DoubleTime, AStreamThatWaitsHoldsUpWhatIsBehindIt)
{
    const auto step = [&](bool both) {
        EXPECT_EQ(stw_double_compute(work, 4 * kMiB), kSuccess);
        EXPECT_EQ(cuEventRecord(done, work), kSuccess);
        EXPECT_EQ(cuStreamWaitEvent(out, done, 0), kSuccess);
        if (both) {
            EXPECT_EQ(cuStreamWaitEvent(in, done, 0), kSuccess);
        }
        down(out);
        up(in, 0, 4 * kMiB);
        return taken();
    };
    EXPECT_EQ(step(true), 8 * kMiB);
    EXPECT_EQ(step(false), 5 * kMiB);
}

TEST_F(DoubleTime, AnEngineTakesWhatIsReadyFirst)
{
    EXPECT_EQ(stw_double_compute(work, 4 * kMiB), kSuccess);
    EXPECT_EQ(cuEventRecord(done, work), kSuccess);
    EXPECT_EQ(cuStreamWaitEvent(in, done, 0), kSuccess);
    up(in, 0, kMiB);
    up(out, kMiB, 3 * kMiB);
    EXPECT_EQ(taken(), 5 * kMiB);
}

TEST_F(DoubleTime, WorkThatIsHeldHasItsTimeAllTheSame)
{
    stw_double_hold(in);
    up(in);
    EXPECT_EQ(taken(), kMiB);
    stw_double_let_go(in, 0);
}

TEST_F(DoubleTime, WhoWaitsGoesOnWhenItIsOver)
{
    const uint64_t before = stw_double_time();
    up(in);
    EXPECT_EQ(stw_double_time(), before);
    EXPECT_EQ(cuStreamSynchronize(in), kSuccess);
    EXPECT_EQ(stw_double_time(), before + kMiB + 7);
}

TEST_F(DoubleTime, EventsHaveIt)
{
    void *first = nullptr, *last = nullptr;
    ASSERT_EQ(cuEventCreate(&first, 0), kSuccess);
    ASSERT_EQ(cuEventCreate(&last, 0), kSuccess);
    EXPECT_EQ(cuEventRecord(first, work), kSuccess);
    EXPECT_EQ(stw_double_compute(work, 3 * kMs), kSuccess);
    EXPECT_EQ(cuEventRecord(last, work), kSuccess);
    EXPECT_EQ(cuEventSynchronize(last), kSuccess);
    float milliseconds = 0.0F;
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, first, last), kSuccess);
    EXPECT_FLOAT_EQ(milliseconds, 3.0F);
    EXPECT_EQ(cuEventDestroy_v2(first), kSuccess);
    EXPECT_EQ(cuEventDestroy_v2(last), kSuccess);
}

// By the usual costs.
TEST_F(DoubleTime, SmallCopiesWithAnEventEachAreSlowerThanOne)
{
    start_over("seed=1");
    for (size_t at = 0; at < kRoom; at += 2 * kMiB) {
        up(in, at, 2 * kMiB);
        EXPECT_EQ(cuEventRecord(done, in), kSuccess);
    }
    const uint64_t each = taken();
    up(in, 0, kRoom);
    EXPECT_EQ(cuEventRecord(done, in), kSuccess);
    const uint64_t one = taken();
    EXPECT_GT(each, one + one / 50);
}

TEST_F(DoubleTime, CopiesOfOneCallCostTheHostOneCall)
{
    constexpr size_t kSmall = 4 << 10, kCopies = 64;
    start_over("seed=1");
    Address to[kCopies], from[kCopies];
    size_t sizes[kCopies];
    for (size_t i = 0; i < kCopies; ++i) {
        up(in, i * kSmall, kSmall);
        to[i] = memory + i * kSmall, from[i] = reinterpret_cast<Address>(host + i * kSmall);
        sizes[i] = kSmall;
    }
    const uint64_t each = taken();
    CopyAttributes attributes = {};
    attributes.source_order = kSourceInStreamOrder;
    size_t first = 0;
    EXPECT_EQ(cuMemcpyBatchAsync_v2(to, from, sizes, kCopies, &attributes, &first, 1, in),
              kSuccess);
    EXPECT_LT(taken() * 4, each);
}

TEST_F(DoubleTime, ACallWaitsWhereTheQueueIsFull)
{
    constexpr uint64_t kQueue = 4;
    start_over(std::string(kCosts) + ",queue=4");
    stw_double_hold(work);
    std::atomic<bool> through = false;
    uint64_t time = 0;
    std::thread caller([&] {
        EXPECT_EQ(cuCtxSetCurrent(context), kSuccess);
        for (uint64_t i = 0; i <= kQueue; ++i) EXPECT_EQ(stw_double_compute(work, 1000), kSuccess);
        time = stw_double_time();
        through = true;
    });
    while (stw_double_blocked() == 0 && !through) std::this_thread::yield();
    EXPECT_FALSE(through);
    EXPECT_EQ(stw_double_pending(work), kQueue);
    // Others have queues of their own.
    up(in);
    stw_double_let_go(work, 0);
    caller.join();
    EXPECT_EQ(time, begin_ns + 1000) << "it went on when the first of them was over";
    EXPECT_EQ(stw_double_blocked(), 0u);
}

TEST_F(DoubleTime, WhichStreamComesAfterWhichIsTold)
{
    stw_double_hold(work);
    EXPECT_EQ(stw_double_compute(work, 1), kSuccess);
    EXPECT_EQ(cuEventRecord(done, work), kSuccess);
    EXPECT_EQ(stw_double_comes_after(in, work), 0);
    EXPECT_EQ(cuStreamWaitEvent(in, done, 0), kSuccess);
    EXPECT_EQ(stw_double_comes_after(in, work), 1);
    EXPECT_EQ(stw_double_comes_after(out, work), 0);
    stw_double_let_go(work, 0);
    EXPECT_EQ(cuStreamSynchronize(work), kSuccess);
    EXPECT_EQ(stw_double_comes_after(out, work), 1);
}

TEST_F(DoubleTime, CostsThatAreNotKnownAreRefused)
{
    for (const char *options : {"cost=copy_ns", "cost=copy:3", "cost=copy_ns:many"})
        EXPECT_EQ(stw_double_reset(options), -1) << options;
}

}  // namespace
}  // namespace stepwell::cuda_double
