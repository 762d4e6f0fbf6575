// SPDX-License-Identifier: Apache-2.0
// Every memory driver, driven alike; then what only those with STW_MEMORY_CAN_MAP can do.
#include "tests/conformance/support.h"

#include "drivers/common/system.h"
#include "lib/support/status.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include <sys/mman.h>

namespace conformance {
namespace {

constexpr uint32_t kBlock = 64 << 10;

class MemoryConformance : public testing::TestWithParam<MemoryCase> {
protected:
    Memory memory_{GetParam()};
    const stw_memory_ops &ops() { return *memory_.ops(); }
};

TEST_P(MemoryConformance, TheWholeArenaIsThere)
{
    ASSERT_EQ(memory_.open(16 * kMiB, kBlock, 0), STW_OK) << memory_.sentence();
    EXPECT_EQ(memory_.info().bytes, 16 * kMiB);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory_.info().base) % kBlock, 0u);
    if (!memory_.can(STW_MEMORY_HOST_ACCESS)) return;
    for (uint32_t block = 0; block < 16 * kMiB / kBlock; ++block)
        fill_pattern(memory_.block(block), kBlock, block);
    for (uint32_t block = 0; block < 16 * kMiB / kBlock; ++block)
        EXPECT_TRUE(has_pattern(memory_.block(block), kBlock, block)) << block;
}

TEST_P(MemoryConformance, CopyAndZeroReachTheirBytesOnly)
{
    ASSERT_EQ(memory_.open(4 * kMiB, kBlock, 0), STW_OK) << memory_.sentence();
    Buffer data(kMiB);
    data.fill(3);
    uint8_t *base = memory_.block(0);
    ASSERT_EQ(ops().zero(memory_.get(), base, 4 * kMiB), STW_OK);
    ASSERT_EQ(ops().copy(memory_.get(), base + 100, data.data(), kMiB), STW_OK);
    ASSERT_EQ(ops().copy(memory_.get(), base + 2 * kMiB, base + 100, kMiB), STW_OK);
    Buffer back(kMiB);
    ASSERT_EQ(ops().copy(memory_.get(), back.data(), base + 2 * kMiB, kMiB), STW_OK);
    EXPECT_TRUE(back.holds(3));
    ASSERT_EQ(ops().zero(memory_.get(), base + 100, kMiB - 1), STW_OK);
    Buffer whole(2 * kMiB);  // seen by a copy: not all memory is the CPU's to read
    ASSERT_EQ(ops().copy(memory_.get(), whole.data(), base, whole.bytes()), STW_OK);
    EXPECT_EQ(whole.data()[99], 0);
    EXPECT_EQ(whole.data()[100 + kMiB - 1], data.data()[kMiB - 1]);
    EXPECT_EQ(whole.data()[100 + kMiB], 0);
    EXPECT_TRUE(
        std::all_of(whole.data(), whole.data() + kMiB, [](auto byte) { return byte == 0; }));
}

TEST_P(MemoryConformance, SenselessSizesAreRefused)
{
    EXPECT_EQ(memory_.open(0, kBlock, 0), STW_ERROR_INVALID);
    EXPECT_EQ(memory_.open(kBlock + 1, kBlock, 0), STW_ERROR_INVALID);
    EXPECT_EQ(memory_.open(3 * kBlock, 3 * kBlock, 0), STW_ERROR_INVALID);
    EXPECT_EQ(memory_.open(32 << 10, 32 << 10, 0), STW_ERROR_INVALID);
    EXPECT_NE(memory_.sentence(), "");
}

TEST_P(MemoryConformance, NoOtherDeviceStandsInForOneThatIsNotThere)
{
    for (const int32_t ordinal : {-1, INT32_MAX}) {
        EXPECT_EQ(memory_.open(4 * kMiB, kBlock, 0, ordinal), STW_ERROR_UNSUPPORTED) << ordinal;
        EXPECT_NE(memory_.sentence().find(std::to_string(ordinal)), std::string::npos)
            << memory_.sentence();
    }
}

TEST_P(MemoryConformance, OverAvailableMemoryIsRefusedWithTheNumbers)
{
    // Of memory that is elsewhere nothing is known but that it is no petabyte.
    const bool ram = memory_.can(STW_MEMORY_HOST_ACCESS) && !GetParam().elsewhere;
    const uint64_t room = ram ? stepwell::drivers::memory_room().bytes : uint64_t{1} << 50;
    const uint64_t asked = (room / (2 * kMiB) + 4096) * 2 * kMiB;
    std::printf("Asks for %s, 8 GiB more than there are, and expects to be refused; a driver that "
                "takes them may need minutes.\n",
                stepwell::bytes_text(asked).c_str());
    std::fflush(stdout);
    EXPECT_EQ(memory_.open(asked, 2 * kMiB, 0), STW_ERROR_MEMORY);
    EXPECT_EQ(memory_.error().needed_bytes, asked);
    EXPECT_LT(memory_.error().free_bytes, asked);
    EXPECT_GT(memory_.error().free_bytes, 0u);
    EXPECT_NE(memory_.sentence().find(std::to_string(asked)), std::string::npos);
}

TEST_P(MemoryConformance, MemoryThatIsGivenBackIsGoneAndComesBack)
{
    constexpr uint32_t kCount = 4;
    if ((ops().capabilities & STW_MEMORY_CAN_SHRINK) == 0) GTEST_SKIP() << "cannot shrink";
    if (!memory_.can(STW_MEMORY_HOST_ACCESS)) GTEST_SKIP() << "not the CPU's memory";
    ASSERT_EQ(memory_.open(64 * kBlock, kBlock, 0), STW_OK) << memory_.sentence();
    const auto pages = [&] {
        std::vector<unsigned char> resident(kCount * kBlock / 4096);
        EXPECT_EQ(mincore(memory_.block(32), kCount * kBlock, resident.data()), 0);
        return std::count_if(resident.begin(), resident.end(), [](auto page) { return page & 1; });
    };
    for (const uint32_t block : {31, 32, 33, 34, 35, 36})
        fill_pattern(memory_.block(block), kBlock, block);
    EXPECT_EQ(pages(), kCount * kBlock / 4096);
    ASSERT_EQ(ops().give_back(memory_.get(), 32, kCount), STW_OK);
    EXPECT_EQ(pages(), 0);
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    ASSERT_EQ(ops().take_back(memory_.get(), 32, kCount, &error), STW_OK) << error.sentence;
    EXPECT_FALSE(has_pattern(memory_.block(32), kBlock, 32));
    fill_pattern(memory_.block(35), kBlock, 7);
    EXPECT_TRUE(has_pattern(memory_.block(35), kBlock, 7));
    EXPECT_TRUE(has_pattern(memory_.block(31), kBlock, 31));
    EXPECT_TRUE(has_pattern(memory_.block(36), kBlock, 36));
    EXPECT_EQ(ops().give_back(memory_.get(), 62, 3), STW_ERROR_INVALID);
    EXPECT_EQ(ops().give_back(memory_.get(), 0, 0), STW_ERROR_INVALID);
    EXPECT_EQ(ops().take_back(memory_.get(), 64, 1, &error), STW_ERROR_INVALID);
    EXPECT_NE(error.sentence[0], '\0');
}

// Of a device, which may place memory in pieces of 2 MiB alone, or not at all.
TEST_P(MemoryConformance, ADeviceGivesBackBlocksAndKeepsTheirNeighbours)
{
    constexpr uint32_t kLarge = 2 * kMiB;
    if ((ops().capabilities & STW_MEMORY_CAN_SHRINK) == 0) GTEST_SKIP() << "cannot shrink";
    if (memory_.can(STW_MEMORY_HOST_ACCESS)) GTEST_SKIP() << "the CPU's memory";
    ASSERT_EQ(memory_.open(8 * uint64_t{kLarge}, kLarge, 0), STW_OK) << memory_.sentence();
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    EXPECT_EQ(ops().give_back(memory_.get(), 7, 2), STW_ERROR_INVALID);
    EXPECT_EQ(ops().give_back(memory_.get(), 0, 0), STW_ERROR_INVALID);
    EXPECT_EQ(ops().take_back(memory_.get(), 8, 1, &error), STW_ERROR_INVALID);
    EXPECT_NE(error.sentence[0], '\0');
    Buffer data(kLarge);
    for (uint32_t block = 0; block < 8; ++block) {
        data.fill(static_cast<uint8_t>(block + 1));
        ASSERT_EQ(ops().copy(memory_.get(), memory_.block(block), data.data(), kLarge), STW_OK);
    }
    const stw_status given = ops().give_back(memory_.get(), 3, 2);
    if (given == STW_ERROR_UNSUPPORTED) {
        EXPECT_NE(memory_.info().remark[0], '\0');
        GTEST_SKIP() << memory_.info().remark;
    }
    ASSERT_EQ(given, STW_OK);
    ASSERT_EQ(ops().give_back(memory_.get(), 4, 1), STW_OK);  // gone already
    ASSERT_EQ(ops().take_back(memory_.get(), 3, 2, &error), STW_OK) << error.sentence;
    ASSERT_EQ(ops().take_back(memory_.get(), 4, 1, &error), STW_OK) << error.sentence;
    data.fill(99);
    ASSERT_EQ(ops().copy(memory_.get(), memory_.block(4), data.data(), kLarge), STW_OK);
    for (const uint32_t block : {2, 4, 5}) {
        ASSERT_EQ(ops().copy(memory_.get(), data.data(), memory_.block(block), kLarge), STW_OK);
        EXPECT_TRUE(data.holds(block == 4 ? 99 : static_cast<uint8_t>(block + 1))) << block;
    }
}

TEST_P(MemoryConformance, BlocksAreSeenAtASecondAddress)
{
    constexpr uint32_t kLarge = 2 * kMiB;
    if (!memory_.can(STW_MEMORY_CAN_ALIAS)) GTEST_SKIP() << "maps no blocks at a second address";
    ASSERT_EQ(memory_.open(8 * uint64_t{kLarge}, kLarge, 0), STW_OK) << memory_.sentence();
    void *address = nullptr;
    const stw_status reserved = ops().reserve_alias(memory_.get(), 2 * kLarge, &address);
    if (reserved == STW_ERROR_UNSUPPORTED) GTEST_SKIP() << memory_.info().remark;
    ASSERT_EQ(reserved, STW_OK);
    auto *there = static_cast<uint8_t *>(address);
    const auto map = [&](uint32_t first, uint32_t count, void *at) {
        return ops().map_alias(memory_.get(), first, count, at, nullptr, 0);
    };
    Buffer data(kLarge);
    const auto sees = [&](uint32_t index, uint8_t value) {
        EXPECT_EQ(ops().copy(memory_.get(), data.data(), there + uint64_t{index} * kLarge, kLarge),
                  STW_OK);
        return data.holds(value);
    };
    for (uint32_t block = 0; block < 8; ++block) {
        data.fill(static_cast<uint8_t>(block + 1));
        ASSERT_EQ(ops().copy(memory_.get(), memory_.block(block), data.data(), kLarge), STW_OK);
    }
    EXPECT_EQ(map(7, 2, there), STW_ERROR_INVALID);
    EXPECT_EQ(map(0, 2, there + kLarge), STW_ERROR_INVALID);
    EXPECT_EQ(map(0, 1, there + 4096), STW_ERROR_INVALID);
    EXPECT_EQ(map(0, 1, memory_.block(4)), STW_ERROR_INVALID);
    ASSERT_EQ(map(2, 2, there), STW_OK);
    EXPECT_TRUE(sees(0, 3) && sees(1, 4));
    ASSERT_EQ(map(5, 1, there + kLarge), STW_OK);
    ASSERT_EQ(map(5, 1, there + kLarge), STW_OK);  // seen already
    // What lies there at another distance than in the arena may go with that.
    const bool in_runs = (memory_.info().flags & STW_MEMORY_ALIASES_RUNS) != 0;
    EXPECT_TRUE((in_runs || sees(0, 3)) && sees(1, 6));
    ASSERT_EQ(map(4, 2, there), STW_OK);  // one of them is
    EXPECT_TRUE(sees(0, 5) && sees(1, 6));
    ASSERT_EQ(map(2, 1, there), STW_OK);
    ASSERT_EQ(ops().copy(memory_.get(), data.data(), memory_.block(2), kLarge), STW_OK);
    EXPECT_TRUE(data.holds(3));  // there as well
    EXPECT_EQ(ops().release_alias(memory_.get(), there, kLarge, nullptr, 0), STW_ERROR_INVALID);
    ASSERT_EQ(ops().release_alias(memory_.get(), there, 2 * kLarge, nullptr, 0), STW_OK);
    EXPECT_EQ(map(2, 1, there), STW_ERROR_INVALID);
}

TEST_P(MemoryConformance, NoMappingOutlivesClose)
{
    if (!memory_.can(STW_MEMORY_HOST_ACCESS)) GTEST_SKIP() << "not the CPU's memory";
    ASSERT_EQ(memory_.open(8 * kMiB, kBlock, 64 * kMiB), STW_OK) << memory_.sentence();
    uint8_t *base = memory_.block(0);
    memory_.close();
    unsigned char resident = 0;
    EXPECT_EQ(mincore(base, 4096, &resident), -1);
    EXPECT_EQ(errno, ENOMEM);
}

// A module need not have a driver of each kind, nor one whose blocks can be moved.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MemoryConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MovingBlocks);
INSTANTIATE_TEST_SUITE_P(Drivers, MemoryConformance, testing::ValuesIn(memory_cases()),
                         [](const auto &info) { return info.param.label; });

// ------------------------------------------------------------------------- blocks that move --

struct MovingCase {
    std::string label;
    MemoryCase memory;
    uint32_t block_bytes;
};
std::ostream &operator<<(std::ostream &out, const MovingCase &one)
{
    return out << one.memory << " in blocks of " << one.block_bytes;
}

class MovingBlocks : public testing::TestWithParam<MovingCase> {
protected:
    static constexpr uint32_t kBlocks = 8;
    Memory memory_{GetParam().memory};
    uint8_t *tensor_ = nullptr;

    void SetUp() override
    {
        ASSERT_EQ(memory_.open(uint64_t{kBlocks} * bytes(), bytes(), 64 * kMiB), STW_OK)
            << memory_.sentence();
        void *address = nullptr;
        ASSERT_EQ(ops().reserve_address(memory_.get(), uint64_t{4} * bytes(), &address), STW_OK);
        tensor_ = static_cast<uint8_t *>(address);
        for (uint32_t i = 0; i < kBlocks; ++i) fill_pattern(memory_.block(i), bytes(), i);
    }
    const stw_memory_ops &ops() { return *memory_.ops(); }
    uint32_t bytes() const { return GetParam().block_bytes; }
    uint8_t *place(uint32_t i) const { return tensor_ + uint64_t{i} * bytes(); }
    stw_status map(uint32_t block, uint32_t to)
    {
        return ops().map(memory_.get(), block, place(to));
    }
    stw_status home(uint32_t block) { return ops().home(memory_.get(), block); }
};

// Whether this process may touch an address, without touching it.
bool is_accessible(const void *address)
{
    int pipe_ends[2];
    EXPECT_EQ(pipe(pipe_ends), 0);
    const bool accessible = ::write(pipe_ends[1], address, 1) == 1;
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    return accessible;
}

TEST_P(MovingBlocks, BlocksKeepTheirContentsThroughMapAndHome)
{
    for (uint32_t round = 0; round < 3; ++round) {
        for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(map(7 - i, i), STW_OK);
        for (uint32_t i = 0; i < 4; ++i) {
            EXPECT_TRUE(has_pattern(place(i), bytes(), 7 - i));
            EXPECT_FALSE(is_accessible(memory_.block(7 - i)));
        }
        for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(home(7 - i), STW_OK);
        for (uint32_t i = 0; i < kBlocks; ++i)
            EXPECT_TRUE(has_pattern(memory_.block(i), bytes(), i));
    }
}

TEST_P(MovingBlocks, WritesThroughTheTensorsAddressAreTheBlocks)
{
    ASSERT_EQ(map(2, 1), STW_OK);
    fill_pattern(place(1), bytes(), 99);
    ASSERT_EQ(home(2), STW_OK);
    EXPECT_TRUE(has_pattern(memory_.block(2), bytes(), 99));
}

TEST_P(MovingBlocks, MapDisplacesWhoIsThere)
{
    ASSERT_EQ(map(0, 2), STW_OK);
    ASSERT_EQ(map(1, 2), STW_OK);
    EXPECT_TRUE(has_pattern(place(2), bytes(), 1));
    EXPECT_TRUE(has_pattern(memory_.block(0), bytes(), 0));
    EXPECT_EQ(map(1, 2), STW_OK);  // where it is already
    ASSERT_EQ(map(1, 3), STW_OK);  // from one address to another
    EXPECT_TRUE(has_pattern(place(3), bytes(), 1));
    EXPECT_FALSE(is_accessible(place(2)));
    EXPECT_EQ(home(5), STW_OK);  // never left
}

TEST_P(MovingBlocks, UnmappedAddressFaults)
{
    ASSERT_EQ(map(0, 0), STW_OK);
    EXPECT_FALSE(is_accessible(place(1)));
    const int status = in_child([] {
        // A signal handler of a sanitizer would report it and exit instead.
        std::signal(SIGSEGV, SIG_DFL);
        Memory memory(GetParam().memory);
        if (memory.open(4 * kBlock, kBlock, 16 * kBlock) != STW_OK) return 1;
        void *address = nullptr;
        if (memory.ops()->reserve_address(memory.get(), kBlock, &address) != STW_OK) return 2;
        return static_cast<int>(*static_cast<volatile uint8_t *>(address)) + 3;
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
}

TEST_P(MovingBlocks, AMappedBlockGoesHomeBeforeItsMemoryGoes)
{
    if ((ops().capabilities & STW_MEMORY_CAN_SHRINK) == 0) GTEST_SKIP() << "cannot shrink";
    ASSERT_EQ(map(3, 0), STW_OK);
    ASSERT_EQ(ops().give_back(memory_.get(), 3, 1), STW_OK);
    EXPECT_FALSE(is_accessible(place(0)));
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    ASSERT_EQ(ops().take_back(memory_.get(), 3, 1, &error), STW_OK) << error.sentence;
    fill_pattern(memory_.block(3), bytes(), 77);
    ASSERT_EQ(map(3, 1), STW_OK);
    EXPECT_TRUE(has_pattern(place(1), bytes(), 77));
}

TEST_P(MovingBlocks, ReleaseSendsEveryBlockHome)
{
    ASSERT_EQ(map(3, 0), STW_OK);
    ASSERT_EQ(map(4, 3), STW_OK);
    ASSERT_EQ(ops().release_address(memory_.get(), tensor_, uint64_t{4} * bytes()), STW_OK);
    EXPECT_TRUE(has_pattern(memory_.block(3), bytes(), 3));
    EXPECT_TRUE(has_pattern(memory_.block(4), bytes(), 4));
    EXPECT_EQ(map(3, 0), STW_ERROR_INVALID);  // nobody's address any more
    EXPECT_EQ(ops().release_address(memory_.get(), tensor_, uint64_t{4} * bytes()),
              STW_ERROR_INVALID);
}

TEST_P(MovingBlocks, SenselessMovesAreRefused)
{
    EXPECT_EQ(map(kBlocks, 0), STW_ERROR_INVALID);
    EXPECT_EQ(ops().map(memory_.get(), 0, tensor_ + 1), STW_ERROR_INVALID);
    EXPECT_EQ(map(0, 4), STW_ERROR_INVALID);  // past the reservation
    EXPECT_EQ(ops().map(memory_.get(), 0, memory_.block(1)), STW_ERROR_INVALID);
    EXPECT_EQ(home(kBlocks), STW_ERROR_INVALID);
    EXPECT_TRUE(has_pattern(memory_.block(0), bytes(), 0));
}

TEST_P(MovingBlocks, AddressesRunOutAndComeBack)
{
    std::vector<void *> taken;
    void *address = nullptr;
    while (ops().reserve_address(memory_.get(), 2 * uint64_t{bytes()} - 5, &address) == STW_OK)
        taken.push_back(address);
    EXPECT_EQ(ops().reserve_address(memory_.get(), 2 * uint64_t{bytes()}, &address),
              STW_ERROR_LIMIT);
    const uint64_t places = 64 * kMiB / bytes();
    EXPECT_EQ(taken.size(), (places - 4) / 2);
    // Given back out of order, the neighbours join again.
    for (size_t i = 0; i < taken.size(); i += 2)
        ASSERT_EQ(ops().release_address(memory_.get(), taken[i], 2 * uint64_t{bytes()} - 5),
                  STW_OK);
    for (size_t i = 1; i < taken.size(); i += 2)
        ASSERT_EQ(ops().release_address(memory_.get(), taken[i], 2 * uint64_t{bytes()} - 5),
                  STW_OK);
    EXPECT_EQ(ops().reserve_address(memory_.get(), (places - 4) * bytes(), &address), STW_OK);
}

TEST_P(MovingBlocks, MapBesideRunningThreads)
{
    const auto *arena = static_cast<uint8_t *>(memory_.info().base);
    const uint8_t *arena_end = arena + memory_.info().bytes;
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> strays{0};
    std::thread other([&] {
        while (!stop.load(std::memory_order_relaxed)) {
            void *range =
                mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            const auto *at = static_cast<uint8_t *>(range);
            strays += (at >= arena && at < arena_end) || (at >= tensor_ && at < place(4));
            std::memset(range, 0xee, 4096);
            munmap(range, bytes());
        }
    });
    for (uint32_t round = 0; round < 200; ++round) {
        for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(map((round + i) % kBlocks, i), STW_OK);
        for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(home((round + i) % kBlocks), STW_OK);
    }
    stop = true;
    other.join();
    EXPECT_EQ(strays, 0u);
    for (uint32_t i = 0; i < kBlocks; ++i) EXPECT_TRUE(has_pattern(memory_.block(i), bytes(), i));
}

TEST_P(MovingBlocks, SeveralThreadsMapTheirOwnBlocks)
{
    std::vector<std::thread> threads;
    for (uint32_t own = 0; own < 4; ++own)
        threads.emplace_back([&, own] {
            for (int round = 0; round < 100; ++round) {
                EXPECT_EQ(map(own, own), STW_OK);
                place(own)[round] = static_cast<uint8_t>(round);
                EXPECT_EQ(home(own), STW_OK);
                EXPECT_EQ(memory_.block(own)[round], round);
            }
        });
    for (std::thread &thread : threads) thread.join();
}

TEST_P(MovingBlocks, IoIntoAMovedBlockIsRight)
{
    Directory directory;
    Storage storage("aio", "");
    const stw_status opened = storage.open(directory.path(), 8 * kMiB, 8);
    if (opened == STW_ERROR_UNSUPPORTED) GTEST_SKIP() << storage.sentence();
    ASSERT_EQ(opened, STW_OK) << storage.sentence();
    const uint64_t io_bytes = std::min<uint64_t>(bytes(), 2 * kMiB);
    Buffer data(io_bytes);
    for (uint32_t i = 0; i < 4; ++i) {
        fill_pattern(data.data(), io_bytes, 1000 + i);
        ASSERT_EQ(storage.run(STW_IO_WRITE, data.data(), i * io_bytes, io_bytes),
                  static_cast<int64_t>(io_bytes));
    }
    for (uint32_t round = 0; round < 20; ++round) {
        for (uint32_t i = 0; i < 4; ++i)
            ASSERT_EQ(storage.submit({i, memory_.block(i), i * io_bytes, io_bytes, STW_IO_READ, 0}),
                      STW_OK);
        for (uint32_t i = 0; i < 4; ++i)
            ASSERT_EQ(map(i, i), STW_OK);  // while the disk writes to it
        for (const stw_io_done &done : storage.collect(4))
            ASSERT_EQ(done.result, static_cast<int64_t>(io_bytes));
        for (uint32_t i = 0; i < 4; ++i) {
            ASSERT_TRUE(has_pattern(place(i), io_bytes, 1000 + i));
            ASSERT_EQ(home(i), STW_OK);
            std::memset(memory_.block(i), 0, io_bytes);
        }
    }
}

// Every size of block, with each driver whose blocks can be moved and looked at.
std::vector<MovingCase> moving_cases()
{
    constexpr uint64_t kBoth = STW_MEMORY_CAN_MAP | STW_MEMORY_HOST_ACCESS;
    std::vector<MovingCase> cases;
    for (const MemoryCase &one : memory_cases())
        for (const uint32_t bytes : {64u << 10, 512u << 10, 2u << 20})
            if ((one.ops->capabilities & kBoth) == kBoth)
                cases.push_back(
                    {one.label + "_" + std::to_string(bytes >> 10) + "KiB", one, bytes});
    return cases;
}

INSTANTIATE_TEST_SUITE_P(Blocks, MovingBlocks, testing::ValuesIn(moving_cases()),
                         [](const auto &info) { return info.param.label; });

}  // namespace
}  // namespace conformance
