// SPDX-License-Identifier: Apache-2.0
// Properties of a directory before a tier is put there: its file system, its room, what the file
// system takes and refuses, the disk below. Makes one empty unlinked file.
#pragma once

#include "block_device.h"
#include "mounts.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stepwell::cli {

// What the store of a trial takes; a directory with less room is full.
constexpr uint64_t kStoreBytesMin = 4 << 20;

struct Directory {
    std::string path;         // as it was given
    std::string real_path;    // without symbolic links
    std::string error;        // a sentence: why no tier can be here; "" if none
    std::string remedy;       // of the error
    bool is_link = false;     // which a tier refuses
    std::string file_system;  // "ext4"
    bool is_memory = false;
    bool copies_on_write = false;
    bool is_remote = false;
    Mount mount;
    std::optional<BlockDevice> device;
    uint64_t total_bytes = 0;
    uint64_t free_bytes = 0;
    uint64_t available_bytes = 0;         // to this user
    bool tried = false;                   // a file could be made: the next four are known
    bool unnamed_files = false;           // O_TMPFILE
    bool direct = false;                  // O_DIRECT is taken
    uint32_t memory_alignment_bytes = 0;  // of direct I/O; 0: the kernel does not say
    uint32_t offset_alignment_bytes = 0;
};

// `mounts` and `root` describe the machine; the directory itself is asked of the kernel.
Directory look_at_directory(const std::string &path, const std::vector<Mount> &mounts,
                            const std::string &root);

// What the type of a mount says, without touching it.
void classify_file_system(const std::string &type, Directory *directory);

}  // namespace stepwell::cli
