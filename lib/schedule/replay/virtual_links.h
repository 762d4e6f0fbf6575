// SPDX-License-Identifier: Apache-2.0
// VirtualLinks: the links of a machine in virtual time. Each takes its most urgent waiting
// transfer, first come first served among equals, and as many at once as its depth; latencies
// overlap, bytes follow each other, and links of a group share the group's bandwidth. Pure; one
// thread.
#pragma once

#include "lib/schedule/replay/machine.h"

#include <array>
#include <deque>
#include <queue>
#include <unordered_map>
#include <vector>

namespace stepwell::schedule {

struct LinkUse {
    uint64_t bytes = 0;
    uint64_t transfers = 0;
    uint64_t busy_ns = 0;  // with bytes
};

// A transfer, for a timeline.
struct Span {
    uint32_t link = kNoLink;
    residency::TensorId tensor = residency::kNone;
    residency::Class urgency = residency::Class::kIdle;
    uint64_t bytes = 0;
    residency::Instant begin = 0;  // of its bytes
    residency::Instant end = 0;
};

class VirtualLinks {
public:
    // The machine must outlive this.
    explicit VirtualLinks(const Machine &machine);

    // Transfers take no time while this is set. Only when nothing is in flight.
    void set_instant(bool instant) { instant_ = instant; }
    void set_recording(bool recording) { recording_ = recording; }

    // Fails if there is no link between the places; a transfer within a place takes no time.
    Status submit(const residency::Transfer &transfer, residency::Instant now);
    void promote(residency::TransferId transfer);
    // End of the next transfer; kNever: nothing is in flight.
    [[nodiscard]] residency::Instant next_end() const;
    // The transfer that ends next. Starts one that waited for its link.
    residency::TransferId take_ended();

    // Since the last call: bytes submitted, and busy time.
    std::vector<LinkUse> take_use();
    std::vector<Span> take_spans();

private:
    struct Waiting {
        residency::Transfer transfer;
        uint32_t link = kNoLink;
    };
    struct Flying {
        residency::Instant end = 0;
        uint64_t order = 0;
        residency::TransferId transfer = 0;
        uint32_t link = kNoLink;
        bool operator>(const Flying &other) const
        {
            return end != other.end ? end > other.end : order > other.order;
        }
    };
    static constexpr size_t kClasses = 4;
    struct State {
        std::array<std::deque<residency::TransferId>, kClasses> queues;  // by class
        uint32_t flying = 0;
        residency::Instant free_at = 0;
        LinkUse use;
    };

    void start_some(uint32_t link, residency::Instant now);
    void start(uint32_t link, const residency::Transfer &transfer, residency::Instant now);

    const Machine &machine_;  // not owned
    std::vector<State> states_;
    std::vector<uint32_t> link_of_;  // by from x places + to
    std::vector<residency::Instant> group_free_at_;
    std::unordered_map<residency::TransferId, Waiting> waiting_;
    std::priority_queue<Flying, std::vector<Flying>, std::greater<>> flying_;
    std::vector<Span> spans_;
    uint64_t order_ = 0;
    bool instant_ = false;
    bool recording_ = false;
};

}  // namespace stepwell::schedule
