// SPDX-License-Identifier: Apache-2.0
// What the kernel says of this machine and of the limits of this process. Everything is read below
// `root` ("" for this machine), so that a test can show another one.
#pragma once

#include "cgroup.h"
#include "text.h"

#include <cstdint>
#include <string>

namespace stepwell::cli {

struct Limit {
    uint64_t soft = kNoLimit;
    uint64_t hard = kNoLimit;
};

struct Limits {  // of this process
    Limit locked_bytes;
    Limit open_files;
    Limit file_bytes;
    Limit address_bytes;
    Limit data_bytes;
};

struct Memory {
    uint64_t total_bytes = 0;
    uint64_t available_bytes = 0;
    uint64_t swap_bytes = 0;
    uint64_t swap_free_bytes = 0;
    uint64_t commit_limit_bytes = 0;
    uint64_t committed_bytes = 0;
    uint64_t huge_page_bytes = 0;  // of pages that were set aside, which the library does not use
    uint64_t huge_pages = 0;
    uint64_t huge_pages_free = 0;
};

struct HugePages {           // transparent ones
    std::string mode;        // "always", "madvise", "never"; "" where the kernel has none
    std::string mode_2m;     // of the size that is used: "inherit" or a mode; "" in older kernels
    std::string defrag;      // what a page fault does to get one
    bool of_process = true;  // not switched off by prctl
};

struct System {
    std::string kernel;
    std::string processor;
    uint64_t cores = 0;          // that this process may run on
    uint64_t cores_machine = 0;  // that are on line
    uint64_t numa_nodes = 1;
    Memory memory;
    HugePages huge_pages;
    Limits limits;
    Cgroups cgroups;
    bool may_lock = false;  // CAP_IPC_LOCK: the limit on locked memory does not bind
    uint64_t open_files = 0;
    uint64_t mappings = 0;
    uint64_t mappings_max = 0;
    uint64_t aio_used = 0;
    uint64_t aio_max = 0;  // 0: the kernel has no aio
    uint64_t overcommit = 0;

    // What a process can still take: of the machine and of the tightest cgroup.
    uint64_t room_bytes() const;
};

System read_system(const std::string &root);

// The parts, of one file's text each.
Memory parse_meminfo(const std::string &text);
Limits parse_limits(const std::string &text);

}  // namespace stepwell::cli
