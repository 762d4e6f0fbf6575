// SPDX-License-Identifier: Apache-2.0
// As long as the program does what it did, it is followed fetch by fetch: a layer that is computed
// again in the backward pass begins as it did in the forward pass and goes on in another way, so
// that the last few fetches do not say which of the two it is. Where it does something else, the
// last two fetches say where it may be now.
#include "lib/gathering/foresight.h"

namespace stepwell::gathering {

void Foresight::fetched(WholeId whole, bool changed)
{
    const Spot spot = spot_behind(before_last_, last_);
    if (changed) barred_.insert(spot);
    const bool repeats = cursor_ < end() && fetches_[cursor_ - begin_] == whole;
    if (repeats) {
        ++cursor_;
    } else {
        const auto same = last_at_.find(spot_behind(last_, whole));
        cursor_ = same == last_at_.end() ? end() + 1 : same->second;
    }
    before_last_ = last_;
    last_ = whole;
    fetches_.push_back(whole);
    last_at_[spot_behind(before_last_, last_)] = end();
    if (fetches_.size() > remembers_max_) forget_half();
}

void Foresight::coming(uint32_t count_max, std::vector<Coming> &out) const
{
    WholeId before = before_last_;
    WholeId last = last_;
    for (uint64_t at = cursor_; at < end() && out.size() < count_max; ++at) {
        const Spot spot = spot_behind(before, last);
        if (barred_.count(spot) > 0) return;
        const WholeId next = fetches_[at - begin_];
        out.push_back({next, spot});
        before = last;
        last = next;
    }
}

// Half of it at once, so that it costs no more than a few steps a fetch.
void Foresight::forget_half()
{
    begin_ += fetches_.size() / 2;
    fetches_.erase(fetches_.begin(), fetches_.begin() + fetches_.size() / 2);
    std::erase_if(last_at_, [this](const auto &at) { return at.second < begin_; });
    if (cursor_ < begin_) cursor_ = end();
    if (barred_.size() > remembers_max_) barred_.clear();
}

}  // namespace stepwell::gathering
