// SPDX-License-Identifier: Apache-2.0
// Limits of the kernel: numbers under /proc and /sys, and how much memory this process may still
// use. Read at open only.
#pragma once

#include <stepwell/driver.h>

#include <cstdint>
#include <optional>
#include <string>

namespace stepwell::drivers {

// The first number in a file; nothing if the file is missing or says "max".
std::optional<uint64_t> read_number(const std::string &path);
// The whole of a small file, "" if it cannot be read.
std::string read_text(const std::string &path);

struct MemoryRoom {
    uint64_t bytes = UINT64_MAX;            // the least of what follows
    uint64_t available_bytes = UINT64_MAX;  // MemAvailable
    uint64_t cgroup_limit_bytes = UINT64_MAX;
    uint64_t cgroup_used_bytes = 0;
    std::string cgroup;       // the directory of the tightest cgroup, "" if none has a limit
    uint64_t owed_bytes = 0;  // of `bytes`, what open tiers of this process have not touched yet
};

// `root` is put before /proc and /sys, so that a test can provide another machine.
MemoryRoom memory_room(const std::string &root = "");

// Bytes that this process may still map under RLIMIT_AS (ulimit -v).
struct AddressRoom {
    uint64_t limit_bytes = UINT64_MAX;  // none
    uint64_t used_bytes = 0;

    [[nodiscard]] uint64_t left_bytes() const
    {
        if (limit_bytes == UINT64_MAX) return UINT64_MAX;
        return limit_bytes - (used_bytes < limit_bytes ? used_bytes : limit_bytes);
    }
};
AddressRoom address_room(const std::string &root = "");
// For a sentence: " (ulimit -v is 4.0 GiB = 1.0 GiB in use + 3.0 GiB left)".
std::string address_text(const AddressRoom &room);

// The processors that the cgroups of this process allow: 1.5 for a quota of 150 ms per 100 ms.
struct ProcessorRoom {
    double cores = 0;    // 0: no cgroup has a limit
    std::string cgroup;  // the directory of the tightest one
};
ProcessorRoom processor_room(const std::string &root = "");

// Refuses before anything is touched: over a cgroup limit the kernel kills instead of refusing.
stw_status check_memory_room(uint64_t asked_bytes, const char *driver, const MemoryRoom &room,
                             stw_driver_error *error_out);

// Mappings of this process now.
uint64_t count_mappings();

}  // namespace stepwell::drivers
