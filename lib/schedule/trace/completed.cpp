// SPDX-License-Identifier: Apache-2.0
// In three passes: contents, so that nothing reads an empty tensor; copies; ends of views.
#include "lib/schedule/trace/completed.h"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::TensorId;

enum class Bytes : uint8_t { kUnknown, kThere, kDead };

bool discards(const Event &event)
{
    return event.act == Act::kDiscard || event.hint == Hint::kDiscard;
}

// Repeats the step, so that the second time the contents at its begin are known.
template <class Body> void follow_contents(const Step &step, Body &&body)
{
    std::unordered_map<TensorId, Bytes> contents;
    for (uint32_t turn = 0; turn < 2; ++turn) {
        for (size_t i = 0; i < step.size(); ++i) {
            const Event &event = step[i];
            Bytes &bytes = contents[event.tensor];
            if (turn > 0) body(i, bytes);
            if (event.act == Act::kFetch && event.access != Access::kRead) bytes = Bytes::kThere;
            if (discards(event)) bytes = Bytes::kDead;
        }
    }
}

void settle_contents(Step &step)
{
    std::unordered_set<TensorId> written_unseen;
    follow_contents(step, [&](size_t i, Bytes bytes) {
        const Event &event = step[i];
        const bool reads = event.access == Access::kRead || event.access == Access::kReadWrite;
        if (event.act == Act::kFetch && reads && bytes == Bytes::kDead) {
            written_unseen.insert(event.tensor);
        }
    });
    std::erase_if(step, [&](const Event &event) {
        return event.act == Act::kDiscard && written_unseen.count(event.tensor) > 0;
    });
    for (Event &event : step) {
        if (event.hint == Hint::kDiscard && written_unseen.count(event.tensor) > 0) {
            event.hint = Hint::kNone;
        }
    }
    std::vector<size_t> added;
    follow_contents(step, [&](size_t i, Bytes bytes) {
        if (step[i].access == Access::kWriteEmpty && bytes != Bytes::kDead) added.push_back(i);
    });
    for (const size_t i : added) {
        if (step[i].act == Act::kFetch) step[i].access = Access::kReadWrite;
    }
    for (Event &event : step) {
        if (event.access == Access::kWriteEmpty) event.access = Access::kWrite;
    }
}

constexpr size_t kUnseen = SIZE_MAX;

// A view that is still open.
struct Open {
    Event fetch;
    size_t end = kUnseen;  // index of its release
};

class Completion {
public:
    Completion(const Step &recorded, uint64_t copy_bytes)
        : recorded_(recorded), copy_bytes_(std::max<uint64_t>(copy_bytes, 1))
    {
        find_ends();
    }

    Step make()
    {
        for (size_t i = 0; i < recorded_.size(); ++i) {
            if (recorded_[i].lane == Lane::kUpdate) {
                waiting_.push_back(i);
            } else {
                take(i);
            }
            while (!waiting_.empty() && !waits(waiting_.front())) {
                take(waiting_.front());
                waiting_.pop_front();
            }
        }
        for (const size_t i : waiting_) take(i);
        for (const Lane lane : {Lane::kProgram, Lane::kUpdate}) {
            for (const Open &open : open_[index(lane)]) out_.push_back(end_of(open.fetch));
        }
        return std::move(out_);
    }

private:
    static size_t index(Lane lane) { return static_cast<size_t>(lane); }
    static bool same_view(const Event &a, const Event &b)
    {
        return a.tensor == b.tensor && a.byte_begin == b.byte_begin && a.byte_count == b.byte_count;
    }
    static bool is_copy(const Event &event)
    {
        return event.act == Act::kFetch && event.place == residency::kAnyCpuPlace &&
               event.lane == Lane::kProgram;
    }
    static Event end_of(const Event &fetch)
    {
        Event end = fetch;
        end.act = Act::kRelease;
        end.hint = Hint::kNone;
        end.with_next = false;
        end.compute_ns = 0;
        return end;
    }

    static bool changes(const Event &event)
    {
        if (event.act == Act::kFetch) return event.access != Access::kRead;
        return event.act == Act::kDiscard || event.hint == Hint::kDiscard;
    }

    void take(size_t i)
    {
        Event event = recorded_[i];
        event.compute_ns += std::exchange(carried_[index(event.lane)], 0);
        switch (event.act) {
        case Act::kFetch: fetch(i, event); break;
        case Act::kRelease: release(i, event); break;
        case Act::kDiscard: discard(event); break;
        }
    }

    // True while the program holds what a call of the update lane needs.
    bool waits(size_t i) const
    {
        if (in_call_[index(Lane::kUpdate)]) return false;
        for (; i < recorded_.size(); ++i) {
            const Event &event = recorded_[i];
            if (event.lane != Lane::kUpdate) continue;
            for (const Open &open : open_[index(Lane::kProgram)]) {
                const bool same = open.end != kUnseen && open.fetch.tensor == event.tensor;
                if (same && (changes(open.fetch) || changes(event))) return true;
            }
            if (event.act != Act::kFetch || !event.with_next) break;
        }
        return false;
    }

    // Pairs each release with the oldest fetch of its view, as a replay does; a release without
    // the lock does not have the bytes.
    void find_ends()
    {
        ends_.assign(recorded_.size(), kUnseen);
        using Waiting = std::unordered_map<TensorId, std::vector<size_t>>;
        std::array<Waiting, kLanes> waiting;
        for (size_t i = 0; i < recorded_.size(); ++i) {
            const Event &event = recorded_[i];
            std::vector<size_t> &fetches = waiting[index(event.lane)][event.tensor];
            if (event.act == Act::kFetch && !is_copy(event)) fetches.push_back(i);
            if (event.act != Act::kRelease) continue;
            const auto found = std::find_if(fetches.begin(), fetches.end(), [&](size_t at) {
                return event.byte_count == 0 || same_view(recorded_[at], event);
            });
            if (found == fetches.end()) continue;
            ends_[*found] = i;
            fetches.erase(found);
        }
    }

    // Time computed since the lane's last call was computed with these views open.
    void end_unseen(Lane lane, uint64_t &compute_ns)
    {
        std::vector<Open> &views = open_[index(lane)];
        for (const Open &open : views) {
            if (open.end != kUnseen) continue;
            out_.push_back(end_of(open.fetch));
            out_.back().compute_ns = std::exchange(compute_ns, 0);
        }
        std::erase_if(views, [](const Open &open) { return open.end == kUnseen; });
    }

    void fetch(size_t at, Event event)
    {
        const bool goes_on = std::exchange(in_call_[index(event.lane)], event.with_next);
        if (!goes_on || is_copy(event)) end_unseen(event.lane, event.compute_ns);
        if (!goes_on && event.lane == Lane::kUpdate) end_pieces();
        for (size_t i = at; !goes_on && i < recorded_.size(); ++i) {
            clear_the_way(recorded_[i]);
            if (!recorded_[i].with_next) break;
        }
        if (is_copy(event)) return copy(event);
        out_.push_back(event);
        open_[index(event.lane)].push_back({event, ends_[at]});
    }

    // An update has several pieces in flight. A replay waits for each in turn, and holding them
    // all would take the room that it waits for.
    void end_pieces()
    {
        std::vector<Open> &pieces = open_[index(Lane::kUpdate)];
        for (const Open &open : pieces) out_.push_back(end_of(open.fetch));
        pieces.clear();
    }

    // Views of the other lane that conflict had ended before the grant.
    void clear_the_way(const Event &event)
    {
        std::vector<Open> &others = open_[1 - index(event.lane)];
        const auto in_the_way = [&](const Open &open) {
            return open.fetch.tensor == event.tensor && (changes(open.fetch) || changes(event));
        };
        for (const Open &open : others) {
            if (in_the_way(open)) out_.push_back(end_of(open.fetch));
        }
        std::erase_if(others, in_the_way);
    }

    void copy(Event piece)
    {
        if (!out_.empty() && out_.back().lane == piece.lane) out_.back().with_next = false;
        const uint64_t end = piece.byte_begin + piece.byte_count;
        piece.with_next = false;
        do {
            piece.byte_count = std::min(copy_bytes_, end - piece.byte_begin);
            out_.push_back(piece);
            out_.push_back(end_of(piece));
            piece.byte_begin += piece.byte_count;
            piece.compute_ns = 0;
        } while (piece.byte_begin < end);
    }

    void release(size_t at, Event event)
    {
        std::vector<Open> &views = open_[index(event.lane)];
        const auto found = std::find_if(views.begin(), views.end(),
                                        [&](const Open &open) { return open.end == at; });
        if (found != views.end()) {
            out_.push_back(end_of(found->fetch));
            out_.back().hint = event.hint;
            out_.back().compute_ns = event.compute_ns;
            views.erase(found);
            if (event.hint == Hint::kDiscard) end_views(event.tensor);
        } else if (event.hint == Hint::kDiscard) {
            event.act = Act::kDiscard;
            event.hint = Hint::kNone;
            discard(event);
        } else {
            carried_[index(event.lane)] += event.compute_ns;
        }
    }

    // The contents die after the last view.
    void discard(const Event &event)
    {
        out_.push_back(event);
        end_views(event.tensor);
    }

    // Ends the tensor's views of both lanes before the last event.
    void end_views(TensorId tensor)
    {
        for (std::vector<Open> &views : open_) {
            for (const Open &open : views) {
                if (open.end != kUnseen || open.fetch.tensor != tensor) continue;
                out_.insert(out_.end() - 1, end_of(open.fetch));
            }
            std::erase_if(views, [&](const Open &open) {
                return open.end == kUnseen && open.fetch.tensor == tensor;
            });
        }
    }

    const Step &recorded_;
    const uint64_t copy_bytes_;
    std::vector<size_t> ends_;  // by fetch: its release
    std::array<std::vector<Open>, kLanes> open_;
    std::array<bool, kLanes> in_call_{};
    std::deque<size_t> waiting_;              // of the update lane
    std::array<uint64_t, kLanes> carried_{};  // compute time before events that were left out
    Step out_;
};

}  // namespace

void fold_sums(Step &step, const std::vector<bool> &buffers)
{
    std::unordered_set<TensorId> asked;  // those that the program accesses as sums
    for (const Event &event : step) {
        if (event.lane == Lane::kProgram && event.access == Access::kWriteEmpty) {
            asked.insert(event.tensor);
        }
    }
    Step folded;
    folded.reserve(step.size());
    for (size_t begin = 0, end = 0; begin < step.size(); begin = end) {
        end = begin + 1;
        while (end < step.size() && step[end - 1].act == Act::kFetch && step[end - 1].with_next) {
            ++end;
        }
        const bool sums = step[begin].lane == Lane::kUpdate &&
                          std::any_of(step.begin() + static_cast<std::ptrdiff_t>(begin),
                                      step.begin() + static_cast<std::ptrdiff_t>(end),
                                      [&](const Event &event) { return buffers[event.tensor]; });
        for (size_t i = begin; i < end; ++i) {
            Event event = step[i];
            if (sums && (buffers[event.tensor] || asked.count(event.tensor) > 0)) continue;
            if (sums) {
                event.lane = Lane::kProgram;
                event.with_next = false;
            }
            folded.push_back(event);
        }
    }
    step = std::move(folded);
}

namespace {

// Moves releases, and the compute time before them to the events that then come first.
class Delay {
public:
    Delay(uint32_t enqueued, const residency::Config &config)
        : enqueued_(enqueued), config_(config), open_blocks_(config.places.size())
    {
    }

    Step make(const Step &step)
    {
        for (size_t i = 0; i < step.size(); ++i) {
            const Event &event = step[i];
            // Who uses the tensor next may wait for this very view.
            release([&event](const Event &late) { return late.tensor == event.tensor; });
            if (event.lane == Lane::kUpdate || event.act == Act::kDiscard) {
                put(event);
            } else if (event.act == Act::kRelease) {
                if (is_enqueued(event)) {
                    late_.push_back(event);
                    carried_ns_ += std::exchange(late_.back().compute_ns, 0);
                } else {
                    put(event);
                }
            } else {
                i = put_call(step, i);
                release([](const Event &) { return true; });
            }
        }
        release([](const Event &) { return true; });
        return std::move(out_);
    }

private:
    [[nodiscard]] bool is_enqueued(const Event &event) const
    {
        return event.place < config_.places.size() && (enqueued_ >> event.place & 1) != 0;
    }
    [[nodiscard]] uint64_t blocks_of(const Event &event) const
    {
        const uint64_t begin = event.byte_begin / config_.block_bytes;
        const uint64_t end = event.byte_begin + event.byte_count + config_.block_bytes - 1;
        return end / config_.block_bytes - begin;
    }
    // Returns the index of its last event.
    size_t put_call(const Step &step, size_t first)
    {
        size_t last = first;
        while (step[last].with_next && last + 1 < step.size()) ++last;
        std::vector<uint64_t> blocks = open_blocks_;
        for (size_t i = first; i <= last; ++i)
            if (is_enqueued(step[i])) blocks[step[i].place] += blocks_of(step[i]);
        for (size_t i = first; i <= last; ++i) {
            release([&](const Event &late) {
                return late.tensor == step[i].tensor ||
                       blocks[late.place] > config_.places[late.place].blocks;
            });
        }
        for (size_t i = first; i <= last; ++i) put(step[i]);
        return last;
    }
    template <class Which> void release(Which &&which)
    {
        for (size_t i = 0; i < late_.size();) {
            if (!which(late_[i])) {
                ++i;
                continue;
            }
            put(late_[i]);
            late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
    void put(Event event)
    {
        if (event.lane == Lane::kProgram) event.compute_ns += std::exchange(carried_ns_, 0);
        if (event.lane == Lane::kProgram && is_enqueued(event)) {
            uint64_t &blocks = open_blocks_[event.place];
            if (event.act == Act::kFetch) blocks += blocks_of(event);
            if (event.act == Act::kRelease) blocks -= std::min(blocks, blocks_of(event));
        }
        out_.push_back(event);
    }

    const uint32_t enqueued_;
    const residency::Config &config_;
    std::vector<uint64_t> open_blocks_;  // of views, by place
    std::vector<Event> late_;
    uint64_t carried_ns_ = 0;
    Step out_;
};

}  // namespace

void delay_releases(Step &step, uint32_t enqueued, const residency::Config &config)
{
    if (enqueued != 0) step = Delay(enqueued, config).make(step);
}

Step completed(const Step &recorded, uint64_t copy_bytes)
{
    Step step = recorded;
    settle_contents(step);
    return Completion(step, copy_bytes).make();
}

}  // namespace stepwell::schedule
