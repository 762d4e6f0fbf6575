// SPDX-License-Identifier: Apache-2.0
#include "mounts.h"

#include "text.h"

namespace stepwell::cli {

namespace {

// mountinfo writes white space and backslashes as "\040".
std::string unescaped(std::string_view text)
{
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto octal = [&](size_t at) { return text[at] >= '0' && text[at] <= '7'; };
        if (text[i] == '\\' && i + 3 < text.size() && octal(i + 1) && octal(i + 2) &&
            octal(i + 3)) {
            plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                       (text[i + 3] - '0'));
            i += 3;
        } else {
            plain += text[i];
        }
    }
    return plain;
}

// "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
bool parse_mount(std::string_view line, Mount *mount_out)
{
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) return false;
    const std::vector<std::string_view> head = words_of(line.substr(0, dash));
    const std::vector<std::string_view> tail = words_of(line.substr(dash + 3));
    if (head.size() < 6 || tail.size() < 2) return false;
    std::string_view device = head[2];
    const auto id = parse_number(head[0]);
    const auto major = parse_number(next_part(&device, ':'));
    const auto minor = parse_number(device);
    if (!id || !major || !minor) return false;
    mount_out->id = *id;
    mount_out->major = static_cast<uint32_t>(*major);
    mount_out->minor = static_cast<uint32_t>(*minor);
    mount_out->root = unescaped(head[3]);
    mount_out->point = unescaped(head[4]);
    mount_out->options = std::string(head[5]);
    mount_out->type = unescaped(tail[0]);
    mount_out->source = unescaped(tail[1]);
    if (tail.size() > 2) mount_out->options += "," + std::string(tail[2]);
    return true;
}

bool lies_below(const std::string &path, const std::string &point)
{
    if (point == "/") return true;
    return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

}  // namespace

std::vector<Mount> parse_mounts(const std::string &text)
{
    std::vector<Mount> mounts;
    std::string_view rest = text;
    while (!rest.empty()) {
        Mount mount;
        if (parse_mount(next_part(&rest, '\n'), &mount)) mounts.push_back(std::move(mount));
    }
    return mounts;
}

std::vector<Mount> read_mounts(const std::string &root)
{
    return parse_mounts(read_text(root + "/proc/self/mountinfo"));
}

bool has_option(const std::string &options, const std::string &name)
{
    return ("," + options + ",").find("," + name + ",") != std::string::npos;
}

const Mount *find_mount(const std::vector<Mount> &mounts, uint64_t id, const std::string &path)
{
    const Mount *best = nullptr;
    for (const Mount &mount : mounts) {
        if (id != 0 && mount.id == id) return &mount;
        if (!lies_below(path, mount.point)) continue;
        if (best == nullptr || mount.point.size() >= best->point.size()) best = &mount;
    }
    return best;
}

}  // namespace stepwell::cli
