// SPDX-License-Identifier: Apache-2.0
// Links of all ranks in virtual time. Each kind of link stands once for so many ranks; it serves
// the most urgent first, a few at once, whose bytes follow each other. It may be slow for a while.
// Knows bytes and time, no tensors.
#pragma once

#include "tests/ranks/support.h"

#include <array>
#include <deque>
#include <vector>

namespace stepwell::ranks {

enum LinkKind : uint8_t { kDiskRead, kDiskWrite, kToDevice, kFromDevice, kLinkKinds };

struct LinkSetup {
    double bytes_per_ns = 1;
    Instant latency_ns = 0;
    uint32_t depth = 1;
    uint32_t sharers = 1;  // ranks on one of it
};

class Links {
public:
    using Setups = std::array<LinkSetup, kLinkKinds>;
    Links(const Setups &setups, uint32_t ranks);

    // A job starts, or goes on to its next link, or is over.
    struct Moved {
        uint32_t job = 0;
        Instant at = 0;  // the end of its link
    };
    // Over these kinds of links, in this order, at least one. `started` gets what a link began.
    uint32_t submit(uint32_t rank, TransferId transfer, const std::array<LinkKind, 2> &path,
                    uint32_t length, uint64_t bytes, Class urgency, Instant now, Random &random,
                    std::vector<Moved> *started);
    // What was told as the end of a link is here: true when the job is over and its number free.
    bool arrive(uint32_t job, Instant now, Random &random, std::vector<Moved> *started);
    void promote(uint32_t job);
    void set_slow(LinkKind kind, uint32_t rank, double factor);

    [[nodiscard]] uint32_t rank_of(uint32_t job) const { return jobs_[job].rank; }
    [[nodiscard]] TransferId transfer_of(uint32_t job) const { return jobs_[job].transfer; }
    [[nodiscard]] uint32_t instance_of(LinkKind kind, uint32_t rank) const
    {
        return rank / setups_[kind].sharers;
    }

private:
    static constexpr uint32_t kClasses = 4;
    struct Job {
        uint32_t rank = 0;
        TransferId transfer = 0;
        std::array<LinkKind, 2> path{};
        uint32_t length = 0;
        uint32_t at = 0;  // in the path
        uint64_t bytes = 0;
        uint32_t urgency = 0;
        bool queued = false;
    };
    struct Instance {
        std::array<std::deque<uint32_t>, kClasses> queues;
        uint32_t serving = 0;
        Instant free_at = 0;
        double slow = 1;
    };

    Instance &instance(const Job &job);
    void enter(uint32_t job, Instant now, Random &random, std::vector<Moved> *started);
    void serve(LinkKind kind, Instance &at, Instant now, Random &random,
               std::vector<Moved> *started);

    const Setups setups_;
    std::array<std::vector<Instance>, kLinkKinds> instances_;
    std::vector<Job> jobs_;
    std::vector<uint32_t> free_jobs_;
};

}  // namespace stepwell::ranks
