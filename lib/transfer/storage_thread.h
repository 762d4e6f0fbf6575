// SPDX-License-Identifier: Apache-2.0
// One thread per storage path: decides which request goes to the device next, keeps its queue full,
// and sees every block from its first request to its verified end. All members but the engine's
// shared parts belong to this thread alone. Must not know rings other than by a task's slot, nor
// the callers that wait for a block.
#pragma once

#include "lib/transfer/parts.h"

#include <vector>

namespace stepwell::transfer {

// How the driver of a path takes requests. Constant.
struct StorageDevice {
    StorageDevice(store::Store &store, uint32_t path);

    uint32_t poll(std::vector<stw_io_done> &done, uint64_t wait_ns) const
    {
        return ops.poll(storage, done.data(), depth, wait_ns);
    }
    [[nodiscard]] const store::Requests &requests(bool of_reads) const
    {
        return of_reads ? reads : writes;
    }

    const stw_storage_ops &ops;
    stw_storage *const storage;
    const uint64_t alignment;
    const uint32_t depth;
    const store::Requests writes;
    const store::Requests reads;
};

class StorageThread {
public:
    StorageThread(Engine::Parts &parts, uint32_t path);
    void main();  // of its thread; the object may be gone when it returns

private:
    // A request for a piece of a block; its index is the low half of its tag.
    struct Request {
        Task *task = nullptr;
        uint64_t offset = 0;  // in the block
        uint64_t bytes = 0;
        uint32_t errors = 0;
        uint32_t agains = 0;
        uint32_t serial = 0;  // the high half of the tag: detects a late or double completion
        bool in_flight = false;
        bool reads = false;
    };

    // Sources of the next request, best first: a request to be sent again, more of a block that was
    // begun, a block from the queue.
    enum class Source : uint8_t { kNothing = 0, kQueue = 1, kBegun = 2, kAgain = 3 };
    struct Choice {
        Source source = Source::kNothing;
        Task *task = nullptr;
        uint32_t at = 0;  // in again_
        bool reads = false;
    };

    bool wait_for_work();
    void fill();
    bool send();
    void begin_ahead();
    void begin(Task &task);
    void give_request(Task &task);
    void collect(uint32_t n);
    void answered(uint32_t index, int64_t result);
    void refused(uint32_t index, stw_status code);
    void try_again(uint32_t index, Status failure);
    void drop(uint32_t index);
    void fail(Task &task, Status status);
    void settle();
    bool verified(Task &task);

    Choice choose() STW_REQUIRES(parts_.mutex);
    Choice best_of(bool reads, PathQueues &queues) STW_REQUIRES(parts_.mutex);
    void take(Task &task, PathQueues &queues) STW_REQUIRES(parts_.mutex);
    bool may_send(const Task &task) STW_REQUIRES(parts_.mutex);
    void tell_rest(PathQueues &queues) STW_REQUIRES(parts_.mutex);
    [[nodiscard]] uint64_t next_request_bytes(const Task &task) const;
    [[nodiscard]] bool is_full(bool reads) const;
    [[nodiscard]] bool has_room() const { return !free_.empty() || !again_.empty(); }

    Engine::Parts &parts_;
    store::Store &store_;
    const uint32_t path_;
    const StorageDevice device_;

    std::vector<Request> requests_;  // as many as the device takes
    std::vector<uint32_t> free_;
    std::vector<uint32_t> again_;  // to be sent: short, failed, or not accepted
    std::vector<uint32_t> sending_;
    std::vector<stw_io> batch_;
    std::vector<stw_io_done> done_;
    uint64_t sealed_max_ = 1;
    bool began_ahead_ = false;      // there may be more
    std::vector<Task *> begun_;     // with bytes that were not yet handed out
    std::vector<Task *> settling_;  // all requests are back
    Outbox outbox_;
    uint32_t in_flight_ = 0;
    uint32_t flying_[2] = {0, 0};  // in flight or about to: writes, reads
    uint32_t refusals_ = 0;
    bool full_ = false;  // the device accepted less than offered; no submit before the next poll
    bool busy_ = false;  // it answered EAGAIN
    bool held_ = false;  // other ranks come first on a shared disk
    uint64_t wait_ns_ = 0;
};

}  // namespace stepwell::transfer
