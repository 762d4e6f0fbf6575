// SPDX-License-Identifier: Apache-2.0
// Random programs of streams, events and copies. Where every wait is made that is needed, nothing
// is called a race and the bytes are those of the same program run in order; where some are left
// out, the double says so.
#include "tests/cuda/double_rig.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>

namespace stepwell::cuda_double {
namespace {

constexpr size_t kRandomBytes = 512;
constexpr size_t kStreams = 4;
constexpr size_t kBuffers = 6;

enum class Kind { kPinned, kAllocated, kMapped };
constexpr size_t kKinds = 3;
constexpr size_t kRandomGranule = size_t{2} << 20;

// Memory, what it should hold, and the events behind its last write and the reads on each stream.
struct Buffer {
    Address address = 0;
    Kind kind = Kind::kPinned;
    Handle handle = 0;  // of what is mapped
    std::array<unsigned char, kRandomBytes> expected{};
    void *written = nullptr;
    std::array<void *, kStreams> read{};
};

class Program {
public:
    // One wait in `leave_out` is not made; 0: all are.
    Program(uint32_t seed, uint32_t leave_out) : random_(seed), leave_out_(leave_out)
    {
        for (size_t i = 0; i < kStreams; ++i) cuStreamCreate(&streams_[i], kStreamNonBlocking);
        for (size_t i = 0; i < kBuffers; ++i) open(buffers_[i], static_cast<Kind>(i % kKinds));
    }
    ~Program()
    {
        cuCtxSynchronize();
        for (Buffer &buffer : buffers_) close(buffer);
        for (void *stream : streams_) cuStreamDestroy_v2(stream);
    }
    Program(const Program &) = delete;
    Program &operator=(const Program &) = delete;

    void run(int steps)
    {
        for (int i = 0; i < steps; ++i) step();
        for (Buffer &buffer : buffers_) look(buffer);
    }

private:
    uint32_t draw(size_t n) { return static_cast<uint32_t>(random_() % n); }

    static unsigned char *bytes_of(const Buffer &buffer)
    {
        return static_cast<unsigned char *>(stw_double_alias(buffer.address));
    }

    static void map(Buffer &buffer)
    {
        AllocationProperties properties{};
        properties.type = kAllocationPinned;
        properties.location = {kLocationDevice, 0};
        const AccessDescription access{{kLocationDevice, 0}, kAccessReadWrite};
        cuMemCreate(&buffer.handle, kRandomGranule, &properties, 0);
        cuMemAddressReserve(&buffer.address, kRandomGranule, 0, 0, 0);
        cuMemMap(buffer.address, kRandomGranule, 0, buffer.handle, 0);
        cuMemSetAccess(buffer.address, kRandomGranule, &access, 1);
    }

    static void open(Buffer &buffer, Kind kind)
    {
        buffer.kind = kind;
        void *host = nullptr;
        if (kind == Kind::kAllocated)
            cuMemAlloc_v2(&buffer.address, kRandomBytes);
        else if (kind == Kind::kMapped)
            map(buffer);
        else if (cuMemHostAlloc(&host, kRandomBytes, 0) == kSuccess)
            buffer.address = reinterpret_cast<uintptr_t>(host);
        cuEventCreate(&buffer.written, kEventDisableTiming);
        for (void *&event : buffer.read) cuEventCreate(&event, kEventDisableTiming);
        std::memset(bytes_of(buffer), 0, kRandomBytes);
        buffer.expected.fill(0);
    }

    static void close(Buffer &buffer)
    {
        if (buffer.kind == Kind::kAllocated) {
            cuMemFree_v2(buffer.address);
        } else if (buffer.kind == Kind::kMapped) {
            cuMemUnmap(buffer.address, kRandomGranule);
            cuMemRelease(buffer.handle);
            cuMemAddressFree(buffer.address, kRandomGranule);
        } else {
            cuMemFreeHost(reinterpret_cast<void *>(buffer.address));
        }
        cuEventDestroy_v2(buffer.written);
        for (void *event : buffer.read) cuEventDestroy_v2(event);
    }

    void wait(void *stream, void *event)
    {
        if (leave_out_ == 0 || draw(leave_out_) != 0) cuStreamWaitEvent(stream, event, 0);
    }
    void before_reading(void *stream, const Buffer &buffer) { wait(stream, buffer.written); }
    void before_writing(void *stream, const Buffer &buffer)
    {
        wait(stream, buffer.written);
        for (void *event : buffer.read) wait(stream, event);
    }

    void fill()
    {
        Buffer &buffer = buffers_[draw(kBuffers)];
        if (buffer.kind == Kind::kPinned) return;
        void *stream = streams_[draw(kStreams)];
        const size_t begin = draw(kRandomBytes), bytes = 1 + draw(kRandomBytes - begin);
        const auto value = static_cast<unsigned char>(draw(256));
        before_writing(stream, buffer);
        cuMemsetD8Async(buffer.address + begin, value, bytes, stream);
        cuEventRecord(buffer.written, stream);
        std::fill_n(buffer.expected.begin() + static_cast<ptrdiff_t>(begin), bytes, value);
    }

    void copy()
    {
        Buffer &to = buffers_[draw(kBuffers)], &from = buffers_[draw(kBuffers)];
        if (&to == &from) return;
        const uint32_t on = draw(kStreams);
        const size_t bytes = 1 + draw(kRandomBytes);
        const size_t to_begin = draw(kRandomBytes - bytes + 1),
                     from_begin = draw(kRandomBytes - bytes + 1);
        before_reading(streams_[on], from);
        before_writing(streams_[on], to);
        cuMemcpyAsync(to.address + to_begin, from.address + from_begin, bytes, streams_[on]);
        cuEventRecord(to.written, streams_[on]);
        cuEventRecord(from.read[on], streams_[on]);
        std::copy_n(from.expected.begin() + static_cast<ptrdiff_t>(from_begin), bytes,
                    to.expected.begin() + static_cast<ptrdiff_t>(to_begin));
    }

    // The host looks at a buffer behind its last write.
    void look(const Buffer &buffer)
    {
        cuEventSynchronize(buffer.written);
        stw_double_host_reads(buffer.address, kRandomBytes);
        if (leave_out_ == 0) {
            EXPECT_EQ(std::memcmp(bytes_of(buffer), buffer.expected.data(), kRandomBytes), 0);
        }
    }

    void host_write()
    {
        Buffer &buffer = buffers_[draw(kBuffers)];
        if (buffer.kind != Kind::kPinned) return;
        cuEventSynchronize(buffer.written);
        for (void *event : buffer.read) cuEventSynchronize(event);
        stw_double_host_writes(buffer.address, kRandomBytes);
        for (unsigned char &byte : buffer.expected) byte = static_cast<unsigned char>(draw(256));
        if (leave_out_ == 0) std::memcpy(bytes_of(buffer), buffer.expected.data(), kRandomBytes);
    }

    void renew()
    {
        Buffer &buffer = buffers_[draw(kBuffers)];
        cuEventSynchronize(buffer.written);
        for (void *event : buffer.read) cuEventSynchronize(event);
        close(buffer);
        open(buffer, static_cast<Kind>(draw(kKinds)));
    }

    void step()
    {
        const uint32_t choice = draw(100);
        if (choice < 30) fill();
        if (choice >= 30 && choice < 85) copy();
        if (choice >= 85 && choice < 90) look(buffers_[draw(kBuffers)]);
        if (choice >= 90 && choice < 95) host_write();
        if (choice >= 95 && choice < 97) renew();
        if (choice == 97) cuStreamSynchronize(streams_[draw(kStreams)]);
        if (choice == 98) cuStreamQuery(streams_[draw(kStreams)]);
        if (choice == 99) {
            void *&stream = streams_[draw(kStreams)];
            cuStreamSynchronize(stream);  // the events of its reads are recorded anew elsewhere
            cuStreamDestroy_v2(stream);
            cuStreamCreate(&stream, kStreamNonBlocking);
        }
    }

    std::minstd_rand random_;
    const uint32_t leave_out_;
    std::array<void *, kStreams> streams_{};
    std::array<Buffer, kBuffers> buffers_;
};

class DoubleRandom : public DoubleTest {
protected:
    static uint32_t first_seed()
    {
        const char *given = std::getenv("STW_SEED");
        return given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : 1;
    }
};

TEST_F(DoubleRandom, OrderedProgramsAreRightAndHaveNoViolation)
{
    for (uint32_t seed = first_seed(); seed < first_seed() + 40; ++seed) {
        SCOPED_TRACE("STW_SEED=" + std::to_string(seed));
        begin("delay_us=10,seed=" + std::to_string(seed));
        Program(seed, 0).run(200);
        ASSERT_EQ(stw_double_violations(), 0u) << violation_text(0);
        if (HasFailure()) return;
    }
}

TEST_F(DoubleRandom, ProgramsThatLeaveOutWaitsAreFound)
{
    for (uint32_t seed = first_seed(); seed < first_seed() + 30; ++seed) {
        begin("delay_us=0,seed=" + std::to_string(seed));
        Program(seed, 4).run(200);
        EXPECT_GT(stw_double_take_violations(nullptr, 0), 0u) << "STW_SEED=" << seed;
    }
}

// Blocking streams with a buffer each, ordered by work of the legacy stream on all of them and by
// nothing else.
TEST_F(DoubleRandom, TheLegacyStreamOrdersBlockingStreams)
{
    for (uint32_t seed = first_seed(); seed < first_seed() + 20; ++seed) {
        SCOPED_TRACE("STW_SEED=" + std::to_string(seed));
        begin("delay_us=10,seed=" + std::to_string(seed));
        std::minstd_rand random(seed);
        std::array<void *, 3> streams{};
        streams[2] = reinterpret_cast<void *>(kStreamPerThread);
        for (size_t i = 0; i < 2; ++i) streams[i] = stream(0);
        const Address memory = device(streams.size());
        std::array<unsigned char, 3> expected{};
        for (int i = 0; i < 200; ++i) {
            const size_t at = random() % streams.size();
            const size_t from = (at + 1) % streams.size();
            if (random() % 4 == 0) {
                ASSERT_EQ(cuMemcpyDtoDAsync_v2(memory + at, memory + from, 1, nullptr), kSuccess);
                expected[at] = expected[from];
            } else {
                expected[at] = static_cast<unsigned char>(i);
                ASSERT_EQ(cuMemsetD8Async(memory + at, expected[at], 1, streams[at]), kSuccess);
            }
        }
        ASSERT_EQ(cuCtxSynchronize(), kSuccess);
        EXPECT_EQ(std::memcmp(bytes(memory), expected.data(), expected.size()), 0);
        ASSERT_EQ(stw_double_violations(), 0u) << violation_text(0);
        EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
        for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cuStreamDestroy_v2(streams[i]), kSuccess);
    }
}

// Which stream's operations ran, in order, when both had eight that could begin.
std::string interleaving()
{
    std::string order;
    void *streams[2] = {};
    for (void *&stream : streams) cuStreamCreate(&stream, kStreamNonBlocking);
    stw_double_hold_all(1);
    for (int i = 0; i < 16; ++i) {
        const auto first = [](void *user, stw_double_alias_of) {
            static_cast<std::string *>(user)->push_back('1');
        };
        const auto second = [](void *user, stw_double_alias_of) {
            static_cast<std::string *>(user)->push_back('2');
        };
        stw_double_consume(streams[i % 2], "note", nullptr, 0, i % 2 == 0 ? +first : +second,
                           &order);
    }
    stw_double_hold_all(0);
    cuCtxSynchronize();
    for (void *stream : streams) cuStreamDestroy_v2(stream);
    return order;
}

TEST_F(DoubleRandom, TheSeedDecidesWhichStreamGoesOn)
{
    std::set<std::string> orders;
    for (uint32_t seed = 1; seed <= 10; ++seed) {
        begin("delay_us=0,seed=" + std::to_string(seed));
        const std::string order = interleaving();
        begin("delay_us=0,seed=" + std::to_string(seed));
        EXPECT_EQ(interleaving(), order);
        orders.insert(order);
    }
    EXPECT_GT(orders.size(), 5u);
}

TEST_F(DoubleRandom, ThreadsWithTheirOwnStreamsDoNotDisturbEachOther)
{
    begin("delay_us=10,seed=" + std::to_string(first_seed()));
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < 3; ++i)
        threads.emplace_back([&, i] {
            ASSERT_EQ(cuCtxPushCurrent_v2(context), kSuccess);
            Program(first_seed() + i, 0).run(300);
            ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
        });
    for (std::thread &thread : threads) thread.join();
}

}  // namespace
}  // namespace stepwell::cuda_double
