// SPDX-License-Identifier: Apache-2.0
// The host tier on a machine of several nodes, which hwloc is told that this one is.
#include "tests/conformance/support.h"

#include <cstring>
#include <filesystem>

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

namespace conformance {
namespace {

constexpr int kPreferred = 1;      // MPOL_PREFERRED
constexpr int kPreferredMany = 5;  // MPOL_PREFERRED_MANY

struct Binding {
    int32_t numa_node;  // as the driver says
    bool refused;
    int mode;  // as the kernel says of the first page
    unsigned long nodes;
};

bool run_on(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

// A topology that claims a node for each processor, told to be this machine's: the real calls are
// made.
bool open_bound(Binding *binding_out)
{
    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    Memory memory("host");
    if (memory.open(4 * kMiB, 64 << 10, 0) != STW_OK) return false;
    binding_out->numa_node = memory.info().numa_node;
    binding_out->refused =
        std::strstr(memory.info().remark, "Binding to a NUMA node was refused.") != nullptr;
    constexpr unsigned long kFlagAddress = 2;  // MPOL_F_ADDR
    return syscall(SYS_get_mempolicy, &binding_out->mode, &binding_out->nodes,
                   8 * sizeof binding_out->nodes, memory.info().base, kFlagAddress) == 0;
}

// Whether mbind may be called at all: containers forbid it.
bool can_bind()
{
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const unsigned long first = 1;
    const long answer = syscall(SYS_mbind, page, 4096, kPreferred, &first, 8 * sizeof first, 0);
    munmap(page, 4096);
    return answer == 0;
}

TEST(Numa, TheHostTierPrefersTheNodeOfTheThreadThatOpensIt)
{
    if (!can_bind()) GTEST_SKIP() << "mbind is forbidden here";
    const int status = in_child([] {
        Binding binding{};
        if (!run_on(0)) return 77;
        if (!open_bound(&binding)) return 4;
        if (binding.numa_node != 0 || binding.refused) return 1;
        if (binding.mode != kPreferred && binding.mode != kPreferredMany) return 2;
        return binding.nodes == 1 ? 0 : 3;
    });
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this process may not run on processor 0";
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Numa, ANodeThatCannotBeBoundToIsARemarkAndNoMore)
{
    if (std::filesystem::exists("/sys/devices/system/node/node1"))
        GTEST_SKIP() << "this machine has a second node";
    const int status = in_child([] {
        Binding binding{};
        if (!run_on(1)) return 77;
        if (!open_bound(&binding)) return 4;
        constexpr int kDefault = 0;  // MPOL_DEFAULT
        if (binding.numa_node != -1 || !binding.refused) return 1;
        return binding.mode == kDefault ? 0 : 2;
    });
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this process may not run on processor 1";
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace conformance
