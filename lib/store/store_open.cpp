// SPDX-License-Identifier: Apache-2.0
// Opening and closing a store: capacity arithmetic, drivers, superblocks. One thread, before and
// after any other uses the store.
//
// LOCK. A scratch path is a file without a name that only this process can reach, so nobody else
// can open it and no lock is needed. A durable store has a name: its driver then takes an
// open-file-description lock on it in open and reports LOCKED; it lasts as long as the descriptor,
// and thereby until the kernel has finished the I/O of a process that was killed.
#include "lib/store/store.h"

#include "lib/support/assert.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace stepwell::store {

namespace {

constexpr uint32_t kRetriesMax = 64;       // of a superblock's request
constexpr uint64_t kPollNs = 100'000'000;  // waits are cut into these, to look at the time

unsigned long long wide(uint64_t value)
{
    return value;
}

Status driver_status(stw_status code, const stw_driver_error &error, const std::string &name)
{
    ErrorDetail detail;
    detail.sentence.assign(error.sentence, strnlen(error.sentence, sizeof error.sentence));
    if (detail.sentence.empty()) {
        detail.sentence =
            format_text("The storage driver could not open '%s' (status %d).", name.c_str(), code);
    }
    detail.os_errno = error.os_errno;
    detail.needed_bytes = error.needed_bytes;
    detail.free_bytes = error.free_bytes;
    detail.tier = static_cast<uint32_t>(residency::Tier::kNvme);
    return {code, std::move(detail)};
}

// One request, to its end, in the opening thread. `lost` is set when the time ran out: the driver
// still owns the memory then.
class SyncIo {
public:
    SyncIo(const stw_storage_ops &ops, stw_storage *storage, const stw_services &services,
           uint64_t timeout_ns, const std::string &name)
        : ops_(ops),
          storage_(storage),
          services_(services),
          deadline_ns_(services.now_ns(services.user) + timeout_ns),
          name_(name)
    {
    }

    Status run(uint32_t kind, uint8_t *data, uint64_t bytes)
    {
        for (uint32_t i = 0; i < kRetriesMax; ++i) {
            int64_t result = 0;
            STW_TRY(once({1, data, 0, bytes, kind, 0}, result));
            if (result == static_cast<int64_t>(bytes)) return {};
            if (result == 0) return failed(kind, bytes, 0);
            // Of 4 KiB a part is no progress worth keeping: the whole of it again.
            if (result < 0 && result != -EAGAIN && result != -EINTR) {
                return failed(kind, bytes, static_cast<int>(-result));
            }
        }
        return failed(kind, bytes, EAGAIN);
    }
    [[nodiscard]] bool lost() const { return lost_; }

private:
    Status once(stw_io io, int64_t &result_out)
    {
        uint32_t accepted = 0;
        bool sent = false;
        for (;;) {
            if (!sent) {
                const stw_status code = ops_.submit(storage_, &io, 1, &accepted);
                if (code < 0) return failed(io.kind, io.bytes, 0);
                sent = accepted == 1;
            }
            stw_io_done done{};
            if (ops_.poll(storage_, &done, 1, kPollNs) == 1) {
                result_out = done.result;
                return {};
            }
            if (services_.now_ns(services_.user) < deadline_ns_) continue;
            lost_ = sent;
            return Status::error(STW_ERROR_TIMEOUT,
                                 "'%s' did not answer a request for its superblock in time.",
                                 name_.c_str());
        }
    }

    Status failed(uint32_t kind, uint64_t bytes, int os_errno) const
    {
        const char *what = kind == STW_IO_READ ? "Reading" : "Writing";
        if (os_errno == 0) {
            return Status::error(STW_ERROR_IO,
                                 "%s the superblock of '%s' (%llu bytes at offset "
                                 "0) moved no bytes.",
                                 what, name_.c_str(), wide(bytes));
        }
        return Status::os_error(os_errno == ENOSPC ? STW_ERROR_NO_SPACE : STW_ERROR_IO, os_errno,
                                "%s the superblock of '%s' (%llu bytes at offset 0) failed", what,
                                name_.c_str(), wide(bytes));
    }

    const stw_storage_ops &ops_;
    stw_storage *storage_;
    const stw_services &services_;
    uint64_t deadline_ns_;
    const std::string &name_;
    bool lost_ = false;
};

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
    store->uuid_ = options.uuid;
    if (store->uuid_ == Uuid{}) STW_TRY(random_uuid(store->uuid_));

    uint64_t total = 0;
    for (const uint64_t share : blocks) total += share;
    MutexLock lock(store->mutex_);
    store->paths_.reserve(blocks.size());
    store->striping_.resize(blocks.size());
    store->slots_.resize(total);
    store->index_.assign(total, UINT32_MAX);
    uint32_t first = 0;
    for (uint32_t i = 0; i < blocks.size(); ++i) {
        STW_TRY(store->open_path(options, i, blocks[i]));
        Path &path = store->paths_[i];
        path.first = first;
        first += path.count;
        path.superblock.total_slots = total;
        std::vector<uint32_t> &free = store->striping_[i].free;
        free.reserve(path.count);
        store->striping_[i].resting.reserve(path.count);
        for (uint32_t slot = path.count; slot > 0; --slot) free.push_back(slot - 1);
    }
    // All are written before the first is read: two paths on one file would show.
    for (uint32_t i = 0; i < blocks.size(); ++i) STW_TRY(store->write_superblock(options, i));
    for (uint32_t i = 0; i < blocks.size(); ++i) STW_TRY(store->check_superblock(options, i));
    return store;
}

// The path's own driver, or its fallback where that one cannot work.
Status Store::open_driver(const StoreOptions &options, const PathOptions &asked, uint64_t bytes,
                          Path &path)
{
    stw_storage_options driver{};
    driver.struct_size = sizeof driver;
    driver.queue_depth = asked.queue_depth != 0 ? asked.queue_depth : options.queue_depth;
    driver.path = asked.path.c_str();
    driver.bytes = bytes;
    driver.options = asked.driver_options.empty() ? nullptr : asked.driver_options.c_str();
    const auto open = [&](const stw_storage_ops *ops) -> Status {
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        const stw_status code = ops->open(options.services, &driver, &path.storage, &error);
        if (code < 0) return driver_status(code, error, asked.path);
        path.ops = ops;
        path.info.struct_size = sizeof path.info;
        ops->info(path.storage, &path.info);
        path.remark = path.info.remark;
        return {};
    };
    Status why = open(asked.ops);
    if (why.code() != STW_ERROR_UNSUPPORTED || asked.fallback == nullptr) return why;
    STW_TRY(open(asked.fallback));
    path.remark =
        format_text("driver %s is used instead of %s: %s%s%s", path.ops->name, asked.ops->name,
                    why.sentence(), path.remark.empty() ? "" : " ", path.remark.c_str());
    return {};
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
    Path path;
    path.name = asked.path;
    path.count = static_cast<uint32_t>(blocks);
    STW_TRY(open_driver(options, asked, bytes, path));
    path.superblock = {uuid_,  block_bytes_,
                       blocks, kReservedBytes,
                       index,  static_cast<uint32_t>(options.paths.size()),
                       0,      kFlagScratch,
                       {}};
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

// Reads it into, or writes it from, `bytes` (kSuperblockBytes).
Status Store::superblock_io(const StoreOptions &options, uint32_t index, uint32_t kind,
                            uint8_t *bytes)
{
    const Path &path = paths_[index];
    const uint64_t alignment = std::max<uint64_t>(kSuperblockBytes, path.info.alignment_bytes);
    std::unique_ptr<uint8_t, void (*)(void *)> memory(
        static_cast<uint8_t *>(std::aligned_alloc(alignment, alignment)), std::free);
    if (!memory) {
        return Status::error(STW_ERROR_MEMORY, "No %llu bytes for a superblock.", wide(alignment));
    }
    std::memset(memory.get(), 0, alignment);
    std::memcpy(memory.get(), bytes, kSuperblockBytes);
    SyncIo io(*path.ops, path.storage, *options.services, options.open_timeout_ns, path.name);
    Status status = io.run(kind, memory.get(), alignment);
    if (status.ok()) std::memcpy(bytes, memory.get(), kSuperblockBytes);
    if (io.lost()) (void)memory.release();  // the device may still use it
    return status;
}

Status Store::write_superblock(const StoreOptions &options, uint32_t index)
{
    uint8_t bytes[kSuperblockBytes];
    encode(paths_[index].superblock, bytes);
    return superblock_io(options, index, STW_IO_WRITE, bytes);
}

Status Store::check_superblock(const StoreOptions &options, uint32_t index)
{
    const Path &path = paths_[index];
    uint8_t bytes[kSuperblockBytes] = {};
    STW_TRY(superblock_io(options, index, STW_IO_READ, bytes));
    Result<Superblock> found = decode(bytes, path.info.bytes, path.name.c_str());
    if (!found.ok()) return found.status();
    if (found.value() == path.superblock) return {};
    return Status::error(STW_ERROR_FORMAT,
                         "The superblock read back from '%s' is a valid one of another store or "
                         "path: two paths share one file.",
                         path.name.c_str());
}

Status Store::close(uint64_t wait_ns)
{
    Status first;
    for (Path &path : paths_) {
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

// What still has requests in flight stays open for good: its memory is the device's.
Store::~Store()
{
    (void)close(0);
}

}  // namespace stepwell::store
