// SPDX-License-Identifier: Apache-2.0
// This host as a machine: its drives as `stepwell tune` has measured them, its memory as the kernel
// tells it. Of a GPU a profile says nothing, so it is asked for.
#include "files.h"

#include "text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include <sys/stat.h>
#include <sys/statvfs.h>

namespace stepwell::cli {
namespace {

using simulate::Link;
using simulate::Machine;
using simulate::Per;
using simulate::Route;

constexpr const char *kKind = "stepwell machine profile";

const Located *member(const Located &object, const char *key)
{
    for (size_t i = 0; i < object.keys.size(); ++i)
        if (object.keys[i] == key) return &object.items[i];
    return nullptr;
}

double value_of(const char *option, const std::string &text, Unit unit)
{
    if (text.empty())
        throw Refused(std::string("A profile says nothing of a GPU; give ") + option + ".");
    double value = 0;
    std::string why;
    if (!parse_quantity(text, unit, &value, &why)) throw Refused(option + (" " + why) + ".");
    if (value < 1e6) throw Refused(std::string(option) + " " + printable(text) + " is too little.");
    return value;
}

Link link_of(const char *name, uint32_t routes, double bytes_per_s)
{
    Link link;
    link.name = name;
    link.routes = routes;
    link.bytes_per_s = bytes_per_s;
    link.per = Per::kNode;
    return link;
}

double rate(Keys keys)
{
    return keys.number("bytes_per_s", 1, kRateMax);
}

struct Drives {
    double read = 0;
    double write = 0;
    double mixed = 0;
};

// Directories of one file system share its room and its drives: the fastest of them tells.
Drives read_drives(Keys &keys, Machine *machine)
{
    std::map<dev_t, Drives> by_file_system;
    for (Keys &directory : keys.objects("directories")) {
        const double read = rate(directory.object("read"));
        const double write = rate(directory.object("write"));
        const double mixed =
            directory.has("mixed") ? rate(directory.object("mixed")) : read + write;
        const std::string path = directory.word("path");
        const auto refuse = [&](int cause) {
            directory.refuse("path", "is '" + printable(path) +
                                         "', whose room cannot be seen: " + std::strerror(cause));
        };
        struct stat about;
        struct statvfs space;
        if (stat(path.c_str(), &about) != 0 || statvfs(path.c_str(), &space) != 0) refuse(errno);
        const auto [found, is_new] = by_file_system.try_emplace(about.st_dev);
        if (is_new) machine->nvme_bytes += uint64_t{space.f_bavail} * space.f_frsize;
        Drives &drives = found->second;
        drives.read = std::max(drives.read, read);
        drives.write = std::max(drives.write, write);
        drives.mixed = std::max(drives.mixed, mixed);
    }
    Drives all;
    for (const auto &[ignored, drives] : by_file_system) {
        all.read += drives.read;
        all.write += drives.write;
        all.mixed += drives.mixed;
    }
    return all;
}

}  // namespace

bool is_profile(const Located &root)
{
    const Located *kind = member(root, "kind");
    return kind != nullptr && kind->text == kKind;
}

Machine read_profile(const std::string &file, const std::string &gpu_memory,
                     const std::string &gpu_flops)
{
    const Located root = read_located(file);
    Keys keys(file, root, "");
    keys.choice("kind", {kKind});
    keys.whole("format", 1, 1);
    Machine machine;
    machine.name = "this host";
    const Drives drives = read_drives(keys, &machine);
    const double copy = keys.number("host_copy_bytes_per_s", 1, kRateMax);
    machine.device_bytes =
        static_cast<uint64_t>(value_of("--gpu-memory", gpu_memory, Unit::kBytes));
    machine.achieved_flops_per_s = value_of("--gpu-flops", gpu_flops, Unit::kFlopsPerSecond);
    machine.peak_flops_per_s = machine.achieved_flops_per_s;
    const std::string memory = read_text("/proc/meminfo");
    std::string_view total = line_after(memory, "MemTotal:");
    machine.host_bytes = parse_number(next_part(&total, ' ')).value_or(0) << 10;
    machine.host_bytes_per_s = copy;
    machine.device_bytes_per_s = copy;
    machine.links = {
        link_of("nvme read", route_bit(Route::kNvmeToHost), drives.read),
        link_of("nvme write", route_bit(Route::kHostToNvme), drives.write),
        link_of("nvme", route_bit(Route::kNvmeToHost) | route_bit(Route::kHostToNvme),
                drives.mixed),
        link_of("copy in", route_bit(Route::kHostToDevice), copy),
        link_of("copy out", route_bit(Route::kDeviceToHost), copy),
    };
    return machine;
}

}  // namespace stepwell::cli
