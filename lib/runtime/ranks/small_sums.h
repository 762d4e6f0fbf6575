// SPDX-License-Identifier: Apache-2.0
// Small sums that are adjacent in the queue, and the layout of the bucket in which they go out:
// one collective for those of the same kind (sharded or not, and dtype). Depends only on the
// members and the number of ranks.
#pragma once

#include "lib/collective/bucket.h"
#include "lib/runtime/group/state.h"

#include <functional>
#include <vector>

namespace stepwell {

class SmallSums {
public:
    // Small enough to be summed together with others.
    static bool is_small(const Collective &sum);
    // Bytes in a bucket.
    static uint64_t bytes_of(const Collective &sum);

    // The members belong to the queue, which must outlive this.
    SmallSums(std::vector<Collective *> members, uint32_t ranks);

    [[nodiscard]] const std::vector<Collective *> &members() const { return members_; }
    // Of the first `n` members; compared by ranks.
    [[nodiscard]] uint64_t hash(uint64_t n) const;
    // Of the bucket, including the sums.
    [[nodiscard]] uint64_t bytes() const { return bytes_; }

    // Copies between a member's buffer and the bucket.
    using Move = std::function<Status(void *, const void *, uint64_t)>;
    Status put(size_t member, const char *source, char *bucket, const Move &move) const;
    Status get(size_t member, const char *bucket, char *sums, const Move &move) const;
    // Leaves only the first member, which is in the bucket already.
    Status leave_first(char *bucket, const Move &move);
    // Calls `sum` for each part with its source, destination, elements and dtype.
    using Sum = std::function<Status(char *, char *, uint64_t, uint32_t)>;
    Status reduce(char *bucket, const Sum &sum) const;

private:
    struct Part {
        bool sharded = false;
        uint32_t dtype = 0;
        uint64_t rank_bytes = 0;
        uint64_t begin = 0;  // in the bucket
        uint64_t sums = 0;   // equals `begin` if summed in place (replicated)
    };
    void lay();

    std::vector<Collective *> members_;
    uint32_t ranks_;
    std::vector<collective::BucketTensor> tensors_;
    std::vector<Part> parts_;
    std::vector<uint32_t> part_of_;  // by member; unused for one without bytes
    std::vector<uint64_t> offsets_;  // by member: of its slice within each rank's part
    uint64_t bytes_ = 0;
};

}  // namespace stepwell
