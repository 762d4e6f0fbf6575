// SPDX-License-Identifier: Apache-2.0
#include "block_device.h"

#include "text.h"

#include <algorithm>
#include <filesystem>

namespace stepwell::cli {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSizeUnitBytes = 512;  // of the file `size`, whatever the sector

// "/dev/mapper/data" leads to "/dev/dm-0".
fs::path by_source(const std::string &root, const std::string &source)
{
    if (!source.starts_with("/dev/")) return {};
    std::error_code error;
    const fs::path node = fs::canonical(root + source, error);
    const std::string name = error ? fs::path(source).filename() : node.filename();
    return root + "/sys/class/block/" + name;
}

fs::path directory_of(const std::string &root, const Mount &mount)
{
    const std::string number = std::to_string(mount.major) + ":" + std::to_string(mount.minor);
    for (const fs::path &path :
         {fs::path(root + "/sys/dev/block/" + number), by_source(root, mount.source)}) {
        std::error_code error;
        fs::path real = path.empty() ? path : fs::canonical(path, error);
        if (!error && !real.empty()) return real;
    }
    return {};
}

std::string line_of(const fs::path &file)
{
    return printable(trimmed(read_text(file.string())));
}

}  // namespace

std::optional<BlockDevice> read_block_device(const std::string &root, const Mount &mount)
{
    fs::path directory = directory_of(root, mount);
    if (directory.empty()) return std::nullopt;
    BlockDevice device;
    if (is_there((directory / "partition").string())) {
        device.partition = directory.filename();
        directory = directory.parent_path();
    }
    device.name = directory.filename();
    device.model = line_of(directory / "device/model");
    device.scheduler = chosen_word(read_text((directory / "queue/scheduler").string()));
    device.rotating = line_of(directory / "queue/rotational") == "1";
    device.is_virtual = device.name.starts_with("vd") || device.name.starts_with("xvd");
    device.sector_bytes =
        read_number((directory / "queue/logical_block_size").string()).value_or(0);
    device.bytes = read_number((directory / "size").string()).value_or(0) * kSizeUnitBytes;
    std::error_code error;
    for (fs::directory_iterator slave(directory / "slaves", error), end; !error && slave != end;
         slave.increment(error))
        device.made_of.push_back(slave->path().filename());
    std::sort(device.made_of.begin(), device.made_of.end());
    return device;
}

}  // namespace stepwell::cli
