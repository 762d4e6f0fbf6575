// SPDX-License-Identifier: Apache-2.0
// What the modes of bench-ranks share: the MPI job with its group, and streams of tensors that are
// asked for some ahead. Rank 0 alone prints.
#pragma once

#include "measure.h"

#include <stepwell/stepwell.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace bench {

// MPI from its beginning to its end, and a group of all its ranks.
class Job {
public:
    Job(int *count, char ***words);
    ~Job();
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;

    void join(const std::string &module);  // "": where the library looks by itself

    [[nodiscard]] uint32_t rank() const { return rank_; }
    [[nodiscard]] uint32_t size() const { return size_; }
    [[nodiscard]] stw_group *group() const { return group_; }
    [[nodiscard]] bool speaks() const { return rank_ == 0; }

    void meet() const;
    // Of all ranks, on all ranks.
    [[nodiscard]] double most(double mine) const;
    [[nodiscard]] double least(double mine) const;
    [[nodiscard]] double sum(double mine) const;
    // Seconds of what all ranks begin together, until the last one is done.
    double together(const std::function<void()> &body) const;

private:
    uint32_t rank_ = 0;
    uint32_t size_ = 1;
    stw_group *group_ = nullptr;
};

stw_tensor *create_part(stw_runtime *runtime, const std::string &name, uint32_t role,
                        uint64_t elements, uint32_t home, uint32_t partition);
stw_view take(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, uint32_t scope);
void give(stw_view *view, uint32_t flags = 0);

// Tensors whose bytes rest on the drive, read in order with some asked ahead.
class Shelf {
public:
    // scope: STW_WHOLE of sharded tensors, or of local ones that are this rank's.
    Shelf(stw_runtime *runtime, const std::string &name, uint64_t count, uint64_t elements,
          uint32_t partition);
    ~Shelf();
    Shelf(const Shelf &) = delete;
    Shelf &operator=(const Shelf &) = delete;

    // This rank's bytes, of the first `count` alone, written, and all of them on the drive alone.
    void fill(uint64_t count = UINT64_MAX);
    void all_out();
    stw_operation *ask(uint64_t index);
    static stw_view collect(stw_operation *operation);
    // Each tensor once, in order, `ahead` of them asked at a time.
    void read(uint64_t ahead, const std::function<void(uint64_t index, stw_view &view)> &use);
    [[nodiscard]] uint64_t count() const { return tensors_.size(); }
    [[nodiscard]] uint64_t shard_bytes() const;  // of this rank, without padding
    // A wrong read must not pass for a fast one.
    void check(uint64_t index, const stw_view &view) const;

private:
    stw_runtime *runtime_;
    std::vector<stw_tensor *> tensors_;
};

struct RanksOptions {
    std::string directory;
    std::string inner;  // driver under the throttle
    uint64_t rounds = 0;
    uint64_t tensor_bytes = 0;  // of a whole
    uint64_t disk_bytes = 0;    // of a rank's shards
    uint64_t rate = 0;          // of a rank's store, bytes/s; 0: as it is
    uint64_t ahead = 0;
    uint64_t window_ms = 0;  // of ranks that read beside each other
    uint64_t eager = 0;      // times as much that rank 0 asks a shared drive for
    uint64_t tensors = 0;    // small ones, and so many in a call
    uint64_t call = 0;
};

Budgets disk_budgets(const RanksOptions &options, uint64_t device_bytes, uint64_t nvme_bytes);

// Each prints JSON lines on rank 0.
void measure_fetch_whole(Job &job, const RanksOptions &options);
void measure_peak(Job &job, const RanksOptions &options);
void measure_fairness(Job &job, const RanksOptions &options);
void measure_all_gather(Job &job, const RanksOptions &options);
void measure_reduce_scatter(Job &job, const RanksOptions &options);
void measure_small(Job &job, const RanksOptions &options);
void measure_small_reduce(Job &job, const RanksOptions &options);

}  // namespace bench
