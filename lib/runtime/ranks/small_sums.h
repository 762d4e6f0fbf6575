// SPDX-License-Identifier: Apache-2.0
// Small sums that stand one behind the other in the queue, and where the bytes of each lie in the
// bucket they go out in: one collective for those of a kind, sharded or not and of one dtype. A
// function of the members and the number of ranks alone.
#pragma once

#include "lib/collective/bucket.h"
#include "lib/runtime/group/state.h"

#include <functional>
#include <vector>

namespace stepwell {

class SmallSums {
public:
    // Takes part in one, rather than in a collective of its own.
    static bool is_small(const Collective &sum);
    // What it takes of a bucket.
    static uint64_t bytes_of(const Collective &sum);

    // The members are those of the queue, and outlive this.
    SmallSums(std::vector<Collective *> members, uint32_t ranks);

    [[nodiscard]] const std::vector<Collective *> &members() const { return members_; }
    // Of the first `n`: what ranks compare.
    [[nodiscard]] uint64_t hash(uint64_t n) const;
    // Of the bucket, sums and all.
    [[nodiscard]] uint64_t bytes() const { return bytes_; }

    // Between a member's buffer and the bucket.
    using Move = std::function<Status(void *, const void *, uint64_t)>;
    Status put(size_t member, const char *source, char *bucket, const Move &move) const;
    Status get(size_t member, const char *bucket, char *sums, const Move &move) const;
    // The first is put, and goes alone after all.
    Status leave_first(char *bucket, const Move &move);
    // Each by `sum`: what it is of, where it goes, elements, dtype.
    using Sum = std::function<Status(char *, char *, uint64_t, uint32_t)>;
    Status reduce(char *bucket, const Sum &sum) const;

private:
    struct Part {
        bool sharded = false;
        uint32_t dtype = 0;
        uint64_t rank_bytes = 0;
        uint64_t begin = 0;  // in the bucket
        uint64_t sums = 0;   // of a replicated one in place
    };
    void lay();

    std::vector<Collective *> members_;
    uint32_t ranks_;
    std::vector<collective::BucketTensor> tensors_;
    std::vector<Part> parts_;
    std::vector<uint32_t> part_of_;  // of a member; one without bytes has none
    std::vector<uint64_t> offsets_;  // of its slice within each rank's
    uint64_t bytes_ = 0;
};

}  // namespace stepwell
