// SPDX-License-Identifier: Apache-2.0
// The disk behind a mount, as /sys describes it.
#pragma once

#include "mounts.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stepwell::cli {

struct BlockDevice {
    std::string name;       // "nvme0n1"; of a partition its disk
    std::string partition;  // "nvme0n1p2", or ""
    std::string model;      // "" where there is none: disks of virtual machines
    std::string scheduler;  // "" where there is none: mapped devices
    bool rotating = false;
    bool is_virtual = false;  // a guest's disk, which calls itself rotating whatever it is
    uint64_t sector_bytes = 0;
    uint64_t bytes = 0;
    std::vector<std::string> made_of;  // of a mapped device or an array
};

// By the mount's device number, else (btrfs and others have numbers of their own) by its source.
// Nothing for what is no disk: tmpfs, network file systems.
std::optional<BlockDevice> read_block_device(const std::string &root, const Mount &mount);

}  // namespace stepwell::cli
