// SPDX-License-Identifier: Apache-2.0
// The consumers' streams of one device, and the order of their work in its blocks. Work that was
// enqueued before a release goes on after it, so the next user of the bytes, a copy or another
// stream, is ordered after a mark on that stream, on the device: the host waits for nothing.
//
// A release writes one word for each block and calls nothing. Its word has an epoch of the stream;
// a mark ends an epoch, and is behind all that was released in it. What comes behind a stream, a
// copy or another stream, makes one, and so do the next releases on that stream: a program that
// only enqueues is far ahead of its device, and a mark made when the next copy begins would be
// behind all that it has enqueued since, so that copies and kernels would take turns.
//
// Copies into the device are one stream more, whose every copy is an epoch: a view may be had when
// its copy is enqueued, and the stream that has it comes behind that.
#pragma once

#include <stepwell/driver.h>

#include "lib/residency/types.h"
#include "lib/support/status.h"
#include "lib/support/thread_annotations.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace stepwell::memory {

constexpr uint32_t kTriesMax = 60;  // of a driver that waits a second for the end of a capture

struct SlotRange {
    residency::Slot first = 0;
    uint32_t count = 0;
};

// Any thread, several at once.
class DeviceStreams {
public:
    // Of a stream; 0: the caller has synchronised, and nothing is ordered.
    using Id = uint32_t;
    static constexpr uint32_t kStreamsMax = 64;  // copies' included

    // Who has used an address of a tensor's own, and in which epoch last.
    struct Users {
        std::array<std::atomic<uint64_t>, kStreamsMax + 1> epochs{};
    };
    struct MarkList {
        std::array<uint64_t, kStreamsMax + 1> numbers{};
        uint32_t count = 0;
    };

    // `ops` have STW_MEMORY_STREAMS; they and `memory` are borrowed.
    DeviceStreams(const stw_memory_ops *ops, stw_memory *memory, uint32_t slots,
                  std::string device);

    // INVALID: no stream of this device. LIMIT: more than kStreamsMax were used.
    Result<Id> id_of(void *stream);
    // One that has been used: no call of the driver.
    [[nodiscard]] bool knows(void *stream, Id *id_out) const;
    // It is about to be destroyed. What comes behind its work does so from now on by marks that
    // there are; its handle is another stream's when it comes again. BUSY: it records a graph.
    Status forget(void *stream);
    // A stream of the driver's own, that no consumer waits for by himself: so who has synchronised
    // waits for it here. At most one, before any other is used.
    Status take_own(void *stream);
    [[nodiscard]] Id own() const { return own_; }
    // Nothing would have to be ordered by begin() to read.
    [[nodiscard]] bool is_free(Id stream, SlotRange slots) const;
    // The stream gets a view: what is enqueued on it from now on comes behind what others do there.
    // No call of the driver where nobody else does. DEVICE. BUSY, here and below: a stream that has
    // worked there records a graph, and can be marked when that is over.
    Status begin(Id stream, SlotRange slots, bool writes);
    // The view ends. Before the bytes may go: the pin ends behind this. followed: another view ends
    // in the same call, and one mark is enough for all.
    void end(Id stream, SlotRange slots, bool wrote, Users *users = nullptr,
             bool followed = false) noexcept;
    // A mark of the driver's behind all that was enqueued on the stream. INVALID, LIMIT, BUSY,
    // DEVICE.
    Result<uint64_t> mark_now(void *stream);
    // Marks behind all that they have released. DEVICE.
    Status marks_of(const Users &users, MarkList *marks_out);
    // A copy out of the slots or, with `writes`, into them is about to begin, and is of these
    // (STW_COPIES_IN or _OUT). The others wait for nothing.
    Status before_copy(SlotRange slots, bool writes, uint32_t copies);
    // Whether that would make those copies wait for what they do not wait for yet.
    [[nodiscard]] bool would_wait(SlotRange slots, bool writes, uint32_t copies);
    // As before_copy, of what storage does there itself: what has to be over is when this returns.
    // Waits for the device. DEVICE.
    Status await(SlotRange slots, bool writes);
    // Copies of these that begin from now on come behind all that was done in the slots.
    Status copies_behind(SlotRange slots, uint32_t copies);
    // Nobody comes behind anything in the slots: all of it is over.
    void forget(SlotRange slots);
    // One into them is enqueued, with this mark of the driver's behind it; returns its number.
    uint64_t copy_started(SlotRange slots, uint64_t mark);
    // And is over: nobody needs to come behind it any more.
    void copy_arrived(SlotRange slots, uint64_t number);

    [[nodiscard]] uint64_t metadata_bytes() const;

private:
    // Who used a slot last: the stream, kSeveral of them, or 0; and in which epoch of the stream.
    // Of kSeveral: how many such words there were before, all of them.
    using Word = uint64_t;
    static constexpr Id kSeveral = 255;
    static constexpr Id kCopies = 1;
    static Word word_of(uint64_t epoch, Id stream) { return epoch << 8 | stream; }
    static Id stream_of(Word word) { return static_cast<Id>(word & 255); }
    static uint64_t epoch_of(Word word) { return word >> 8; }

    // Where a stream was forgotten: no handle, and nobody marks it.
    void *no_handle(Id id) { return &streams_[id]; }
    [[nodiscard]] bool is_forgotten(Id id);
    Status take_over(Id id, void *stream, uint64_t thread) STW_REQUIRES(mutex_);

    static constexpr size_t kMarksKept = 32;
    static constexpr uint32_t kMarksDue = 64;
    struct Mark {
        uint64_t epoch = 0;  // that it ended
        uint64_t number = 0;
    };
    struct Stream {
        std::atomic<void *> handle{nullptr};
        // Of STW_STREAM_PER_THREAD: whose. That thread alone can mark it, so each release does. Of
        // copies, and of one that was forgotten: kNobody's.
        std::atomic<uint64_t> thread{0};
        std::atomic<uint64_t> epoch{1};
        std::atomic<bool> released{false};  // something, in this epoch
        // Calls that release and make a mark themselves, since something came behind the stream.
        std::atomic<uint32_t> marks_due{0};
        // Written under the lock: behind what this stream comes, epochs of the others and words of
        // kSeveral.
        std::array<std::atomic<uint64_t>, kStreamsMax + 1> streams_behind{};
        std::atomic<uint64_t> several_behind{0};
    };
    struct Marks {
        std::array<Mark, kMarksKept> last{};  // a few, oldest first
        // The epoch that copies wait for, in either direction.
        std::array<uint64_t, 2> copies_behind{};
        bool marking = false;  // a thread is in the driver's call for the next one
    };
    // By stream: the epoch that has to be over; at kAll, whether any word was of kSeveral.
    static constexpr Id kAll = 0;
    using Needs = std::array<uint64_t, kStreamsMax + 1>;

    [[nodiscard]] Id find(void *stream, uint64_t thread) const;
    [[nodiscard]] uint64_t last_epoch(Id stream) const;
    void add_need(Needs &needs, Word word, Id except) const;
    [[nodiscard]] bool comes_behind(const Stream &stream, Id id, Word word) const;
    Word several() { return word_of(several_.fetch_add(1, std::memory_order_acq_rel), kSeveral); }
    void note_read(Id id, residency::Slot slot, Word mine);
    void note_write(Id id, residency::Slot slot, Word mine);
    void note_end(Id id, SlotRange slots, bool wrote, Users *users);
    // These let go of the lock in calls of the driver, and while they wait.
    Status end_epoch(Id stream) STW_REQUIRES(mutex_);
    void await_mark(Id stream) STW_REQUIRES(mutex_);
    Result<Mark> mark_behind(Id stream, uint64_t epoch) STW_REQUIRES(mutex_);
    void keep_mark(Id stream, Mark mark) STW_REQUIRES(mutex_);
    Status await_own(SlotRange slots, bool writes);
    Status order_copies(SlotRange slots, bool writes, uint32_t copies);
    Needs needs_of(SlotRange slots, bool writes) const;
    Status failed(stw_status code, const char *what) const;

    const stw_memory_ops *const ops_;
    stw_memory *const memory_;
    const std::string device_;
    const uint32_t slots_;
    std::unique_ptr<std::atomic<Word>[]> written_;
    std::unique_ptr<std::atomic<Word>[]> read_;
    static constexpr uint64_t kNobody = UINT64_MAX;
    std::atomic<uint64_t> several_{1};  // words of kSeveral, and one
    Id own_ = 0;
    std::atomic<uint32_t> count_{kCopies};         // streams
    std::array<Stream, kStreamsMax + 1> streams_;  // from 1
    Mutex mutex_;
    Condition marked_;
    std::array<Marks, kStreamsMax + 1> marks_ STW_GUARDED_BY(mutex_);  // by stream
};

}  // namespace stepwell::memory
