// SPDX-License-Identifier: Apache-2.0
// Which host and process a rank is, and how another process on the same host is doing. Reads /proc;
// any thread; blocks no longer than such a read. Knows nothing of groups.
#pragma once

#include <array>
#include <cstdint>

namespace stepwell::collective {

// Ranks with the same one share memory by name and see each other's processes: the boot, the
// namespaces of processes and mounts, and the user, whose objects nobody else may open.
struct HostId {
    std::array<uint64_t, 2> boot{};
    uint64_t process_namespace = 0;
    uint64_t mount_namespace = 0;
    uint64_t user = 0;
    uint64_t known = 0;  // 0: /proc does not say, and the rank is alone

    bool operator==(const HostId &) const = default;
    [[nodiscard]] bool same_as(const HostId &other) const { return known && *this == other; }
};
HostId this_host();

// The start time tells a process from a later one that was given its number.
struct ProcessId {
    int64_t pid = 0;
    uint64_t start_ticks = 0;

    bool operator==(const ProcessId &) const = default;
};
ProcessId this_process();

enum class Life : uint8_t {
    kUnknown,  // on another host, or /proc does not say
    kRuns,
    kStopped,  // by a signal or a debugger
    kGone,
};
Life life_of(const ProcessId &process);

// The clock that all processes of a host have in common; the program's own may be another.
uint64_t monotonic_ns();

}  // namespace stepwell::collective
