// SPDX-License-Identifier: Apache-2.0
// The limits of the machine and of this process.
#include "checks.h"

#include <algorithm>
#include <cstdio>

namespace stepwell::cli {

namespace {

constexpr uint64_t kQueueDepth = 32;  // of a directory, by default
constexpr uint64_t kBlockBytes = 2 << 20;
constexpr uint64_t kOpenFilesNeeded = 64;  // eight directories and the runtime's own
constexpr uint64_t kOpenFilesAdvised = 4096;
constexpr uint64_t kAioAdvised = 1 << 20;

Json limit_json(uint64_t value)
{
    return value == kNoLimit ? Json(nullptr) : Json(value);
}

// A command for one's own shell where the hard limit allows it, else one for root.
void lift_limit(Check *check, const Limit &limit, uint64_t wanted, const char *letter,
                const char *option)
{
    const std::string value = wanted == kNoLimit ? "unlimited" : std::to_string(wanted);
    check->as_root = limit.hard < wanted;
    check->remedy = check->as_root
                        ? std::string("prlimit --pid $$ --") + option + "=" + value + ":" + value
                        : std::string("ulimit -") + letter + " " + value;
}

Check check_aio(const System &system, uint64_t directories)
{
    const uint64_t wanted = kQueueDepth * std::max<uint64_t>(1, directories);
    Check check = {"aio_slots", "aio slots", {}, "", "", false, "", false};
    check.facts = {{"used", system.aio_used}, {"max", system.aio_max}};
    check.value =
        std::to_string(system.aio_used) + " of " + std::to_string(system.aio_max) + " in use";
    check.needed =
        std::to_string(wanted) + " free, " + std::to_string(kQueueDepth) + " for each directory";
    check.warn = system.aio_used + wanted > system.aio_max;
    if (!check.warn) return check;
    check.as_root = system.aio_max > 0;
    check.remedy =
        system.aio_max == 0
            ? "a kernel with asynchronous I/O (CONFIG_AIO); the posix driver is used meanwhile"
            : "sysctl -w fs.aio-max-nr=" +
                  std::to_string(std::max(kAioAdvised, 2 * (system.aio_used + wanted)));
    return check;
}

Check check_locked_memory(const System &system)
{
    const Limit &limit = system.limits.locked_bytes;
    const uint64_t room = system.room_bytes();
    Check check = {"locked_memory", "locked memory", {}, "", "", false, "", false};
    check.facts = {{"soft_bytes", limit_json(limit.soft)},
                   {"hard_bytes", limit_json(limit.hard)},
                   {"may_exceed_it", system.may_lock}};
    check.value = bytes_text(limit.soft);
    if (system.may_lock && limit.soft != kNoLimit)
        check.value += ", which does not bind this user (CAP_IPC_LOCK)";
    check.needed = "the budget of the host tier, here at most " + bytes_text(room);
    check.warn = !system.may_lock && limit.soft < room;
    if (check.warn) lift_limit(&check, limit, kNoLimit, "l", "memlock");
    return check;
}

Check check_huge_pages(const System &system)
{
    const std::string kHugePages = "/sys/kernel/mm/transparent_hugepage";
    const HugePages &pages = system.huge_pages;
    Check check = {"transparent_huge_pages", "huge pages", {}, "", "", true, "", true};
    check.facts = {{"mode", pages.mode},
                   {"mode_2048_kib", pages.mode_2m},
                   {"defrag", pages.defrag},
                   {"allowed_to_this_process", pages.of_process}};
    check.value = pages.mode.empty() ? "none in this kernel" : pages.mode;
    check.needed = "madvise or always";
    if (pages.mode.empty()) {
        check.remedy = "a kernel with CONFIG_TRANSPARENT_HUGEPAGE";
        check.as_root = false;
    } else if (pages.mode == "never") {
        check.remedy = "echo madvise > " + kHugePages + "/enabled";
    } else if (pages.mode_2m == "never") {
        check.value += ", never of 2 MiB";
        check.remedy = "echo inherit > " + kHugePages + "/hugepages-2048kB/enabled";
    } else if (!pages.of_process) {
        check.value += ", switched off for this process";
        check.remedy = "start it without PR_SET_THP_DISABLE";
        check.as_root = false;
    } else {
        check.warn = check.as_root = false;
    }
    return check;
}

Check check_reserved_pages(const System &system)
{
    const Memory &memory = system.memory;
    const uint64_t free = memory.huge_pages_free * memory.huge_page_bytes;
    Check check = {"reserved_huge_pages", "reserved pages", {}, "", "", false, "", false};
    check.facts = {{"page_bytes", memory.huge_page_bytes},
                   {"pages", memory.huge_pages},
                   {"free_pages", memory.huge_pages_free}};
    check.value = std::to_string(memory.huge_pages) + " of " + bytes_text(memory.huge_page_bytes) +
                  ", " + std::to_string(memory.huge_pages_free) + " unused";
    check.needed = "none, as budgets are of transparent ones";
    check.warn = check.as_root = free > memory.total_bytes / 20;
    if (check.warn) check.remedy = "sysctl -w vm.nr_hugepages=0";
    return check;
}

// The cpu device takes at most half of the mappings and up to three for a block.
Check check_mappings(const System &system)
{
    constexpr uint64_t kGranule = 65536;
    const uint64_t half = system.mappings_max / 2;
    const uint64_t own = system.mappings + 1;
    const uint64_t device_bytes = (half - std::min(half, own)) / 3 * kBlockBytes;
    const uint64_t wanted = 2 * (3 * (system.room_bytes() / kBlockBytes) + own);
    Check check = {"mappings", "mappings", {}, "", "", false, "", false};
    check.facts = {{"used", system.mappings},
                   {"max", system.mappings_max},
                   {"cpu_device_bytes_max", device_bytes}};
    check.value = std::to_string(system.mappings_max) + ", enough for a cpu device of " +
                  bytes_text(device_bytes);
    check.needed =
        std::to_string(wanted) + " for one of all memory, " + bytes_text(system.room_bytes());
    check.warn = check.as_root = system.mappings_max < wanted;
    if (check.warn)
        check.remedy = "sysctl -w vm.max_map_count=" +
                       std::to_string((wanted + kGranule) / kGranule * kGranule);
    return check;
}

Check check_open_files(const System &system)
{
    const Limit &limit = system.limits.open_files;
    Check check = {"open_files", "open files", {}, "", "", false, "", false};
    check.facts = {{"used", system.open_files},
                   {"soft", limit_json(limit.soft)},
                   {"hard", limit_json(limit.hard)}};
    check.value = limit.soft == kNoLimit ? "unlimited" : std::to_string(limit.soft);
    check.needed = std::to_string(kOpenFilesNeeded) + " and the program's own";
    check.warn = limit.soft < system.open_files + kOpenFilesNeeded;
    if (check.warn) lift_limit(&check, limit, kOpenFilesAdvised, "n", "nofile");
    return check;
}

Check check_file_size(const System &system)
{
    const Limit &limit = system.limits.file_bytes;
    Check check = {"file_size", "file size", {}, "", "", false, "", false};
    check.facts = {{"soft_bytes", limit_json(limit.soft)}, {"hard_bytes", limit_json(limit.hard)}};
    check.value = bytes_text(limit.soft);
    check.needed = "the nvme budget of a directory";
    check.warn = limit.soft != kNoLimit;
    if (check.warn) lift_limit(&check, limit, kNoLimit, "f", "fsize");
    return check;
}

Check check_addresses(const System &system)
{
    const Limit &addresses = system.limits.address_bytes;
    const Limit &data = system.limits.data_bytes;
    Check check = {"addresses", "addresses", {}, "", "", false, "", false};
    check.facts = {{"address_bytes", limit_json(addresses.soft)},
                   {"data_bytes", limit_json(data.soft)}};
    check.value = bytes_text(std::min(addresses.soft, data.soft));
    check.needed = "unlimited, as the cpu device reserves a multiple of all budgets";
    check.warn = addresses.soft != kNoLimit || data.soft != kNoLimit;
    if (addresses.soft != kNoLimit)
        lift_limit(&check, addresses, kNoLimit, "v", "as");
    else if (data.soft != kNoLimit)
        lift_limit(&check, data, kNoLimit, "d", "data");
    return check;
}

Check check_cgroup_memory(const System &system)
{
    const CgroupMemory &group = system.cgroups.memory;
    const bool limited = group.limit_bytes != kNoLimit;
    Check check = {"cgroup_memory", "cgroup memory", {}, "", "", false, "", false};
    check.facts = {{"version", group.version},
                   {"directory", group.directory},
                   {"limit_bytes", limit_json(group.limit_bytes)},
                   {"used_bytes", group.used_bytes}};
    check.value = group.version == 0 ? "no such group"
                  : limited ? bytes_text(group.limit_bytes) + ", " + bytes_text(group.used_bytes) +
                                  " in use (version " + std::to_string(group.version) + ", " +
                                  printable(group.directory) + ")"
                            : "unlimited (version " + std::to_string(group.version) + ")";
    check.needed = "all budgets in memory and the program's own; past it the kernel kills";
    check.warn = check.as_root = limited && system.room_bytes() < system.memory.available_bytes;
    if (check.warn)
        check.remedy = std::string(group.version == 2 ? "echo max > " : "echo -1 > ") +
                       shell_word(group.limit_file);
    return check;
}

Check check_processor_quota(const System &system)
{
    const CgroupProcessor &group = system.cgroups.processor;
    char cores[32];
    std::snprintf(cores, sizeof cores, "%.2f", group.cores);
    Check check = {"cgroup_processor", "cgroup processor", {}, "", "", false, "", false};
    check.facts = {{"version", group.version},
                   {"directory", group.directory},
                   {"limit_cores", group.cores > 0 ? Json(group.cores) : Json(nullptr)}};
    check.value = group.version == 0 ? "no such group"
                  : group.cores > 0
                      ? std::string(cores) + " cores (" + printable(group.directory) + ")"
                      : "unlimited";
    check.needed =
        std::to_string(system.cores) + " cores; with less, as many threads update as the quota has";
    check.warn = check.as_root = group.cores > 0 && group.cores < static_cast<double>(system.cores);
    if (check.warn)
        check.remedy = std::string(group.version == 2 ? "echo max > " : "echo -1 > ") +
                       shell_word(group.limit_file);
    return check;
}

Check check_overcommit(const System &system)
{
    const Memory &memory = system.memory;
    Check check = {"overcommit", "overcommit", {}, "", "", false, "", false};
    check.facts = {{"mode", system.overcommit},
                   {"commit_limit_bytes", memory.commit_limit_bytes},
                   {"committed_bytes", memory.committed_bytes}};
    check.value = std::to_string(system.overcommit);
    check.warn = check.as_root = system.overcommit == 2;
    if (check.warn)
        check.value += ": " + bytes_text(memory.committed_bytes) + " of " +
                       bytes_text(memory.commit_limit_bytes) + " are promised";
    check.needed = "0 or 1; 2 refuses memory that is free";
    if (check.warn) check.remedy = "sysctl -w vm.overcommit_memory=0";
    return check;
}

Check check_swap(const System &system)
{
    const Memory &memory = system.memory;
    Check check = {"swap", "swap", {}, "", "", false, "", false};
    check.facts = {{"total_bytes", memory.swap_bytes}, {"free_bytes", memory.swap_free_bytes}};
    check.value = memory.swap_bytes == 0
                      ? "none"
                      : bytes_text(memory.swap_bytes) + ", " +
                            bytes_text(memory.swap_bytes -
                                       std::min(memory.swap_bytes, memory.swap_free_bytes)) +
                            " in use";
    check.needed = "none, as pages of the cpu device are never locked";
    check.warn = check.as_root = memory.swap_bytes > 0;
    if (check.warn) check.remedy = "swapoff -a";
    return check;
}

}  // namespace

std::vector<Check> check_limits(const System &system, uint64_t directories)
{
    return {
        check_aio(system, directories), check_locked_memory(system), check_huge_pages(system),
        check_reserved_pages(system),   check_mappings(system),      check_open_files(system),
        check_file_size(system),        check_addresses(system),     check_cgroup_memory(system),
        check_processor_quota(system),  check_overcommit(system),    check_swap(system)};
}

}  // namespace stepwell::cli
