// SPDX-License-Identifier: Apache-2.0
// Verdicts and remedies.
#include "checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGiB = 1 << 30;

// Nothing to complain about.
System good_system()
{
    System system;
    system.cores = system.cores_machine = 8;
    system.memory.total_bytes = 16 * kGiB;
    system.memory.available_bytes = 12 * kGiB;
    system.memory.huge_page_bytes = 2 << 20;
    system.huge_pages = {"madvise", "inherit", "madvise", true};
    system.open_files = 5;
    system.limits.open_files = {1024, 4096};
    system.mappings = 100;
    system.mappings_max = 65530;
    system.aio_max = 65536;
    return system;
}

Check limit(const System &system, const std::string &name, uint64_t directories = 1)
{
    for (Check &check : check_limits(system, directories))
        if (check.name == name) return std::move(check);
    ADD_FAILURE() << "no limit " << name;
    return {};
}

TEST(Checks, AMachineWithoutLimitsHasNoWarningAndNoRemedy)
{
    for (const Check &check : check_limits(good_system(), 8)) {
        EXPECT_FALSE(check.warn) << check.name << ": " << check.value;
        EXPECT_EQ(check.remedy, "") << check.name;
        EXPECT_FALSE(check.as_root) << check.name;
        EXPECT_NE(check.value, "") << check.name;
        EXPECT_NE(check.needed, "") << check.name;
        EXPECT_TRUE(check.facts.is_object()) << check.name;
    }
}

TEST(Checks, AioSlotsAreCountedForEveryDirectory)
{
    System system = good_system();
    system.aio_used = system.aio_max - 2 * 32;
    EXPECT_FALSE(limit(system, "aio_slots", 2).warn);
    const Check check = limit(system, "aio_slots", 3);
    EXPECT_TRUE(check.warn);
    EXPECT_TRUE(check.as_root);
    EXPECT_EQ(check.remedy, "sysctl -w fs.aio-max-nr=1048576");
    system.aio_used = system.aio_max = 4000000;
    EXPECT_EQ(limit(system, "aio_slots", 1).remedy, "sysctl -w fs.aio-max-nr=8000064");
    system.aio_used = system.aio_max = 0;
    EXPECT_THAT(limit(system, "aio_slots", 1).remedy, HasSubstr("CONFIG_AIO"));
}

TEST(Checks, LockedMemoryBelowTheMemoryIsLiftedInTheShellOrByRoot)
{
    System system = good_system();
    system.limits.locked_bytes = {8 << 20, kNoLimit};
    Check check = limit(system, "locked_memory");
    EXPECT_TRUE(check.warn);
    EXPECT_FALSE(check.as_root);
    EXPECT_EQ(check.remedy, "ulimit -l unlimited");
    EXPECT_EQ(check.facts["soft_bytes"], 8 << 20);
    EXPECT_TRUE(check.facts["hard_bytes"].is_null());

    system.limits.locked_bytes.hard = 8 << 20;
    check = limit(system, "locked_memory");
    EXPECT_TRUE(check.as_root);
    EXPECT_EQ(check.remedy, "prlimit --pid $$ --memlock=unlimited:unlimited");

    system.may_lock = true;
    EXPECT_FALSE(limit(system, "locked_memory").warn);
    system.may_lock = false;
    system.limits.locked_bytes = {12 * kGiB, 12 * kGiB};
    EXPECT_FALSE(limit(system, "locked_memory").warn);
}

TEST(Checks, HugePagesNameTheFileThatForbidsThem)
{
    System system = good_system();
    system.huge_pages.mode = "never";
    EXPECT_EQ(limit(system, "transparent_huge_pages").remedy,
              "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    system.huge_pages = {"always", "never", "madvise", true};
    EXPECT_EQ(limit(system, "transparent_huge_pages").remedy,
              "echo inherit > /sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled");
    system.huge_pages = {"madvise", "", "madvise", false};
    EXPECT_TRUE(limit(system, "transparent_huge_pages").warn);
    system.huge_pages = {"", "", "", true};
    EXPECT_THAT(limit(system, "transparent_huge_pages").remedy, HasSubstr("CONFIG_"));
}

TEST(Checks, PagesSetAsideAndUnusedAreAWarning)
{
    System system = good_system();
    system.memory.huge_pages = system.memory.huge_pages_free = 1000;
    EXPECT_EQ(limit(system, "reserved_huge_pages").remedy, "sysctl -w vm.nr_hugepages=0");
    system.memory.huge_pages_free = 10;
    EXPECT_FALSE(limit(system, "reserved_huge_pages").warn);
}

TEST(Checks, MappingsAreEnoughForACpuDeviceOfAllMemoryWhenLifted)
{
    System system = good_system();
    system.memory.available_bytes = 100 * kGiB;
    Check check = limit(system, "mappings");
    EXPECT_TRUE(check.warn);
    EXPECT_EQ(check.facts["cpu_device_bytes_max"], uint64_t{32765 - 101} / 3 * (2 << 20));
    const std::string command = "sysctl -w vm.max_map_count=";
    ASSERT_TRUE(check.remedy.starts_with(command));
    system.mappings_max = std::stoull(check.remedy.substr(command.size()));
    EXPECT_FALSE(limit(system, "mappings").warn);
}

TEST(Checks, OpenFilesLeaveRoomForTheRuntime)
{
    System system = good_system();
    system.limits.open_files = {64, 4096};
    EXPECT_EQ(limit(system, "open_files").remedy, "ulimit -n 4096");
    system.limits.open_files = {64, 64};
    EXPECT_EQ(limit(system, "open_files").remedy, "prlimit --pid $$ --nofile=4096:4096");
}

TEST(Checks, FileSizeAndAddressesAreLiftedByTheirOwnLetters)
{
    System system = good_system();
    system.limits.file_bytes.soft = kGiB;
    EXPECT_EQ(limit(system, "file_size").remedy, "ulimit -f unlimited");
    system.limits.data_bytes.soft = kGiB;
    EXPECT_EQ(limit(system, "addresses").remedy, "ulimit -d unlimited");
    system.limits.address_bytes = {kGiB, kGiB};
    EXPECT_EQ(limit(system, "addresses").remedy, "prlimit --pid $$ --as=unlimited:unlimited");
}

TEST(Checks, ACgroupIsAWarningWhereItBinds)
{
    System system = good_system();
    system.cgroups.memory = {2, "/cg/a b", "/cg/a b/memory.max", 14 * kGiB, kGiB};
    EXPECT_FALSE(limit(system, "cgroup_memory").warn);
    system.cgroups.memory.limit_bytes = 4 * kGiB;
    Check check = limit(system, "cgroup_memory");
    EXPECT_TRUE(check.warn);
    EXPECT_EQ(check.remedy, "echo max > '/cg/a b/memory.max'");
    EXPECT_EQ(check.value, "4 GiB, 1 GiB in use (version 2, /cg/a b)");
    system.cgroups.memory.version = 1;
    EXPECT_THAT(limit(system, "cgroup_memory").remedy, HasSubstr("echo -1 > "));

    system.cgroups.processor = {2, "/cg", "/cg/cpu.max", 1.5};
    check = limit(system, "cgroup_processor");
    EXPECT_EQ(check.remedy, "echo max > /cg/cpu.max");
    EXPECT_EQ(check.facts["limit_cores"], 1.5);
    system.cgroups.processor.cores = 8;
    EXPECT_FALSE(limit(system, "cgroup_processor").warn);
}

TEST(Checks, StrictOvercommitAndSwapAreWarnings)
{
    System system = good_system();
    system.overcommit = 2;
    EXPECT_EQ(limit(system, "overcommit").remedy, "sysctl -w vm.overcommit_memory=0");
    system.memory.swap_bytes = kGiB;
    system.memory.swap_free_bytes = kGiB;
    EXPECT_EQ(limit(system, "swap").remedy, "swapoff -a");
    EXPECT_EQ(limit(system, "swap").value, "1 GiB, 0 bytes in use");
}

// A directory on ext4 that takes everything.
Directory good_directory()
{
    Directory directory;
    directory.path = directory.real_path = "/data";
    directory.file_system = "ext4";
    directory.mount.source = "/dev/nvme0n1";
    directory.mount.point = "/data";
    directory.total_bytes = directory.free_bytes = directory.available_bytes = 100 * kGiB;
    directory.tried = directory.unnamed_files = directory.direct = true;
    directory.memory_alignment_bytes = directory.offset_alignment_bytes = 512;
    directory.device.emplace();
    directory.device->name = "nvme0n1";
    directory.device->scheduler = "none";
    return directory;
}

Check of_directory(const Directory &directory, const std::string &name,
                   const Chosen &chosen = {"aio", "", "ext4", 32})
{
    for (Check &check : check_directory(directory, chosen))
        if (check.name == name) return std::move(check);
    ADD_FAILURE() << "no check " << name;
    return {};
}

TEST(DirectoryChecks, AGoodDirectoryHasNoWarning)
{
    for (const Check &check : check_directory(good_directory(), {"aio", "", "ext4", 32})) {
        EXPECT_FALSE(check.warn) << check.name << ": " << check.value;
        EXPECT_EQ(check.remedy, "") << check.name;
    }
}

TEST(DirectoryChecks, AFileSystemInMemoryIsNamedAsSuch)
{
    Directory directory = good_directory();
    classify_file_system("tmpfs", &directory);
    const Check check = of_directory(directory, "file_system");
    EXPECT_TRUE(check.warn);
    EXPECT_THAT(check.value, HasSubstr("tmpfs"));
    EXPECT_THAT(check.value, HasSubstr("memory"));
    EXPECT_EQ(check.remedy, "give a directory on ext4 or xfs");
}

TEST(DirectoryChecks, ARefusalOfDirectIoIsAWarning)
{
    Directory directory = good_directory();
    directory.direct = false;
    const Check check = of_directory(directory, "direct_io");
    EXPECT_TRUE(check.warn);
    EXPECT_EQ(check.value, "refused");
}

TEST(DirectoryChecks, AnAlignmentTheKernelDoesNotTellIsNull)
{
    Directory directory = good_directory();
    directory.offset_alignment_bytes = directory.memory_alignment_bytes = 0;
    const Check check = of_directory(directory, "direct_io");
    EXPECT_TRUE(check.facts["offset_alignment_bytes"].is_null());
    EXPECT_EQ(check.value, "taken");
}

TEST(DirectoryChecks, ARotatingDiskIsAWarningAndAVirtualOneIsNot)
{
    Directory directory = good_directory();
    directory.device->rotating = true;
    EXPECT_TRUE(of_directory(directory, "device").warn);
    directory.device->is_virtual = true;
    EXPECT_FALSE(of_directory(directory, "device").warn);
    directory.device->scheduler = "bfq";
    EXPECT_EQ(of_directory(directory, "device").remedy,
              "echo none > /sys/block/nvme0n1/queue/scheduler");
    directory.device.reset();
    EXPECT_FALSE(of_directory(directory, "device").warn);
}

TEST(DirectoryChecks, ADriverThatIsNotAioComesWithItsReason)
{
    const Chosen posix = {"posix", "aio cannot work here.", "ext4", 32};
    const Check check = of_directory(good_directory(), "driver", posix);
    EXPECT_TRUE(check.warn);
    EXPECT_THAT(check.value, HasSubstr("aio cannot work here."));
    const Check none = of_directory(good_directory(), "driver", {"", "No.", "", 0});
    EXPECT_TRUE(none.facts["chosen"].is_null());
    EXPECT_EQ(none.value, "none works: No.");
}

TEST(DirectoryChecks, RoomThatIsNotCountedIsNoWarning)
{
    Directory directory = good_directory();
    directory.available_bytes = 1 << 20;
    EXPECT_TRUE(of_directory(directory, "space").warn);
    directory.total_bytes = directory.available_bytes = 0;
    EXPECT_FALSE(of_directory(directory, "space").warn);
}

TEST(DirectoryChecks, ALinkNamesWhatItLeadsTo)
{
    Directory directory = good_directory();
    directory.is_link = true;
    EXPECT_EQ(of_directory(directory, "path").remedy, "give /data");
}

}  // namespace
}  // namespace stepwell::cli
