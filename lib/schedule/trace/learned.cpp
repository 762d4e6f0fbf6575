// SPDX-License-Identifier: Apache-2.0
// Uses are pairs in one sorted vector: a search of a few steps, and no table by tensor.
#include "lib/schedule/trace/learned.h"

#include <algorithm>
#include <utility>

namespace stepwell::schedule {
namespace {

bool same_tensor(const Event &a, const Event &b)
{
    return a.tensor == b.tensor && a.access == b.access && a.place == b.place;
}

bool same_fetch(const Event &a, const Event &b)
{
    return same_tensor(a, b) && a.byte_begin == b.byte_begin && a.byte_count == b.byte_count;
}

}  // namespace

Learned::Learned(Step events) : events_(std::move(events))
{
    events_.shrink_to_fit();
    size_t count = 0;
    for (const Event &event : events_) count += event.act == Act::kFetch;
    fetch_at_.reserve(count);
    index_.reserve(count);
    uses_.reserve(count);
    for (size_t i = 0; i < events_.size(); ++i) {
        const Event &event = events_[i];
        if (event.act != Act::kFetch) continue;
        const auto number = static_cast<uint32_t>(fetch_at_.size());
        std::vector<uint32_t> &order = order_[static_cast<size_t>(event.lane)];
        index_.push_back(static_cast<uint32_t>(order.size()));
        order.push_back(number);
        fetch_at_.push_back(static_cast<uint32_t>(i));
        uses_.push_back({event.tensor, number});
    }
    for (std::vector<uint32_t> &order : order_) order.shrink_to_fit();
    key_ = make_key();
    std::sort(uses_.begin(), uses_.end(), [](const Use &a, const Use &b) {
        return a.tensor != b.tensor ? a.tensor < b.tensor : a.number < b.number;
    });
    find_openings();
}

void Learned::find_openings()
{
    const std::vector<uint32_t> &program = order(Lane::kProgram);
    const uint32_t last = program.empty() ? 0 : program.back() + 1;
    const residency::TensorId most = uses_.empty() ? 0 : uses_.back().tensor;
    std::vector<bool> opened(uses_.empty() ? 0 : size_t{most} + 1);
    std::vector<bool> closed(opened.size());
    opening_.reserve(fetches());
    for (uint32_t number = 0; number < fetches(); ++number) {
        const Event &event = fetch(number);
        const bool updates = event.lane == Lane::kUpdate;
        if (!updates || !opened[event.tensor]) opening_.push_back(number);
        if (updates && number >= last && !closed[event.tensor]) closing_.push_back(number);
        if (updates) opened[event.tensor] = true;
        if (updates && number >= last) closed[event.tensor] = true;
    }
    opening_.shrink_to_fit();
    closing_.shrink_to_fit();
}

residency::Request Learned::update_request(uint32_t number) const
{
    const Event &event = fetch(number);
    uint64_t begin = event.byte_begin;
    uint64_t end = event.byte_begin + event.byte_count;
    for (const Use &use : uses(event.tensor)) {
        const Event &other = fetch(use.number);
        if (other.lane != Lane::kUpdate) continue;
        begin = std::min(begin, other.byte_begin);
        end = std::max(end, other.byte_begin + other.byte_count);
    }
    return {event.tensor, event.access, event.place, begin, end - begin};
}

uint64_t Learned::compute_before(uint32_t number) const
{
    const Event &fetch = this->fetch(number);
    uint64_t compute = fetch.compute_ns;
    for (size_t i = fetch_at_[number]; i > 0; --i) {
        const Event &before = events_[i - 1];
        if (before.lane != fetch.lane) continue;
        if (before.act == Act::kFetch) break;
        compute += before.compute_ns;
    }
    return compute;
}

Learned::UsesOf Learned::uses(residency::TensorId tensor, uint64_t from) const
{
    const auto key = [](uint64_t of, uint64_t number) {
        return of << 32 | std::min<uint64_t>(number, UINT32_MAX);
    };
    const uint64_t wanted = key(tensor, from);
    const Use *begin = uses_.data();
    // Binary search without unpredictable branches: by masks, as compilers turn conditional
    // expressions into branches.
    for (size_t left = uses_.size(); left > 0;) {
        const size_t half = left / 2;
        const Use &middle = begin[half];
        const size_t behind = 0 - size_t{key(middle.tensor, middle.number) < wanted};
        begin += (half + 1) & behind;
        left = half - ((left + 1) & 1 & behind);
    }
    const Use *end = uses_.data() + uses_.size();
    return {begin, begin != end && begin->tensor == tensor ? end : begin};
}

bool Learned::goes(const Learned &other, bool (*same)(const Event &, const Event &)) const
{
    const std::vector<uint32_t> &mine = order(Lane::kProgram);
    const std::vector<uint32_t> &others = other.order(Lane::kProgram);
    return std::equal(
        mine.begin(), mine.end(), others.begin(), others.end(),
        [&](uint32_t one, uint32_t another) { return same(fetch(one), other.fetch(another)); });
}

bool Learned::goes_like(const Learned &other) const
{
    return goes(other, mixes_lengths_ ? same_tensor : same_fetch);
}

bool Learned::goes_through(const Learned &other) const
{
    return goes(other, same_tensor);
}

void Learned::mix_lengths()
{
    mixes_lengths_ = true;
    key_ = make_key();
}

uint64_t Learned::make_key() const
{
    uint64_t key = 0xcbf29ce484222325;
    for (const uint32_t number : order(Lane::kProgram)) {
        const Event &event = fetch(number);
        const uint64_t words[] = {event.tensor, static_cast<uint64_t>(event.access), event.place,
                                  mixes_lengths_ ? 0 : event.byte_begin,
                                  mixes_lengths_ ? 0 : event.byte_count};
        for (const uint64_t word : words) {
            key = (key ^ word) * 0x9e3779b97f4a7c15;
            key ^= key >> 29;
        }
    }
    return key;
}

uint64_t Learned::compute_ns() const
{
    uint64_t sum = 0;
    for (const Event &event : events_) sum += event.lane == Lane::kProgram ? event.compute_ns : 0;
    return sum;
}

uint64_t Learned::update_bytes() const
{
    uint64_t sum = 0;
    for (const uint32_t number : order(Lane::kUpdate)) sum += fetch(number).byte_count;
    return sum;
}

// Compute times become moving means; a declared step without times has no weight.
void Learned::renew(Learned newer)
{
    const std::vector<uint32_t> &mine = order(Lane::kProgram);
    const std::vector<uint32_t> &others = newer.order(Lane::kProgram);
    for (size_t i = 0; i < mine.size(); ++i) {
        const uint64_t known = compute_before(mine[i]);
        const uint64_t measured = newer.compute_before(others[i]);
        if (known == 0) continue;
        Event &event = newer.events_[newer.fetch_at_[others[i]]];
        const uint64_t among = measured - event.compute_ns;  // of releases before it
        const uint64_t mean = (3 * known + measured) / 4;
        event.compute_ns = mean > among ? mean - among : 0;
    }
    events_.swap(newer.events_);
    fetch_at_.swap(newer.fetch_at_);
    index_.swap(newer.index_);
    order_.swap(newer.order_);
    uses_.swap(newer.uses_);
    opening_.swap(newer.opening_);
    closing_.swap(newer.closing_);
}

void Learned::note_followed_by(const Learned *next)
{
    constexpr uint32_t kSureMax = 3;
    if (next == followed_by) {
        followed_so_ = std::min(followed_so_ + 1, kSureMax);
    } else if (followed_by && followed_so_ > 0) {
        --followed_so_;
    } else {
        followed_by = next;
        followed_so_ = 1;
    }
}

uint64_t Learned::bytes() const
{
    uint64_t bytes =
        sizeof *this + events_.capacity() * sizeof(Event) +
        (fetch_at_.capacity() + index_.capacity() + opening_.capacity() + closing_.capacity()) *
            sizeof(uint32_t) +
        uses_.capacity() * sizeof(Use);
    for (const std::vector<uint32_t> &order : order_) bytes += order.capacity() * sizeof(uint32_t);
    return bytes;
}

}  // namespace stepwell::schedule
