// SPDX-License-Identifier: Apache-2.0
#include "lib/memory/streams.h"

#include <stepwell/types.h>

#include "lib/memory/driver_error.h"
#include "lib/memory/driver_reason.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::memory {

namespace {

// Never that of another thread, as an address or a number of the system's may be.
uint64_t this_thread()
{
    static std::atomic<uint64_t> threads{0};
    thread_local const uint64_t mine = threads.fetch_add(1, std::memory_order_relaxed) + 1;
    return mine;
}

}  // namespace

DeviceStreams::DeviceStreams(const stw_memory_ops *ops, stw_memory *memory, uint32_t slots,
                             std::string device)
    : ops_(ops),
      memory_(memory),
      device_(std::move(device)),
      slots_(slots),
      written_(std::make_unique<std::atomic<Word>[]>(slots)),
      read_(std::make_unique<std::atomic<Word>[]>(slots))
{
    streams_[kCopies].handle.store(this, std::memory_order_relaxed);  // no stream of a consumer's
    streams_[kCopies].thread.store(kNobody, std::memory_order_relaxed);
}

uint64_t DeviceStreams::metadata_bytes() const
{
    return sizeof *this + slots_ * 2 * sizeof(Word);
}

Status DeviceStreams::failed(stw_status code, const char *what) const
{
    if (code == STW_ERROR_INVALID || code == STW_ERROR_BUSY) {
        return Status::error(code,
                             "%s cannot be ordered while a stream of %s records a graph; end the "
                             "capture first, fetch before it and release after the launch",
                             what, device_.c_str());
    }
    return Status::error(code,
                         "%s cannot be ordered behind the work of a stream of %s, which is lost or "
                         "was destroyed with work on it: %s",
                         what, device_.c_str(), driver_reason(ops_, memory_, code).c_str());
}

// ----------------------------------------------------------------------------------- streams ----

DeviceStreams::Id DeviceStreams::find(void *stream, uint64_t thread) const
{
    const uint32_t count = count_.load(std::memory_order_acquire);
    for (Id id = 1; id <= count; ++id) {
        if (streams_[id].handle.load(std::memory_order_acquire) == stream &&
            streams_[id].thread.load(std::memory_order_relaxed) == thread) {
            return id;
        }
    }
    return 0;
}

bool DeviceStreams::knows(void *stream, Id *id_out) const
{
    *id_out = 0;
    if (stream == STW_STREAM_SYNCED) return true;
    *id_out = find(stream, stream == STW_STREAM_PER_THREAD ? this_thread() : 0);
    return *id_out != 0;
}

bool DeviceStreams::is_free(Id stream, SlotRange slots) const
{
    for (uint32_t slot = slots.first; slot < slots.first + slots.count; ++slot) {
        const Id wrote = stream_of(written_[slot].load(std::memory_order_acquire));
        const bool ours = wrote == kCopies || wrote == own_ || wrote == kSeveral;
        if (wrote != 0 && wrote != stream && (stream != 0 || ours)) return false;
    }
    return true;
}

Result<DeviceStreams::Id> DeviceStreams::id_of(void *stream)
{
    if (stream == STW_STREAM_SYNCED) return Id{0};
    const uint64_t thread = stream == STW_STREAM_PER_THREAD ? this_thread() : 0;
    if (const Id known = find(stream, thread); known != 0) return known;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    const stw_status code = ops_->check_stream(memory_, stream, &error);
    if (code < 0) return from_driver(code, error, "the stream is none of this device");
    MutexLock lock(mutex_);
    if (const Id known = find(stream, thread); known != 0) return known;
    const uint32_t count = count_.load(std::memory_order_relaxed);
    for (Id id = kCopies + 1; id <= count; ++id) {
        if (!is_forgotten(id)) continue;
        STW_TRY(take_over(id, stream, thread));
        return id;
    }
    if (count == kStreamsMax) {
        return Status::error(STW_ERROR_LIMIT,
                             "%u streams have used views of %s, and one more is not known to it; "
                             "use fewer, or synchronise and pass STW_STREAM_SYNCED",
                             count - kCopies, device_.c_str());
    }
    streams_[count + 1].handle.store(stream, std::memory_order_relaxed);
    streams_[count + 1].thread.store(thread, std::memory_order_relaxed);
    count_.store(count + 1, std::memory_order_release);
    return Id{count + 1};
}

bool DeviceStreams::is_forgotten(Id id)
{
    return streams_[id].handle.load(std::memory_order_relaxed) == no_handle(id);
}

// A new stream takes over the number of one that was forgotten. Work of the old one counts as its
// own from now on, so it is ordered after the last mark of that.
Status DeviceStreams::take_over(Id id, void *handle, uint64_t thread)
{
    Stream &stream = streams_[id];
    const Mark &last = marks_[id].last.back();
    if (last.epoch != 0) {
        const stw_status code = ops_->stream_after(memory_, handle, last.number);
        if (code < 0) return failed(code, "A stream");
    }
    for (std::atomic<uint64_t> &behind : stream.streams_behind)
        behind.store(0, std::memory_order_relaxed);
    stream.several_behind.store(0, std::memory_order_relaxed);
    stream.thread.store(thread, std::memory_order_relaxed);
    stream.handle.store(handle, std::memory_order_release);
    return {};
}

Status DeviceStreams::forget(void *handle)
{
    Id id = 0;
    if (!knows(handle, &id) || id == 0) return {};
    MutexLock lock(mutex_);
    Stream &stream = streams_[id];
    await_mark(id);
    if (stream.handle.load(std::memory_order_relaxed) != handle) return {};
    STW_TRY(end_epoch(id));
    if ((ops_->capabilities & STW_MEMORY_CAN_FORGET) != 0) {
        marks_[id].marking = true;
        mutex_.unlock();
        const stw_status code = ops_->forget_stream(memory_, handle);
        mutex_.lock();
        marks_[id].marking = false;
        marked_.notify_all();
        if (code < 0) return failed(code, "What comes next");
    }
    stream.thread.store(kNobody, std::memory_order_relaxed);
    stream.handle.store(no_handle(id), std::memory_order_release);
    return {};
}

Status DeviceStreams::take_own(void *stream)
{
    Result<Id> id = id_of(stream);
    if (!id.ok()) return std::move(id.status());
    own_ = id.value();
    return {};
}

// ------------------------------------------------------------------------------------- marks ----

// The driver's call blocks while the stream's queue is full: without the lock, that holds up nobody
// who does not need this stream. The epoch is advanced first: a release that reads the new one may
// be after the mark.
Status DeviceStreams::end_epoch(Id id)
{
    Stream &stream = streams_[id];
    STW_ASSERT(!marks_[id].marking);
    marks_[id].marking = true;
    stream.released.store(false, std::memory_order_relaxed);
    const uint64_t epoch = stream.epoch.fetch_add(1, std::memory_order_acq_rel);
    Mark mark{epoch, 0};
    void *const handle = stream.handle.load(std::memory_order_relaxed);
    mutex_.unlock();
    const stw_status code = ops_->mark(memory_, handle, &mark.number);
    mutex_.lock();
    marks_[id].marking = false;
    marked_.notify_all();
    if (code < 0) return failed(code, "A copy");
    keep_mark(id, mark);
    return {};
}

Result<uint64_t> DeviceStreams::mark_now(void *stream)
{
    Result<Id> id = id_of(stream);
    if (!id.ok()) return std::move(id.status());
    MutexLock lock(mutex_);
    await_mark(id.value());
    STW_TRY(end_epoch(id.value()));
    return marks_[id.value()].last.back().number;
}

void DeviceStreams::await_mark(Id id)
{
    while (marks_[id].marking) marked_.wait(mutex_);
}

void DeviceStreams::keep_mark(Id id, Mark mark)
{
    std::array<Mark, kMarksKept> &marks = marks_[id].last;
    // Copies that were started together have one.
    if (marks.back().epoch != 0 && marks.back().number == mark.number) {
        marks.back() = mark;
        return;
    }
    std::rotate(marks.begin(), marks.begin() + 1, marks.end());
    marks.back() = mark;
}

// The earliest that there is.
Result<DeviceStreams::Mark> DeviceStreams::mark_behind(Id id, uint64_t epoch)
{
    const std::array<Mark, kMarksKept> &marks = marks_[id].last;
    if (marks.back().epoch < epoch) await_mark(id);
    if (marks.back().epoch < epoch) {
        if (streams_[id].thread.load(std::memory_order_relaxed) != 0)
            return Status::error(STW_ERROR_DEVICE,
                                 "What comes next cannot be ordered behind the work of a thread's "
                                 "own stream of %s, which could not be marked when it was released",
                                 device_.c_str());
        STW_TRY(end_epoch(id));
    }
    return *std::find_if(marks.begin(), marks.end(),
                         [epoch](const Mark &mark) { return mark.epoch >= epoch; });
}

// That something was released in, at the latest.
uint64_t DeviceStreams::last_epoch(Id id) const
{
    const Stream &stream = streams_[id];
    const uint64_t epoch = stream.epoch.load(std::memory_order_acquire);
    return stream.thread.load(std::memory_order_relaxed) == 0 ? epoch : epoch - 1;
}

void DeviceStreams::add_need(Needs &needs, Word word, Id except) const
{
    const Id id = stream_of(word);
    if (id == 0 || id == except) return;
    if (id != kSeveral) {
        needs[id] = std::max(needs[id], epoch_of(word));
        return;
    }
    needs[kAll] = 1;
    for (Id each = 1; each <= count_.load(std::memory_order_acquire); ++each) {
        if (each == except) continue;
        needs[each] = std::max(needs[each], last_epoch(each));
    }
}

DeviceStreams::Needs DeviceStreams::needs_of(SlotRange slots, bool writes) const
{
    STW_ASSERT(slots.first + slots.count <= slots_);
    Needs needs{};
    for (uint32_t slot = slots.first; slot < slots.first + slots.count; ++slot) {
        add_need(needs, written_[slot].load(std::memory_order_acquire), 0);
        if (writes) add_need(needs, read_[slot].load(std::memory_order_acquire), 0);
    }
    return needs;
}

// Not so where tensors share a block and have views on two streams at once: neither began behind
// the other. What a stream came behind since, it comes behind with all that it marks from now on.
bool DeviceStreams::comes_behind(const Stream &stream, Id id, Word word) const
{
    const Id other = stream_of(word);
    if (other == 0 || other == id) return true;
    const uint64_t behind = other == kSeveral
                                ? stream.several_behind.load(std::memory_order_relaxed)
                                : stream.streams_behind[other].load(std::memory_order_relaxed);
    return behind >= epoch_of(word);
}

// ------------------------------------------------------------------------------------- views ----

Status DeviceStreams::begin(Id id, SlotRange slots, bool writes)
{
    if (id == 0) return await_own(slots, writes);
    Needs needs{};
    const uint64_t several_before = several_.load(std::memory_order_acquire) - 1;
    STW_ASSERT(slots.first + slots.count <= slots_);
    for (uint32_t slot = slots.first; slot < slots.first + slots.count; ++slot) {
        add_need(needs, written_[slot].load(std::memory_order_acquire), id);
        if (writes) add_need(needs, read_[slot].load(std::memory_order_acquire), id);
    }
    if (std::all_of(needs.begin(), needs.end(), [](uint64_t epoch) { return epoch == 0; }))
        return {};
    MutexLock lock(mutex_);
    Stream &stream = streams_[id];
    for (Id other = 1; other < needs.size(); ++other) {
        std::atomic<uint64_t> &behind = stream.streams_behind[other];
        if (needs[other] == 0 || behind.load(std::memory_order_relaxed) >= needs[other]) continue;
        streams_[other].marks_due.store(kMarksDue, std::memory_order_relaxed);
        Result<Mark> mark = mark_behind(other, needs[other]);
        if (!mark.ok()) return std::move(mark.status());
        void *const handle = stream.handle.load(std::memory_order_relaxed);
        mutex_.unlock();  // the stream's queue may be full
        const stw_status code = ops_->stream_after(memory_, handle, mark.value().number);
        mutex_.lock();
        if (code < 0) return failed(code, "A stream");
        if (behind.load(std::memory_order_relaxed) < mark.value().epoch)
            behind.store(mark.value().epoch, std::memory_order_relaxed);
    }
    if (needs[kAll] != 0) stream.several_behind.store(several_before, std::memory_order_relaxed);
    return {};
}

// For who orders nothing: what he cannot have synchronised with is over first.
Status DeviceStreams::await_own(SlotRange slots, bool writes)
{
    const Needs needs = needs_of(slots, writes);
    for (const Id id : {kCopies, own_}) {
        if (id == 0 || needs[id] == 0) continue;
        uint64_t mark = 0;
        {
            MutexLock lock(mutex_);
            Result<Mark> found = mark_behind(id, needs[id]);
            if (!found.ok()) return std::move(found.status());
            mark = found.value().number;
        }
        const stw_status code = ops_->wait(memory_, mark);
        if (code < 0) return failed(code, "The caller");
    }
    return {};
}

void DeviceStreams::note_read(Id id, residency::Slot slot, Word mine)
{
    Word before = read_[slot].load(std::memory_order_relaxed);
    Word after = mine;
    do {
        const Id other = stream_of(before);
        after = other == 0 || other == id ? mine : several();
    } while (!read_[slot].compare_exchange_weak(before, after, std::memory_order_release,
                                                std::memory_order_relaxed));
}

// Who comes behind the write comes behind all that the write does: that need not be remembered.
void DeviceStreams::note_write(Id id, residency::Slot slot, Word mine)
{
    const Stream &stream = streams_[id];
    Word before = read_[slot].load(std::memory_order_acquire);
    if (before != 0 && comes_behind(stream, id, before)) {
        read_[slot].compare_exchange_strong(before, 0, std::memory_order_acq_rel,
                                            std::memory_order_relaxed);
    }
    before = written_[slot].load(std::memory_order_acquire);
    Word after = mine;
    do {
        after = comes_behind(stream, id, before) ? mine : several();
    } while (!written_[slot].compare_exchange_weak(before, after, std::memory_order_acq_rel,
                                                   std::memory_order_acquire));
}

void DeviceStreams::end(Id id, SlotRange slots, bool wrote, Users *users, bool followed) noexcept
{
    if (id == 0) return;
    Stream &stream = streams_[id];
    if (stream.thread.load(std::memory_order_relaxed) == 0) {
        note_end(id, slots, wrote, users);
        stream.released.store(true, std::memory_order_release);
        if (followed || stream.marks_due.load(std::memory_order_relaxed) == 0) return;
        MutexLock lock(mutex_);
        if (marks_[id].marking) return;  // or the next copy makes it
        const uint32_t due = stream.marks_due.load(std::memory_order_relaxed);
        if (due > 0) stream.marks_due.store(due - 1, std::memory_order_relaxed);
        (void)end_epoch(id);  // likewise
        return;
    }
    MutexLock lock(mutex_);  // before its words: who reads one waits for the mark
    note_end(id, slots, wrote, users);
    (void)end_epoch(id);  // an error is returned by the call that needs the mark
}

void DeviceStreams::note_end(Id id, SlotRange slots, bool wrote, Users *users)
{
    const Word mine = word_of(streams_[id].epoch.load(std::memory_order_acquire), id);
    if (users) users->epochs[id].store(epoch_of(mine), std::memory_order_release);
    for (uint32_t slot = slots.first; slot < slots.first + slots.count; ++slot) {
        if (wrote) {
            note_write(id, slot, mine);
        } else {
            note_read(id, slot, mine);
        }
    }
}

Status DeviceStreams::marks_of(const Users &users, MarkList *marks_out)
{
    MutexLock lock(mutex_);
    for (Id id = kCopies + 1; id <= count_.load(std::memory_order_acquire); ++id) {
        const uint64_t epoch = users.epochs[id].load(std::memory_order_acquire);
        if (epoch == 0) continue;
        Result<Mark> mark = mark_behind(id, epoch);
        if (!mark.ok()) return std::move(mark.status());
        marks_out->numbers[marks_out->count++] = mark.value().number;
    }
    return {};
}

// Each direction for itself: what leaves behind a consumer's work holds up nothing that comes.
Status DeviceStreams::order_copies(SlotRange slots, bool writes, uint32_t copies)
{
    STW_ASSERT(copies == STW_COPIES_IN || copies == STW_COPIES_OUT);
    STW_ASSERT(slots.first + slots.count <= slots_);
    MutexLock lock(mutex_);
    // An error is returned by the call that needs the mark. A stream that another thread is marking
    // may have a full queue, and is left to that thread.
    for (Id id = 1; id <= count_.load(std::memory_order_acquire); ++id) {
        if (streams_[id].released.load(std::memory_order_acquire) && !marks_[id].marking)
            (void)end_epoch(id);
    }
    const Needs needs = needs_of(slots, writes);
    for (Id id = 1; id < needs.size(); ++id) {
        uint64_t &behind = marks_[id].copies_behind[copies == STW_COPIES_OUT];
        if (needs[id] == 0 || behind >= needs[id]) continue;
        streams_[id].marks_due.store(kMarksDue, std::memory_order_relaxed);
        Result<Mark> mark = mark_behind(id, needs[id]);
        if (!mark.ok()) return std::move(mark.status());
        mutex_.unlock();
        const stw_status code = ops_->copies_after(memory_, mark.value().number, copies);
        mutex_.lock();
        if (code < 0) return failed(code, "A copy");
        behind = std::max(behind, mark.value().epoch);
    }
    return {};
}

bool DeviceStreams::would_wait(SlotRange slots, bool writes, uint32_t copies)
{
    MutexLock lock(mutex_);
    const Needs needs = needs_of(slots, writes);
    for (Id id = 1; id < needs.size(); ++id)
        if (needs[id] > marks_[id].copies_behind[copies == STW_COPIES_OUT]) return true;
    return false;
}

Status DeviceStreams::before_copy(SlotRange slots, bool writes, uint32_t copies)
{
    STW_TRY(order_copies(slots, writes, copies));
    // Whoever gets what the copy brings comes behind it, or it is over by then.
    if (writes) forget(slots);
    return {};
}

// Of copies into them as well, which are streams like others.
Status DeviceStreams::await(SlotRange slots, bool writes)
{
    const Needs needs = needs_of(slots, writes);
    for (Id id = 1; id < needs.size(); ++id) {
        if (needs[id] == 0) continue;
        uint64_t mark = 0;
        {
            MutexLock lock(mutex_);
            Result<Mark> found = mark_behind(id, needs[id]);
            if (!found.ok()) return std::move(found.status());
            mark = found.value().number;
        }
        stw_status code = STW_ERROR_BUSY;
        for (uint32_t tries = 0; code == STW_ERROR_BUSY && tries < kTriesMax; ++tries)
            code = ops_->wait(memory_, mark);
        if (code < 0) return failed(code, "What storage reads or writes");
    }
    if (writes) forget(slots);
    return {};
}

Status DeviceStreams::copies_behind(SlotRange slots, uint32_t copies)
{
    return order_copies(slots, true, copies);
}

void DeviceStreams::forget(SlotRange slots)
{
    for (uint32_t slot = slots.first; slot < slots.first + slots.count; ++slot) {
        written_[slot].store(0, std::memory_order_relaxed);
        read_[slot].store(0, std::memory_order_relaxed);
    }
}

uint64_t DeviceStreams::copy_started(SlotRange slots, uint64_t mark)
{
    MutexLock lock(mutex_);
    const uint64_t number = streams_[kCopies].epoch.fetch_add(1, std::memory_order_acq_rel);
    keep_mark(kCopies, {number, mark});
    for (uint32_t slot = slots.first; slot < slots.first + slots.count; ++slot)
        written_[slot].store(word_of(number, kCopies), std::memory_order_release);
    return number;
}

void DeviceStreams::copy_arrived(SlotRange slots, uint64_t number)
{
    for (uint32_t slot = slots.first; slot < slots.first + slots.count; ++slot) {
        Word mine = word_of(number, kCopies);
        written_[slot].compare_exchange_strong(mine, 0, std::memory_order_acq_rel);
    }
}

}  // namespace stepwell::memory
