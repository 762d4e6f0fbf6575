// SPDX-License-Identifier: Apache-2.0
// Paths to disks, disks to counts in the node's memory.
#include "lib/collective/disk_share.h"

#include "lib/collective/process.h"

#include <sys/stat.h>

namespace stepwell::collective {

uint64_t disk_of(const std::string &path)
{
    struct stat found {};
    if (stat(path.c_str(), &found) != 0) return 0;
    return S_ISBLK(found.st_mode) ? found.st_rdev : found.st_dev;
}

std::unique_ptr<DiskShares> DiskShares::open(Node &node, const std::vector<uint64_t> &disks,
                                             const FairLimits &limits)
{
    if (node.ranks().size() < 2) return nullptr;
    auto made = std::make_unique<DiskShares>(node);
    made->paths_.resize(disks.size());
    for (size_t i = 0; i < disks.size(); ++i) {
        for (size_t k = 0; k < i && !made->paths_[i].disk; ++k) {
            if (disks[k] == disks[i]) made->paths_[i].disk = made->paths_[k].disk;
        }
        FairLane *lanes = made->paths_[i].disk ? nullptr : node.disk_lanes(disks[i]);
        if (!lanes) continue;
        made->disks_.push_back(std::make_unique<Disk>(lanes, node, limits));
        made->paths_[i].disk = made->disks_.back().get();
    }
    return made;
}

DiskShares::~DiskShares()
{
    if (!node_.is_rank()) return;
    for (const std::unique_ptr<Disk> &disk : disks_) {
        MutexLock lock(disk->mutex);
        disk->share.rest();
    }
}

bool DiskShares::take(uint32_t path, uint64_t bytes)
{
    Path &at = paths_[path];
    if (!at.disk) return true;
    const uint64_t now_ns = monotonic_ns();
    MutexLock lock(at.disk->mutex);
    if (!at.wants) ++at.disk->wanting;
    at.wants = true;
    return at.disk->share.take(bytes, now_ns);
}

void DiskShares::rest(uint32_t path)
{
    Path &at = paths_[path];
    if (!at.wants) return;
    at.wants = false;
    MutexLock lock(at.disk->mutex);
    if (--at.disk->wanting == 0) at.disk->share.rest();
}

}  // namespace stepwell::collective
