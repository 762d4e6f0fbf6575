// SPDX-License-Identifier: Apache-2.0
// This rank's part of the disks that it shares with others of its host: one count for each disk,
// whatever the number of paths that lie on it.
#pragma once

#include "lib/collective/fair_share.h"
#include "lib/collective/node.h"
#include "lib/support/thread_annotations.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::collective {

// What tells a disk from another: the number of the file system's device, or of a raw partition
// itself. 0 where the path says nothing.
uint64_t disk_of(const std::string &path);

class DiskShares {
public:
    // disks: by storage path, as disk_of(); the node outlives it. Null where there is nobody to
    // share with. A disk without a number, or one too many for the node, is not shared.
    static std::unique_ptr<DiskShares> open(Node &node, const std::vector<uint64_t> &disks,
                                            const FairLimits &limits = {});
    explicit DiskShares(const Node &node) : node_(node) {}
    // Wants no more of any disk: before the node goes, and once nobody asks.
    ~DiskShares();
    DiskShares(const DiskShares &) = delete;
    DiskShares &operator=(const DiskShares &) = delete;

    // Before a request of `bytes` on a path. False: not yet; ask again in a moment, while what is
    // with the disk goes on. Any thread. No system call, unless two paths of this rank meet.
    bool take(uint32_t path, uint64_t bytes);
    // The path has no request to send. Cheap to say again.
    void rest(uint32_t path);

private:
    struct Disk {
        Disk(FairLane *lanes, const Node &node, const FairLimits &limits)
            : share(lanes, static_cast<uint32_t>(node.ranks().size()), node.index(), limits)
        {
        }
        Mutex mutex;
        FairShare share STW_GUARDED_BY(mutex);
        uint32_t wanting STW_GUARDED_BY(mutex) = 0;  // paths
    };
    struct Path {
        Disk *disk = nullptr;  // null: not shared
        bool wants = false;    // of the path's thread
    };

    const Node &node_;
    std::vector<std::unique_ptr<Disk>> disks_;
    std::vector<Path> paths_;
};

}  // namespace stepwell::collective
