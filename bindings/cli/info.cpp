// SPDX-License-Identifier: Apache-2.0
#include "info.h"

#include <stepwell/stepwell.h>

#include <algorithm>

#include <unistd.h>

namespace stepwell::cli {

namespace {

// A storage driver works when it does in one directory; the first reason of another is kept.
void merge_storage(const std::vector<Driver> &here, const std::string &path,
                   std::vector<Driver> *all)
{
    for (const Driver &driver : here) {
        const auto same = std::find_if(all->begin(), all->end(), [&](const Driver &other) {
            return other.name == driver.name;
        });
        if (same == all->end()) {
            all->push_back(driver);
            if (!driver.reason.empty()) all->back().reason = printable(path) + ": " + driver.reason;
            continue;
        }
        same->works = *same->works || *driver.works;
        if (same->reason.empty() && !driver.reason.empty())
            same->reason = printable(path) + ": " + driver.reason;
    }
}

}  // namespace

std::vector<std::string> Info::errors() const
{
    std::vector<std::string> sentences;
    for (const DirectoryInfo &entry : directories)
        if (!entry.directory.error.empty()) sentences.push_back(entry.directory.error);
    return sentences;
}

uint64_t Info::warnings() const
{
    const auto count = [](const std::vector<Check> &checks) {
        return static_cast<uint64_t>(
            std::count_if(checks.begin(), checks.end(), [](const Check &c) { return c.warn; }));
    };
    uint64_t warnings = count(limits);
    for (const DirectoryInfo &entry : directories) warnings += count(entry.checks);
    return warnings;
}

Info gather_info(const std::vector<std::string> &paths, const std::string &root)
{
    Info info;
    info.version = stw_version_string();
    info.abi = stw_abi_version();
    info.page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    // Before the library and hwloc have mapped and opened things of their own.
    info.system = read_system(root);
    info.topology = read_topology();
    if (info.system.processor.empty()) info.system.processor = info.topology.name;
    info.drivers = try_memory_drivers();
    info.limits = check_limits(info.system, paths.size());
    const std::vector<Mount> mounts = read_mounts(root);
    std::vector<Driver> storage;
    for (const std::string &path : paths) {
        DirectoryInfo entry;
        entry.directory = look_at_directory(path, mounts, root);
        if (entry.directory.error.empty()) {
            StorageDrivers tried = try_storage_drivers(path);
            entry.checks = check_directory(entry.directory, tried.chosen);
            entry.drivers = std::move(tried.drivers);
            merge_storage(entry.drivers, path, &storage);
        }
        info.directories.push_back(std::move(entry));
    }
    if (storage.empty()) storage = untried_storage_drivers();
    info.drivers.insert(info.drivers.end(), storage.begin(), storage.end());
    const std::vector<Driver> modules = find_modules(module_directory());
    info.drivers.insert(info.drivers.end(), modules.begin(), modules.end());
    return info;
}

}  // namespace stepwell::cli
