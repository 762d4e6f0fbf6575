// SPDX-License-Identifier: Apache-2.0
// `stepwell info`: everything that is known, gathered once, and shown as text or as JSON.
#pragma once

#include "checks.h"
#include "drivers.h"
#include "system.h"
#include "topology.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::cli {

struct DirectoryInfo {
    Directory directory;  // with an error there is nothing else
    std::vector<Check> checks;
    std::vector<Driver> drivers;
};

struct Info {
    std::string version;
    uint32_t abi = 0;
    uint64_t page_bytes = 0;
    System system;
    TopologyNode topology;
    std::vector<Driver> drivers;
    std::vector<Check> limits;
    std::vector<DirectoryInfo> directories;

    // Of the directories that no tier can be in, a sentence each.
    std::vector<std::string> errors() const;
    uint64_t warnings() const;
};

// `root`: "" for this machine.
Info gather_info(const std::vector<std::string> &paths, const std::string &root);

constexpr uint32_t kInfoFormat = 1;  // "format"; grows when a key changes its meaning

std::string info_text(const Info &info);
std::string info_json(const Info &info);

}  // namespace stepwell::cli
