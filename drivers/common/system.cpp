// SPDX-License-Identifier: Apache-2.0
// Reads /proc and /sys. A missing file means that there is no such limit.
#include "drivers/common/system.h"

#include "drivers/common/edge.h"
#include "drivers/common/option_text.h"

#include <algorithm>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

namespace stepwell::drivers {

namespace {

constexpr size_t kFileBytesMax = 64u << 20;  // of /proc/self/maps at its longest

// The number after `key` at the start of a line, as in memory.stat and meminfo.
std::optional<uint64_t> number_after(std::string_view text, std::string_view key)
{
    while (!text.empty()) {
        std::string_view line = next_part(&text, '\n');
        if (!line.starts_with(key)) continue;
        line.remove_prefix(key.size());
        line.remove_prefix(std::min(line.find_first_not_of(" \t:"), line.size()));
        uint64_t number = 0;
        if (parse_number(next_part(&line, ' '), &number)) return number;
    }
    return std::nullopt;
}

struct CgroupFiles {
    const char *limit;
    const char *usage;
    const char *inactive;  // line of memory.stat
};
constexpr CgroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file"};
constexpr CgroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

// One line of /proc/self/mountinfo that mounts a hierarchy with limits of a controller.
struct CgroupMount {
    std::string_view root;  // the cgroup that is shown at `point`
    std::string_view point;
    bool version2;
};

bool has_word(std::string_view list, std::string_view word)
{
    return ("," + std::string(list) + ",").find("," + std::string(word) + ",") != std::string::npos;
}

bool parse_cgroup_mount(std::string_view line, std::string_view controller, CgroupMount *mount_out)
{
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) return false;
    std::string_view tail = line.substr(dash + 3);
    const std::string_view type = next_part(&tail, ' ');
    next_part(&tail, ' ');  // source
    mount_out->version2 = type == "cgroup2";
    if (!mount_out->version2 && (type != "cgroup" || !has_word(tail, controller))) return false;
    std::string_view head = line.substr(0, dash);
    for (int field = 0; field < 3; ++field) next_part(&head, ' ');
    mount_out->root = next_part(&head, ' ');
    mount_out->point = next_part(&head, ' ');
    return true;
}

// The cgroup of this process in one hierarchy, from /proc/self/cgroup.
std::optional<std::string> own_cgroup(std::string_view text, std::string_view controller,
                                      bool version2)
{
    while (!text.empty()) {
        std::string_view line = next_part(&text, '\n');
        next_part(&line, ':');  // hierarchy
        const std::string_view controllers = next_part(&line, ':');
        if (version2 ? controllers.empty() : has_word(controllers, controller))
            return std::string(line);
    }
    return std::nullopt;
}

// The kernel reclaims inactive page cache before it kills a process, so it counts as free.
void look_at_cgroup(const std::string &directory, const CgroupFiles &files, MemoryRoom *room)
{
    const auto limit = read_number(directory + "/" + files.limit);
    const auto usage = read_number(directory + "/" + files.usage);
    if (!limit || !usage) return;
    const std::string stat = read_text(directory + "/memory.stat");
    const uint64_t inactive = number_after(stat, files.inactive).value_or(0);
    const uint64_t used = *usage - std::min(*usage, inactive);
    const uint64_t left = *limit - std::min(*limit, used);
    const uint64_t left_before = room->cgroup_limit_bytes == UINT64_MAX
                                     ? UINT64_MAX
                                     : room->cgroup_limit_bytes - room->cgroup_used_bytes;
    constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // version 1 says "none" with a huge number
    if (*limit >= kNoLimit || left >= left_before) return;
    room->cgroup_limit_bytes = *limit;
    room->cgroup_used_bytes = std::min(used, *limit);
    room->cgroup = directory;
}

// "150000 100000": microseconds of processor in each period; "max" or -1 is no limit.
void look_at_quota(const std::string &directory, bool version2, ProcessorRoom *room)
{
    const std::string text = version2 ? read_text(directory + "/cpu.max")
                                      : read_text(directory + "/cpu.cfs_quota_us") + " " +
                                            read_text(directory + "/cpu.cfs_period_us");
    uint64_t numbers[2] = {};
    size_t count = 0;
    for (std::string_view rest = text; !rest.empty();) {
        const size_t end = std::min(rest.find_first_of(" \n"), rest.size());
        const std::string_view word = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        if (word.empty()) continue;
        if (count == 2 || !parse_number(word, &numbers[count++])) return;
    }
    if (count < 2 || numbers[1] == 0) return;
    const double cores = static_cast<double>(numbers[0]) / static_cast<double>(numbers[1]);
    if (room->cores == 0 || cores < room->cores) *room = {cores, directory};
}

// Calls look(directory, version2) for a cgroup and its ancestors, whose limits apply as well.
template <class Look>
void look_at_hierarchy(const std::string &root, const CgroupMount &mount, std::string cgroup,
                       Look &&look)
{
    if (mount.root != "/") {  // in a container the mount is a part of the tree
        const bool inside = cgroup.starts_with(mount.root) && (cgroup.size() == mount.root.size() ||
                                                               cgroup[mount.root.size()] == '/');
        cgroup.erase(0, inside ? mount.root.size() : cgroup.size());
    }
    const std::string top = root + std::string(mount.point);
    for (;;) {
        while (cgroup.ends_with('/')) cgroup.pop_back();
        look(top + cgroup, mount.version2);
        if (cgroup.empty()) return;
        const size_t slash = cgroup.rfind('/');
        cgroup.erase(slash == std::string::npos ? 0 : slash);
    }
}

template <class Look>
void each_cgroup(const std::string &root, std::string_view controller, Look &&look)
{
    const std::string cgroups = read_text(root + "/proc/self/cgroup");
    const std::string mounts = read_text(root + "/proc/self/mountinfo");
    std::string_view rest = mounts;
    while (!rest.empty()) {
        CgroupMount mount = {};
        if (!parse_cgroup_mount(next_part(&rest, '\n'), controller, &mount)) continue;
        if (auto cgroup = own_cgroup(cgroups, controller, mount.version2))
            look_at_hierarchy(root, mount, std::move(*cgroup), look);
    }
}

}  // namespace

std::string read_text(const std::string &path)
{
    struct File {
        int fd;
        ~File()
        {
            if (fd >= 0) close(fd);
        }
    };
    std::string text;
    const File file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.fd < 0) return text;
    char buffer[8192];
    ssize_t bytes = 0;
    while (text.size() < kFileBytesMax && (bytes = read(file.fd, buffer, sizeof buffer)) > 0)
        text.append(buffer, static_cast<size_t>(bytes));
    return text;
}

std::optional<uint64_t> read_number(const std::string &path)
{
    const std::string text = read_text(path);
    std::string_view rest = text;
    uint64_t number = 0;
    if (!parse_number(next_part(&rest, '\n'), &number)) return std::nullopt;
    return number;
}

MemoryRoom memory_room(const std::string &root)
{
    MemoryRoom room;
    if (const auto kib = number_after(read_text(root + "/proc/meminfo"), "MemAvailable:"))
        room.available_bytes = *kib * 1024;
    each_cgroup(root, "memory", [&](const std::string &directory, bool version2) {
        look_at_cgroup(directory, version2 ? kVersion2 : kVersion1, &room);
    });
    room.bytes = room.available_bytes;
    if (!room.cgroup.empty())
        room.bytes = std::min(room.bytes, room.cgroup_limit_bytes - room.cgroup_used_bytes);
    return room;
}

AddressRoom address_room(const std::string &root)
{
    constexpr uint64_t kPageBytes = 4096;
    AddressRoom room;
    const auto limit = number_after(read_text(root + "/proc/self/limits"), "Max address space");
    if (limit) room.limit_bytes = *limit;
    room.used_bytes = number_after(read_text(root + "/proc/self/statm"), "").value_or(0);
    room.used_bytes *= kPageBytes;
    return room;
}

std::string address_text(const AddressRoom &room)
{
    if (room.limit_bytes == UINT64_MAX) return "";
    return " (ulimit -v is " + bytes_text(room.limit_bytes) + " = " +
           bytes_text(room.limit_bytes - room.left_bytes()) + " in use + " +
           bytes_text(room.left_bytes()) + " left)";
}

ProcessorRoom processor_room(const std::string &root)
{
    ProcessorRoom room;
    each_cgroup(root, "cpu", [&](const std::string &directory, bool version2) {
        look_at_quota(directory, version2, &room);
    });
    return room;
}

stw_status check_memory_room(uint64_t asked_bytes, const char *driver, const MemoryRoom &room,
                             stw_driver_error *error_out)
{
    const uint64_t left = room.bytes - std::min(room.bytes, room.owed_bytes);
    if (asked_bytes <= left) return STW_OK;
    const Numbers numbers = {0, asked_bytes, left};
    const std::string owed =
        room.owed_bytes == 0 ? std::string()
                             : ", and tiers that are open in this process have " +
                                   bytes_text(room.owed_bytes) + " of it reserved and not used yet";
    if (room.bytes == room.available_bytes)
        return fail(error_out, STW_ERROR_MEMORY, numbers,
                    "The %s memory asks for %s, and MemAvailable of this machine is %s%s; lower "
                    "the budget or stop what uses the memory.",
                    driver, bytes_text(asked_bytes).c_str(), bytes_text(room.bytes).c_str(),
                    owed.c_str());
    return fail(error_out, STW_ERROR_MEMORY, numbers,
                "The %s memory asks for %s, and the cgroup %s has a limit of %s with %s in use, "
                "which leaves %s%s; past it the kernel kills the process. Lower the budget or "
                "raise the limit (systemd MemoryMax=, docker --memory).",
                driver, bytes_text(asked_bytes).c_str(), room.cgroup.c_str(),
                bytes_text(room.cgroup_limit_bytes).c_str(),
                bytes_text(room.cgroup_used_bytes).c_str(), bytes_text(room.bytes).c_str(),
                owed.c_str());
}

uint64_t count_mappings()
{
    const std::string maps = read_text("/proc/self/maps");
    return static_cast<uint64_t>(std::count(maps.begin(), maps.end(), '\n'));
}

}  // namespace stepwell::drivers
