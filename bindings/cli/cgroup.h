// SPDX-License-Identifier: Apache-2.0
// What the control groups of this process allow it: memory and processor time, version 1 and 2. A
// limit of any group above binds too; the tightest is the one that counts.
#pragma once

#include "text.h"

#include <cstdint>
#include <string>

namespace stepwell::cli {

struct CgroupMemory {
    uint32_t version = 0;   // 0: no such group
    std::string directory;  // the group whose limit binds; without a limit the process's own
    std::string limit_file;
    uint64_t limit_bytes = kNoLimit;
    uint64_t used_bytes = 0;  // less page cache that nobody used lately: it is given back first
};

struct CgroupProcessor {
    uint32_t version = 0;
    std::string directory;
    std::string limit_file;
    double cores = 0;  // that the quota is worth; 0: no limit
};

struct Cgroups {
    CgroupMemory memory;
    CgroupProcessor processor;
};

// So many threads update in a runtime that this process opens by itself.
uint32_t update_threads(const CgroupProcessor &processor);

// Directories and files in the answer are named without `root`.
Cgroups read_cgroups(const std::string &root);

}  // namespace stepwell::cli
