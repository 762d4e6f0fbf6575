// SPDX-License-Identifier: Apache-2.0
#include "tests/generations/disk.h"

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace stepwell::generations {

namespace {

constexpr int kLeftThere = 0xA5;

}  // namespace

const stw_storage_ops &Disk::ops()
{
    static const stw_storage_ops table = {
        sizeof(stw_storage_ops),
        STW_DRIVER_ABI,
        "simulated",
        STW_STORAGE_CAN_KEEP,
        open,
        info,
        submit,
        poll,
        [](stw_storage *) {},
        flush,
        close,
        nullptr,
        nullptr,
    };
    return table;
}

std::string Disk::options() const
{
    char text[32];
    std::snprintf(text, sizeof text, "%" PRIxPTR, reinterpret_cast<uintptr_t>(this));
    return text;
}

bool Disk::goes_on()
{
    ++requests_;
    if (left_ > 0 && --left_ == 0) off_ = true;
    return !off_;
}

void Disk::keep(File &file, const stw_io &io)
{
    const auto *from = static_cast<const uint8_t *>(io.data);
    file.cache.push_back({io.offset_bytes, {from, from + io.bytes}});
    file.touched.emplace_back(io.offset_bytes, io.bytes);
}

void Disk::save(File &file, bool in_part)
{
    for (const Write &write : file.cache) {
        for (uint64_t at = 0; at < write.bytes.size(); at += kSectorBytes) {
            if (in_part && random_() % 2 == 0) continue;
            Sector &sector = file.medium[(write.offset + at) / kSectorBytes];
            std::memcpy(sector.data(), &write.bytes[at], kSectorBytes);
        }
    }
    file.cache.clear();
}

void Disk::restart(bool lost)
{
    for (auto &[name, file] : files_) {
        save(file, lost);
        for (const auto &[offset, bytes] : file.touched) {
            for (uint64_t at = offset; at < offset + bytes; at += kSectorBytes) {
                const auto safe = file.medium.find(at / kSectorBytes);
                if (safe == file.medium.end()) file.now.erase(at / kSectorBytes);
                if (safe != file.medium.end()) file.now[at / kSectorBytes] = safe->second;
            }
        }
        file.touched.clear();
        file.open = false;
    }
    off_ = false;
    left_ = 0;
}

stw_status Disk::open(const stw_services *, const stw_storage_options *options, stw_storage **out,
                      stw_driver_error *error)
{
    uintptr_t address = 0;
    if (std::sscanf(options->options, "%" SCNxPTR, &address) != 1) return STW_ERROR_INVALID;
    Disk &disk = *reinterpret_cast<Disk *>(address);
    const std::string name = options->name;
    const bool there = disk.files_.count(name) > 0;
    std::snprintf(error->sentence, sizeof error->sentence, "'%s' on the simulated disk.",
                  name.c_str());
    if (options->name_access == STW_STORAGE_NAME_OPEN && !there) return STW_ERROR_NOT_FOUND;
    if (options->name_access == STW_STORAGE_NAME_CREATE && there) return STW_ERROR_EXISTS;
    if (there && disk.files_[name].open) return STW_ERROR_LOCKED;
    if (options->name_access != STW_STORAGE_NAME_OPEN) {
        disk.files_[name] = File();
        disk.files_[name].bytes = options->bytes;
    }
    File &file = disk.files_[name];
    if (options->bytes != 0 && file.bytes != options->bytes) return STW_ERROR_MISMATCH;
    file.open = true;
    *out = reinterpret_cast<stw_storage *>(new Handle{&disk, &file, {}});
    return STW_OK;
}

void Disk::info(stw_storage *storage, stw_storage_info *out)
{
    out->alignment_bytes = 512;
    out->queue_depth = 8;
    out->bytes = reinterpret_cast<Handle *>(storage)->file->bytes;
}

int64_t Disk::serve(File &file, const stw_io &io)
{
    const bool was_on = !off_;
    if (!goes_on()) {
        // What was under way when the power went may have come to the disk in part.
        if (was_on && io.kind == STW_IO_WRITE) keep(file, io);
        return -EIO;
    }
    if (fail_one_in > 0 && random_() % fail_one_in == 0) return -EIO;
    if (io.offset_bytes + io.bytes > file.bytes) return 0;
    auto *data = static_cast<uint8_t *>(io.data);
    for (uint64_t at = 0; at < io.bytes; at += kSectorBytes) {
        const uint64_t number = (io.offset_bytes + at) / kSectorBytes;
        if (io.kind == STW_IO_WRITE) {
            std::memcpy(file.now[number].data(), data + at, kSectorBytes);
        } else if (const auto found = file.now.find(number); found != file.now.end()) {
            std::memcpy(data + at, found->second.data(), kSectorBytes);
        } else {
            std::memset(data + at, kLeftThere, kSectorBytes);
        }
    }
    if (io.kind == STW_IO_READ) return static_cast<int64_t>(io.bytes);
    keep(file, io);
    return static_cast<int64_t>(io.bytes);
}

stw_status Disk::submit(stw_storage *storage, const stw_io *ios, uint32_t n, uint32_t *out)
{
    Handle &handle = *reinterpret_cast<Handle *>(storage);
    for (uint32_t i = 0; i < n; ++i) {
        handle.done.push_back({ios[i].tag, handle.disk->serve(*handle.file, ios[i])});
    }
    *out = n;
    return STW_OK;
}

uint32_t Disk::poll(stw_storage *storage, stw_io_done *done, uint32_t capacity, uint64_t)
{
    Handle &handle = *reinterpret_cast<Handle *>(storage);
    uint32_t n = 0;
    for (; n < capacity && !handle.done.empty(); ++n) {
        done[n] = handle.done.front();
        handle.done.erase(handle.done.begin());
    }
    return n;
}

stw_status Disk::flush(stw_storage *storage)
{
    Handle &handle = *reinterpret_cast<Handle *>(storage);
    Disk &disk = *handle.disk;
    if (!disk.goes_on()) return STW_ERROR_SYNC;
    // As Linux does it: what a failed flush should have saved counts as saved, and is so in part.
    const bool fails = disk.fail_flush_one_in > 0 && disk.random_() % disk.fail_flush_one_in == 0;
    disk.save(*handle.file, fails);
    return fails ? STW_ERROR_SYNC : STW_OK;
}

stw_status Disk::close(stw_storage *storage, uint64_t)
{
    Handle *handle = reinterpret_cast<Handle *>(storage);
    handle->file->open = false;
    delete handle;
    return STW_OK;
}

}  // namespace stepwell::generations
