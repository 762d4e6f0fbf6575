// SPDX-License-Identifier: Apache-2.0
#include "lib/store/sync_io.h"

#include "lib/support/thread_annotations.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace stepwell::store {
namespace {

constexpr uint32_t kRetriesMax = 64;       // of a request that moves nothing, or a part
constexpr uint64_t kPollNs = 100'000'000;  // waits are cut into these, to look at the time
constexpr uint64_t kBufferBytes = 1ull << 20;

}  // namespace

Status flush_file(const stw_storage_ops &ops, stw_storage *storage, const std::string &file)
{
    const stw_status code = ops.flush(storage);
    if (code >= 0) return {};
    if (code == STW_ERROR_NOT_FOUND) {
        return Status::error(STW_ERROR_SYNC,
                             "'%s' was removed while the store was open, so what is written there "
                             "goes with the process; read out what is needed, and make a new "
                             "store.",
                             file.c_str());
    }
    return Status::error(STW_ERROR_SYNC,
                         "'%s' could not be flushed (status %d); what was written there may not "
                         "survive, and no generation is taken before it is opened again.",
                         file.c_str(), code);
}

SyncIo::SyncIo(const stw_storage_ops &ops, stw_storage *storage, const stw_services &services,
               uint64_t timeout_ns, const std::string &path, const char *what)
    : ops_(ops),
      storage_(storage),
      services_(services),
      deadline_ns_(deadline_after(services.now_ns(services.user), timeout_ns)),
      path_(path),
      what_(what),
      buffer_(nullptr, std::free)
{
}

SyncIo::~SyncIo()
{
    if (lost_) (void)buffer_.release();
}

// For so many bytes, or for a part of them.
Status SyncIo::open_buffer(uint64_t bytes)
{
    if (lost_) {
        return Status::error(STW_ERROR_TIMEOUT, "'%s' has not answered an earlier request for %s.",
                             path_.c_str(), what_);
    }
    stw_storage_info info{};
    info.struct_size = sizeof info;
    ops_.info(storage_, &info);
    alignment_ = std::max<uint64_t>(4096, info.alignment_bytes);
    const uint64_t wanted =
        (std::min(bytes, kBufferBytes) + alignment_ - 1) / alignment_ * alignment_;
    if (buffer_ && wanted <= buffer_bytes_) return {};
    buffer_.reset(static_cast<uint8_t *>(std::aligned_alloc(alignment_, wanted)));
    buffer_bytes_ = wanted;
    if (buffer_) return {};
    return Status::error(STW_ERROR_MEMORY, "No %llu bytes for %s of '%s'.", wide(wanted), what_,
                         path_.c_str());
}

Status SyncIo::read(uint64_t offset, void *data, uint64_t bytes)
{
    STW_TRY(open_buffer(bytes));
    for (uint64_t at = 0; at < bytes; at += kBufferBytes) {
        const uint64_t count = std::min(bytes - at, kBufferBytes);
        const uint64_t asked = (count + alignment_ - 1) / alignment_ * alignment_;
        STW_TRY(run(STW_IO_READ, offset + at, asked));
        std::memcpy(static_cast<uint8_t *>(data) + at, buffer_.get(), count);
    }
    return {};
}

Status SyncIo::write(uint64_t offset, const void *data, uint64_t bytes)
{
    STW_TRY(open_buffer(bytes));
    for (uint64_t at = 0; at < bytes; at += kBufferBytes) {
        const uint64_t count = std::min(bytes - at, kBufferBytes);
        const uint64_t asked = (count + alignment_ - 1) / alignment_ * alignment_;
        std::memcpy(buffer_.get(), static_cast<const uint8_t *>(data) + at, count);
        std::memset(buffer_.get() + count, 0, asked - count);
        STW_TRY(run(STW_IO_WRITE, offset + at, asked));
    }
    return {};
}

// All of the buffer's first `bytes`. Of a part that was moved the rest is asked for, from where the
// storage can be asked.
Status SyncIo::run(uint32_t kind, uint64_t offset, uint64_t bytes)
{
    uint64_t done = 0;
    stw_io io{1, buffer_.get(), offset, bytes, kind, 0};
    for (uint32_t i = 0; i < kRetriesMax; ++i) {
        io.data = buffer_.get() + done;
        io.offset_bytes = offset + done;
        io.bytes = bytes - done;
        int64_t result = 0;
        STW_TRY(once(io, result));
        if (result == static_cast<int64_t>(io.bytes)) return {};
        if (result == 0) return failed(io, 0);
        if (result < 0 && result != -EAGAIN && result != -EINTR) {
            return failed(io, static_cast<int>(-result));
        }
        if (result > 0) done += static_cast<uint64_t>(result) / alignment_ * alignment_;
    }
    return failed(io, EAGAIN);
}

Status SyncIo::once(stw_io io, int64_t &result_out)
{
    uint32_t accepted = 0;
    bool sent = false;
    for (;;) {
        if (!sent) {
            const stw_status code = ops_.submit(storage_, &io, 1, &accepted);
            if (code < 0) return failed(io, 0);
            sent = accepted == 1;
        }
        stw_io_done done{};
        if (ops_.poll(storage_, &done, 1, kPollNs) == 1) {
            result_out = done.result;
            return {};
        }
        if (services_.now_ns(services_.user) < deadline_ns_) continue;
        lost_ = sent;
        return Status::error(STW_ERROR_TIMEOUT, "'%s' did not answer a request for %s in time.",
                             path_.c_str(), what_);
    }
}

Status SyncIo::failed(const stw_io &io, int os_errno) const
{
    const char *doing = io.kind == STW_IO_READ ? "Reading" : "Writing";
    if (os_errno == 0) {
        return Status::error(STW_ERROR_IO,
                             "%s %s of '%s' (%llu bytes at offset %llu) moved no bytes.", doing,
                             what_, path_.c_str(), wide(io.bytes), wide(io.offset_bytes));
    }
    return Status::os_error(os_errno == ENOSPC ? STW_ERROR_NO_SPACE : STW_ERROR_IO, os_errno,
                            "%s %s of '%s' (%llu bytes at offset %llu) failed", doing, what_,
                            path_.c_str(), wide(io.bytes), wide(io.offset_bytes));
}

}  // namespace stepwell::store
