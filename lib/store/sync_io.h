// SPDX-License-Identifier: Apache-2.0
// Requests to a storage driver, each to its end, in the thread that asks: for superblocks and
// manifests, where nobody else polls the storage. Blocks, at most until its deadline.
#pragma once

#include <stepwell/driver.h>

#include "lib/support/status.h"

#include <cstdint>
#include <memory>
#include <string>

namespace stepwell::store {

// For %llu.
[[nodiscard]] inline unsigned long long wide(uint64_t value)
{
    return value;
}

// Puts on stable storage what was written to that file. SYNC, also if it was removed meanwhile.
Status flush_file(const stw_storage_ops &ops, stw_storage *storage, const std::string &file);

class SyncIo {
public:
    // `what` is read or written, in sentences; borrowed, as the rest.
    SyncIo(const stw_storage_ops &ops, stw_storage *storage, const stw_services &services,
           uint64_t timeout_ns, const std::string &path, const char *what);
    // The storage may still use its memory when a request did not end in time: that is kept then.
    ~SyncIo();
    SyncIo(const SyncIo &) = delete;
    SyncIo &operator=(const SyncIo &) = delete;

    // Any number of bytes at a multiple of the storage's alignment, by way of memory of its own.
    // What is read or written beyond `bytes`, up to the alignment, is zeros.
    Status read(uint64_t offset, void *data, uint64_t bytes);
    Status write(uint64_t offset, const void *data, uint64_t bytes);

private:
    Status open_buffer(uint64_t bytes);
    Status run(uint32_t kind, uint64_t offset, uint64_t bytes);
    Status once(stw_io io, int64_t &result_out);
    [[nodiscard]] Status failed(const stw_io &io, int os_errno) const;

    const stw_storage_ops &ops_;
    stw_storage *storage_;
    const stw_services &services_;
    uint64_t deadline_ns_;
    const std::string &path_;
    const char *what_;
    uint64_t alignment_ = 0;
    uint64_t buffer_bytes_ = 0;
    std::unique_ptr<uint8_t, void (*)(void *)> buffer_;
    bool lost_ = false;
};

}  // namespace stepwell::store
