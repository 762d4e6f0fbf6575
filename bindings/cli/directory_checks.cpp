// SPDX-License-Identifier: Apache-2.0
// A directory as the place of a tier.
#include "checks.h"

namespace stepwell::cli {

namespace {

constexpr const char *kOtherPlace = "give a directory on ext4 or xfs";
constexpr uint64_t kRoomAdvised = uint64_t{1} << 30;

Check check_file_system(const Directory &directory)
{
    const Mount &mount = directory.mount;
    Check check = {"file_system", "file system", {}, "", "", false, "", false};
    check.facts = {{"type", directory.file_system}, {"source", mount.source},
                   {"mounted_at", mount.point},     {"options", mount.options},
                   {"memory", directory.is_memory}, {"copies_on_write", directory.copies_on_write},
                   {"remote", directory.is_remote}};
    check.value = directory.file_system.empty()
                      ? "not known"
                      : directory.file_system + ", " + printable(mount.source) + " at " +
                            printable(mount.point);
    check.needed = "ext4 or xfs on a disk of this machine";
    if (directory.is_memory)
        check.value +=
            "; it is memory, and a tier there would use up the memory that the budgets limit";
    else if (directory.copies_on_write)
        check.value += "; it copies on write: space that was reserved is not promised";
    else if (directory.is_remote)
        check.value += "; it is another machine's";
    check.warn = directory.is_memory || directory.copies_on_write || directory.is_remote;
    if (check.warn) check.remedy = kOtherPlace;
    return check;
}

Check check_link(const Directory &directory)
{
    Check check = {"path", "path", {}, "", "", false, "", false};
    check.facts = {{"real_path", directory.real_path}, {"symbolic_link", directory.is_link}};
    check.value =
        directory.is_link ? "a symbolic link to " + printable(directory.real_path) : "a directory";
    check.needed = "a directory, as links are not followed";
    check.warn = directory.is_link;
    if (check.warn) check.remedy = "give " + shell_word(directory.real_path);
    return check;
}

Check check_space(const Directory &directory)
{
    Check check = {"space", "space", {}, "", "", false, "", false};
    check.facts = {{"total_bytes", directory.total_bytes},
                   {"free_bytes", directory.free_bytes},
                   {"available_bytes", directory.available_bytes}};
    check.value = directory.total_bytes == 0
                      ? "not counted by this file system"
                      : bytes_text(directory.available_bytes) + " available, " +
                            bytes_text(directory.free_bytes) + " free of " +
                            bytes_text(directory.total_bytes);
    check.needed = "the nvme budget, all of it reserved at open";
    check.warn = directory.total_bytes > 0 && directory.available_bytes < kRoomAdvised;
    if (check.warn)
        check.remedy = "du -xh --max-depth=1 " + shell_word(directory.mount.point) + " | sort -h";
    return check;
}

Check check_direct(const Directory &directory)
{
    Check check = {"direct_io", "O_DIRECT", {}, "", "", false, "", false};
    const auto known = [](uint32_t bytes) { return bytes == 0 ? Json(nullptr) : Json(bytes); };
    check.facts = {{"taken", directory.direct},
                   {"memory_alignment_bytes", known(directory.memory_alignment_bytes)},
                   {"offset_alignment_bytes", known(directory.offset_alignment_bytes)}};
    check.value = directory.direct ? "taken" : "refused";
    if (directory.direct && directory.offset_alignment_bytes != 0)
        check.value += ", memory aligned to " + bytes_text(directory.memory_alignment_bytes) +
                       ", offsets to " + bytes_text(directory.offset_alignment_bytes);
    check.needed = "taken; without it posix goes through the page cache";
    check.warn = !directory.direct;
    if (check.warn) check.remedy = kOtherPlace;
    return check;
}

Check check_unnamed(const Directory &directory)
{
    Check check = {"unnamed_files", "O_TMPFILE", {}, "", "", false, "", false};
    check.facts = {{"supported", directory.unnamed_files}};
    check.value = directory.unnamed_files ? "supported" : "not supported";
    check.needed = "supported, so that no name is left whenever the process dies";
    check.warn = !directory.unnamed_files;
    if (check.warn) check.remedy = kOtherPlace;
    return check;
}

std::string device_text(const BlockDevice &device)
{
    std::string text = printable(device.name);
    if (!device.model.empty()) text += ", " + device.model;
    text += ", " + bytes_text(device.bytes);
    if (!device.made_of.empty()) {
        text += ", of";
        for (const std::string &part : device.made_of) text += " " + printable(part);
    }
    if (device.is_virtual)
        text += ", virtual";
    else
        text += device.rotating ? ", rotating" : ", solid state";
    if (!device.scheduler.empty()) text += ", scheduler " + device.scheduler;
    return text;
}

Check check_device(const Directory &directory)
{
    Check check = {"device", "device", Json::object(), "none that is known", "", false, "", false};
    check.needed = "solid state; scheduler none or mq-deadline";
    if (!directory.device) return check;
    const BlockDevice &device = *directory.device;
    check.facts = {{"name", device.name},
                   {"partition", device.partition},
                   {"model", device.model},
                   {"bytes", device.bytes},
                   {"sector_bytes", device.sector_bytes},
                   {"rotating", device.rotating},
                   {"virtual", device.is_virtual},
                   {"scheduler", device.scheduler},
                   {"made_of", device.made_of}};
    check.value = device_text(device);
    const std::string &scheduler = device.scheduler;
    if (device.rotating && !device.is_virtual) {
        check.warn = true;
        check.remedy = "give a directory on an NVMe drive";
    } else if (!scheduler.empty() && scheduler != "none" && scheduler != "mq-deadline") {
        check.warn = check.as_root = true;
        check.remedy =
            "echo none > " + shell_word("/sys/block/" + device.name + "/queue/scheduler");
    }
    return check;
}

Check check_chosen(const Directory &directory, const Chosen &chosen)
{
    Check check = {"driver", "driver", {}, "", "", false, "", false};
    check.facts = {{"chosen", chosen.driver.empty() ? Json(nullptr) : Json(chosen.driver)},
                   {"queue_depth", chosen.queue_depth},
                   {"remark", chosen.remark}};
    check.value = chosen.driver.empty()
                      ? "none works"
                      : chosen.driver + ", queue depth " + std::to_string(chosen.queue_depth);
    if (!chosen.remark.empty()) check.value += ": " + printable(chosen.remark);
    check.needed = "aio";
    check.warn = chosen.driver != "aio";
    if (check.warn)
        check.remedy = directory.direct && !directory.is_memory ? "see the reason" : kOtherPlace;
    return check;
}

}  // namespace

std::vector<Check> check_directory(const Directory &directory, const Chosen &chosen)
{
    return {check_link(directory),          check_file_system(directory), check_space(directory),
            check_direct(directory),        check_unnamed(directory),     check_device(directory),
            check_chosen(directory, chosen)};
}

}  // namespace stepwell::cli
