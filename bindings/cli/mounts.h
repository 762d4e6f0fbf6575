// SPDX-License-Identifier: Apache-2.0
// The table of mounts of this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::cli {

struct Mount {
    uint64_t id = 0;
    uint32_t major = 0;
    uint32_t minor = 0;
    std::string root;  // what of the file system is shown at `point`
    std::string point;
    std::string options;  // of the mount and of the file system
    std::string type;     // "ext4"
    std::string source;   // "/dev/vda"
};

// Of the text of mountinfo, in its order; a line that is none is left out.
std::vector<Mount> parse_mounts(const std::string &text);
std::vector<Mount> read_mounts(const std::string &root);

bool has_option(const std::string &options, const std::string &name);

// By its number; without one (0, or the kernel does not say) the last of those mounted deepest
// above the path. nullptr: none.
const Mount *find_mount(const std::vector<Mount> &mounts, uint64_t id, const std::string &path);

}  // namespace stepwell::cli
