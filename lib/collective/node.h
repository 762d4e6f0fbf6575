// SPDX-License-Identifier: Apache-2.0
// The ranks of one host: they find each other, add up their host budgets, and tell each other where
// they stand, so that an error can name who is missing. Knows no engine: how ranks tell each other
// anything is the caller's `exchange`.
#pragma once

#include "lib/collective/process.h"
#include "lib/collective/processors.h"
#include "lib/collective/segment.h"
#include "lib/support/status.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace stepwell::collective {

struct NodeOptions {
    uint32_t rank = 0;
    uint32_t ranks = 1;
    uint64_t host_bytes = 0;       // of this rank's host tier
    uint64_t node_host_bytes = 0;  // of all ranks of the host together; 0: no limit
    Processors processors;
    // `bytes` of each rank to all, in rank order; blocks, at most as long as the caller's timeout.
    std::function<Status(const void *record, void *records, uint32_t bytes)> exchange;
    HostId host = this_host();
    ProcessId process = this_process();
};

// Where a rank stands.
struct Standing {
    bool here = false;  // on this host; else nothing below is known
    bool left = false;  // it closed
    Life life = Life::kUnknown;
    uint64_t collective = 0;
    std::string text;
};

class Node {
public:
    // COLLECTIVE: at most three exchanges, the same on all ranks, whatever goes wrong on which;
    // what fails on one rank fails on all with its code. BUDGET: the ranks of some host together
    // want more than the least node_host_bytes among them. MISMATCH: different builds. Else as
    // exchange.
    static Result<std::unique_ptr<Node>> join(const NodeOptions &options);
    // Says that the rank left. Not collective.
    ~Node();
    Node(const Node &) = delete;
    Node &operator=(const Node &) = delete;

    // Those of the group that are on this host, in order; this one among them.
    [[nodiscard]] const std::vector<uint32_t> &ranks() const { return ranks_; }
    // This rank's place in ranks(); 0: the first of the host.
    [[nodiscard]] uint32_t index() const { return index_; }
    // Host bytes of all of them together, as at join.
    [[nodiscard]] uint64_t host_bytes() const { return host_bytes_; }
    // What each of ranks() may run on.
    [[nodiscard]] const std::vector<Processors> &processors() const { return processors_; }

    // This rank begins collective `number`; the text is cut at kStandingBytesMax. One thread at a
    // time. Never blocks; no system call.
    void stands(uint64_t number, std::string_view text) { own_->write(number, text); }
    // Any thread; reads /proc.
    [[nodiscard]] Standing standing(uint32_t rank) const;
    // "rank 3 (process 4242) is stopped; collective 17: gathering 'w'": for sentences. Any thread.
    [[nodiscard]] std::string describe(uint32_t rank) const;

    // As Segment::lanes().
    [[nodiscard]] FairLane *disk_lanes(uint64_t disk) const { return segment_->lanes(disk); }
    // False in a fork of the rank, which is none: it may destroy the node and nothing else.
    [[nodiscard]] bool is_rank() const { return segment_ && segment_->is_mapped(); }

private:
    struct Joining;
    Node() = default;
    [[nodiscard]] uint32_t index_of(uint32_t rank) const;

    std::unique_ptr<Segment> segment_;
    RankSlot *own_ = nullptr;  // in segment_
    std::vector<uint32_t> ranks_;
    std::vector<ProcessId> processes_;  // as ranks_
    std::vector<Processors> processors_;
    uint32_t index_ = 0;
    uint64_t host_bytes_ = 0;
};

}  // namespace stepwell::collective
