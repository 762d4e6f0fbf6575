// SPDX-License-Identifier: Apache-2.0
// A machine profile: how fast this machine's directories are and what they do best, as `stepwell
// tune` wrote it or the probe at a first open. Read as hostile text, bounded in size, and believed
// only where it is about this machine and this file system. The opening thread; blocks for files.
// Must not know tiers, budgets or what becomes of the figures.
#pragma once

#include "lib/support/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stepwell::profile {

constexpr uint64_t kFormat = 1;  // of the file; a larger one is of a newer release
constexpr uint64_t kFileBytesMax = 256 << 10;
constexpr uint64_t kDirectoriesMax = 64;
constexpr uint64_t kTextBytesMax = 4096;  // of a path, say

// What the figures hold for; another kernel or processor does other things.
struct Machine {
    std::string kernel;  // "6.18": what comes behind changes with every security update
    std::string processor;
    uint64_t cores = 0;
    bool operator==(const Machine &) const = default;
};

// The file system a directory is on. Its id is the one of statfs: of ext4 it outlives a reboot.
struct FileSystem {
    std::string device;  // "254:1"
    std::string type;    // "ext4"
    std::string id;      // 16 hexadecimal digits
    bool operator==(const FileSystem &) const = default;
};

struct Direction {
    uint64_t bytes_per_s = 0;
    uint64_t request_bytes = 0;  // what was fastest
    uint32_t queue_depth = 0;
};

struct Directory {
    std::string path;  // for people: any other directory of the file system is the same to us
    FileSystem file_system;
    std::string driver;
    std::string driver_options;  // buffered or throttled is not the file system's own speed
    Direction read;
    Direction write;
    uint64_t mixed_bytes_per_s = 0;  // reads and writes at once; 0: not measured
};

struct Profile {
    std::string file;     // where it was read; "" if it was just measured
    std::string created;  // "2026-11-22T04:15:00Z"
    std::string by;       // "tune", "probe"
    Machine machine;
    uint64_t host_copy_bytes_per_s = 0;  // 0: not measured
    std::vector<Directory> directories;

    // The entry of that file system with these options of a driver, or null.
    [[nodiscard]] const Directory *find(const FileSystem &file_system,
                                        const std::string &driver_options = "") const;
};

Machine this_machine();
// Errors: as stat and statfs have them.
Result<FileSystem> file_system_of(const char *path);
std::string now_text();  // as `created` has it

// FORMAT with the member that is wrong; `file` is for sentences.
Result<Profile> parse(std::string_view text, const std::string &file);
std::string to_json(const Profile &profile);

// Errors: NOT_FOUND, PERMISSION (unreadable, or others than its owner and root could have written
// it), FORMAT, IO.
Result<Profile> load(const std::string &file);
// Appears whole or not at all, mode 0600; the last two parts of its directory are made.
Status save(const Profile &profile, const std::string &file);

// Where profiles are looked for by themselves, first to last: the user's, the machine's. A process
// with more rights than its user asks no variable of the environment.
std::vector<std::string> usual_files();
// Of the probe; "" where the user has no such place.
std::string cache_file();

}  // namespace stepwell::profile
