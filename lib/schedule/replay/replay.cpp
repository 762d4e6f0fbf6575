// SPDX-License-Identifier: Apache-2.0
// Feeds a step's events to the core and carries out its commands on virtual links.
#include "lib/schedule/replay/replay_impl.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::FetchAsked;
using residency::Instant;
using residency::kNever;
using residency::kNoPlace;
using residency::PlaceId;
using residency::TensorId;

constexpr size_t kHintsMax = 64;  // asked for at once, as in the runtime

}  // namespace

Status Replay::Impl::create(std::vector<residency::TensorSpec> specs)
{
    uint32_t existing = 0;
    for (PlaceId place = 0; place < machine.config.places.size(); ++place) {
        if (machine.config.places[place].blocks > 0) existing |= 1u << place;
    }
    for (residency::TensorSpec &spec : specs) {
        residency::Policy &rules = spec.policy;
        if (rules.allowed == 0) rules.allowed = existing;
        for (PlaceId place = 0; rules.home == kNoPlace && place < residency::kPlacesMax; ++place) {
            if ((rules.allowed & existing) >> place == 1) rules.home = place;
        }
        const Result<TensorId> made = core.create(std::move(spec));
        if (!made.ok()) {
            Result<TensorId> refused = made;
            return std::move(refused.status());
        }
        STW_ASSERT(made.value() == open_.size());
        open_.emplace_back();
    }
    return {};
}

// Piece by piece, as the tensor may be larger than the nearest place.
Status Replay::Impl::fill(TensorId tensor)
{
    const uint64_t bytes = core.spec(tensor).bytes;
    PlaceId near = 0;
    while (near + 1u < machine.config.places.size() && machine.config.places[near].blocks == 0) {
        ++near;
    }
    const uint64_t block = machine.config.block_bytes;
    const uint64_t piece = std::max<uint64_t>(1, machine.config.places[near].blocks / 2) * block;
    Policy *const watching = std::exchange(policy, nullptr);
    Prefetcher *const asking = std::exchange(prefetcher, nullptr);
    links.set_instant(true);
    for (uint64_t begin = 0; begin < bytes; begin += piece) {
        Event event;
        event.tensor = tensor;
        event.access = Access::kWrite;
        event.place = near;
        event.byte_begin = begin;
        event.byte_count = std::min(piece, bytes - begin);
        Step step{event, event};
        step[1].act = Act::kRelease;
        step[1].hint = Hint::kFar;
        Result<StepResult> done = this->step(step);
        if (!done.ok()) return std::move(done.status());
        STW_TRY(drain());
        for (PlaceId place = 0; place + 1u < machine.config.places.size(); ++place) {
            core.evict(tensor, place, out_);
            STW_TRY(execute());
            STW_TRY(drain());
        }
    }
    links.set_instant(false);
    policy = watching;
    prefetcher = asking;
    return {};
}

Status Replay::Impl::check(const Step &step) const
{
    for (size_t i = 0; i < step.size(); ++i) {
        const Event &event = step[i];
        if (event.tensor >= open_.size()) {
            return Status::error(STW_ERROR_INVALID, "event %zu names tensor %u of %zu", i,
                                 event.tensor, open_.size());
        }
        const uint64_t bytes = core.spec(event.tensor).bytes;
        if (event.byte_begin >= bytes || event.byte_count > bytes - event.byte_begin) {
            return Status::error(STW_ERROR_INVALID,
                                 "event %zu names %llu bytes from %llu of %s, which has "
                                 "%llu",
                                 i, static_cast<unsigned long long>(event.byte_count),
                                 static_cast<unsigned long long>(event.byte_begin),
                                 tensor_text(core.spec(event.tensor).name).c_str(),
                                 static_cast<unsigned long long>(bytes));
        }
    }
    return {};
}

void Replay::Impl::begin(const Step &step)
{
    step_ = &step;
    result_ = {};
    result_.begin = time;
    result_.evictions.resize(machine.config.places.size());
    for (PlaceId place = 0; place < result_.evictions.size(); ++place) {
        result_.evictions[place] = core.evictions(place);
    }
    if (recording) result_.event_begins.resize(step.size());
    if (recording) result_.event_ends.resize(step.size());
    for (LaneState &lane : lanes_) lane = {};
    for (size_t i = 0; i < step.size(); ++i) {
        lanes_[static_cast<size_t>(step[i].lane)].events.push_back(i);
    }
    for (LaneState &lane : lanes_) {
        lane.past = lane.events.empty() ? kNoEvent : lane.events.front();
    }
    find_orders(step);
    links.set_recording(recording);
    if (policy) policy->begin_step(step);
    if (prefetcher) prefetcher->begin_step(step, time);
    news_ = true;
}

bool Replay::Impl::through() const
{
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const LaneState &lane) { return lane.cursor == lane.events.size(); });
}

// Both lanes wait for each other: the order of the step was not that strict, as both went on when
// it was recorded.
bool Replay::Impl::give_up_order()
{
    for (LaneState &lane : lanes_) {
        if (lane.wait != Wait::kLane) continue;
        lane.goes_first = true;
        return true;
    }
    return false;
}

// Of a transfer or of computing. kNever: only one lane can let the other go on.
Instant Replay::Impl::next_end() const
{
    Instant next = links.next_end();
    for (const LaneState &lane : lanes_) {
        if (lane.wait == Wait::kCompute) next = std::min(next, lane.until);
    }
    return next;
}

StepResult Replay::Impl::finish(const Step &step)
{
    const LaneState &program = lanes_[static_cast<size_t>(Lane::kProgram)];
    const LaneState &update = lanes_[static_cast<size_t>(Lane::kUpdate)];
    STW_ASSERT(step_ == &step);
    result_.step_ns = time - result_.begin;
    result_.compute_ns = program.compute_ns;
    result_.stall_ns = program.stall_ns;
    result_.update_stall_ns = update.stall_ns;
    result_.links = links.take_use();
    result_.spans = links.take_spans();
    for (PlaceId place = 0; place < result_.evictions.size(); ++place) {
        result_.evictions[place] = core.evictions(place) - result_.evictions[place];
    }
    if (prefetcher) prefetcher->end_step(time);
    step_ = nullptr;
    return std::move(result_);
}

Result<StepResult> Replay::Impl::step(const Step &step)
{
    STW_TRY(check(step));
    begin(step);
    STW_TRY(prefetch());
    STW_TRY(run_lanes());
    while (!through()) {
        const Instant end = next_end();
        if (stop && stop->load(std::memory_order_relaxed)) {
            return Status::error(STW_ERROR_CANCELLED, "the replay was stopped");
        }
        // A prefetcher that looks again does not help them: it may do so for ever.
        if (end == kNever && give_up_order()) {
            STW_TRY(run_lanes());
            continue;
        }
        if (end == kNever) {
            return Status::error(
                STW_ERROR_INVALID,
                "the step cannot go on after %llu ns: nothing is in flight, and %s",
                static_cast<unsigned long long>(time - result_.begin),
                core.describe_waiting(8).c_str());
        }
        const Instant wish = prefetcher ? prefetcher->wake() : kNever;
        time = std::max(time, wish > time ? std::min(end, wish) : end);
        news_ |= prefetcher && prefetcher->wake() <= time;
        if (links.next_end() <= time) STW_TRY(end_transfer());
        STW_TRY(prefetch());
        STW_TRY(run_lanes());
    }
    return finish(step);
}

Status Replay::Impl::drain()
{
    while (links.next_end() != kNever) {
        time = std::max(time, links.next_end());
        STW_TRY(end_transfer());
    }
    return {};
}

// Runs the commands until there are none.
Status Replay::Impl::execute()
{
    loop_.run();
    return std::exchange(failure_, {});
}

void Replay::Impl::submit(std::vector<residency::Transfer> &transfers, residency::Commands &)
{
    for (const residency::Transfer &transfer : transfers) {
        if (Status status = links.submit(transfer, time); !status.ok())
            failure_ = std::move(status);
    }
}

bool Replay::Impl::granted(residency::Granted &granted, residency::Commands &)
{
    const LaneState *lane = waiting_lane(granted.fetch);
    if (lane) grant(static_cast<Lane>(lane - lanes_.data()), granted);
    if (!lane && prefetcher) prefetcher->ended(granted.fetch, {});
    return true;
}

bool Replay::Impl::refused(residency::Refused &refused, residency::Commands &)
{
    if (waiting_lane(refused.fetch)) {
        failure_ = std::move(refused.status);
    } else if (prefetcher) {
        prefetcher->ended(refused.fetch, refused.status);
    }
    return true;
}

// Null: the fetch is a hint.
const Replay::Impl::LaneState *Replay::Impl::waiting_lane(residency::FetchId fetch) const
{
    for (const LaneState &lane : lanes_) {
        if (lane.wait == Wait::kFetch && lane.fetch == fetch) return &lane;
    }
    return nullptr;
}

Status Replay::Impl::end_transfer()
{
    ++result_.events;
    news_ = true;
    core.transfer_done(links.take_ended(), {}, out_);
    return execute();
}

// Called after events, when demand fetches have been asked for.
Status Replay::Impl::prefetch()
{
    if (!prefetcher || !step_ || !news_) return {};
    news_ = false;
    const LaneState &program = lanes_[static_cast<size_t>(Lane::kProgram)];
    Prefetcher::Moment moment;
    moment.position =
        program.cursor < program.events.size() ? program.events[program.cursor] : step_->size();
    moment.now = time;
    for (size_t asked = 0; asked < kHintsMax; ++asked) {
        std::optional<FetchAsked> hint = prefetcher->next(moment, core);
        if (!hint) break;
        hint->flags |= residency::kFetchPrefetch;
        ++result_.events;
        prefetcher->asked(core.fetch(*hint, out_));
        STW_TRY(execute());
    }
    prefetcher->clean(moment, core, out_);
    return execute();
}

void Replay::Impl::note_access(Lane lane, bool told)
{
    if (!prefetcher) return;
    news_ |= told;
    for (const Event &event : lanes_[static_cast<size_t>(lane)].asked) {
        prefetcher->access(event, told, time);
    }
}

Result<std::unique_ptr<Replay>> Replay::open(const Machine &machine,
                                             std::vector<residency::TensorSpec> specs)
{
    STW_TRY(machine.check());
    auto impl = std::make_unique<Impl>(machine);
    STW_TRY(impl->create(std::move(specs)));
    return std::unique_ptr<Replay>(new Replay(std::move(impl)));
}

Replay::Replay(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Replay::~Replay() = default;

void Replay::set_policy(Policy *policy)
{
    impl_->policy = policy;
    impl_->core.set_victim_policy(policy);
}

void Replay::set_prefetcher(Prefetcher *prefetcher)
{
    impl_->prefetcher = prefetcher;
}

void Replay::set_recording(bool recording)
{
    impl_->recording = recording;
}

void Replay::set_stop(const std::atomic<bool> *stop)
{
    impl_->stop = stop;
}

Status Replay::fill(TensorId tensor)
{
    return impl_->fill(tensor);
}

Status Replay::fill_what_is_read(const Step &step)
{
    std::vector<bool> seen;
    for (const Event &event : step) {
        if (event.tensor >= seen.size()) seen.resize(event.tensor + 1);
        if (event.act != Act::kFetch || seen[event.tensor]) continue;
        seen[event.tensor] = true;
        if (!reads(event.access) || impl_->core.spec(event.tensor).reads_zero) continue;
        if (impl_->core.contents(event.tensor) != residency::Contents::kEmpty) continue;
        STW_TRY(impl_->fill(event.tensor));
    }
    return {};
}

Result<StepResult> Replay::step(const Step &step)
{
    return impl_->step(step);
}

Status Replay::drain()
{
    return impl_->drain();
}

Instant Replay::now() const
{
    return impl_->time;
}

const residency::Core &Replay::core() const
{
    return impl_->core;
}

}  // namespace stepwell::schedule
