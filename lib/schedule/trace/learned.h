// SPDX-License-Identifier: Apache-2.0
// Learned: one access pattern of a phase's steps, recorded or declared, with an index of tensors'
// uses. Fetches are numbered over both lanes, in the order in which they were recorded. Pure; one
// thread at a time.
#pragma once

#include "lib/schedule/trace/step.h"

#include <array>
#include <utility>
#include <vector>

namespace stepwell::schedule {

class Learned {
public:
    explicit Learned(Step events);

    [[nodiscard]] uint32_t fetches() const { return static_cast<uint32_t>(fetch_at_.size()); }
    [[nodiscard]] const Event &fetch(uint32_t number) const { return events_[fetch_at_[number]]; }
    [[nodiscard]] const Step &events() const { return events_; }
    [[nodiscard]] Step take_events() { return std::move(events_); }  // leaves nothing usable
    // The numbers of a lane's fetches, and the index of a fetch in its lane.
    [[nodiscard]] const std::vector<uint32_t> &order(Lane lane) const
    {
        return order_[static_cast<size_t>(lane)];
    }
    [[nodiscard]] uint32_t index_in_lane(uint32_t number) const { return index_[number]; }
    // opening(): fetches from the begin of a step, of updates only the first of each tensor.
    // closing(): fetches of updates after the program's last one.
    [[nodiscard]] const std::vector<uint32_t> &opening() const { return opening_; }
    [[nodiscard]] const std::vector<uint32_t> &closing() const { return closing_; }
    // Everything that updates fetch of the tensor of this fetch.
    [[nodiscard]] residency::Request update_request(uint32_t number) const;
    // Compute time of the lane since its fetch before this one.
    [[nodiscard]] uint64_t compute_before(uint32_t number) const;

    struct Use {
        residency::TensorId tensor = residency::kNone;
        uint32_t number = 0;
    };
    // The uses of one tensor, ascending; the end is detected when it is reached.
    class UsesOf {
    public:
        UsesOf(const Use *begin, const Use *end) : begin_(begin), end_(end) {}
        struct End {};
        class Iterator {
        public:
            Iterator(const Use *at, const Use *end)
                : at_(at), end_(end), tensor_(at != end ? at->tensor : residency::kNone)
            {
            }
            const Use &operator*() const { return *at_; }
            Iterator &operator++()
            {
                ++at_;
                return *this;
            }
            bool operator!=(End) const { return at_ != end_ && at_->tensor == tensor_; }

        private:
            const Use *at_;
            const Use *end_;
            residency::TensorId tensor_;
        };
        [[nodiscard]] Iterator begin() const { return {begin_, end_}; }
        [[nodiscard]] static End end() { return {}; }
        [[nodiscard]] bool empty() const { return begin_ == end_; }
        [[nodiscard]] const Use &front() const { return *begin_; }

    private:
        const Use *begin_;
        const Use *end_;  // end of the table; begin_ if the tensor has no uses
    };
    // Uses with numbers >= `from`.
    [[nodiscard]] UsesOf uses(residency::TensorId tensor, uint64_t from = 0) const;

    // Equal for all steps with this access pattern.
    [[nodiscard]] uint64_t key() const { return key_; }
    [[nodiscard]] uint64_t compute_ns() const;    // of the program
    [[nodiscard]] uint64_t update_bytes() const;  // fetched by updates beside it
    // The program makes the same fetches in the same order. Times, ends of views and accesses of
    // updates may differ: how far updates come by the end of a step is chance.
    [[nodiscard]] bool goes_like(const Learned &other) const;
    // Likewise, but byte ranges may differ.
    [[nodiscard]] bool goes_through(const Learned &other) const;
    // From now on goes_like() ignores byte ranges; those of the newest step are kept.
    void mix_lengths();
    // Takes over a newer step with the same access pattern; compute times become means of both.
    void renew(Learned newer);

    [[nodiscard]] uint64_t bytes() const;
    // For each event at most, including the growth of the recording's vector.
    static constexpr uint64_t kEventBytesMax =
        2 * sizeof(Event) + 5 * sizeof(uint32_t) + sizeof(Use);

    bool declared = false;
    uint64_t seen = 0;                     // steps with this pattern
    uint64_t last_seen = 0;                // number of the last one in the phase
    const Learned *followed_by = nullptr;  // next step's pattern; null: not known or dropped
    // An exception does not replace what usually comes.
    void note_followed_by(const Learned *next);

private:
    bool goes(const Learned &other, bool (*same)(const Event &, const Event &)) const;
    [[nodiscard]] uint64_t make_key() const;
    void find_openings();

    uint32_t followed_so_ = 0;  // counts matches less mismatches
    uint64_t key_ = 0;
    bool mixes_lengths_ = false;
    Step events_;
    std::vector<uint32_t> fetch_at_;
    std::vector<uint32_t> index_;
    std::array<std::vector<uint32_t>, kLanes> order_;
    std::vector<Use> uses_;  // sorted by tensor and number
    std::vector<uint32_t> opening_;
    std::vector<uint32_t> closing_;
};

}  // namespace stepwell::schedule
