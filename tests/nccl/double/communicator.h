// SPDX-License-Identifier: Apache-2.0
// One rank of a communicator: its collectives, as two kernels each on the stream they were given.
#pragma once

#include "tests/nccl/double/segment.h"

#include <deque>
#include <functional>
#include <map>
#include <mutex>

namespace stepwell::nccl_double {

enum class Kind : uint32_t { kAllGather = 1, kReduceScatter, kAllReduce };

struct Asked {
    Kind kind = Kind::kAllGather;
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t count = 0;  // as the caller gave it
    int type = 0;
    void *stream = nullptr;
    bool registered = false;  // all that it reads and writes
};

class Communicator : public std::enable_shared_from_this<Communicator> {
public:
    // `polls`: so often it is said to be under way, of init and of a launch. `notices`: processes
    // that are gone are found.
    Communicator(std::shared_ptr<Segment> segment, int rank, int device, int init_polls,
                 int launch_polls, bool notices);

    int rank() const { return rank_; }
    int ranks() const { return segment_->ranks(); }
    int device() const { return device_; }
    const char *last_error() const;

    // Under the lock of the calls, all of them.
    int state();
    int start(const Asked &asked);
    void fail(int code);
    void abort();
    // All that was started has ended.
    bool quiet() const { return launching_ == nullptr && ended_.load() == started_; }
    bool joined() const { return joined_; }

    void *add(uint64_t address, uint64_t bytes);
    bool remove(void *handle);
    size_t registered() const { return registered_.size(); }
    bool covers(uint64_t address, uint64_t bytes) const;

private:
    struct Step;
    static int may_give(void *step);
    static void give(void *step, void *(*alias)(uint64_t));
    static int may_get(void *step);
    static void get(void *step, void *(*alias)(uint64_t));
    int enqueue(const Asked &asked);
    bool over() const { return aborted_.load() || failure_.load() != 0; }
    bool finds_all() const;
    void break_with(int code, const std::string &sentence);

    const std::shared_ptr<Segment> segment_;
    const int rank_;
    const int device_;
    const int launch_polls_;
    const bool notices_;
    int polls_left_;
    bool joined_ = false;
    std::unique_ptr<Asked> launching_;
    uint64_t asked_ = 0;
    uint64_t started_ = 0;
    std::atomic<uint64_t> ended_{0};
    std::atomic<bool> aborted_{false};
    std::atomic<int> failure_{0};
    mutable std::mutex sentence_lock_;
    std::string sentence_;
    std::map<uint64_t, uint64_t> registered_;  // address to bytes
};

}  // namespace stepwell::nccl_double
