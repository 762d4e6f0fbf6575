// SPDX-License-Identifier: Apache-2.0
// Live budgets of the nvme tier: free slots are taken out of use and their space is given back to
// the file system; they are used again only after the space is reserved again.
#include "lib/store/store.h"

#include <algorithm>

namespace stepwell::store {

// Each slot comes from the path with the most free slots, so that striping keeps its width.
bool Store::rest(uint64_t slots, std::vector<uint32_t> *rested)
{
    rested->reserve(slots);
    MutexLock lock(mutex_);
    uint64_t free = 0;
    for (const Striping &path : striping_) free += path.free.size();
    if (free < slots) return false;
    while (rested->size() < slots) {
        uint32_t most = 0;
        for (uint32_t i = 1; i < striping_.size(); ++i) {
            if (striping_[i].free.size() > striping_[most].free.size()) most = i;
        }
        std::vector<uint32_t> &from = striping_[most].free;
        std::swap(from.front(), from.back());  // the lowest are used first
        striping_[most].resting.push_back(from.back());
        rested->push_back(paths_[most].first + from.back());
        from.pop_back();
    }
    return true;
}

void Store::wake(const std::vector<uint32_t> &slots)
{
    MutexLock lock(mutex_);
    for (const uint32_t at : slots) {
        const uint32_t path = path_of(at);
        Striping &striping = striping_[path];
        const uint32_t slot = at - paths_[path].first;
        const auto found = std::find(striping.resting.rbegin(), striping.resting.rend(), slot);
        std::swap(*found, striping.resting.back());
        striping.resting.pop_back();
        striping.free.push_back(slot);
    }
}

// All or none.
Status Store::take_space(const std::vector<uint32_t> &slots)
{
    for (size_t i = 0; i < slots.size(); ++i) {
        const StoragePath &path = paths_[path_of(slots[i])];
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        const stw_status code = path.take_back(slots[i], &error);
        if (code == STW_OK) continue;
        for (size_t j = 0; j < i; ++j) paths_[path_of(slots[j])].give_back(slots[j]);
        Status status = Status::error(code, "'%s': %s", path.name.c_str(),
                                      error.sentence[0] ? error.sentence : "no space");
        status.mutable_detail().os_errno = error.os_errno;
        status.mutable_detail().needed_bytes = slots.size() * block_bytes_;
        status.mutable_detail().free_bytes = error.free_bytes;
        return status;
    }
    return {};
}

Status Store::shrink(uint64_t slots)
{
    std::vector<uint32_t> rested;
    if (!rest(slots, &rested)) {
        return Status::error(STW_ERROR_BUSY, "slots of the nvme tier are still being written");
    }
    for (size_t i = 0; i < rested.size(); ++i) {
        // If the first slot can be given back, so can the others; a failure then only means that
        // its space stays reserved.
        if (paths_[path_of(rested[i])].give_back(rested[i]) || i > 0) continue;
        const StoragePath &path = paths_[path_of(rested[i])];
        wake(rested);
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "'%s' (%s, driver '%s') cannot give back space of a file that is in "
                             "use, so the budget of the nvme tier stays what it is",
                             path.name.c_str(), path.info.file_system, path.ops->name);
    }
    return {};
}

Status Store::grow(uint64_t slots)
{
    std::vector<uint32_t> wanted;
    wanted.reserve(slots);
    {
        MutexLock lock(mutex_);
        for (uint32_t i = 0; i < striping_.size(); ++i) {
            for (const uint32_t slot : striping_[i].resting) {
                if (wanted.size() < slots) wanted.push_back(paths_[i].first + slot);
            }
        }
    }
    STW_TRY(take_space(wanted));
    wake(wanted);
    return {};
}

uint64_t Store::resting_slots() const
{
    MutexLock lock(mutex_);
    uint64_t slots = 0;
    for (const Striping &path : striping_) slots += path.resting.size();
    return slots;
}

}  // namespace stepwell::store
