// SPDX-License-Identifier: Apache-2.0
// FetchQueue: the fetches that are not answered, by number; those that wait, in the order in which
// they are served; the deadlines; and the hints whose transfers are not urgent.
#pragma once

#include "lib/residency/tensor_locks.h"
#include "lib/residency/transfer_table.h"

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace stepwell::residency {

class FetchQueue {
public:
    using Fetches = std::unordered_map<FetchId, Fetch>;

    FetchQueue(const Places &places, TensorTable &tensors, const BlockTable &blocks,
               TransferTable &transfers, const TensorLocks &locks);

    FetchId next_id() { return next_++; }
    [[nodiscard]] FetchId last_id() const { return next_ - 1; }
    void add(FetchId id, const FetchAsked &asked);
    void dequeue(const Fetch &fetch);
    void forget(Fetch &fetch);
    Fetch &at(FetchId id) { return fetches_.at(id); }
    [[nodiscard]] const Fetch &at(FetchId id) const { return fetches_.at(id); }
    [[nodiscard]] Fetch *find(FetchId id);
    [[nodiscard]] const Fetch *find(FetchId id) const;
    [[nodiscard]] bool has(FetchId id) const { return fetches_.count(id) > 0; }
    // Those that wait for locks or room, first to be served first; they do not move in memory.
    [[nodiscard]] const std::vector<Queued> &queue() const { return queue_; }

    [[nodiscard]] Instant next_deadline() const;
    [[nodiscard]] bool has_due(Instant now) const
    {
        return !deadlines_.empty() && deadlines_.begin()->first.first <= now;
    }
    [[nodiscard]] FetchId first_due() const { return deadlines_.begin()->first.second; }

    void note_slow_hint(FetchId id) { slow_hints_.push_back(id); }
    void hurry_hints(const Fetch &fetch, Commands &out);
    [[nodiscard]] std::vector<FetchId> hints_of(TensorId tensor) const;  // oldest first

    [[nodiscard]] std::vector<FetchId> stuck() const;
    // Prefetches that wait for locks or room, oldest first.
    [[nodiscard]] std::vector<FetchId> blocked_hints() const;
    [[nodiscard]] bool is_awaited(TensorId tensor, FetchId number) const;
    [[nodiscard]] bool is_blocked(FetchId fetch) const;
    [[nodiscard]] bool waits_for_locks(FetchId fetch) const;
    // The tensor whose locks it waits for; kNone: it waits for none.
    [[nodiscard]] TensorId waits_for(FetchId fetch) const;
    [[nodiscard]] bool waits_for_room(FetchId fetch) const;
    [[nodiscard]] bool waits_for_nvme(FetchId fetch) const;
    [[nodiscard]] std::string describe_waiting(size_t lines_max) const;

private:
    static constexpr size_t kSpareFetches = 16;

    Fetch &new_fetch(FetchId id);
    void enqueue(Fetch &fetch);

    const Places &places_;
    TensorTable &tensors_;
    const BlockTable &blocks_;
    TransferTable &transfers_;
    const TensorLocks &locks_;
    Fetches fetches_;
    std::vector<Fetches::node_type> spare_;  // of answered fetches, kept for their memory
    std::vector<Queued> queue_;              // of fetches_, which never move
    std::map<std::pair<Instant, FetchId>, bool> deadlines_;
    std::vector<FetchId> slow_hints_;  // with their locks, whose transfers are not urgent
    FetchId next_ = 1;
};

}  // namespace stepwell::residency
