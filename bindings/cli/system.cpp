// SPDX-License-Identifier: Apache-2.0
#include "system.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace stepwell::cli {

namespace {

constexpr int kCapabilityIpcLock = 14;

uint64_t kib_after(const std::string &text, const char *key)
{
    std::string_view rest = line_after(text, key);
    return parse_number(next_part(&rest, ' ')).value_or(0) * 1024;
}

uint64_t number_after(const std::string &text, const char *key)
{
    return parse_number(line_after(text, key)).value_or(0);
}

bool has_capability(const std::string &status, int capability)
{
    const std::string_view digits = line_after(status, "CapEff:");
    uint64_t set = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), set, 16);
    return (set >> capability & 1) != 0;
}

Limit parse_limit(const std::string &text, const char *name)
{
    const std::vector<std::string_view> words = words_of(line_after(text, name));
    Limit limit;
    if (words.size() < 2) return limit;
    limit.soft = parse_number(words[0]).value_or(kNoLimit);
    limit.hard = parse_number(words[1]).value_or(kNoLimit);
    return limit;
}

uint64_t count_entries(const std::string &directory)
{
    std::error_code error;
    uint64_t count = 0;
    for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
         entry.increment(error))
        ++count;
    return count;
}

// "model name : AMD EPYC" where the processor says so; others are known by hwloc at best.
std::string parse_processor(const std::string &text)
{
    std::string_view name = line_after(text, "model name");
    if (name.starts_with(':')) name.remove_prefix(1);
    return printable(trimmed(name));
}

HugePages read_huge_pages(const std::string &root, const std::string &status)
{
    const std::string directory = root + "/sys/kernel/mm/transparent_hugepage";
    HugePages pages;
    pages.mode = chosen_word(read_text(directory + "/enabled"));
    pages.mode_2m = chosen_word(read_text(directory + "/hugepages-2048kB/enabled"));
    pages.defrag = chosen_word(read_text(directory + "/defrag"));
    pages.of_process = line_after(status, "THP_enabled:") != "0";
    return pages;
}

}  // namespace

Memory parse_meminfo(const std::string &text)
{
    Memory memory;
    memory.total_bytes = kib_after(text, "MemTotal:");
    memory.available_bytes = kib_after(text, "MemAvailable:");
    memory.swap_bytes = kib_after(text, "SwapTotal:");
    memory.swap_free_bytes = kib_after(text, "SwapFree:");
    memory.commit_limit_bytes = kib_after(text, "CommitLimit:");
    memory.committed_bytes = kib_after(text, "Committed_AS:");
    memory.huge_page_bytes = kib_after(text, "Hugepagesize:");
    memory.huge_pages = number_after(text, "HugePages_Total:");
    memory.huge_pages_free = number_after(text, "HugePages_Free:");
    return memory;
}

Limits parse_limits(const std::string &text)
{
    Limits limits;
    limits.locked_bytes = parse_limit(text, "Max locked memory");
    limits.open_files = parse_limit(text, "Max open files");
    limits.file_bytes = parse_limit(text, "Max file size");
    limits.address_bytes = parse_limit(text, "Max address space");
    limits.data_bytes = parse_limit(text, "Max data size");
    return limits;
}

uint64_t System::room_bytes() const
{
    const CgroupMemory &group = cgroups.memory;
    if (group.limit_bytes == kNoLimit) return memory.available_bytes;
    return std::min(memory.available_bytes,
                    group.limit_bytes - std::min(group.limit_bytes, group.used_bytes));
}

System read_system(const std::string &root)
{
    const std::string proc = root + "/proc";
    const std::string status = read_text(proc + "/self/status");
    System system;
    system.kernel = printable(trimmed(read_text(proc + "/sys/kernel/osrelease")));
    system.processor = parse_processor(read_text(proc + "/cpuinfo"));
    system.cores = count_list(line_after(status, "Cpus_allowed_list:"));
    system.cores_machine = count_list(read_text(root + "/sys/devices/system/cpu/online"));
    system.numa_nodes =
        std::max<uint64_t>(1, count_list(read_text(root + "/sys/devices/system/node/online")));
    system.memory = parse_meminfo(read_text(proc + "/meminfo"));
    system.huge_pages = read_huge_pages(root, status);
    system.limits = parse_limits(read_text(proc + "/self/limits"));
    system.cgroups = read_cgroups(root);
    system.may_lock = has_capability(status, kCapabilityIpcLock);
    system.open_files = count_entries(proc + "/self/fd");
    const std::string maps = read_text(proc + "/self/maps");
    system.mappings = static_cast<uint64_t>(std::count(maps.begin(), maps.end(), '\n'));
    system.mappings_max = read_number(proc + "/sys/vm/max_map_count").value_or(0);
    system.aio_used = read_number(proc + "/sys/fs/aio-nr").value_or(0);
    system.aio_max = read_number(proc + "/sys/fs/aio-max-nr").value_or(0);
    system.overcommit = read_number(proc + "/sys/vm/overcommit_memory").value_or(0);
    return system;
}

}  // namespace stepwell::cli
