// SPDX-License-Identifier: Apache-2.0
// The loop of a storage thread: collect what came back, fill the device's queue, settle one block,
// report. Checksums and maps run between two fills, while the device works.
#include "lib/transfer/storage_thread.h"

#include "lib/memory/driver_reason.h"
#include "lib/store/probe.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>

namespace stepwell::transfer {

using residency::Class;

namespace {

constexpr uint64_t kIdleNs = 1'000'000'000;  // a wake ends it; only for safety
constexpr uint64_t kRefusedNs = 1'000'000;   // before the next submit, if nothing was accepted
constexpr uint64_t kHeldNs = 500'000;    // before asking again whether other ranks still come first
constexpr uint32_t kRefusalsMax = 2000;  // of these one after the other, with nothing in flight
constexpr uint32_t kAgainsMax = 1000;    // EAGAIN and EINTR of one request
constexpr uint64_t kSealedMax = 8;       // blocks to be written that are ready ahead

unsigned long long wide(uint64_t value)
{
    return value;
}

}  // namespace

StorageDevice::StorageDevice(store::Store &store, uint32_t path)
    : ops(store.ops(path)),
      storage(store.storage(path)),
      alignment(store.info(path).alignment_bytes),
      depth(store.info(path).queue_depth),
      writes(store.requests(path, false)),
      reads(store.requests(path, true))
{
}

StorageThread::StorageThread(Engine::Parts &parts, uint32_t path)
    : parts_(parts), store_(*parts.store), path_(path), device_(*parts.store, path)
{
    const uint64_t queue_bytes = uint64_t{device_.writes.depth} * device_.writes.bytes;
    sealed_max_ = std::clamp<uint64_t>(queue_bytes / store_.block_bytes(), 1, kSealedMax);
    requests_.resize(device_.depth);
    done_.resize(device_.depth);
    free_.reserve(device_.depth);
    for (uint32_t i = device_.depth; i > 0; --i) free_.push_back(i - 1);
    again_.reserve(device_.depth);
    sending_.reserve(device_.depth);
    batch_.reserve(device_.depth);
    begun_.reserve(device_.depth + 16ull);
    settling_.reserve(device_.depth + 16ull);
    outbox_.tasks.reserve(kOutboxMax);
    outbox_.list.reserve(kOutboxMax);
}

void StorageThread::main()
{
    for (;;) {
        const uint32_t n = device_.poll(done_, wait_ns_);
        collect(n);
        fill();
        settle();
        parts_.flush(outbox_);
        if (!wait_for_work()) break;
    }
    parts_.thread_gone();  // nothing of this object after that
}

// How long the next poll may wait. False: the thread ends.
bool StorageThread::wait_for_work()
{
    MutexLock lock(parts_.mutex);
    PathQueues &queues = *parts_.paths[path_];
    queues.waiting = false;
    wait_ns_ = 0;
    if (!settling_.empty() || began_ahead_) return true;
    if (full_) {
        wait_ns_ = in_flight_ > 0 && !busy_ ? kIdleNs : kRefusedNs;
        return true;
    }
    if (in_flight_ == device_.depth) {
        wait_ns_ = kIdleNs;
        return true;
    }
    if (held_) {
        wait_ns_ = kHeldNs;
        return true;
    }
    if (choose().source != Source::kNothing) return true;
    tell_rest(queues);
    if (in_flight_ == 0 && parts_.thread_ends()) return false;
    queues.waiting = true;
    wait_ns_ = kIdleNs;
    return true;
}

// --------------------------------------------------------------------------- what goes next --

StorageThread::Choice StorageThread::best_of(bool reads, PathQueues &queues)
{
    Choice best;
    if (flying_[reads ? 1 : 0] >= device_.requests(reads).depth) return best;
    const auto offer = [&best, reads](Source source, Task *task, uint32_t at) {
        const bool better = best.task == nullptr || task->urgency > best.task->urgency;
        if (better) best = {source, task, at, reads};
    };
    for (uint32_t i = 0; i < again_.size(); ++i) {
        const Request &request = requests_[again_[i]];
        if (request.reads == reads) offer(Source::kAgain, request.task, i);
    }
    if (free_.empty()) return best;
    for (Task *task : begun_) {
        if (is_read(*task) == reads) offer(Source::kBegun, task, 0);
    }
    Task *queued = reads ? queues.reads.best() : queues.writes.best();
    if (reads && !parts_.read_ring.empty()) {
        queued = more_urgent(queued, queues.staged_reads.best());
    }
    if (queued != nullptr) offer(Source::kQueue, queued, 0);
    return best;
}

// Chooses between the two directions: a demand comes first, alone. Otherwise the less urgent
// direction keeps up to a quarter of the queue, so that write-backs go on beside prefetches; equal
// ones share it evenly.
StorageThread::Choice StorageThread::choose()
{
    PathQueues &queues = *parts_.paths[path_];
    const Choice reads = best_of(true, queues);
    const Choice writes = best_of(false, queues);
    if (reads.task == nullptr) return writes;
    if (writes.task == nullptr) return reads;
    const Class read_class = reads.task->urgency;
    const Class write_class = writes.task->urgency;
    if (read_class == write_class) return flying_[1] <= flying_[0] ? reads : writes;
    const bool reads_lead = read_class > write_class;
    const Choice &lead = reads_lead ? reads : writes;
    const Choice &other = reads_lead ? writes : reads;
    if (lead.task->urgency == Class::kDemand) return lead;
    const bool others_share = flying_[other.reads ? 1 : 0] < device_.depth / 4;
    return others_share && flying_[lead.reads ? 1 : 0] > 0 ? other : lead;
}

void StorageThread::take(Task &task, PathQueues &queues)
{
    task.queue->remove(task);
    task.begun = true;
    task.stage = Stage::kStorage;
    queues.waiting = false;
    if (task.route == Route::kReadStaged) parts_.take_ring(task, parts_.read_ring);
}

uint64_t StorageThread::next_request_bytes(const Task &task) const
{
    return std::min(device_.requests(is_read(task)).bytes, task.io_bytes - task.given_bytes);
}

bool StorageThread::may_send(const Task &task)
{
    const EngineOptions &options = parts_.options;
    return options.may_send == nullptr || parts_.closing ||
           options.may_send(options.share_user, path_, next_request_bytes(task));
}

// A path whose device queue is full still has requests to send, and does not rest: other ranks must
// not get ahead of it.
void StorageThread::tell_rest(PathQueues &queues)
{
    const EngineOptions &options = parts_.options;
    if (options.rests == nullptr || parts_.closing) return;
    const bool staged = !parts_.read_ring.empty() && queues.staged_reads.best() != nullptr;
    if (begun_.empty() && again_.empty() && !staged && queues.reads.best() == nullptr &&
        queues.writes.best() == nullptr) {
        options.rests(options.share_user, path_);
    }
}

void StorageThread::fill()
{
    held_ = false;
    while (!full_ && in_flight_ + sending_.size() < device_.depth) {
        Choice choice;
        {
            MutexLock lock(parts_.mutex);
            choice = choose();
            if (choice.source == Source::kQueue) take(*choice.task, *parts_.paths[path_]);
            if (choice.source == Source::kBegun && !may_send(*choice.task)) {
                held_ = true;
                choice = {};
            }
        }
        switch (choice.source) {
        case Source::kNothing:
            send();
            begin_ahead();
            return;
        case Source::kQueue:
            send();  // a checksum would delay the requests that are ready
            begin(*choice.task);
            break;
        case Source::kBegun: give_request(*choice.task); break;
        case Source::kAgain:
            sending_.push_back(again_[choice.at]);
            again_.erase(again_.begin() + choice.at);
            ++flying_[choice.reads ? 1 : 0];
            break;
        }
    }
    send();
    begin_ahead();
}

bool StorageThread::is_full(bool reads) const
{
    return free_.empty() || flying_[reads ? 1 : 0] >= device_.requests(reads).depth;
}

// Prepares blocks while the device's queue is full, one per turn. One read is enough. Of writes, as
// many as the queue takes: devices tend to complete many requests at once, and would then wait for
// the checksum of each following block.
void StorageThread::begin_ahead()
{
    began_ahead_ = false;
    if (!settling_.empty()) return;
    const auto sealed = static_cast<uint64_t>(std::count_if(
        begun_.begin(), begun_.end(), [](const Task *task) { return is_write(*task); }));
    const bool reads = begun_.size() == sealed && is_full(true);
    const bool writes = sealed < sealed_max_ && is_full(false);
    if (!reads && !writes) return;
    Task *next = nullptr;
    {
        MutexLock lock(parts_.mutex);
        PathQueues &queues = *parts_.paths[path_];
        next = more_urgent(reads ? queues.reads.best() : nullptr,
                           writes ? queues.writes.best() : nullptr);
        if (next != nullptr) take(*next, queues);
    }
    began_ahead_ = next != nullptr;
    if (next != nullptr) begin(*next);
}

// A block is mapped at its tensor's address here, when its turn has come, and not earlier or on a
// copy thread: so it is in the order of urgency, needs no hand-over, does not wait for copies, and
// the device is busy meanwhile.
void StorageThread::begin(Task &task)
{
    parts_.hops.begin(task, parts_.hops.storage_link(task));
    if (task.route == Route::kRead) {
        Status status = parts_.copier.map_block(task);
        if (!status.ok()) {
            fail(task, std::move(status));
            return;
        }
    }
    if (is_write(task)) store_.seal(task.place, task.data);
    begun_.push_back(&task);
}

void StorageThread::give_request(Task &task)
{
    const uint32_t index = free_.back();
    free_.pop_back();
    Request &request = requests_[index];
    request.task = &task;
    request.offset = task.given_bytes;
    request.reads = is_read(task);
    request.bytes = next_request_bytes(task);
    request.errors = 0;
    request.agains = 0;
    task.given_bytes += request.bytes;
    ++task.open_requests;
    if (task.given_bytes == task.io_bytes) std::erase(begun_, &task);
    sending_.push_back(index);
    ++flying_[request.reads ? 1 : 0];
}

// ------------------------------------------------------------------- to the device and back --

// False when the device took less than all.
bool StorageThread::send()
{
    if (sending_.empty()) return true;
    batch_.clear();
    for (const uint32_t index : sending_) {
        Request &request = requests_[index];
        ++request.serial;
        stw_io io{};
        io.tag = (uint64_t{request.serial} << 32) | index;
        io.data = static_cast<uint8_t *>(request.task->data) + request.offset;
        io.offset_bytes = request.task->place.offset + request.offset;
        io.bytes = request.bytes;
        io.kind = request.reads ? STW_IO_READ : STW_IO_WRITE;
        batch_.push_back(io);
    }
    uint32_t accepted = 0;
    const auto n = static_cast<uint32_t>(batch_.size());
    const uint64_t now_ns = parts_.options.now();
    const stw_status code = device_.ops.submit(device_.storage, batch_.data(), n, &accepted);
    STW_ASSERT(accepted <= n);
    accepted = std::min(accepted, n);
    for (uint32_t i = 0; i < n; ++i) {
        Request &request = requests_[sending_[i]];
        if (i < accepted) {
            request.in_flight = true;
            ++in_flight_;
            store_.path_begin(path_, now_ns);
        } else {
            --flying_[request.reads ? 1 : 0];
            if (i == accepted && code < 0) continue;
            again_.push_back(sending_[i]);
        }
    }
    const bool error = code < 0 && accepted < n;
    const uint32_t bad = error ? sending_[accepted] : 0;
    sending_.clear();
    if (accepted > 0) refusals_ = 0;
    if (error) {
        refused(bad, code);
        return false;
    }
    full_ = accepted < n;
    if (full_ && in_flight_ == 0 && ++refusals_ > kRefusalsMax) {
        refusals_ = 0;
        const uint32_t index = again_.back();
        again_.pop_back();
        requests_[index].errors = parts_.options.retries_max;
        refused(index, STW_ERROR_BUSY);
    }
    return !full_;
}

void StorageThread::collect(uint32_t n)
{
    STW_ASSERT(n <= device_.depth);
    full_ = false;
    busy_ = false;
    const uint64_t now_ns = n > 0 ? parts_.options.now() : 0;
    for (uint32_t i = 0; i < n; ++i) {
        const auto index = static_cast<uint32_t>(done_[i].tag);
        const auto serial = static_cast<uint32_t>(done_[i].tag >> 32);
        if (index == store::kProbeTag) continue;  // given up when the store was opened
        const bool known = index < device_.depth && requests_[index].in_flight &&
                           requests_[index].serial == serial;
        STW_ASSERT(known);  // of a driver: each accepted tag comes exactly once
        if (!known) continue;
        Request &request = requests_[index];
        request.in_flight = false;
        --in_flight_;
        --flying_[request.reads ? 1 : 0];
        const int64_t result = done_[i].result;
        store_.path_end(path_, result > 0 ? static_cast<uint64_t>(result) : 0, now_ns);
        answered(index, result);
    }
}

void StorageThread::answered(uint32_t index, int64_t result)
{
    Request &request = requests_[index];
    Task &task = *request.task;
    if (!task.status.ok() || result == static_cast<int64_t>(request.bytes)) {
        drop(index);
        return;
    }
    const char *what = request.reads ? "Reading" : "Writing";
    const uint64_t at = task.place.offset + request.offset;
    const char *name = store_.name(path_).c_str();
    if (result == -EAGAIN || result == -EINTR) {
        if (++request.agains <= kAgainsMax) {
            parts_.hops.retried(task);
            again_.push_back(index);
            full_ = busy_ = true;  // nothing more before the next poll, which waits a moment
            return;
        }
        request.errors = parts_.options.retries_max;
    }
    if (result < 0) {
        const int cause = static_cast<int>(-result);
        const bool full = cause == ENOSPC || cause == EDQUOT;
        try_again(index, Status::os_error(full ? STW_ERROR_NO_SPACE : STW_ERROR_IO, cause,
                                          "%s block %u in '%s' failed: %llu bytes at offset %llu, "
                                          "after %u retries",
                                          what, task.job.transfer.block, name, wide(request.bytes),
                                          wide(at), request.errors));
        return;
    }
    const uint64_t moved = static_cast<uint64_t>(result) / device_.alignment * device_.alignment;
    if (moved > 0 && moved < request.bytes) {
        request.offset += moved;
        request.bytes -= moved;
        again_.push_back(index);
        return;
    }
    try_again(index, Status::error(STW_ERROR_IO,
                                   "%s block %u in '%s' failed: %lld bytes moved of %llu at offset "
                                   "%llu, after %u retries%s.",
                                   what, task.job.transfer.block, name,
                                   static_cast<long long>(result), wide(request.bytes), wide(at),
                                   request.errors, result == 0 ? "; the file ends before it" : ""));
}

void StorageThread::refused(uint32_t index, stw_status code)
{
    const Request &request = requests_[index];
    const Task &task = *request.task;
    try_again(index, Status::error(code,
                                   "The driver of '%s' refused to %s block %u, %llu bytes at "
                                   "offset %llu, after %u retries: %s.",
                                   store_.name(path_).c_str(), request.reads ? "read" : "write",
                                   task.job.transfer.block, wide(request.bytes),
                                   wide(task.place.offset + request.offset), request.errors,
                                   memory::status_text(code)));
}

void StorageThread::try_again(uint32_t index, Status failure)
{
    Request &request = requests_[index];
    Task &task = *request.task;
    if (task.status.ok() && request.errors < parts_.options.retries_max) {
        ++request.errors;
        parts_.hops.retried(task);
        again_.push_back(index);
        return;
    }
    failure.mutable_detail().tier = static_cast<uint32_t>(residency::Tier::kNvme);
    failure.mutable_detail().offset_bytes = task.job.transfer.pack_offset + request.offset;
    if (task.status.ok()) fail(task, std::move(failure));
    drop(index);
}

// The request is over, with success or not.
void StorageThread::drop(uint32_t index)
{
    Task &task = *requests_[index].task;
    requests_[index].task = nullptr;
    free_.push_back(index);
    STW_ASSERT(task.open_requests > 0);
    --task.open_requests;
    const bool all_given = !task.status.ok() || task.given_bytes == task.io_bytes;
    if (task.open_requests == 0 && all_given) settling_.push_back(&task);
}

// Keeps the first cause. Requests that the device has are waited for, the others are not sent.
void StorageThread::fail(Task &task, Status status)
{
    task.status = std::move(status);
    std::erase(begun_, &task);
    const auto unsent = [this, &task](uint32_t index) {
        if (requests_[index].task != &task) return false;
        requests_[index].task = nullptr;
        free_.push_back(index);
        --task.open_requests;
        return true;
    };
    std::erase_if(again_, unsent);
    if (task.open_requests == 0) settling_.push_back(&task);
}

// -------------------------------------------------------------------------------- a block's end --

// True: no further read is needed. A mismatch may come from the transfer, so the block is read once
// more before its bytes are reported as wrong.
bool StorageThread::verified(Task &task)
{
    const uint64_t found = store_.sum(task.place, task.data);
    if (found == task.place.sum) return true;
    if (!task.read_again) {
        task.read_again = true;
        task.given_bytes = 0;
        parts_.hops.retried(task);
        begun_.push_back(&task);
        return false;
    }
    task.status = Status::error(
        STW_ERROR_CHECKSUM,
        "Block %u in slot %u of '%s' (%llu bytes at offset %llu) is not what was written: checksum "
        "%016llx, expected %016llx, read twice. The medium, the path to it or another program "
        "changed it.",
        task.job.transfer.block, task.place.slot, store_.name(path_).c_str(),
        wide(task.place.bytes), wide(task.place.offset), wide(found), wide(task.place.sum));
    task.status.mutable_detail().tier = static_cast<uint32_t>(residency::Tier::kNvme);
    task.status.mutable_detail().offset_bytes = task.job.transfer.pack_offset;
    return true;
}

// One block at a time: between two of them the device's queue is filled again.
void StorageThread::settle()
{
    if (settling_.empty()) return;
    Task &task = *settling_.front();
    settling_.erase(settling_.begin());
    if (is_read(task) && task.status.ok() && !verified(task)) return;
    const bool moved = task.status.ok();
    parts_.hops.end(task, parts_.hops.storage_link(task), moved);
    if (moved && task.route == Route::kReadStaged) {
        parts_.queue_copy(task);
    } else {
        parts_.finish(task, outbox_);
    }
}

}  // namespace stepwell::transfer
