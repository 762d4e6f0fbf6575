// SPDX-License-Identifier: Apache-2.0
// Slots that generations keep: a bit for each set, on each slot. A kept slot is neither overwritten
// nor reused, even if its block is forgotten.
#include "lib/store/store.h"

#include "lib/store/sync_io.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::store {

namespace {

uint8_t bit(uint32_t set)
{
    STW_ASSERT(set < kKeepsMax);
    return static_cast<uint8_t>(1u << set);
}

}  // namespace

Result<Placement> Store::keep(BlockId block, uint32_t set)
{
    MutexLock lock(mutex_);
    const uint32_t at = block < index_.size() ? index_[block] : kNowhere;
    if (at == kNowhere || !slots_[at].written) {
        return Status::error(STW_ERROR_INTERNAL,
                             "Block %u was to be kept in the nvme tier, which %s.", block,
                             at == kNowhere ? "does not hold it" : "holds no complete write of it");
    }
    slots_[at].kept |= bit(set);
    return placement(at);
}

void Store::drop(uint32_t set)
{
    MutexLock lock(mutex_);
    for (uint32_t at = 0; at < slots_.size(); ++at) {
        if ((slots_[at].kept & bit(set)) == 0) continue;
        slots_[at].kept &= static_cast<uint8_t>(~bit(set));
        leave(at);
    }
}

Status Store::find_slot(const Placement &found, uint32_t *at_out) const
{
    if (found.path >= paths_.size() || found.slot >= paths_[found.path].count) {
        return Status::error(STW_ERROR_FORMAT,
                             "A manifest names slot %u of path %u, and the store has %zu paths and "
                             "not so many slots there.",
                             found.slot, found.path, paths_.size());
    }
    *at_out = paths_[found.path].first + found.slot;
    return {};
}

Status Store::load(const Placement &found, uint32_t set)
{
    MutexLock lock(mutex_);
    uint32_t at = 0;
    STW_TRY(find_slot(found, &at));
    Slot &slot = slots_[at];
    const bool same = slot.sum == found.sum && slot.sealed_as == found.sealed_as &&
                      slot.generation == found.generation && slot.bytes == found.bytes;
    if (found.bytes == 0 || found.bytes > block_bytes_ || (slot.kept != 0 && !same)) {
        return Status::error(STW_ERROR_FORMAT,
                             "Slot %u of '%s' holds two things at once, or none, by what manifests "
                             "say of it.",
                             found.slot, paths_[found.path].name.c_str());
    }
    slot.sum = found.sum;
    slot.sealed_as = found.sealed_as;
    slot.generation = found.generation;
    slot.bytes = static_cast<uint32_t>(found.bytes);
    slot.written = true;
    slot.kept |= bit(set);
    return {};
}

void Store::loaded()
{
    MutexLock lock(mutex_);
    for (uint32_t i = 0; i < paths_.size(); ++i) {
        std::vector<uint32_t> &free = striping_[i].free;
        free.clear();
        for (uint32_t slot = paths_[i].count; slot > 0; --slot) {
            if (slots_[paths_[i].first + slot - 1].is_free()) free.push_back(slot - 1);
        }
    }
}

Status Store::adopt(BlockId block, const Placement &found)
{
    MutexLock lock(mutex_);
    uint32_t at = 0;
    STW_TRY(find_slot(found, &at));
    if (block >= index_.size())
        index_.resize(std::max<size_t>(block + 1ull, index_.size() * 2), kNowhere);
    STW_ASSERT(index_[block] == kNowhere);
    if (slots_[at].kept == 0 || slots_[at].block != residency::kNone) {
        return Status::error(STW_ERROR_EXISTS,
                             "Slot %u of '%s', which block %u is to be found in, is %s.",
                             found.slot, paths_[found.path].name.c_str(), block,
                             slots_[at].kept == 0 ? "kept no more" : "another block's");
    }
    slots_[at].block = block;
    index_[block] = at;
    return {};
}

Status Store::flush()
{
    for (const StoragePath &path : paths_) {
        STW_TRY(flush_file(*path.ops, path.storage, path.file));
    }
    return {};
}

}  // namespace stepwell::store
