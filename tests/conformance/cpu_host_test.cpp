// SPDX-License-Identifier: Apache-2.0
// What the memory drivers that are built in promise each for itself, beyond the suite that all of
// them pass.
#include "tests/conformance/support.h"

#include "drivers/common/arena.h"
#include "drivers/common/system.h"

#include <filesystem>
#include <fstream>

#include <sys/mman.h>
#include <sys/resource.h>

namespace conformance {
namespace {

constexpr uint32_t kBlock = 64 << 10;

TEST(HostMemory, LockRefusalIsSaidOnceAndWithItsRemedy)
{
    const int status = in_child([] {
        const rlimit limit = {64 << 10, 64 << 10};
        if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 1;
        if (geteuid() == 0 && setuid(65534) != 0) return 2;  // root may lock all it wants
        Memory memory("host");
        if (memory.open(4 * kMiB, kBlock, 0) != STW_OK) return 3;
        const std::string remark = memory.info().remark;
        if (memory.info().locked != 0) return 4;
        if (remark.find("ulimit -l") == std::string::npos) return 5;
        return remark.find("4096 KiB") == std::string::npos ? 6 : 0;
    });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(HostMemory, WhatIsLockedIsLocked)
{
    Memory memory("host");
    ASSERT_EQ(memory.open(4 * kMiB, kBlock, 0), STW_OK) << memory.sentence();
    std::ifstream status("/proc/self/status");
    std::string key;
    uint64_t locked_kib = 0;
    for (std::string word; status >> word;)
        if (word == "VmLck:") status >> locked_kib;
    EXPECT_EQ(locked_kib >= 4096, memory.info().locked == 1) << memory.info().remark;
}

uint64_t huge_kib_at(const void *address)
{
    std::ifstream smaps("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(smaps, line);) {
        uint64_t begin = 0;
        uint64_t end = 0;
        uint64_t kib = 0;
        const uint64_t asked = reinterpret_cast<uintptr_t>(address);
        if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
            inside = asked >= begin && asked < end;
        else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1)
            return kib;
    }
    return 0;
}

TEST(CpuMemory, HugePagesStayHugeThroughAMove)
{
    Memory memory(MemoryCase{"", stepwell::drivers::memory_driver("cpu"), "populate=1"});
    ASSERT_EQ(memory.open(16 * kMiB, 2 * kMiB, 64 * kMiB), STW_OK) << memory.sentence();
    if (memory.info().huge_pages == 0) GTEST_SKIP() << memory.info().remark;
    if (huge_kib_at(memory.block(3)) < 16 * 1024)
        GTEST_SKIP() << "the kernel had no huge pages for the whole arena";
    void *address = nullptr;
    ASSERT_EQ(memory.ops()->reserve_address(memory.get(), 2 * kMiB, &address), STW_OK);
    ASSERT_EQ(memory.ops()->map(memory.get(), 3, address), STW_OK);
    EXPECT_EQ(huge_kib_at(address), 2048u);
    ASSERT_EQ(memory.ops()->home(memory.get(), 3), STW_OK);
    EXPECT_GE(huge_kib_at(memory.block(3)), 2048u);
}

TEST(CpuMemory, ABlockThatIsMappedForReadingIsNotWritten)
{
    Memory memory("cpu");
    ASSERT_EQ(memory.open(4 * kMiB, kBlock, 4 * kMiB), STW_OK) << memory.sentence();
    void *address = nullptr;
    ASSERT_EQ(memory.ops()->reserve_address(memory.get(), kBlock, &address), STW_OK);
    fill_pattern(memory.block(3), kBlock, 9);
    auto *bytes = static_cast<volatile uint8_t *>(address);
    const auto mapping = [&] {
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
            uint64_t begin = 0;
            uint64_t end = 0;
            char access[5] = {};
            if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) == 3 &&
                reinterpret_cast<uintptr_t>(address) >= begin &&
                reinterpret_cast<uintptr_t>(address) < end)
                return std::string(access);
        }
        return std::string();
    };
    EXPECT_EQ(mapping(), "---p");
    ASSERT_EQ(memory.ops()->map_as(memory.get(), 3, address, 0), STW_OK);
    EXPECT_EQ(mapping(), "r--p");
    EXPECT_TRUE(has_pattern(const_cast<uint8_t *>(bytes), kBlock, 9));
    ASSERT_EQ(memory.ops()->map_as(memory.get(), 3, address, 1), STW_OK);
    EXPECT_EQ(mapping(), "rw-p");
    bytes[0] = 77;
    ASSERT_EQ(memory.ops()->map_as(memory.get(), 3, address, 0), STW_OK);
    EXPECT_EQ(mapping(), "r--p");
    ASSERT_EQ(memory.ops()->map(memory.get(), 3, address), STW_OK);
    EXPECT_EQ(mapping(), "rw-p");
    ASSERT_EQ(memory.ops()->home(memory.get(), 3), STW_OK);
    EXPECT_EQ(mapping(), "---p");
    EXPECT_EQ(*memory.block(3), 77);
}

TEST(CpuMemory, MoreMappingsThanTheKernelHasAreRefusedWithTheSysctl)
{
    const uint64_t most =
        stepwell::drivers::read_number("/proc/sys/vm/max_map_count").value_or(65530);
    const uint64_t blocks = most / 4;
    if (blocks * kBlock > stepwell::drivers::memory_room().bytes)
        GTEST_SKIP() << "vm.max_map_count is " << most << ": the refusal would be about memory";
    Memory memory("cpu");
    EXPECT_EQ(memory.open(blocks * kBlock, kBlock, 8 * blocks * kBlock), STW_ERROR_LIMIT);
    EXPECT_NE(memory.sentence().find("sysctl vm.max_map_count="), std::string::npos);
    EXPECT_NE(memory.sentence().find(std::to_string(most / 2)), std::string::npos);
}

TEST(CpuMemory, TheWorstPatternStaysWithinTheMappingsItPromised)
{
    constexpr uint64_t kBlocks = 64;
    Memory memory("cpu");
    const uint64_t before = stepwell::drivers::count_mappings();
    ASSERT_EQ(memory.open(kBlocks * kBlock, kBlock, 1024 * kBlock), STW_OK) << memory.sentence();
    void *address = nullptr;
    ASSERT_EQ(memory.ops()->reserve_address(memory.get(), 1024 * kBlock, &address), STW_OK);
    // Every second address, blocks in an order in which no two neighbours stay neighbours.
    for (uint32_t i = 0; i < kBlocks; ++i)
        ASSERT_EQ(memory.ops()->map(memory.get(), i * 37 % kBlocks,
                                    static_cast<uint8_t *>(address) + (2 * i + 1) * kBlock),
                  STW_OK);
    EXPECT_LE(stepwell::drivers::count_mappings(), before + 3 * kBlocks + 1);
    for (uint32_t i = 0; i < kBlocks; ++i) ASSERT_EQ(memory.ops()->home(memory.get(), i), STW_OK);
    EXPECT_LE(stepwell::drivers::count_mappings(), before + kBlocks + 4);  // addresses joined again
}

TEST(CpuMemory, ABlockOfAnOddSizeIsToldWhatItShouldBe)
{
    for (const MemoryCase &one : memory_cases()) {
        Memory memory(one);
        EXPECT_EQ(memory.open(3 * kBlock, 3 * kBlock, 0), STW_ERROR_INVALID);
        EXPECT_NE(memory.sentence().find("power of two"), std::string::npos) << one;
    }
}

// Huge pages need it, and O_DIRECT on any disk is served by it.
TEST(CpuMemory, EveryArenaBeginsAtAHugePage)
{
    for (const MemoryCase &one : memory_cases()) {
        Memory memory(one);
        ASSERT_EQ(memory.open(4 * kMiB, kBlock, 0), STW_OK) << memory.sentence();
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.info().base) % (2 * kMiB), 0u) << one;
    }
}

uint64_t resident_bytes(const Memory &memory)
{
    std::vector<unsigned char> pages(memory.info().bytes / 4096);
    if (mincore(memory.info().base, memory.info().bytes, pages.data()) != 0) return UINT64_MAX;
    return 4096 * static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(),
                                                      [](auto page) { return (page & 1) != 0; }));
}

TEST(CpuMemory, PagesComeAsTheyAreUsedUnlessTheProgramOrALockWantsThem)
{
    const auto resident = [](const MemoryCase &one) {
        Memory memory(one);
        EXPECT_EQ(memory.open(4 * kMiB, kBlock, 0), STW_OK) << memory.sentence();
        if (one.ops == stepwell::drivers::memory_driver("host") && memory.info().locked == 0)
            return resident_bytes(memory) + 4 * kMiB;
        return resident_bytes(memory);
    };
    const auto driver = [](const char *name) { return stepwell::drivers::memory_driver(name); };
    EXPECT_EQ(resident({"", driver("cpu")}), 0u);
    EXPECT_EQ(resident({"", driver("cpu"), "populate=0"}), 0u);
    EXPECT_EQ(resident({"", driver("cpu"), "populate=1"}), 4 * kMiB);
    EXPECT_EQ(resident({"", driver("cpu-discrete")}), 4 * kMiB);
    EXPECT_EQ(resident({"", driver("host")}), 4 * kMiB);
    Memory memory(MemoryCase{"", driver("cpu"), "populate=2"});
    EXPECT_EQ(memory.open(4 * kMiB, kBlock, 0), STW_ERROR_INVALID);
    EXPECT_NE(memory.sentence().find("populate=0|1"), std::string::npos) << memory.sentence();
}

// MemAvailable and the cgroup take what is reserved and not used for free.
TEST(CpuMemory, WhatIsReservedAndNotUsedIsNotPromisedTwice)
{
    constexpr uint32_t kLarge = 2 * kMiB;
    const auto room = stepwell::drivers::memory_room().bytes;
    const uint64_t most = room / 4 * 3 / kLarge * kLarge;
    Memory first("cpu");
    ASSERT_EQ(first.open(most, kLarge, 4 * kLarge), STW_OK) << first.sentence();
    Memory second("cpu");
    EXPECT_EQ(second.open(most, kLarge, 0), STW_ERROR_MEMORY);
    EXPECT_NE(second.sentence().find("reserved and not used yet"), std::string::npos)
        << second.sentence();
    EXPECT_LT(second.error().free_bytes, most);
    // What is used is no longer owed, wherever it lies; nor is what was given back.
    const uint64_t owed = stepwell::drivers::owed_bytes();
    EXPECT_EQ(owed, most);
    void *address = nullptr;
    ASSERT_EQ(first.ops()->reserve_address(first.get(), kLarge, &address), STW_OK);
    ASSERT_EQ(first.ops()->map(first.get(), 1, address), STW_OK);
    fill_pattern(static_cast<uint8_t *>(address), kLarge, 1);
    fill_pattern(first.block(0), kLarge, 2);
    EXPECT_EQ(stepwell::drivers::owed_bytes(), owed - 2 * kLarge);
    ASSERT_EQ(first.ops()->give_back(first.get(), 2, 3), STW_OK);
    EXPECT_EQ(stepwell::drivers::owed_bytes(), owed - 5 * kLarge);
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    ASSERT_EQ(first.ops()->take_back(first.get(), 2, 1, &error), STW_OK);
    EXPECT_EQ(stepwell::drivers::owed_bytes(), owed - 4 * kLarge);
    first.close();
    EXPECT_EQ(stepwell::drivers::owed_bytes(), 0u);
    EXPECT_EQ(second.open(most, kLarge, 0), STW_OK) << second.sentence();
}

TEST(CpuMemory, DiscreteIsReachedByCopyOnly)
{
    const stw_memory_ops *ops = stepwell::drivers::memory_driver("cpu-discrete");
    ASSERT_NE(ops, nullptr);
    EXPECT_EQ(ops->capabilities & ~uint64_t{STW_MEMORY_CAN_SHRINK}, 0u);
    EXPECT_EQ(ops->map, nullptr);
}

// ----------------------------------------------------------------------------- memory limits --

class FakeMachine {
public:
    void file(const std::string &path, const std::string &text)
    {
        const std::filesystem::path whole = directory_.path() + path;
        std::filesystem::create_directories(whole.parent_path());
        std::ofstream(whole) << text;
    }
    stepwell::drivers::MemoryRoom room() const { return stepwell::drivers::memory_room(root()); }
    std::string root() const { return directory_.path(); }

private:
    Directory directory_;
};

TEST(MemoryRoom, WithoutACgroupItIsMemAvailable)
{
    FakeMachine machine;
    machine.file("/proc/meminfo", "MemTotal:  4096 kB\nMemAvailable:    2048 kB\n");
    EXPECT_EQ(machine.room().bytes, 2 * kMiB);
    EXPECT_EQ(machine.room().cgroup, "");
}

TEST(MemoryRoom, TheTightestAncestorOfVersion2Binds)
{
    FakeMachine machine;
    machine.file("/proc/meminfo", "MemAvailable: 9000000 kB\n");
    machine.file("/proc/self/cgroup", "0::/job/step\n");
    machine.file("/proc/self/mountinfo",
                 "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    machine.file("/sys/fs/cgroup/job/step/memory.max", "max\n");
    machine.file("/sys/fs/cgroup/job/step/memory.current", "1000\n");
    machine.file("/sys/fs/cgroup/job/memory.max", "1000000\n");
    machine.file("/sys/fs/cgroup/job/memory.current", "700000\n");
    machine.file("/sys/fs/cgroup/job/memory.stat", "anon 400000\ninactive_file 200000\n");
    EXPECT_EQ(machine.room().bytes, 500000u);
    EXPECT_NE(machine.room().cgroup.find("/job"), std::string::npos);
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    EXPECT_EQ(stepwell::drivers::check_memory_room(500001, "host", machine.room(), &error),
              STW_ERROR_MEMORY);
    EXPECT_EQ(error.needed_bytes, 500001u);
    EXPECT_EQ(error.free_bytes, 500000u);
    EXPECT_NE(std::string(error.sentence).find("1000000 bytes"), std::string::npos);
    EXPECT_EQ(stepwell::drivers::check_memory_room(500000, "host", machine.room(), &error), STW_OK);
}

TEST(MemoryRoom, Version1InAContainerIsFoundThroughItsMount)
{
    FakeMachine machine;
    machine.file("/proc/meminfo", "MemAvailable: 9000000 kB\n");
    machine.file("/proc/self/cgroup", "5:cpu:/docker/x\n4:memory:/docker/x\n0::/\n");
    machine.file("/proc/self/mountinfo",
                 "31 24 0:27 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
                 "32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    machine.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000000\n");
    machine.file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "6000000\n");
    EXPECT_EQ(machine.room().bytes, 0u);
    machine.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    EXPECT_EQ(machine.room().bytes, uint64_t{9000000} * 1024);
}

TEST(ProcessorRoom, TheTightestQuotaBinds)
{
    FakeMachine machine;
    const auto room = [&] { return stepwell::drivers::processor_room(machine.root()); };
    machine.file("/proc/self/cgroup", "0::/job/step\n");
    machine.file("/proc/self/mountinfo",
                 "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    EXPECT_EQ(room().cores, 0);
    machine.file("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    EXPECT_EQ(room().cores, 0);
    machine.file("/sys/fs/cgroup/job/cpu.max", "250000 100000\n");
    EXPECT_EQ(room().cores, 2.5);
    machine.file("/sys/fs/cgroup/job/step/cpu.max", "300000 50000\n");
    EXPECT_EQ(room().cores, 2.5);
    EXPECT_NE(room().cgroup.find("/job"), std::string::npos);
}

TEST(ProcessorRoom, AQuotaOfVersion1IsFoundThroughItsMount)
{
    FakeMachine machine;
    const auto room = [&] { return stepwell::drivers::processor_room(machine.root()); };
    machine.file("/proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n");
    machine.file("/proc/self/mountinfo",
                 "31 24 0:27 /docker/x /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n");
    machine.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    machine.file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(room().cores, 0);
    machine.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
    EXPECT_EQ(room().cores, 1.5);
}

TEST(AddressRoom, ALimitIsToldAsASum)
{
    FakeMachine machine;
    machine.file("/proc/self/statm", "262144 100 50 1 0 200 0\n");
    machine.file("/proc/self/limits",
                 "Limit                     Soft Limit           Hard Limit           Units\n"
                 "Max address space         unlimited            unlimited            bytes\n");
    EXPECT_EQ(stepwell::drivers::address_text(stepwell::drivers::address_room(machine.root())), "");
    machine.file("/proc/self/limits",
                 "Max address space         8589934592           unlimited            bytes\n");
    const auto room = stepwell::drivers::address_room(machine.root());
    EXPECT_EQ(room.left_bytes(), uint64_t{7} << 30);
    EXPECT_EQ(stepwell::drivers::address_text(room),
              " (ulimit -v is 8.0 GiB (8589934592 bytes) = 1.0 GiB (1073741824 bytes) in use + "
              "7.0 GiB (7516192768 bytes) left)");
}

// "/jobs" does not lie in "/job".
TEST(MemoryRoom, AGroupBesideTheMountsRootIsNotInside)
{
    FakeMachine machine;
    machine.file("/proc/meminfo", "MemAvailable: 9000000 kB\n");
    machine.file("/proc/self/cgroup", "0::/jobs\n");
    machine.file("/proc/self/mountinfo",
                 "30 24 0:26 /job /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    machine.file("/sys/fs/cgroups/memory.max", "1000\n");
    machine.file("/sys/fs/cgroups/memory.current", "0\n");
    EXPECT_EQ(machine.room().bytes, uint64_t{9000000} * 1024);
}

}  // namespace
}  // namespace conformance
