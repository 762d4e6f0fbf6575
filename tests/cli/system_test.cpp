// SPDX-License-Identifier: Apache-2.0
// What the files of a machine say.
#include "machine.h"
#include "system.h"

#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(System, AMachineIsReadFromItsFiles)
{
    const Machine machine;
    machine.file("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\n");
    machine.file("/proc/sys/kernel/osrelease", "6.1.0\n");
    machine.file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n"
                                      "Cpus_allowed_list:\t0-1,4\nTHP_enabled:\t0\n");
    machine.file("/sys/devices/system/cpu/online", "0-7\n");
    machine.file("/sys/devices/system/node/online", "0-1\n");
    machine.file("/proc/meminfo", "MemTotal:       4096 kB\nMemAvailable:   2048 kB\n"
                                  "SwapTotal:      1024 kB\nSwapFree:        512 kB\n"
                                  "HugePages_Total:       3\nHugePages_Free:        2\n"
                                  "Hugepagesize:       2048 kB\n");
    machine.file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    machine.file("/proc/self/maps", "a\nb\nc\n");
    machine.file("/proc/self/fd/0", "");
    machine.file("/proc/sys/vm/max_map_count", "65530\n");
    machine.file("/proc/sys/fs/aio-nr", "65500\n");
    machine.file("/proc/sys/fs/aio-max-nr", "65536\n");
    machine.file("/proc/sys/vm/overcommit_memory", "2\n");
    const System system = read_system(machine.root());
    EXPECT_EQ(system.processor, "Some CPU @ 2GHz");
    EXPECT_EQ(system.kernel, "6.1.0");
    EXPECT_EQ(system.cores, 3u);
    EXPECT_EQ(system.cores_machine, 8u);
    EXPECT_EQ(system.numa_nodes, 2u);
    EXPECT_EQ(system.memory.total_bytes, 4 * kMiB);
    EXPECT_EQ(system.memory.swap_bytes, kMiB);
    EXPECT_EQ(system.memory.huge_pages, 3u);
    EXPECT_EQ(system.memory.huge_pages_free, 2u);
    EXPECT_EQ(system.memory.huge_page_bytes, 2 * kMiB);
    EXPECT_EQ(system.huge_pages.mode, "never");
    EXPECT_EQ(system.huge_pages.mode_2m, "");
    EXPECT_FALSE(system.huge_pages.of_process);
    EXPECT_TRUE(system.may_lock);
    EXPECT_EQ(system.open_files, 1u);
    EXPECT_EQ(system.mappings, 3u);
    EXPECT_EQ(system.mappings_max, 65530u);
    EXPECT_EQ(system.aio_used, 65500u);
    EXPECT_EQ(system.aio_max, 65536u);
    EXPECT_EQ(system.overcommit, 2u);
    EXPECT_EQ(system.room_bytes(), 2 * kMiB);
}

TEST(System, AMachineWithoutFilesIsNoCrash)
{
    const Machine machine;
    const System system = read_system(machine.root());
    EXPECT_EQ(system.numa_nodes, 1u);
    EXPECT_EQ(system.huge_pages.mode, "");
    EXPECT_EQ(system.aio_max, 0u);
    EXPECT_FALSE(system.may_lock);
    EXPECT_EQ(system.cgroups.memory.version, 0u);
}

TEST(System, LimitsAreReadWithTheirHardOnes)
{
    const Limits limits = parse_limits(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max file size             unlimited            unlimited            bytes     \n"
        "Max locked memory         8388608              unlimited            bytes     \n"
        "Max open files            1024                 524288               files     \n");
    EXPECT_EQ(limits.file_bytes.soft, kNoLimit);
    EXPECT_EQ(limits.locked_bytes.soft, 8 * kMiB);
    EXPECT_EQ(limits.locked_bytes.hard, kNoLimit);
    EXPECT_EQ(limits.open_files.soft, 1024u);
    EXPECT_EQ(limits.open_files.hard, 524288u);
    EXPECT_EQ(limits.address_bytes.soft, kNoLimit);
}

TEST(Cgroup, TheTightestGroupAboveBindsInVersion2)
{
    const Machine machine;
    machine.file("/proc/meminfo", "MemAvailable: 9000000 kB\n");
    machine.file("/proc/self/cgroup", "0::/job/step\n");
    machine.file("/proc/self/mountinfo",
                 "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    machine.file("/sys/fs/cgroup/job/step/memory.max", "max\n");
    machine.file("/sys/fs/cgroup/job/step/memory.current", "1000\n");
    machine.file("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    machine.file("/sys/fs/cgroup/job/memory.max", "1000000\n");
    machine.file("/sys/fs/cgroup/job/memory.current", "700000\n");
    machine.file("/sys/fs/cgroup/job/memory.stat", "anon 400000\ninactive_file 200000\n");
    machine.file("/sys/fs/cgroup/job/cpu.max", "150000 100000\n");
    const System system = read_system(machine.root());
    const CgroupMemory &memory = system.cgroups.memory;
    EXPECT_EQ(memory.version, 2u);
    EXPECT_EQ(memory.directory, "/sys/fs/cgroup/job");
    EXPECT_EQ(memory.limit_file, "/sys/fs/cgroup/job/memory.max");
    EXPECT_EQ(memory.limit_bytes, 1000000u);
    EXPECT_EQ(memory.used_bytes, 500000u);
    EXPECT_EQ(system.room_bytes(), 500000u);
    EXPECT_EQ(system.cgroups.processor.cores, 1.5);
    EXPECT_EQ(system.cgroups.processor.limit_file, "/sys/fs/cgroup/job/cpu.max");
}

TEST(Cgroup, TheMarkAboveWhichAProcessIsHeldBackCounts)
{
    const Machine machine;
    machine.file("/proc/self/cgroup", "0::/\n");
    machine.file("/proc/self/mountinfo", "30 24 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
    machine.file("/cg/memory.max", "2000\n");
    machine.file("/cg/memory.high", "1000\n");
    machine.file("/cg/memory.current", "10\n");
    const CgroupMemory memory = read_cgroups(machine.root()).memory;
    EXPECT_EQ(memory.limit_bytes, 1000u);
    EXPECT_EQ(memory.limit_file, "/cg/memory.high");
}

TEST(Cgroup, Version1InAContainerIsFoundThroughItsMount)
{
    const Machine machine;
    machine.file("/proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n");
    machine.file("/proc/self/mountinfo",
                 "31 24 0:27 /docker/x /cg/memory ro - cgroup cgroup rw,memory\n"
                 "32 24 0:28 / /cg/unified rw - cgroup2 cgroup2 rw\n"
                 "33 24 0:29 /docker/x /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
    machine.file("/cg/memory/memory.limit_in_bytes", "5000000\n");
    machine.file("/cg/memory/memory.usage_in_bytes", "6000000\n");
    machine.file("/cg/cpu/cpu.cfs_quota_us", "50000\n");
    machine.file("/cg/cpu/cpu.cfs_period_us", "100000\n");
    Cgroups cgroups = read_cgroups(machine.root());
    EXPECT_EQ(cgroups.memory.version, 1u);
    EXPECT_EQ(cgroups.memory.limit_bytes, 5000000u);
    EXPECT_EQ(cgroups.memory.limit_file, "/cg/memory/memory.limit_in_bytes");
    EXPECT_EQ(cgroups.processor.cores, 0.5);

    machine.file("/cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
    machine.file("/cg/cpu/cpu.cfs_quota_us", "-1\n");
    cgroups = read_cgroups(machine.root());
    EXPECT_EQ(cgroups.memory.limit_bytes, kNoLimit);
    EXPECT_EQ(cgroups.processor.cores, 0);
}

TEST(Cgroup, AMountOfAnotherGroupIsNotTakenForAPartOfTheName)
{
    const Machine machine;
    machine.file("/proc/self/cgroup", "0::/jobs\n");
    machine.file("/proc/self/mountinfo", "30 24 0:26 /job /cg rw - cgroup2 cgroup2 rw\n");
    machine.file("/cg/s/memory.max", "7\n");
    machine.file("/cg/s/memory.current", "1\n");
    machine.file("/cg/memory.max", "max\n");
    machine.file("/cg/memory.current", "1\n");
    EXPECT_EQ(read_cgroups(machine.root()).memory.limit_bytes, kNoLimit);
}

}  // namespace
}  // namespace stepwell::cli
