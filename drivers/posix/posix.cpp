// SPDX-License-Identifier: Apache-2.0
// pread and pwrite on a few threads, for file systems that refuse O_DIRECT and for machines whose
// aio slots are used up. One lock guards two bounded rings, asked and done; system calls run
// outside it. Memory is allocated and threads are started at open.
#include "drivers/posix/posix.h"

#include "drivers/common/edge.h"
#include "drivers/common/mutex.h"
#include "drivers/common/option_text.h"
#include "drivers/common/storage_entry.h"
#include "drivers/common/storage_file.h"

#include <cerrno>
#include <csignal>
#include <memory>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <pthread.h>

namespace stepwell::drivers {

namespace {

constexpr uint32_t kQueueDepthMax = 1 << 16;
constexpr uint64_t kThreadsDefault = 4;
constexpr uint64_t kThreadsMax = 256;

// A queue of fixed capacity.
template <class Entry> class Ring {
public:
    void reserve(uint32_t capacity) { entries_.resize(capacity); }
    bool empty() const { return count_ == 0; }
    void push(const Entry &entry)
    {
        entries_[(first_ + count_) % entries_.size()] = entry;
        ++count_;
    }
    Entry pop()
    {
        const Entry entry = entries_[first_];
        first_ = (first_ + 1) % entries_.size();
        --count_;
        return entry;
    }

private:
    std::vector<Entry> entries_;
    size_t first_ = 0;
    size_t count_ = 0;
};

struct PosixOptions {
    bool allow_tmpfs = false;
    bool buffered = false;
    uint64_t threads = kThreadsDefault;
};

class PosixStorage {
public:
    static constexpr const char *kName = "posix";

    PosixStorage() = default;
    ~PosixStorage();
    static stw_status open(const stw_services *, const stw_storage_options &options,
                           std::unique_ptr<PosixStorage> *storage_out, stw_driver_error *error_out);

    void info(stw_storage_info *info_out) const { file_.info(queue_depth_, info_out); }
    stw_status submit(const stw_io *ios, uint32_t n, uint32_t *accepted_out);
    uint32_t poll(stw_io_done *done, uint32_t capacity, uint64_t wait_ns);
    void wake();
    stw_status flush() { return file_.flush(); }
    stw_status give_back(uint64_t offset_bytes, uint64_t bytes)
    {
        return file_.give_back(offset_bytes, bytes);
    }
    stw_status take_back(uint64_t offset_bytes, uint64_t bytes, stw_driver_error *error_out)
    {
        return file_.take_back(offset_bytes, bytes, error_out);
    }
    stw_status close(uint64_t wait_ns);

private:
    void start(uint64_t threads);
    void work();
    int64_t move(const stw_io &io) const;
    int64_t drop_pages(const stw_io &io, int64_t moved) const;

    StorageFile file_;
    uint32_t queue_depth_ = 0;
    std::vector<std::thread> threads_;
    Mutex mutex_;
    Condition asked_or_stopped_;
    Condition done_or_woken_;
    Ring<stw_io> asked_ STW_GUARDED_BY(mutex_);
    Ring<stw_io_done> done_ STW_GUARDED_BY(mutex_);
    uint32_t held_ STW_GUARDED_BY(mutex_) = 0;     // accepted, not yet returned by poll
    uint32_t unmoved_ STW_GUARDED_BY(mutex_) = 0;  // accepted, not yet in done_
    bool woken_ STW_GUARDED_BY(mutex_) = false;
    bool stopped_ STW_GUARDED_BY(mutex_) = false;
};

stw_status parse_options(const char *text, PosixOptions *options_out, stw_driver_error *error_out)
{
    std::string_view rest = text != nullptr ? text : "";
    Option option;
    while (next_option(&rest, &option)) {
        if (option.key == "allow_tmpfs" && parse_switch(option.value, &options_out->allow_tmpfs))
            continue;
        if (option.key == "buffered" && parse_switch(option.value, &options_out->buffered))
            continue;
        if (option.key == "threads" && parse_number(option.value, &options_out->threads) &&
            options_out->threads >= 1 && options_out->threads <= kThreadsMax)
            continue;
        return unknown_option(PosixStorage::kName, option,
                              "it knows threads=1..256, buffered=0|1 and allow_tmpfs=0|1",
                              error_out);
    }
    return STW_OK;
}

stw_status PosixStorage::open(const stw_services *, const stw_storage_options &options,
                              std::unique_ptr<PosixStorage> *storage_out,
                              stw_driver_error *error_out)
{
    PosixOptions own;
    if (const stw_status status = parse_options(options.options, &own, error_out)) return status;
    if (options.queue_depth > kQueueDepthMax)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "A queue of %u requests is more than the posix driver's %u.",
                    options.queue_depth, kQueueDepthMax);
    auto storage = std::make_unique<PosixStorage>();
    const FileRequest request = {kName,
                                 options.path,
                                 options.bytes,
                                 own.buffered ? DirectIo::kNever : DirectIo::kPreferred,
                                 own.allow_tmpfs,
                                 options.name,
                                 options.name_access};
    storage->queue_depth_ = queue_depth_of(options);
    {
        MutexLock lock(storage->mutex_);
        storage->asked_.reserve(storage->queue_depth_);
        storage->done_.reserve(storage->queue_depth_);
    }
    storage->start(own.threads);
    // The last step that can fail: after it a file with a name would stay.
    if (const stw_status status = StorageFile::open(request, &storage->file_, error_out))
        return status;
    // Read-ahead would fill memory with bytes that were not requested.
    if (!storage->file_.direct()) posix_fadvise(storage->file_.fd(), 0, 0, POSIX_FADV_RANDOM);
    *storage_out = std::move(storage);
    return STW_OK;
}

// Signals of the program are blocked in these threads. The destructor joins the threads that were
// started.
void PosixStorage::start(uint64_t threads)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        threads_.reserve(threads);
        for (uint64_t i = 0; i < threads; ++i) {
            threads_.emplace_back([this] { work(); });
            pthread_setname_np(threads_.back().native_handle(), "stw-posix");
        }
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PosixStorage::~PosixStorage()
{
    {
        MutexLock lock(mutex_);
        stopped_ = true;
    }
    asked_or_stopped_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

void PosixStorage::work()
{
    for (;;) {
        stw_io io = {};
        {
            MutexLock lock(mutex_);
            while (asked_.empty() && !stopped_) asked_or_stopped_.wait(lock);
            if (stopped_) return;
            io = asked_.pop();
        }
        const int64_t result = move(io);
        {
            MutexLock lock(mutex_);
            done_.push({io.tag, result});
            --unmoved_;
        }
        done_or_woken_.notify_all();
    }
}

int64_t PosixStorage::move(const stw_io &io) const
{
    const auto offset = static_cast<off_t>(io.offset_bytes);
    ssize_t moved = 0;
    do {
        moved = io.kind == STW_IO_READ ? pread(file_.fd(), io.data, io.bytes, offset)
                                       : pwrite(file_.fd(), io.data, io.bytes, offset);
    } while (moved < 0 && errno == EINTR);
    if (moved < 0) return -errno;
    return file_.direct() ? moved : drop_pages(io, moved);
}

// No budget counts the page cache, so the pages of a request are dropped from it. A dirty page
// cannot be dropped: a write is on the device, or has failed, before it is reported.
int64_t PosixStorage::drop_pages(const stw_io &io, int64_t moved) const
{
    const auto offset = static_cast<off_t>(io.offset_bytes);
    constexpr unsigned kWriteOut =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (moved > 0 && io.kind == STW_IO_WRITE &&
        sync_file_range(file_.fd(), offset, moved, kWriteOut) != 0)
        return -errno;
    posix_fadvise(file_.fd(), offset, moved, POSIX_FADV_DONTNEED);
    return moved;
}

stw_status PosixStorage::submit(const stw_io *ios, uint32_t n, uint32_t *accepted_out)
{
    *accepted_out = 0;
    stw_status status = STW_OK;
    uint32_t accepted = 0;
    {
        MutexLock lock(mutex_);
        for (; accepted < n && held_ < queue_depth_; ++accepted) {
            if (!request_is_valid(ios[accepted], file_.alignment_bytes(), file_.bytes())) {
                status = STW_ERROR_INVALID;
                break;
            }
            asked_.push(ios[accepted]);
            ++held_;
            ++unmoved_;
        }
    }
    if (accepted == 1) asked_or_stopped_.notify_one();
    if (accepted > 1) asked_or_stopped_.notify_all();
    *accepted_out = accepted;
    return status;
}

uint32_t PosixStorage::poll(stw_io_done *done, uint32_t capacity, uint64_t wait_ns)
{
    if (capacity == 0) return 0;
    const Deadline deadline = Deadline::after(wait_ns);
    MutexLock lock(mutex_);
    while (done_.empty()) {
        if (wait_ns == 0 || deadline.passed()) return 0;
        if (woken_) {
            woken_ = false;
            return 0;
        }
        done_or_woken_.wait_until(lock, deadline);
    }
    uint32_t n = 0;
    for (; n < capacity && !done_.empty(); ++n) done[n] = done_.pop();
    held_ -= n;
    return n;
}

void PosixStorage::wake()
{
    {
        MutexLock lock(mutex_);
        woken_ = true;
    }
    done_or_woken_.notify_all();
}

stw_status PosixStorage::close(uint64_t wait_ns)
{
    const Deadline deadline = Deadline::after(wait_ns);
    MutexLock lock(mutex_);
    while (unmoved_ > 0) {
        if (deadline.passed()) return STW_ERROR_TIMEOUT;
        done_or_woken_.wait_until(lock, deadline);
    }
    return STW_OK;
}

}  // namespace

constinit const stw_storage_ops kPosixStorage =
    StorageEntry<PosixStorage>::table(STW_STORAGE_CAN_SHRINK | STW_STORAGE_CAN_KEEP);

}  // namespace stepwell::drivers
