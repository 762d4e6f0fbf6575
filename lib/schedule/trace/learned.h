// SPDX-License-Identifier: Apache-2.0
// Learned: one way in which a step of a phase went, or was declared to go, with an index of
// tensors' uses. Fetches are numbered over both lanes, in the order in which they were seen.
// Pure; one thread at a time.
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
    [[nodiscard]] Step take_events() { return std::move(events_); }  // nothing else works then
    // The numbers of a lane's fetches, and where a fetch stands among those of its own lane.
    [[nodiscard]] const std::vector<uint32_t> &order(Lane lane) const
    {
        return order_[static_cast<size_t>(lane)];
    }
    [[nodiscard]] uint32_t index_in_lane(uint32_t number) const { return index_[number]; }
    // What is fetched from the beginning on: all of the program, and of updates the first of each
    // tensor; and so what updates fetch behind the program's last one.
    [[nodiscard]] const std::vector<uint32_t> &opening() const { return opening_; }
    [[nodiscard]] const std::vector<uint32_t> &closing() const { return closing_; }
    // All that updates fetch of the tensor of this one.
    [[nodiscard]] residency::Request update_request(uint32_t number) const;
    // What the lane computed since its fetch before this one.
    [[nodiscard]] uint64_t compute_before(uint32_t number) const;

    struct Use {
        residency::TensorId tensor = residency::kNone;
        uint32_t number = 0;
    };
    // Of one tensor, ascending; where they end is seen when that is reached.
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
        const Use *end_;  // of all tensors'; begin_ where the tensor has none
    };
    // From that number on.
    [[nodiscard]] UsesOf uses(residency::TensorId tensor, uint64_t from = 0) const;

    // The same number for all that go like it.
    [[nodiscard]] uint64_t key() const { return key_; }
    [[nodiscard]] uint64_t compute_ns() const;    // of the program
    [[nodiscard]] uint64_t update_bytes() const;  // fetched by updates beside it
    // The program's fetches are the same in the same order. Only times may differ, how views end,
    // and what updates do beside them: how far these come by the end of a step is chance.
    [[nodiscard]] bool goes_like(const Learned &other) const;
    // The same, but for how many bytes of each tensor.
    [[nodiscard]] bool goes_through(const Learned &other) const;
    // From now on what only goes through the same tensors goes like it; its bytes are the newest.
    void mix_lengths();
    // Becomes the newer one, which goes like it, with gaps that are a mean of both.
    void renew(Learned newer);

    [[nodiscard]] uint64_t bytes() const;
    // Of each event at most, with what recording it in a vector that doubles has taken.
    static constexpr uint64_t kEventBytesMax =
        2 * sizeof(Event) + 5 * sizeof(uint32_t) + sizeof(Use);

    bool declared = false;
    uint64_t seen = 0;                     // steps that went so
    uint64_t last_seen = 0;                // the phase's step when it did so last
    const Learned *followed_by = nullptr;  // how the step after it goes; null: not known, or gone
    // One that comes once does not change what usually comes.
    void note_followed_by(const Learned *next);

private:
    bool goes(const Learned &other, bool (*same)(const Event &, const Event &)) const;
    [[nodiscard]] uint64_t make_key() const;
    void find_openings();

    uint32_t followed_so_ = 0;  // times, less those it was not
    uint64_t key_ = 0;
    bool mixes_lengths_ = false;
    Step events_;
    std::vector<uint32_t> fetch_at_;
    std::vector<uint32_t> index_;
    std::array<std::vector<uint32_t>, kLanes> order_;
    std::vector<Use> uses_;  // by tensor and number
    std::vector<uint32_t> opening_;
    std::vector<uint32_t> closing_;
};

}  // namespace stepwell::schedule
