// SPDX-License-Identifier: Apache-2.0
// libaio on one O_DIRECT file. Submit and poll may run on two threads: they share the stack of free
// slots, under a lock that is never held across a system call. One eventfd ends every wait, both
// for completions and for wake.
#include "drivers/aio/aio.h"

#include "drivers/common/edge.h"
#include "drivers/common/mutex.h"
#include "drivers/common/option_text.h"
#include "drivers/common/storage_entry.h"
#include "drivers/common/storage_file.h"
#include "drivers/common/system.h"

#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <memory>
#include <vector>

#include <libaio.h>
#include <poll.h>
#include <sys/eventfd.h>

namespace stepwell::drivers {

namespace {

class AioStorage {
public:
    static constexpr const char *kName = "aio";

    AioStorage() = default;
    ~AioStorage()
    {
        if (context_ != nullptr) io_destroy(context_);
    }
    static stw_status open(const stw_services *, const stw_storage_options &options,
                           std::unique_ptr<AioStorage> *storage_out, stw_driver_error *error_out);

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
    stw_status open_queue(const char *path, stw_driver_error *error_out);
    uint32_t take_slots(uint32_t n);
    void give_slots(const io_event *events, uint32_t n);
    uint32_t hand_over(uint32_t n, int *error_out);
    uint32_t reap(stw_io_done *done, uint32_t capacity);
    uint32_t take_stashed(stw_io_done *done, uint32_t capacity);
    void wait_for_event(uint64_t wait_ns);

    StorageFile file_;
    Descriptor event_;
    uint32_t queue_depth_ = 0;
    io_context_t context_ = nullptr;
    // Counts the requests that the kernel has. Its release and acquire also order the caller's
    // memory between the submitting and the polling thread, as no lock does on the way through the
    // kernel.
    std::atomic<uint32_t> in_flight_{0};
    std::atomic<bool> woken_{false};
    std::vector<iocb> slots_;
    std::vector<iocb *> batch_;       // of the submitting thread
    std::vector<io_event> events_;    // of the polling thread
    std::vector<stw_io_done> stash_;  // taken by a close that timed out; the next poll gives them
    Mutex mutex_;
    std::vector<iocb *> free_slots_ STW_GUARDED_BY(mutex_);
};

stw_status parse_options(const char *text, bool *allow_tmpfs_out, stw_driver_error *error_out)
{
    std::string_view rest = text != nullptr ? text : "";
    Option option;
    while (next_option(&rest, &option)) {
        if (option.key == "allow_tmpfs" && parse_switch(option.value, allow_tmpfs_out)) continue;
        return unknown_option(AioStorage::kName, option, "it knows allow_tmpfs=0|1", error_out);
    }
    return STW_OK;
}

stw_status AioStorage::open_queue(const char *path, stw_driver_error *error_out)
{
    event_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event_.valid())
        return fail(error_out, STW_ERROR_LIMIT, {errno, 0, 0},
                    "No event descriptor for '%s'; raise the limit on open files (ulimit -n).",
                    path);
    const int result = io_setup(static_cast<int>(queue_depth_), &context_);
    if (result == 0) return STW_OK;
    context_ = nullptr;
    const uint64_t used = read_number("/proc/sys/fs/aio-nr").value_or(0);
    const uint64_t most = read_number("/proc/sys/fs/aio-max-nr").value_or(0);
    if (result == -EAGAIN || result == -EINVAL)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {-result, 0, 0},
                    "The kernel has no %u aio slots for '%s': %" PRIu64 " of %" PRIu64
                    " are in use (fs.aio-nr, fs.aio-max-nr). Raise the limit with "
                    "'sysctl fs.aio-max-nr=%" PRIu64 "', or use the posix driver.",
                    queue_depth_, path, used, most, std::max(2 * most, used + 2 * queue_depth_));
    return fail(error_out, result == -ENOMEM ? STW_ERROR_MEMORY : STW_ERROR_UNSUPPORTED,
                {-result, 0, 0},
                "The kernel refuses asynchronous I/O for '%s'; use the posix driver.", path);
}

stw_status AioStorage::open(const stw_services *, const stw_storage_options &options,
                            std::unique_ptr<AioStorage> *storage_out, stw_driver_error *error_out)
{
    bool allow_tmpfs = false;
    if (const stw_status status = parse_options(options.options, &allow_tmpfs, error_out))
        return status;
    auto storage = std::make_unique<AioStorage>();
    const FileRequest request = {kName,       options.path, options.bytes,      DirectIo::kRequired,
                                 allow_tmpfs, options.name, options.name_access};
    storage->queue_depth_ = queue_depth_of(options);
    // The cheap check first: no space is reserved for a queue that cannot be created.
    if (const stw_status status = storage->open_queue(options.path ? options.path : "", error_out))
        return status;
    const uint32_t depth = storage->queue_depth_;
    storage->slots_.resize(depth);
    storage->batch_.resize(depth);
    storage->events_.resize(depth);
    storage->stash_.reserve(depth);
    {
        MutexLock lock(storage->mutex_);
        storage->free_slots_.reserve(depth);
        for (iocb &slot : storage->slots_) storage->free_slots_.push_back(&slot);
    }
    // The last step that can fail: after it a file with a name would stay.
    if (const stw_status status = StorageFile::open(request, &storage->file_, error_out))
        return status;
    *storage_out = std::move(storage);
    return STW_OK;
}

uint32_t AioStorage::take_slots(uint32_t n)
{
    MutexLock lock(mutex_);
    const uint32_t taken = std::min(n, static_cast<uint32_t>(free_slots_.size()));
    for (uint32_t i = 0; i < taken; ++i) {
        batch_[i] = free_slots_.back();
        free_slots_.pop_back();
    }
    return taken;
}

// The kernel accepts a prefix; it reports a refused request when that is the first one.
uint32_t AioStorage::hand_over(uint32_t n, int *error_out)
{
    uint32_t accepted = 0;
    while (accepted < n) {
        const int result = io_submit(context_, static_cast<long>(n - accepted), &batch_[accepted]);
        if (result == -EINTR) continue;
        if (result > 0) {
            accepted += static_cast<uint32_t>(result);
            continue;
        }
        // A full queue drains; but if the kernel is short of memory and no request is in flight, a
        // wait would never end.
        const bool others = in_flight_.load(std::memory_order_relaxed) > n - accepted;
        if (result != 0 && !(result == -EAGAIN && others)) *error_out = -result;
        break;
    }
    return accepted;
}

stw_status AioStorage::submit(const stw_io *ios, uint32_t n, uint32_t *accepted_out)
{
    *accepted_out = 0;
    const uint32_t looked_at = std::min(n, queue_depth_);
    uint32_t valid = 0;
    while (valid < looked_at &&
           request_is_valid(ios[valid], file_.alignment_bytes(), file_.bytes()))
        ++valid;
    const uint32_t taken = take_slots(valid);
    for (uint32_t i = 0; i < taken; ++i) {
        const stw_io &io = ios[i];
        iocb *slot = batch_[i];
        const auto offset = static_cast<long long>(io.offset_bytes);
        if (io.kind == STW_IO_READ)
            io_prep_pread(slot, file_.fd(), io.data, io.bytes, offset);
        else
            io_prep_pwrite(slot, file_.fd(), io.data, io.bytes, offset);
        io_set_eventfd(slot, event_.get());
        slot->data = reinterpret_cast<void *>(io.tag);
    }
    in_flight_.fetch_add(taken, std::memory_order_release);
    int error = 0;
    const uint32_t accepted = hand_over(taken, &error);
    if (accepted < taken) {
        in_flight_.fetch_sub(taken - accepted, std::memory_order_relaxed);
        MutexLock lock(mutex_);
        for (uint32_t i = accepted; i < taken; ++i) free_slots_.push_back(batch_[i]);
    }
    *accepted_out = accepted;
    if (error != 0) return error == EINVAL || error == EFAULT ? STW_ERROR_INVALID : STW_ERROR_IO;
    return accepted == valid && valid < looked_at ? STW_ERROR_INVALID : STW_OK;
}

void AioStorage::give_slots(const io_event *events, uint32_t n)
{
    MutexLock lock(mutex_);
    for (uint32_t i = 0; i < n; ++i) free_slots_.push_back(events[i].obj);
}

// Never waits. Every `res` is passed on: only there libaio reports errors of requests.
uint32_t AioStorage::reap(stw_io_done *done, uint32_t capacity)
{
    timespec now = {};
    const auto most = static_cast<long>(std::min(capacity, queue_depth_));
    // io_getevents has a symbol version in the static libaio, which this library would have to
    // export too.
    const int result = io_pgetevents(context_, 0, most, events_.data(), &now, nullptr);
    if (result <= 0) return 0;
    const auto n = static_cast<uint32_t>(result);
    in_flight_.fetch_sub(n, std::memory_order_acq_rel);
    for (uint32_t i = 0; i < n; ++i) {
        done[i].tag = reinterpret_cast<uintptr_t>(events_[i].data);
        done[i].result = static_cast<int64_t>(events_[i].res);
    }
    give_slots(events_.data(), n);
    return n;
}

uint32_t AioStorage::take_stashed(stw_io_done *done, uint32_t capacity)
{
    const auto n = static_cast<uint32_t>(std::min<size_t>(capacity, stash_.size()));
    for (uint32_t i = 0; i < n; ++i) {
        done[i] = stash_.back();
        stash_.pop_back();
    }
    return n;
}

void AioStorage::wait_for_event(uint64_t wait_ns)
{
    constexpr uint64_t kSecond = 1'000'000'000;
    constexpr uint64_t kWaitMax = 3600 * kSecond;  // the caller's loop goes on
    wait_ns = std::min(wait_ns, kWaitMax);
    const timespec wait = {static_cast<time_t>(wait_ns / kSecond),
                           static_cast<long>(wait_ns % kSecond)};
    pollfd event = {event_.get(), POLLIN, 0};
    uint64_t count = 0;
    // Cleared before the queue is checked again, so that a completion between the two is noticed.
    if (ppoll(&event, 1, &wait, nullptr) > 0 &&
        read(event_.get(), &count, sizeof count) != sizeof count)
        return;  // another poll has cleared it; the queue is checked anyway
}

uint32_t AioStorage::poll(stw_io_done *done, uint32_t capacity, uint64_t wait_ns)
{
    if (capacity == 0) return 0;
    if (const uint32_t n = take_stashed(done, capacity)) return n;
    if (const uint32_t n = reap(done, capacity)) return n;
    if (wait_ns == 0) return 0;
    const Deadline deadline = Deadline::after(wait_ns);
    for (;;) {
        if (woken_.exchange(false, std::memory_order_acq_rel)) return 0;
        const uint64_t remaining_ns = deadline.remaining_ns();
        if (remaining_ns == 0) return 0;
        wait_for_event(remaining_ns);
        if (const uint32_t n = reap(done, capacity)) return n;
    }
}

void AioStorage::wake()
{
    woken_.store(true, std::memory_order_release);
    const uint64_t one = 1;
    // Fails only when the counter is full, and then the descriptor is readable anyway.
    [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof one);
}

// io_destroy has no timeout, so all requests must have completed before it is called.
stw_status AioStorage::close(uint64_t wait_ns)
{
    const Deadline deadline = Deadline::after(wait_ns);
    while (in_flight_.load(std::memory_order_acquire) > 0) {
        const size_t held = stash_.size();
        stash_.resize(queue_depth_);
        const uint32_t n = reap(stash_.data() + held, queue_depth_ - static_cast<uint32_t>(held));
        stash_.resize(held + n);
        if (n > 0) continue;
        const uint64_t remaining_ns = deadline.remaining_ns();
        if (remaining_ns == 0) return STW_ERROR_TIMEOUT;
        wait_for_event(remaining_ns);
    }
    return STW_OK;
}

}  // namespace

constinit const stw_storage_ops kAioStorage =
    StorageEntry<AioStorage>::table(STW_STORAGE_CAN_SHRINK | STW_STORAGE_CAN_KEEP);

}  // namespace stepwell::drivers
