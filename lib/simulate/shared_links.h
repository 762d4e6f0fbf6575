// SPDX-License-Identifier: Apache-2.0
// SharedLinks: the links of a machine in virtual time, for any number of ranks. A link serves one
// transfer of each rank at a time, the most urgent first, and divides its bandwidth evenly among
// the ranks that it serves. So equal ranks end together, and one of them can represent all, with
// the weight of those that share the link. A transfer passes its links one after the other. Pure;
// one thread.
#pragma once

#include "lib/residency/types.h"
#include "lib/simulate/machine.h"

#include <array>
#include <deque>
#include <queue>
#include <vector>

namespace stepwell::simulate {

using residency::Instant;

class SharedLinks {
public:
    // folded: one rank represents all GPUs of the machine.
    SharedLinks(const Machine &machine, uint32_t ranks, bool folded);

    using Tag = uint64_t;
    struct Ended {
        uint32_t rank = 0;
        Tag tag = 0;
    };

    // Over these links in this order; without links it ends now.
    void submit(uint32_t rank, Tag tag, const std::vector<uint32_t> &path, uint64_t bytes,
                uint32_t urgency, Instant now);
    // The transfer is served before less urgent ones from now on, at this link and later ones.
    void promote(uint32_t rank, Tag tag, uint32_t urgency);
    void remind(uint32_t rank, Tag tag, Instant at);  // ends then, without a link
    [[nodiscard]] Instant next() const;
    // Everything that ends at this instant, which must be next(). Call flush() before time goes
    // on.
    void take(Instant now, std::vector<Ended> *ended);
    // Divides bandwidths again, once for each instant, when all that begins and ends then is
    // known.
    void flush(Instant now);

    // The links of a route in the machine's order, for submit().
    // Of a storage path, counted from 1, with those that are of none.
    [[nodiscard]] std::vector<uint32_t> path_of(Route route, uint32_t storage_path = 1) const;
    // Of an update in host memory, if it shares the memory's bandwidth with transfers; else empty.
    [[nodiscard]] std::vector<uint32_t> memory_path() const;
    // A link of each rank's own that is not the machine's, for collectives.
    uint32_t add_own(double bytes_per_s, uint64_t latency_ns);
    // Rank 0's bytes by link since the last call, including those that transfers under way have
    // moved.
    std::vector<double> take_use(Instant now);
    [[nodiscard]] bool idle() const { return in_flight_ == 0; }
    [[nodiscard]] uint64_t in_flight() const { return in_flight_; }

private:
    static constexpr uint32_t kUrgencies = 4;
    struct Job {
        uint32_t rank = 0;
        Tag tag = 0;
        std::vector<uint32_t> path;
        uint32_t at = 0;  // in `path`
        uint64_t bytes = 0;
        uint32_t urgency = 0;
    };
    // A rank at an instance of a link.
    struct Seat {
        std::array<std::deque<uint32_t>, kUrgencies> queues;
        uint32_t job = UINT32_MAX;  // being served
        double left = 0;            // bytes left at `since`
        double told = 0;            // bytes that take_use() has returned
        Instant since = 0;
        double share = 0;  // bytes per nanosecond; 0: just begun
        uint64_t version = 0;
    };
    struct Instance {
        uint32_t link = 0;
        uint32_t served = 0;
        bool dirty = false;
        std::vector<uint32_t> seats;
    };
    struct Event {
        Instant at = 0;
        uint64_t order = 0;
        uint32_t seat = UINT32_MAX;  // its service ends; UINT32_MAX: the job goes on
        uint32_t job = 0;
        uint64_t version = 0;
        bool operator>(const Event &other) const
        {
            return at != other.at ? at > other.at : order > other.order;
        }
    };
    struct Kind {
        Link link;
        uint32_t weight = 1;  // of each rank
    };

    void add_kind(const Link &link, uint32_t sharers);
    void add_memory(const Machine &machine);
    void enter(uint32_t job, Instant now);
    void serve_next(uint32_t seat, Instant now);
    void leave(uint32_t seat, Instant now);
    void touch(uint32_t instance);
    void clean();
    uint32_t take_job();
    static double left_at(const Seat &seat, Instant now);

    const uint32_t ranks_;
    const bool folded_;
    std::vector<Kind> kinds_;
    uint32_t memory_ = UINT32_MAX;  // the first of three kinds: of nvme, of GPUs, of updates
    std::vector<Instance> instances_;
    std::vector<Seat> seats_;            // kind x ranks + rank
    std::vector<uint32_t> instance_of_;  // by seat
    std::vector<Job> jobs_;
    std::vector<uint32_t> free_jobs_;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::vector<uint32_t> dirty_;
    std::vector<double> use_;  // by kind
    uint64_t order_ = 0;
    uint64_t in_flight_ = 0;
};

}  // namespace stepwell::simulate
