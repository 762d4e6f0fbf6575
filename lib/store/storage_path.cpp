// SPDX-License-Identifier: Apache-2.0
#include "lib/store/storage_path.h"

#include "lib/residency/types.h"
#include "lib/store/sync_io.h"

#include <cstring>

namespace stepwell::store {

namespace {

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

constexpr const char *kSuperblock = "the superblock";

uint32_t name_access(Stay stay)
{
    return stay == Stay::kCreate ? STW_STORAGE_NAME_CREATE
           : stay == Stay::kOpen ? STW_STORAGE_NAME_OPEN
                                 : STW_STORAGE_NAME_REPLACE;
}

}  // namespace

Status StoragePath::open(const StoreOptions &options, const PathOptions &asked, uint64_t bytes)
{
    stw_storage_options driver{};
    driver.struct_size = sizeof driver;
    driver.queue_depth = asked.queue_depth != 0 ? asked.queue_depth : options.queue_depth;
    driver.path = asked.path.c_str();
    driver.bytes = bytes;
    driver.options = asked.driver_options.empty() ? nullptr : asked.driver_options.c_str();
    if (options.stay != Stay::kScratch) {
        driver.name = options.name.c_str();
        driver.name_access = name_access(options.stay);
    }
    const auto open_with = [&](const stw_storage_ops *with) -> Status {
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        if (driver.name && (with->capabilities & STW_STORAGE_CAN_KEEP) == 0) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "driver '%s' keeps nothing past its close, so a store with a name "
                                 "cannot be at '%s'; use aio or posix there.",
                                 with->name, asked.path.c_str());
        }
        const stw_status code = with->open(options.services, &driver, &storage, &error);
        if (code < 0) return driver_status(code, error, asked.path);
        ops = with;
        info.struct_size = sizeof info;
        with->info(storage, &info);
        remark = info.remark;
        return {};
    };
    Status why = open_with(asked.ops);
    if (why.code() != STW_ERROR_UNSUPPORTED || asked.fallback == nullptr) return why;
    STW_TRY(open_with(asked.fallback));
    remark = format_text("driver %s is used instead of %s: %s%s%s", ops->name, asked.ops->name,
                         why.sentence(), remark.empty() ? "" : " ", remark.c_str());
    return {};
}

Status StoragePath::write_superblock(const StoreOptions &options) const
{
    uint8_t bytes[kSuperblockBytes];
    encode(superblock, bytes);
    SyncIo io(*ops, storage, *options.services, options.open_timeout_ns, name, kSuperblock);
    return io.write(0, bytes, sizeof bytes);
}

Status StoragePath::check_superblock(const StoreOptions &options) const
{
    Result<Superblock> found = load_superblock(options);
    if (!found.ok()) return found.status();
    if (found.value() == superblock) return {};
    return Status::error(STW_ERROR_FORMAT,
                         "The superblock read back from '%s' is a valid one of another store or "
                         "path: two paths share one file.",
                         name.c_str());
}

Result<Superblock> StoragePath::load_superblock(const StoreOptions &options) const
{
    uint8_t bytes[kSuperblockBytes] = {};
    SyncIo io(*ops, storage, *options.services, options.open_timeout_ns, name, kSuperblock);
    STW_TRY(io.read(0, bytes, sizeof bytes));
    return decode(bytes, info.bytes, name.c_str());
}

Status StoragePath::read_superblock(const StoreOptions &options, Uuid &uuid)
{
    Result<Superblock> found = load_superblock(options);
    if (!found.ok()) return found.status();
    Superblock &there = found.value();
    if (uuid == Uuid{}) uuid = there.uuid;
    if (there.uuid != uuid || there.flags != 0) {
        return Status::error(STW_ERROR_MISMATCH,
                             "'%s' holds a file of another store ('%s'); give the directories of "
                             "one store.",
                             name.c_str(), options.name.c_str());
    }
    superblock.uuid = uuid;
    if (there == superblock) return {};
    return Status::error(STW_ERROR_MISMATCH,
                         "'%s' is path %u of %u of its store, with %llu of %llu blocks of %s; it "
                         "is opened as path %u of %u with %llu of %llu blocks of %s. Give the "
                         "directories in the same order, with the budgets and the block size that "
                         "the store was made with.",
                         name.c_str(), there.path_index, there.path_count, wide(there.slots),
                         wide(there.total_slots), bytes_text(there.block_bytes).c_str(),
                         superblock.path_index, superblock.path_count, wide(superblock.slots),
                         wide(superblock.total_slots), bytes_text(superblock.block_bytes).c_str());
}

bool StoragePath::give_back(uint32_t at) const
{
    return ops->give_back &&
           ops->give_back(storage, offset_of(at), superblock.block_bytes) == STW_OK;
}

stw_status StoragePath::take_back(uint32_t at, stw_driver_error *error_out) const
{
    return ops->take_back(storage, offset_of(at), superblock.block_bytes, error_out);
}

}  // namespace stepwell::store
