// SPDX-License-Identifier: Apache-2.0
// Slots: the blocks in them, the path that the next slot comes from, the checksums of blocks.
#include "lib/store/store.h"

#include "lib/store/checksum.h"
#include "lib/support/assert.h"
#include "lib/support/growth.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stepwell::store {

uint32_t Store::path_of(uint32_t at) const
{
    const auto after =
        std::upper_bound(paths_.begin(), paths_.end(), at,
                         [](uint32_t slot, const StoragePath &path) { return slot < path.first; });
    return static_cast<uint32_t>(after - paths_.begin()) - 1;
}

Placement Store::placement(uint32_t at) const
{
    const Slot &slot = slots_[at];
    Placement place;
    place.path = path_of(at);
    place.slot = at - paths_[place.path].first;
    place.sealed_as = slot.sealed_as;
    place.generation = slot.generation;
    place.bytes = slot.bytes;
    place.sum = slot.sum;
    place.offset = kReservedBytes + place.slot * block_bytes_;
    return place;
}

// Smooth weighted round robin: every path with room earns its weight, and the path with the largest
// credit pays for all. Over any run of choices each path gets its share to within one block.
uint32_t Store::choose_path()
{
    uint64_t measured = 0;
    uint64_t measured_sum = 0;
    for (const Striping &path : striping_) {
        if (path.meter.bytes_per_s() == 0) continue;
        ++measured;
        measured_sum += path.meter.bytes_per_s();
    }
    // A path without a measured bandwidth counts as the mean of the others.
    const uint64_t unmeasured = measured == 0 ? 1 : measured_sum / measured;
    uint32_t best = kNowhere;
    int64_t total = 0;
    for (uint32_t i = 0; i < striping_.size(); ++i) {
        Striping &path = striping_[i];
        if (path.free.empty()) continue;
        const uint64_t rate = path.meter.bytes_per_s();
        const auto weight = static_cast<int64_t>(
            std::clamp<uint64_t>(rate == 0 ? unmeasured : rate, 1, UINT64_C(1) << 48));
        path.credit += weight;
        total += weight;
        if (best == kNowhere || path.credit > striping_[best].credit) best = i;
    }
    if (best != kNowhere) striping_[best].credit -= total;
    return best;
}

// The block's own slot, unless a generation keeps it: then a free slot of the path whose turn it
// is.
Result<uint32_t> Store::slot_to_write(BlockId block)
{
    const uint32_t own = index_[block];
    if (own != kNowhere && slots_[own].users > 0) {
        return Status::error(STW_ERROR_INTERNAL,
                             "Block %u was to be written while it was read or written.", block);
    }
    if (own != kNowhere && slots_[own].kept == 0) return own;
    const uint32_t path = choose_path();
    if (path == kNowhere) {
        return Status::error(STW_ERROR_BUDGET,
                             "The nvme tier has no slot for block %u: %s needed; budget %s; give "
                             "it more bytes.",
                             block, bytes_text(block_bytes_).c_str(),
                             sum_text({{slots_.size() * block_bytes_,
                                        stays_ ? "in use or kept for generations" : "in use"}})
                                 .c_str());
    }
    const uint32_t at = paths_[path].first + striping_[path].free.back();
    striping_[path].free.pop_back();
    if (own != kNowhere) slots_[own].block = residency::kNone;
    index_[block] = at;
    slots_[at].block = block;
    return at;
}

Result<Placement> Store::begin_write(BlockId block, uint64_t bytes)
{
    STW_ASSERT(bytes > 0 && bytes <= block_bytes_);
    MutexLock lock(mutex_);
    if (block >= index_.size())
        index_.resize(std::max<size_t>(block + 1ull, index_.size() * 2), kNowhere);
    Result<uint32_t> found = slot_to_write(block);
    if (!found.ok()) return found.status();
    Slot &slot = slots_[found.value()];
    slot.users = 1;
    slot.writing = true;
    slot.written = false;
    ++slot.generation;
    slot.sealed_as = block;
    slot.bytes = static_cast<uint32_t>(bytes);
    return placement(found.value());
}

Result<Placement> Store::begin_read(BlockId block)
{
    MutexLock lock(mutex_);
    const uint32_t at = block < index_.size() ? index_[block] : kNowhere;
    if (at == kNowhere || !slots_[at].written) {
        return Status::error(STW_ERROR_INTERNAL,
                             "Block %u was to be read from the nvme tier, which %s.", block,
                             at == kNowhere ? "does not hold it" : "holds no complete write of it");
    }
    STW_ASSERT(slots_[at].users < UINT16_MAX);
    ++slots_[at].users;
    return placement(at);
}

void Store::give_back(uint32_t at)
{
    Slot &slot = slots_[at];
    slot.written = false;
    slot.block = residency::kNone;
    const uint32_t path = path_of(at);
    striping_[path].free.push_back(at - paths_[path].first);
}

// The block may have been forgotten, or its set dropped, meanwhile.
void Store::leave(uint32_t at)
{
    if (slots_[at].is_free()) give_back(at);
}

void Store::end_write(const Placement &place, bool written)
{
    MutexLock lock(mutex_);
    const uint32_t at = paths_[place.path].first + place.slot;
    Slot &slot = slots_[at];
    STW_ASSERT(slot.users == 1 && slot.writing && slot.generation == place.generation);
    slot.users = 0;
    slot.writing = false;
    slot.written = written;
    slot.sum = place.sum;
    leave(at);
}

void Store::end_read(const Placement &place)
{
    MutexLock lock(mutex_);
    const uint32_t at = paths_[place.path].first + place.slot;
    Slot &slot = slots_[at];
    STW_ASSERT(slot.users > 0 && !slot.writing && slot.generation == place.generation);
    --slot.users;
    leave(at);
}

void Store::forget(BlockId block)
{
    MutexLock lock(mutex_);
    if (block >= index_.size() || index_[block] == kNowhere) return;
    const uint32_t at = index_[block];
    index_[block] = kNowhere;
    slots_[at].block = residency::kNone;
    leave(at);
}

void Store::hand_over(BlockId block, BlockId heir)
{
    MutexLock lock(mutex_);
    if (heir >= index_.size())
        index_.resize(std::max<size_t>(heir + 1ull, index_.size() * 2), kNowhere);
    const uint32_t at = std::exchange(index_[block], kNowhere);
    STW_ASSERT(index_[heir] == kNowhere && slots_[at].written && slots_[at].users == 0);
    slots_[at].block = heir;
    index_[heir] = at;
}

void Store::reserve_ids(uint64_t ids)
{
    MutexLock lock(mutex_);
    if (ids <= index_.size()) return;
    grow_to_hold(index_, ids);
    index_.resize(ids, kNowhere);
}

uint64_t Store::growth_bytes(uint64_t ids) const
{
    MutexLock lock(mutex_);
    return stepwell::growth_bytes(index_, ids);
}

bool Store::holds(BlockId block) const
{
    MutexLock lock(mutex_);
    return block < index_.size() && index_[block] != kNowhere && slots_[index_[block]].written;
}

// The seed identifies store, block, slot and write: valid bytes of another store, block, slot or
// time have another sum.
uint64_t Store::seed(const Placement &place) const
{
    uint64_t words[6] = {};
    std::memcpy(words, uuid_.data(), uuid_.size());
    words[2] = place.sealed_as;
    words[3] = (uint64_t{place.path} << 32) | place.slot;
    words[4] = place.generation;
    words[5] = place.bytes;
    return checksum(words, sizeof words, 0);
}

uint64_t Store::sum(const Placement &place, const void *data) const
{
    return checksum(data, place.bytes, 0) ^ seed(place);
}

void Store::seal(Placement &place, const void *data) const
{
    place.sum = sum(place, data);
}

void Store::set_requests(uint32_t path, const Requests &reads, const Requests &writes)
{
    paths_[path].reads = reads;
    paths_[path].writes = writes;
}

void Store::expect_bandwidth(uint32_t path, uint64_t bytes_per_s)
{
    MutexLock lock(mutex_);
    striping_[path].meter.expect(bytes_per_s);
}

void Store::path_begin(uint32_t path, uint64_t now_ns)
{
    MutexLock lock(mutex_);
    striping_[path].meter.begin(now_ns);
}

void Store::path_end(uint32_t path, uint64_t bytes, uint64_t now_ns)
{
    MutexLock lock(mutex_);
    striping_[path].meter.end(bytes, now_ns);
}

PathStats Store::path_stats(uint32_t path) const
{
    MutexLock lock(mutex_);
    const Striping &striping = striping_[path];
    return {paths_[path].count, paths_[path].count - striping.free.size() - striping.resting.size(),
            striping.meter.bytes_per_s()};
}

uint64_t Store::used_slots() const
{
    MutexLock lock(mutex_);
    uint64_t used = slots_.size();
    for (const Striping &path : striping_) used -= path.free.size() + path.resting.size();
    return used;
}

uint64_t Store::reserved_bytes() const
{
    uint64_t bytes = 0;
    for (const StoragePath &path : paths_) bytes += path_bytes(path.count, block_bytes_);
    return bytes - resting_slots() * block_bytes_;
}

uint64_t Store::metadata_bytes() const
{
    MutexLock lock(mutex_);
    uint64_t bytes = slots_.capacity() * sizeof(Slot) + index_.capacity() * sizeof(uint32_t) +
                     paths_.capacity() * sizeof(StoragePath) +
                     striping_.capacity() * sizeof(Striping);
    for (const Striping &path : striping_) {
        bytes += (path.free.capacity() + path.resting.capacity()) * sizeof(uint32_t);
    }
    return bytes;
}

}  // namespace stepwell::store
