// SPDX-License-Identifier: Apache-2.0
// Opening and closing a store: capacity arithmetic, drivers, superblocks. One thread, before and
// after any other uses the store.
//
// LOCK. A scratch path is an unlinked temporary file that only this process can open, so no lock is
// needed. A persistent store has named files: its driver takes an open-file-description lock on
// each in open, and reports LOCKED. The lock lasts as long as the descriptor, and so until the
// kernel has finished the I/O of a killed process.
#include "lib/store/store.h"

#include "lib/store/sync_io.h"
#include "lib/support/assert.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace stepwell::store {

namespace {

Status random_uuid(Uuid &uuid)
{
    if (getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
        return Status::os_error(STW_ERROR_IO, errno, "No random bytes for the store's UUID");
    }
    uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x40);  // version 4
    uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
    return {};
}

Status check_options(const StoreOptions &options)
{
    const uint64_t block_bytes = options.block_bytes;
    if (options.paths.empty() || options.paths.size() > kPathsMax) {
        return Status::error(STW_ERROR_INVALID, "A store takes 1 to %u paths, not %zu.", kPathsMax,
                             options.paths.size());
    }
    if (block_bytes < kSuperblockBytes || (block_bytes & (block_bytes - 1)) != 0 ||
        block_bytes > UINT32_MAX) {
        return Status::error(STW_ERROR_INVALID,
                             "A block of %llu bytes is not a power of two from 4096 to 2^31.",
                             wide(block_bytes));
    }
    return {};
}

// How many blocks each path holds.
Result<std::vector<uint64_t>> split(const StoreOptions &options)
{
    uint64_t fixed = 0;
    uint64_t sharing = 0;
    for (const PathOptions &path : options.paths) {
        fixed += std::min<uint64_t>(path.blocks, kSlotsMax);
        sharing += path.blocks == 0 ? 1 : 0;
    }
    const uint64_t rest = options.blocks > fixed ? options.blocks - fixed : 0;
    std::vector<uint64_t> blocks;
    uint64_t total = 0;
    uint64_t nth = 0;
    for (const PathOptions &path : options.paths) {
        uint64_t share = path.blocks;
        if (share == 0) {
            share = rest / sharing + (nth < rest % sharing ? 1 : 0);
            ++nth;
        }
        if (share == 0) {
            return Status::error(STW_ERROR_BUDGET,
                                 "The nvme tier's %llu blocks of %s leave none for path '%s' (%zu "
                                 "paths); give it more bytes or fewer paths.",
                                 wide(options.blocks), bytes_text(options.block_bytes).c_str(),
                                 path.path.c_str(), options.paths.size());
        }
        blocks.push_back(share);
        total += std::min<uint64_t>(share, uint64_t{kSlotsMax} + 1);
    }
    if (total > kSlotsMax) {
        return Status::error(STW_ERROR_LIMIT,
                             "A store has at most %u blocks; larger blocks hold "
                             "more bytes.",
                             kSlotsMax);
    }
    return blocks;
}

}  // namespace

uint64_t Store::path_bytes(uint64_t blocks, uint64_t block_bytes)
{
    return kReservedBytes + blocks * block_bytes;
}

uint64_t Store::blocks_in(uint64_t bytes, uint64_t block_bytes, uint32_t paths)
{
    const uint64_t overhead = paths * kReservedBytes;
    return bytes <= overhead || block_bytes == 0 ? 0 : (bytes - overhead) / block_bytes;
}

Result<std::unique_ptr<Store>> Store::open(const StoreOptions &options)
{
    STW_TRY(check_options(options));
    Result<std::vector<uint64_t>> shares = split(options);
    if (!shares.ok()) return shares.status();
    const std::vector<uint64_t> &blocks = shares.value();

    std::unique_ptr<Store> store(new Store);
    store->block_bytes_ = options.block_bytes;
    store->stays_ = options.stay != Stay::kScratch;
    store->uuid_ = options.uuid;
    const bool finds = options.stay == Stay::kOpen;
    if (store->uuid_ == Uuid{} && !finds) STW_TRY(random_uuid(store->uuid_));
    Status status = store->open_all(options, blocks);
    if (status.ok()) return store;
    (void)store->close(0);
    if (options.stay == Stay::kCreate || options.stay == Stay::kReplace)
        store->remove_files(options);
    return status;
}

Status Store::open_all(const StoreOptions &options, const std::vector<uint64_t> &blocks)
{
    uint64_t total = 0;
    for (const uint64_t share : blocks) total += share;
    MutexLock lock(mutex_);
    paths_.reserve(blocks.size());
    striping_.resize(blocks.size());
    slots_.resize(total);
    index_.assign(total, UINT32_MAX);
    uint32_t first = 0;
    for (uint32_t i = 0; i < blocks.size(); ++i) {
        STW_TRY(open_path(options, i, blocks[i]));
        StoragePath &path = paths_[i];
        path.first = first;
        first += path.count;
        path.superblock.total_slots = total;
        std::vector<uint32_t> &free = striping_[i].free;
        free.reserve(path.count);
        striping_[i].resting.reserve(path.count);
        for (uint32_t slot = path.count; slot > 0; --slot) free.push_back(slot - 1);
    }
    if (options.stay == Stay::kOpen) {
        for (uint32_t i = 0; i < blocks.size(); ++i)
            STW_TRY(paths_[i].read_superblock(options, uuid_));
        return {};
    }
    // All are written before the first is read, which detects two paths on one file.
    for (uint32_t i = 0; i < blocks.size(); ++i) STW_TRY(paths_[i].write_superblock(options));
    for (uint32_t i = 0; i < blocks.size(); ++i) STW_TRY(paths_[i].check_superblock(options));
    return stays_ ? flush() : Status();
}

// Removes the files of a failed open, which are closed already.
void Store::remove_files(const StoreOptions &options)
{
    for (const StoragePath &path : paths_) {
        if (path.storage == nullptr) (void)::unlink((path.name + "/" + options.name).c_str());
    }
}

Status Store::open_path(const StoreOptions &options, uint32_t index, uint64_t blocks)
{
    const PathOptions &asked = options.paths[index];
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(blocks, block_bytes_, &bytes) ||
        __builtin_add_overflow(bytes, kReservedBytes, &bytes) || bytes > INT64_MAX) {
        return Status::error(STW_ERROR_LIMIT,
                             "%llu blocks of %s are more bytes than a file at "
                             "'%s' can have.",
                             wide(blocks), bytes_text(block_bytes_).c_str(), asked.path.c_str());
    }
    StoragePath path;
    path.name = asked.path;
    path.file = stays_ ? asked.path + "/" + options.name : asked.path;
    path.count = static_cast<uint32_t>(blocks);
    STW_TRY(path.open(options, asked, bytes));
    path.superblock = {uuid_,  block_bytes_,
                       blocks, kReservedBytes,
                       index,  static_cast<uint32_t>(options.paths.size()),
                       0,      stays_ ? 0 : kFlagScratch};
    paths_.push_back(std::move(path));
    const stw_storage_info &info = paths_.back().info;
    const uint32_t alignment = info.alignment_bytes;
    if (alignment == 0 || alignment > kReservedBytes || block_bytes_ % alignment != 0) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "'%s' wants requests aligned to %u bytes; blocks of %llu bytes and an "
                             "offset of 1 MiB are not.",
                             asked.path.c_str(), alignment, wide(block_bytes_));
    }
    if (info.bytes < bytes || info.queue_depth == 0) {
        return Status::error(STW_ERROR_NO_SPACE,
                             "The driver reserved %llu bytes in '%s' where %llu were asked, with a "
                             "queue of %u.",
                             wide(info.bytes), asked.path.c_str(), wide(bytes), info.queue_depth);
    }
    return {};
}

Status Store::close(uint64_t wait_ns)
{
    Status first;
    for (StoragePath &path : paths_) {
        if (path.storage == nullptr) continue;
        const stw_status code = path.ops->close(path.storage, wait_ns);
        if (code >= 0) {
            path.storage = nullptr;
            continue;
        }
        if (first.ok()) {
            first = Status::error(code, "The storage at '%s' could not be closed: %s.",
                                  path.name.c_str(),
                                  code == STW_ERROR_TIMEOUT ? "requests are still in flight"
                                                            : "its driver reports an error");
        }
        if (code != STW_ERROR_TIMEOUT) path.storage = nullptr;
    }
    return first;
}

// A path with requests in flight is never closed: the device may still use their memory.
Store::~Store()
{
    (void)close(0);
}

}  // namespace stepwell::store
