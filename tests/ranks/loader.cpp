// SPDX-License-Identifier: Apache-2.0
// The loader: what other threads of a rank do meanwhile, without order. It ends after the program
// when it holds nothing and waits for nothing.
#include "tests/ranks/rank.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace stepwell::ranks {
namespace {

constexpr size_t kViewsMax = 3;
constexpr size_t kAskedMax = 4;
constexpr uint64_t kLoadsPerStep = 400;

}  // namespace

void Rank::load()
{
    struct Choice {
        uint32_t weight;
        void (Rank::*call)();
    };
    static constexpr Choice kChoices[] = {
        {30, &Rank::load_fetch}, {12, &Rank::load_hit},   {30, &Rank::load_release},
        {10, &Rank::load_hint},  {4, &Rank::load_cancel}, {6, &Rank::load_evict},
        {5, &Rank::load_advice}, {3, &Rank::load_remake}, {2, &Rank::load_scores},
    };
    static constexpr uint32_t kWeights =
        std::accumulate(std::begin(kChoices), std::end(kChoices), 0u,
                        [](uint32_t sum, const Choice &choice) { return sum + choice.weight; });
    loader_armed_ = false;
    // Loaders without an end could keep a disk busy for ever that others wait for.
    const bool over = program_ == State::kDone || ++loads_ > kLoadsPerStep * world_.options.steps;
    const auto asked = count_asked(Who::kLoader);
    if (over && loaded_.empty() && asked == 0) {
        loader_done_ = true;
        return;
    }
    // What it waits for calls it again.
    if (loader_sleeps_ != 0 || (over && loaded_.empty())) return;
    const Instant stopped = world_.disturbance.stopped_until[number_];
    if (stopped > world_.now()) {
        arm_loader(stopped - world_.now());
        return;
    }
    arm_loader(random_.between(1, 2 * setup_.loader_gap_us) * 1000);
    if (over) {
        load_release();
        return;
    }
    uint64_t at = random_.below(kWeights);
    for (const Choice &choice : kChoices) {
        if (at < choice.weight) {
            (this->*choice.call)();
            return;
        }
        at -= choice.weight;
    }
}

void Rank::arm_loader(Instant gap)
{
    if (loader_armed_) return;
    loader_armed_ = true;
    world_.wake(world_.now() + gap, Wake::kLoader, number_);
}

size_t Rank::count_asked(Who who) const
{
    return static_cast<size_t>(std::count_if(pending_.begin(), pending_.end(),
                                             [who](const Pending &at) { return at.who == who; }));
}

uint32_t Rank::any_tensor()
{
    const uint64_t first = random_.below(ids_.size());
    for (uint64_t i = 0; i < ids_.size(); ++i) {
        const auto index = static_cast<uint32_t>((first + i) % ids_.size());
        if (ids_[index] != kNone) return index;
    }
    return kNone;
}

void Rank::load_fetch()
{
    if (loaded_.size() >= kViewsMax || count_asked(Who::kLoader) >= kAskedMax) return;
    FetchAsked asked = new_asked();
    asked.owner = 2;
    const uint64_t kind = random_.below(10);
    if (kind < 2) asked.flags = kFetchTry;
    if (kind > 3) asked.flags = kFetchWaitRoom;
    asked.priority = static_cast<int32_t>(random_.below(3));
    if (random_.chance(30)) asked.deadline = world_.now() + random_.between(10, 10000) * 1000;
    for (uint64_t n = random_.chance(75) ? 1 : 2; n > 0; --n) {
        const uint32_t index = any_tensor();
        if (index == kNone) {
            keep_memory(asked);
            return;
        }
        Request request;
        request.tensor = ids_[index];
        const ModelTensor &tensor = model_.tensors[request.tensor];
        const bool has_host = setup_.config.places[kHost].blocks > 0;
        request.place = has_host && random_.chance(40) ? kHost : kDevice;
        if (random_.chance(10)) request.place = kAnyCpuPlace;
        request.byte_count = tensor.spec.bytes;
        const uint64_t access = random_.below(10);
        request.access = access < 6   ? Access::kRead
                         : access < 8 ? Access::kReadWrite
                                      : Access::kWrite;
        if (!tensor.readable() && !random_.chance(10)) request.access = Access::kWrite;
        const uint64_t pieces = (tensor.spec.bytes + kPieceBytes - 1) / kPieceBytes;
        if (random_.chance(30) && tensor.readable()) {
            const uint64_t first = random_.below(pieces);
            request.byte_begin = first * kPieceBytes;
            request.byte_count = std::min(random_.between(1, pieces - first) * kPieceBytes,
                                          tensor.spec.bytes - request.byte_begin);
        }
        asked.requests.push_back(request);
    }
    note(asked, schedule::Lane::kProgram);
    const FetchId id = ask(Who::kLoader, std::move(asked));
    if (random_.chance(50)) loader_sleeps_ = id;
}

void Rank::load_hint()
{
    const uint32_t index = any_tensor();
    if (index == kNone || (!model_.tensors[ids_[index]].readable() && !random_.chance(10))) return;
    FetchAsked asked = new_asked();
    asked.flags = kFetchPrefetch;
    asked.urgency = static_cast<Class>(random_.below(3));
    Request request;
    request.tensor = ids_[index];
    const bool has_host = setup_.config.places[kHost].blocks > 0;
    request.place = has_host && random_.chance(40) ? kHost : kDevice;
    request.byte_count = setup_.tensors[index].spec.bytes;
    asked.requests.push_back(request);
    ask(Who::kHint, std::move(asked));
}

void Rank::load_hit()
{
    const uint32_t index = any_tensor();
    if (index == kNone || loaded_.size() >= kViewsMax) return;
    Request request;
    request.tensor = ids_[index];
    request.place = random_.chance(70) || setup_.config.places[kHost].blocks == 0 ? kDevice : kHost;
    request.byte_count = setup_.tensors[index].spec.bytes;
    views_.clear();
    if (!try_hit(&request, 1, &views_) || journal_.failed()) return;
    views_.front().owner = 2;
    loaded_.push_back(views_.front());
}

void Rank::load_release()
{
    if (loaded_.empty()) return;
    std::swap(loaded_[random_.below(loaded_.size())], loaded_.back());
    const View view = loaded_.back();
    loaded_.pop_back();
    const uint64_t kind = random_.below(12);
    give_back(view, kind < 2    ? schedule::Hint::kFar
                    : kind == 2 ? schedule::Hint::kNear
                    : kind == 3 ? schedule::Hint::kDiscard
                                : schedule::Hint::kNone);
}

void Rank::load_cancel()
{
    for (const Pending &at : pending_) {
        if (at.who == Who::kUpdate || at.who == Who::kPlan || random_.chance(60)) continue;
        cancel(at.id, Status::error(STW_ERROR_CANCELLED, "the program changed its mind"));
        return;
    }
}

void Rank::load_evict()
{
    const uint32_t index = any_tensor();
    if (index == kNone) return;
    ++told_;
    const PlaceId place = random_.chance(60) ? kDevice : kHost;
    if (setup_.config.places[place].blocks == 0) return;
    if (random_.chance(15)) {
        core_.write_back_all(out_);
    } else {
        core_.evict(ids_[index], place, out_);
    }
    journal_.line("rank %u: evict tensor %u from place %u", number_, ids_[index], place);
}

void Rank::load_advice()
{
    const uint32_t index = any_tensor();
    if (index == kNone) return;
    ++told_;
    const TensorId id = ids_[index];
    if (random_.chance(50)) {
        core_.release_hint(id, kDevice, random_.chance(50), out_);
        return;
    }
    Policy policy = model_.tensors[id].spec.policy;
    policy.retention = static_cast<Retention>(random_.below(3));
    policy.priority = static_cast<int32_t>(random_.below(3));
    if (core_.set_policy(id, policy).ok()) model_.tensors[id].spec.policy = policy;
}

// A policy of the program says what it thinks of what may be there, or nothing any more.
void Rank::load_scores()
{
    ++told_;
    if (random_.chance(25)) {
        core_.forget_scores();
        return;
    }
    const PlaceId place = random_.chance(60) ? kDevice : kHost;
    if (setup_.config.places[place].blocks == 0) return;
    std::vector<Candidate> found;
    for (PackId next = 0; next != kNone;) next = core_.candidates(place, next, 50, &found);
    std::vector<Score> scores;
    for (const Candidate &at : found) {
        if (random_.chance(80)) {
            scores.push_back({at.tensor, static_cast<double>(random_.below(7)) - 3});
        }
    }
    journal_.line("rank %u: %zu scores at place %u", number_, scores.size(), place);
    core_.score(place, scores.data(), scores.size());
}

// What passes is destroyed and made again, with other threads in the middle of it.
void Rank::load_remake()
{
    const auto index = static_cast<uint32_t>(random_.below(ids_.size()));
    if (!setup_.tensors[index].passing && !random_.chance(20)) return;
    ids_[index] == kNone ? create(index) : destroy(index);
}

void Rank::forgive()
{
    ++told_;
    journal_.line("rank %u: failed writes are forgiven", number_);
    core_.forgive(out_);
    model_.write_failed = false;
    execute();
}

void Rank::cancel_some()
{
    load_cancel();
}

}  // namespace stepwell::ranks
