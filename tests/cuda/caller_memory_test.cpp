// SPDX-License-Identifier: Apache-2.0
// Memory of a program on the device, written from, read into and summed from: behind the work of
// its stream, with the bits of the same calls with memory of the host.
#include "tests/cuda/runtime_rig.h"

#include <atomic>
#include <random>

namespace stepwell {
namespace {

#define EXPECT_REFUSED(call, code, words)                                                          \
    do {                                                                                           \
        EXPECT_EQ(call, code);                                                                     \
        EXPECT_NE(std::string(stw_last_error()).find(words), std::string::npos)                    \
            << stw_last_error();                                                                   \
    } while (false)

constexpr uint64_t kMiB = 1 << 20;

class CallerMemory : public CudaRuntime {
protected:
    static uint64_t allocate(uint64_t bytes)
    {
        uint64_t address = 0;
        EXPECT_EQ(cuMemAlloc_v2(&address, bytes), 0);
        return address;
    }
    // A kernel of the program's: it finds `expected` in each element, and sets another value.
    void touch(uint64_t address, uint64_t elements, void *stream, uint32_t expected, uint32_t sets)
    {
        stw_view view{};
        view.pointer = reinterpret_cast<void *>(address);
        view.bytes = elements * 4;
        enqueue(view, stream, expected, sets, true);
    }
    static stw_copy_options from_device(void *stream, uint32_t dtype = 0)
    {
        stw_copy_options options = STW_COPY_OPTIONS_INIT;
        options.tier = STW_TIER_DEVICE;
        options.stream = stream;
        options.dtype = dtype;
        return options;
    }
    stw_tensor *make_float(const std::string &name, uint64_t elements, uint32_t dtype)
    {
        return create(name, elements, dtype, STW_ROLE_GRAD);
    }
    static void *at(uint64_t address) { return reinterpret_cast<void *>(address); }
    // Host memory in the program's memory of the device, for a stream.
    void put(uint64_t address, const std::vector<float> &values, void *stream)
    {
        ASSERT_EQ(cuMemcpyHtoDAsync_v2(address, values.data(), values.size() * 4, stream), 0);
    }
    std::vector<float> random_values(uint64_t elements)
    {
        std::vector<float> values(elements);
        for (float &value : values)
            value = static_cast<float>(static_cast<int64_t>(random_()) % 2001) / 37.0F;
        return values;
    }
    std::vector<uint8_t> bytes_of(stw_tensor *tensor, uint64_t bytes) const
    {
        std::vector<uint8_t> read(bytes);
        EXPECT_OK(stw_tensor_read(tensor, read.data(), nullptr));
        return read;
    }

    std::mt19937_64 random_{1};
};

TEST_F(CallerMemory, WritesAndReadsComeBehindTheStreamAndAreOverWhenTheyReturn)
{
    const std::vector<uint64_t> sizes = {1, 100, 16384, 3 * 16384 + 5, 100000};
    for (uint64_t seed = 1; seed <= 6; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        open("delay_us=300,seed=" + std::to_string(seed), 8, 24);
        if (HasFatalFailure()) return;
        uint32_t value = 0;
        for (const uint64_t elements : sizes) {
            stw_tensor *tensor = make("t" + std::to_string(elements), elements);
            void *stream = streams_[random_() % kStreams];
            const uint64_t memory = allocate(elements * 4);
            const uint64_t other = allocate(elements * 4);
            touch(memory, elements, stream, 0, ++value);  // late
            stw_copy_options options = from_device(stream);
            ASSERT_OK(stw_tensor_write(tensor, at(memory), &options));
            touch(memory, elements, streams_[0], value, 77);
            expect_all(tensor, elements, value);
            use(tensor, streams_[1], value, value + 1, true);  // now it is at the device
            ++value;
            touch(other, elements, stream, 0, 5);
            ASSERT_OK(stw_tensor_read(tensor, at(other), &options));
            touch(other, elements, streams_[2], value, 6);
            options.element_begin = elements / 2, options.element_count = elements - elements / 2;
            options.stream = STW_STREAM_SYNCED;
            end_streams();
            ASSERT_OK(stw_tensor_read(tensor, at(other), &options));
            touch(other, elements - elements / 2, streams_[2], value, 6);
            end_streams();
            EXPECT_EQ(cuMemFree_v2(memory), 0);
            EXPECT_EQ(cuMemFree_v2(other), 0);
        }
        start_over();
    }
}

TEST_F(CallerMemory, ConversionsAndSumsHaveTheBitsOfHostMemory)
{
    open("delay_us=200,seed=1", 8, 48);
    constexpr uint64_t kElements = 70000;
    for (const uint32_t dtype : {STW_F32, STW_BF16, STW_F16}) {
        SCOPED_TRACE(testing::Message() << "dtype " << dtype);
        const std::string name = std::to_string(dtype);
        stw_tensor *ours = make_float("ours" + name, kElements, dtype);
        stw_tensor *plain = make_float("plain" + name, kElements, dtype);
        const uint64_t bytes = kElements * stw_dtype_bits(dtype) / 8;
        const uint64_t memory = allocate(kElements * 4);
        void *stream = streams_[0];
        // Written with a conversion, then three contributions, by both calls.
        std::vector<std::vector<float>> values;
        for (int i = 0; i < 4; ++i) values.push_back(random_values(kElements));
        stw_copy_options copy = from_device(stream, STW_F32);
        put(memory, values[0], stream);
        ASSERT_OK(stw_tensor_write(ours, at(memory), &copy));
        copy = STW_COPY_OPTIONS_INIT, copy.dtype = STW_F32;
        ASSERT_OK(stw_tensor_write(plain, values[0].data(), &copy));
        EXPECT_EQ(bytes_of(ours, bytes), bytes_of(plain, bytes));
        stw_reduce_options sum = STW_REDUCE_OPTIONS_INIT;
        sum.dtype = STW_F32, sum.scale = 0.3;
        for (int i = 1; i < 4; ++i) {
            put(memory, values[i], stream);
            sum.tier = STW_TIER_DEVICE, sum.stream = stream;
            if (i == 2) {
                struct Loan {
                    uint64_t address;
                    std::atomic<int> freed{0};
                } loan{memory};
                const auto end = [](void *user) { ++static_cast<Loan *>(user)->freed; };
                ASSERT_OK(stw_reduce_adopt(ours, at(memory), &sum, end, &loan));
                (void)bytes_of(ours, bytes);  // waits for the sum
                ASSERT_OK(stw_runtime_drain(runtime_, 0));
                EXPECT_EQ(loan.freed, 1);
            } else {
                ASSERT_OK(stw_reduce(ours, at(memory), &sum));
            }
            sum.tier = 0, sum.stream = nullptr;
            ASSERT_OK(stw_reduce(plain, values[i].data(), &sum));
        }
        EXPECT_EQ(bytes_of(ours, bytes), bytes_of(plain, bytes));
        // And back, converted.
        const uint64_t back = allocate(kElements * 4);
        copy = from_device(stream, STW_F32);
        ASSERT_OK(stw_tensor_read(ours, at(back), &copy));
        std::vector<float> expected(kElements);
        copy = STW_COPY_OPTIONS_INIT, copy.dtype = STW_F32;
        ASSERT_OK(stw_tensor_read(plain, expected.data(), &copy));
        stw_tensor *again = make_float("again" + name, kElements, STW_F32);
        copy = from_device(STW_STREAM_SYNCED);
        ASSERT_OK(stw_tensor_write(again, at(back), &copy));
        const std::vector<uint8_t> read = bytes_of(again, kElements * 4);
        EXPECT_EQ(std::memcmp(read.data(), expected.data(), read.size()), 0);
        EXPECT_EQ(cuMemFree_v2(memory), 0);
        EXPECT_EQ(cuMemFree_v2(back), 0);
    }
}

// The stream does nothing while its gradient is handed over; the memory is freed when it was read.
TEST_F(CallerMemory, AnAdoptedGradientIsWaitedForByNobodyAndFreedOnce)
{
    open("delay_us=100,seed=2", 8, 48);
    constexpr uint64_t kElements = 40000;
    stw_tensor *gradient = make_float("gradient", kElements, STW_F32);
    struct Loan {
        uint64_t address;
        std::atomic<int> freed{0};
    } loan{allocate(kElements * 4)};
    const std::vector<float> values = random_values(kElements);
    stw_double_hold(streams_[0]);
    put(loan.address, values, streams_[0]);
    stw_reduce_options options = STW_REDUCE_OPTIONS_INIT;
    options.tier = STW_TIER_DEVICE, options.stream = streams_[0];
    const auto end = [](void *user) { ++static_cast<Loan *>(user)->freed; };
    ASSERT_OK(stw_reduce_adopt(gradient, at(loan.address), &options, end, &loan));
    EXPECT_EQ(loan.freed, 0);
    // Neither this call nor what else moves waits for the stream.
    stw_tensor *other = make_float("other", 100, STW_F32);
    const uint64_t small = allocate(400);
    put(small, std::vector<float>(100, 1), streams_[0]);
    ASSERT_OK(stw_reduce_adopt(other, at(small), &options, nullptr, nullptr));
    stw_tensor *weight = make("weight", 50000);
    use(weight, streams_[1], 0, 3, true);
    expect_all(weight, 50000, 3);
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    EXPECT_OK(stw_tier_stats_get(runtime_, STW_TIER_DEVICE, 0, &stats));
    EXPECT_EQ(stats.adopted_bytes, kElements * 4 + 400);
    EXPECT_EQ(host_stats().adopted_bytes, 0u);
    // The device's budget is 512 KiB: a second one has no room among what is held.
    options.timeout_ns = 1000000;
    EXPECT_REFUSED(stw_reduce_adopt(gradient, at(loan.address), &options, nullptr, nullptr),
                   STW_ERROR_TIMEOUT, "half of the device tier's budget");
    stw_double_let_go(streams_[0], 0);
    const std::vector<uint8_t> read = bytes_of(gradient, kElements * 4);
    EXPECT_EQ(std::memcmp(read.data(), values.data(), read.size()), 0);
    ASSERT_OK(stw_runtime_drain(runtime_, 0));
    EXPECT_EQ(loan.freed, 1);
    EXPECT_OK(stw_tier_stats_get(runtime_, STW_TIER_DEVICE, 0, &stats));
    EXPECT_EQ(stats.adopted_bytes, 0u);
    EXPECT_EQ(cuMemFree_v2(loan.address), 0);
    EXPECT_EQ(cuMemFree_v2(small), 0);
}

TEST_F(CallerMemory, WhatIsNoSuchMemoryIsRefusedWithTheWayOut)
{
    device_count_ = 2;
    open("devices=2,seed=3", 8, 24);
    stw_tensor *tensor = make("t", 1000);
    std::vector<uint32_t> host(1000, 3);
    const uint64_t memory = allocate(4000);
    stw_copy_options options = from_device(streams_[0]);
    EXPECT_REFUSED(stw_tensor_write(tensor, host.data(), &options), STW_ERROR_INVALID,
                   "are not memory of device 0: pass its memory, or leave the tier 0");
    EXPECT_REFUSED(stw_tensor_write(tensor, at(memory + kMiB * 64), &options), STW_ERROR_INVALID,
                   "are not memory of device 0");
    options.device = 1, options.stream = STW_STREAM_SYNCED;
    EXPECT_REFUSED(stw_tensor_read(tensor, at(memory), &options), STW_ERROR_INVALID,
                   "are not memory of device 1");
    options.device = 7;
    EXPECT_REFUSED(stw_tensor_read(tensor, at(memory), &options), STW_ERROR_INVALID,
                   "the runtime has no such device");
    options.device = 0, options.stream = STW_STREAM_HOST;
    EXPECT_REFUSED(stw_tensor_read(tensor, at(memory), &options), STW_ERROR_INVALID,
                   "no stream is given, and device 0 has streams");
    stw_reduce_options sum = STW_REDUCE_OPTIONS_INIT;
    sum.tier = STW_TIER_DEVICE, sum.stream = streams_[0];
    stw_tensor *gradient = make_float("g", 1000, STW_F32);
    EXPECT_REFUSED(stw_reduce(gradient, host.data(), &sum), STW_ERROR_INVALID, "are not memory of");
    EXPECT_REFUSED(stw_reduce_adopt(gradient, host.data(), &sum, nullptr, nullptr),
                   STW_ERROR_INVALID, "are not memory of");
    options = from_device(streams_[0]);
    EXPECT_REFUSED(stw_tensor_fill(tensor, 0, &options), STW_ERROR_UNSUPPORTED,
                   "host memory alone");
    expect_all(tensor, 1000, 0);
    // A stream that records a graph cannot be marked.
    stw_double_capture(streams_[1], 1);
    options.stream = streams_[1];
    EXPECT_REFUSED(stw_tensor_write(tensor, at(memory), &options), STW_ERROR_INVALID, "graph");
    stw_double_capture(streams_[1], 0);
    expect_all(tensor, 1000, 0);
    EXPECT_EQ(cuMemFree_v2(memory), 0);
}

}  // namespace
}  // namespace stepwell
