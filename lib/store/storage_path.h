// SPDX-License-Identifier: Apache-2.0
// One path of a store: its driver's handle, its superblock and its run of slots. Opened and closed
// by the store; takes no lock. Space of slots: one thread at a time. Must not know the contents of
// slots.
#pragma once

#include <stepwell/driver.h>

#include "lib/store/superblock.h"
#include "lib/support/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::store {

// Size and number of a path's requests in one direction. 0: the transfer engine sets its default.
struct Requests {
    uint64_t bytes = 0;  // of one at most
    uint32_t depth = 0;  // in flight at most
};

struct PathOptions {
    const stw_storage_ops *ops = nullptr;  // borrowed until the store is gone
    std::string path;
    std::string driver_options;
    uint64_t blocks = 0;  // 0: an equal share of the rest of StoreOptions::blocks
    // Opens the path if `ops` returns UNSUPPORTED; null: the store then does not open. Borrowed
    // likewise.
    const stw_storage_ops *fallback = nullptr;
    uint32_t queue_depth = 0;  // 0: as in StoreOptions
};

// Scratch ends with the process. The others have a named file on each path.
enum class Stay { kScratch, kCreate, kOpen, kReplace };

struct StoreOptions {
    const stw_services *services = nullptr;  // borrowed until the store is gone
    Stay stay = Stay::kScratch;
    std::string name;  // of the files, if they have one
    std::vector<PathOptions> paths;
    uint64_t block_bytes = 0;                   // a multiple of every path's alignment
    uint64_t blocks = 0;                        // over all paths
    uint32_t queue_depth = 32;                  // of a path without a figure of its own
    uint64_t open_timeout_ns = 30'000'000'000;  // for superblocks
    Uuid uuid{};  // all zero: a random one, or with kOpen the one of the files
};

struct StoragePath {
    // Opens the path with its own driver, or with the fallback if that one is unsupported here.
    Status open(const StoreOptions &options, const PathOptions &asked, uint64_t bytes);

    Status write_superblock(const StoreOptions &options) const;
    // Reads the superblock back: FORMAT if it is not this path's own.
    Status check_superblock(const StoreOptions &options) const;
    // For an existing store: the superblock must be this path's of this store, with the requested
    // geometry. `uuid`: the store's; all zero: set to the one that is found.
    Status read_superblock(const StoreOptions &options, Uuid &uuid);

    // Gives the space of a slot, by its number in the store, back to the file system; or reserves
    // it again.
    bool give_back(uint32_t at) const;
    stw_status take_back(uint32_t at, stw_driver_error *error_out) const;

    const stw_storage_ops *ops = nullptr;
    stw_storage *storage = nullptr;
    stw_storage_info info{};
    std::string name;
    std::string file;  // within it, if that has a name
    std::string remark;
    Superblock superblock;
    uint32_t first = 0;  // its slots in the store
    uint32_t count = 0;
    Requests reads;
    Requests writes;

private:
    Result<Superblock> load_superblock(const StoreOptions &options) const;
    [[nodiscard]] uint64_t offset_of(uint32_t at) const
    {
        return kReservedBytes + (at - first) * superblock.block_bytes;
    }
};

}  // namespace stepwell::store
