// SPDX-License-Identifier: Apache-2.0
// Which drivers of the library work here, found out by opening a small runtime with each and by
// reading its report. Nothing is left of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stepwell::cli {

struct Driver {
    std::string name;
    std::string kind;  // "memory", "storage"
    std::string used_for;
    std::optional<bool> works;    // nothing: not tried, the reason says why
    std::string reason;           // why not, in the library's words; else its remark
    std::optional<bool> unified;  // of a device: its memory is the host's
    bool built_in = true;
    // Of a device across a bus: the host's node that is nearest, and what registering takes.
    std::optional<int> numa_node = std::nullopt;
    std::optional<uint64_t> register_ns_per_gib = std::nullopt;
};

// What the library uses in a directory when it is left to choose.
struct Chosen {
    std::string driver;  // "" where none works; the reason is in `remark`
    std::string remark;
    std::string file_system;
    uint64_t queue_depth = 0;
};

struct StorageDrivers {
    Chosen chosen;
    std::vector<Driver> drivers;
};

std::vector<Driver> try_memory_drivers();
// Those of storage as long as no directory was given.
std::vector<Driver> untried_storage_drivers();
// What lies in a directory as libstepwell-<name>.so, an entry for each kind of driver in it, or one
// with the reason why it cannot be used. Storage drivers are loaded and not tried.
std::vector<Driver> find_modules(const std::string &directory);
// Where the library looks.
const std::string &module_directory();
StorageDrivers try_storage_drivers(const std::string &path);

// "drivers" of a report: the entry of kind "storage". Nothing when the text is no report.
std::optional<Chosen> parse_report(const std::string &text);

}  // namespace stepwell::cli
