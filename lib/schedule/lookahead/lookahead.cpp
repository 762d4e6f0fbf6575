// SPDX-License-Identifier: Apache-2.0
// Each use is examined once when it becomes near or far, and once more when it goes from far to
// near; beyond that a call costs one pass over the uses that are still ahead.
#include "lib/schedule/lookahead/lookahead.h"

#include <algorithm>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::Instant;
using residency::kNever;
using residency::PlaceId;

constexpr size_t kItemsMax = 2048;
constexpr size_t kAnewMax = 32;            // of the next items, examined again each time ...
constexpr uint64_t kAnewBlocksMax = 1024;  // ... up to so many blocks
constexpr uint8_t kAgainMax = 2;  // two tensors that evict each other are not prefetched for ever
constexpr uint64_t kAnewPerEviction = 64;         // blocks
constexpr uint32_t kBusyMax = 8;                  // items skipped because they are in use
constexpr Instant kInFlightNs = 20'000'000;       // link time of prefetches in flight, at most ...
constexpr Instant kEvictingNs = 12'000'000;       // ... if they have to evict ...
constexpr Instant kPieceNs = 8'000'000;           // ... and each piece of a large tensor
constexpr uint64_t kFlyingShare = 4;              // of a place, in flight to it while evicting ...
constexpr uint64_t kAheadShare = 4;               // ... kept free of that and of unused prefetches
constexpr int64_t kMarginNs = 1'000'000;          // a start that is late by this much is still safe
constexpr Instant kSoonestNs = kMarginNs / 4;     // at the least until the next look at a start
constexpr Instant kRetryNs = 500'000;             // after a hint was refused; doubled ...
constexpr Instant kRetryMostNs = 16'000'000;      // ... by each further refusal, up to this
constexpr uint64_t kPollShare = 8;                // of the time to the next fetch, but ...
constexpr Instant kPollFirstNs = 1'000'000;       // ... at least this, and ...
constexpr Instant kPollLastNs = 64'000'000;       // ... at most this, also if it does not come
constexpr int64_t kDoubt = 2;                     // factor: bandwidths are shared and gaps vary
constexpr size_t kLaterMax = 64;                  // uses after those with room
constexpr int64_t kLaterDoubtShare = 8;           // of the time that their bytes take
constexpr uint64_t kSlowBytesPerS = 500'000'000;  // of a link that was not measured

uint64_t ns_of(uint64_t bytes, uint64_t bytes_per_s)
{
    const double speed = static_cast<double>(bytes_per_s ? bytes_per_s : kSlowBytesPerS);
    return static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 / speed);
}

// The bytes that may be prefetched for the use; none if its place is not fixed or it is unsure.
residency::Lack lack_of(const residency::Core &core, const Expected &use, PlaceId place)
{
    if (use.unsure || use.request.place == residency::kAnyCpuPlace) return {};
    residency::Request request = use.request;
    request.place = place;
    return core.lack(request);
}

bool reads_bytes(const residency::Request &request)
{
    return request.access == residency::Access::kRead ||
           request.access == residency::Access::kReadWrite;
}

// What a prefetch for the request brings: bytes for a read, and for a write to a tensor without
// contents the room.
uint64_t brought_by(const residency::Lack &lack, const residency::Request &request)
{
    if (reads_bytes(request)) return lack.readable ? lack.bytes : 0;
    return lack.vacant_bytes;
}

}  // namespace

Lookahead::Lookahead(PlaceId host, PlaceId nvme) : host_(host), nvme_(nvme)
{
    horizon_.fill(kNever);
    slack_.items_ns.reserve(kItemsMax);
}

uint64_t Lookahead::metadata_bytes_max()
{
    constexpr uint64_t kNode = 5 * sizeof(void *);
    return kLaterMax * sizeof(Later) +
           kItemsMax * (sizeof(Item) + sizeof(int64_t) + sizeof(Flight) + kNode + 16) +
           RoomTable::metadata_bytes_max(kItemsMax);
}

void Lookahead::set_bandwidth(PlaceId from, PlaceId to, uint64_t bytes_per_s)
{
    bytes_per_s_[from][to] = bytes_per_s;
}

// Passed uses free their room; after a change of order all items are examined again.
void Lookahead::follow(const Forecast &forecast)
{
    const bool other = forecast.turn() != turn_ || forecast.passed() < passed_;
    uint64_t over = other ? items_.size() : forecast.passed() - passed_;
    if (other || over > 0) refused_.fill({});
    if (other || over > 0) extended_ = knows_later_ = false;
    if (other || over > 0) look_at_ = 0;
    if (other || over > 0) ++changes_;
    for (over = std::min<uint64_t>(over, items_.size()); over > 0; --over) {
        if (items_.front().zone == Zone::kNear) --near_;
        set_lacks(items_.front(), false);
        give_room(items_.front());
        items_.pop_front();
    }
    turn_ = forecast.turn();
    passed_ = forecast.passed();
}

void Lookahead::set_lacks(Item &item, bool lacks)
{
    lacking_ -= item.lacks;
    lacking_ += lacks;
    changes_ += item.lacks != lacks;
    item.lacks = lacks;
}

void Lookahead::give_room(Item &item)
{
    if (item.zone == Zone::kOut || item.place == residency::kNoPlace) return;
    landed_bytes_[item.place] -= std::exchange(item.landed_bytes, 0);
    rooms_.give(*item.room, item.use.request.tensor, item.place);
    item.place = residency::kNoPlace;
}

uint64_t Lookahead::cost_of(const residency::Lack &lack) const
{
    uint64_t cost = 0;
    for (PlaceId from = 0; from < residency::kPlacesMax; ++from) {
        if (lack.from[from] == 0) continue;
        cost += ns_of(lack.from[from], bytes_per_s_[from][lack.place]);
    }
    if (lack.vacant_bytes == 0) return cost;
    // What has to leave for it goes to the next tier, which takes about as long as to come back.
    const bool has_host = lack.place < host_ && budgets_[host_] > 0;
    return cost + ns_of(lack.vacant_bytes, bytes_per_s_[has_host ? host_ : nvme_][lack.place]);
}

// To the place where the CPU works on it, and only bytes from the disk: those in memory need no
// prefetch. Of far uses only those at the host tier, as the other places are full.
bool Lookahead::bring_update(const residency::Core &core, Item &item, Zone zone)
{
    const residency::Lack lack = item.use.unsure ? residency::Lack{} : core.lack(item.use.request);
    const bool counts = lack.place != residency::kNoPlace && lack.place != nvme_ &&
                        (zone == Zone::kNear || lack.place == host_);
    RoomTable::Room *room = nullptr;
    if (counts) room = rooms_.take(core, item.use.request.tensor, lack.place, lack.room_bytes);
    if (counts && !room) return false;
    give_room(item);
    item.zone = zone;
    item.room = room;
    item.place = counts ? lack.place : residency::kNoPlace;
    item.room_bytes = lack.room_bytes;
    item.flying = 0;
    item.asked_bytes = 0;
    const bool fits = counts && lack.room_bytes <= core.budget_bytes(lack.place);
    const bool lacks = fits && lack.readable && lack.from[nvme_] > 0;
    set_lacks(item, lacks && reads_bytes(item.use.request));
    item.cost_ns = item.lacks ? cost_of(lack) : 0;
    ++changes_;
    return true;
}

bool Lookahead::bring_near(const residency::Core &core, Item &item)
{
    if (item.use.update) return bring_update(core, item, Zone::kNear);
    const residency::Lack lack = lack_of(core, item.use, item.use.request.place);
    if (lack.place == residency::kNoPlace || lack.place == nvme_) {
        give_room(item);  // destroyed, or copied piece by piece with hints of its own
        set_lacks(item, false);
        item.zone = Zone::kNear;
        return true;
    }
    RoomTable::Room *room = rooms_.take(core, item.use.request.tensor, lack.place, lack.room_bytes);
    if (!room) return false;
    if (item.zone == Zone::kFar) give_room(item);
    item.zone = Zone::kNear;
    item.room = room;
    item.place = lack.place;
    item.room_bytes = lack.room_bytes;
    item.flying = 0;
    item.asked_bytes = 0;
    const bool fits = lack.room_bytes <= core.budget_bytes(lack.place);
    set_lacks(item, fits && brought_by(lack, item.use.request) > 0);
    item.cost_ns = item.lacks ? cost_of(lack) : 0;
    ++changes_;
    return true;
}

// As far as the host tier: room for all uses after the near ones, but only bytes on the disk.
bool Lookahead::bring_far(const residency::Core &core, Item &item)
{
    if (item.use.update) return bring_update(core, item, Zone::kFar);
    if (host_ >= nvme_ || core.budget_bytes(host_) == 0) return false;
    const residency::Lack lack = lack_of(core, item.use, item.use.request.place);
    if (lack.place != residency::kNoPlace && lack.place >= host_) return false;
    item.zone = Zone::kFar;
    set_lacks(item, false);
    const residency::Lack there = lack_of(core, item.use, host_);
    if (lack.place == residency::kNoPlace || there.place == residency::kNoPlace) return true;
    item.room = rooms_.take(core, item.use.request.tensor, host_, there.room_bytes);
    if (!item.room) {
        item.zone = Zone::kOut;
        return false;
    }
    item.place = host_;
    item.room_bytes = there.room_bytes;
    set_lacks(item, reads_bytes(item.use.request) && lack.readable && lack.from[nvme_] > 0 &&
                        there.from[nvme_] > 0);
    item.cost_ns = item.lacks ? cost_of(there) : 0;
    ++changes_;
    return true;
}

// Near and far depend on the accesses so far and on the budgets, not on transfers, so the call
// after a transfer is short.
void Lookahead::extend(const residency::Core &core, const Forecast &forecast)
{
    std::array<uint64_t, residency::kPlacesMax> budgets{};
    for (PlaceId place = 0; place <= host_; ++place) budgets[place] = core.budget_bytes(place);
    if (extended_ && budgets == budgets_) return;
    budgets_ = budgets;
    extended_ = true;
    ++changes_;
    horizon_.fill(kNever);
    const auto append = [&]() {
        if (items_.size() >= kItemsMax) return false;
        const std::optional<Expected> use = forecast.ahead(items_.size());
        if (!use) return false;
        items_.push_back({*use});
        return true;
    };
    const auto distance = [&](size_t index) {
        const std::optional<Expected> use = forecast.ahead(index);
        return use ? use->distance : kNever;
    };
    PlaceId full = residency::kNoPlace;
    while (full == residency::kNoPlace && (near_ < items_.size() || append())) {
        if (bring_near(core, items_[near_])) {
            ++near_;
        } else {
            full = core.lack(items_[near_].use.request).place;
        }
    }
    if (full == residency::kNoPlace) return;
    do {
        if (items_.back().zone == Zone::kFar) continue;
        if (bring_far(core, items_.back())) continue;
        // Neither tier has room from this use on.
        horizon_[full] = distance(items_.size() - 1);
        if (items_.size() - 1 > near_) horizon_[host_] = horizon_[full];
        return;
    } while (append());
}

size_t Lookahead::known_items() const
{
    const bool out = !items_.empty() && items_.back().zone == Zone::kOut;
    return items_.size() - out;
}

// Uses after all that have room: they cannot be prefetched yet, but will need the link. The first
// use of each tensor is enough, as it may stay afterwards.
void Lookahead::look_later(const residency::Core &core, const Forecast &forecast)
{
    if (knows_later_) return;
    knows_later_ = true;
    ++changes_;
    later_.clear();
    for (size_t i = 0; i < kLaterMax; ++i) {
        const std::optional<Expected> use = forecast.ahead(known_items() + i);
        if (!use) return;
        const residency::Request &request = use->request;
        const bool again = std::any_of(later_.begin(), later_.end(), [&](const Later &at) {
            return at.tensor == request.tensor;
        });
        Later later{request.tensor, use->compute_ns, 0};
        if (!again && !use->update && !use->unsure && reads_bytes(request)) {
            const residency::Lack lack = core.lack(request);
            const bool has_place = lack.place != residency::kNoPlace && lack.place != nvme_;
            const bool comes = rooms_.has(request.tensor, lack.place);
            if (has_place && lack.readable && !comes) later.cost_ns = cost_of(lack);
        }
        later_.push_back(later);
    }
}

// Relative to the time when item 0 is due, and without flights: only these two change while
// nothing else does. Stops at the first item that is late for `enough`, which makes all before it
// late too.
void Lookahead::find_slack(size_t first, int64_t enough)
{
    slack_.changes = changes_;
    slack_.late_at = 0;
    slack_.later_ns = INT64_MAX;
    slack_.items_ns.clear();
    int64_t due = 0;
    int64_t backlog = 0;
    const size_t known = known_items();
    for (size_t i = 0; i < known; ++i) {
        const Item &item = items_[i];
        if (i > 0) due += static_cast<int64_t>(item.use.compute_ns);
        if (item.lacks) backlog += static_cast<int64_t>(item.cost_ns);
        slack_.items_ns.push_back(item.lacks ? due - kDoubt * backlog : INT64_MAX);
        if (i < first || slack_.items_ns.back() > enough) continue;
        slack_.late_at = i + 1;
        slack_.late_ns = slack_.items_ns.back();
        return;
    }
    for (const Later &later : later_) {
        due += static_cast<int64_t>(later.compute_ns);
        if (later.cost_ns == 0) continue;
        backlog += static_cast<int64_t>(later.cost_ns);
        slack_.later_ns = std::min(slack_.later_ns, due - backlog - backlog / kLaterDoubtShare);
    }
    for (size_t i = known; i > 1; --i) {
        slack_.items_ns[i - 2] = std::min(slack_.items_ns[i - 2], slack_.items_ns[i - 1]);
    }
}

// The earliest of the latest starts of all items from `first` on, each after the ones before it,
// and of later uses, which assume that the link is busy from now on.
Instant Lookahead::latest_start(const Forecast &forecast, Instant now, size_t first)
{
    const uint64_t next_ns = known_items() == 0 ? 0 : items_.front().use.compute_ns;
    const auto due = static_cast<int64_t>(std::max(now, forecast.passed_at() + next_ns));
    const auto flying = static_cast<int64_t>(flying_.cost_ns());
    const int64_t enough = static_cast<int64_t>(now) - due + kDoubt * flying + kMarginNs;
    const bool late = first < slack_.late_at && slack_.late_ns <= enough;
    if (slack_.changes != changes_ || (slack_.late_at > 0 && !late)) find_slack(first, enough);
    int64_t items_ns = INT64_MAX;
    if (slack_.late_at > 0)
        items_ns = slack_.late_ns;
    else if (first < slack_.items_ns.size())
        items_ns = slack_.items_ns[first];
    int64_t latest = INT64_MAX;
    if (items_ns < INT64_MAX) latest = due + items_ns - kDoubt * flying - kMarginNs;
    if (slack_.later_ns < INT64_MAX) {
        const int64_t before = flying + flying / kLaterDoubtShare + kMarginNs;
        latest = std::min(latest, due + slack_.later_ns - before);
    }
    return latest == INT64_MAX ? kNever : static_cast<Instant>(std::max<int64_t>(latest, 0));
}

// An early prefetch takes room from known uses, so only as much is in flight as keeps the links
// busy. Further pieces of a tensor that has begun to arrive are allowed.
bool Lookahead::may_evict(const residency::Core &core, const Item &item) const
{
    const uint64_t flying = flying_.bytes(item.place);
    const uint64_t budget = core.budget_bytes(item.place);
    if (flying > 0 && (flying_.cost_ns() >= kEvictingNs || flying >= budget / kFlyingShare))
        return false;
    const uint64_t others = landed_bytes_[item.place] - item.landed_bytes;
    return flying + others <= budget - budget / kAheadShare;
}

Instant Lookahead::Poll::next(uint64_t turn, uint64_t passed, uint64_t gap_ns, Instant now)
{
    if (turn_ != turn || passed_ != passed) {
        turn_ = turn;
        passed_ = passed;
        from_ = now;
        pause_ns_ = std::clamp(gap_ns / kPollShare, kPollFirstNs, kPollLastNs);
        at_ = now + pause_ns_;
    } else if (now >= at_) {
        const bool late = now - from_ > gap_ns;
        if (late) pause_ns_ = std::min(2 * pause_ns_, kPollLastNs);
        at_ = now + pause_ns_;
    }
    return at_;
}

// Hits and their releases free room without an event. Looks for other reasons do not count.
void Lookahead::poll_later(Instant now)
{
    const bool all_fits = std::all_of(horizon_.begin(), horizon_.end(),
                                      [](uint64_t horizon) { return horizon == kNever; });
    if (all_fits || items_.empty()) return;
    const uint64_t gap_ns = items_.front().use.compute_ns;
    wake_ = std::min(wake_, poll_.next(turn_, passed_, gap_ns, now));
}

std::optional<residency::FetchAsked> Lookahead::next(const residency::Core &core,
                                                     const Forecast &forecast, Instant now)
{
    now_ = now;
    wake_ = kNever;
    follow(forecast);
    extend(core, forecast);
    look_anew(core);
    std::optional<residency::FetchAsked> asked = propose(core, forecast, now);
    if (!asked) poll_later(now);
    return asked;
}

// Examines the next items again, as what they need may have been evicted since. The more blocks
// are examined, the more evictions are awaited before the next time.
void Lookahead::look_anew(const residency::Core &core)
{
    uint64_t evictions = 0;
    for (PlaceId place = 0; place <= host_; ++place) evictions += core.evictions(place);
    if (evictions < look_at_) return;
    uint64_t looked_at = 0;
    const size_t most = std::min(items_.size(), kAnewMax);
    for (size_t i = 0; i < most && looked_at < kAnewBlocksMax; ++i) {
        Item &item = items_[i];
        if (item.lacks || !reads_bytes(item.use.request) || item.left) continue;
        if (item.flying > 0) continue;
        if (item.again >= kAgainMax) continue;
        if (item.use.update && item.zone != Zone::kOut) {
            looked_at += item.room_bytes / core.block_bytes();
            item.again += bring_update(core, item, item.zone) && item.lacks;
            continue;
        }
        if (i >= near_ || item.place == residency::kNoPlace) continue;
        looked_at += item.room_bytes / core.block_bytes();
        const residency::Lack lack = core.lack(item.use.request);
        if (lack.place != item.place || !lack.readable || lack.bytes == 0) continue;
        if (lack.room_bytes > core.budget_bytes(lack.place)) continue;
        set_lacks(item, true);
        item.asked_bytes = 0;
        ++item.again;
        item.cost_ns = cost_of(lack);
        ++changes_;
    }
    look_at_ = evictions + 1 + looked_at / kAnewPerEviction;
}

// Cuts the request to the first bytes that are lacking, by halving. At places whose views need
// runs of slots it is not cut, so that all find room together.
void Lookahead::cut(const residency::Core &core, residency::Request &request, residency::Lack &lack,
                    uint64_t bytes_max) const
{
    const uint64_t block = core.block_bytes();
    if (!core.maps(lack.place)) return;
    while (brought_by(lack, request) > bytes_max || cost_of(lack) > kPieceNs) {
        const uint64_t end = request.byte_begin + request.byte_count;
        const uint64_t middle = (request.byte_begin + request.byte_count / 2) / block * block;
        if (middle <= request.byte_begin) return;
        request.byte_count = middle - request.byte_begin;
        residency::Lack first = core.lack(request);
        if (brought_by(first, request) == 0) {
            request.byte_begin = middle;
            request.byte_count = end - middle;
            first = core.lack(request);
        }
        lack = first;
    }
}

// The item needs an eviction: false if starting later is early enough.
bool Lookahead::may_start(const residency::Core &core, const Forecast &forecast, Instant now,
                          size_t index)
{
    if (!may_evict(core, items_[index])) return false;
    look_later(core, forecast);
    const Instant start = latest_start(forecast, now, index);
    if (start <= now) return true;
    // While a program stands still its deadlines move on: look again no sooner than this.
    wake_ = std::min(wake_, std::max(start, now + kSoonestNs));
    return false;
}

std::optional<residency::FetchAsked> Lookahead::propose(const residency::Core &core,
                                                        const Forecast &forecast, Instant now)
{
    if (flying_.count() > 0 && flying_.cost_ns() >= kInFlightNs) return {};
    uint32_t busy = 0;
    size_t left = lacking_;
    for (size_t i = 0; left > 0; ++i) {
        Item &item = items_[i];
        if (!item.lacks) continue;
        --left;
        const uint64_t free = core.free_bytes(item.place);
        Refusal &refusal = refused_[item.place];
        const bool room_came = free > 0 && core.maps(item.place) && !refusal.room_tried;
        if (now < refusal.until && !room_came) {
            wake_ = std::min(wake_, refusal.until);
            continue;
        }
        // Without any free room it is too early, whatever the item lacks.
        const bool full = free == 0;
        if (full && !may_start(core, forecast, now, i)) return {};
        residency::Request request = item.use.request;
        request.place = item.place;
        if (reads_bytes(request)) request.access = residency::Access::kRead;
        request.byte_begin += item.asked_bytes;
        request.byte_count -= item.asked_bytes;
        residency::Lack lack = core.lack(request);
        // An update that has begun uses all of its tensors: these are skipped without a limit.
        if (lack.busy && !item.use.update && ++busy > kBusyMax) return {};
        if (lack.busy) continue;  // a hint would wait for the present user, possibly for long
        set_lacks(item, brought_by(lack, request) > 0);
        if (!item.lacks) continue;
        const bool evicts = !full && free < brought_by(lack, request);
        if (evicts && !may_start(core, forecast, now, i)) return {};
        // After a refusal ask only for what has room: the rest may have to wait for views.
        const bool again = evicts && refusal.pause_ns > 0;
        if (full || evicts) cut(core, request, lack, again ? free : kNever);
        refusal.room_tried |= now < refusal.until;
        const uint64_t bytes = brought_by(lack, request);
        proposed_ = {turn_, passed_ + i, item.cost_ns, bytes, item.place};
        // A tensor that was written meanwhile keeps what it has.
        if (!reads_bytes(request)) request.access = residency::Access::kWriteEmpty;
        const residency::Request &all = item.use.request;
        item.asked_bytes = request.byte_begin + request.byte_count - all.byte_begin;
        set_lacks(item, item.asked_bytes < all.byte_count);
        if (item.lacks) proposed_.cost_ns = std::min(item.cost_ns, cost_of(lack));
        item.cost_ns -= proposed_.cost_ns;
        ++changes_;
        residency::FetchAsked asked;
        asked.requests = {request};
        asked.urgency = residency::Class::kPlanned;
        asked.flags = residency::kFetchPrefetch | residency::kFetchPlanned;
        return asked;
    }
    return {};
}

void Lookahead::asked(residency::FetchId fetch)
{
    flying_.add(fetch, proposed_);
    if (Item *item = item_of(proposed_)) ++item->flying;
}

bool Lookahead::ended(residency::FetchId fetch, End end)
{
    const std::optional<Flight> taken = flying_.take(fetch);
    if (!taken) return false;
    const Flight &flight = *taken;
    Item *item = item_of(flight);
    if (end == End::kThere) refused_[flight.place] = {};
    if (item && item->flying > 0) --item->flying;
    if (end == End::kFailed && item) {
        item->left = true;
        set_lacks(*item, false);
    }
    if (end == End::kThere && item) {
        item->landed_bytes += flight.bytes;
        landed_bytes_[flight.place] += flight.bytes;
    }
    if (end == End::kNoRoom) {
        // A program that computes or rests may not free room for long.
        Refusal &refusal = refused_[flight.place];
        refusal.pause_ns = std::clamp(2 * refusal.pause_ns, kRetryNs, kRetryMostNs);
        refusal.until = now_ + refusal.pause_ns;
        if (item && !item->left) {
            item->cost_ns += flight.cost_ns;
            ++changes_;
            item->asked_bytes = 0;
            set_lacks(*item, true);
        }
    }
    return true;
}

// Null: the use has passed, or is at another place now.
Lookahead::Item *Lookahead::item_of(const Flight &flight)
{
    const bool ahead = flight.turn == turn_ && flight.position >= passed_ &&
                       flight.position - passed_ < items_.size();
    if (!ahead) return nullptr;
    Item &item = items_[flight.position - passed_];
    return item.place == flight.place ? &item : nullptr;
}

}  // namespace stepwell::schedule
