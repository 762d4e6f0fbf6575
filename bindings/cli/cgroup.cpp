// SPDX-License-Identifier: Apache-2.0
#include "cgroup.h"

#include "mounts.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include <sched.h>

namespace stepwell::cli {

namespace {

// One hierarchy as this process sees it.
struct Hierarchy {
    const std::string &root;
    uint32_t version;
    std::string top;   // where it is mounted
    std::string path;  // of the own group below it
};

// Where /proc/self/cgroup puts this process: "4:memory:/docker/x", in version 2 "0::/job".
std::optional<std::string> own_group(std::string_view text, const std::string &controller)
{
    while (!text.empty()) {
        std::string_view line = next_part(&text, '\n');
        next_part(&line, ':');
        const std::string controllers(next_part(&line, ':'));
        if (controller.empty() ? controllers.empty() : has_option(controllers, controller))
            return std::string(line);
    }
    return std::nullopt;
}

// In a container the mount shows a part of the tree, which the group's name may or may not include.
std::string below_mount(std::string group, const std::string &mount_root)
{
    if (mount_root == "/") return group;
    const bool inside = group.starts_with(mount_root) &&
                        (group.size() == mount_root.size() || group[mount_root.size()] == '/');
    return inside ? group.substr(mount_root.size()) : "";
}

// Calls visit(directory) for the own group and all above it, with names without `root`.
template <class Visit> void each_level(const Hierarchy &hierarchy, Visit &&visit)
{
    std::string path = hierarchy.path;
    for (;;) {
        while (path.ends_with('/')) path.pop_back();
        visit(hierarchy.top + path);
        if (path.empty()) return;
        const size_t slash = path.rfind('/');
        path.erase(slash == std::string::npos ? 0 : slash);
    }
}

struct MemoryFiles {
    const char *limits[2];
    const char *usage;
    const char *inactive;
};
constexpr MemoryFiles kMemoryFiles[] = {
    {{"/memory.limit_in_bytes", nullptr}, "/memory.usage_in_bytes", "total_inactive_file"},
    // Above `high` the kernel holds the process back instead of killing it: as good as the end.
    {{"/memory.max", "/memory.high"}, "/memory.current", "inactive_file"},
};
constexpr uint64_t kHuge = uint64_t{1} << 60;  // version 1 says "no limit" with such a number

uint64_t left(const CgroupMemory &memory)
{
    if (memory.limit_bytes == kNoLimit) return kNoLimit;
    return memory.limit_bytes - std::min(memory.limit_bytes, memory.used_bytes);
}

void look_at_memory(const Hierarchy &hierarchy, CgroupMemory *memory)
{
    const MemoryFiles &files = kMemoryFiles[hierarchy.version - 1];
    each_level(hierarchy, [&](const std::string &directory) {
        const std::string real = hierarchy.root + directory;
        const auto usage = read_number(real + files.usage);
        if (!usage) return;
        const std::string stat = read_text(real + "/memory.stat");
        std::string_view rest = stat;
        uint64_t inactive = 0;
        while (!rest.empty()) {
            std::string_view line = next_part(&rest, '\n');
            if (next_part(&line, ' ') == files.inactive) inactive = parse_number(line).value_or(0);
        }
        CgroupMemory here = {hierarchy.version, directory, "", kNoLimit,
                             *usage - std::min(*usage, inactive)};
        for (const char *name : files.limits) {
            const auto limit = name ? read_number(real + name) : std::nullopt;
            if (!limit || *limit >= kHuge || *limit >= here.limit_bytes) continue;
            here.limit_bytes = *limit;
            here.limit_file = directory + name;
        }
        if (memory->version == 0 || left(here) < left(*memory)) *memory = here;
    });
}

// "150000 100000": microseconds of processor in each period. "max", "-1": no limit.
double quota(const Hierarchy &hierarchy, const std::string &directory)
{
    const std::string real = hierarchy.root + directory;
    const std::string text = hierarchy.version == 2 ? read_text(real + "/cpu.max")
                                                    : read_text(real + "/cpu.cfs_quota_us") + " " +
                                                          read_text(real + "/cpu.cfs_period_us");
    const std::vector<std::string_view> words = words_of(text);
    if (words.size() < 2) return 0;
    const auto time = parse_number(words[0]);
    const auto period = parse_number(words[1]);
    if (!time || !period || *period == 0) return 0;
    return static_cast<double>(*time) / static_cast<double>(*period);
}

void look_at_processor(const Hierarchy &hierarchy, CgroupProcessor *processor)
{
    const char *file = hierarchy.version == 2 ? "/cpu.max" : "/cpu.cfs_quota_us";
    each_level(hierarchy, [&](const std::string &directory) {
        if (!is_there(hierarchy.root + directory + file)) return;  // the topmost group has none
        const double cores = quota(hierarchy, directory);
        const bool tighter = cores > 0 && (processor->cores == 0 || cores < processor->cores);
        if (processor->version != 0 && !tighter) return;
        *processor = {hierarchy.version, directory, directory + file, cores};
    });
}

}  // namespace

uint32_t update_threads(const CgroupProcessor &processor)
{
    cpu_set_t set;
    uint32_t cores = std::max(1U, std::thread::hardware_concurrency());
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = static_cast<uint32_t>(CPU_COUNT(&set));
    const double quota = std::ceil(processor.cores);
    if (quota > 0 && quota < cores) cores = static_cast<uint32_t>(quota);
    return std::max(1U, cores);
}

Cgroups read_cgroups(const std::string &root)
{
    const std::string groups = read_text(root + "/proc/self/cgroup");
    Cgroups cgroups;
    for (const Mount &mount : read_mounts(root)) {
        const bool version2 = mount.type == "cgroup2";
        if (!version2 && mount.type != "cgroup") continue;
        for (const char *controller : {"memory", "cpu"}) {
            if (!version2 && !has_option(mount.options, controller)) continue;
            auto group = own_group(groups, version2 ? "" : controller);
            if (!group) continue;
            const Hierarchy hierarchy = {root, version2 ? 2u : 1u, mount.point,
                                         below_mount(std::move(*group), mount.root)};
            if (controller == std::string_view("memory"))
                look_at_memory(hierarchy, &cgroups.memory);
            else
                look_at_processor(hierarchy, &cgroups.processor);
        }
    }
    return cgroups;
}

}  // namespace stepwell::cli
