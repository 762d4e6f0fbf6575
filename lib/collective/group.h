// SPDX-License-Identifier: Apache-2.0
// A group of ranks over a collective driver: one collective at a time, each waited for, the first
// failure kept. After a failure the group is broken and every call says so again: ranks cannot know
// any more at which collective the others are. One thread at a time.
#pragma once

#include "lib/collective/agreement.h"
#include "lib/support/status.h"

#include <stepwell/driver.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::collective {

struct GroupTotals {
    uint64_t collectives = 0;  // without the exchanges before them
    uint64_t bytes = 0;        // that this rank sent or received from others
    uint64_t busy_ns = 0;
    uint64_t errors = 0;

    GroupTotals &operator+=(const GroupTotals &other)
    {
        collectives += other.collectives;
        bytes += other.bytes;
        busy_ns += other.busy_ns;
        errors += other.errors;
        return *this;
    }
};

class Group {
public:
    // Takes `collective` over. The ranks compare what they were told: MISMATCH.
    static Result<std::unique_ptr<Group>> open(const stw_collective_ops *ops,
                                               stw_collective *collective, uint64_t timeout_ns,
                                               bool caller_thread);
    ~Group();
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;

    [[nodiscard]] uint32_t rank() const { return rank_; }
    [[nodiscard]] uint32_t size() const { return size_; }
    [[nodiscard]] const char *driver() const { return ops_->name; }
    [[nodiscard]] const std::string &remark() const { return remark_; }
    [[nodiscard]] uint64_t timeout_ns() const { return timeout_ns_; }
    [[nodiscard]] bool caller_thread() const { return caller_thread_; }
    [[nodiscard]] bool takes_host_memory() const
    {
        return (ops_->capabilities & STW_COLLECTIVE_HOST) != 0;
    }
    // Of a device: what collectives go on there; null: it takes no memory of a device.
    [[nodiscard]] void *stream() const { return stream_; }

    // Every rank's record to every rank, compared; `records` has size(). What compare() says is the
    // answer; ORDER breaks the group, a rank that cannot take part does not.
    Status agree(Record record, std::vector<Record> &records);
    // Bytes of each rank to all, uncompared; at most STW_EXCHANGE_BYTES_MAX.
    Status exchange(const void *record, void *records, uint32_t bytes);
    Status all_gather(const void *shard, void *whole, uint64_t shard_bytes);
    Status reduce_scatter(const void *whole, void *shard, uint64_t shard_elements, uint32_t dtype);
    Status all_reduce(void *data, uint64_t elements, uint32_t dtype);

    // Memory that collectives use from now on, if the engine has a use for that. UNSUPPORTED.
    Status register_memory(void *base, uint64_t bytes);
    void unregister_memory(void *base);

    // The group's first failure; OK while it works. Any thread.
    [[nodiscard]] const Status &broken() const
    {
        return is_broken_.load(std::memory_order_acquire) ? broken_ : works_;
    }
    // The engine may still write into memory of a collective that was given up: it cannot be used
    // for anything else as long as the process lives.
    [[nodiscard]] bool holds_memory() const { return holds_memory_; }
    // Another group failed that the same work needs: this one is broken with it.
    void fail_with(const Status &cause);
    // Any thread: what is waited for now ends with CANCELLED, and breaks the group.
    void give_up() { gives_up_.store(true, std::memory_order_relaxed); }

    // Those with colour -1 get null.
    Result<std::unique_ptr<Group>> split(int32_t colour, uint32_t key);

    // What is known of a rank otherwise, for sentences; null: nothing. Until it is taken back.
    void set_witness(std::function<std::string(uint32_t rank)> describe)
    {
        describe_ = std::move(describe);
    }
    // Collectives so far, exchanges and all.
    [[nodiscard]] uint64_t sequence() const { return sequence_; }

    // One runtime at a time: its collectives are the group's order.
    bool take()
    {
        if (taken_.exchange(true)) return false;
        gives_up_.store(false, std::memory_order_relaxed);  // the one before it did, to close
        return true;
    }
    void give() { taken_.store(false); }
    [[nodiscard]] bool taken() const { return taken_.load(); }

    [[nodiscard]] GroupTotals totals() const;

private:
    Group(const stw_collective_ops *ops, stw_collective *collective, uint64_t timeout_ns);
    Status join(bool caller_thread);
    Status started(stw_status code, const char *what) const;
    [[nodiscard]] std::string late_ranks(uint64_t work, int *first_out) const;
    Status wait(uint64_t work, const char *what, uint64_t bytes, bool exchanges);
    Status finish(stw_status code, uint64_t work, const char *what, uint64_t bytes);
    Status give_in(uint64_t work, const char *what, bool exchanges);
    Status broke(Status status);
    void keep_failure(const Status &status);

    const stw_collective_ops *ops_;
    stw_collective *collective_;
    uint64_t timeout_ns_;
    uint32_t rank_ = 0;
    uint32_t size_ = 1;
    bool caller_thread_ = false;
    void *stream_ = nullptr;
    std::string remark_;
    uint64_t sequence_ = 0;
    // Mine and then everybody's: the engine's while an exchange is under way.
    std::unique_ptr<std::vector<char>> exchanged_;
    std::function<std::string(uint32_t rank)> describe_;
    const Status works_;
    Status broken_;  // written once, before the flag
    std::atomic<bool> is_broken_{false};
    bool holds_memory_ = false;
    bool holds_records_ = false;
    std::atomic<bool> gives_up_{false};
    std::atomic<bool> taken_{false};
    std::atomic<uint64_t> collectives_{0};
    std::atomic<uint64_t> bytes_{0};
    std::atomic<uint64_t> busy_ns_{0};
    std::atomic<uint64_t> errors_{0};
};

}  // namespace stepwell::collective
